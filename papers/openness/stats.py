"""Statistics of small, tied, ordinal samples: exact sign test, Holm, Kendall's and Spearman's coefficients, agreement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class SignTest(NamedTuple):
    """Signs of paired differences and the exact two-sided p of as uneven a split."""

    plus: int
    minus: int
    p: float


class Correlation(NamedTuple):
    """A coefficient, its p, and the ends of its 95% interval (nan where none was asked for)."""

    value: float
    p: float
    low: float
    high: float
    n: int


def sign_test(differences: Sequence[float]) -> SignTest:
    """Two-sided exact binomial test that + and - are as likely; ties (0) are left out. p is 1 where nothing is left."""
    plus, minus = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return SignTest(plus, minus, sign_p(plus, minus))


def sign_p(plus: int, minus: int) -> float:
    """The exact two-sided p of these counts of signs."""
    from math import comb

    n, k = plus + minus, min(plus, minus)
    return min(1.0, 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    adjusted, worst = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = worst
    return adjusted


def ranks(x: Sequence[float] | np.ndarray) -> np.ndarray:
    """Average ranks from 1."""
    values, inverse, counts = np.unique(np.asarray(x, dtype=float), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + 1 + ends) / 2)[inverse] if len(values) else np.zeros(0)


def kendall(
    x: Sequence[float], y: Sequence[float], resamples: int = 0, generator: np.random.Generator | None = None
) -> Correlation:
    """Kendall's tau-b (ties in both), its asymptotic p, and a bootstrap interval over pairs where asked for."""
    from scipy.stats import kendalltau

    found = kendalltau(x, y)
    return _with_interval(
        lambda a, b: float(kendalltau(a, b).statistic),
        x,
        y,
        float(found.statistic),
        float(found.pvalue),
        resamples,
        generator,
    )


def spearman(x: Sequence[float], y: Sequence[float], resamples: int = 0, generator: np.random.Generator | None = None,
             permutations: int = 0) -> Correlation:  # fmt: skip
    """Spearman's rho on average ranks, its p (of the t distribution, or of permutations), and a bootstrap interval.

    Raises ValueError where x and y differ in length or have fewer than three pairs.
    """
    a, b = _pair(x, y)
    rho = _pearson(ranks(a), ranks(b))
    if permutations:
        rng = generator if generator is not None else np.random.default_rng(0)
        ra, rb = ranks(a), ranks(b)
        hits = sum(abs(_pearson(ra, rng.permutation(rb))) >= abs(rho) - 1e-12 for _ in range(permutations))
        p = (hits + 1) / (permutations + 1)
    else:
        p = _t_p(rho, len(a))
    return _with_interval(lambda u, v: _pearson(ranks(u), ranks(v)), a, b, rho, p, resamples, generator)


def partial_spearman(x: Sequence[float], y: Sequence[float], given: Sequence[float]) -> float:
    """Spearman's rho of x and y with the ranks of a third variable held fixed."""
    a, b, c = ranks(x), ranks(y), ranks(given)
    xy, xz, yz = _pearson(a, b), _pearson(a, c), _pearson(b, c)
    return (xy - xz * yz) / float(np.sqrt((1 - xz**2) * (1 - yz**2)))


def _pair(x: Sequence[float], y: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(a) != len(b) or len(a) < 3:
        raise ValueError(f"x has {len(a)} values and y {len(b)}: give as many of each, at least three")
    return a, b


def _pearson(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else float("nan")


def _t_p(rho: float, n: int) -> float:
    from scipy.special import betainc

    if abs(rho) >= 1:
        return 0.0
    t2 = rho * rho * (n - 2) / (1 - rho * rho)
    return float(betainc((n - 2) / 2, 0.5, (n - 2) / (n - 2 + t2)))


def _with_interval(statistic, x, y, value, p, resamples, generator) -> Correlation:
    if not resamples:
        return Correlation(value, p, float("nan"), float("nan"), len(x))
    a, b = _pair(x, y)
    rng = generator if generator is not None else np.random.default_rng(0)
    drawn = [statistic(a[chosen], b[chosen]) for chosen in rng.integers(0, len(a), size=(resamples, len(a)))]
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return Correlation(value, p, float(low), float(high), len(x))


def mean_interval(x: Sequence[float], resamples: int, generator: np.random.Generator) -> tuple[float, float]:
    """95% bootstrap interval of a mean."""
    values = np.asarray(x, dtype=float)
    means = values[generator.integers(0, len(values), size=(resamples, len(values)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def cohen_kappa(a: Sequence[float], b: Sequence[float], weights: str | None = None) -> float:
    """Cohen's kappa of two raters; weights "linear" or "quadratic" for ordered ratings. nan where both give one rating only."""
    if len(a) != len(b) or not len(a):
        raise ValueError(f"the raters give {len(a)} and {len(b)} ratings: give as many of each")
    values = sorted({*a, *b})
    place = {value: i for i, value in enumerate(values)}
    observed = np.zeros((len(values), len(values)))
    for u, v in zip(a, b, strict=True):
        observed[place[u], place[v]] += 1
    observed /= len(a)
    expected = np.outer(observed.sum(1), observed.sum(0))
    apart = np.abs(np.subtract.outer(np.arange(len(values)), np.arange(len(values)))).astype(float)
    if weights not in (None, "linear", "quadratic"):
        raise ValueError(f"weights is {weights!r}: choose linear, quadratic or None")
    cost = (apart > 0).astype(float) if weights is None else apart if weights == "linear" else apart**2
    chance = float((cost * expected).sum())
    return 1 - float((cost * observed).sum()) / chance if chance else float("nan")


def krippendorff_alpha(ratings: Sequence[Sequence[float | None]], level: str = "ordinal") -> float:
    """Krippendorff's alpha. ratings: one row for each rater, None where a unit was not rated. level: "ordinal" | "nominal" | "interval"."""
    if level not in ("ordinal", "nominal", "interval"):
        raise ValueError(f"level is {level!r}: choose ordinal, nominal, interval")
    columns = [[value for value in unit if value is not None and value == value] for unit in zip(*ratings, strict=True)]
    units = [unit for unit in columns if len(unit) > 1]
    values = sorted({value for unit in units for value in unit})
    if not values:
        return float("nan")
    place = {value: i for i, value in enumerate(values)}
    together = np.zeros((len(values), len(values)))
    for unit in units:
        counts = np.bincount([place[value] for value in unit], minlength=len(values)).astype(float)
        together += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    n = together.sum(1)
    if level == "nominal":
        apart = 1.0 - np.eye(len(values))
    elif level == "interval":
        apart = np.subtract.outer(np.array(values, dtype=float), np.array(values, dtype=float)) ** 2
    else:  # ranks between two ratings, half of each end
        below = np.cumsum(n) - n / 2
        apart = np.subtract.outer(below, below) ** 2
    chance = float((np.outer(n, n) * apart).sum() - (n * np.diag(apart)).sum()) / (n.sum() - 1)
    return 1 - float((together * apart).sum()) / chance if chance else float("nan")


def gamma(a: Sequence[float], b: Sequence[float]) -> float:
    """Goodman and Kruskal's gamma: concordant less discordant pairs, ties left out. nan where all are tied."""
    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    signs = np.sign(np.subtract.outer(x, x) * np.subtract.outer(y, y))[np.triu_indices(len(x), 1)]
    untied = np.abs(signs).sum()
    return float(signs.sum() / untied) if untied else float("nan")


def terciles(x: Sequence[float]) -> list[int]:
    """0, 1 or 2: the third of the sample that each value falls in; equal values fall together."""
    cuts = np.quantile(np.asarray(x, dtype=float), [1 / 3, 2 / 3])
    return [int(sum(value > cut for cut in cuts)) for value in x]
