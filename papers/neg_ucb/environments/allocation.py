"""Resource allocation: who gets how many of each item in a pool, with counterparts whose wishes are hidden.

A bid is j = (j_1 .. j_J), units given away; the rest is kept. Contexts are those of Deal or No Deal. Acceptance, with r = j/c:

    linear          q = sigmoid(12 (V_g'r - tau_g))
    complementary   q = sigmoid(12 (.15 V_g'r + .85 m_g - tau_g)),  m_g = (4/3) sum_k r_k (1 - r_k) if tau_g < .45
                                                                     else (r_1 r_2 + r_2 r_3 + r_1 r_3)/3
"""

from __future__ import annotations

import numpy as np

from papers.neg_ucb import data
from papers.neg_ucb.environments.base import Environment, each, sigmoid


class AllocationLinear(Environment):
    """contexts: (n, 2, 3) counts and own values, drawn uniformly; all those of Deal or No Deal's kind by default."""

    name = "allocation_linear"
    dim, encoding = 9, 3

    def __init__(self, seed: int = 0, contexts: np.ndarray | None = None, **options):
        contexts = data.generated_contexts() if contexts is None else np.asarray(contexts)
        if contexts.ndim != 3 or contexts.shape[1:] != (2, 3) or not len(contexts) or contexts[:, 0].min() < 1:
            raise ValueError("contexts: (n, 2, 3) counts of at least 1 and values are expected")
        if not np.isfinite(contexts).all():
            raise ValueError("contexts: counts and values must be finite")
        self.contexts = contexts
        self.reach = float(max(1, contexts[:, 0].max() / 4, contexts[:, 1].max() / 10))
        self.dim = 10 if options.get("proposals", 1) > 1 else 9
        counts = contexts[:, 0]
        self.bound = float(np.sqrt(3 + 2 * ((counts / 4) ** 2).sum(1).max() + (self.dim - 9)))  # r = 1 and j = c
        super().__init__(seed, **options)

    def _people(self, generator):
        self.V = generator.dirichlet(np.ones(3), self.counterparts)  # (G, 3)
        self.tau = generator.uniform(0.3, 0.6, self.counterparts)

    def _arrive(self, generator):
        self.counts, self.values = self.contexts[generator.integers(len(self.contexts))]

    def _options(self):
        return (self.contexts[:, 0].max(0) + 1).tolist()

    def most_bids(self):
        return int((self.contexts[:, 0] + 1).prod(1).max())

    def _all_bids(self):
        return np.stack(
            np.unravel_index(np.arange(np.prod(self.counts + 1)), self.counts + 1), 1
        )  # prod(c_k + 1) divisions

    def is_valid(self, bid):
        return len(bid) == 3 and bool(((bid >= 0) & (bid <= self.counts)).all())

    def context(self):
        return np.concatenate([self.counts / 4, self.values / 10, super().context()])

    def _features(self, bids):
        """x = [j/c, j/4, c/4], and rejections / proposals where there is more than one proposal."""
        x = np.empty((len(bids), self.dim))
        x[:, :3], x[:, 3:6], x[:, 6:9] = bids / self.counts, bids / 4, self.counts / 4
        x[:, 9:] = self.rejections / self.proposals
        return x

    @each
    def utility(self, bids):
        return (self.counts - bids) @ self.values / 10

    def satisfaction(self, r: np.ndarray) -> np.ndarray:
        """s: shares r (n, 3) of the pool -> (n,), for the present counterpart."""
        return r @ self.V[self.counterpart]

    @each
    def accept_prob(self, bids):
        return sigmoid(12 * (self.satisfaction(bids / self.counts) - self.tau[self.counterpart]))


class AllocationComplementary(AllocationLinear):
    """Counterparts that want part of everything (tau < .45), or things together: not linear in the bid, two types."""

    name = "allocation_complementary"

    def satisfaction(self, r):
        likes_parts = self.tau[self.counterpart] < 0.45
        mixed = (
            4 / 3 * (r * (1 - r)).sum(1)
            if likes_parts
            else (r[:, 0] * r[:, 1] + r[:, 1] * r[:, 2] + r[:, 0] * r[:, 2]) / 3
        )
        return 0.15 * r @ self.V[self.counterpart] + 0.85 * mixed

    def types(self) -> np.ndarray:
        """(G,) 0 or 1: which of the two kinds each counterpart is."""
        return (self.tau >= 0.45).astype(int)
