"""Carrying out plans: the doubling postfilter (sec. 3), the scan, and the loop over queries that each thread runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from papers.window_ann.beam import ONE, Place, Scratch, as_key, beam_search, insert, key_distance, key_id, squared
from papers.window_ann.compiled import jit, prefetch
from papers.window_ann.plans import (
    ADAPT,
    CLOSE,
    CLOSER,
    FAR,
    NEAR,
    SCAN,
    Layout,
    limit_of,
    piece_room,
    plan,
    plan_several,
    size_row,
)
from papers.window_ann.twins import Twins, class_of, from_rank


class Points(NamedTuple):
    """X: (n, d) float32 in label order; live: (n + 1,) int64, how many points before each rank are not deleted; twins: equal rows."""

    X: np.ndarray
    live: np.ndarray
    twins: Twins


class Graphs(NamedTuple):
    """G: (points stored, R) int32, the edges of all graphs one below the other; layout: which rows are whose."""

    G: np.ndarray
    layout: Layout


class Asked(NamedTuple):
    """Q: (nq, d) float32; S, E: (nq,) int64, the ranks [S, E) of each query's window."""

    Q: np.ndarray
    S: np.ndarray
    E: np.ndarray

    def part(self, cut: slice) -> Asked:
        return Asked(*(array[cut] for array in self))


class Needs(NamedTuple):
    """What a search for the r nearest in one node needs: rows of `Costs`; spread: the most that r should be; else_: the price of another plan."""

    limits: np.ndarray
    reach: np.ndarray
    prices: np.ndarray
    spread: int
    else_: float


SETTLED = 8  # points expanded in a row from the nearest on: the search has come to the query's place


class Bench(NamedTuple):
    """Room for one query: near (k + 1,) uint64 candidates, spare (room, 5) int64 pieces, and the search's own."""

    near: np.ndarray
    spare: np.ndarray
    work: Scratch


@jit
def place_of(layout, node):
    first = layout.start[node]
    return Place(first, layout.end[node] - first, layout.graph[node], layout.entry[node])


@jit
def take(points, i, lo, hi, key, k, top, size):
    """Merge into top[:size] the rank i of a graph, or all ranks of its row, as far as they are live and in [lo, hi). Returns the size."""
    live = points.live
    c = class_of(points.twins, i)
    if c < 0:
        if lo <= i and i < hi and live[i + 1] > live[i]:
            size, _ = insert(top, size, k, as_key(key_distance(key), i))
        return size
    twins = points.twins
    for t in range(from_rank(twins, c, lo), twins.start[c + 1]):
        i = twins.ranks[t]
        if i >= hi:
            break
        if live[i + 1] > live[i]:
            size, place = insert(top, size, k, as_key(key_distance(key), i))
            if place == size:  # full, and the next have the same distance
                break
    return size


@jit
def scan(points, q, lo, hi, k, top, size):
    """Merge the points with ranks in [lo, hi) into the k best, top[:size]. Returns (size, distances computed)."""
    X, live = points.X, points.live
    if len(points.twins.of) == 0:
        for i in range(lo, hi):
            if live[i + 1] > live[i]:
                size, _ = insert(top, size, k, as_key(squared(X, i, q), i))
        return size, live[hi] - live[lo]
    computed = 0
    for i in range(lo, hi):  # an equal row is met once, a deleted one only for the sake of those
        if points.twins.before[i] < lo and (live[i + 1] > live[i] or points.twins.of[i] >= 0):
            size = take(points, i, lo, hi, as_key(squared(X, i, q), 0), k, top, size)
            computed += 1
    return size, computed


@jit
def take_all(points, place, lo, hi, want, near, work, frontier):
    """The `want` nearest of the frontier that are in the window, into `near`. Returns how many there are."""
    found = 0
    for t in range(frontier):
        found = take(points, place.first + key_id(work.keys[t]), lo, hi, work.keys[t], want, near, found)
        if found == want:
            break
    return found


@jit
def postfilter(points, graphs, q, piece, max_beam, top, size, near, work):
    """Search a node's graph with a doubling beam until k points of the window are found, then once with `multiply` beams.

    At the widest beam allowed and still short (the official code then returns less than k), or once the searches have
    computed as many distances as the window has points, the window is scanned: no window costs much more than two scans.
    Merges into top[:size]; returns (size, distances computed).
    """
    lo, hi, multiply, k = piece[1], piece[2], piece[4], len(top) - 1
    place = place_of(graphs.layout, piece[0])
    w = points.live[hi] - points.live[lo]
    want, widest = min(k, w), min(max_beam, place.size)
    # a point expanded brings at most R distances; where the window is the whole node, a search computes no more than a scan
    most, computed = w + 1 - graphs.G.shape[1] if hi - lo < place.size else np.int64(1) << 62, 0
    if want == 0:
        return size, computed
    beam = min(max(piece[3], 1), widest)
    while True:
        frontier, number, _ = beam_search(points.X, graphs.G, place, q, beam, beam, work, most=most - computed)
        computed += number
        found = take_all(points, place, lo, hi, want, near, work, frontier)
        if found >= want or beam == widest or computed >= most:
            break
        beam = min(2 * beam, widest)
    final = min(multiply * beam, widest)
    if found >= want and final > beam and computed < most:
        frontier, number, _ = beam_search(points.X, graphs.G, place, q, final, final, work, most=most - computed)
        computed += number
        found = take_all(points, place, lo, hi, want, near, work, frontier)
    if found < want or computed >= most:
        size, number = scan(points, q, lo, hi, k, top, size)
        return size, computed + number
    for t in range(want):
        size, _ = insert(top, size, k, near[t])
    return size, computed


@jit
def count_below(keys, size, distance):
    """How many of the ascending keys are closer than a distance."""
    bound = as_key(distance, 0)
    a, b = 0, size
    while a < b:
        middle = (a + b) // 2
        if keys[middle] < bound:
            a = middle + 1
        else:
            b = middle
    return a


@jit
def adapt(points, G, place, q, piece, needs, top, size, work):
    """Search a node's graph for as long as what it sees asks for. Merges into top[:size]; returns (size, distances computed, whether it came to its end).

    The frontier keeps what lies outside the window too. With the k-th best found so far at place r among all that was
    seen, the window's k nearest are as good as the node's r nearest: `limits` says how many points to expand for those, in
    its row FAR where the window is away from the query or the query away from the node, in CLOSE where the nearest is much
    closer than the k-th. So the work follows each query. What the frontier has no room for waits in a pool. The search
    gives up, having computed piece[3] distances or foreseeing more than `else_`; then some of the window is in `top` already.
    """
    limits, reach, prices, spread, else_ = needs
    budget = (
        piece[3] if piece[2] - piece[1] < place.size else np.int64(1) << 62
    )  # a whole node has no more than a scan of it
    X, keys, pool, seen, fresh, k = points.X, work.keys, work.pool, work.seen, work.fresh, len(top) - 1
    live, single = points.live, len(points.twins.of) == 0
    lo, hi, first, row, entry = piece[1], piece[2], place.first, place.row, place.entry
    work.stamp[0] += 1
    stamp, most, m = work.stamp[0], len(keys) - 1, np.uint32(place.size)
    seen[entry] = stamp
    keys[0] = as_key(squared(X, first + entry, q), entry)
    size = take(points, first + entry, lo, hi, keys[0], k, top, size)
    frontier, computed, at, pooled = 1, 1, 0, 0
    beam = limit = min(most, 2 * limit_of(limits, NEAR, max(1, spread // 2)))
    while True:
        if size == k:
            furthest = key_distance(top[k - 1])
            r = count_below(keys, frontier, furthest) + 1
            last = len(reach) - 1
            if r > spread or furthest > reach[min(r, last)]:
                where = FAR
                if at >= SETTLED and r > spread and prices[FAR, min(r, last)] * max(r, last) > else_ * last:
                    return size, computed, False
            else:
                where = CLOSE if key_distance(top[0]) < CLOSER * furthest else NEAR
            limit = limit_of(limits, where, r)
            if at >= limit and (r <= frontier or pooled == 0):
                break
            room = max(limit, r) + max(limit, r) // 2
            if room < beam and r <= frontier:
                beam = room
                while frontier > beam and pooled < len(pool):
                    frontier -= 1
                    pool[pooled] = keys[frontier]
                    pooled += 1
                frontier = min(frontier, beam)
        if at >= frontier or (size == k and r > frontier):
            if pooled == 0:
                if at >= frontier:
                    break
            else:  # more room, and what has waited comes back
                beam = min(most, 4 * max(beam, limit))
                waiting, pooled = pooled, 0
                for t in range(waiting):
                    key = pool[t]
                    if frontier == beam:
                        last = keys[frontier - 1]
                        pool[pooled] = max(key, last)
                        pooled += 1
                    frontier, _ = insert(keys, frontier, beam, key)
                at = 0
                while at < frontier and keys[at] & ONE:
                    at += 1
                if at >= frontier:
                    break
                continue
        if computed + G.shape[1] > budget:
            return size, computed, False
        key = keys[at]
        keys[at] = key | ONE
        u = row + key_id(key)
        number = 0
        for t in range(G.shape[1]):
            v = G[u, t]
            if np.uint32(v) >= m:
                break
            if seen[v] != stamp:
                seen[v] = stamp
                fresh[number] = v
                number += 1
                prefetch(X, first + v)
        computed += number
        at += 1
        while at < frontier and keys[at] & ONE:
            at += 1
        if at < frontier:
            prefetch(G, row + key_id(keys[at]))
        for t in range(number):
            v = np.int64(fresh[t])
            key = as_key(squared(X, first + v, q), v)
            if frontier == beam and pooled < len(pool):
                pool[pooled] = max(key, keys[frontier - 1])
                pooled += 1
            frontier, new = insert(keys, frontier, beam, key)
            if new <= at:
                at = new
                prefetch(G, row + v)
            i = first + v
            if size < k or key_distance(key) <= key_distance(top[k - 1]):
                if not single:
                    size = take(points, i, lo, hi, key, k, top, size)
                elif lo <= i and i < hi and live[i + 1] > live[i]:
                    size, _ = insert(top, size, k, as_key(key_distance(key), i))
    return size, computed, True


@jit
def adapt_piece(points, graphs, costs, q, piece, where, options, top, size, bench):
    """`adapt` on a piece; where it gives up, top is as it was before. Returns (size, distances computed, whether it came to its end)."""
    place, k, (near, spare, work) = place_of(graphs.layout, piece[0]), len(top) - 1, bench
    near[:size] = top[:size]
    row = size_row(costs, place.size)
    w = points.live[piece[2]] - points.live[piece[1]]
    spread, else_ = 2 * k * place.size // max(1, w) if where == NEAR else 0, np.inf
    if where == NEAR and costs.drift[0]:
        _, else_ = plan_several(graphs.layout, points.live, costs, piece[1], piece[2], k, options, spare)
        else_ /= costs.graph[0]
    needs = Needs(costs.limits[:, row], costs.reach[row], costs.prices[:, row], spread, else_)
    grown, computed, done = adapt(points, graphs.G, place, q, piece, needs, top, size, work)
    if not done:
        top[:size] = near[:size]
    return grown if done else size, computed, done


@jit
def carry_out(points, graphs, costs, q, pieces, count, options, top, bench):
    """The k best over all pieces, in `top`; a node without a graph is scanned. Returns (how many, distances computed)."""
    layout, near, spare, work = graphs.layout, bench.near, bench.spare, bench.work
    size, computed, k = 0, 0, len(top) - 1
    for i in range(count):
        piece = pieces[i]
        if piece[0] == SCAN or layout.graph[piece[0]] < 0:
            size, number = scan(points, q, piece[1], piece[2], k, top, size)
        elif piece[4] != ADAPT:
            size, number = postfilter(points, graphs, q, piece, options.max_beam, top, size, near, work)
        else:
            size, number, done = adapt_piece(points, graphs, costs, q, piece, NEAR, options, top, size, bench)
            if not done:
                several, _ = plan_several(layout, points.live, costs, piece[1], piece[2], k, options, spare)
                for j in range(several):
                    part, done = spare[j], False
                    if part[0] != SCAN:
                        size, more, done = adapt_piece(points, graphs, costs, q, part, FAR, options, top, size, bench)
                        number += more
                    if not done:
                        size, more = scan(points, q, part[1], part[2], k, top, size)
                        number += more
        computed += number
    return size, computed


@jit
def search_part(points, graphs, costs, asked, options, answers, work):
    """Queries one after the other, into `answers` (ranks and squared distances)."""
    layout, (ids, distances, computed, chosen) = graphs.layout, answers
    k, room = ids.shape[1], piece_room(layout)
    pieces, top = np.empty((room, 5), np.int64), np.empty(k + 1, np.uint64)
    bench = Bench(np.empty(k + 1, np.uint64), np.empty((room, 5), np.int64), work)
    for i in range(len(asked.Q)):
        count, chosen[i], _ = plan(layout, points.live, costs, asked.S[i], asked.E[i], k, options, pieces, bench.spare)
        size, computed[i] = carry_out(points, graphs, costs, asked.Q[i], pieces, count, options, top, bench)
        for t in range(size):
            ids[i, t] = key_id(top[t])
            distances[i, t] = key_distance(top[t])


@jit
def incremental_part(points, graphs, asked, patience, answers, work):
    """Incremental postfiltering on the whole graph: one growing search, no restart (the iterator model).

    Expands points in order of distance and keeps the k best of the window; stops when `patience` expansions in a row lie
    beyond the k-th best. work.keys must hold a key for every point. Where the graph runs dry the window is scanned.
    """
    X, live, G, (ids, distances, computed, _) = points.X, points.live, graphs.G, answers
    k, row, entry = ids.shape[1], graphs.layout.graph[0], graphs.layout.entry[0]
    top = np.empty(k + 1, np.uint64)
    for i in range(len(asked.Q)):
        q, s, e = asked.Q[i], asked.S[i], asked.E[i]
        want = min(k, live[e] - live[s])
        if want == 0:
            continue
        work.stamp[0] += 1
        stamp, keys, size, beyond, number = work.stamp[0], work.keys, 0, 0, 1
        work.seen[entry] = stamp
        keys[0] = as_key(squared(X, entry, q), entry)
        frontier, place = 1, 0
        while place < frontier and beyond < patience:
            key = keys[place]
            u = key_id(key)
            size = take(points, u, s, e, key, k, top, size)
            beyond = beyond + 1 if size >= want and key > top[want - 1] else 0
            place += 1
            for t in range(G.shape[1]):
                v = np.int64(G[row + u, t])
                if np.uint32(v) >= len(X):
                    break
                if work.seen[v] != stamp:
                    work.seen[v] = stamp
                    number += 1
                    grown, _ = insert(keys[place:], frontier - place, len(keys) - place, as_key(squared(X, v, q), v))
                    frontier = place + grown
        if size < want:
            size, more = scan(points, q, s, e, k, top, 0)
            number += more
        computed[i] = number
        for t in range(size):
            ids[i, t] = key_id(top[t])
            distances[i, t] = key_distance(top[t])
