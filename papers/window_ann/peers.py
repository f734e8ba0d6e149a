"""Other libraries as contenders: an index of the label-sorted points, asked for windows of ranks [s, e).

Each maker returns a Peer. Builds use `threads`; searches are given theirs. A library that is not installed is a UserError.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from common.optional import need

Find = Callable[[np.ndarray, np.ndarray, np.ndarray, int, int], np.ndarray]  # (Q, S, E, k, setting) -> ranks (nq, k)


class Peer(NamedTuple):
    """find(Q, S, E, k, setting, threads) -> ranks (nq, k) int64, -1 where fewer were found; bytes: of its index, points and all."""

    find: Callable[..., np.ndarray]
    bytes: int


def in_parts(find: Find) -> Callable[..., np.ndarray]:
    """`find`, with the batch cut among `threads` Python threads: for libraries that take one window a call."""

    def spread(Q, S, E, k, setting, threads: int = 1) -> np.ndarray:
        if threads == 1:
            return find(Q, S, E, k, setting)
        size = max(1, -(-len(Q) // (4 * threads)))
        cuts = [slice(i, i + size) for i in range(0, len(Q), size)]
        with ThreadPoolExecutor(threads) as pool:
            return np.concatenate(list(pool.map(lambda cut: find(Q[cut], S[cut], E[cut], k, setting), cuts)))

    return spread


def faiss_range(X: np.ndarray, kind: str = "hnsw", threads: int = 1, M: int = 16, ef_construction: int = 100, nlist: int | None = None) -> Peer:  # fmt: skip
    """faiss with an IDSelectorRange on the sorted ids, which is the window exactly. kind: flat | hnsw | ivf.

    The setting is efSearch of hnsw, nprobe of ivf (nlist: sqrt(n) if None), nothing for flat.
    """
    faiss = need("faiss")
    d = X.shape[1]
    if kind == "flat":
        index = faiss.IndexFlatL2(d)
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(d, M)
        index.hnsw.efConstruction = ef_construction
    else:
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(d), d, nlist or int(len(X) ** 0.5))
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        if kind == "ivf":
            index.train(X)
        index.add(X)
    finally:
        faiss.omp_set_num_threads(before)

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

    return Peer(in_parts(find), len(faiss.serialize_index(index)))


def _hnswlib(X: np.ndarray, threads: int, M: int, ef_construction: int, seed: int):
    hnswlib = need("hnswlib")
    index = hnswlib.Index("l2", X.shape[1])
    index.init_index(len(X), M=M, ef_construction=ef_construction, random_seed=seed)
    index.add_items(X, np.arange(len(X)), num_threads=threads)
    return index


def hnswlib_filter(X: np.ndarray, threads: int = 1, M: int = 16, ef_construction: int = 100, seed: int = 0) -> Peer:
    """hnswlib with its filter, which is a Python function that it calls for the points it meets: one thread, whatever is given.

    The setting is ef. A row is all -1 where fewer than k were found: the library refuses to return less.
    """
    index = _hnswlib(X, threads, M, ef_construction, seed)

    def find(Q: np.ndarray, S: np.ndarray, E: np.ndarray, k: int, ef: int, threads: int = 1) -> np.ndarray:
        index.set_ef(ef)
        ids = np.full((len(Q), k), -1)
        for i, (s, e) in enumerate(zip(S.tolist(), E.tolist(), strict=True)):
            try:
                near = index.knn_query(Q[i : i + 1], k, num_threads=1, filter=lambda rank, s=s, e=e: s <= rank < e)
            except RuntimeError:
                continue
            ids[i] = near[0][0]
        return ids

    return Peer(find, index.index_file_size())


def hnswlib_post(X: np.ndarray, threads: int = 1, M: int = 16, ef_construction: int = 100, seed: int = 0) -> Peer:
    """hnswlib without a filter, then dropping what lies outside; the setting is how many candidates it is asked for."""
    index = _hnswlib(X, threads, M, ef_construction, seed)

    def find(Q: np.ndarray, S: np.ndarray, E: np.ndarray, k: int, candidates: int, threads: int = 1) -> np.ndarray:
        candidates = min(candidates, len(X))
        index.set_ef(candidates)
        return inside(index.knn_query(Q, candidates, num_threads=threads)[0].astype(np.int64), S, E, k)

    return Peer(find, index.index_file_size())


def usearch_post(X: np.ndarray, threads: int = 1, M: int = 16, ef_construction: int = 100) -> Peer:
    """usearch, then dropping what lies outside; the setting is how many candidates it is asked for."""
    usearch = need("usearch.index")
    index = usearch.Index(ndim=X.shape[1], metric="l2sq", dtype="f32", connectivity=M, expansion_add=ef_construction)
    index.add(np.arange(len(X)), X, threads=threads)

    def find(Q: np.ndarray, S: np.ndarray, E: np.ndarray, k: int, candidates: int, threads: int = 1) -> np.ndarray:
        index.expansion_search = candidates
        keys = (
            np.asarray(index.search(Q, candidates, threads=threads).keys).astype(np.int64).reshape(len(Q), -1)
        )  # one query: a flat row
        return inside(keys, S, E, k)

    return Peer(find, index.memory_usage)


def inside(ranks: np.ndarray, S: np.ndarray, E: np.ndarray, k: int) -> np.ndarray:
    """The first k of each row that lie in its window, -1 after them. ranks: (nq, candidates), nearest first."""
    found = np.full((len(ranks), k), -1)
    for i, row in enumerate(ranks):
        kept = row[(row >= S[i]) & (row < E[i])][:k]
        found[i, : len(kept)] = kept
    return found
