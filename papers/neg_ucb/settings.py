"""What a config describes: tasks, methods, worlds; and one negotiation of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from common.configs import at_least
from common.errors import UserError, choose, user_errors
from common.run import Run
from common.training import resumable
from papers.neg_ucb import data, environments, methods
from papers.neg_ucb.environments.base import Environment
from papers.neg_ucb.kernel import CAP
from papers.neg_ucb.negotiation import Policy, Trace, one_round, summary
from papers.neg_ucb.oracle import ENUMERABLE

AT_LEAST = {
    "rounds": 1, "seeds": 0, "cardinality.items": 2, "cardinality.rounds": 1, "cardinality.seeds": 0, "cardinality.alpha": 0,
    "cardinality.alpha_summed_tuned": 0, "casino.m": 1, "casino.landmarks_from": 2, "casino.every": 1, "clusters.counterparts": 2,
    "clusters.rounds": 1, "warm_start.logged": 0, "warm_start.rounds": 1, "identities.rounds": 1, "tune.alphas": 0, "tune.seeds": 0,
    "play.rounds": 1,
}  # fmt: skip
TASK_AT_LEAST = {"rounds": 1, "m": 1, "every": 1, "hidden": 0, "length": 0}
SEARCHES = ("enumerate", "local", "sample")


def check(cfg: Any) -> None:
    """Refuse what no part could use, before the first of them has run. Raises UserError."""
    at_least(cfg, AT_LEAST)
    for name in cfg.tasks:
        task = task_of(cfg, name)
        for method in cfg.methods:
            entry = method_of(cfg, method, task)
            if "tune" in cfg.parts and "alpha" not in entry:
                raise UserError(f"method {method} has no alpha to tune: leave it out of methods")


def task_of(cfg: Any, name: str) -> dict[str, Any]:
    """Settings of a task, with its `name`; `rounds` taken from the top of the config where it is set there."""
    choose("task", name, cfg.task_settings)
    task: Any = OmegaConf.to_container(cfg.task_settings[name])
    task |= {"name": name, "rounds": cfg.rounds or task["rounds"]}
    at_least(cfg, {f"task_settings.{name}.{key}": least for key, least in TASK_AT_LEAST.items()})
    choose(f"task_settings.{name}.search.method", task["search"].setdefault("method", "enumerate"), SEARCHES)
    return task


def method_of(cfg: Any, name: str, task: dict[str, Any]) -> dict[str, Any]:
    """A method's entry, with what the task says of it (its tuned alpha, say)."""
    choose("method", name, cfg.method_settings)
    entry: Any = OmegaConf.to_container(cfg.method_settings[name])
    entry |= task["tuned"].get(name, {})
    if entry.get("alpha", 0) < 0 or not 0 <= entry.get("epsilon", 0) <= 1:
        raise UserError(f"method {name}: alpha must be at least 0 and epsilon in [0, 1]")
    if entry["kind"] == "exact" and task["rounds"] > CAP:
        raise UserError(
            f"method {name} holds at most {CAP:,} rounds, not {task['rounds']:,}: leave it out of methods, or take kernel_ucb"
        )
    return entry


def worlds_of(cfg: Any, run: Run, task: dict[str, Any]) -> Callable[[int], Environment]:
    """seed -> the task's environment in the world of that seed, on real data where they are found."""
    options: dict[str, Any] = {"counterparts": cfg.counterparts, "proposals": cfg.proposals, "counters": cfg.counters}
    if task["env"].startswith("allocation"):
        options["contexts"] = data.contexts(cfg, run)
    if task["env"] == "multi_issue":
        options["domain"] = data.domain(cfg, run, task)
        if (n := options["domain"].n_bids) > ENUMERABLE and task["search"]["method"] == "enumerate":
            raise UserError(
                f"{task['domain']} has {n:,} bids, too many to enumerate: set task_settings.{task['name']}.search to "
                "{method: local, restarts: 6, steps: 24}, as the task energy does"
            )

    def world(seed: int) -> Environment:
        with user_errors():
            return environments.make(task["env"], seed=seed, **options)

    return world


def policy_of(name: str, entry: dict[str, Any], task: dict[str, Any], env: Environment, seed: int) -> Policy:
    """The policy of a method's entry."""
    try:
        return methods.make(entry, env, seed, task)
    except (ValueError, TypeError) as error:
        raise UserError(f"method_settings.{name}: {error}") from error


def play_out(run: Run, name: str, env: Environment, policy: Policy, rounds: int) -> dict[str, Any]:
    """Negotiate for `rounds`, resumable: {"curve": cumulative regret (rounds,), figures of `summary`}. Kept as a stage."""

    def work() -> dict[str, Any]:
        trace = Trace(rounds)
        with run.time(".".join(name.split(".")[:2])):  # task and method
            for _ in resumable(run, name, rounds, {"env": env, "policy": policy, "trace": trace}):
                one_round(env, policy, trace)
        return {"curve": np.cumsum(trace["regret"]), **{key: float(value) for key, value in summary(trace).items()}}

    return run.stage(name, work)
