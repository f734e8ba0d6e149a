"""Baselines that estimate acceptance: linear and kernel bandits, and combinatorial ones adapted to whole-bid answers.

LinUCB, LinTS, KernelUCB and hLinUCB are `NegUCB` with parts left out, so that what is compared is the part. Greedy and
epsilon-greedy use NegUCB's own model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from papers.neg_ucb.acceptance import AcceptanceModel, NegUCB, check_answer
from papers.neg_ucb.features import FeatureMap


def lin_ucb(feature_map: FeatureMap, alpha: float = 0.3, **options: Any) -> NegUCB:
    """LinUCB (Li et al. 2010; OFUL) on the whole bid's feature vector, shared by all counterparts. With an rff map: KernelUCB."""
    return NegUCB(feature_map, hidden=0, alpha_theta=alpha, **options)


def lin_ts(feature_map: FeatureMap, alpha: float = 0.3, **options: Any) -> NegUCB:
    """Linear Thompson sampling: vec(Theta) ~ N(mean, alpha^2 A^{-1})."""
    return NegUCB(feature_map, hidden=0, alpha_theta=alpha, exploration="thompson", **options)


def hlin_ucb(feature_map: FeatureMap, hidden: int = 2, alpha: float = 0.3, **options: Any) -> NegUCB:
    """hLinUCB (Wang, Wu, Wang 2016): hidden states on a linear map. rebuild="stale" is the published form."""
    return NegUCB(feature_map, hidden=hidden, alpha_theta=alpha, alpha_h=alpha / 3, **options)


class PerCounterpart:
    """An independent model for each counterpart: nothing is shared. make() -> model."""

    def __init__(self, make: Callable[[], AcceptanceModel]):
        self.make = make
        self.models: dict[Hashable, AcceptanceModel] = {}

    def _of(self, g: Hashable) -> AcceptanceModel:
        if g not in self.models:
            self.models[g] = self.make()
        return self.models[g]

    def ucb(self, x: np.ndarray, g: Hashable) -> tuple[np.ndarray, np.ndarray]:
        return self._of(g).ucb(x, g)

    def update(self, x: np.ndarray, g: Hashable, y: float) -> None:
        self._of(g).update(x, g, y)

    def state_dict(self) -> dict[str, Any]:
        return {"models": {g: model.state_dict() for g, model in self.models.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for g, part in state["models"].items():
            self._of(g).load_state_dict(part)


class C2UCB(NegUCB):
    """C2UCB (Qin, Chen, Zhu 2014), adapted: the published one sees an answer for every item, here there is one for the whole bid.

    The estimate is that of the whole bid (the answer is regressed on the bid's feature vector, which for a linear map is the sum
    of its items'); the exploration is theirs, a bonus for every item summed: alpha sum_{i in b} ||phi(x^(i))||_{A^{-1}}, where
    x^(i) is the bid that keeps item i alone. The first `items` entries of x say which items are in the bid.
    average: divide the sum by the number of items, for comparison.
    """

    def __init__(self, feature_map: FeatureMap, items: int, alpha: float = 0.3, average: bool = False, **options: Any):
        super().__init__(feature_map, hidden=0, alpha_theta=alpha, **options)
        self.items, self.average = items, average

    def ucb(self, x: np.ndarray, g: Hashable) -> tuple[np.ndarray, np.ndarray]:
        mean = self.phi(x) @ self.Theta[:, 0]
        members = x[:, : self.items] != 0
        top = x[:, : self.items].max(0)
        if (x[:, self.items :] == x[0, self.items :]).all() and (x[:, : self.items] == members * top).all():
            singles = np.tile(x[0], (self.items, 1))  # one context, and an item is in or out: a width for each item
            singles[:, : self.items] = np.diag(top)
            bonus = self.alpha_theta * members @ self._widths(singles)
            return mean, bonus / np.maximum(members.sum(1), 1) if self.average else bonus
        row, item = np.nonzero(x[:, : self.items])
        value, which = x[row, item], np.arange(len(row))
        if (x[:, self.items :] == x[0, self.items :]).all():  # one context: bids share their items' single bids
            _, first, which = np.unique(item + 1j * value, return_index=True, return_inverse=True)
            row_of, item_of = row[first], item[first]
        else:
            row_of, item_of = row, item
        singles = x[row_of]
        singles[:, : self.items] = 0
        singles[np.arange(len(row_of)), item_of] = x[row_of, item_of]
        widths = self._widths(singles)
        bonus = np.bincount(row, self.alpha_theta * widths[which], minlength=len(x))
        return mean, bonus / np.maximum(np.bincount(row, minlength=len(x)), 1) if self.average else bonus

    def _widths(self, singles: np.ndarray) -> np.ndarray:
        phi = self.phi(singles)
        return np.sqrt(np.maximum(np.einsum("ij,ij->i", phi @ self.A_inv, phi), 0))


class CUCB:
    """CUCB (Chen, Wang, Yuan 2013), adapted to one answer for the whole bid: context-free, a mean for every item.

    Item i's mean is the share of yes among the bids that held it (weighted by how much of it); a bid's estimate and bonus are
    the weighted means of its items', bonus_i = alpha sqrt(1.5 ln t / n_i). The empty bid is an item of its own.
    """

    def __init__(self, items: int, alpha: float = 1.0):
        self.items, self.alpha = items, alpha
        self.n, self.yes, self.rounds = np.zeros(items + 1), np.zeros(items + 1), 0

    def _weights(self, x: np.ndarray) -> np.ndarray:
        """Share of each item in each bid: (n, items + 1), rows sum to 1."""
        w = np.zeros((len(x), self.items + 1))
        w[:, :-1] = np.abs(x[:, : self.items])
        w[:, -1] = w.sum(1) == 0
        return w / w.sum(1, keepdims=True)

    def ucb(self, x: np.ndarray, g: Hashable) -> tuple[np.ndarray, np.ndarray]:
        w, n = self._weights(x), np.maximum(self.n, 1e-3)
        return w @ (self.yes / n), self.alpha * w @ np.sqrt(1.5 * np.log(self.rounds + 2) / n)

    def update(self, x: np.ndarray, g: Hashable, y: float) -> None:
        w = self._weights(check_answer(x, y))[0]
        self.n += w
        self.yes += w * y
        self.rounds += 1

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n.copy(), "yes": self.yes.copy(), "rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n, self.yes, self.rounds = np.array(state["n"]), np.array(state["yes"]), state["rounds"]
