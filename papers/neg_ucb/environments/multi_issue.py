"""Multi-issue negotiation over a domain of the ANAC kind: one option an issue.

The proposer has the domain's first profile. Counterpart g has the second profile's evaluations under weights of its own,
Dirichlet(20 w), a threshold tau_g ~ U(.55, .85), and accepts with q = sigmoid(15 (u_g(b) - tau_g + .2 (h/H)^{1/e_g})): where an
episode has several proposals it concedes with the rejections h, early (e_g > 1) or late (e_g < 1).
"""

from __future__ import annotations

import os

import numpy as np

from common.rng import Rng
from papers.neg_ucb import anac
from papers.neg_ucb.environments.base import SHOWN, Environment, each, sigmoid

EXACT = 2_000_000  # bids up to which the optimum is found by enumeration


class MultiIssue(Environment):
    """domain: an `anac.Domain`, a folder to load, or None for a generated one of 576 bids."""

    name = "multi_issue"

    def __init__(self, seed: int = 0, domain: anac.Domain | str | os.PathLike | None = None, **options):
        if domain is None:
            domain = anac.generate([3, 4, 4, 3, 4], Rng(0, "domain").numpy)
        self.domain = domain if isinstance(domain, anac.Domain) else anac.load(domain)
        if len(self.domain.profiles) < 2:
            raise ValueError(f"domain {self.domain.name} has one profile: two sides are needed")
        self.sizes = np.array(self.domain.sizes)
        self.starts = np.concatenate(
            [[0], np.cumsum(self.sizes)[:-1]]
        )  # where each issue's options start in the one-hot code
        self.encoding = int(self.sizes.sum())
        self.timed = options.get("proposals", 1) > 1
        self.dim = self.encoding + self.timed
        self.bound = float(np.sqrt(1 + self.timed))
        self._kept: dict[tuple[int, int], float] = {}
        super().__init__(seed, **options)

    def _people(self, generator):
        G, worth = self.counterparts, self.domain.profiles[1].worth
        self.tau = generator.uniform(0.55, 0.85, G)
        self.e = np.exp(generator.uniform(np.log(0.2), np.log(2), G))
        self._kept.clear()
        if isinstance(worth, anac.LinearAdditive):
            w = worth.table.max(1)  # the second profile's weights
            mine = generator.dirichlet(20 * w + 1e-3, G)  # (G, issues)
            self.tables = mine[:, :, None] * (worth.table / np.maximum(w, 1e-12)[:, None])  # (G, issues, options)
        else:
            self.boxes = [
                anac.HyperRectangles(
                    worth.low, worth.high, worth.worth * generator.uniform(0.5, 1.5, len(worth.worth)), worth.most
                )
                for _ in range(G)
            ]

    def _options(self):
        return self.sizes.tolist()

    @property
    def n_bids(self):
        return self.domain.n_bids

    def _all_bids(self):
        if self.n_bids > SHOWN:
            raise ValueError(
                f"{self.domain.name} has {self.n_bids:,} bids, too many to list: use best_bid with method local or sample"
            )
        return self.domain.block(0, self.n_bids)

    def bids(self):
        if self._bids is None and getattr(self, "_list", None) is None:
            self._list = self._all_bids()
        return self._list

    def is_valid(self, bid):
        return len(bid) == len(self.sizes) and bool(((bid >= 0) & (bid < self.sizes)).all())

    def first_bid(self):
        return np.zeros(len(self.sizes), int)

    def random_bids(self, n, generator):
        return generator.integers(self.sizes, size=(n, len(self.sizes)))

    def neighbours(self, bids):
        issue = np.repeat(np.arange(len(self.sizes)), self.sizes)  # every (issue, option) pair
        option = np.concatenate([np.arange(n) for n in self.sizes])
        around = np.repeat(bids[:, None], len(issue), 1)  # (s, pairs, k)
        around[:, np.arange(len(issue)), issue] = option
        changed = bids[:, issue] != option
        owner, which = np.nonzero(changed)
        return around[owner, which], owner

    def _features(self, bids):
        """x = one-hot / sqrt(issues), and h/H where there is more than one proposal."""
        x = np.zeros((len(bids), self.dim))
        np.put_along_axis(x, bids + self.starts, 1 / np.sqrt(len(self.sizes)), axis=1)
        x[:, self.encoding :] = self.rejections / self.proposals
        return x

    @each
    def utility(self, bids):
        return self.domain.profiles[0].worth(bids)

    def their_utility(self, bids: np.ndarray) -> np.ndarray:
        """u_g in [0, 1] of the present counterpart: (n, k) -> (n,)."""
        if isinstance(self.domain.profiles[1].worth, anac.LinearAdditive):
            return self.tables[self.counterpart][np.arange(len(self.sizes)), bids].sum(1)
        return self.boxes[self.counterpart](bids)

    @each
    def accept_prob(self, bids):
        conceded = 0.2 * (self.rejections / self.proposals) ** (1 / self.e[self.counterpart])
        return sigmoid(15 * (self.their_utility(bids) - self.tau[self.counterpart] + conceded))

    def optimum(self):
        """max u q: by enumeration up to 2e6 bids, else the best of a local search (a lower bound on it: regret may then be too small)."""
        key = (self.counterpart, self.rejections)
        if key not in self._kept:

            def score(bids):
                return self.utility(bids) * self.accept_prob(bids)

            if self.n_bids <= EXACT:
                step = 50_000
                self._kept[key] = max(
                    float(score(self.domain.block(at, at + step)).max()) for at in range(0, self.n_bids, step)
                )
            else:
                from papers.neg_ucb.oracle import best_bid

                best = best_bid(score, self, "local", generator=Rng(self.seed, "optimum", *key).numpy, restarts=50)
                self._kept[key] = float(score(np.asarray(best)[None])[0])
        return self._kept[key]
