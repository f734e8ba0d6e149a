"""The law p of the features, and what arguments must satisfy. Numpy alone, so that the theory needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def check_frequencies(p: ArrayLike) -> NDArray:
    """p as a (K,) float64 array. Raises ValueError unless it is a law on at least two features.

    A law given in float32 or less sums to one only to its own digits: it is normalised.
    """
    given = np.asarray(p)
    p = given.astype(float)
    if p.ndim != 1 or len(p) < 2:
        raise ValueError(f"p has shape {p.shape}: give one frequency for each of at least two features")
    if not np.isfinite(p).all() or (p <= 0).any():
        raise ValueError("p must be positive: leave out features that never occur")
    short = np.issubdtype(given.dtype, np.floating) and given.dtype.itemsize < 8
    if abs(p.sum() - 1) > (10 * np.finfo(given.dtype).eps if short else 1e-9):
        raise ValueError(f"p sums to {p.sum():.10g}, not to one")
    return p / p.sum() if short else p


def whole(name: str, value: Any) -> int:
    """`value` as an int. Raises ValueError that names the argument unless it is a whole number; 4.0 is one."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or not math.isfinite(value) or value % 1:
        raise ValueError(f"{name} is {value!r}: it must be a whole number")
    return int(value)


def check_length(N: float) -> None:
    """Raise ValueError unless N examples are a prompt."""
    if isinstance(N, str) or not N >= 1:
        raise ValueError(f"N is {N!r}: a prompt needs at least one example")
    if math.isfinite(N) and N % 1:
        raise ValueError(f"N is {N}: a prompt has a whole number of examples")


def check_eps(eps: float) -> None:
    """Raise ValueError unless a loss eps can be reached."""
    if not eps > 0:
        raise ValueError(f"eps is {eps}: it must be positive")


def frequencies(
    kind: str, K: int, p1: float = 0.5, n_dominant: int = 1, s: float = 1.0, p: Sequence[float] | None = None
) -> NDArray:
    """The law of features. kind: balanced | dominant (feature 1 has p1) | two_level (n_dominant features share p1) |
    zipf (p_k ~ k^-s) | given (p itself). Returns (K,). Raises ValueError for anything that is not a law on K features.
    """
    K, n_dominant = whole("K", K), whole("n_dominant", n_dominant)
    if K < 2:
        raise ValueError(f"K is {K}: at least two features are needed")
    if kind == "balanced":
        return np.full(K, 1 / K)
    if kind in ("dominant", "two_level"):
        n = 1 if kind == "dominant" else n_dominant
        if not 0 < p1 < 1:
            raise ValueError(f"p1 is {p1}: it must lie strictly between 0 and 1")
        if not 1 <= n < K:
            raise ValueError(f"n_dominant is {n}: it must lie between 1 and K - 1 = {K - 1}")
        return np.concatenate([np.full(n, p1 / n), np.full(K - n, (1 - p1) / (K - n))])
    if kind == "zipf":
        with np.errstate(over="ignore", under="ignore"):
            weights = np.arange(1, K + 1, dtype=float) ** -s
        if not ((weights > 0) & np.isfinite(weights)).all() or not np.isfinite(weights.sum()):
            raise ValueError(f"s is {s}: k^-s must be a positive number for every k up to K = {K}")
        return weights / weights.sum()
    if kind == "given":
        if p is None or len(p) != K:
            raise ValueError(f"p has {0 if p is None else len(p)} entries for K = {K} features")
        return check_frequencies(p)
    raise ValueError(f"kind is {kind!r}: use balanced, dominant, two_level, zipf or given")
