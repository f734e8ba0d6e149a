"""The Vamana graph (DiskANN; sec. 6 of the window paper uses ParlayANN's): RobustPrune, build in batches, repair.

Where a graph lies in the shared arrays, and what a candidate is, stands in beam.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from papers.window_ann.beam import (
    HALF,
    LOW,
    ONE,
    Place,
    Scratch,
    as_key,
    beam_search,
    insert,
    key_distance,
    key_id,
    no_answers,
    scratch,
    squared_between,
)
from papers.window_ann.compiled import jit
from papers.window_ann.twins import Twins, class_of, find, first_equal, representatives, stands_for_itself


class How(NamedTuple):
    """How points are linked. L: build beam; alpha2: of RobustPrune, squared; mute: (size,) bool, points that hide no others, or empty."""

    L: int
    alpha2: np.float32
    mute: np.ndarray


NO_HUBS = np.empty(0, np.bool_)
HUB = 3


class Graph(NamedTuple):
    """neighbors: (n, R) int32, nearest first, -1 after the last; entry: where every search starts; twins: equal rows, of
    which the first has the edges.
    """

    neighbors: np.ndarray
    entry: int
    twins: Twins


# ---- build -----------------------------------------------------------------------------------------------------------


@jit
def sort_keys(keys, n):
    """Insertion sort: candidates arrive nearly sorted."""
    for i in range(1, n):
        key = keys[i]
        j = i
        while j > 0 and keys[j - 1] > key:
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = key


@jit
def robust_prune(X, first, p, keys, n, alpha2, mute, kept):
    """RobustPrune: of the sorted candidates keys[:n] keep, closest first, those that no kept one hides; hubs (mute) hide none.

    A kept p* hides p' where alpha d(p*, p') <= d(p, p'), on true distances (alpha2 = alpha^2 acts on squared ones).
    kept: (R,) int32, filled with local ids; returns the degree, at most R.
    """
    degree = 0
    before = np.uint64(0)
    for i in range(n):
        key = keys[i] & ~ONE
        c = key_id(key)
        if c == p or (i > 0 and key == before):
            continue
        before = key
        limit = key_distance(key)
        hidden = False
        for t in range(degree):
            if alpha2 * squared_between(X, first + kept[t], first + c) <= limit and not (
                len(mute) > 0 and mute[kept[t]]
            ):
                hidden = True
                break
        if not hidden:
            kept[degree] = c
            degree += 1
            if degree == len(kept):
                break
    return degree


@jit
def propose(X, G, place, points, how, out, work):
    """Out-edges of each of `points` against the graph as it is: search for it, then RobustPrune what was expanded."""
    first, row, L, alpha2, mute = place.first, place.row, how.L, how.alpha2, how.mute
    keys = np.empty(len(work.visited) + G.shape[1], np.uint64)
    for i in range(len(points)):
        p = points[i]
        _, _, expanded = beam_search(X, G, place, X[first + p], L, L, work)
        n = min(expanded, len(work.visited))
        keys[:n] = work.visited[:n]
        for t in range(G.shape[1]):
            v = G[row + p, t]
            if v < 0:
                break
            keys[n] = as_key(squared_between(X, first + p, first + v), v)
            n += 1
        sort_keys(keys, n)
        out[i, :] = -1
        robust_prune(X, first, p, keys, n, alpha2, mute, out[i])


@jit
def add_edges(X, G, place, pairs, how):
    """Add edges `target << 32 | source` (sorted): target -> source, pruning where the degree would pass R."""
    first, row, R, alpha2, mute = place.first, place.row, G.shape[1], how.alpha2, how.mute
    i = 0
    while i < len(pairs):
        target = np.int64(pairs[i] >> HALF)
        end = i
        while end < len(pairs) and np.int64(pairs[end] >> HALF) == target:
            end += 1
        edges = G[row + target]
        degree = 0
        while degree < R and edges[degree] >= 0:
            degree += 1
        keys = np.empty(degree + end - i, np.uint64)
        n = 0
        for t in range(degree):
            keys[n] = as_key(squared_between(X, first + target, first + edges[t]), edges[t])
            n += 1
        for j in range(i, end):
            source = np.int64(pairs[j] & LOW)
            known = False
            for t in range(degree):
                known = known or edges[t] == source
            if not known:
                keys[n] = as_key(squared_between(X, first + target, first + source), source)
                n += 1
        if n <= R:
            for t in range(degree, n):
                edges[t] = key_id(keys[t])
        else:
            sort_keys(keys, n)
            edges[:] = -1
            robust_prune(X, first, target, keys, n, alpha2, mute, edges)
        i = end


@jit
def finish(X, G, place, twins, L, work):
    """Make every point that has edges reachable from the entry, and sort each list by distance. Returns the number of edges added.

    An unreachable point gets an edge from the closest reachable one that has room, or that has an edge which the
    breadth-first tree from the entry does not use.
    """
    first, m, row, entry, R = place.first, place.size, place.row, place.entry, G.shape[1]
    parent = np.full(m, -1, np.int32)
    for i in range(m):
        if not stands_for_itself(twins, first + i, first) or (G[row + i, 0] < 0 and i != entry):
            parent[i] = i  # an equal row is in the graph, or the point is not yet
    queue = np.empty(m, np.int32)
    parent[entry] = entry
    queue[0] = entry
    head, tail, added, todo = 0, 1, 0, 0
    while True:
        while head < tail:
            u = queue[head]
            head += 1
            for t in range(R):
                v = G[row + u, t]
                if v < 0:
                    break
                if parent[v] < 0:
                    parent[v] = u
                    queue[tail] = v
                    tail += 1
        while todo < m and parent[todo] >= 0:
            todo += 1
        if todo == m:
            break
        size, _, _ = beam_search(X, G, place, X[first + todo], L, L, work)
        hung = False
        for i in range(size + tail):  # the closest ones found, then any reachable point
            u = key_id(work.keys[i]) if i < size else np.int64(queue[i - size])
            for t in range(R - 1, -1, -1):
                v = G[row + u, t]
                if v < 0 and t > 0 and G[row + u, t - 1] < 0:
                    continue
                if v < 0 or parent[v] != u:
                    G[row + u, t] = todo
                    hung = True
                    break
            if hung:
                parent[todo] = u
                queue[tail] = todo
                tail += 1
                break
        added += 1
    keys = np.empty(R, np.uint64)
    for u in range(m):
        n = 0
        while n < R and G[row + u, n] >= 0:
            keys[n] = as_key(squared_between(X, first + u, first + G[row + u, n]), G[row + u, n])
            n += 1
        sort_keys(keys, n)
        for t in range(n):
            G[row + u, t] = key_id(keys[t])
    return added


def medoid(X: np.ndarray) -> int:
    """The row closest to the mean."""
    mean = X.mean(axis=0, dtype=np.float64).astype(np.float32)
    return int(np.argmin(((X - mean) ** 2).sum(axis=1)))


def build_into(X, G, place: Place, twins: Twins, L: int, alpha: float, generator: np.random.Generator,
               run: Callable[[Callable, Iterable], Iterable] = map, workers: int = 1, batch: float = 0.02, held: int = 0,
               probe: Callable[[np.ndarray], None] | None = None, mute: np.ndarray = NO_HUBS) -> int:  # fmt: skip
    """Build the graph of a place. Returns the number of edges the repair added.

    Points enter in a random order, in batches that double up to `batch` m. All points of a batch see the graph as it was
    before the batch, so the result does not depend on how `run` (map, or a pool's map over `workers` threads) spreads them.
    The last `held` points wait until `probe(their local ids)` has looked at the graph without them.
    """
    m, row = place.size, place.row
    G[row : row + m] = -1
    order = generator.permutation(m).astype(np.int32)
    order = order[representatives(twins, place.first, m)[order]]
    late, many = len(order) - held, max(1, int(batch * m))
    if held and place.entry in order[late:]:  # every search begins there
        order[np.flatnonzero(order == place.entry)[0]], order[0] = order[0], place.entry
    how = How(min(L, max(m, 2)), np.float32(alpha * alpha), mute)
    works = [scratch(m, how.L, G.shape[1], visited=4 * how.L + 64) for _ in range(workers)]
    done, size = 0, 1
    while done < late:
        _insert(X, G, place, order[done : min(done + size, late)], how, works, run)
        done, size = min(done + size, late), min(2 * size, many)
    if probe is not None:
        finish(X, G, place, twins, how.L, works[0])
        probe(order[late:])
    while done < len(order):
        _insert(X, G, place, order[done : done + size], how, works, run)
        done += size
    return int(finish(X, G, place, twins, how.L, works[0]))


def _insert(X, G, place: Place, points: np.ndarray, how: How, works: list[Scratch], run: Callable) -> None:
    """One batch: each point's edges against the graph as it is, then the edges back."""
    workers = len(works)
    out = np.empty((len(points), G.shape[1]), np.int32)
    parts = [slice(i * len(points) // workers, (i + 1) * len(points) // workers) for i in range(workers)]
    list(run(partial(_propose_part, X, G, place, points, how, out), parts, works))
    G[place.row + points] = out
    source = np.broadcast_to(points[:, None], out.shape)[out >= 0].astype(np.uint64)
    pairs = np.sort((out[out >= 0].astype(np.uint64) << HALF) | source)
    cuts = [0] + [_next_target(pairs, i * len(pairs) // workers) for i in range(1, workers)] + [len(pairs)]
    list(run(partial(_add_part, X, G, place, how), [pairs[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]))


def _propose_part(X, G, place, points, how, out, part: slice, work) -> None:
    propose(X, G, place, points[part], how, out[part], work)


def _add_part(X, G, place, how, pairs) -> None:
    add_edges(X, G, place, pairs, how)


def hubs(neighbors: np.ndarray) -> tuple[np.ndarray, bool]:
    """Which points of a graph (n, R) more than HUB times R others have an edge to, (n,) bool; whether one has a quarter of all.

    A point close to the middle of data on a sphere is everybody's neighbour and hides everybody from everybody else.
    """
    n, R = neighbors.shape
    known = np.bincount(neighbors[neighbors >= 0], minlength=n)
    return known > HUB * R, bool(known.max() > max(n / 4, HUB * R))


def _next_target(pairs: np.ndarray, i: int) -> int:
    """The first index from i on where a new target starts."""
    while 0 < i < len(pairs) and pairs[i] >> HALF == pairs[i - 1] >> HALF:
        i += 1
    return i


# ---- one graph by itself ---------------------------------------------------------------------------------------------


def build(X: np.ndarray, R: int = 32, L: int = 64, alpha: float = 1.0, seed: int = 0, start: str = "medoid") -> Graph:
    """The Vamana graph of all rows of X (n, d), float: at most R out-edges, build beam L, pruning factor alpha >= 1.

    alpha acts on true distances, as the theory has it (the official code applies it to squared ones: its alpha is our
    alpha^2). start: medoid, or `first` as the official code. Raises ValueError for an empty X, R < 1, L < 1, alpha < 1.
    """
    X = np.ascontiguousarray(X, np.float32)
    check_options(R, L, alpha, start)
    if X.ndim != 2 or len(X) == 0:
        raise ValueError(f"X has shape {X.shape}: give at least one row, (n, d)")
    if not np.isfinite(X).all():
        raise ValueError("X has NaN or infinite values: drop those rows")
    G = np.empty((len(X), R), np.int32)
    twins = find(X)
    entry = first_equal(twins, medoid(X)) if start == "medoid" else 0
    build_into(X, G, Place(0, len(X), 0, entry), twins, L, alpha, np.random.default_rng(seed))
    return Graph(G, entry, twins)


def check_options(R: int, L: int, alpha: float, start: str = "medoid") -> None:
    if R < 1 or L < 1 or R % 1 or L % 1:
        raise ValueError(f"R is {R} and L is {L}: both must be whole numbers of at least 1")
    if not alpha >= 1:
        raise ValueError(f"alpha is {alpha}: give at least 1 (the relative-neighbourhood rule)")
    if start not in ("medoid", "first"):
        raise ValueError(f"start is {start!r}: choose medoid or first")


@jit
def search_all(X, G, place, twins, Q, beam, cut, answers, work):
    k = answers.ids.shape[1]
    top = np.empty(k + 1, np.uint64)
    for i in range(len(Q)):
        size, answers.computed[i], _ = beam_search(X, G, place, Q[i], beam, beam, work, k, cut)
        found = 0
        for t in range(size):
            c = class_of(twins, key_id(work.keys[t]))
            if c < 0:
                found, _ = insert(top, found, k, work.keys[t] & ~ONE)
            else:
                for j in range(twins.start[c], min(twins.start[c + 1], twins.start[c] + k)):
                    found, _ = insert(top, found, k, as_key(key_distance(work.keys[t]), twins.ranks[j]))
            if found == k:
                break
        for t in range(found):
            answers.ids[i, t] = key_id(top[t])
            answers.distances[i, t] = np.sqrt(key_distance(top[t]))


def search(
    graph: Graph, X: np.ndarray, Q: np.ndarray, beam: int, k: int, cut: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The k nearest rows of X that a search with `beam` finds, one thread.

    Q: (nq, d). cut: 0, or the official code's 1.35 (see `beam_search`). Returns ids (nq, k) int64 (-1 missing), distances
    (nq, k) float32 (true L2, inf missing) and the number of distances computed for each query (nq,) int64.
    """
    X, Q = np.ascontiguousarray(X, np.float32), np.ascontiguousarray(Q, np.float32)
    if Q.ndim != 2 or Q.shape[1] != X.shape[1]:
        raise ValueError(f"Q has shape {Q.shape}: give one query a row, (nq, {X.shape[1]})")
    if not 1 <= k <= len(X):
        raise ValueError(f"k is {k}: give 1 to {len(X)}")
    answers, beam = no_answers(len(Q), k), min(max(beam, k), len(X))
    work = scratch(len(X), beam, graph.neighbors.shape[1])
    place = Place(0, len(X), 0, graph.entry)
    search_all(X, graph.neighbors, place, graph.twins, Q, beam, float(cut), answers, work)
    return answers.ids, answers.distances, answers.computed
