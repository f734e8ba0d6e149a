"""What the paper compares with: pre- and postfiltering in several forms. Other libraries are in peers.py.

All work on a segment's label-sorted points, where a window is a range of ranks [s, e), and return ranks.
"""

from __future__ import annotations

import numpy as np

from papers.window_ann import executor
from papers.window_ann.beam import no_answers, scratch
from papers.window_ann.executor import Asked
from papers.window_ann.peers import inside
from papers.window_ann.segment import Segment
from papers.window_ann.vamana import Graph, search


def root_graph(segment: Segment) -> Graph:
    """The one graph over all points, as a graph by itself."""
    row = int(segment.layout.graph[0])
    return Graph(segment.G[row : row + len(segment.X)], int(segment.layout.entry[0]), segment.points.twins)


def postfilter_within(
    segment: Segment, Q: np.ndarray, S: np.ndarray, E: np.ndarray, k: int, budget: float
) -> tuple[np.ndarray, float]:
    """Postfiltering on the root's graph with the widest beam whose mean cost stays within `budget` distances, and no scan.

    Returns ranks (nq, k), -1 where too few of the window were met, and the mean cost. What a single index can do for the
    same work: found by bisection on the beam.
    """
    graph, low, high = root_graph(segment), 1, len(segment.X)
    best: tuple[np.ndarray, float] | None = None
    while low <= high:
        beam = (low + high) // 2
        ids, _, computed = search(graph, segment.X, Q, beam, beam)
        if computed.mean() <= budget:
            best = (ids, float(computed.mean()))
            low = beam + 1
        else:
            high = beam - 1
    if best is None:
        return np.full((len(Q), k), -1), 0.0
    ids, spent = best
    return inside(ids, S, E, k), spent


def incremental(
    segment: Segment, Q: np.ndarray, S: np.ndarray, E: np.ndarray, k: int, patience: int
) -> tuple[np.ndarray, np.ndarray]:
    """Incremental postfiltering on the root's graph (the iterator model that VBASE uses; this is not VBASE). Returns ranks, distances computed."""
    nq, asked, graphs = len(Q), Asked(Q, S, E), segment.graphs
    answers, size = no_answers(nq, k), max(1, -(-nq // segment.threads))

    def part(i: int) -> None:
        cut = slice(i, i + size)
        work = scratch(len(segment.X), len(segment.X), segment.G.shape[1])
        executor.incremental_part(segment.points, graphs, asked.part(cut), patience, answers.part(cut), work)

    segment.in_threads(part, range(0, nq, size))
    return answers.ids, answers.computed


def prefilter_blas(X: np.ndarray, norms: np.ndarray, Q: np.ndarray, S: np.ndarray, E: np.ndarray, k: int) -> np.ndarray:
    """Prefiltering by BLAS: one product with the window's slice, queries with the same window together, then a selection.

    norms: (n,) squared norms of X. Returns ranks (nq, k).
    """
    ids = np.full((len(Q), k), -1)
    _, which = np.unique(np.stack([S, E], 1), axis=0, return_inverse=True)
    order = np.argsort(which, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(which[order])) + 1):
        s, e = int(S[group[0]]), int(E[group[0]])
        for part in np.array_split(group, -(-len(group) * max(e - s, 1) // 20_000_000)):
            if s == e:
                continue
            distance = norms[s:e] - 2 * (Q[part] @ X[s:e].T)
            if e - s > k:
                near = np.argpartition(distance, k - 1, axis=1)[:, :k]
                near = np.take_along_axis(near, np.argsort(np.take_along_axis(distance, near, 1), axis=1), 1)
            else:
                near = np.argsort(distance, axis=1)
            ids[part, : near.shape[1]] = s + near
    return ids


def prefilter_scattered(
    X: np.ndarray, rows: np.ndarray, Q: np.ndarray, S: np.ndarray, E: np.ndarray, k: int
) -> np.ndarray:
    """Prefiltering as the paper's code does it: points are not in label order, so a window's rows are gathered, and all sorted.

    X: (n, d) in the caller's order; rows: (n,) the row of each rank. Returns ranks (nq, k).
    """
    ids = np.full((len(Q), k), -1)
    for i, (s, e) in enumerate(zip(S.tolist(), E.tolist(), strict=True)):
        distance = ((X[rows[s:e]] - Q[i]) ** 2).sum(axis=1)
        near = np.argsort(distance, kind="stable")[:k]
        ids[i, : len(near)] = s + near
    return ids
