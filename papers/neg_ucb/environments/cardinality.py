"""Bids of growing size at a fixed feature dimension: does a method pay for the number of items in a bid?

n items have features in R^8, drawn once. Each round offers 200 random subsets; a bid's feature is the mean of its items', and
q = sigmoid(2 m'theta / sd) with sd the standard deviation of m'theta over random bids, so that n changes the size of bids and little
else. u = 1. x is the membership vector: what a learner makes of it is its own affair (`ItemMeans` is the map).
"""

from __future__ import annotations

import numpy as np

from papers.neg_ucb.environments.base import Environment, each, sigmoid
from papers.neg_ucb.features import Linear

OFFERED = 200  # bids a round
FEATURES = 8


class Cardinality(Environment):
    name = "cardinality"

    def __init__(self, seed: int = 0, items: int = 16, **options):
        if items < 2:
            raise ValueError(f"items is {items}: at least 2 are needed")
        self.n = self.encoding = self.dim = items
        self.bound = float(np.sqrt(items))
        super().__init__(seed, **({"counterparts": 1} | options))

    def _people(self, generator):
        self.items = generator.normal(size=(self.n, FEATURES)) / np.sqrt(FEATURES)
        self.theta = generator.normal(size=FEATURES)
        sample = _nonempty(generator.random((2000, self.n)) < 0.5, generator)
        means = self.means(sample)
        self.sd = float((means @ self.theta).std())
        self.mean_bound = float(
            np.linalg.norm(means, axis=1).max()
        )  # of a bid's mean feature, as the items grow in number

    def means(self, bids: np.ndarray) -> np.ndarray:
        """Mean item feature of each bid: (n, items) -> (n, 8)."""
        return bids @ self.items / np.maximum(bids.sum(1), 1)[:, None]

    def _arrive(self, generator):
        self._offered = _nonempty(generator.random((OFFERED, self.n)) < 0.5, generator)

    def _options(self):
        return [2] * self.n

    def most_bids(self):
        return OFFERED

    def _all_bids(self):
        return self._offered

    def _features(self, bids):
        return bids.astype(float)

    @each
    def utility(self, bids):
        return np.ones(len(bids))

    @each
    def accept_prob(self, bids):
        return sigmoid(2 * self.means(bids) @ self.theta / self.sd)


class ItemMeans(Linear):
    """phi of the mean item feature of a membership vector x (n, items); the features of the items are known."""

    def __init__(self, env: Cardinality):
        super().__init__(FEATURES, env.mean_bound)
        self.items = env.items

    def __call__(self, x):
        return super().__call__(x @ self.items / np.maximum(x.sum(1), 1)[:, None])


def _nonempty(members: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    empty = ~members.any(1)
    members[empty, generator.integers(members.shape[1], size=int(empty.sum()))] = True
    return members.astype(int)
