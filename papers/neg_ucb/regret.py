"""Regret and acceptance of every method in every task, their growth, and paired comparisons (claims C1 to C5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from common.metrics.summary import spread
from common.run import Run
from papers.neg_ucb import paired, plots
from papers.neg_ucb.negotiation import slope
from papers.neg_ucb.worlds import method_of, play_out, policy_of, task_of, worlds_of

RIVALS = ("random", "eps_greedy", "lin_ucb", "kernel_ucb")  # the baselines that claim C1 compares with
POINTS = 100  # of a logged curve
TABLE = ("regret", "regret_sd", "acceptance", "tail_regret", "half_ratio", "tail_share", "slope")


def regret(cfg: Any, run: Run) -> None:
    """Every method in every task, in the same worlds: figures, curves (logged by round), ratios with paired intervals."""
    rows, ratios = [], {}
    for task in [task_of(cfg, name) for name in cfg.tasks]:
        name, world = task["name"], worlds_of(cfg, run, task)
        seeds = run.seeds(cfg.seeds)[: task["worlds"]]
        chosen = [method for method in cfg.methods if method in task["only"] or not task["only"]]
        found: dict[str, list[dict[str, Any]]] = {}
        for method in run.progress(chosen, name):
            entry = method_of(cfg, method, task)
            for seed in seeds:
                env = world(seed)
                policy = policy_of(method, entry, task, env, seed)
                kept = play_out(run, f"{name}.{method}.{seed}", env, policy, task["rounds"])
                found.setdefault(method, []).append(kept)
        curves = {method: np.array([r["curve"] for r in runs]) for method, runs in found.items()}
        log_curves(run, name, curves)
        figures = {method: figures_of(runs) for method, runs in found.items()}
        run.log({name: {m: {key: v for key, v in f.items() if v is not None} for m, f in figures.items()}})
        numbers, ratios[name] = comparisons(run, name, found)
        run.log({name: numbers})
        rows += [{"task": name, "method": method, **{key: f[key] for key in TABLE}} for method, f in figures.items()]
        run.figure(f"regret_{name}", plots.regret(curves, name))
    run.table("regret", rows)
    if any(ratios.values()):
        methods = list(dict.fromkeys(method for of_task in ratios.values() for method in of_task))
        run.table("methods", [{"method": m, **{name: r.get(m, "-") for name, r in ratios.items()}} for m in methods])


def log_curves(run: Run, name: str, curves: Mapping[str, np.ndarray]) -> None:
    """Mean cumulative regret of each method at up to POINTS rounds, with the round as step."""
    rounds = max((runs.shape[1] for runs in curves.values()), default=0)
    mean = {method: runs.mean(0) for method, runs in curves.items()}
    for t in np.unique(np.linspace(1, rounds, POINTS).astype(int)) if rounds else ():
        run.log({f"{name}.{method}.regret": float(curve[t - 1]) for method, curve in mean.items()}, step=int(t))


def figures_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, and the spread of regret (None for one seed); half ratio and slope are those of the mean curve."""
    curve = np.mean([r["curve"] for r in runs], axis=0)
    half = len(curve) // 2
    mean = {
        key: float(np.mean([r[key] for r in runs]))
        for key in ("regret", "acceptance", "utility", "tail_regret", "share", "tail_share")
    }
    halves = float((curve[-1] - curve[half - 1]) / curve[half - 1]) if len(curve) > 1 and curve[half - 1] > 0 else 0.0
    return mean | {
        "regret_sd": spread([r["regret"] for r in runs])["sd"],
        "half_ratio": halves,
        "slope": slope(curve) if curve[-1] > 0 and len(curve) >= 20 else 0.0,
    }


def comparisons(
    run: Run, task: str, found: Mapping[str, list[dict[str, Any]]]
) -> tuple[dict[str, float], dict[str, str]]:
    """(metrics, {method: its regret over NegUCB's, as text}), all with paired bootstrap intervals.

    `neg_over_X` compares NegUCB with X, `neg_over_best` with the best of RIVALS; `<method>.over_X` any other form of it.
    """
    regrets = {method: [r["regret"] for r in runs] for method, runs in found.items()}
    rivals = [name for name in RIVALS if name in regrets]
    numbers: dict[str, float] = {}
    ratios: dict[str, str] = {}

    def against(method: str, name: str, others: list[str]) -> None:
        draws = run.rng("paired", task, method, name).numpy
        prefix = f"neg_over_{name}" if method == "neg_ucb" else f"{method}.over_{name}"
        numbers.update(paired.named(prefix, paired.ratio(regrets[method], [regrets[o] for o in others], draws)))

    for method in regrets:
        if method.startswith("neg_"):
            if rivals:
                against(method, "best", rivals)
            for other in ("random", "lin_ucb", "kernel_ucb", "hlin_ucb", "eps_greedy"):
                if other in regrets:
                    against(method, other, [other])
    if "neg_ucb" not in regrets:
        return numbers, ratios
    for method in regrets:
        if method != "neg_ucb":
            draws = run.rng("paired", task, "neg_ucb", method).numpy
            ratios[method] = paired.text(paired.ratio(regrets[method], [regrets["neg_ucb"]], draws))
    if rivals:
        best = min(rivals, key=lambda name: float(np.mean(regrets[name])))
        numbers["paired_wins"] = float(np.mean(np.array(regrets["neg_ucb"]) < np.array(regrets[best])))
        acceptance = {method: float(np.mean([r["acceptance"] for r in runs])) for method, runs in found.items()}
        numbers["acceptance_gain"] = acceptance["neg_ucb"] - max(acceptance[name] for name in rivals)
    if "lin_greedy" in found:
        shares = [[r["tail_share"] for r in found[method]] for method in ("neg_ucb", "lin_greedy")]
        numbers.update(
            paired.named("gain_over_greedy", paired.gain(shares[0], shares[1], run.rng("paired", task, "share").numpy))
        )
    return numbers, ratios
