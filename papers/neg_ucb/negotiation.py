"""Negotiate: policies propose, counterparts answer, regret is counted.

Reg_T = sum_t max_{b in S_t} u(b) q(b) - u(b_t) q(b_t), in expectation: with sampled answers it would be noisy and could be negative.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

import numpy as np

from common.metrics.summary import log_slope
from papers.neg_ucb.acceptance import AcceptanceModel
from papers.neg_ucb.environments.base import Environment
from papers.neg_ucb.oracle import best_bid


class Policy(Protocol):
    """What chooses a bid, and hears the answer."""

    def propose(self, env: Environment) -> np.ndarray:
        """A valid bid (k,)."""

    def observe(self, env: Environment, bid: np.ndarray, x: np.ndarray, g: Hashable, u: float, y: int) -> None:
        """g answered y to `bid`, whose features were x (d,) and own utility u. `env` has moved on (a counter-bid is in env.counter)."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Stochastic:
    """A policy with a generator of its own, and nothing else to remember."""

    def __init__(self, generator: np.random.Generator):
        self.generator = generator

    def observe(self, env, bid, x, g, u, y):
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]


class Optimistic(Stochastic):
    """b_t = argmax u(b) clip(U_t(b), 0, 1), U_t = mean + bonus of an acceptance model: the algorithm of the paper, for any model.

    The optimism is in the acceptance alone: a bonus on the product u q would favour bids that are worth nothing. Where u < 0 the
    lower bound mean - bonus takes U's place (an upper bound would be pessimistic there).
    epsilon         share of rounds with a uniform bid instead
    search          options of `best_bid`: method, restarts, steps, samples
    counter_weight  weight of a counter-bid as an answer y = 1 of its maker; 0 leaves counter-bids alone
    """

    def __init__(
        self,
        model: AcceptanceModel,
        generator: np.random.Generator,
        *,
        epsilon: float = 0.0,
        search: dict | None = None,
        counter_weight: float = 0.0,
    ):
        super().__init__(generator)
        self.model, self.epsilon, self.search, self.counter_weight = model, epsilon, dict(search or {}), counter_weight

    def propose(self, env: Environment) -> np.ndarray:
        if self.epsilon and self.generator.random() < self.epsilon:
            return env.random_bids(1, self.generator)[0]
        g = env.counterpart

        def score(bids: np.ndarray) -> np.ndarray:
            mean, bonus = self.model.ucb(env.features(bids), g)
            u = env.utility(bids)
            optimistic = u * np.clip(mean + bonus, 0, 1)
            return optimistic if (u >= 0).all() else np.where(u >= 0, optimistic, u * np.clip(mean - bonus, 0, 1))

        best = best_bid(score, env, generator=self.generator, **self.search)
        return env.bids()[best] if np.ndim(best) == 0 else np.asarray(best)

    def observe(self, env, bid, x, g, u, y):
        self.model.update(x, g, y)
        if self.counter_weight and env.counter is not None:
            self.model.update(env.features(env.counter[None])[0], g, 1.0, weight=self.counter_weight)  # type: ignore[call-arg]

    def state_dict(self):
        return super().state_dict() | {"model": self.model.state_dict()}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.model.load_state_dict(state["model"])


class RandomBid(Stochastic):
    """A uniform valid bid."""

    def propose(self, env):
        return env.random_bids(1, self.generator)[0]


class Oracle(Stochastic):
    """Knows q: regret exactly zero where the bids are enumerated."""

    def __init__(self, generator: np.random.Generator, search: dict | None = None):
        super().__init__(generator)
        self.search = dict(search or {})

    def propose(self, env):
        best = best_bid(
            lambda bids: env.utility(bids) * env.accept_prob(bids), env, generator=self.generator, **self.search
        )
        return env.bids()[best] if np.ndim(best) == 0 else np.asarray(best)


class Trace:
    """What happened, a column an array (rounds,): counterpart, regret, value (u q), best (max u q), accepted, utility."""

    COLUMNS = ("counterpart", "regret", "value", "best", "accepted", "utility")

    def __init__(self, rounds: int):
        self.values, self.at = np.zeros((len(self.COLUMNS), rounds)), 0

    def add(self, *row: float) -> None:
        self.values[:, self.at] = row
        self.at += 1

    def __getitem__(self, column: str) -> np.ndarray:
        return self.values[self.COLUMNS.index(column), : self.at]

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values.copy(), "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values, self.at = np.array(state["values"]), state["at"]


def one_round(env: Environment, policy: Policy, trace: Trace) -> None:
    """One proposal and its answer; a negotiation that is over gives way to the next arrival."""
    if env.over:
        env.arrive()
    g = env.counterpart
    bid = policy.propose(env)
    x, u, q = env.features(bid[None])[0], float(env.utility(bid)), float(env.accept_prob(bid))
    best = env.optimum()
    gap = best - u * q
    y = env.respond(bid)
    trace.add(g, gap if gap > 1e-12 else 0.0, u * q, best, y, u * y)  # below: rounding, not regret
    policy.observe(env, bid, x, g, u, y)


def negotiate(env: Environment, policy: Policy, rounds: int) -> Trace:
    """`rounds` proposals from where the environment stands."""
    trace = Trace(rounds)
    for _ in range(rounds):
        one_round(env, policy, trace)
    return trace


def summary(trace: Trace) -> dict[str, float]:
    """Figures of one run: regret, its ratio of halves, acceptance, utility, and share of the optimum.

    tail_*: of the last quarter of the rounds. The slope of regret is that of a mean curve, see `slope`.
    """
    regret = trace["regret"]
    T = len(regret)
    half, tail = T // 2, max(T // 4, 1)
    first = regret[:half].sum()
    return {
        "regret": regret.sum(), "acceptance": trace["accepted"].mean(), "utility": trace["utility"].mean(),
        "tail_regret": regret[-tail:].mean(), "half_ratio": regret[half:].sum() / first if first > 0 else 0.0,
        "share": trace["value"].sum() / trace["best"].sum(), "tail_share": trace["value"][-tail:].sum() / trace["best"][-tail:].sum(),
    }  # fmt: skip


def slope(cumulative: np.ndarray) -> float:
    """Least-squares slope of ln Reg_t against ln t over the last decade, t in [T/10, T]: 1 is linear regret."""
    T = len(cumulative)
    t = np.unique(np.geomspace(max(T // 10, 1), T, 50).astype(int))
    return log_slope(t.tolist(), np.maximum(cumulative[t - 1], 1e-12).tolist())
