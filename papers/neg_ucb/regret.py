"""Every method in every task: regret, acceptance, and how they grow (claims C1 to C5); and the tuning that came before."""

from __future__ import annotations

from typing import Any

import numpy as np

from common.errors import UserError
from common.run import Run
from papers.neg_ucb import methods, plots
from papers.neg_ucb.data import Data
from papers.neg_ucb.negotiation import slope
from papers.neg_ucb.settings import environment_of, method_of, play_out, policy_of, seeds_of, task_of

RIVALS = ("random", "eps_greedy", "lin_ucb", "kernel_ucb")  # the baselines that claim C1 compares with


def regret(cfg, run: Run, data: Data) -> None:
    """Every method in every task, in the same worlds: mean figures, ratios of the claims, curves with confidence bands."""
    rows, tasks = [], {name: task_of(cfg, name) for name in cfg.tasks}
    chosen = {name: [m for m in cfg.methods if m in task["only"] or not task["only"]] for name, task in tasks.items()}
    for task_name, task in tasks.items():  # a name that is wrong is said before the work, not after hours of it
        for method in chosen[task_name]:
            method_of(cfg, method, task)
    for task_name, task in tasks.items():
        found: dict[str, list[dict]] = {}
        for method in run.progress(chosen[task_name], task_name):
            for seed in seeds_of(cfg, run):
                env = environment_of(cfg, task, seed, data)
                policy = policy_of(cfg, method, task, env, seed)
                kept = play_out(run, f"{task_name}.{method}.{seed}", env, policy, task["rounds"])
                found.setdefault(method, []).append(kept)
        figures = {method: figures_of(runs) for method, runs in found.items()}
        run.log({task_name: figures})
        run.log({task_name: comparisons(figures, found)})
        rows += [
            {"task": task_name, "method": method, **{key: f[key] for key in TABLE}} for method, f in figures.items()
        ]
        run.figure(
            f"regret_{task_name}",
            plots.regret({method: np.array([r["curve"] for r in runs]) for method, runs in found.items()}, task_name),
        )
    run.table("regret", rows)


TABLE = ("regret", "regret_sd", "acceptance", "tail_regret", "half_ratio", "tail_share", "slope")


def figures_of(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Means over seeds; the ratio of halves and the slope are those of the mean curve."""
    curve = np.mean([r["curve"] for r in runs], axis=0)
    half = len(curve) // 2
    mean = {
        key: float(np.mean([r[key] for r in runs]))
        for key in ("regret", "acceptance", "utility", "tail_regret", "share", "tail_share")
    }
    halves = float((curve[-1] - curve[half - 1]) / curve[half - 1]) if len(curve) > 1 and curve[half - 1] > 0 else 0.0
    return mean | {
        "regret_sd": float(np.std([r["regret"] for r in runs])),
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


def tune(cfg, run: Run, data: Data) -> None:
    """The same grid of alpha for every method that has one, on seeds that no claim uses: which value goes into the config."""
    rows, tasks = [], {name: task_of(cfg, name) for name in cfg.tasks}
    for method in cfg.methods:
        if any("alpha" not in method_of(cfg, method, task) for task in tasks.values()):
            raise UserError(f"method {method} has no alpha to tune: leave it out of methods")
    for task_name, task in tasks.items():
        for method in run.progress(list(cfg.methods), f"tune {task_name}"):
            mean = {}
            for alpha in cfg.tune.alphas:
                runs = []
                for seed in cfg.tune.seeds:
                    env = environment_of(cfg, task, seed, data)
                    entry = method_of(cfg, method, task) | {"alpha": alpha}
                    policy = methods.make(entry, env, seed, task)
                    runs.append(
                        play_out(run, f"tune.{task_name}.{method}.{alpha}.{seed}", env, policy, task["rounds"])[
                            "regret"
                        ]
                    )
                mean[alpha] = float(np.mean(runs))
            rows.append(
                {
                    "task": task_name,
                    "method": method,
                    "best_alpha": min(mean, key=mean.__getitem__),
                    **{f"alpha {a}": v for a, v in mean.items()},
                }
            )
    run.table("tune", rows)
