"""Synthetic linear layers with what makes real ones hard to quantise: the data of experiments E1 and E3."""

import torch
from torch import Tensor

from papers.quip_sharp.incoherence import random_orthogonal


def layer(
    m: int, n: int, generator: torch.Generator, *, outliers: int = 4, outlier_gain: float = 20.0
) -> tuple[Tensor, Tensor]:
    """A weight W (m, n) of unit rms and an input second moment H (n, n) of mean diagonal 1.01. float32, float64.

    W: heavy tails (log-normal factors per entry) and spread row and column scales. H: inputs with the spectrum 1/i in a
    random basis (so tr D << tr H), then `outliers` channels scaled by `outlier_gain` (so mu_H is large), + 0.01 I.
    """

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    W = normal(m, n) * (0.5 * normal(m, n)).exp() * (0.5 * normal(m, 1)).exp() * (0.3 * normal(1, n)).exp()
    W = W / W.square().mean().sqrt()
    A = random_orthogonal(n, generator)
    X = normal(8 * n, n) * torch.arange(1, n + 1, dtype=torch.float64) ** -0.5 @ A.T  # (8n, n)
    X[:, torch.randperm(n, generator=generator)[:outliers]] *= outlier_gain
    H = X.T @ X / len(X)
    H = H / H.diagonal().mean() + 0.01 * torch.eye(n, dtype=torch.float64)
    return W.float(), H
