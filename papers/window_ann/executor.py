"""Carrying out plans: the doubling postfilter (sec. 3), the scan, and the loop over queries that each thread runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from papers.window_ann.beam import Place, as_key, beam_search, insert, key_distance, key_id, squared
from papers.window_ann.compiled import jit
from papers.window_ann.plans import SCAN, Layout, piece_room, plan


class Points(NamedTuple):
    """X: (n, d) float32 in label order; live: (n + 1,) int64, how many points before each rank are not deleted."""

    X: np.ndarray
    live: np.ndarray


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


@jit
def scan(points, q, lo, hi, k, top, size):
    """Merge the points with ranks in [lo, hi) into the k best, top[:size]. Returns (size, distances computed)."""
    X, live = points.X, points.live
    for i in range(lo, hi):
        if live[i + 1] > live[i]:
            size, _ = insert(top, size, k, as_key(squared(X, i, q), i))
    return size, live[hi] - live[lo]


@jit
def place_of(layout, node):
    first = layout.start[node]
    return Place(first, layout.end[node] - first, layout.graph[node], layout.entry[node])


@jit
def take(points, first, lo, hi, want, work, frontier):
    """How many frontier points are live and have a rank in [lo, hi); the first `want` of them move to the front."""
    live, found = points.live, 0
    for t in range(frontier):
        i = first + key_id(work.keys[t])
        if lo <= i and i < hi and live[i + 1] > live[i]:
            if found < want:
                work.keys[found] = work.keys[t]
            found += 1
    return found


@jit
def postfilter(points, graphs, q, piece, max_beam, k, top, size, work):
    """Search a node's graph with a doubling beam until k points of the window are found, then once with `multiply` beams.

    At the widest beam allowed and still short, the window is scanned (the official code returns less than k). Merges
    into top[:size]; returns (size, distances computed).
    """
    lo, hi, multiply = piece[1], piece[2], piece[4]
    place = place_of(graphs.layout, piece[0])
    want = min(k, points.live[hi] - points.live[lo])
    widest = min(max_beam, place.size)
    computed = 0
    if want == 0:
        return size, computed
    beam = min(max(piece[3], 1), widest)
    while True:
        frontier, number, _ = beam_search(points.X, graphs.G, place, q, beam, k, 0.0, work)
        computed += number
        found = take(points, place.first, lo, hi, want, work, frontier)
        if found >= want or beam == widest:
            break
        beam = min(2 * beam, widest)
    final = min(multiply * beam, widest)
    if found >= want and final > beam:
        frontier, number, _ = beam_search(points.X, graphs.G, place, q, final, k, 0.0, work)
        computed += number
        found = take(points, place.first, lo, hi, want, work, frontier)
    if found < want:
        size, number = scan(points, q, lo, hi, k, top, size)
        return size, computed + number
    for t in range(want):
        i = place.first + key_id(work.keys[t])
        size, _ = insert(top, size, k, as_key(key_distance(work.keys[t]), i))
    return size, computed


@jit
def carry_out(points, graphs, q, pieces, count, max_beam, top, work):
    """The k best over all pieces, in `top`; a node without a graph is scanned. Returns (how many, distances computed)."""
    size, computed, k = 0, 0, len(top) - 1
    for i in range(count):
        piece = pieces[i]
        if piece[0] == SCAN or graphs.layout.graph[piece[0]] < 0:
            size, number = scan(points, q, piece[1], piece[2], k, top, size)
        else:
            size, number = postfilter(points, graphs, q, piece, max_beam, k, top, size, work)
        computed += number
    return size, computed


@jit
def search_part(points, graphs, costs, asked, options, given, answers, work):
    """Queries one after the other, into `answers` (ranks and squared distances).

    Their plans come from options, or, where len(given) > 0, are the one piece given for each, (nq, 5) int64.
    """
    layout, (ids, distances, computed, chosen) = graphs.layout, answers
    pieces, spare = np.empty((piece_room(layout), 5), np.int64), np.empty((piece_room(layout), 5), np.int64)
    top = np.empty(ids.shape[1] + 1, np.uint64)
    for i in range(len(asked.Q)):
        if len(given) > 0:
            pieces[0] = given[i]
            count = 1
        else:
            count, chosen[i], _ = plan(layout, points.live, costs, asked.S[i], asked.E[i], options, pieces, spare)
        size, computed[i] = carry_out(points, graphs, asked.Q[i], pieces, count, options.max_beam, top, work)
        for t in range(size):
            ids[i, t] = key_id(top[t])
            distances[i, t] = key_distance(top[t])


@jit
def incremental_part(points, graphs, asked, patience, answers, work):
    """Incremental postfiltering on the whole graph: one growing search, no restart (the iterator model).

    Expands points in order of distance and keeps the k best of the window; stops when `patience` expansions in a row lie
    beyond the k-th best. work.keys must hold a key for every point. Where the graph runs dry the window is scanned.
    """
    (X, live), G, (ids, distances, computed, _) = points, graphs.G, answers
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
            if s <= u and u < e and live[u + 1] > live[u]:
                size, _ = insert(top, size, k, key)
            beyond = beyond + 1 if size >= want and key > top[want - 1] else 0
            place += 1
            for t in range(G.shape[1]):
                v = np.int64(G[row + u, t])
                if v < 0:
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
