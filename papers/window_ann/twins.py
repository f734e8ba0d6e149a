"""Equal rows: which ranks hold the same vector. A graph holds one of them, and a search that meets it meets them all.

RobustPrune keeps one of several equal points and hides whatever lies behind it, so a handful of equal rows (empty texts,
blank images) would cut a graph into pieces. In the graph of ranks [u, v) the first of a class at or after u stands for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from papers.window_ann.compiled import jit


class Twins(NamedTuple):
    """of: (n,) int64 class of each rank, -1 where its row is single, or empty where all are; before: (n,) int64, the rank of
    the same row before this one, -1 for none; ranks[start[c] : start[c + 1]]: the ranks of class c, ascending.
    """

    of: np.ndarray
    before: np.ndarray
    start: np.ndarray
    ranks: np.ndarray


@jit
def _hashes(X, out):
    """A number for the bits of each row; -0 counts as 0."""
    for i in range(len(X)):
        h = np.uint64(1469598103934665603)
        for j in range(X.shape[1]):
            bits = np.uint64(0) if X[i, j] == 0 else np.uint64(np.float32(X[i, j]).view(np.uint32))
            h = (h ^ bits) * np.uint64(1099511628211)
            h ^= h >> np.uint64(29)
        out[i] = h


def find(X: np.ndarray) -> Twins:
    """The equal rows of X (n, d) float32."""
    n = len(X)
    hashes = np.empty(n, np.uint64)
    _hashes(X, hashes)
    order = np.argsort(hashes, kind="stable")
    here = order[1:][hashes[order[1:]] == hashes[order[:-1]]]
    if not len(here):
        return NONE
    back = order[:-1][hashes[order[1:]] == hashes[order[:-1]]]
    same = (X[here] == X[back]).all(axis=1)  # a hash may lie; the pair is then taken for two single rows
    here, back = here[same], back[same]
    if not len(here):
        return NONE
    before = np.full(n, -1, np.int64)
    before[here] = back  # the order is stable: ranks of a class ascend
    return from_before(before)


def from_before(before: np.ndarray) -> Twins:
    """The whole of what `before` says. Raises ValueError where it says what cannot be."""
    if not len(before):
        return NONE
    if (before >= np.arange(len(before))).any() or before.min() < -1:
        raise ValueError("the index is damaged (twins): build it again")
    here = np.flatnonzero(before >= 0)
    first = np.zeros(len(before), bool)
    first[before[here]] = True
    first[here] = False
    of = np.full(len(before), -1, np.int64)
    of[first] = np.arange(first.sum())
    for i in here.tolist():  # a rank comes after the one before it
        of[i] = of[before[i]]
    ranks = np.flatnonzero(of >= 0)
    ranks = ranks[np.argsort(of[ranks], kind="stable")]
    return Twins(of, before, np.searchsorted(of[ranks], np.arange(first.sum() + 1)), ranks)


NONE = Twins(np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int64))


@jit
def stands_for_itself(twins, i, first):
    """Whether rank i is in the graph that begins at rank `first`: no equal row lies between them."""
    return len(twins.of) == 0 or twins.before[i] < first


@jit
def class_of(twins, i):
    return -1 if len(twins.of) == 0 else twins.of[i]


@jit
def from_rank(twins, c, lo):
    """Where in twins.ranks the members of class c at or after rank lo begin."""
    a, b = twins.start[c], twins.start[c + 1]
    while a < b:
        middle = (a + b) // 2
        if twins.ranks[middle] < lo:
            a = middle + 1
        else:
            b = middle
    return a


def representatives(twins: Twins, first: int, m: int) -> np.ndarray:
    """Which of the ranks [first, first + m) are in the graph over them, (m,) bool."""
    return np.ones(m, bool) if len(twins.of) == 0 else twins.before[first : first + m] < first


def first_equal(twins: Twins, i: int, first: int = 0) -> int:
    """The first rank from `first` on with the row of rank i: the one that is in the graph."""
    c = class_of(twins, i)
    return i if c < 0 else int(twins.ranks[from_rank(twins, c, first)])
