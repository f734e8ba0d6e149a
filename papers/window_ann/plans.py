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
    """What searches cost, measured (see `planner`): log2 beam and log2 distances for a node size and a blowup.

    sizes: (a,) log2 node sizes, ascending; blowups: (b,) log2; beam, cost: (a, b); graph: (2,), how many scanned distances
    one distance of a graph search is worth, and the least distances of any search.
    """

    sizes: np.ndarray
    blowups: np.ndarray
    beam: np.ndarray
    cost: np.ndarray
    graph: np.ndarray


def no_costs() -> Costs:
    return Costs(np.zeros(1), np.zeros(1), np.zeros((1, 1)), np.full((1, 1), NEVER), np.array([1.0, 2.0**NEVER]))


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
def lookup(table, costs, x, y):
    """Bilinear in (log2 size, log2 blowup), clamped in size; beyond the last blowup the value doubles as the blowup does."""
    i = 0
    while i + 2 < len(costs.sizes) and costs.sizes[i + 1] <= x:
        i += 1
    j = 0
    while j + 2 < len(costs.blowups) and costs.blowups[j + 1] <= y:
        j += 1
    beyond = max(0.0, y - costs.blowups[-1])
    a = b = 0.0
    i1, j1 = min(i + 1, len(costs.sizes) - 1), min(j + 1, len(costs.blowups) - 1)
    if i1 > i:
        a = min(1.0, max(0.0, (x - costs.sizes[i]) / (costs.sizes[i1] - costs.sizes[i])))
    if j1 > j:
        b = min(1.0, max(0.0, (y - costs.blowups[j]) / (costs.blowups[j1] - costs.blowups[j])))
    low = (1 - a) * table[i, j] + a * table[i1, j]
    high = (1 - a) * table[i, j1] + a * table[i1, j1]
    return (1 - b) * low + b * high + beyond


@jit
def piece_cost(layout, live, costs, node, lo, hi):
    """(cost, log2 beam) of answering [lo, hi) on a node, by what was measured; a scan costs hi - lo, with beam 0."""
    w = np.float64(hi - lo)
    if node == SCAN or layout.graph[node] < 0:
        return w, 0.0
    x = np.log2(np.float64(layout.end[node] - layout.start[node]))
    y = x - np.log2(max(np.float64(live[hi] - live[lo]), 1.0))
    cost = costs.graph[0] * 2.0 ** min(lookup(costs.cost, costs, x, y), NEVER)
    if cost >= w:
        return w, 0.0
    return cost, lookup(costs.beam, costs, x, y)


@jit
def price(layout, live, costs, pieces, count, limit):
    """What a plan will cost when each of its pieces is done the cheaper way; stops counting at `limit`."""
    total = 0.0
    for i in range(count):
        cost, _ = piece_cost(layout, live, costs, pieces[i, 0], pieces[i, 1], pieces[i, 2])
        total += cost
        if total >= limit:
            break
    return total


@jit
def settle(layout, live, costs, pieces, count, max_beam):
    """Give each graph piece its calibrated beam, or make it a scan where that is cheaper."""
    for i in range(count):
        _, beam = piece_cost(layout, live, costs, pieces[i, 0], pieces[i, 1], pieces[i, 2])
        if beam == 0.0 or beam > np.log2(np.float64(max_beam)):
            pieces[i, 0] = SCAN
        else:
            pieces[i, 3] = np.int64(np.ceil(2.0**beam))
            pieces[i, 4] = 1


@jit
def plan(layout, live, costs, s, e, options, pieces, spare):
    """The pieces of options.method, or of the cheapest method by `costs`; returns (how many, which method, cost).

    Planning must cost less than it saves, so what cannot win is not priced: nothing below the price of the cheapest search;
    of the two single nodes around the window the smaller one; several nodes only where the single one costs over twice
    what a node of exactly the window would.
    """
    if options.method != AUTO:
        return plan_single(layout, options.method, s, e, options, pieces), options.method, 0.0
    count = plan_single(layout, PREFILTER, s, e, options, pieces)
    best, least = PREFILTER, np.float64(e - s)
    if least <= costs.graph[0] * costs.graph[1]:
        return count, best, least
    row, bucket = smallest_row(layout.size, layout.shift, layout.counts, s, e)
    node, method = layout.number[row] + bucket, SUPER
    inner = smallest_containing(layout.offsets, layout.first, s, e)
    if layout.end[inner] - layout.start[inner] < layout.end[node] - layout.start[node]:
        node, method = inner, OPTIMIZED
    cost, _ = piece_cost(layout, live, costs, node, s, e)
    if cost < least:
        best, least = method, cost
        count = add(pieces, 0, node, s, e, 0, 1)
    exact = costs.graph[0] * 2.0 ** min(lookup(costs.cost, costs, np.log2(np.float64(e - s)), 0.0), NEVER)
    if least > 2 * exact:
        for several in (TREE, THREE_SPLIT):
            number = plan_single(layout, several, s, e, options, spare)
            cost = price(layout, live, costs, spare, number, least)
            if cost < least:
                best, least, count = several, cost, number
                pieces[:number] = spare[:number]
    settle(layout, live, costs, pieces, count, options.max_beam)
    return count, best, least
