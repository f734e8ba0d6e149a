"""The beta-WST: a beta-ary segment tree over ranks (sec. 3, Algorithms 1 and 2).

Row r cuts [0, n) into beta^r consecutive buckets whose sizes differ by at most one; a bucket's children are its beta cuts in
the next row; rows go on until a bucket holds at most `cutoff` ranks. Nodes are numbered row by row, left to right.
"""

from __future__ import annotations

import numpy as np

from papers.window_ann.compiled import jit


class Tree:
    """The buckets of a beta-WST over n ranks.

    offsets: (sum over rows of beta^r + 1,) int64, row r's bucket borders at offsets[first[r]:first[r + 1]].
    Raises ValueError unless n >= 1, beta >= 2 and cutoff >= beta (smaller leaves would be empty).
    """

    def __init__(self, n: int, beta: int = 2, cutoff: int = 1000):
        if n < 1:
            raise ValueError(f"n is {n}: a tree needs at least one point")
        if beta < 2 or int(beta) != beta:
            raise ValueError(f"beta is {beta}: give a whole number of at least 2")
        if cutoff < beta:
            raise ValueError(f"cutoff is {cutoff}: give at least beta = {beta}, else leaves are empty")
        self.n, self.beta, self.cutoff = int(n), int(beta), int(cutoff)
        rows = [np.array([0, n], np.int64)]
        while rows[-1][1] > cutoff:
            rows.append(_split(rows[-1], self.beta))
        self.offsets = np.concatenate(rows)
        self.first = np.cumsum([0] + [len(row) for row in rows])

    @property
    def rows(self) -> int:
        return len(self.first) - 1

    def row(self, r: int) -> np.ndarray:
        """The borders of row r: (beta^r + 1,) int64."""
        return self.offsets[self.first[r] : self.first[r + 1]]

    def buckets(self) -> np.ndarray:
        """Every node's rank interval in node order, (nodes, 2) int64."""
        return np.concatenate([np.stack([row[:-1], row[1:]], 1) for row in map(self.row, range(self.rows))])

    def node(self, row: int, bucket: int) -> int:
        """The number of a bucket among all nodes: each earlier row has one border more than buckets."""
        return int(self.first[row]) - row + bucket

    def row_bucket(self, node: int) -> tuple[int, int]:
        row = int(np.searchsorted(self.first - np.arange(self.rows + 1), node, "right")) - 1
        return row, node - self.node(row, 0)

    def decompose(self, s: int, e: int) -> tuple[list[tuple[int, int]], tuple[int, int], tuple[int, int]]:
        """Cover [s, e) by disjoint maximal buckets and two ragged ends (Algorithm 2).

        Returns (nodes [(row, bucket)], left, right); where no bucket fits, nodes is empty and left is the whole interval.
        """
        if not 0 <= s <= e <= self.n:
            raise ValueError(f"[s, e) is [{s}, {e}): it must lie inside [0, {self.n})")
        out = np.empty(2 * self.beta * self.rows + 2, np.int64)
        count, left, right = decompose(self.offsets, self.first, s, e, out)
        return [self.row_bucket(int(node)) for node in out[:count]], (s, int(left)), (int(right), e)

    def smallest(self, s: int, e: int) -> tuple[int, int]:
        """(row, bucket) of the smallest bucket that contains [s, e)."""
        return self.row_bucket(int(smallest_containing(self.offsets, self.first, s, e)))


def _split(row: np.ndarray, beta: int) -> np.ndarray:
    """The next row's borders: each bucket of size m becomes `m - beta (ceil(m / beta) - 1)` big and else small ones."""
    sizes = np.diff(row)
    big = -(-sizes // beta)
    number_big = sizes - (big - 1) * beta
    children = big[:, None] - (np.arange(beta) >= number_big[:, None])  # (buckets, beta)
    return np.concatenate([[0], np.cumsum(children)])


@jit
def at_least(offsets, lo, hi, value):
    """The first index in [lo, hi) with offsets[index] >= value, else hi."""
    while lo < hi:
        middle = (lo + hi) // 2
        if offsets[middle] < value:
            lo = middle + 1
        else:
            hi = middle
    return lo


@jit
def find_center(offsets, first, s, e):
    """The largest buckets inside [s, e): (row, first bucket, bucket after the last), row -1 where none fits."""
    for row in range(len(first) - 1):
        base, end = first[row], first[row + 1]
        i = at_least(offsets, base, end, s)
        j = i
        while j + 1 < end and offsets[j + 1] <= e:
            j += 1
        if j > i:
            return row, i - base, j - base
    return -1, 0, 0


@jit
def decompose(offsets, first, s, e, out):
    """Algorithm 2's nodes into `out`; returns (how many, L, R): [L, R) is covered, [s, L) and [R, e) are the ragged ends."""
    if s >= e:
        return 0, e, e
    row, i, j = find_center(offsets, first, s, e)
    if row < 0:
        return 0, e, e
    count = 0
    for bucket in range(i, j):
        out[count] = first[row] - row + bucket
        count += 1
    left, right = offsets[first[row] + i], offsets[first[row] + j]
    for lower in range(row + 1, len(first) - 1):
        base, end = first[lower], first[lower + 1]
        k = at_least(offsets, base, end, left)  # borders of a row are borders of every lower row
        while k > base and offsets[k - 1] >= s:
            k -= 1
            out[count] = k - lower
            count += 1
        left = offsets[k]
        k = at_least(offsets, base, end, right)
        while k + 1 < end and offsets[k + 1] <= e:
            out[count] = k - lower
            count += 1
            k += 1
        right = offsets[k]
    return count, left, right


@jit
def smallest_containing(offsets, first, s, e):
    """The node reached from the root by going down while one child contains [s, e)."""
    node = 0
    for row in range(len(first) - 1):
        base, end = first[row], first[row + 1]
        k = at_least(offsets, base, end, s + 1) - 1  # the bucket that holds rank s
        if k + 1 >= end or offsets[k + 1] < e:
            break
        node = k - row
    return node
