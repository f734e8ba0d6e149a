"""Bid oracles: maximise a score over the valid bids of an environment.

The score u(b) clip(U(b), 0, 1) is a product of two functions of the bid, so even where both are linear in it there is no exact
dynamic programme over issues: small sets are enumerated, large ones searched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from papers.neg_ucb.environments.base import Environment

ENUMERABLE = 200_000  # more valid bids than this are not enumerated
CHUNK = 8_192  # bids scored at once


def random_argmax(values: np.ndarray, generator: np.random.Generator) -> int:
    """Index of the largest value, uniform among ties. Clipped scores tie massively: the first index would end exploration."""
    best = np.flatnonzero(values >= values.max() - 1e-12)
    return int(best[0] if len(best) == 1 else best[generator.integers(len(best))])


def checked(score: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """The score, in chunks, refusing NaN."""

    def scored(bids: np.ndarray) -> np.ndarray:
        parts = [np.asarray(score(bids[at : at + CHUNK]), float) for at in range(0, len(bids), CHUNK)]
        values = np.concatenate(parts) if len(parts) != 1 else parts[0]
        if np.isnan(values).any():
            raise ValueError(
                f"score of bid {bids[int(np.isnan(values).argmax())].tolist()} is NaN: check the utilities and the features"
            )
        return values

    return scored


def best_bid(score: Callable[[np.ndarray], np.ndarray], env: Environment, method: str = "enumerate", *, generator: np.random.Generator | None = None,
             restarts: int = 8, steps: int = 100, samples: int = 1000) -> int | np.ndarray:  # fmt: skip
    """The bid with the largest score(bids (n, k)) -> (n,): an index into env.bids() (enumerate) or a bid (k,).

    enumerate  all valid bids, at most ENUMERABLE; ties are broken at random
    local      steepest ascent over env.neighbours from the emptiest bid and `restarts` random ones, at most `steps` moves each
    sample     the best of `samples` random valid bids
    Raises ValueError for an empty set of bids, a NaN score, or a set too large to enumerate.
    """
    generator = generator if generator is not None else np.random.default_rng(0)
    scored = checked(score)
    if env.n_bids == 0:
        raise ValueError("there is no valid bid to choose from")
    if method == "enumerate":
        if env.n_bids > ENUMERABLE:
            raise ValueError(
                f"{env.n_bids:,} valid bids are too many to enumerate (at most {ENUMERABLE:,}): use method local or sample"
            )
        return random_argmax(scored(env.bids()), generator)
    if method == "sample":
        bids = env.random_bids(samples, generator)
        return bids[random_argmax(scored(bids), generator)]
    if method != "local":
        raise ValueError(f"method is {method!r}: choose enumerate, local or sample")
    return _local(scored, env, generator, restarts, steps)


def _local(
    scored: Callable[[np.ndarray], np.ndarray],
    env: Environment,
    generator: np.random.Generator,
    restarts: int,
    steps: int,
) -> np.ndarray:
    """Steepest ascent of all starts side by side."""
    at = np.concatenate([env.first_bid()[None], env.random_bids(restarts, generator)])  # (s, k)
    value = scored(at)
    climbing = np.arange(len(at))
    for _ in range(steps):
        around, owner = env.neighbours(at[climbing])  # (n, k) bids, (n,) which start each belongs to
        if not len(around):
            break
        values = scored(around)
        best = np.full(len(climbing), -np.inf)
        np.maximum.at(best, owner, values)
        better = best > value[climbing] + 1e-12
        if not better.any():
            break
        order = np.lexsort(
            (generator.random(len(values)), -values, owner)
        )  # the best neighbour of each start first, ties at random
        first = order[np.searchsorted(owner[order], np.arange(len(climbing)))]
        moved = climbing[better]
        at[moved], value[moved] = around[first[better]], values[first[better]]
        climbing = moved
    return at[random_argmax(value, generator)]
