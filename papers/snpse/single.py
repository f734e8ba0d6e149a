"""Parts about one round: a posterior in closed form, two moons, scales, samplers, heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from common.run import Run
from papers.snpse import plots, sampling, tasks
from papers.snpse.estimator import SNPSE
from papers.snpse.metrics import c2st
from papers.snpse.posterior import Posterior

C2ST_SEED = 1


def options_of(cfg: Any, **given: Any) -> dict[str, Any]:
    """Training options of the config, with those of a part."""
    return {**{str(k): v for k, v in cfg.training.items()}, **given}


def npse(task: tasks.Task, budget: int, options: dict[str, Any], rng: Any, seed: int) -> dict[str, Any]:
    """Simulate `budget` pairs from the prior and fit: {"state": ...}. What a stage keeps."""
    inference = SNPSE(task.prior, seed=seed, **options)
    theta = inference.prior.sample(budget, rng.torch)
    inference.append_simulations(theta, task.simulate(theta, rng.torch)).train()
    return {"state": inference._state}


def posterior_of(
    kept: dict[str, Any], task: tasks.Task, options: dict[str, Any], x: Tensor, seed: int = 0
) -> Posterior:
    """The posterior of a kept fit."""
    from papers.snpse.training import training_options

    return Posterior(kept["state"], task.prior, training_options(options), x, seed=seed)


def score_draws(draws: Tensor, reference: Tensor) -> dict[str, float]:
    """{"c2st", "mean_error", "std_ratio" (the coordinate furthest from 1)} of equally many draws of each."""
    n = min(len(draws), len(reference))
    ratio = draws.std(0) / reference.std(0)
    return {"c2st": c2st(reference[:n], draws[:n], C2ST_SEED), "mean_error": float((draws.mean(0) - reference.mean(0)).abs().mean()),
            "std_ratio": float(ratio[(ratio.log().abs()).argmax()])}  # fmt: skip


def fitted(
    run: Run, name: str, task: tasks.Task, budget: int, options: dict[str, Any], x: Tensor, seed: int
) -> Posterior:
    """NPSE on `budget` draws of the prior, kept as a stage."""
    kept = run.stage(name, npse, task, budget, options, run.rng(name), seed)
    return posterior_of(kept, task, options, x)


def linear(cfg: Any, run: Run) -> None:
    """E1: gaussian_linear, whose posterior is N(x / 2, 0.05): error against simulations."""
    part = cfg.linear
    task = tasks.gaussian_linear(part.d)
    x = task.true_parameters(1) + 0.3  # an observation of its own, so that the figures need no file
    exact, rows = task.exact(x), []
    assert exact is not None
    reference = exact(part.draws, run.rng("linear", "reference").torch)
    for budget in part.budgets:
        posterior = fitted(
            run, f"linear.{budget}", task, budget, options_of(cfg, sde="vp", steps=part.steps), x, run.seed
        )
        draws = posterior.sample((part.draws,), inside=False)
        found = score_draws(draws, reference)
        found["mean_error"] = float((draws.mean(0) - x / 2).abs().mean())
        rows.append({"simulations": budget, **found})
        run.log({f"linear.n{budget}": found})
    prior = Independent(Normal(torch.zeros(part.d), 0.1**0.5), 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        wrong = score_draws(prior.sample((part.draws,)), reference)
    run.log({"linear.prior": wrong})
    rows.append({"simulations": 0, **wrong})
    run.table("linear", rows)
    run.figure("linear", plots.against_budget(rows[:-1], "gaussian_linear"))


def moons(cfg: Any, run: Run) -> None:
    """E2: two_moons by simulations, and by steps at the most simulations."""
    part, task = cfg.moons, tasks.get("two_moons", run)
    x, reference, rows, shown = task.observation(part.observation), task.reference(part.observation), [], {}
    most = max(part.budgets)
    cases = [(budget, part.steps) for budget in part.budgets] + [(most, steps) for steps in part.fewer_steps]
    for budget, steps in cases:
        posterior = fitted(
            run, f"moons.{budget}.{steps}", task, budget, options_of(cfg, sde="ve", steps=steps), x, run.seed
        )
        draws = posterior.sample((part.draws,), inside=False)
        found = {**score_draws(draws, reference), "leakage": 1 - float(posterior.prior.inside(draws).float().mean())}
        rows.append({"simulations": budget, "steps": steps, **found})
        run.log({f"moons.n{budget}.steps{steps}": found})
        shown[f"{budget:,} simulations, {steps:,} steps"] = draws
    values = {(row["simulations"], row["steps"]): row["c2st"] for row in rows}
    run.log(
        {
            "moons.c2st": values[most, part.steps],
            "moons.gain": values[min(part.budgets), part.steps] - values[most, part.steps],
        }
    )
    if part.fewer_steps:
        fewest = min(part.fewer_steps)
        run.log({"moons.few_steps_gain": values[min(part.budgets), part.steps] - values[most, fewest]})
    run.table("moons", rows)
    run.figure("two_moons", plots.clouds(reference[: part.draws], shown, x))


def scales(cfg: Any, run: Run) -> None:
    """E7: three parameters of scales 1e-3, 1, 1e3, each with an exact normal posterior; and one common scale for all."""
    part = cfg.scales
    size = torch.tensor(list(part.sizes))
    prior = Independent(Normal(torch.zeros(len(size)), size), 1)

    def simulate(theta: Tensor, generator: torch.Generator) -> Tensor:
        return theta + 0.5 * size * torch.randn(theta.shape, generator=generator)

    task = tasks.Task("scales", prior, simulate, len(size), len(size))
    x = 0.7 * size
    mean, std, rows = x * 0.8, size * 0.2**0.5, []
    for kind in ("each", "common"):
        options = options_of(cfg, sde="ve", steps=part.steps, standardise=kind)
        draws = fitted(run, f"scales.{kind}", task, part.budget, options, x, run.seed).sample(
            (part.draws,), inside=False
        )
        error, ratio = ((draws.mean(0) - mean) / std).abs(), (draws.std(0) / std).log().abs()
        for j, s in enumerate(part.sizes):
            rows.append(
                {"standardised": kind, "scale": s, "mean_error": float(error[j]), "log_std_ratio": float(ratio[j])}
            )
        run.log({f"scales.{kind}": {"mean_error": float(error.max()), "log_std_ratio": float(ratio.max())}})
    run.table("scales", rows)


def samplers(cfg: Any, run: Run) -> None:
    """Error of each sampler against its steps: distance of its draws from RK45's, from the same starting noise."""
    part, task = cfg.samplers, tasks.get("two_moons", run)
    x, rows = task.observation(1), []
    posterior = fitted(run, "samplers.fit", task, part.budget, options_of(cfg, sde="ve", steps=part.steps), x, run.seed)
    score, shape = posterior.score(), (part.draws, 2)
    with torch.no_grad():
        exact = sampling.ode(score, posterior.sde, shape, method="rk45", tolerance=1e-6, seed=0)
        for method, cost in (("dpm", 1), ("heun", 2), ("rk4", 4)):
            for n in part.evaluations:
                if n // cost:
                    draws = sampling.ode(score, posterior.sde, shape, method=method, steps=n // cost, seed=0)
                    error = float((draws - exact).square().mean().sqrt())
                    rows.append({"method": method, "evaluations": n, "rms": error})
                    run.log({f"samplers.{method}.n{n}": error})
    run.table("samplers", rows)
    run.figure("samplers", plots.samplers(rows))


def heads(cfg: Any, run: Run) -> None:
    """The four parameterisations at equal steps on two_moons; seconds beside."""
    part, task = cfg.heads, tasks.get("two_moons", run)
    x, reference, rows = task.observation(1), task.reference(1), []
    for head in part.heads:
        for seed in run.seeds(cfg.seeds):
            options = options_of(cfg, sde="ve", head=head, steps=part.steps)
            with run.time(f"heads.{head}"):
                posterior = fitted(run, f"heads.{head}.{seed}", task, part.budget, options, x, seed)
            found = score_draws(posterior.sample((part.draws,), inside=False), reference)
            rows.append({"head": head, "seed": seed, **found})
        run.log({f"heads.{head}.c2st": float(np.mean([row["c2st"] for row in rows if row["head"] == head]))})
    run.table("heads", rows)
