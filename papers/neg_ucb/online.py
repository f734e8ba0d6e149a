"""Choosing regularisation and coupling along the run: several acceptance models learn side by side, one of them proposes.

loss       the model whose predictions, each made before its answer was learnt, have the least squared error so far
evidence   the model of largest marginal likelihood, see `NegUCB.evidence`
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from papers.neg_ucb.acceptance import NegUCB

BY = ("loss", "evidence")


class OnlineChoice:
    """An AcceptanceModel made of others. models: name -> NegUCB; by: loss | evidence; every: rounds between choices.

    All models learn from every answer; the one chosen last answers `ucb`. The first is chosen until there are answers.
    """

    def __init__(self, models: Mapping[str, NegUCB], by: str = "loss", every: int = 10):
        if by not in BY:
            raise ValueError(f"by is {by!r}: choose {', '.join(BY)}")
        if not models or every < 1:
            raise ValueError("models must not be empty, and every at least 1")
        self.models, self.by, self.every = dict(models), by, every
        self.loss = np.zeros(len(self.models))  # summed squared error of predictions made in time
        self.rounds, self.chosen = 0, next(iter(self.models))

    def ucb(self, x: np.ndarray, g: Hashable) -> tuple[np.ndarray, np.ndarray]:
        return self.models[self.chosen].ucb(x, g)

    def update(self, x: np.ndarray, g: Hashable, y: float, weight: float = 1.0) -> None:
        """Every model predicts the answer, then learns it; every `every` rounds the best so far is chosen."""
        for i, model in enumerate(self.models.values()):
            self.loss[i] += weight * (y - float(model.mean(np.asarray(x, float).reshape(1, -1), g)[0])) ** 2
            model.update(x, g, y, weight)
        self.rounds += 1
        if self.rounds % self.every == 0:
            worth = -self.loss if self.by == "loss" else [model.evidence() for model in self.models.values()]
            self.chosen = list(self.models)[int(np.argmax(worth))]

    def state_dict(self) -> dict[str, Any]:
        return {
            "models": {name: model.state_dict() for name, model in self.models.items()},
            "loss": self.loss.copy(),
            "rounds": self.rounds,
            "chosen": self.chosen,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in state["models"].items():
            self.models[name].load_state_dict(part)
        self.loss, self.rounds, self.chosen = np.array(state["loss"]), state["rounds"], state["chosen"]
