"""What a graph can do, measured: how many of the r nearest a search finds that expands `b` points, and what it costs.

One search of beam b tells the recall at every r. From these curves come the beams that the planner uses (they do not
depend on k) and the check that every graph passes when it is built.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from papers.window_ann.beam import as_key, beam_search, insert, key_distance, key_id, scratch, squared
from papers.window_ann.compiled import jit

SAME = np.float32(1 + 1e-6)  # of two sums of the same numbers


class Curve(NamedTuple):
    """found: (beams, ranks) share of the r nearest, averaged over queries; outer: of the farther half of them; cost: (beams,) distances;
    reach: (nq, ranks) squared distance to the r-th nearest; apart: how far, in ranks over the node's size, the 20 nearest are from one another; gather: (2,)
    how many of the nearest hold ten of a window of a half and a quarter of the node around the query's own rank, over ten.
    """

    found: np.ndarray
    outer: np.ndarray
    cost: np.ndarray
    reach: np.ndarray
    apart: float
    gather: np.ndarray


@jit
def _nearest(X, place, inside, q, top, most):
    """The distances of the `most` nearest points of a graph into top; returns how many there are."""
    size = 0
    for i in range(place.size):
        if inside[i]:
            size, _ = insert(top, size, most, as_key(squared(X, place.first + i, q), i))
    return size


@jit
def _curve(X, G, place, inside, Q, home, beams, ranks, sums, reach, work):
    """Sums over the queries into found, outer (beams, ranks), cost (beams,), apart (1,) and gather (2,)."""
    found, outer, cost, apart, gather = sums
    most = ranks[-1]
    top = np.empty(most + 1, np.uint64)
    for i in range(len(Q)):
        there = _nearest(X, place, inside, Q[i], top, most)
        for a in range(len(ranks)):
            reach[i, a] = key_distance(top[min(ranks[a], there) - 1])
        for t in range(1, min(20, there)):
            apart[0] += abs(key_id(top[t]) - key_id(top[0])) / (place.size * (min(20, there) - 1))
        for share in range(2 if len(home) > 0 else 0):
            width = place.size >> (share + 1)
            for offset in range(1, 4):
                lo = max(0, min(place.size - width, home[i] - width * offset // 4))
                seen = t = 0
                while t < there and seen < 10:
                    seen += lo <= key_id(top[t]) and key_id(top[t]) < lo + width
                    t += 1
                gather[share] += t * 10 / max(seen, 1) / 30
        for b in range(len(beams)):
            size, computed, _ = beam_search(X, G, place, Q[i], 2 * beams[b] + 16, beams[b], work)
            cost[b] += computed
            t = half = 0
            for a in range(len(ranks)):
                r = min(ranks[a], there)
                limit = key_distance(top[r - 1]) * SAME
                while t < size and t < r and key_distance(work.keys[t]) <= limit:
                    t += 1
                found[b, a] += t / r
                middle = r // 2
                half = 0
                if middle > 0:
                    limit = key_distance(top[middle - 1]) * SAME
                    while half < size and half < middle and key_distance(work.keys[half]) <= limit:
                        half += 1
                outer[b, a] += min(1.0, (t - half) / (r - middle))


def curve(
    X, G, place, inside: np.ndarray, Q: np.ndarray, beams: np.ndarray, ranks: np.ndarray, home: np.ndarray | None = None
) -> Curve:
    """The curve of one graph. inside: (size,) bool, its points that are in the graph; Q: (nq, d), not among them; home: their own ranks."""
    table = (len(beams), len(ranks))
    sums = np.zeros(table), np.zeros(table), np.zeros(len(beams)), np.zeros(1), np.zeros(2)
    reach = np.zeros((len(Q), len(ranks)))
    work = scratch(place.size, 2 * int(beams[-1]) + 16, G.shape[1])
    own = np.empty(0, np.int64) if home is None else home.astype(np.int64)
    _curve(X, G, place, inside, np.ascontiguousarray(Q), own, beams, ranks, sums, reach, work)
    found, outer, cost, apart, gather = (total / len(Q) for total in sums)
    return Curve(found, outer, cost, reach, float(apart[0]), gather if home is not None else np.array([2.0, 4.0]))


@jit
def _kth(X, place, inside, rows, k, out):
    top = np.empty(k + 1, np.uint64)
    for t in range(len(rows)):
        there = _nearest(X, place, inside, X[rows[t]], top, k)
        out[t] = np.sqrt(key_distance(top[there - 1]))


def distance_to(X, place, inside: np.ndarray, rows: np.ndarray, k: int) -> np.ndarray:
    """From each of the rows to its k-th neighbour in a graph (or the last there is), itself counted: (rows, 1)."""
    out = np.empty(len(rows))
    _kth(X, place, inside, rows, k, out)
    return out[:, None]
