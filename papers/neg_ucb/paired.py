"""Comparisons of methods that were played in the same worlds: ratios of mean regrets with paired bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 4_000
LEVEL = 0.95


def ratio(own: Sequence[float], others: Sequence[Sequence[float]], generator: np.random.Generator) -> dict[str, float]:
    """Mean of `own` (worlds,) over the least mean among `others` (methods, worlds): {"", "low", "high"}.

    Worlds are drawn with replacement, the same for all methods, and the best of the others is found anew in each draw.
    A single world has no interval: {""} alone.
    """
    a, b = np.asarray(own, float), np.atleast_2d(np.asarray(others, float))
    if b.shape[1] != len(a):
        raise ValueError(f"own has {len(a)} worlds and others {b.shape[1]}: pairs are needed")
    found = {"": float(a.mean() / max(b.mean(1).min(), 1e-12))}
    if len(a) < 2:
        return found
    draws = generator.integers(len(a), size=(RESAMPLES, len(a)))
    ratios = a[draws].mean(1) / np.maximum(b[:, draws].mean(2).min(0), 1e-12)
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return found | {"low": float(low), "high": float(high)}


def gain(own: Sequence[float], other: Sequence[float], generator: np.random.Generator) -> dict[str, float]:
    """Mean difference own - other over worlds: {"", "low", "high"}, resampled as in `ratio`."""
    d = np.asarray(own, float) - np.asarray(other, float)
    found = {"": float(d.mean())}
    if len(d) < 2:
        return found
    means = d[generator.integers(len(d), size=(RESAMPLES, len(d)))].mean(1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return found | {"low": float(low), "high": float(high)}


def named(name: str, found: dict[str, float]) -> dict[str, float]:
    """{name, name.low, name.high}: as claims find a metric and its interval."""
    return {f"{name}.{end}" if end else name: value for end, value in found.items()}


def text(found: dict[str, float]) -> str:
    """ "0.71 (0.60 to 0.83)"."""
    ends = f" ({found['low']:.2f} to {found['high']:.2f})" if "low" in found else ""
    return f"{found['']:.2f}{ends}"
