"""Beam search on a graph (DiskANN's greedy search), and the candidates it sorts.

A graph covers m consecutive rows of one shared matrix: X[first : first + m]. Its edges are rows of one shared array,
G[row : row + m] (R columns, local ids, -1 after the last). So a thousand graphs are two arrays and no copies.

A candidate is one uint64: the bits of its squared distance (a non-negative float32 sorts as its bits do), its local id, and
a flag, `distance << 32 | id << 1 | expanded`. One comparison then orders by distance and breaks ties by id.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from papers.window_ann.compiled import jit, prefetch

LOW = np.uint64(0xFFFFFFFF)
ONE = np.uint64(1)
HALF = np.uint64(32)


class Place(NamedTuple):
    """Where one graph lies: its points are X[first : first + size], its edges G[row : row + size]; entry: a local id."""

    first: int
    size: int
    row: int
    entry: int


class Scratch(NamedTuple):
    """What one thread needs to search: `seen` (m,) int32 holds the number of the search that last saw a point."""

    seen: np.ndarray
    stamp: np.ndarray  # (1,) int32: the number of the present search
    keys: np.ndarray  # (beam + 1,) uint64: the frontier
    visited: np.ndarray  # uint64: the expanded points of one search, where they are wanted
    fresh: np.ndarray  # (R,) int32
    pool: np.ndarray  # (beam + 1,) uint64: candidates that the frontier has no room for


def scratch(m: int, beam: int, R: int, visited: int = 0) -> Scratch:
    return Scratch(
        np.zeros(m, np.int32),
        np.zeros(1, np.int32),
        np.empty(beam + 1, np.uint64),
        np.empty(visited, np.uint64),
        np.empty(R, np.int32),
        np.empty(beam + 1, np.uint64),
    )


class Answers(NamedTuple):
    """ids: (nq, k) int64, -1 missing; distances: (nq, k) float32, inf missing; computed: (nq,) int64 distances; chosen: (nq,) int64 methods."""

    ids: np.ndarray
    distances: np.ndarray
    computed: np.ndarray
    chosen: np.ndarray

    def part(self, cut: slice) -> Answers:
        return Answers(*(array[cut] for array in self))


def no_answers(nq: int, k: int, method: int = 0) -> Answers:
    """Answers that nothing was written into yet."""
    return Answers(
        np.full((nq, k), -1, np.int64),
        np.full((nq, k), np.inf, np.float32),
        np.zeros(nq, np.int64),
        np.full(nq, method, np.int64),
    )


# ---- distances and candidates ----------------------------------------------------------------------------------------


@jit
def squared(X, i, q):
    """||X[i] - q||^2 in float32."""
    total = np.float32(0)
    for j in range(q.shape[0]):
        t = X[i, j] - q[j]
        total += t * t
    return total


@jit
def squared_between(X, i, j):
    """||X[i] - X[j]||^2 in float32."""
    total = np.float32(0)
    for c in range(X.shape[1]):
        t = X[i, c] - X[j, c]
        total += t * t
    return total


@jit
def as_key(distance, i):
    return (np.uint64(np.float32(distance).view(np.uint32)) << HALF) | (np.uint64(i) << ONE)


@jit
def key_id(key):
    return np.int64((key & LOW) >> ONE)


@jit
def key_distance(key):
    return np.uint32(key >> HALF).view(np.float32)


@jit
def insert(keys, size, capacity, key):
    """Put `key` into the ascending keys[:size], dropping the largest beyond `capacity`. Returns (new size, its place).

    Most candidates that enter at all enter near the end, and one loop that shifts until the place is found is easier for
    a processor to foresee than a binary search: faster even for a thousand keys.
    """
    if size == capacity:
        if size == 0 or key >= keys[size - 1]:
            return size, size
        size -= 1
    place = size
    while place > 0 and keys[place - 1] >= key:
        keys[place] = keys[place - 1]
        place -= 1
    keys[place] = key
    return size + 1, place


# ---- search ----------------------------------------------------------------------------------------------------------


@jit
def beam_search(X, G, place, q, beam, limit, work, k=0, cut=0.0, most=1 << 62):
    """Greedy search with a frontier of `beam` points (DiskANN's Algorithm 1, where `limit` is the beam).

    Repeats: expand the closest unexpanded of the first `limit` frontier points; a new neighbour enters while it is closer
    than the worst of a full frontier; where cut > 0, what is farther than cut * (distance of the (k+1)-th) leaves (squared
    distances, as the official code). It ends, too, once it has computed `most` distances. Returns (frontier size, distances
    computed, points expanded); the frontier is work.keys, closest first.
    """
    keys, seen, visited, fresh = work.keys, work.seen, work.visited, work.fresh
    first, row, entry, size_ = place.first, place.row, place.entry, np.uint32(place.size)
    work.stamp[0] += 1
    stamp = work.stamp[0]
    seen[entry] = stamp
    keys[0] = as_key(squared(X, first + entry, q), entry)
    size, computed, expanded, at = 1, 1, 0, 0
    while at < min(size, limit) and computed < most:
        key = keys[at]
        keys[at] = key | ONE
        if expanded < len(visited):
            visited[expanded] = key
        expanded += 1
        u = row + key_id(key)
        number = 0
        for t in range(G.shape[1]):
            v = G[u, t]
            if np.uint32(v) >= size_:  # -1 after the last edge; nothing beyond the graph, whatever a damaged file says
                break
            if seen[v] != stamp:
                seen[v] = stamp
                fresh[number] = v
                number += 1
                prefetch(X, first + v)
        computed += number
        at += 1
        while at < size and keys[at] & ONE:
            at += 1
        if at < size:  # the next to be expanded, unless something closer comes
            prefetch(G, row + key_id(keys[at]))
        for t in range(number):
            v = np.int64(fresh[t])
            size, new = insert(keys, size, beam, as_key(squared(X, first + v, q), v))
            if new <= at:
                at = new
                prefetch(G, row + v)
        if cut > 0 and size > k:
            widest = np.float32(cut) * key_distance(keys[k])
            while size > k + 1 and key_distance(keys[size - 1]) > widest:
                size -= 1
    return size, computed, expanded
