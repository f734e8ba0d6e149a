"""Negotiation without learning acceptance: concession over time, tit-for-tat, and a frequency model of the opponent.

Time in a negotiation of several proposals is the number of rejections so far in it; where every negotiation is a single proposal it
is the number of rejections in a row by that counterpart. Utilities are taken relative to the best bid at hand.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from papers.neg_ucb.environments.base import Environment
from papers.neg_ucb.negotiation import Stochastic
from papers.neg_ucb.oracle import ENUMERABLE, random_argmax


def candidates(env: Environment, samples: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Bids and their utilities relative to the best: all where they can be listed, else a sample."""
    bids = env.bids() if env.n_bids <= ENUMERABLE else env.random_bids(samples, generator)
    u = env.utility(bids)
    return bids, u / max(u.max(), 1e-12)


class Concession(Stochastic):
    """Target utility 1 - (1 - reservation)(t/H)^{1/e}: boulware e = .2, linear 1, conceder 2. Offers the bid nearest above the target.

    horizon H: rejections after which the target is the reservation (the episode's proposals, where there is more than one).
    """

    def __init__(
        self,
        generator: np.random.Generator,
        e: float = 1.0,
        reservation: float = 0.2,
        horizon: int = 10,
        samples: int = 1000,
    ):
        super().__init__(generator)
        self.e, self.reservation, self.horizon, self.samples = e, reservation, horizon, samples
        self.refused: dict[Hashable, int] = {}

    def target(self, env) -> float:
        t, H = (
            (env.rejections, env.proposals)
            if env.proposals > 1
            else (self.refused.get(env.counterpart, 0), self.horizon)
        )
        return 1 - (1 - self.reservation) * min(t / H, 1) ** (1 / self.e)

    def propose(self, env):
        bids, u = candidates(env, self.samples, self.generator)
        target = self.target(env)
        return bids[random_argmax(np.where(u >= target - 1e-9, -u, -2 - np.abs(u - target)), self.generator)]

    def observe(self, env, bid, x, g, u, y):
        self.refused[g] = 0 if y else self.refused.get(g, 0) + 1

    def state_dict(self):
        return super().state_dict() | {"refused": dict(self.refused)}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.refused = dict(state["refused"])


class TitForTat(Stochastic):
    """Concedes as much as the counterpart does: its counter-bids' gain in our utility, or a step per rejection where it makes none.

    Among bids near the target the one most like the last counter-bid is offered.
    """

    def __init__(
        self, generator: np.random.Generator, step: float = 0.05, reservation: float = 0.2, samples: int = 1000
    ):
        super().__init__(generator)
        self.step, self.reservation, self.samples = step, reservation, samples
        self.targets: dict[Hashable, float] = {}
        self.first: dict[Hashable, float] = {}  # our utility of the counterpart's first counter-bid

    def propose(self, env):
        bids, u = candidates(env, self.samples, self.generator)
        target = self.targets.get(env.counterpart, 1.0)
        far = np.round(np.abs(u - target), 2)
        like = (bids == env.counter).mean(1) if env.counter is not None else 0.0
        return bids[random_argmax(-far + 0.01 * like, self.generator)]

    def observe(self, env, bid, x, g, u, y):
        if env.counter is not None:
            offered = float(env.utility(env.counter))
            target = 1 - max(offered - self.first.setdefault(g, offered), 0) - self.step
        else:
            target = self.targets.get(g, 1.0) + (self.step if y else -self.step)
        self.targets[g] = float(np.clip(target, self.reservation, 1))

    def state_dict(self):
        return super().state_dict() | {"targets": dict(self.targets), "first": dict(self.first)}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.targets, self.first = dict(state["targets"]), dict(state["first"])


class Frequency(Concession):
    """Concession with a frequency model: of the bids above the target, the one whose items this counterpart took most often.

    What it took are the bids it accepted and the counter-bids it made, what it left are those it turned down.
    """

    def __init__(self, generator: np.random.Generator, **options: Any):
        super().__init__(generator, **options)
        self.counts: dict[Hashable, np.ndarray] = {}  # (2, d + 1): summed x and number, of those left and those taken

    def propose(self, env):
        bids, u = candidates(env, self.samples, self.generator)
        allowed = np.flatnonzero(u >= min(self.target(env), 1 - 1e-9) - 1e-9)
        counts = self.counts.get(env.counterpart)
        if counts is None:
            return bids[allowed[self.generator.integers(len(allowed))]]
        left, taken = counts[:, :-1] / np.maximum(counts[:, -1:], 1)
        return bids[allowed[random_argmax(env.features(bids[allowed]) @ (taken - left), self.generator)]]

    def observe(self, env, bid, x, g, u, y):
        super().observe(env, bid, x, g, u, y)
        counts = self.counts.setdefault(g, np.zeros((2, len(x) + 1)))
        counts[y] += np.append(x, 1.0)
        if env.counter is not None:
            counts[1] += np.append(env.features(env.counter[None])[0], 1.0)

    def state_dict(self):
        return super().state_dict() | {"counts": {g: value.copy() for g, value in self.counts.items()}}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.counts = {g: np.array(value) for g, value in state["counts"].items()}
