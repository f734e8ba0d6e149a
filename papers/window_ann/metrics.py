"""How good an answer is, and which of several settings are worth keeping."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def recall(ids: np.ndarray, truth: np.ndarray, k: int | None = None) -> float:
    """The part of the true k nearest that was found, over all queries.

    ids, truth: (nq, >= k) int64, -1 for missing. A query whose window has w < k points counts w of them: it is divided by
    min(k, w), and queries with an empty window are left out. 1.0 where every window is empty.
    """
    k = k or truth.shape[1]
    ids, truth = ids[:, :k], truth[:, :k]
    wanted = (truth >= 0).sum(axis=1)
    found = ((truth[:, :, None] == ids[:, None, :]) & (truth >= 0)[:, :, None]).any(axis=2).sum(axis=1)
    some = wanted > 0
    return float((found[some] / wanted[some]).mean()) if some.any() else 1.0


def recall_by_distance(distances: np.ndarray, true: np.ndarray) -> float:
    """`recall` where rows may be equal: found is what is no farther than the k-th of the true distances. (nq, k), inf for missing."""
    there = np.isfinite(true)
    limit = np.where(there, true, -np.inf).max(axis=1, keepdims=True)
    found = (np.isfinite(distances) & (distances <= limit * (1 + 1e-5) + 1e-9)).sum(axis=1)
    wanted = there.sum(axis=1)
    return float((np.minimum(found, wanted)[wanted > 0] / wanted[wanted > 0]).mean()) if wanted.any() else 1.0


def pareto(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (quality, speed) points that no other beats in both, by rising quality. Larger is better in both."""
    front: list[tuple[float, float]] = []
    best = -np.inf
    for quality, speed in sorted(set(points), reverse=True):
        if speed > best:
            front.append((quality, speed))
            best = speed
    return front[::-1]


def cost_at(points: Iterable[tuple[float, float]], level: float) -> float:
    """The least cost of the (recall, cost) points with recall >= level; NaN where none reaches it."""
    return min((cost for quality, cost in points if quality >= level), default=float("nan"))
