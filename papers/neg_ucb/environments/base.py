"""Base class of the negotiation tasks: arrivals, answers, regret, and the gymnasium interface.

An episode is one negotiation with one counterpart: at most `proposals` bids, over with the first yes. Which counterpart comes in
which context is a function of (seed, episode), the luck of an answer one of (seed, episode, proposal): two policies in worlds of
the same seed meet the same people in the same order, and their regrets can be compared pair by pair.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from common.rng import Rng

SHOWN = 200_000  # bids that bids() lists at most


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class Environment(gymnasium.Env):
    """A negotiation task. Subclasses fill in the world (`_people`, `_arrive`) and the functions of bids below them.

    bids are integer vectors (k,); many are (n, k). x = `features(bids)` (n, d) is what a learner sees of them.
    """

    name = "environment"
    dim: int  # d, length of x
    encoding: int  # the first entries of x that say which items are in the bid
    bound: float = 1.0  # no x has a larger norm
    reach: float = 1.0  # no number of the context is larger
    knows_q = True  # accept_prob is known, and with it regret
    metadata = {"render_modes": []}  # noqa: RUF012  gymnasium's own spelling

    def __init__(self, seed: int = 0, counterparts: int = 8, proposals: int = 1, counters: bool = False):
        if counterparts < 1 or proposals < 1:
            raise ValueError(f"counterparts is {counterparts} and proposals is {proposals}: both must be at least 1")
        self.seed, self.counterparts, self.proposals, self.counters = seed, counterparts, proposals, counters
        if self._hears():
            self.dim += self.encoding
            self.bound *= 2**0.5  # the counter-bid's encoding is a part of an x of its own
        self._world()
        self._begin()
        self.action_space = spaces.MultiDiscrete(np.asarray(self._options()))
        self.observation_space = spaces.Dict(
            {
                "counterpart": spaces.Discrete(counterparts),
                "context": spaces.Box(-self.reach, self.reach, self.context().shape, np.float64),
            }
        )

    def _world(self) -> None:
        """Draw the counterparts; nobody has been met."""
        self.episode = self.rejections = 0
        self.over = False
        self.counter: np.ndarray | None = None  # the counterpart's last counter-bid in this episode
        self._people(Rng(self.seed, "people").numpy)

    def _begin(self) -> None:
        """The arrival of this episode."""
        generator = Rng(self.seed, "arrival", self.episode).numpy
        self.rejections, self.over, self.counter = 0, False, None
        self.counterpart = int(generator.integers(self.counterparts))
        self._arrive(generator)
        self._forget()

    def _forget(self) -> None:
        """Drop what was computed for another state."""
        self._bids: np.ndarray | None = None
        self._optimum: float | None = None

    # ---- the world: for subclasses ---------------------------------------------------------------------------------

    def _people(self, generator: np.random.Generator) -> None:
        raise NotImplementedError

    def _arrive(self, generator: np.random.Generator) -> None:
        """The context of a new episode."""

    def _answered(self, bid: np.ndarray, y: int) -> None:
        """How the counterpart changes with the answer it gave."""

    def _options(self) -> list[int]:
        """Values of each coordinate of a bid, for the action space."""
        raise NotImplementedError

    def _all_bids(self) -> np.ndarray:
        raise NotImplementedError

    @property
    def n_bids(self) -> int:
        """Number of valid bids now."""
        return len(self.bids())

    def _features(self, bids: np.ndarray) -> np.ndarray:
        """x without the counter-bid: (n, k) -> (n, d) float64, further columns are dropped."""
        raise NotImplementedError

    def features(self, bids: np.ndarray) -> np.ndarray:
        """x: (n, k) -> (n, d) float64, of norm at most `bound`. Where counterparts make counter-bids, it ends with the last one's encoding."""
        x = self._features(bids)
        if self._hears():
            x = np.column_stack([x[:, : self.dim - self.encoding], np.tile(self._wish(), (len(x), 1))])
        return x

    def _hears(self) -> bool:
        """Whether there are counter-bids to be heard."""
        return self.counters and self.proposals > 1

    def _wish(self) -> np.ndarray:
        """Encoding of the last counter-bid of this episode, zeros before the first: (encoding,)."""
        return (
            np.zeros(self.encoding) if self.counter is None else self._features(self.counter[None])[0, : self.encoding]
        )

    def context(self) -> np.ndarray:
        """What is observed before a bid is chosen, the counterpart apart: (c,) float64; its last entry is rejections / proposals."""
        return np.append(self._wish() if self._hears() else [], self.rejections / self.proposals)

    def utility(self, bids: np.ndarray) -> np.ndarray:
        """Own benefit u in [0, 1] of a deal: (n, k) -> (n,), or (k,) -> scalar. Known to the proposer."""
        raise NotImplementedError

    def accept_prob(self, bids: np.ndarray) -> np.ndarray:
        """q, the true probability of a yes: (n, k) -> (n,), or (k,) -> scalar. For regret and the oracle alone."""
        raise NotImplementedError

    def is_valid(self, bid: np.ndarray) -> bool:
        return bool((self.bids() == bid).all(1).any())

    def first_bid(self) -> np.ndarray:
        """Where a local search starts."""
        return self.bids()[0]

    def random_bids(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """n uniform valid bids: (n, k)."""
        return self.bids()[generator.integers(self.n_bids, size=n)]

    def neighbours(self, bids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Valid bids one change away from each of `bids` (s, k): (n, k), and (n,) which of the s each belongs to, ascending."""
        valid = self.bids()
        apart = (valid[None] != bids[:, None]).sum(2) == 1  # (s, n)
        owner, which = np.nonzero(apart)
        return valid[which], owner

    def most_bids(self) -> int:
        """Number of valid bids at most, in any state. Raises ValueError where they are too many to list."""
        most = int(np.prod(self._options(), dtype=object))
        if most > SHOWN:
            raise ValueError(f"{self.name} has up to {most:,} bids, too many to number (at most {SHOWN:,})")
        return most

    # ---- negotiation -----------------------------------------------------------------------------------------------

    def bids(self) -> np.ndarray:
        """All valid bids now, (n, k) int. Raises ValueError where they are too many to list."""
        if self._bids is None:
            self._bids = self._all_bids()
        return self._bids

    def optimum(self) -> float:
        """max_b u(b) q(b) over the valid bids now."""
        if self._optimum is None:
            bids = self.bids()
            if not len(bids):
                raise ValueError(f"{self.name} has no valid bid in this state")
            self._optimum = float((self.utility(bids) * self.accept_prob(bids)).max())
        return self._optimum

    def respond(self, bid: np.ndarray) -> int:
        """Propose: 1 accepted, 0 rejected. Raises ValueError for a bid that is not valid, or when the episode is over."""
        bid = np.asarray(bid, int)
        if self.over:
            raise ValueError("this negotiation is over: call reset() for the next one")
        if not self.is_valid(bid):
            raise ValueError(f"bid {bid.tolist()} is not valid here")
        luck = Rng(self.seed, "answer", self.episode, self.rejections).numpy
        y = int(luck.random() < float(self.accept_prob(bid)))
        self._answered(bid, y)
        self.rejections += 1 - y
        self.over = bool(y) or self.rejections >= self.proposals
        self.counter = self._counter(luck) if self._hears() and not self.over else None
        if not self.over:
            self._forget()
        return y

    def _counter(self, generator: np.random.Generator) -> np.ndarray:
        """The counterpart's counter-proposal: of 16 random valid bids the one it would most likely accept."""
        bids = self.random_bids(16, generator)
        return bids[int(self.accept_prob(bids).argmax())]

    # ---- gymnasium -------------------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The next arrival; with a seed, the first one of that world. info: see `step`."""
        super().reset(seed=seed)
        if seed is not None:
            self.seed = seed
            self._world()
            self._begin()
        else:
            self.arrive()
        return self.observe(), {"action_mask": self.action_mask()}

    def arrive(self) -> None:
        """The next arrival, without an observation; the same one again where nothing was proposed to it."""
        if self.over or self.rejections:
            self.episode += 1
        self._begin()

    def action_mask(self) -> tuple[np.ndarray, ...]:
        """For each coordinate of a bid, which of its values some valid bid has (int8): `action_space.sample(mask=...)`.

        Coordinates are masked one by one, so a sample can still be invalid; `environments.Listed` has no invalid action.
        """
        sizes = self._options()
        if self.n_bids >= np.prod(sizes, dtype=float):
            return tuple(np.ones(n, np.int8) for n in sizes)
        bids = self.bids()
        return tuple((np.bincount(bids[:, i], minlength=n) > 0).astype(np.int8) for i, n in enumerate(sizes))

    def observe(self) -> dict[str, Any]:
        return {"counterpart": self.counterpart, "context": self.context()}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Propose `action`. A bid that is not valid does not reach the counterpart, and ends the episode.

        info: valid, accepted, action_mask; regret, expected and not sampled, where acceptance probabilities are known
        (all of the optimum for a bid that is not valid); and where counterparts make counter-bids, counter: a copy of
        the one to this proposal, -1 everywhere where there is none.
        """
        bid = np.asarray(action, int)
        valid, reward, y = self.is_valid(bid), 0.0, 0
        info: dict[str, Any] = {"regret": self.regret(bid) if valid else self.optimum()} if self.knows_q else {}
        if valid:
            u = float(self.utility(bid))
            y = self.respond(bid)
            reward = u * y
        else:
            self.over, self.counter = True, None
        info |= {"valid": valid, "accepted": y}
        if self._hears():
            info["counter"] = np.full(len(bid), -1) if self.counter is None else self.counter.copy()
        return self.observe(), reward, self.over, False, info | {"action_mask": self.action_mask()}

    def regret(self, bid: np.ndarray) -> float:
        """max u q minus u q of this bid, never negative: expected, not sampled."""
        gap = self.optimum() - float(self.utility(bid) * self.accept_prob(bid))
        return gap if gap > 1e-12 else 0.0  # below: rounding

    # ---- save and load ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "episode": self.episode,
            "over": self.over,
            "rejections": self.rejections,
            "counter": self.counter,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, in the middle of an episode or between two."""
        self.seed = state["seed"]
        self._world()
        self.episode = state["episode"]
        self._begin()
        self.over, self.rejections, self.counter = state["over"], state["rejections"], state["counter"]
        self._forget()


def each(function):
    """Let a function of many bids (n, k) take a single one (k,), too."""

    def wrapped(self, bids):
        bids = np.asarray(bids)
        return function(self, bids[None])[0] if bids.ndim == 1 else function(self, bids)

    wrapped.__doc__ = function.__doc__
    return wrapped
