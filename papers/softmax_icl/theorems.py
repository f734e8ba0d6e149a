"""The paper's theorems as runs: balanced features (two phases), a dominant feature (four), scaling in K.

Each part logs metrics under its own name. A figure over seeds is that of the seed which is worst for the claim, or furthest from
theory where the claim is an interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import UserError, user_errors
from common.metrics.summary import log_slope
from common.run import Run
from papers.softmax_icl import closed_form, plots
from papers.softmax_icl.data import make_features, sample_prompts
from papers.softmax_icl.descent import Descent, descend
from papers.softmax_icl.flow import integrate_flow
from papers.softmax_icl.laws import frequencies
from papers.softmax_icl.model import SoftmaxICL, squared_loss
from papers.softmax_icl.population import attention_scores, population_loss
from papers.softmax_icl.trajectory import Phase, Trajectory, phases


def nan_if_none(value: float | None) -> float:
    """What was never reached, as a figure."""
    return math.nan if value is None else value


def furthest(values: Iterable[float | None], centre: float) -> float:
    """The value that is furthest from `centre`; NaN where one is missing."""
    found = [nan_if_none(value) for value in values]
    return math.nan if any(map(math.isnan, found)) else max(found, key=lambda value: abs(value - centre))


def worst(values: Iterable[float | None], pick: Any) -> float:
    """`pick` (min, max, median) of the values; NaN where one is missing."""
    found = [nan_if_none(value) for value in values]
    return math.nan if any(map(math.isnan, found)) else pick(found)


def setup(cfg: Any, part: Any, run: Run, **law: Any) -> tuple[NDArray, Tensor]:
    """p (K,) under `law` and orthonormal V (d, K) of a part. Raises UserError where the settings do not fit."""
    with user_errors():
        if cfg.features.coherence:
            raise ValueError(
                f"features.coherence is {cfg.features.coherence}: this part computes in orthonormal features, only tokens can train on others"
            )
        return frequencies(K=part.K, **law), make_features(part.d, part.K, cfg.features.kind, run.rng("features").torch)


def note_absence(run: Run, p: NDArray, N: int, eps: float) -> None:
    """Say so where prompts are too short for the loss to reach eps: some of them lack the query's feature."""
    floor = closed_form.softmax_floor(p, N)
    if floor.max() > eps:
        k = int(floor.argmax())
        run.note(f"prompts of {N} examples lack feature {k + 1} with probability {(1 - p[k]) ** N:.2g}: "
                 f"its loss cannot fall below {floor[k]:.2g}")  # fmt: skip


# ---- balanced features: two phases -----------------------------------------------------------------------------------


def balanced(cfg: Any, run: Run) -> None:
    """Theorem for balanced features: Attn_k -> 1 for every query, A_k growing to ln K first and the loss falling to eps after."""
    part, K = cfg.balanced, cfg.balanced.K
    p, V = setup(cfg, part, run, kind="balanced")
    exact_time = closed_form.time_to_loss(K, part.flow_eps)
    if exact_time == 0:
        raise UserError(f"balanced.flow_eps is {part.flow_eps}: the loss starts at {(K - 1) / (2 * K):.3g}, give less")
    note_absence(run, p, part.N, part.flow_eps)
    rows = []
    for seed in run.seeds(cfg.seeds):
        name = f"balanced{seed}"
        with run.time("balanced.descent"):
            descent = descend(run, name, Descent(p, part.N, part.lr, "counts_mc", part.samples), part.steps)
        Qf = descent.Qf
        draw = {"mode": "counts_mc", "samples": part.test_samples}
        L, _ = population_loss(Qf, p, part.N, generator=run.rng(name, "test").numpy, **draw)
        attn = attention_scores(Qf, p, part.N, generator=run.rng(name, "attention").numpy, **draw)
        A, B_off = Qf.trace() / K, (Qf.sum() - Qf.trace()) / (K * (K - 1))
        rows.append({
            "seed": seed, "loss_start": float(descent.watched["loss"][0].mean()), "loss_end": L, "attn_end": float(attn.trace() / K),
            "A": float(A), "B_off": float(B_off), "drift": float(abs(B_off + A / (K - 1))),
            "token_loss_end": token_loss(SoftmaxICL(part.d, K).set_bilinear(torch.as_tensor(Qf), V), part, p, V, run.rng(name, "prompts").torch),
        })  # fmt: skip
    run.table("balanced", rows)
    start = float(p @ closed_form.initial_loss(p, part.N))
    run.log({"balanced": {
        "loss_start": furthest((row["loss_start"] for row in rows), start),
        "loss_start_theory": start,
        "loss_end": max(row["loss_end"] for row in rows),
        "token_loss_end": max(row["token_loss_end"] for row in rows),
        "attn_end": min(row["attn_end"] for row in rows),
        "A": min(row["A"] for row in rows),
        "drift": max(row["drift"] for row in rows),
        "floor_ratio": max(row["loss_end"] for row in rows) / float(p @ closed_form.linear_floor(p, part.N)),
    }})  # fmt: skip

    # N = inf: discrete gradient descent against the exact solution
    steps = math.ceil(1.05 * exact_time / part.flow_lr)
    limit = descend(run, "balanced_limit", Descent(p, part.N, part.flow_lr, "infinite_prompt"), steps)
    path = limit.trajectory(slice(None), "balanced")
    growth, convergence = phases(path, part.flow_eps)
    log_K = closed_form.balanced_time(closed_form.balanced_attention(math.log(K), K), K)
    exact = {"log_K": float(log_K), "eps": exact_time}
    found = {"log_K": growth.end, "eps": convergence.end}
    run.log({f"balanced.time_{name}": nan_if_none(found[name]) for name in exact})
    run.log({f"balanced.time_{name}_error": abs(nan_if_none(found[name]) / exact[name] - 1) for name in exact})
    run.figure("balanced", plots.balanced(path, descent.trajectory(slice(None), "balanced"), part.flow_eps))


def token_loss(model: SoftmaxICL, part: Any, p: NDArray, V: Tensor, generator: torch.Generator) -> float:
    """The loss on part.test_prompts real prompts, a few at a time."""
    at_once = max(1, 4_000_000 // (part.N * part.d))
    total = 0.0
    with torch.no_grad():
        for first in range(0, part.test_prompts, at_once):
            prompts = sample_prompts(min(at_once, part.test_prompts - first), part.N, p, V, generator)
            total += float(squared_loss(model.predict(prompts.x, prompts.y, prompts.x_q), prompts.y_q).sum())
    return total / part.test_prompts


# ---- one dominant feature: one phase for its queries, four for the others ---------------------------------------------


def imbalanced(cfg: Any, run: Run) -> None:
    """Theorem for imbalanced features: dominant queries at once, rare ones after un-learning the dominant feature."""
    part = cfg.imbalanced
    p, V = setup(cfg, part, run, **part.frequencies)
    eps = min(part.eps)
    with user_errors():
        if part.frequencies.kind != "dominant" or part.K < 3:
            raise ValueError(
                "the imbalanced part has one dominant feature and at least two others: frequencies.kind=dominant, K >= 3"
            )
    theory = integrate_flow(part.K, float(p[0]), eps)
    switch = phases(theory, eps)[0].end
    if switch is None:
        raise UserError(
            f"imbalanced.eps is {list(part.eps)}: a rare query has a loss of {eps:g} before its first phase ends"
        )
    note_absence(run, p, part.N, eps)
    rows = []
    coarse: dict[tuple[str, float], float] = {}  # crossings that are not resolved: the time between samples
    for seed in run.seeds(cfg.seeds):
        name = f"imbalanced{seed}"
        with user_errors():
            descent = Descent(p, part.N, part.lr, part.mode, part.samples)
        with run.time("imbalanced.descent"):
            descend(run, name, descent, part.steps, watch_every=part.watch_every, watch_first=part.watch_first,
                    snapshots=part.snapshots)  # fmt: skip
        rare, dominant = descent.trajectory(slice(1, None), "rare"), descent.trajectory(0, "dominant")
        row: dict[str, Any] = {"seed": seed}
        for goal in part.eps:
            times = dominant.time_to(goal), rare.time_to(goal)
            for path, t in zip((dominant, rare), times, strict=True):
                if t and (gap := path.gap(t)) > 0.1 * t:
                    coarse.setdefault((path.query, goal), gap)
            row |= {f"t_dominant_{goal:g}": times[0], f"t_rare_{goal:g}": times[1]}
            row[f"ratio_{goal:g}"] = times[1] / times[0] if times[0] and times[1] is not None else None
        end = phases(rare, eps)[0].end
        row |= {"switch": end, "switch_A": None if end is None else rare.at(end, "A"), "min_B1": float(rare.B1.min())}
        row["token_loss_end"] = token_loss(SoftmaxICL(part.d, part.K).set_bilinear(torch.as_tensor(descent.Qf), V), part, p, V,
                                           run.rng(name, "prompts").torch)  # fmt: skip
        rows.append(row)
    for (query, goal), gap in coarse.items():
        run.note(f"the time of {query} queries to a loss of {goal:g} lies between samples {gap:g} apart, more than a tenth of it: "
                 f"it is no better than that (lower imbalanced.watch_every or lr, or raise watch_first)")  # fmt: skip
    run.table("imbalanced", rows)
    run.log({"imbalanced": {
        **{f"ratio_{goal:g}": worst((row[f"ratio_{goal:g}"] for row in rows), min) for goal in part.eps},
        "switch": furthest((row["switch"] for row in rows), switch),
        "switch_theory": switch,
        "switch_A": furthest((row["switch_A"] for row in rows), theory.at(switch, "A")),
        "switch_A_theory": theory.at(switch, "A"),
        "min_B1": max(row["min_B1"] for row in rows),
        "token_loss_end": max(row["token_loss_end"] for row in rows),
    }})  # fmt: skip
    run.table("phases", phase_rows(phases(rare, eps), part.K, rare))
    run.figure("imbalanced", plots.imbalanced(rare, dominant, theory, eps))
    run.figure("attention", plots.attention_maps(moments(descent, rare, p, eps)))


def phase_rows(found: list[Phase], K: int, path: Trajectory) -> list[dict[str, Any]]:
    """The phases as a table: our events, and the paper's asymptotic constants beside."""
    return [
        {
            "phase": phase.name, "start": phase.start, "end": phase.end,
            "B1_over_lnK_at_end": path.at(phase.end, "B1") / math.log(K) if phase.end is not None else None,
            "A_over_lnK_at_end": path.at(phase.end, "A") / math.log(K) if phase.end is not None else None,
            "paper_constant": phase.paper_rule, "reached_at": phase.paper if phase.paper is not None else "not reached",
        }
        for phase in found
    ]  # fmt: skip


def moments(descent: Descent, rare: Trajectory, p: NDArray, eps: float) -> list[tuple[str, NDArray]]:
    """E[Attn_n | query k] (rows n, columns k, prompts long) at four moments: start, switch, A_k = ln K, end."""
    switch, *_, growth, _ = phases(rare, eps)
    times = {"start": 0.0, "the switch": switch.end, "$A_k = \\ln K$": growth.end, "end": float(rare.t[-1])}
    kept = {name: descent.snapshot_near(t) for name, t in times.items() if t is not None}
    return [(f"{name}, t = {t:.0f}", attention_scores(Qf, p, 1, "infinite_prompt")) for name, (t, Qf) in kept.items()]


# ---- scaling in K, by the infinite-prompt flow ------------------------------------------------------------------------


def scaling(cfg: Any, run: Run) -> None:
    """Learning times against K: rare queries K^2, dominant ones a constant."""
    part = cfg.scaling
    with user_errors(), run.time("scaling.flow"):
        rare = {K: integrate_flow(K, part.p1, part.eps) for K in part.K}
        dominant = {K: integrate_flow(K, part.p1, part.dominant_eps, "dominant") for K in part.dominant_K}
    rows = []
    for K, path in rare.items():
        found = phases(path, part.eps)
        switch, second, growth, end = found
        asymptote = closed_form.switch_asymptote(K, part.p1)
        if switch.end is None:
            raise UserError(
                f"scaling.eps is {part.eps}: at K = {K} a rare query has that loss before its first phase ends"
            )
        rows.append({
            "K": K, "t_switch": switch.end, "t_switch_asymptote": asymptote.t,
            "B1_over_lnK_at_switch": path.at(switch.end, "B1") / math.log(K),
            "asymptote": asymptote.B1 / math.log(K), "t_phase_II_end": second.end,
            "t_log_K": growth.end, "t_log_K_asymptote": asymptote.t_log_K, "t_eps": end.end,
            "phases": sum(bool(phase.length) for phase in found),
        })  # fmt: skip
    run.table("scaling", rows)
    large = [row for row in rows if row["K"] >= part.fit_from]
    if len(large) < 2:
        raise UserError(f"scaling.K needs two values of at least scaling.fit_from = {part.fit_from} to fit a slope")
    run.log({**{f"scaling.slope_{name}": log_slope([row["K"] for row in large], [row[f"t_{name}"] for row in large]) for name in ("switch", "log_K")},
             "scaling.phases": min(row["phases"] for row in large)})  # fmt: skip
    times = [path.t[-1] for path in dominant.values()]
    if min(times) == 0:
        raise UserError(
            f"scaling.dominant_eps is {part.dominant_eps}: a dominant query has that loss before it is trained"
        )
    run.table("scaling_dominant", [{"K": K, f"t_{part.dominant_eps:g}": path.t[-1]} for K, path in dominant.items()])
    run.log({"scaling.dominant_spread": max(times) / min(times)})
    run.figure("scaling", plots.scaling(rows, {K: path.t[-1] for K, path in dominant.items()}, part.p1))
