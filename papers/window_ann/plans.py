"""Which nodes answer a window: the paper's methods (sec. 3 to 5), each as a short list of pieces, and the planner's choice.

A piece (node, lo, hi, beam, multiply) asks for the nearest points with ranks in [lo, hi): by the doubling postfilter on the
node's graph, or, where node is -1, by scanning. The pieces of a plan have disjoint ranges that together are the window, so
their answers merge without duplicates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from papers.window_ann.compiled import jit
from papers.window_ann.overlap import smallest_row
from papers.window_ann.tree import decompose, find_center, smallest_containing

METHODS = ("prefilter", "postfilter", "tree", "optimized_postfilter", "three_split", "super_postfilter", "auto")
OURS = METHODS[2:6]  # the paper's; the first two are what it compares with
PREFILTER, POSTFILTER, TREE, OPTIMIZED, THREE_SPLIT, SUPER, AUTO = range(7)
SCAN = -1
NEVER = 60.0  # log2 of a cost that is never paid


class Layout(NamedTuple):
    """All nodes over the n sorted points: the tree's, then super-postfiltering's; equal ranges share one graph.

    start, end: (nodes,) int64 ranks; graph: (nodes,) int64, first row in the edge array, -1 where none was built; entry:
    (nodes,) int64 local ids; offsets, first: the tree's; size, shift, counts, number: the overlapping rows', `number` the node
    of each row's first bucket; cutoff, beta: (1,).
    """

    start: np.ndarray
    end: np.ndarray
    graph: np.ndarray
    entry: np.ndarray
    offsets: np.ndarray
    first: np.ndarray
    size: np.ndarray
    shift: np.ndarray
    counts: np.ndarray
    number: np.ndarray
    cutoff: np.ndarray
    beta: np.ndarray


class Options(NamedTuple):
    """How to search. min_ratio: below this w / |node| a postfilter gives way to tree search; 0 for never.

    official: with min_ratio set, postfilters always give way, as the official code has it (it compares |node| / w).
    """

    method: int
    beam: int
    multiply: int
    max_beam: int
    min_ratio: float
    official: int


class Costs(NamedTuple):
    """What searches for the r nearest of a graph need and cost, measured (see `planner`); r up to len - 1, beyond it in proportion.

    sizes: (a,) log2 node sizes, ascending; limits: (3, a, r) int64 points to expand, for queries of NEAR, FAR and CLOSE;
    prices: (3, a, r) float64 distances; reach: (a, r) float32, the squared distance to the r-th nearest that few NEAR queries
    pass; gather: (a, 2), r / k where the window has a half and a quarter of the node; graph: (1,), how many scanned distances
    one of a graph search is worth; most: (1,), distances that one point expanded may bring; drift: (1,) bool, labels go with places.
    """

    sizes: np.ndarray
    limits: np.ndarray
    prices: np.ndarray
    reach: np.ndarray
    gather: np.ndarray
    graph: np.ndarray
    most: np.ndarray
    drift: np.ndarray


NEAR, FAR, CLOSE = 0, 1, 2  # queries like a node's points; like points elsewhere; next to one of its points
SURE = 0.75  # of a scan's price, which a search must stay below: it is thrown away where it passes the scan's
CLOSER = np.float32(0.06)  # CLOSE: the nearest is at less than this part of the k-th squared distance
ADAPT = 0  # in place of a piece's multiply: expand as many points as what is seen asks for


def no_costs() -> Costs:
    table, one = (3, 1, 2), np.ones(1)
    far = np.full((1, 2), np.inf, np.float32)
    return Costs(
        np.zeros(1), np.ones(table, np.int64), np.full(table, np.inf), far, np.array([[2.0, 4.0]]), one, one, one < 0
    )


@jit
def piece_room(layout):
    """How many pieces a plan can have: three tree searches, each at most 2 beta nodes a row and two ragged ends."""
    return 3 * (2 * layout.beta[0] * (len(layout.first) - 1) + 2)


@jit
def add(pieces, count, node, lo, hi, beam, multiply):
    if lo < hi:
        pieces[count, 0] = node
        pieces[count, 1] = lo
        pieces[count, 2] = hi
        pieces[count, 3] = beam
        pieces[count, 4] = multiply
        count += 1
    return count


@jit
def plan_tree(layout, s, e, options, pieces, count):
    """(a) Algorithm 2: maximal nodes inside the window, unfiltered, and a scan of the two ragged ends."""
    nodes = np.empty(len(pieces), np.int64)
    number, left, right = decompose(layout.offsets, layout.first, s, e, nodes)
    for i in range(number):
        node = nodes[i]
        count = add(pieces, count, node, layout.start[node], layout.end[node], options.beam, 1)
    count = add(pieces, count, SCAN, s, left, 0, 0)
    return add(pieces, count, SCAN, right, e, 0, 0)


@jit
def plan_optimized(layout, s, e, options, pieces, count):
    """(b) Optimized postfiltering: the smallest tree node that contains the window; tiny windows by tree search."""
    w = e - s
    if 4 * w < layout.cutoff[0]:
        return plan_tree(layout, s, e, options, pieces, count)
    node = smallest_containing(layout.offsets, layout.first, s, e)
    size = layout.end[node] - layout.start[node]
    if options.min_ratio > 0 and (options.official or w < options.min_ratio * size):
        return plan_tree(layout, s, e, options, pieces, count)
    return add(pieces, count, node, s, e, options.beam, options.multiply)


@jit
def plan_three_split(layout, s, e, options, pieces, count):
    """(c) Three-split: the largest nodes inside the window, unfiltered; the two remainders by (b). No such node: tree."""
    row, i, j = find_center(layout.offsets, layout.first, s, e)
    if row < 0:
        return plan_tree(layout, s, e, options, pieces, count)
    base = layout.first[row]
    for node in range(base - row + i, base - row + j):
        count = add(pieces, count, node, layout.start[node], layout.end[node], options.beam, 1)
    if s < layout.offsets[base + i]:
        count = plan_optimized(layout, s, layout.offsets[base + i], options, pieces, count)
    if layout.offsets[base + j] < e:
        count = plan_optimized(layout, layout.offsets[base + j], e, options, pieces, count)
    return count


@jit
def plan_super(layout, s, e, options, pieces, count):
    """(d) Super-postfiltering: the smallest overlapping bucket around the window; tiny windows are scanned, as in (b)."""
    if 4 * (e - s) < layout.cutoff[0]:
        return add(pieces, count, SCAN, s, e, 0, 0)
    row, bucket = smallest_row(layout.size, layout.shift, layout.counts, s, e)
    return add(pieces, count, layout.number[row] + bucket, s, e, options.beam, options.multiply)


@jit
def plan_single(layout, method, s, e, options, pieces):
    """The pieces of one of the paper's methods; returns how many."""
    if s >= e:
        return 0
    if method == PREFILTER:
        return add(pieces, 0, SCAN, s, e, 0, 0)
    if method == POSTFILTER:
        return add(pieces, 0, 0, s, e, options.beam, options.multiply)
    if method == TREE:
        return plan_tree(layout, s, e, options, pieces, 0)
    if method == OPTIMIZED:
        return plan_optimized(layout, s, e, options, pieces, 0)
    if method == THREE_SPLIT:
        return plan_three_split(layout, s, e, options, pieces, 0)
    return plan_super(layout, s, e, options, pieces, 0)


@jit
def size_row(costs, size):
    """The measured size that stands for a node: the next larger one."""
    a, x = 0, np.log2(np.float64(size)) - 0.1
    while a + 1 < len(costs.sizes) and costs.sizes[a] < x:
        a += 1
    return a


@jit
def limit_of(limits, where, r):
    """How many points to expand for the r nearest. limits: (3, r) int64."""
    last = limits.shape[1] - 1
    return limits[where, r] if r <= last else limits[where, last] * (1 + (r - 1) // last)


@jit
def price_of(layout, live, costs, where, node, lo, hi, k):
    """What the k nearest in [lo, hi) cost on a node's graph, in scanned distances: for NEAR of a query that belongs to the window."""
    w, size = live[hi] - live[lo], layout.end[node] - layout.start[node]
    if layout.graph[node] < 0 or w <= k:
        return np.inf
    row, times = size_row(costs, size), size / w
    prices = costs.prices[where, row]
    if where == NEAR:
        half, quarter = costs.gather[row]
        if times <= 2:
            times = 1 + (times - 1) * (half - 1)
        elif times <= 4:
            times = half + (times / 2 - 1) * (quarter - half)
        else:
            times *= quarter / 4
    r, last = k * times, len(prices) - 1
    if r >= last:
        return costs.graph[0] * prices[last] * r / last
    i = np.int64(r)
    return costs.graph[0] * (prices[i] + (r - i) * (prices[i + 1] - prices[i]))


@jit
def plan(layout, live, costs, s, e, k, options, pieces, spare):
    """The pieces of options.method, or what auto takes; returns (how many, which method, cost in scanned distances).

    auto takes the smaller of the two single nodes around the window, or a scan where that is cheaper. What it does where
    a search finds nothing of the window, `executor` decides.
    """
    if options.method != AUTO:
        return plan_single(layout, options.method, s, e, options, pieces), options.method, 0.0
    w = np.float64(live[e] - live[s])
    count = plan_single(layout, PREFILTER, s, e, options, pieces)
    if w <= costs.graph[0] * costs.prices[NEAR, 0, min(k, costs.prices.shape[2] - 1)]:
        return count, PREFILTER, w
    row, bucket = smallest_row(layout.size, layout.shift, layout.counts, s, e)
    node, method = layout.number[row] + bucket, SUPER
    inner = smallest_containing(layout.offsets, layout.first, s, e)
    if layout.end[inner] - layout.start[inner] < layout.end[node] - layout.start[node]:
        node, method = inner, OPTIMIZED
    cost = price_of(layout, live, costs, NEAR, node, s, e, k)
    if cost >= SURE * w - costs.graph[0] * costs.most[0]:
        return count, PREFILTER, w
    return add(pieces, 0, node, s, e, np.int64(min(w, 2 * w / costs.graph[0])), ADAPT), method, cost


@jit
def plan_several(layout, live, costs, s, e, k, options, pieces):
    """Where the one node around a window shows little of it: the tree's nodes inside it, or a scan. Returns (how many pieces, cost).

    A node is searched where that is cheaper than its points, and all of them where they are cheaper than the window's.
    """
    w, total = np.float64(live[e] - live[s]), 0.0
    count = plan_tree(layout, s, e, options, pieces, 0)
    for i in range(count):
        node, lo, hi = pieces[i, 0], pieces[i, 1], pieces[i, 2]
        own = np.float64(live[hi] - live[lo])
        cost = own if node == SCAN else price_of(layout, live, costs, FAR, node, lo, hi, max(1, np.int64(k * own / w)))
        pieces[i, 3], pieces[i, 4] = np.int64(own), ADAPT
        if cost >= own:
            cost, pieces[i, 0] = own, SCAN
        total += cost
    if total < 0.8 * w:
        return count, total
    return add(pieces, 0, SCAN, s, e, 0, 0), w
