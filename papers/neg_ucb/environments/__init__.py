"""Negotiation tasks with a known acceptance oracle, each also a `gymnasium` environment: `make(name, seed=0, **options)`."""

from __future__ import annotations

from typing import Any

import gymnasium

from papers.neg_ucb.environments.allocation import AllocationComplementary, AllocationLinear
from papers.neg_ucb.environments.base import Environment
from papers.neg_ucb.environments.cardinality import Cardinality
from papers.neg_ucb.environments.casino import CasinoReplay
from papers.neg_ucb.environments.listed import Listed
from papers.neg_ucb.environments.multi_issue import MultiIssue
from papers.neg_ucb.environments.trading import Trading

CLASSES: dict[str, type[Environment]] = {
    cls.name: cls for cls in (AllocationLinear, AllocationComplementary, MultiIssue, Trading, CasinoReplay, Cardinality)
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
    return CLASSES[name](seed=seed, **options)


def register() -> None:
    """Make the environments known to gymnasium as neg_ucb/<name>-v0."""
    for name, cls in CLASSES.items():
        if f"neg_ucb/{name}-v0" not in gymnasium.registry:
            entry_point = f"{cls.__module__}:{cls.__qualname__}"  # as text, so that a spec can be saved
            gymnasium.register(f"neg_ucb/{name}-v0", entry_point=entry_point)


register()

__all__ = ["NAMES", "Environment", "Listed", "make", "register"]
