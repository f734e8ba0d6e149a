"""Parts about rounds: truncation against the prior, corrections, failing simulators, calibration, the benchmark."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Independent, Uniform

from common.errors import UserError, user_errors
from common.run import Run
from papers.snpse import baselines, metrics, plots, tasks
from papers.snpse import corrections as ways
from papers.snpse.estimator import SNPSE
from papers.snpse.posterior import Posterior
from papers.snpse.single import options_of, score_draws
from papers.snpse.truncation import HPR


def _rounds_of(task: tasks.Task, x: Tensor, reference: Tensor | None, budget: int, rounds: int, options: dict[str, Any], eps: float, seed: int,
               draws: int) -> dict[str, Any]:  # fmt: skip
    """NPSE (one round) or TSNPSE: draws, rounds' report, and the share of the reference that each round's region keeps."""
    kept: list[dict[str, Any]] = []

    class Watched(SNPSE):
        def _region_draws(self, posterior: Posterior, r: int) -> dict[str, Any]:
            found = super()._region_draws(posterior, r)
            region = HPR(posterior, eps=self.eps, pad=self.options["pad"], draws=torch.as_tensor(found["draws"]))
            coarse = HPR(posterior, eps=0.05, pad=0.0, draws=torch.as_tensor(found["draws"]))
            entry = {"round": r + 1, "draws": found["draws"][:2000]}
            if reference is not None:
                entry |= {"kept": float(region.accepts(reference[:2000]).float().mean()),
                          "kept_eps05": float(coarse.accepts(reference[:2000]).float().mean())}  # fmt: skip
            kept.append(entry)
            return found

    inference = Watched(task.prior, task.simulator, eps=eps, seed=seed, **options)
    with user_errors(task.name):
        posterior = inference.infer(x, budget, rounds)
    found = {
        "draws": posterior.sample((draws,), inside=False).numpy(),
        "rounds": posterior.diagnostics["rounds"],
        "kept": kept,
    }
    return found | {"theta": inference.theta[:, :2].numpy()}


def rounds(cfg: Any, run: Run) -> None:
    """E3, E5: C2ST of TSNPSE and of NPSE at the same number of simulations; what truncation keeps of the reference."""
    part, rows, kept_rows = cfg.rounds, [], []
    for name in part.tasks:
        task = tasks.get(name, run)
        x, reference = task.observation(part.observation), task.reference(part.observation)
        for seed in run.seeds(cfg.seeds):
            for method, rounds_ in (("npse", 1), ("tsnpse", part.rounds)):
                options = options_of(cfg, sde="ve", steps=part.steps, n_hpr=part.n_hpr, pad=part.pad)
                found = run.stage(f"rounds.{name}.{method}.{seed}", _rounds_of, task, x, reference, part.budget, rounds_, options, part.eps,
                                  seed, part.draws)  # fmt: skip
                value = score_draws(torch.as_tensor(np.array(found["draws"])), reference)
                acceptance = found["rounds"][-1]["acceptance"]
                rows.append({"task": name, "method": method, "seed": seed, "acceptance": acceptance, **value})
                kept_rows += [
                    {"task": name, "seed": seed, **{k: v for k, v in entry.items() if k != "draws"}}
                    for entry in found["kept"]
                ]
            shown = found
        mean = {
            m: float(np.mean([r["c2st"] for r in rows if r["task"] == name and r["method"] == m]))
            for m in ("npse", "tsnpse")
        }
        gaps = [
            next(r["c2st"] for r in rows if r["task"] == name and r["seed"] == s and r["method"] == "tsnpse")
            - next(r["c2st"] for r in rows if r["task"] == name and r["seed"] == s and r["method"] == "npse")
            for s in run.seeds(cfg.seeds)
        ]
        npse = [r["c2st"] for r in rows if r["task"] == name and r["method"] == "npse"]
        run.log({f"rounds.{name}": {"npse": mean["npse"], "tsnpse": mean["tsnpse"], "gap": mean["tsnpse"] - mean["npse"],
                                    "gap_worst": max(gaps), "no_truncation": abs(npse[-1] - npse[0])}})  # fmt: skip
        of_task = [r for r in kept_rows if r["task"] == name]
        if of_task:
            run.log(
                {
                    f"rounds.{name}": {
                        "kept": min(r["kept"] for r in of_task),
                        "kept_eps05": min(r["kept_eps05"] for r in of_task),
                    }
                }
            )
        run.figure(f"rounds_{name}", plots.rounds(shown, reference, name))
    run.table("rounds", rows)
    run.table("kept", kept_rows)


def _corrected(
    method: str, task: tasks.Task, x: Tensor, budget: int, rounds_: int, options: dict[str, Any], seed: int, draws: int
) -> dict[str, Any]:
    found = ways.sequential(method, task.prior, task.simulator, x, budget, rounds_, seed, **options)
    sample = found.sample((draws,))
    ess = found.diagnostics.get("ess") or next((r["ess"] for r in reversed(found.diagnostics["rounds"])), None)
    return {"draws": sample.numpy(), "ess": ess}


def corrections(cfg: Any, run: Run) -> None:
    """E4: SNPSE-A, -B, -C and truncation on gaussian_linear_uniform in few dimensions, against its exact posterior."""
    part, task, rows = cfg.corrections, tasks.gaussian_linear_uniform(cfg.corrections.d), []
    x = task.true_parameters(2)
    exact = task.exact(x)
    assert exact is not None
    reference = exact(part.draws, run.rng("corrections", "reference").torch)
    options = options_of(cfg, sde="ve", steps=part.steps, n_hpr=part.n_hpr)
    for seed in run.seeds(cfg.seeds):
        for method in ("t", "a", "b", "c"):
            name = f"corrections.{method}.{seed}"
            if method == "t":
                found = run.stage(
                    name, _rounds_of, task, x, None, part.budget, part.rounds, options, 5e-4, seed, part.draws
                )
            else:
                found = run.stage(
                    name, _corrected, method, task, x, part.budget, part.rounds, options, seed, part.draws
                )
            value = score_draws(torch.as_tensor(np.array(found["draws"])), reference)
            rows.append({"method": method, "seed": seed, **value, "ess": found.get("ess")})
    mean = {m: float(np.mean([float(r["c2st"]) for r in rows if r["method"] == m])) for m in "tabc"}  # type: ignore[arg-type]
    run.log({"corrections": {**mean, "t_minus_best": mean["t"] - min(mean["a"], mean["b"]), "c_minus_t": mean["c"] - mean["t"],
                             "c_minus_best": mean["c"] - min(mean["a"], mean["b"]), "b_minus_t": mean["b"] - mean["t"]}})  # fmt: skip
    if ess := [r["ess"] for r in rows if r["method"] == "b" and r["ess"] is not None]:
        run.log({"corrections.ess_b": float(np.mean([float(value) for value in ess]))})
    run.table("corrections", rows)


def ball_radius(d: int, share: float) -> float:
    """Radius of a ball with this share of the volume of [-1, 1]^d."""
    from math import gamma, pi

    return float((share * 2**d * gamma(d / 2 + 1) / pi ** (d / 2)) ** (1 / d))


def failing_task(d: int, share: float, noise: float) -> tasks.Task:
    """theta + noise inside a ball of a share of the prior's volume, NaN outside."""
    radius = ball_radius(d, share)

    def simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
        x = theta + noise * torch.randn(theta.shape, generator=generator)
        return torch.where(theta.norm(dim=1, keepdim=True) < radius, x, torch.nan)

    return tasks.Task("failing", Independent(Uniform(-torch.ones(d), torch.ones(d)), 1), simulate, d, d)


def valid(cfg: Any, run: Run) -> None:
    """E6: the share of simulations that do not fail, round by round."""
    part, task = cfg.valid, failing_task(cfg.valid.d, cfg.valid.share, cfg.valid.noise)
    x = torch.full((part.d,), 0.1)
    options = options_of(cfg, sde="ve", steps=part.steps, n_hpr=part.n_hpr, nan=part.nan)
    found = run.stage("valid", _rounds_of, task, x, None, part.budget, part.rounds, options, part.eps, run.seed, 100)
    shares = [float(r["valid"]) for r in found["rounds"]]
    run.table(
        "valid",
        [
            {"round": i + 1, "valid": v, "acceptance": r["acceptance"]}
            for i, (v, r) in enumerate(zip(shares, found["rounds"], strict=True))
        ],
    )
    rises = min((b - a for a, b in zip(shares, shares[1:], strict=False)), default=0.0)
    run.log({"valid": {"first": shares[0], "last": shares[-1], "gain": shares[-1] / part.share, "least_rise": rises,
                       "gain_without_rounds": shares[0] / part.share}})  # fmt: skip
    run.figure("valid", plots.valid(shares, part.share))


def calibration(cfg: Any, run: Run) -> None:
    """SBC ranks, coverage by highest-density regions, and TARP of an amortised fit."""
    part = cfg.calibration
    task, rows = tasks.get(part.task, run), []
    from papers.snpse.single import fitted

    generator = run.rng("calibration").torch
    posterior = fitted(
        run, "calibration.fit", task, part.budget, options_of(cfg, steps=part.steps), task.observation(1), run.seed
    )
    theta = posterior.prior.sample(part.observations, generator)
    x = task.simulate(theta, generator)
    ranks = metrics.sbc_ranks(posterior, theta, x, part.draws)
    cover, ball = (
        metrics.expected_coverage(posterior, theta, x, draws=part.draws),
        metrics.tarp(posterior, theta, x, part.draws),
    )
    p_values = metrics.rank_p_values(ranks, part.draws)
    gap = max(abs(a - b) for a, b in zip(cover["level"], cover["coverage"], strict=True))
    tarp_gap = max(abs(a - b) for a, b in zip(ball["level"], ball["coverage"], strict=True))
    run.log({"calibration": {"coverage_gap": gap, "tarp_gap": tarp_gap, "least_p": min(p_values)}})
    for level, a, b in zip(cover["level"], cover["coverage"], ball["coverage"], strict=True):
        rows.append({"level": level, "hpr": a, "tarp": b})
    run.table("calibration", rows)
    run.figure("coverage", plots.coverage(rows))


def _benchmark(
    method: str, task: tasks.Task, x: Tensor, budget: int, cfg: Any, seed: int, draws: int
) -> dict[str, Any]:
    part = cfg.benchmark
    options = options_of(cfg, steps=part.steps, n_hpr=part.n_hpr)
    generator = torch.Generator().manual_seed(seed)
    if method in ("npse", "tsnpse"):
        found = _rounds_of(
            task, x, None, budget, 1 if method == "npse" else part.rounds, options, part.eps, seed, draws
        )
        return {"draws": found["draws"]}
    if method == "nlse":
        theta = SNPSE(task.prior).prior.sample(budget, generator)
        return {
            "draws": ways.nlse(task.prior, theta, task.simulate(theta, generator), x, seed, **options)
            .sample((draws,), inside=False)
            .numpy()
        }
    if method in ways.METHODS:
        return _corrected(method, task, x, budget, part.rounds, options, seed, draws)
    if method in baselines.SEQUENTIAL:
        posterior: Any = baselines.fit_rounds(method, task.prior, task.simulate, x, budget, part.rounds, seed)
    else:
        theta = SNPSE(task.prior).prior.sample(budget, generator)
        posterior = baselines.fit(method, task.prior, theta, task.simulate(theta, generator), x, seed)
    return {"draws": posterior.sample((draws,), inside=method != "sbi_npse").numpy()}


def benchmark(cfg: Any, run: Run) -> None:
    """C2ST of methods on tasks, budgets and observations; each fit is a stage, so that a killed run goes on."""
    part, rows = cfg.benchmark, []
    for name in run.progress(list(part.tasks), "tasks"):
        task = tasks.get(name, run)
        for budget in part.budgets:
            for method in part.methods:
                for k in part.observations:
                    for seed in run.seeds(cfg.seeds):
                        x, reference = task.observation(k), task.reference(k)
                        key = f"benchmark.{name}.{budget}.{method}.{k}.{seed}"
                        try:
                            found = run.stage(key, _benchmark, method, task, x, budget, cfg, seed, part.draws)
                        except ValueError as error:
                            if "closed form" not in str(error):
                                raise
                            run.note(f"{method} on {name}: {error}")
                            continue
                        value = score_draws(torch.as_tensor(np.array(found["draws"])), reference)
                        rows.append(
                            {"task": name, "budget": budget, "method": method, "observation": k, "seed": seed, **value}
                        )
                values = [r["c2st"] for r in rows if (r["task"], r["budget"], r["method"]) == (name, budget, method)]
                if values:
                    run.log({f"benchmark.{name}.n{budget}.{method}": float(np.mean(values))})
    if not rows:
        raise UserError("benchmark: no method fits any of the tasks asked for")
    run.table("benchmark", rows)
    run.figure("benchmark", plots.benchmark(rows))


def pyloric(cfg: Any, run: Run) -> None:
    """Share of valid circuits, round by round, on a short version of the 31-parameter circuit."""
    from papers.snpse import pyloric as circuit

    part = cfg.pyloric
    task = circuit.task(part.milliseconds, part.dt)
    x = circuit.reference_statistics(part.milliseconds, part.dt, run.rng("pyloric", "reference").torch)
    options = options_of(cfg, sde="vp", steps=part.steps, n_hpr=part.n_hpr, nan="impute")
    found = run.stage("pyloric", _rounds_of, task, x, None, part.budget, part.rounds, options, part.eps, run.seed, 100)
    shares = [float(r["valid"]) for r in found["rounds"]]
    run.table(
        "pyloric",
        [
            {"round": i + 1, "valid": v, "acceptance": r["acceptance"]}
            for i, (v, r) in enumerate(zip(shares, found["rounds"], strict=True))
        ],
    )
    run.log({"pyloric": {"first": shares[0], "last": shares[-1]}})
    run.figure("pyloric", plots.valid(shares, shares[0]))
