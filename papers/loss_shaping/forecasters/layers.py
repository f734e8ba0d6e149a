"""What several forecasters are made of: embeddings, attention with a score of one's choice, the usual two blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papers.loss_shaping.forecasters import Shape

Mixer = Callable[..., Tensor]  # q (B, L, H, E), k (B, S, H, E), v (B, S, H, E) -> (B, L, H, E)


class Embedding(nn.Module):
    """Values through a circular convolution of three rows, plus a linear map of the time marks, plus sines for the place.

    (B, L, C) and (B, L, d_m) -> (B, L, d).
    """

    def __init__(self, channels: int, marks: int, d: int, dropout: float, position: bool = True, max_len: int = 5000):
        super().__init__()
        self.value = nn.Conv1d(channels, d, 3, padding=1, padding_mode="circular", bias=False)
        nn.init.kaiming_normal_(self.value.weight, mode="fan_in", nonlinearity="leaky_relu")
        self.time = nn.Linear(marks, d, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.position = position
        self.sines: Tensor
        self.register_buffer("sines", sinusoids(max_len if position else 0, d), persistent=False)

    def forward(self, x: Tensor, marks: Tensor) -> Tensor:
        out = self.value(x.mT).mT + self.time(marks)  # (B, L, d)
        return self.dropout(out + self.sines[: x.shape[1]] if self.position else out)


def sinusoids(length: int, d: int) -> Tensor:
    """Sines in even, cosines in odd places, wavelengths from 2 pi to 10000 times that. (length, d)"""
    angle = torch.arange(length)[:, None] * torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :d]


class Decomposition(nn.Module):
    """x -> (x - trend, trend), trend a moving average of odd width over rows, edge rows repeated. (B, L, C) -> the same twice."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        side = (self.width - 1) // 2
        padded = torch.cat([x[:, :1].expand(-1, side, -1), x, x[:, -1:].expand(-1, side, -1)], dim=1)
        trend = F.avg_pool1d(padded.mT, self.width, stride=1).mT
        return x - trend, trend


class Attention(nn.Module):
    """Project to heads, mix along the rows by `mix`, project back. (B, L, d), (B, S, d) -> (B, L, d)."""

    def __init__(self, mix: Mixer, d: int, heads: int):
        super().__init__()
        if d % heads:
            raise ValueError(f"d_model {d} does not divide into {heads} heads")
        self.mix, self.heads = mix, heads
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, **more: Tensor | None) -> Tensor:
        q, k, v = (
            map(rows).unflatten(-1, (self.heads, -1)) for map, rows in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        return self.out(self.mix(q, k, v, **more).flatten(2))


class Softmax(nn.Module):
    """softmax(q k^T / sqrt(E)) v, causal or not."""

    def __init__(self, dropout: float = 0.0, causal: bool = False):
        super().__init__()
        self.dropout, self.causal = dropout, causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: (L, S) True where attention may look."""
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0, is_causal=self.causal
        )
        return mixed.transpose(1, 2)


class FeedForward(nn.Module):
    """Linear, GELU, Linear on each row, dropout after both."""

    def __init__(self, d: int, d_ff: int, dropout: float, bias: bool = True):
        super().__init__()
        self.up, self.down = nn.Linear(d, d_ff, bias=bias), nn.Linear(d_ff, d, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(self.dropout(F.gelu(self.up(x)))))


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each added and then normalised (post-norm). (B, L, d) -> (B, L, d)."""

    def __init__(self, attention: nn.Module, d: int, d_ff: int, dropout: float):
        super().__init__()
        self.attention, self.ff = attention, FeedForward(d, d_ff, dropout)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, **more: Tensor | None) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x, x, **more)))
        return self.norm2(x + self.ff(x))


class DecoderLayer(nn.Module):
    """Self-attention, attention to the encoder's rows, feed-forward (post-norm). (B, L, d), (B, S, d) -> (B, L, d)."""

    def __init__(self, own: nn.Module, cross: nn.Module, d: int, d_ff: int, dropout: float):
        super().__init__()
        self.own, self.cross, self.ff = own, cross, FeedForward(d, d_ff, dropout)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, own: dict | None = None, cross: dict | None = None) -> Tensor:
        x = self.norm1(x + self.dropout(self.own(x, x, **(own or {}))))
        x = self.norm2(x + self.dropout(self.cross(x, memory, **(cross or {}))))
        return self.norm3(x + self.ff(x))


class EncoderDecoder(nn.Module):
    """What the vanilla Transformer, Informer and the Non-stationary Transformer share; `mix(causal)` is their attention.

    The encoder reads the context; the decoder the last T_l known rows and T_p zeros, in one pass; a linear map gives C
    channels. between: modules that follow the first encoder layers, one each.
    """

    def __init__(self, shape: Shape, o: Any, mix: Callable[[bool], nn.Module], between: Sequence[nn.Module] = ()):
        super().__init__()
        d, self.horizon = o.d_model, shape.horizon

        def attention(causal: bool) -> Attention:
            return Attention(mix(causal), d, o.heads)

        self.encoder_embedding = Embedding(shape.channels, shape.marks, d, o.dropout)
        self.decoder_embedding = Embedding(shape.channels, shape.marks, d, o.dropout)
        self.encoder = nn.ModuleList(
            EncoderLayer(attention(False), d, o.d_ff, o.dropout) for _ in range(o.encoder_layers)
        )
        self.between = nn.ModuleList(between)
        self.decoder = nn.ModuleList(
            DecoderLayer(attention(True), attention(False), d, o.d_ff, o.dropout) for _ in range(o.decoder_layers)
        )
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.out = nn.Linear(d, shape.channels)

    def encode(self, x: Tensor, x_mark: Tensor, **more: Tensor) -> Tensor:
        """(B, T_c, C) -> (B, S, d), S = T_c unless `between` shortens it. more: for the attention of every layer."""
        rows = self.encoder_embedding(x, x_mark)
        for i, layer in enumerate(self.encoder):
            rows = layer(rows, **more)
            if i < len(self.between):
                rows = self.between[i](rows)
        return self.encoder_norm(rows)

    def decode(self, x: Tensor, y_mark: Tensor, memory: Tensor, **more: dict[str, Tensor]) -> Tensor:
        """(B, T_l + T_p, C) -> (B, T_p, C). more: own=, cross=, for the decoder's two attentions."""
        rows = self.decoder_embedding(x, y_mark)
        for layer in self.decoder:
            rows = layer(rows, memory, **more)
        return self.out(self.decoder_norm(rows))[:, -self.horizon :]


def instance_norm(x: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor, Tensor]:
    """A window's own z-scores over its rows, with mean and deviation (B, 1, C), both without gradient. x: (B, L, C)."""
    mean = x.mean(1, keepdim=True).detach()
    std = (x.var(1, keepdim=True, unbiased=False) + eps).sqrt().detach()
    return (x - mean) / std, mean, std
