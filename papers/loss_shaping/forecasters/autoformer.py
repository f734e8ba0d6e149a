"""Autoformer (Wu et al., 2021): attention between lags, and trend and season taken apart after every step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papers.loss_shaping.forecasters import Shape
from papers.loss_shaping.forecasters.layers import Attention, Decomposition, Embedding, FeedForward


class AutoCorrelation(nn.Module):
    """Rolls v by the lags at which q and k agree most, and sums them, weighted by a softmax of the agreement.

    Agreement of lag tau: sum_t q_{t+tau} k_t, by FFT, averaged over heads and features; the int(factor ln L) best lags.
    In training the lags are chosen for the whole batch, at evaluation for each window: the benchmark's model differs so.
    """

    def __init__(self, factor: int):
        super().__init__()
        self.factor = factor

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        L, S = q.shape[1], k.shape[1]
        if L > S:  # fewer keys than queries: rows of zeros
            k, v = (F.pad(part, (0, 0, 0, 0, 0, L - S)) for part in (k, v))
        k, v = k[:, :L], v[:, :L]  # (B, L, H, E)
        spectrum = torch.fft.rfft(q.float(), dim=1) * torch.fft.rfft(k.float(), dim=1).conj()
        agreement = torch.fft.irfft(spectrum, n=L, dim=1).mean((2, 3))  # (B, L), by lag
        count = min(L, max(1, int(self.factor * math.log(L))))
        if self.training:
            lags = agreement.mean(0).topk(count).indices.expand(len(q), -1)  # (B, n)
        else:
            lags = agreement.topk(count).indices
        weights = agreement.gather(1, lags).softmax(-1)  # (B, n)
        place = torch.arange(L, device=q.device)
        window = torch.arange(len(q), device=q.device)[:, None]
        out = torch.zeros_like(v, dtype=torch.float32)
        for j in range(count):  # one lag at a time keeps memory at one copy of v
            out = out + weights[:, j, None, None, None] * v[window, (place + lags[:, j, None]) % L]
        return out.to(v)


class SeasonalNorm(nn.Module):
    """LayerNorm, less its mean over rows."""

    def __init__(self, d: int):
        super().__init__()
        self.norm = nn.LayerNorm(d)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return x - x.mean(1, keepdim=True)


class Encoder(nn.Module):
    def __init__(self, o: Any):
        super().__init__()
        self.attention = Attention(AutoCorrelation(o.factor), o.d_model, o.heads)
        self.ff = FeedForward(o.d_model, o.d_ff, o.dropout, bias=False)
        self.split, self.dropout = Decomposition(o.moving_average), nn.Dropout(o.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.split(x + self.dropout(self.attention(x, x)))
        return self.split(x + self.ff(x))[0]


class Decoder(nn.Module):
    """Returns the season, and what it adds to the trend in C channels."""

    def __init__(self, channels: int, o: Any):
        super().__init__()
        self.own = Attention(AutoCorrelation(o.factor), o.d_model, o.heads)
        self.cross = Attention(AutoCorrelation(o.factor), o.d_model, o.heads)
        self.ff = FeedForward(o.d_model, o.d_ff, o.dropout, bias=False)
        self.split, self.dropout = Decomposition(o.moving_average), nn.Dropout(o.dropout)
        self.trend = nn.Conv1d(o.d_model, channels, 3, padding=1, padding_mode="circular", bias=False)

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        x, first = self.split(x + self.dropout(self.own(x, x)))
        x, second = self.split(x + self.dropout(self.cross(x, memory)))
        x, third = self.split(x + self.ff(x))
        return x, self.trend((first + second + third).mT).mT


class Autoformer(nn.Module):
    """The trend begins as the context's, then its mean; the season as the context's, then zeros; the decoder adds to both."""

    def __init__(self, shape: Shape, o: Any):
        super().__init__()
        d, self.horizon, self.label = o.d_model, shape.horizon, shape.label
        self.split = Decomposition(o.moving_average)
        self.encoder_embedding = Embedding(shape.channels, shape.marks, d, o.dropout, position=False)
        self.decoder_embedding = Embedding(shape.channels, shape.marks, d, o.dropout, position=False)
        self.encoder = nn.ModuleList(Encoder(o) for _ in range(o.encoder_layers))
        self.decoder = nn.ModuleList(Decoder(shape.channels, o) for _ in range(o.decoder_layers))
        self.encoder_norm, self.decoder_norm = SeasonalNorm(d), SeasonalNorm(d)
        self.out = nn.Linear(d, shape.channels)

    def forward(self, x: Tensor, x_mark: Tensor, decoder_input: Tensor, y_mark: Tensor) -> Tensor:
        season, trend = self.split(x)  # (B, T_c, C) each
        known = x.shape[1] - self.label
        trend = torch.cat([trend[:, known:], x.mean(1, keepdim=True).expand(-1, self.horizon, -1)], dim=1)
        season = F.pad(season[:, known:], (0, 0, 0, self.horizon))  # (B, T_l + T_p, C)
        memory = self.encoder_embedding(x, x_mark)
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.encoder_norm(memory)
        rows = self.decoder_embedding(season, y_mark)
        for layer in self.decoder:
            rows, more = layer(rows, memory)
            trend = trend + more
        return (trend + self.out(self.decoder_norm(rows)))[:, -self.horizon :]
