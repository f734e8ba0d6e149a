"""Trading: technologies (or goods) given for others taken, with counterparts whose private values and mood are hidden.

There are n items. Each episode both sides own random subsets. A bid gives at most three items that only the proposer owns and takes
at most three that only the counterpart owns; it is a 0/1 vector (given, taken) of length 2n. What is given is not lost, only no longer
exclusive, so it costs half its value: u = (value taken - value given / 2), scaled to [0, 1]; bids with u <= 0 are not made.
Counterpart g has values F e_g + noise (F: n x 3, low rank), gain_g = (g's value of what it gets - half of what it gives) on the same
scale, and q = sigmoid(8 (gain_g - tau_g + mood_g)). The mood rises by .05 with each deal and falls by .05 with each insult (a
rejected bid with gain_g < 0): the world answers to how it is treated, and regret is measured in the state a policy has made.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from papers.neg_ucb.environments.base import Environment, each, sigmoid

MOST = 3  # items given, and taken, at most
MOOD = 0.3  # the mood stays within plus and minus this


class Trading(Environment):
    """techs: number of items."""

    name = "trading"

    def __init__(self, seed: int = 0, techs: int = 20, **options):
        if techs < 2:
            raise ValueError(f"techs is {techs}: at least 2 are needed")
        self.n, self.encoding = techs, 2 * techs
        self.dim = 2 * techs + 2 + (options.get("proposals", 1) > 1)
        self.bound = float(np.sqrt(1 + 1 + 1 + (self.dim - 2 * techs - 2)))
        super().__init__(seed, **options)

    def _people(self, generator):
        self.value = generator.uniform(0.2, 1, self.n)
        F = generator.uniform(0, 1, (self.n, 3))
        e = generator.dirichlet(np.ones(3), self.counterparts)  # (G, 3)
        self.their = np.clip(e @ F.T + generator.normal(0, 0.05, (self.counterparts, self.n)), 0.02, 1)  # (G, n)
        self.tau = generator.uniform(0.05, 0.25, self.counterparts)
        self.mood = np.zeros(self.counterparts)

    def _arrive(self, generator):
        for _ in range(1000):
            own, theirs = generator.random((2, self.n)) < 0.5
            self.gives, self.takes = np.flatnonzero(own & ~theirs), np.flatnonzero(theirs & ~own)
            if len(self.takes):
                return
        raise ValueError("techs: no valid bid in a thousand draws of who owns what, use more items")

    def _options(self):
        return [2] * (2 * self.n)

    def most_bids(self):
        subsets = [sum(math.comb(n, size) for size in range(MOST + 1)) for n in range(self.n + 1)]
        return max(subsets[n] * subsets[self.n - n] for n in range(self.n + 1))

    def _all_bids(self):
        given, taken = _subsets(self.gives, self.n), _subsets(self.takes, self.n)
        bids = np.concatenate([np.repeat(given, len(taken), 0), np.tile(taken, (len(given), 1))], 1)
        return bids[self.utility(bids) > 0]

    def is_valid(self, bid):
        given, taken = bid[: self.n], bid[self.n :]
        if len(bid) != 2 * self.n or not np.isin(bid, (0, 1)).all() or given.sum() > MOST or taken.sum() > MOST:
            return False
        return bool(
            np.isin(np.flatnonzero(given), self.gives).all()
            and np.isin(np.flatnonzero(taken), self.takes).all()
            and self.utility(bid) > 0
        )

    def neighbours(self, bids):
        """One item flipped, or one swapped for another on the same side."""
        valid = self.bids()
        differs = valid[None] != bids[:, None]  # (s, n, k)
        given, taken = differs[:, :, : self.n].sum(2), differs[:, :, self.n :].sum(2)
        same = (valid[:, : self.n].sum(1) == bids[:, None, : self.n].sum(2)) & (
            valid[:, self.n :].sum(1) == bids[:, None, self.n :].sum(2)
        )
        near = (given + taken == 1) | (same & (given + taken == 2) & ((given == 2) | (taken == 2)))
        owner, which = np.nonzero(near)
        return valid[which], owner

    def _features(self, bids):
        """x = [given, taken] / sqrt(6), the share of 3 given and taken, and h/H where there is more than one proposal."""
        x = np.zeros((len(bids), self.dim))
        x[:, : 2 * self.n] = bids / np.sqrt(2 * MOST)
        x[:, 2 * self.n] = bids[:, : self.n].sum(1) / MOST
        x[:, 2 * self.n + 1] = bids[:, self.n :].sum(1) / MOST
        x[:, 2 * self.n + 2 :] = self.rejections / self.proposals
        return x

    def context(self):
        owned = np.zeros(2 * self.n)
        owned[self.gives], owned[self.n + self.takes] = 1, 1
        return np.concatenate([owned, super().context()])

    def _scale(self, value: np.ndarray) -> float:
        """The best three items of all: what a side can gain at most."""
        return float(np.sort(value)[-MOST:].sum())

    @each
    def utility(self, bids):
        net = bids[:, self.n :] @ self.value - 0.5 * bids[:, : self.n] @ self.value
        return np.clip(net / self._scale(self.value), 0, 1)

    def gain(self, bids: np.ndarray) -> np.ndarray:
        """What the present counterpart gains, on its own scale: (n, 2n) -> (n,)."""
        value = self.their[self.counterpart]
        return (bids[:, : self.n] @ value - 0.5 * bids[:, self.n :] @ value) / self._scale(value)

    @each
    def accept_prob(self, bids):
        g = self.counterpart
        return sigmoid(8 * (self.gain(bids) - self.tau[g] + self.mood[g]))

    def _answered(self, bid, y):
        g = self.counterpart
        if y or self.gain(bid[None])[0] < 0:
            self.mood[g] = np.clip(self.mood[g] + (0.05 if y else -0.05), -MOOD, MOOD)

    def state_dict(self):
        return super().state_dict() | {"mood": self.mood.copy()}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.mood = np.array(state["mood"])


def _subsets(items: np.ndarray, n: int) -> np.ndarray:
    """Indicator rows (s, n) of all subsets of at most MOST items, the empty one first."""
    sets = [s for size in range(MOST + 1) for s in itertools.combinations(items.tolist(), size)]
    rows = np.zeros((len(sets), n), int)
    for row, members in zip(rows, sets, strict=True):
        row[list(members)] = 1
    return rows
