"""Races: microseconds a round of NegUCB and its parts, beside LinUCB of mabwiser and contextualbandits where they are installed.

`bench(quick)` returns tables as rows; medians over interleaved repeats, one thread, same stream for all. Nothing here gates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from papers.neg_ucb import baselines, features
from papers.neg_ucb.acceptance import NegUCB
from papers.neg_ucb.kernel import ExactNegUCB

SIZES = (576, 1_000, 3_600)  # bids a round


def racers(d: int, seed: int) -> dict[str, Any]:
    """Models with (ucb, update), each on 49 features; NegUCB with l = 2 is the one of the target: 2 ms at 1,000 bids."""
    rng = np.random.default_rng(seed)
    rff = features.RandomFourier(d, 48, 1.0, rng)
    nystrom = features.Nystrom(rng.normal(size=(400, d)) / np.sqrt(d), 48, 1.0)
    return {
        "NegUCB, rff m=48 l=2": NegUCB(rff, hidden=2, seed=seed),
        "NegUCB, nystrom m=48 l=2": NegUCB(nystrom, hidden=2, seed=seed),
        "hLinUCB": baselines.hlin_ucb(features.Linear(d)),
        "KernelUCB, rff m=48": baselines.lin_ucb(rff),
        "KernelUCB, exact, 200 rounds": ExactNegUCB(features.with_constant(lambda x, z: features.gaussian(x, z, 1.0))),
        "LinUCB": baselines.lin_ucb(features.Linear(d)),
    }


def peer_mabwiser(d: int, n: int, seed: int) -> Callable[[np.ndarray, int, float], None] | None:
    """A round of mabwiser's LinUCB with the same work: score n contexts by one shared arm, learn one answer. None where absent."""
    try:
        from mabwiser.mab import MAB, LearningPolicy
    except ImportError:
        return None
    mab = MAB(arms=["accept"], learning_policy=LearningPolicy.LinUCB(alpha=0.3, l2_lambda=1.0), seed=seed)
    mab.fit(decisions=["accept"], rewards=[0.0], contexts=np.zeros((1, d)))

    def one_round(x: np.ndarray, chosen: int, y: float) -> None:
        mab.predict_expectations(x)
        mab.partial_fit(decisions=["accept"], rewards=[y], contexts=x[[chosen]])

    return one_round


def bench(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """{"rounds": [{method, bids, ms, spread}]}: median milliseconds of a round (score all bids, learn one), and (max - min)/median of repeats."""
    d, repeats, rounds = 9, 3 if quick else 7, 10 if quick else 50
    rows = []
    for n in SIZES[:2] if quick else SIZES:
        rng = np.random.default_rng(n)
        x = rng.normal(size=(n, d)) / np.sqrt(d)
        y = (rng.random(10_000) < 0.5).astype(float)
        runs: dict[str, Callable[[np.ndarray, int, float], None]] = {}
        for name, model in racers(d, seed=0).items():

            def one_round(x: np.ndarray, chosen: int, answer: float, model: Any = model) -> None:
                model.ucb(x, chosen % 8)
                model.update(x[chosen], chosen % 8, answer)

            for t in range(200 if "exact" in name else 50):  # warm: the exact form's cost grows with its rounds
                model.update(x[t % n], t % 8, y[t])
            runs[name] = one_round
        if peer := peer_mabwiser(d, n, seed=0):
            runs["LinUCB of mabwiser"] = peer
        times: dict[str, list[float]] = {name: [] for name in runs}
        for repeat in range(repeats):
            for name, one in runs.items():  # interleaved
                start = time.perf_counter()
                for t in range(rounds):
                    one(x, (repeat * rounds + t) % n, y[t])
                times[name].append((time.perf_counter() - start) / rounds * 1e3)
        for name, spent in times.items():
            middle = float(np.median(spent))
            rows.append({"method": name, "bids": n, "ms": middle, "spread": (max(spent) - min(spent)) / middle})
    return {"rounds": rows}
