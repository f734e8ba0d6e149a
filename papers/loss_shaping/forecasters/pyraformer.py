"""Pyraformer (Liu et al., 2022): rows, and summaries of rows, and summaries of those; each attends to its neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papers.loss_shaping.forecasters import Shape
from papers.loss_shaping.forecasters.layers import Attention, Embedding, FeedForward, Softmax


def pyramid(length: int, windows: list[int], inner: int) -> tuple[Tensor, list[int]]:
    """Who may look at whom: mask (M, M), True where a node sees another, and the node counts of the levels, finest first.

    A node sees `inner` nodes of its own level around it, its children and its parent.
    """
    sizes = [length]
    for window in windows:
        sizes.append(sizes[-1] // window)
    level = np.repeat(np.arange(len(sizes)), sizes)
    place = np.concatenate([np.arange(size) for size in sizes])
    mask = (level[:, None] == level) & (np.abs(place[:, None] - place) <= inner // 2)
    for i, window in enumerate(windows):
        parent = np.minimum(place // window, sizes[i + 1] - 1)  # what is left over belongs to the last parent
        child_of = (level[:, None] == i) & (level == i + 1) & (parent[:, None] == place)
        mask |= child_of | child_of.T
    return torch.tensor(mask), sizes


class Summaries(nn.Module):
    """Strided convolutions of a narrowed copy, level after level, widened again and appended: (B, L, d) -> (B, M, d)."""

    def __init__(self, d: int, windows: list[int]):
        super().__init__()
        narrow = d // 4
        self.down, self.up, self.norm = nn.Linear(d, narrow), nn.Linear(narrow, d), nn.LayerNorm(d)
        self.convs = nn.ModuleList(nn.Conv1d(narrow, narrow, window, stride=window) for window in windows)
        self.norms = nn.ModuleList(nn.BatchNorm1d(narrow) for _ in windows)

    def forward(self, x: Tensor) -> Tensor:
        level, levels = self.down(x).mT, []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            level = F.elu(norm(conv(level)))
            levels.append(level)
        return self.norm(torch.cat([x, self.up(torch.cat(levels, dim=2).mT)], dim=1))


class Layer(nn.Module):
    """Pyramidal attention (no residual, as in the benchmark's model), then feed-forward with residual and norm."""

    def __init__(self, o: Any):
        super().__init__()
        self.attention = Attention(Softmax(o.dropout), o.d_model, o.heads)
        self.ff, self.norm = FeedForward(o.d_model, o.d_ff, o.dropout), nn.LayerNorm(o.d_model, eps=1e-6)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, x, mask=mask)
        return self.norm(x + self.ff(x))


class Pyraformer(nn.Module):
    """All T_p C values from the last row's node, its parent and its grandparent, by one linear map."""

    def __init__(self, shape: Shape, o: Any):
        super().__init__()
        windows = list(o.windows)
        mask, sizes = pyramid(shape.context, windows, o.inner_size)
        if sizes[-1] < 1:
            raise ValueError(f"windows {windows} are too wide for a context of {shape.context}")
        self.horizon = shape.horizon
        self.last = [sum(sizes[: i + 1]) - 1 for i in range(len(sizes))]  # last node of each level
        self.register_buffer("mask", mask, persistent=False)
        self.embedding = Embedding(shape.channels, shape.marks, o.d_model, o.dropout)
        self.summaries = Summaries(o.d_model, windows)
        self.layers = nn.ModuleList(Layer(o) for _ in range(o.encoder_layers))
        self.out = nn.Linear(len(sizes) * o.d_model, shape.horizon * shape.channels)

    def forward(self, x: Tensor, x_mark: Tensor, *_: Tensor) -> Tensor:
        nodes = self.summaries(self.embedding(x, x_mark))  # (B, M, d)
        for layer in self.layers:
            nodes = layer(nodes, self.mask)
        return self.out(nodes[:, self.last].flatten(1)).unflatten(1, (self.horizon, -1))
