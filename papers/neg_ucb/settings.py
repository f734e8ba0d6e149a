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
from papers.neg_ucb.kernel import CAP
from papers.neg_ucb.negotiation import Trace, one_round, summary
from papers.neg_ucb.oracle import ENUMERABLE

AT_LEAST = {
    "cardinality.items": 2, "cardinality.rounds": 1, "cardinality.seeds": 0, "cardinality.alpha": 0, "cardinality.alpha_summed_tuned": 0,
    "casino.m": 1, "casino.landmarks_from": 2, "casino.every": 1, "clusters.counterparts": 2, "clusters.rounds": 1, "warm_start.logged": 0,
    "warm_start.rounds": 1, "identities.rounds": 1, "tune.alphas": 0, "tune.seeds": 0, "play.rounds": 1,
}  # fmt: skip


def check(cfg) -> None:
    """Refuse what no study could use, before the first of them has run. Raises UserError."""
    for key, least in AT_LEAST.items():
        value = OmegaConf.select(cfg, key)
        values = list(value) if OmegaConf.is_list(value) else [value]
        if not values or min(values) < least:
            raise UserError(
                f"{key} is {value}: give at least {least}{', at least once' if OmegaConf.is_list(value) else ''}"
            )


def task_of(cfg, name: str) -> dict[str, Any]:
    """Settings of a task, `rounds` taken from the top of the config where it is set there."""
    if name not in cfg.task:
        raise UserError(f"unknown task {name!r}: {known('the tasks are', name, list(cfg.task))}")
    task: Any = OmegaConf.to_container(cfg.task[name])
    task["rounds"] = cfg.rounds or task["rounds"]
    for key in ("rounds", "m", "every"):
        if task[key] < 1:
            raise UserError(f"task.{name}.{key} is {task[key]}: give at least 1")
    for key in ("hidden", "length"):
        if task[key] < 0:
            raise UserError(f"task.{name}.{key} is {task[key]}: give at least 0")
    if (method := task["search"].get("method", "enumerate")) not in ("enumerate", "local", "sample"):
        raise UserError(f"task.{name}.search.method is {method!r}: choose enumerate, local or sample")
    return task


def method_of(cfg, name: str, task: dict[str, Any]) -> dict[str, Any]:
    """A method's entry, with what the task says of it (its tuned alpha, say)."""
    if name not in cfg.method:
        raise UserError(f"unknown method {name!r}: {known('the methods are', name, list(cfg.method))}")
    entry: Any = OmegaConf.to_container(cfg.method[name])
    entry |= task["methods"].get(name, {})
    if entry.get("alpha", 0) < 0 or not 0 <= entry.get("epsilon", 0) <= 1:
        raise UserError(f"method {name}: alpha must be at least 0 and epsilon in [0, 1]")
    if entry["kind"] == "exact" and task["rounds"] > CAP:
        raise UserError(
            f"method {name} holds at most {CAP:,} rounds, not {task['rounds']:,}: leave it out of methods, or take kernel_ucb"
        )
    return entry


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
