"""What is said of an error profile e (T,), e_i being the mean squared error at step i over test windows and channels."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def window_std(profile: ArrayLike) -> float:
    """Window STD: the population standard deviation (ddof 0) of a profile over its T steps; not over windows."""
    return float(np.std(_vector(profile)))


def infeasible_rate(profile: ArrayLike, levels: ArrayLike) -> float:
    """The share of steps above their level."""
    return float(np.mean(_vector(profile) > np.asarray(levels)))


def mean_violation(profile: ArrayLike, levels: ArrayLike) -> float:
    """mean_i max(0, e_i - eps_i)."""
    return float(np.mean(np.maximum(0.0, _vector(profile) - np.asarray(levels))))


def cvar(profile: ArrayLike, alpha: float) -> float:
    """The mean of the e_i at or above their (1 - alpha) quantile."""
    e = _vector(profile)
    return float(e[e >= np.quantile(e, 1.0 - alpha)].mean())


def linearity(profile: ArrayLike) -> float:
    """Pearson correlation of e_i with i; 0 for a flat profile."""
    e = _vector(profile)
    return float(np.corrcoef(e, np.arange(len(e)))[0, 1]) if e.std() > 0 else 0.0


def describe(profile: ArrayLike, mae: ArrayLike | None = None, levels: ArrayLike | None = None) -> dict[str, float]:
    """The figures of a table's row: mean, Window STD, max, IQR, CVaR and, given levels, how they are met."""
    e = _vector(profile)
    low, high = np.quantile(e, [0.25, 0.75])
    row = {
        "mse": float(e.mean()),
        "window_std": window_std(e),
        "max_step": float(e.max()),
        "iqr": float(high - low),
        "cvar_10": cvar(e, 0.1),
        "linearity": linearity(e),
    }
    if mae is not None:
        row["mae"] = float(np.asarray(mae).mean())
    if levels is not None:
        row |= {"infeasible": infeasible_rate(e, levels), "violation": mean_violation(e, levels)}
    return row


def block_bootstrap(losses: NDArray[np.float64], statistic, generator: np.random.Generator, *, block: int, draws: int = 200,
                    coverage: float = 0.9) -> tuple[float, float]:  # fmt: skip
    """An interval for `statistic(profile)`, windows being resampled in blocks since neighbours overlap.

    losses: (N, T) squared error of each window at each step, channels averaged. block: windows in a block, at least T.
    """
    N = len(losses)
    starts = np.arange(0, max(1, N - block + 1))
    count = -(-N // block)
    found = []
    for _ in range(draws):
        rows = (generator.choice(starts, count)[:, None] + np.arange(min(block, N))).ravel()[:N]
        found.append(statistic(np.nanmean(losses[rows], axis=0)))  # NaN: a masked gap
    low, high = np.quantile(found, [(1 - coverage) / 2, (1 + coverage) / 2])
    return float(low), float(high)


def paired_interval(differences: ArrayLike, coverage: float = 0.95) -> tuple[float, float]:
    """A t interval for the mean of paired differences (seeds,), at least two."""
    from scipy.stats import t

    d = _vector(differences)
    reach = float(t.ppf((1 + coverage) / 2, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d)))
    return float(d.mean() - reach), float(d.mean() + reach)


def _vector(profile: ArrayLike) -> NDArray[np.float64]:
    e = np.asarray(profile, dtype=float)
    if e.ndim != 1 or not e.size:
        raise ValueError(f"profile must be a vector with a loss for each step, not of shape {e.shape}")
    return e
