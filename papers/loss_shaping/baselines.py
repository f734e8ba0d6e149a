"""What constrained training is compared with: other ways to choose the weights of the step losses.

Each has `weights(losses) -> (n,)` and `step(losses)`, as `DualVariables` does. ERM and a fixed re-weighting are
`shaping.Fixed`; the penalty with a fixed rho is what multipliers replace.
"""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from papers.loss_shaping.constraints import Weighting, checked_levels
from papers.loss_shaping.shaping import Fixed


def erm(n: int) -> Fixed:
    """Weight 1/n each."""
    return Fixed(torch.full((n,), 1.0 / n))


def reweight(profile: ArrayLike, power: float = 1.0) -> Fixed:
    """Fixed weights proportional to a power of an ERM profile (n,), summing to 1: hard steps count more."""
    w = torch.as_tensor(profile, dtype=torch.float64) ** power
    return Fixed((w / w.sum()).float())


class Penalty(Weighting):
    """1/n sum_i l_i + rho/n sum_i [l_i - eps_i]_+ with one fixed rho. levels: (n,)."""

    levels: Tensor

    def __init__(self, levels: ArrayLike | Tensor, rho: float):
        super().__init__()
        self.rho = rho
        self.register_buffer("levels", checked_levels(levels).float())

    def weights(self, losses: Tensor) -> Tensor:
        return (1.0 + self.rho * (losses > self.levels)) / len(self.levels)

    def step(self, losses: Tensor) -> None:
        """Nothing moves."""


class Minimax(Weighting):
    """All weight on the share alpha of steps with the largest losses (CVaR over steps); alpha -> 0 is their maximum."""

    def __init__(self, n: int, alpha: float):
        super().__init__()
        self.worst = max(1, round(alpha * n))

    def weights(self, losses: Tensor) -> Tensor:
        return torch.zeros_like(losses).index_fill(0, losses.topk(self.worst).indices, 1.0 / self.worst)

    def step(self, losses: Tensor) -> None:
        """Nothing moves."""
