"""Negotiation tasks with a known acceptance oracle, each also a `gymnasium` environment: `make(name, seed=0, **options)`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from papers.neg_ucb.environments.base import Environment

CLASSES = {
    "allocation_linear": "allocation:AllocationLinear",
    "allocation_complementary": "allocation:AllocationComplementary",
    "multi_issue": "multi_issue:MultiIssue",
    "trading": "trading:Trading",
    "casino_replay": "casino:CasinoReplay",
    "cardinality": "cardinality:Cardinality",
}
NAMES = tuple(CLASSES)


def make(name: str, seed: int = 0, **options: Any) -> Environment:
    """An environment by name; `gymnasium.make("neg_ucb/<name>-v0", seed=...)` gives the same.

    Options of all: counterparts (8), proposals (1: episodes end with the first answer), counters (False). Then
    allocation: contexts (n, 2, 3) | multi_issue: domain (an anac.Domain or a folder) | trading: techs | casino_replay: offers.
    Raises ValueError for an unknown name.
    """
    if name not in CLASSES:
        raise ValueError(f"name is {name!r}: the environments are {', '.join(NAMES)}")
    module, _, cls = CLASSES[name].partition(":")
    return getattr(import_module(f"papers.neg_ucb.environments.{module}"), cls)(seed=seed, **options)


def register() -> None:
    """Make the environments known to gymnasium as neg_ucb/<name>-v0."""
    import gymnasium

    for name, entry in CLASSES.items():
        if f"neg_ucb/{name}-v0" not in gymnasium.registry:
            gymnasium.register(
                f"neg_ucb/{name}-v0", entry_point=f"papers.neg_ucb.environments.{entry}", disable_env_checker=True
            )


register()

__all__ = ["NAMES", "Environment", "make", "register"]
