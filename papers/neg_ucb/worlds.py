"""Worlds and policies of a config: tasks, methods, environments by seed, and negotiations that are kept as stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from common.errors import UserError, choose, user_errors
from common.run import Run
from common.training import resumable
from papers.neg_ucb import data, environments, methods
from papers.neg_ucb.environments.base import Environment
from papers.neg_ucb.negotiation import Policy, Trace, one_round, summary
from papers.neg_ucb.oracle import ENUMERABLE

World = Callable[[int], Environment]  # seed -> environment


def task_of(cfg: Any, name: str) -> dict[str, Any]:
    """Settings of a task, with its `name`; `rounds` taken from the top of the config where it is set there."""
    choose("task", name, cfg.task_settings)
    task: Any = OmegaConf.to_container(cfg.task_settings[name])
    return task | {"name": name, "rounds": cfg.rounds or task["rounds"]}


def method_of(cfg: Any, name: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """A method's entry, with what the task says of it (its tuned constants, say)."""
    choose("method", name, cfg.method_settings)
    entry: Any = OmegaConf.to_container(cfg.method_settings[name])
    return entry | task["tuned"].get(name, {})


def worlds_of(cfg: Any, run: Run, task: Mapping[str, Any]) -> World:
    """seed -> the task's environment in the world of that seed, on real data where they are found."""
    options: dict[str, Any] = {"counterparts": cfg.counterparts, "proposals": cfg.proposals, "counters": cfg.counters}
    if task["env"].startswith("allocation"):
        options["contexts"] = data.contexts(cfg, run)
    if task["env"] == "multi_issue":
        options["domain"] = data.domain(cfg, run, task)
        if (n := options["domain"].n_bids) > ENUMERABLE and task["search"]["method"] == "enumerate":
            raise UserError(
                f"{task['domain']} has {n:,} bids, too many to enumerate: set task_settings.{task['name']}.search "
                "to {method: local, restarts: 6, steps: 24}, as the task energy does"
            )

    def world(seed: int) -> Environment:
        with user_errors():
            return environments.make(task["env"], seed=seed, **options)

    return world


def policy_of(name: str, entry: Mapping[str, Any], task: Mapping[str, Any], env: Environment, seed: int) -> Policy:
    """The policy of a method's entry."""
    try:
        return methods.make(entry, env, seed, task)
    except (ValueError, TypeError) as error:
        raise UserError(f"method_settings.{name}: {error}") from error


def play_out(run: Run, name: str, env: Environment, policy: Policy, rounds: int) -> dict[str, Any]:
    """Negotiate for `rounds`, resumable: {"curve": cumulative regret (rounds,), figures of `summary`}; a stage."""
    return run.stage(name, _play, run, name, env, policy, rounds)


def _play(run: Run, name: str, env: Environment, policy: Policy, rounds: int) -> dict[str, Any]:
    trace = Trace(rounds)
    with run.time(".".join(name.split(".")[:2])):  # task and method
        for _ in resumable(run, name, rounds, {"env": env, "policy": policy, "trace": trace}):
            one_round(env, policy, trace)
    return {"curve": np.cumsum(trace["regret"]), **{key: float(value) for key, value in summary(trace).items()}}
