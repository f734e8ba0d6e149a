"""Informer (Zhou et al., 2021): only the most telling queries attend; the encoder halves its rows between layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papers.loss_shaping.forecasters import Shape
from papers.loss_shaping.forecasters.layers import EncoderDecoder


class ProbSparse(nn.Module):
    """u = factor ceil(ln L) queries attend; the others get the mean of all values (causal: the sum so far).

    A query is kept for M(q) = max_j q.k_j - 1/S sum_j q.k_j over factor ceil(ln S) keys drawn at random for each query.
    """

    def __init__(self, factor: int, dropout: float = 0.0, causal: bool = False):
        super().__init__()
        self.factor, self.causal, self.dropout = factor, causal, nn.Dropout(dropout)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))  # (B, H, L or S, E)
        L, S, E = q.shape[2], k.shape[2], q.shape[3]
        kept = min(self.factor * math.ceil(math.log(L)), L)
        drawn = torch.randint(S, (L, min(self.factor * math.ceil(math.log(S)), S)), device=q.device)
        sampled = torch.einsum("bhle,bhlne->bhln", q, k[:, :, drawn])  # (B, H, L, n)
        top = (sampled.max(-1).values - sampled.sum(-1) / S).topk(kept, sorted=False).indices  # (B, H, u)
        scores = _rows(q, top) @ k.mT / math.sqrt(E)  # (B, H, u, S)
        if self.causal:
            scores = scores.masked_fill(torch.arange(S, device=q.device) > top[..., None], -math.inf)
        attended = self.dropout(scores.softmax(-1)) @ v  # (B, H, u, E)
        out = v.cumsum(2) if self.causal else v.mean(2, keepdim=True).expand(-1, -1, L, -1)
        return out.scatter(2, top[..., None].expand(-1, -1, -1, E), attended.to(out)).transpose(1, 2)


def _rows(q: Tensor, index: Tensor) -> Tensor:
    """The rows `index` (B, H, u) of q (B, H, L, E)."""
    return q.gather(2, index[..., None].expand(-1, -1, -1, q.shape[-1]))


class Distil(nn.Module):
    """Circular convolution, batch norm, ELU, max-pooling by two. (B, L, d) -> (B, about L/2, d).

    The padding of 2 lengthens the rows by 2 before pooling; the benchmark's model has it so.
    """

    def __init__(self, d: int):
        super().__init__()
        self.conv = nn.Conv1d(d, d, 3, padding=2, padding_mode="circular")
        self.norm = nn.BatchNorm1d(d)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool1d(F.elu(self.norm(self.conv(x.mT))), 3, stride=2, padding=1).mT


class Informer(EncoderDecoder):
    """ProbSparse attention in all places, and a `Distil` after each encoder layer but the last."""

    def __init__(self, shape: Shape, o: Any):
        halving = [Distil(o.d_model) for _ in range(o.encoder_layers - 1 if o.distil else 0)]
        super().__init__(shape, o, lambda causal: ProbSparse(o.factor, o.dropout, causal), between=halving)

    def forward(self, x: Tensor, x_mark: Tensor, decoder_input: Tensor, y_mark: Tensor) -> Tensor:
        return self.decode(decoder_input, y_mark, self.encode(x, x_mark))
