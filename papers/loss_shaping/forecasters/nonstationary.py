"""Non-stationary Transformer (Liu et al., 2022): windows are normalised, and attention is told what that took away."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papers.loss_shaping.forecasters import Shape
from papers.loss_shaping.forecasters.layers import EncoderDecoder, instance_norm


class DeStationary(nn.Module):
    """softmax((tau q k^T + Delta) / sqrt(E)) v. tau: (B, 1), Delta: (B, S) or None."""

    def __init__(self, dropout: float = 0.0, causal: bool = False):
        super().__init__()
        self.dropout, self.causal = dropout, causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, tau: Tensor, delta: Tensor | None = None) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in (q * tau[:, :, None, None], k, v))  # (B, H, L, E)
        shift = None if delta is None else (delta / math.sqrt(q.shape[-1]))[:, None, None].to(q)
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=shift, dropout_p=self.dropout if self.training else 0.0, is_causal=self.causal
        )
        return mixed.transpose(1, 2)


class Factor(nn.Module):
    """A number, or one for each row, from the raw window and a statistic of it. (B, T_c, C), (B, 1, C) -> (B, n)."""

    def __init__(self, shape: Shape, hidden: list[int], n: int):
        super().__init__()
        self.conv = nn.Conv1d(shape.context, 1, 3, padding=1, padding_mode="circular", bias=False)  # along channels
        widths = [2 * shape.channels, *hidden]
        layers: list[nn.Module] = []
        for a, b in zip(widths, widths[1:], strict=False):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(widths[-1], n, bias=False))

    def forward(self, x: Tensor, statistic: Tensor) -> Tensor:
        return self.mlp(torch.cat([self.conv(x), statistic], dim=1).flatten(1))


class Nonstationary(EncoderDecoder):
    """The vanilla Transformer on z-scored windows, with tau and Delta learned from what the z-scores lost."""

    def __init__(self, shape: Shape, o: Any):
        super().__init__(shape, o, lambda causal: DeStationary(o.dropout, causal))
        self.label = shape.label
        self.tau, self.delta = Factor(shape, list(o.projector), 1), Factor(shape, list(o.projector), shape.context)

    def forward(self, x: Tensor, x_mark: Tensor, decoder_input: Tensor, y_mark: Tensor) -> Tensor:
        z, mean, std = instance_norm(x)
        tau = self.tau(x, std).clamp(max=80.0).exp()  # (B, 1); exp(80) is still finite
        delta = self.delta(x, mean)  # (B, T_c)
        memory = self.encode(z, x_mark, tau=tau, delta=delta)
        known = F.pad(z[:, z.shape[1] - self.label :], (0, 0, 0, self.horizon))  # (B, T_l + T_p, C)
        return self.decode(known, y_mark, memory, own={"tau": tau}, cross={"tau": tau, "delta": delta}) * std + mean
