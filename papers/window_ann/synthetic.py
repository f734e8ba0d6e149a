"""Vectors, labels and windows: the paper's adversarial set, a stand-in mixture, and windows of a given share of the points."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from papers.window_ann.windows import rank_interval


class Workload(NamedTuple):
    """X (n, d) float32, labels (n,), queries (nq, d); lo, hi (nq,) where the data come with windows of their own."""

    X: np.ndarray
    labels: np.ndarray
    queries: np.ndarray
    lo: np.ndarray | None = None
    hi: np.ndarray | None = None


def adversarial(
    rng: np.random.Generator,
    clusters: int = 100,
    size: int = 10_000,
    d: int = 100,
    variance: float = 0.01,
    queries: int | None = None,
) -> Workload:
    """The paper's adversarial data (sec. 6): every query lies in one cluster and its window is another cluster.

    Cluster i: centre mu_i ~ N(0, I), `size` points ~ N(mu_i, variance I) with labels i - 0.5 + U(0, 1). For every ordered
    pair i != j a query ~ N(mu_i, variance I) with window [j - 0.5, j + 0.5]; `queries` of them are drawn, all if None. All
    vectors are then normalised.
    """
    mu = rng.standard_normal((clusters, d))
    sd = np.sqrt(variance)
    X = (mu[:, None, :] + sd * rng.standard_normal((clusters, size, d))).reshape(-1, d)
    labels = np.repeat(np.arange(clusters), size) - 0.5 + rng.random(clusters * size)
    pairs = np.array([(i, j) for i in range(clusters) for j in range(clusters) if i != j])
    if queries is not None:
        pairs = pairs[np.sort(rng.choice(len(pairs), queries, replace=False))]
    Q = mu[pairs[:, 0]] + sd * rng.standard_normal((len(pairs), d))
    return Workload(normalised(X), labels, normalised(Q), pairs[:, 1] - 0.5, pairs[:, 1] + 0.5)


def mixture(
    rng: np.random.Generator, n: int, queries: int, d: int = 96, centres: int = 200, scale: float = 0.3, rank: int = 16
) -> Workload:
    """A stand-in for learned embeddings: `centres` Gaussian clouds on the sphere, each of low rank, labels U(0, 1).

    Centres ~ N(0, I); a point is its centre + scale * A z with A (d, rank) standard normal per centre, z (rank,). So the
    intrinsic dimension is `rank`: an isotropic cloud would be a set on which no graph index works.
    """
    mu = rng.standard_normal((centres, d))
    A = rng.standard_normal((centres, d, rank)).astype(np.float32) / np.sqrt(rank)
    which = rng.integers(centres, size=n + queries)
    z = rng.standard_normal((n + queries, rank)).astype(np.float32)
    X = mu[which].astype(np.float32)
    for c in range(centres):
        mine = which == c
        X[mine] += np.float32(scale) * np.sqrt(np.float32(d / rank)) * z[mine] @ A[c].T
    X = normalised(X)
    return Workload(X[:n], rng.random(n), X[n:])


class Dated(NamedTuple):
    """A workload whose queries have labels of their own: own (nq,), inside the windows that they ask for."""

    X: np.ndarray
    labels: np.ndarray
    queries: np.ndarray
    own: np.ndarray


def independent(rng: np.random.Generator, n: int, queries: int, d: int) -> Dated:
    """The mixture: labels say nothing of the vectors."""
    work = mixture(rng, n, queries, d=d)
    return Dated(work.X, work.labels, work.queries, rng.random(queries))


def drifting(rng: np.random.Generator, n: int, queries: int, d: int) -> Dated:
    """Topics that change with time: points around a random walk, labels their time; a query is close to a point and asks about its time."""
    return _along(rng, n, queries, np.cumsum(rng.standard_normal((101, d)), axis=0) / 3, 1)


def recurring(rng: np.random.Generator, n: int, queries: int, d: int, periods: int = 8) -> Dated:
    """Topics that come back: the walk ends where it began and is gone round `periods` times."""
    walk = np.cumsum(rng.standard_normal((21, d)), axis=0) / 3
    walk[-1] = walk[0]
    return _along(rng, n, queries, walk, periods)


def _along(rng: np.random.Generator, n: int, queries: int, walk: np.ndarray, periods: int) -> Dated:
    time = np.sort(rng.random(n))
    place = (time * periods) % 1 * (len(walk) - 1)
    X = np.stack([np.interp(place, np.arange(len(walk)), column) for column in walk.T], axis=1)
    X = (X + 0.5 * rng.standard_normal(X.shape)).astype(np.float32)
    near = rng.choice(n, queries, replace=False)
    return Dated(X, time, (X[near] + 0.1 * rng.standard_normal((queries, X.shape[1]))).astype(np.float32), time[near])


LABELS = {"independent": independent, "drifting": drifting, "recurring": recurring}


def with_copies(rng: np.random.Generator, X: np.ndarray, share: float) -> np.ndarray:
    """X with a share of its rows replaced by one vector in the middle: empty texts, blank images."""
    X, some = X.copy(), rng.choice(len(X), int(len(X) * share), replace=False)
    X[some] = X.mean(axis=0)
    return X


def windows_around(
    rng: np.random.Generator, labels: np.ndarray, own: np.ndarray, fraction: float
) -> tuple[np.ndarray, np.ndarray]:
    """Windows of a share of the points that hold the place of each label in `own`. Returns lo, hi (nq,)."""
    ordered = np.sort(labels)
    width = max(1, round(len(ordered) * fraction))
    first = np.searchsorted(ordered, own) - (rng.random(len(own)) * width).astype(int)
    first = np.clip(first, 0, len(ordered) - width)
    return ordered[first], ordered[first + width - 1]


def normalised(X: np.ndarray) -> np.ndarray:
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)


def windows(labels: np.ndarray, fraction: float, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """n closed windows that each hold m + 1 points, m = floor(len(labels) * fraction), as the paper draws them (sec. 6).

    A start u ~ U{0 .. N - m - 1} among the sorted labels; the ends then move outward by U(0, 1) of the gap to the next label
    (a gap of 1 at either end). fraction 1: everything, the ends 1 to 100 beyond the labels. Returns lo, hi (n,) float64.
    With tied labels a window holds all ties of its ends. Raises ValueError unless 0 < fraction <= 1.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction is {fraction}: give a share of the points, above 0 and at most 1")
    l = np.sort(np.asarray(labels).astype(np.float64))
    if fraction == 1:
        return l[0] - rng.integers(1, 101, n), l[-1] + rng.integers(1, 101, n)
    N, m = len(l), int(len(l) * fraction)
    u = rng.integers(0, N - m, n)
    v = u + m
    below, above = rng.random(n), rng.random(n)
    gap_below = np.where(u > 0, l[u] - l[np.maximum(u - 1, 0)], 1.0)
    gap_above = np.where(v < N - 1, l[np.minimum(v + 1, N - 1)] - l[v], 1.0)
    return l[u] - below * gap_below * (1 - 1e-9), l[v] + above * gap_above * (1 - 1e-9)


def truth(X: np.ndarray, labels: np.ndarray, Q: np.ndarray, lo: np.ndarray, hi: np.ndarray, k: int) -> np.ndarray:
    """Exact k nearest rows of X in each closed window, (nq, k) int64, -1 missing: BLAS in blocks, then exact distances.

    The oracle for everything else, in numpy alone. Ties in distance go to the lower label, then the lower row.
    """
    order = np.argsort(labels, kind="stable")
    X, labels = X[order].astype(np.float32), labels[order]
    S, E = rank_interval(labels, lo, hi)
    ids = np.full((len(Q), k), -1)
    for i, (s, e) in enumerate(zip(S.tolist(), E.tolist(), strict=True)):
        if s == e:
            continue
        norm = (X[s:e] ** 2).sum(1) - 2 * (X[s:e] @ Q[i])
        near = np.arange(e - s)
        if e - s > 4 * k:
            near = np.sort(np.argpartition(norm, 4 * k - 1)[: 4 * k])
        exact = ((X[s + near].astype(np.float64) - Q[i].astype(np.float64)) ** 2).sum(1)
        best = near[np.argsort(exact, kind="stable")[:k]]
        ids[i, : len(best)] = order[s + best]
    return ids
