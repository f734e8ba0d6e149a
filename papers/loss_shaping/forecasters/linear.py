"""Forecasters without attention that treat every channel alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from papers.loss_shaping.forecasters import Shape
from papers.loss_shaping.forecasters.layers import Decomposition


class DLinear(nn.Module):
    """Trend (moving average) and remainder, each through a Linear(T_c, T_p) shared over channels, summed (Zeng et al., 2023)."""

    def __init__(self, shape: Shape, o: Any):
        super().__init__()
        self.split = Decomposition(o.moving_average)
        self.seasonal = nn.Linear(shape.context, shape.horizon)
        self.trend = nn.Linear(shape.context, shape.horizon)
        for map in (self.seasonal, self.trend):
            nn.init.constant_(map.weight, 1.0 / shape.context)

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        seasonal, trend = self.split(x)  # (B, T_c, C) each
        return (self.seasonal(seasonal.mT) + self.trend(trend.mT)).mT


class Linear(nn.Module):
    """One Linear(T_c, T_p) shared over channels: each step has a row of weights of its own, so no weighting can shape it."""

    def __init__(self, shape: Shape, o: Any):
        super().__init__()
        self.map = nn.Linear(shape.context, shape.horizon)

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        return self.map(x.mT).mT


class Bottleneck(nn.Module):
    """Subtract the window's mean, squeeze it through `width` units, add the mean back; shared over channels.

    All steps of the forecast are made of the same few numbers, so that they compete: the cheapest model to shape.
    """

    def __init__(self, shape: Shape, o: Any):
        super().__init__()
        self.squeeze = nn.Linear(shape.context, o.width)
        self.expand = nn.Linear(o.width, shape.horizon)

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)  # (B, 1, C)
        return self.expand(nn.functional.gelu(self.squeeze((x - mean).mT))).mT + mean


class Repeat(nn.Module):
    """The last value, again and again: what any forecaster must beat. Its one parameter is not used."""

    def __init__(self, shape: Shape, o: Any):
        super().__init__()
        self.horizon = shape.horizon
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        return x[:, -1:].expand(-1, self.horizon, -1) + 0.0 * self.unused
