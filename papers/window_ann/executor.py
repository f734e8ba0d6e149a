"""Carrying out plans: the doubling postfilter (sec. 3), the scan, and the loop over queries that each thread runs."""

from __future__ import annotations

import numpy as np

from papers.window_ann.beam import as_key, beam_search, insert, key_distance, key_id, squared
from papers.window_ann.compiled import jit
from papers.window_ann.plans import SCAN, plan


@jit
def scan(X, live, q, lo, hi, k, top, size):
    """Merge the points with ranks in [lo, hi) into the k best, top[:size]. Returns (size, distances computed)."""
    for i in range(lo, hi):
        if live[i + 1] > live[i]:
            size, _ = insert(top, size, k, as_key(squared(X, i, q), i))
    return size, live[hi] - live[lo]


@jit
def take(layout, node, lo, hi, want, work, frontier):
    """How many frontier points are live and have a rank in [lo, hi); the first `want` of them move to the front."""
    first, live = layout.start[node], layout.live
    found = 0
    for t in range(frontier):
        i = first + key_id(work.keys[t])
        if lo <= i and i < hi and live[i + 1] > live[i]:
            if found < want:
                work.keys[found] = work.keys[t]
            found += 1
    return found


@jit
def postfilter(X, G, layout, q, node, lo, hi, beam, multiply, max_beam, k, top, size, work):
    """Search a node's graph with a doubling beam until k points of the window are found, then once with `multiply` beams.

    At the widest beam allowed and still short, the window is scanned (the official code returns less than k). Merges
    into top[:size]; returns (size, distances computed).
    """
    first, row, entry = layout.start[node], layout.graph[node], layout.entry[node]
    want = min(k, layout.live[hi] - layout.live[lo])
    widest = min(max_beam, layout.end[node] - first)
    computed = 0
    if want == 0:
        return size, computed
    beam = min(max(beam, 1), widest)
    while True:
        frontier, number, _ = beam_search(X, first, G, row, entry, q, beam, k, 0.0, work)
        computed += number
        found = take(layout, node, lo, hi, want, work, frontier)
        if found >= want or beam == widest:
            break
        beam = min(2 * beam, widest)
    final = min(multiply * beam, widest)
    if found >= want and final > beam:
        frontier, number, _ = beam_search(X, first, G, row, entry, q, final, k, 0.0, work)
        computed += number
        found = take(layout, node, lo, hi, want, work, frontier)
    if found < want:
        size, number = scan(X, layout.live, q, lo, hi, k, top, size)
        return size, computed + number
    for t in range(want):
        i = first + key_id(work.keys[t])
        size, _ = insert(top, size, k, as_key(key_distance(work.keys[t]), i))
    return size, computed


@jit
def carry_out(X, G, layout, q, pieces, count, max_beam, k, top, work):
    """The k best over all pieces, in `top`; a node without a graph is scanned. Returns (how many, distances computed)."""
    size, computed = 0, 0
    for i in range(count):
        node, lo, hi = pieces[i, 0], pieces[i, 1], pieces[i, 2]
        if node == SCAN or layout.graph[node] < 0:
            size, number = scan(X, layout.live, q, lo, hi, k, top, size)
        else:
            size, number = postfilter(
                X, G, layout, q, node, lo, hi, pieces[i, 3], pieces[i, 4], max_beam, k, top, size, work
            )
        computed += number
    return size, computed


@jit
def search_part(X, G, layout, costs, Q, S, E, options, given, ids, distances, computed, chosen, room, work):
    """Queries one after the other. Their plans come from options, or, where len(given) > 0, are the one piece given for each.

    Q: (nq, d) float32; S, E: (nq,) int64; given: (nq or 0, 5) int64. Fills ids (nq, k) int64 ranks, distances (nq, k)
    float32 squared, computed (nq,) int64 distances and chosen (nq,) int64 methods.
    """
    k = ids.shape[1]
    pieces, spare = np.empty((room, 5), np.int64), np.empty((room, 5), np.int64)
    top = np.empty(k + 1, np.uint64)
    for i in range(len(Q)):
        if len(given) > 0:
            pieces[0] = given[i]
            count = 1
        else:
            count, chosen[i], _ = plan(layout, costs, S[i], E[i], options, pieces, spare)
        size, computed[i] = carry_out(X, G, layout, Q[i], pieces, count, options.max_beam, k, top, work)
        for t in range(size):
            ids[i, t] = key_id(top[t])
            distances[i, t] = key_distance(top[t])


@jit
def incremental_part(X, G, layout, Q, S, E, patience, ids, distances, computed, work):
    """Incremental postfiltering on the whole graph: one growing search, no restart (the iterator model).

    Expands points in order of distance and keeps the k best of the window; stops when `patience` expansions in a row lie
    beyond the k-th best. work.keys must hold a key for every
    point. Where the graph runs dry the window is scanned.
    """
    k, row, entry = ids.shape[1], layout.graph[0], layout.entry[0]
    top = np.empty(k + 1, np.uint64)
    for i in range(len(Q)):
        q, s, e = Q[i], S[i], E[i]
        want = min(k, layout.live[e] - layout.live[s])
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
            if s <= u and u < e and layout.live[u + 1] > layout.live[u]:
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
            size, more = scan(X, layout.live, q, s, e, k, top, 0)
            number += more
        computed[i] = number
        for t in range(size):
            ids[i, t] = key_id(top[t])
            distances[i, t] = key_distance(top[t])
