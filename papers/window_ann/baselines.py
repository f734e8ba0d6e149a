"""What the paper compares with, and what a user would reach for: pre- and postfiltering in several forms, and two libraries.

All work on a segment's label-sorted points, where a window is a range of ranks [s, e), and return ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from papers.window_ann import executor
from papers.window_ann.base import need
from papers.window_ann.beam import scratch
from papers.window_ann.segment import Segment
from papers.window_ann.vamana import Graph, search


def root_graph(segment: Segment) -> Graph:
    """The one graph over all points, as a graph by itself."""
    row = int(segment.layout.graph[0])
    return Graph(segment.G[row : row + len(segment.X)], int(segment.layout.entry[0]))


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
    ranks = np.full((len(Q), k), -1)
    for i, row in enumerate(ids):
        inside = row[(row >= S[i]) & (row < E[i])][:k]
        ranks[i, : len(inside)] = inside
    return ranks, spent


def incremental(
    segment: Segment, Q: np.ndarray, S: np.ndarray, E: np.ndarray, k: int, patience: int
) -> tuple[np.ndarray, np.ndarray]:
    """Incremental postfiltering on the root's graph (the iterator model that VBASE uses; this is not VBASE). Returns ranks, distances computed."""
    nq = len(Q)
    ids, distances, computed = (
        np.full((nq, k), -1, np.int64),
        np.full((nq, k), np.inf, np.float32),
        np.zeros(nq, np.int64),
    )
    work = scratch(len(segment.X), len(segment.X), segment.G.shape[1])
    executor.incremental_part(segment.X, segment.G, segment.layout, Q, S, E, patience, ids, distances, computed, work)
    return ids, computed


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


def faiss_range(X: np.ndarray, kind: str = "hnsw", threads: int = 1, **options: Any) -> Callable:
    """faiss with an IDSelectorRange on the sorted ids, which is the window exactly. kind: flat | hnsw | ivf.

    hnsw: M, ef_construction, searched with efSearch; ivf: nlist, searched with nprobe. Returns search(Q, S, E, k, setting).
    """
    faiss = need("faiss", "faiss-cpu")
    faiss.omp_set_num_threads(threads)
    d = X.shape[1]
    if kind == "flat":
        index = faiss.IndexFlatL2(d)
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(d, options.get("M", 16))
        index.hnsw.efConstruction = options.get("ef_construction", 100)
    else:
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(d), d, options.get("nlist", int(len(X) ** 0.5)))
        index.train(X)
    index.add(X)

    def find(Q: np.ndarray, S: np.ndarray, E: np.ndarray, k: int, setting: int) -> np.ndarray:
        ids = np.empty((len(Q), k), np.int64)
        for i in range(len(Q)):
            selector = faiss.IDSelectorRange(int(S[i]), int(E[i]))
            if kind == "hnsw":
                parameters = faiss.SearchParametersHNSW(efSearch=setting, sel=selector)
            elif kind == "ivf":
                parameters = faiss.SearchParametersIVF(nprobe=setting, sel=selector)
            else:
                parameters = faiss.SearchParameters(sel=selector)
            ids[i] = index.search(Q[i : i + 1], k, params=parameters)[1][0]
        return ids

    return find


def hnswlib_filter(X: np.ndarray, threads: int = 1, M: int = 16, ef_construction: int = 100, seed: int = 0) -> Callable:
    """hnswlib with its filter callback. Returns search(Q, S, E, k, ef); where fewer than k are found the row is all -1."""
    hnswlib = need("hnswlib", "hnswlib (it compiles with a C++ compiler)")
    index = hnswlib.Index("l2", X.shape[1])
    index.init_index(len(X), M=M, ef_construction=ef_construction, random_seed=seed)
    index.add_items(X, np.arange(len(X)), num_threads=threads)

    def find(Q: np.ndarray, S: np.ndarray, E: np.ndarray, k: int, ef: int) -> np.ndarray:
        index.set_ef(ef)
        ids = np.full((len(Q), k), -1)
        for i, (s, e) in enumerate(zip(S.tolist(), E.tolist(), strict=True)):
            try:
                ids[i] = index.knn_query(Q[i : i + 1], k, num_threads=1, filter=lambda label, s=s, e=e: s <= label < e)[
                    0
                ][0]
            except RuntimeError:  # it refuses to return fewer than k
                continue
        return ids

    return find


def usearch_post(X: np.ndarray, threads: int = 1, M: int = 16, ef_construction: int = 100) -> Callable:
    """usearch, then dropping what lies outside. Returns search(Q, S, E, k, candidates)."""
    usearch = need("usearch.index", "usearch")
    index = usearch.Index(ndim=X.shape[1], metric="l2sq", connectivity=M, expansion_add=ef_construction)
    index.add(np.arange(len(X)), X, threads=threads)

    def find(Q: np.ndarray, S: np.ndarray, E: np.ndarray, k: int, candidates: int) -> np.ndarray:
        index.expansion_search = candidates
        keys = np.asarray(index.search(Q, candidates, threads=threads).keys).astype(np.int64)
        ids = np.full((len(Q), k), -1)
        for i, row in enumerate(keys):
            inside = row[(row >= S[i]) & (row < E[i])][:k]
            ids[i, : len(inside)] = inside
        return ids

    return find
