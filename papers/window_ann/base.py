"""Other libraries' indices at the nodes, behind one interface, and the executor that uses them (plain Python, one query a time).

A base index is built from the rows of one node and searched with a beam; everything else (plans, doubling, merging) is
ours. The paper's own base, Vamana, has the compiled executor instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from common.optional import need


class BaseIndex(Protocol):
    """The nearest of the node's own rows."""

    def search(self, q: np.ndarray, beam: int) -> tuple[np.ndarray, np.ndarray, int]:
        """At most `beam` row numbers, nearest first, their squared distances, and how many distances were computed."""
        ...


class Brute:
    """Exact: every method on it is exact, which is what the tests of the methods stand on."""

    def __init__(self, X: np.ndarray):
        self.X = X

    def search(self, q, beam):
        distance = ((self.X - q) ** 2).sum(axis=1)
        order = np.argsort(distance, kind="stable")[:beam]
        return order, distance[order], len(self.X)


class Hnswlib:
    """HNSW of the library hnswlib. M: links a point; ef_construction: build beam."""

    def __init__(self, X: np.ndarray, M: int = 16, ef_construction: int = 100, seed: int = 0):
        hnswlib = need("hnswlib")
        self.n, self.M = len(X), M
        self.index = hnswlib.Index("l2", X.shape[1])
        self.index.init_index(len(X), M=M, ef_construction=ef_construction, random_seed=seed)
        self.index.add_items(X, np.arange(len(X)), num_threads=1)

    def search(self, q, beam):
        beam = min(beam, self.n)
        self.index.set_ef(beam)
        try:
            ids, distances = self.index.knn_query(q[None], beam, num_threads=1)
        except RuntimeError:  # hnswlib cannot return beam points where its graph does not reach so many
            return np.empty(0, np.int64), np.empty(0, np.float32), 0
        return ids[0].astype(np.int64), distances[0], beam * self.M  # the library does not count: an estimate


class Faiss:
    """HNSW of the library faiss. M: links a point; ef_construction: build beam."""

    def __init__(self, X: np.ndarray, M: int = 16, ef_construction: int = 100, seed: int = 0):
        self.faiss = need("faiss")
        self.n, self.M = len(X), M
        self.index = self.faiss.IndexHNSWFlat(X.shape[1], M)
        self.index.hnsw.efConstruction = ef_construction
        self.index.add(X)

    def search(self, q, beam):
        beam = min(beam, self.n)
        distances, ids = self.index.search(q[None], beam, params=self.faiss.SearchParametersHNSW(efSearch=beam))
        found = ids[0] >= 0
        return ids[0][found], distances[0][found], beam * self.M  # an estimate, as above


BASES: dict[str, Any] = {"brute": Brute, "hnswlib": Hnswlib, "faiss": Faiss}


def search_one(
    X, indices: dict[int, BaseIndex], layout, q, pieces, max_beam: int, k: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Carry out one plan, as `executor.carry_out` does. Returns ranks, squared distances (nearest first, at most k), distances computed."""
    alive = np.diff(layout.live) > 0
    ranks, distances, computed = [np.empty(0, np.int64)], [np.empty(0, np.float32)], 0

    def scan(lo: int, hi: int) -> int:
        ranks.append(lo + np.flatnonzero(alive[lo:hi]))
        distances.append(((X[ranks[-1]] - q) ** 2).sum(axis=1))
        return len(ranks[-1])

    for node, lo, hi, beam, multiply in pieces.tolist():
        if node not in indices:  # SCAN, or a node that has no index
            computed += scan(lo, hi)
            continue
        first = int(layout.start[node])
        widest = min(max_beam, int(layout.end[node]) - first)
        want = min(k, int(layout.live[hi] - layout.live[lo]))
        found, cost = postfilter(
            lambda b, node=node: indices[node].search(q, b),
            first,
            lo,
            hi,
            alive,
            min(max(beam, 1), widest),
            multiply,
            widest,
            want,
        )
        computed += cost
        if found is None:
            computed += scan(lo, hi)
        else:
            ranks.append(found[0][:want])
            distances.append(found[1][:want])
    rank, distance = np.concatenate(ranks), np.concatenate(distances)
    order = np.lexsort((rank, distance))[:k]
    return rank[order], distance[order], computed


def postfilter(search: Callable, first: int, lo: int, hi: int, alive, beam: int, multiply: int, widest: int, want: int):
    """The doubling routine. Returns ((ranks, squared distances) or None where `want` were not found, distances computed)."""
    computed = 0
    if want == 0:
        return (np.empty(0, np.int64), np.empty(0, np.float32)), 0
    while True:
        ids, distances, cost = search(beam)
        ranks = first + ids
        keep = (ranks >= lo) & (ranks < hi)
        keep[keep] = alive[ranks[keep]]
        computed += cost
        if keep.sum() >= want or beam == widest:
            break
        beam = min(2 * beam, widest)
    final = min(multiply * beam, widest)
    if keep.sum() >= want and final > beam:
        return postfilter(search, first, lo, hi, alive, final, 1, final, want)[0], computed + cost
    return ((ranks[keep], distances[keep]) if keep.sum() >= want else None), computed
