"""Equal tuning: every method gets as many trials as the others, drawn from one space, on worlds that no claim uses."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from common.run import Run
from papers.neg_ucb.negotiation import negotiate
from papers.neg_ucb.worlds import World, method_of, policy_of, task_of, worlds_of


def tune(cfg: Any, run: Run) -> None:
    """Two rungs a method and task: all trials on `tune.seeds`, the best `tune.finalists` on `tune.final_seeds` as well.

    Tables: `tuned` has what was chosen (least mean regret over the worlds of both rungs), `trials` every trial.
    """
    tuned, tried = [], []
    for task in [task_of(cfg, name) for name in cfg.tasks]:
        name, world = task["name"], worlds_of(cfg, run, task)
        methods = [m for m in cfg.methods if m in cfg.tune.settings and (not task["only"] or m in task["only"])]
        for method in run.progress(methods, f"tune {name}"):
            found = search(cfg, run, world, task, method)
            best = min((trial for trial in found if trial["final"] is not None), key=lambda trial: trial["final"])
            tuned.append({"task": name, "method": method, "trials": len(found), **_row(best)})
            tried += [{"task": name, "method": method, **_row(trial)} for trial in found]
            run.log({f"tune.{name}.{method}": best["final"]})
    run.table("tuned", tuned)
    run.table("trials", tried)


def search(cfg: Any, run: Run, world: World, task: Mapping[str, Any], method: str) -> list[dict[str, Any]]:
    """The trials of a method in a task: {"settings", "first": mean regret of rung one, "final": of both rungs or None}."""
    options, entry = cfg.tune, method_of(cfg, method, task)
    first, more = run.seeds(options.seeds), run.seeds(options.final_seeds)
    drawn = draw(options.space, options.settings[method], options.trials, run.rng("tune", task["name"], method).numpy)

    def regrets(i: int, seeds: Sequence[int]) -> list[float]:
        stage = f"tune.{task['name']}.{method}.{i}.{seeds[0]}"
        return run.stage(stage, _regrets, run, world, task, method, entry | drawn[i], list(seeds))

    trials: list[dict[str, Any]] = []
    for i, settings in enumerate(drawn):
        trials.append({"settings": settings, "regrets": regrets(i, first), "final": None})
    order = sorted(range(len(trials)), key=lambda i: float(np.mean(trials[i]["regrets"])))
    for i in order[: options.finalists]:
        trials[i]["final"] = float(np.mean([*trials[i]["regrets"], *regrets(i, more)]))
    return [{"settings": t["settings"], "first": float(np.mean(t["regrets"])), "final": t["final"]} for t in trials]


def draw(
    space: Mapping[str, Any], names: Sequence[str], n: int, generator: np.random.Generator
) -> list[dict[str, Any]]:
    """n different combinations of the values that `space` lists for `names`, at random; all where there are fewer."""
    combinations = list(itertools.product(*(space[name] for name in names)))
    chosen = generator.permutation(len(combinations))[:n]
    return [dict(zip(names, combinations[i], strict=True)) for i in chosen]


def _regrets(run: Run, world: World, task: Mapping[str, Any], method: str, entry: Mapping[str, Any],
             seeds: Sequence[int]) -> list[float]:  # fmt: skip
    """Regret of a trial in each world."""
    found = []
    for seed in seeds:
        env = world(seed)
        with run.time(f"tune.{task['name']}.{method}"):
            policy = policy_of(method, entry, task, env, seed)
            found.append(float(negotiate(env, policy, task["rounds"])["regret"].sum()))
    return found


def _row(trial: Mapping[str, Any]) -> dict[str, Any]:
    settings = ", ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in trial["settings"].items()
    )
    return {"settings": settings, "first": trial["first"], "regret": trial["final"]}
