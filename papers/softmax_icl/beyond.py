"""Beyond the paper, on population gradients: a spectrum of frequencies, the phase diagram, finite prompts, optimisers, linear attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import UserError, user_errors
from common.metrics.summary import log_slope
from common.run import Run
from papers.softmax_icl import closed_form, plots
from papers.softmax_icl.baselines import linear_descent, linear_loss
from papers.softmax_icl.data import make_features
from papers.softmax_icl.descent import Descent, descend
from papers.softmax_icl.flow import integrate_flow, learning_time
from papers.softmax_icl.laws import frequencies
from papers.softmax_icl.population import count_law, descent_direction, population_loss
from papers.softmax_icl.theorems import nan_if_none
from papers.softmax_icl.trajectory import phases, time_to


def spectrum(cfg: Any, run: Run) -> None:
    """p_k ~ k^-s: when is each feature learned? By the flow for every s, and by gradient descent with finite prompts for some."""
    part = cfg.spectrum
    curves, rows = [], []
    for s in part.s:
        with user_errors("spectrum.s"):
            p = frequencies("zipf", part.K, s=s)
        if not part.eps < (start := closed_form.initial_loss(p, math.inf).min()):
            raise UserError(
                f"spectrum.eps is {part.eps}: at s = {s:g} a feature has a loss of {start:.3g} before training, give less"
            )
        times = run.stage(f"flow{s:g}", _learning_times, p, part.eps)
        row: dict[str, Any] = {"s": s, "t_first": times[0], "t_last": times[-1]}
        if s > 0:  # with s = 0 all frequencies are equal
            row["slope"] = log_slope(p[part.K // 2 :].tolist(), times[part.K // 2 :].tolist())
            run.log({f"spectrum.slope_{s:g}": row["slope"]})
        finite = None
        if s in part.finite_s:
            steps = math.ceil(1.3 * times.max() / part.lr)
            descent = Descent(p, part.N, part.lr, "counts_mc", part.samples)
            descend(run, f"spectrum{s:g}", descent, steps, watch_every=max(1, steps // 4000))
            t, L_k = np.array(descent.times), np.array(descent.watched["loss"])
            finite = np.array([nan_if_none(time_to(t, L_k[:, k], part.eps)) for k in range(part.K)])
            row |= {
                "median_finite_over_flow": float(np.nanmedian(finite / times)),
                "learned": int(np.isfinite(finite).sum()),
            }
            run.log({f"spectrum.finite_over_flow_{s:g}": row["median_finite_over_flow"]})
        rows.append(row)
        curves.append((s, p, times, finite))
    run.table("spectrum", rows)
    run.figure("spectrum", plots.spectrum(curves, part.eps, part.N))


def _learning_times(p: NDArray, eps: float) -> NDArray:
    return np.array([learning_time(p, k, eps) for k in range(len(p))])


def phase_diagram(cfg: Any, run: Run) -> None:
    """Where four phases exist, in (K, p_1): how many have positive length, and how far the dominant feature is un-learned."""
    part = cfg.phase_diagram
    all_K = np.unique(np.geomspace(part.K_min, part.K_max, part.points).round().astype(int))
    all_p1 = np.geomspace(part.p1_min, part.p1_max, part.points)

    rows = run.stage("phase_diagram", _count_phases, part, all_K, all_p1, run)
    run.table("phase_diagram", rows)
    thresholds = {int(K): closed_form.unlearning_threshold(int(K)) for K in all_K}
    agree = [(row["switch_share"] > 0) == (row["p1"] > thresholds[row["K"]]) for row in rows]
    run.log({"phase_diagram": {f"points_with_{n}": sum(row["phases"] == n for row in rows) for n in (1, 2, 3, 4)}})
    run.log({"phase_diagram.threshold_agreement": float(np.mean(agree))})
    run.figure("phase_diagram", plots.phase_diagram(rows, thresholds))


def _count_phases(part: Any, all_K: NDArray, all_p1: NDArray, run: Run) -> list[dict[str, Any]]:
    """A row for each K and each p_1 >= 1/K. Raises UserError where eps is too large for phases to be seen."""
    rows = []
    for K in run.progress([int(K) for K in all_K], "phase diagram"):
        for p1 in all_p1[all_p1 * K >= 1 - 1e-9]:
            path = integrate_flow(K, float(p1), part.eps)
            found = phases(path, part.eps)
            switch = found[0].end
            if switch is None or not path.t[-1]:
                raise UserError(
                    f"phase_diagram.eps is {part.eps}: at K = {K} a query has that loss before its first phase ends"
                )
            rows.append({
                "K": K, "p1": float(p1), "phases": sum(bool(phase.length) for phase in found), "switch_share": switch / path.t[-1],
                "B1_over_lnK": path.at(switch, "B1") / math.log(K),
            })  # fmt: skip
    return rows


def finite_n(cfg: Any, run: Run) -> None:
    """Does a finite prompt move the switch? Gradient descent at several N, against the flow and its large-K asymptote."""
    part = cfg.finite_n
    with user_errors():
        p = frequencies("dominant", part.K, p1=part.p1)
        theory = integrate_flow(part.K, part.p1, part.eps)
    switch = phases(theory, part.eps)[0].end
    rows = []
    for N in part.N:
        descent = descend(run, f"finite{N}", Descent(p, N, part.lr, "counts_mc", part.samples), part.steps)
        rare = descent.trajectory(slice(1, None), "rare")
        found = phases(rare, part.eps)
        rows.append({"N": N, "t_switch": found[0].end, "t_log_K": found[2].end, "t_eps": found[3].end, "loss_end": float(rare.loss[-50:].mean()),
                     "absent": float((1 - p[1]) ** N), "floor": float(closed_form.softmax_floor(p, N)[1])})  # fmt: skip
        run.log({f"finite_n.switch_{N}": nan_if_none(found[0].end)})
    flow_row = {
        "N": "infinite",
        "t_switch": switch,
        "t_log_K": phases(theory, part.eps)[2].end,
        "t_eps": float(theory.t[-1]),
    }
    run.table("finite_n", [*rows, flow_row])
    asymptote = closed_form.switch_asymptote(part.K, part.p1)
    run.log({"finite_n": {"switch_flow": switch, "switch_asymptote": asymptote.t}})
    run.figure("finite_n", plots.finite_n(rows, theory, asymptote.t, part.eps))


# ---- optimisers ------------------------------------------------------------------------------------------------------


class SignDescent(torch.optim.Optimizer):
    """Q <- Q - lr sign(gradient)."""

    def __init__(self, parameters: Any, lr: float):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad.sign())


def optimisers(cfg: Any, run: Run) -> None:
    """How much later are rare queries learned under SGD, class-balanced queries, sign descent and Adam (infinite prompts)?

    Each optimiser gets the same learning rates relative to its own unit and the same steps. In `rotated`, features are not unit
    vectors, so that an optimiser that works entry by entry does not see them apart.
    """
    part = cfg.optimisers
    with user_errors():
        p = frequencies("dominant", part.K, p1=part.p1)
        bases = {
            "": make_features(part.K, part.K),
            "rotated": make_features(part.K, part.K, "random_orthogonal", run.rng("features").torch),
        }
    balanced = np.full(part.K, 1 / part.K)
    runs: list[tuple[str, Callable[..., torch.optim.Optimizer], list[float], NDArray | None, str]] = [
        ("SGD", torch.optim.SGD, list(part.sgd_lr), None, ""),
        ("SGD, class-balanced", torch.optim.SGD, [lr * part.p1 * part.K for lr in part.sgd_lr], balanced, ""),
        ("sign descent", SignDescent, list(part.adam_lr), None, ""),
        ("sign descent, rotated", SignDescent, list(part.adam_lr), None, "rotated"),
        ("Adam", torch.optim.Adam, list(part.adam_lr), None, ""),
        ("Adam, rotated", torch.optim.Adam, list(part.adam_lr), None, "rotated"),
    ]
    rows: list[dict[str, Any]] = []
    curves: dict[str, NDArray] = {}
    for name, make, rates, queries, basis in runs:
        for lr in rates:
            losses = run.stage("optimiser", optimiser_losses, p, bases[basis], partial(make, lr=lr), part.steps, part.eps, queries, key=[name, lr])  # fmt: skip
            steps = np.arange(len(losses), dtype=float)
            times = [time_to(steps, losses[:, i], part.eps) for i in (0, 1)]
            ratio = times[1] / times[0] if times[0] and times[1] else None
            rows.append(
                {"optimiser": name, "lr": lr, "steps_dominant": times[0], "steps_rare": times[1], "ratio": ratio}
            )
            curves.setdefault(name, losses)  # each at its smallest learning rate
    run.table("optimisers", rows)
    for name in curves:
        ratios = [row["ratio"] for row in rows if row["optimiser"] == name and row["ratio"] is not None]
        key = name.replace(", ", "_").replace(" ", "_").replace("-", "_").lower()
        run.log(
            {
                f"optimisers.{key}.ratio_min": min(ratios, default=math.nan),
                f"optimisers.{key}.ratio_max": max(ratios, default=math.nan),
            }
        )
    run.figure("optimisers", plots.optimisers(curves, part.eps))


def optimiser_losses(
    p: NDArray,
    V: Tensor,
    make: Callable[[list[Tensor]], torch.optim.Optimizer],
    steps: int,
    eps: float,
    queries: NDArray | None,
) -> NDArray:
    """(T, 2): the losses of the dominant query and, meaned, of the rare ones before each step; stops when both are below eps.

    queries: (K,), the law of queries in the loss where it is not p.
    """
    Q = torch.zeros(len(V), len(V), dtype=torch.float64)
    optimizer = make([Q])
    law = count_law(p, 1, "infinite_prompt")
    scale = np.ones_like(p) if queries is None else queries / p
    losses = []
    for _ in range(steps):
        direction, L_k = descent_direction((V.mT @ Q @ V).numpy(), p, *law)
        losses.append((L_k[0], L_k[1:].mean()))
        if max(losses[-1]) <= eps:
            break
        Q.grad = -(V @ torch.as_tensor(direction * scale) @ V.mT)
        optimizer.step()
    return np.array(losses)


# ---- linear against softmax attention --------------------------------------------------------------------------------


def race(cfg: Any, run: Run) -> None:
    """Learning time and floor of softmax against linear attention, balanced features, measured and in closed form."""
    part = cfg.race
    times = []
    for K in part.K:
        p, N = frequencies("balanced", K), part.N_per_K * K
        for eps in part.eps:
            exact = closed_form.time_to_loss(K, eps), float(closed_form.linear_time(p, N, eps)[0])
            lr = part.softmax_lr * K
            descent = descend(
                run, f"race{K}-{eps:g}", Descent(p, N, lr, "counts_mc", part.samples), math.ceil(1.3 * exact[0] / lr)
            )
            softmax = descent.trajectory(slice(None), "balanced").time_to(eps)
            lr = part.linear_lr * K**2
            u = linear_descent(p, N, lr, math.ceil(1.3 * exact[1] / lr))
            excess = linear_loss(u, p, N).mean(axis=1) - closed_form.linear_floor(p, N).mean()
            linear = time_to(lr * np.arange(len(u)), excess, eps)
            times.append(
                {
                    "K": K,
                    "N": N,
                    "eps": eps,
                    "softmax": softmax,
                    "softmax_theory": exact[0],
                    "linear": linear,
                    "linear_theory": exact[1],
                }
            )
    run.table("race_times", times)
    p = frequencies("balanced", part.floor_K)
    floors = []
    for N in part.floor_N:
        hard = part.beta * np.eye(part.floor_K)
        found = population_loss(hard, p, N, "counts_mc", part.floor_samples, run.rng("race", "floor", N).numpy)[0]
        floors.append({"N": N, "softmax": found, "softmax_theory": closed_form.softmax_limit(p, N).mean(), "bound": closed_form.softmax_floor(p, N).mean(),
                       "linear": closed_form.linear_floor(p, N).mean()})  # fmt: skip
    run.table("race_floors", floors)
    finest = [row for row in times if row["eps"] == min(part.eps)]
    for name in ("softmax", "linear"):
        run.log({f"race.slope_{name}": log_slope([row["K"] for row in finest], [row[name] for row in finest])})
    run.log({"race.floor_error": max(abs(row["softmax"] / row["softmax_theory"] - 1) for row in floors)})
    run.figure("race", plots.race(times, floors, part.floor_K))
