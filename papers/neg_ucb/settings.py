"""What a config describes: tasks, methods, worlds; and one negotiation of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
from omegaconf import OmegaConf

from common.configs import known
from common.errors import UserError
from common.run import Run
from common.training import resumable
from papers.neg_ucb import environments, methods
from papers.neg_ucb.data import Data
from papers.neg_ucb.environments.base import Environment
from papers.neg_ucb.negotiation import Trace, one_round, summary
from papers.neg_ucb.oracle import ENUMERABLE


def task_of(cfg, name: str) -> dict[str, Any]:
    """Settings of a task, `rounds` taken from the top of the config where it is set there."""
    if name not in cfg.task:
        raise UserError(f"unknown task {name!r}: {known('the tasks are', name, list(cfg.task))}")
    task: Any = OmegaConf.to_container(cfg.task[name])
    task["rounds"] = cfg.rounds or task["rounds"]
    for key in ("rounds", "m", "every"):
        if task[key] < 1:
            raise UserError(f"task.{name}.{key} is {task[key]}: give at least 1")
    if (method := task["search"].get("method", "enumerate")) not in ("enumerate", "local", "sample"):
        raise UserError(f"task.{name}.search.method is {method!r}: choose enumerate, local or sample")
    return task


def method_of(cfg, name: str, task: dict[str, Any]) -> dict[str, Any]:
    """A method's entry, with what the task says of it (its tuned alpha, say)."""
    if name not in cfg.method:
        raise UserError(f"unknown method {name!r}: {known('the methods are', name, list(cfg.method))}")
    entry: Any = OmegaConf.to_container(cfg.method[name])
    return entry | task["methods"].get(name, {})


def environment_of(cfg, task: dict[str, Any], seed: int, data: Data) -> Environment:
    """The task's environment in the world of `seed`, on real data where they are found."""
    options: dict[str, Any] = {"counterparts": cfg.counterparts, "proposals": cfg.proposals, "counters": cfg.counters}
    if task["env"].startswith("allocation"):
        options["contexts"] = data.contexts()
    if task["env"] == "multi_issue":
        options["domain"] = data.domain(task["domain"], task["sizes"])
    try:
        env = environments.make(task["env"], seed=seed, **options)
        if task["env"] == "multi_issue" and env.n_bids > ENUMERABLE and task["search"].get("method") == "enumerate":
            raise UserError(
                f"{task['domain']} has {env.n_bids:,} bids, too many to enumerate: set search to "
                "{method: local, restarts: 6, steps: 24}, as the task energy does"
            )
    except ValueError as error:
        raise UserError(str(error)) from None
    return env


def policy_of(cfg, name: str, task: dict[str, Any], env: Environment, seed: int):
    try:
        return methods.make(method_of(cfg, name, task), env, seed, task)
    except (ValueError, TypeError) as error:
        raise UserError(f"method.{name}: {error}") from None


def seeds_of(cfg, run: Run) -> list[int]:
    """The worlds of this run: those of the config, shifted by the run's own seed, so that seed=1 repeats the study elsewhere."""
    if not cfg.seeds:
        raise UserError("seeds is empty: give at least one, seeds=[0]")
    return [int(seed) + 1000 * run.seed for seed in cfg.seeds]


def play_out(run: Run, name: str, env: Environment, policy, rounds: int) -> dict[str, Any]:
    """Negotiate for `rounds`, resumable: {"regret": cumulative (T,), figures of `summary`}. Kept as a stage."""

    def work() -> dict[str, Any]:
        trace = Trace(rounds)
        with run.time(".".join(name.split(".")[:2])):  # task and method
            for _ in resumable(run, name, rounds, {"env": env, "policy": policy, "trace": trace}):
                one_round(env, policy, trace)
        return {"curve": np.cumsum(trace["regret"]), **{key: float(value) for key, value in summary(trace).items()}}

    return run.stage(name, work)
