"""Figures of a classifier: accuracy, calibration error, neighbour purity, and paired differences with their interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from papers.kd_aux.losses import instance_posterior


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Share of rows whose largest logit is their class, in percent."""
    return 100.0 * float((logits.argmax(dim=1) == y).double().mean())


def calibration_error(probability: Tensor, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error: |accuracy - confidence| over equal bins of confidence, weighted by their rows; in percent."""
    confidence, guess = probability.double().max(dim=1)
    right = (guess == y).double()
    bin_of = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap = torch.zeros(bins, dtype=torch.float64).index_add(0, bin_of, right - confidence)
    return 100.0 * float(gap.abs().sum() / len(y))


def purity(
    s: Tensor, y: Tensor, queue_t: Tensor, queue_y: Tensor, tau: float = 0.1, mask: Tensor | None = None
) -> float:
    """Mean mass of p_S(z|x) on instances of x's own class."""
    p = instance_posterior(s, queue_t, tau, mask).exp()
    return float((p * (queue_y == y[:, None])).sum(dim=1).mean())


def paired(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Mean difference over seeds that both had, its standard error, and Student's 95 % interval (low, high).

    ValueError for lists of other lengths or fewer than two.
    """
    from scipy.stats import t

    if len(ours) != len(theirs) or len(ours) < 2:
        raise ValueError(f"{len(ours)} and {len(theirs)} values: a paired interval needs the same seeds, at least two")
    d = np.asarray(ours, float) - np.asarray(theirs, float)
    error = float(d.std(ddof=1) / np.sqrt(len(d)))
    reach = float(t.ppf(0.975, len(d) - 1)) * error
    return {"mean": float(d.mean()), "se": error, "low": float(d.mean()) - reach, "high": float(d.mean()) + reach}


def paired_bootstrap(
    ours: Tensor, theirs: Tensor, generator: np.random.Generator, draws: int = 2000
) -> dict[str, float]:
    """Difference of two accuracies on the same rows, in points, with the 95 % interval of resampled rows. ours, theirs (N,) bool."""
    d = 100.0 * (ours.double() - theirs.double()).numpy()
    means = np.array([d[generator.integers(len(d), size=len(d))].mean() for _ in range(draws)])
    return {"mean": float(d.mean()), "low": float(np.quantile(means, 0.025)), "high": float(np.quantile(means, 0.975))}
