"""Policies by name: from a method's entry in the config to what negotiates in an environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from common.rng import Rng
from papers.neg_ucb import baselines, features, heuristics
from papers.neg_ucb.acceptance import NegUCB
from papers.neg_ucb.environments.base import Environment
from papers.neg_ucb.negotiation import Optimistic, Oracle, Policy, RandomBid

KINDS = ("random", "oracle", "ridge", "online", "exact", "per_counterpart", "c2ucb", "cucb", "neural_ucb", "dqn",
         "concession", "tit_for_tat", "frequency")  # fmt: skip


def candidates(env: Environment, seed: int, n: int = 400) -> np.ndarray:
    """A sample of x as it comes in the first arrivals, at any of their proposals: (n, d), for the median distance and for landmarks."""
    generator, state = Rng(seed, "candidates").numpy, env.state_dict()
    rows = []
    for _ in range(20):
        if env.proposals > 1:  # late in an episode, too, and after a counter-bid: no answer is used for this
            env.rejections = int(generator.integers(env.proposals))
            env.counter = env.random_bids(1, generator)[0] if env.counters and env.rejections else None
        rows.append(env.features(env.random_bids(n // 20, generator)))
        env.over = True
        env.arrive()
    env.load_state_dict(state)
    return np.concatenate(rows)


def feature_map(env: Environment, kind: str, seed: int, m: int, length: float, stretch: float = 1.0):
    """The map of a method. length 0: the median distance; stretch: a factor of it."""
    sample = candidates(env, seed) if kind != "linear" else None
    if sample is not None:
        length = stretch * (length or features.median_length(sample))
    return features.make(
        kind,
        env.dim,
        generator=Rng(seed, "map", kind).numpy,
        m=m,
        length=length or None,
        bound=env.bound,
        candidates=sample,
    )


def make(entry: Mapping[str, Any], env: Environment, seed: int, task: Mapping[str, Any]) -> Policy:
    """Policy of a method. entry: {kind, map, ...} of `method_settings`; task: {length, m, hidden, every, search}.

    Raises ValueError for an unknown kind. Maps and states derive from `seed`: methods of a seed share their features.
    """
    options = dict(entry)
    kind = options.pop("kind")
    generator = Rng(seed, "policy", kind).numpy
    search = task.get("search", {})
    if kind == "random":
        return RandomBid(generator)
    if kind == "oracle":
        return Oracle(generator, search)
    if kind in ("concession", "frequency", "tit_for_tat"):
        cls = {
            "concession": heuristics.Concession,
            "frequency": heuristics.Frequency,
            "tit_for_tat": heuristics.TitForTat,
        }[kind]
        return cls(generator, **options)
    if kind in ("neural_ucb", "dqn"):
        from papers.neg_ucb import neural

        small = int(Rng(seed, "net").seed % 2**31)
        if kind == "dqn":
            return neural.DQN(env.dim, env.counterparts, generator, seed=small, **options)
        return Optimistic(neural.NeuralUCB(env.dim, env.counterparts, seed=small, **options), generator, search=search)
    epsilon, weight = options.pop("epsilon", 0.0), options.pop("counter_weight", 0.0)
    return Optimistic(
        model(kind, options, env, seed, task), generator, epsilon=epsilon, search=search, counter_weight=weight
    )


def model(kind: str, options: dict[str, Any], env: Environment, seed: int, task: Mapping[str, Any]):
    """An acceptance model by kind: ridge (all of `acceptance.NegUCB`), online, exact, per_counterpart, c2ucb, cucb."""
    options = dict(options)
    chosen = options.pop("map", "linear")
    if kind == "cucb":
        return baselines.CUCB(env.encoding, **options)
    if options.get("hidden") == "task":
        options["hidden"] = task["hidden"]
    alpha = options.pop("alpha", 0.3)
    if kind == "exact":
        length = task["length"] or features.median_length(candidates(env, seed))
        from papers.neg_ucb.kernel import ExactNegUCB

        kernel = features.with_constant(lambda x, z: features.gaussian(x, z, length))
        return ExactNegUCB(kernel, alpha_theta=alpha, alpha_h=alpha / 3, every=task["every"], seed=seed, **options)
    phi = feature_map(env, chosen, seed, task["m"], task["length"], options.pop("stretch", 1.0))
    if kind == "ridge":
        return NegUCB(phi, alpha_theta=alpha, alpha_h=alpha / 3, every=task["every"], seed=seed, **options)
    if kind == "online":
        from papers.neg_ucb.online import OnlineChoice

        by, lambdas, couplings = options.pop("by"), options.pop("lambdas"), options.pop("couplings")
        return OnlineChoice(
            {
                f"{coupling} {lam}": NegUCB(phi, alpha_theta=alpha, alpha_h=alpha / 3, every=task["every"], seed=seed,
                                            coupling=coupling, lambda_theta=lam, **options)
                for coupling in couplings
                for lam in lambdas
            },
            by,
            every=task["every"],
        )  # fmt: skip
    if kind == "per_counterpart":
        return baselines.PerCounterpart(
            lambda: baselines.lin_ucb(phi, alpha, every=task["every"], seed=seed, **options)
        )
    if kind == "c2ucb":
        return baselines.C2UCB(phi, env.encoding, alpha, every=task["every"], seed=seed, **options)
    raise ValueError(f"method kind {kind!r}: choose {', '.join(KINDS)}")
