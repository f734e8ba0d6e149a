"""Races: milliseconds a round of NegUCB and its relatives, beside LinUCB of mabwiser where that is installed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from common.optional import installed
from common.race import race
from papers.neg_ucb import baselines, features
from papers.neg_ucb.acceptance import NegUCB
from papers.neg_ucb.kernel import ExactNegUCB

SIZES = (576, 1_000, 3_600)  # bids a round
PEERS = ("mabwiser",)
D = 9  # numbers that describe a bid, as in the resource allocation of the experiments


def racers(seed: int) -> dict[str, Any]:
    """Models with (ucb, update), each on 49 features; NegUCB with l = 2 is the one of the target: 2 ms at 1,000 bids."""
    generator = np.random.default_rng(seed)
    rff = features.RandomFourier(D, 48, 1.0, generator)
    nystrom = features.Nystrom(generator.normal(size=(400, D)) / np.sqrt(D), 48, 1.0)
    return {
        "NegUCB, rff m=48 l=2": NegUCB(rff, hidden=2, seed=seed),
        "NegUCB, nystrom m=48 l=2": NegUCB(nystrom, hidden=2, seed=seed),
        "hLinUCB": baselines.hlin_ucb(features.Linear(D)),
        "KernelUCB, rff m=48": baselines.lin_ucb(rff),
        "KernelUCB, exact, 200 rounds": ExactNegUCB(features.with_constant(lambda x, z: features.gaussian(x, z, 1.0))),
        "LinUCB": baselines.lin_ucb(features.Linear(D)),
    }


def peer_mabwiser(seed: int) -> Callable[[np.ndarray, int, float], None] | None:
    """A round of mabwiser's LinUCB with the same work: score all contexts by one arm, learn one answer. None where absent."""
    if not installed("mabwiser"):
        return None
    from mabwiser.mab import MAB, LearningPolicy

    mab = MAB(arms=["accept"], learning_policy=LearningPolicy.LinUCB(alpha=0.3, l2_lambda=1.0), seed=seed)
    mab.fit(decisions=["accept"], rewards=[0.0], contexts=np.zeros((1, D)))

    def one_round(x: np.ndarray, chosen: int, y: float) -> None:
        mab.predict_expectations(x)
        mab.partial_fit(decisions=["accept"], rewards=[y], contexts=x[[chosen]])

    return one_round


def bench(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """{"rounds": rows of common.race}: seconds of one round, scoring all bids and learning from one answer."""
    rounds = 10 if quick else 50
    rows: list[dict[str, Any]] = []
    for n in SIZES[:2] if quick else SIZES:
        generator = np.random.default_rng(n)
        x = generator.normal(size=(n, D)) / np.sqrt(D)
        y = (generator.random(10_000) < 0.5).astype(float)
        contestants: dict[str, Callable[[], None]] = {}
        for name, model in racers(seed=0).items():
            for t in range(200 if "exact" in name else 50):  # the exact form's cost grows with its rounds
                model.update(x[t % n], t % 8, y[t])
            contestants[name] = _turn(_round_of(model), x, y, rounds)
        if peer := peer_mabwiser(seed=0):
            contestants["LinUCB of mabwiser"] = _turn(peer, x, y, rounds)
        for row in race(contestants, repeats=3 if quick else 7):
            ms = {f"{what}_ms": 1e3 * row[f"{what}_s"] / rounds for what in ("median", "min", "max")}
            rows.append({"bids": n, "contestant": row["contestant"], **ms, "ratio": row["ratio"]})
        if not peer:
            rows.append(
                {"bids": n, "contestant": "LinUCB of mabwiser", "note": "not installed: pip install -e '.[bench]'"}
            )
    return {"rounds": rows}


def _round_of(model: Any) -> Callable[[np.ndarray, int, float], None]:
    def one_round(x: np.ndarray, chosen: int, y: float) -> None:
        model.ucb(x, chosen % 8)
        model.update(x[chosen], chosen % 8, y)

    return one_round


def _turn(
    one_round: Callable[[np.ndarray, int, float], None], x: np.ndarray, y: np.ndarray, rounds: int
) -> Callable[[], None]:
    """`rounds` rounds on end, going on in the stream where the last turn stopped."""
    stream = itertools.count()

    def turn() -> None:
        for t in itertools.islice(stream, rounds):
            one_round(x, t % len(x), y[t % len(y)])

    return turn
