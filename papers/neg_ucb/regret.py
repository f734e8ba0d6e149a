"""Regret and acceptance of every method in every task, and their growth (claims C1 to C5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from common.metrics.summary import spread
from common.run import Run
from papers.neg_ucb import plots
from papers.neg_ucb.negotiation import slope
from papers.neg_ucb.worlds import method_of, play_out, policy_of, task_of, worlds_of

RIVALS = ("random", "eps_greedy", "lin_ucb", "kernel_ucb")  # the baselines that claim C1 compares with


def regret(cfg: Any, run: Run) -> None:
    """Every method in every task, in the same worlds: mean figures, ratios of the claims, curves with confidence bands."""
    rows = []
    for task in [task_of(cfg, name) for name in cfg.tasks]:
        name, world = task["name"], worlds_of(cfg, run, task)
        chosen = [method for method in cfg.methods if method in task["only"] or not task["only"]]
        found: dict[str, list[dict[str, Any]]] = {}
        for method in run.progress(chosen, name):
            entry = method_of(cfg, method, task)
            for seed in run.seeds(cfg.seeds):
                env = world(seed)
                policy = policy_of(method, entry, task, env, seed)
                kept = play_out(run, f"{name}.{method}.{seed}", env, policy, task["rounds"])
                found.setdefault(method, []).append(kept)
        figures = {method: figures_of(runs) for method, runs in found.items()}
        run.log(
            {
                name: {
                    method: {key: value for key, value in f.items() if value is not None}
                    for method, f in figures.items()
                }
            }
        )
        run.log({name: comparisons(figures, found)})
        rows += [{"task": name, "method": method, **{key: f[key] for key in TABLE}} for method, f in figures.items()]
        curves = {method: np.array([r["curve"] for r in runs]) for method, runs in found.items()}
        run.figure(f"regret_{name}", plots.regret(curves, name))
    run.table("regret", rows)


TABLE = ("regret", "regret_sd", "acceptance", "tail_regret", "half_ratio", "tail_share", "slope")


def figures_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, and the spread of regret (None for one seed); the ratio of halves and the slope are those of the mean curve."""
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


def comparisons(figures: dict[str, dict[str, float]], found: dict[str, list[dict]]) -> dict[str, float]:
    """NegUCB's regret over the best rival's, over KernelUCB's (no hidden state) and hLinUCB's (no kernel); the share of seeds it wins."""
    if "neg_ucb" not in figures:
        return {}
    own = figures["neg_ucb"]["regret"]
    ratios = {}
    rivals = [name for name in RIVALS if name in figures]
    if rivals:
        best = min(rivals, key=lambda name: figures[name]["regret"])
        ratios["neg_over_best"] = own / max(figures[best]["regret"], 1e-12)
        ratios["paired_wins"] = float(
            np.mean([a["regret"] < b["regret"] for a, b in zip(found["neg_ucb"], found[best], strict=True)])
        )
        ratios["acceptance_gain"] = figures["neg_ucb"]["acceptance"] - max(
            figures[name]["acceptance"] for name in rivals
        )
    for name in ("random", "lin_ucb", "kernel_ucb", "hlin_ucb", "eps_greedy"):
        if name in figures:
            ratios[f"neg_over_{name}"] = own / max(figures[name]["regret"], 1e-12)
    return ratios
