"""Reformer (Kitaev et al., 2020) over the context and T_p empty rows: attention inside buckets of a random hash."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papers.loss_shaping.forecasters import Shape
from papers.loss_shaping.forecasters.layers import Embedding, EncoderLayer

ITSELF = -5e4  # logit of a row with itself: attended to only where there is nothing else


def lsh_attention(qk: Tensor, v: Tensor, bucket_size: int, hashes: int) -> Tensor:
    """Locality-sensitive-hashing attention with queries = keys. qk, v: (B, L, E), L a multiple of 2 bucket_size.

    Each of `hashes` rounds sorts the rows by the bucket of a random rotation and lets each chunk of bucket_size rows
    attend to itself and the chunk before; rounds are weighted by their total attention.
    """
    L, E = qk.shape[1:]
    buckets = L // bucket_size
    rotation = torch.randn(E, hashes, buckets // 2, device=qk.device, dtype=qk.dtype)
    rotated = torch.einsum("ble,ehr->bhlr", qk, rotation)
    bucket = torch.cat([rotated, -rotated], -1).argmax(-1)  # (B, hashes, L)
    place = torch.arange(L, device=qk.device)
    round_first = torch.arange(hashes, device=qk.device)[:, None] * buckets
    order = ((bucket + round_first) * L + place).flatten(1).argsort(-1)  # (B, hashes L): by round, bucket, place
    rows = order % L

    def chunks(x: Tensor) -> Tensor:  # (B, hashes L, E) -> (B, hashes buckets, bucket_size, E)
        return x.unflatten(1, (hashes * buckets, bucket_size))

    def with_previous(x: Tensor) -> Tensor:
        return torch.cat([x, x.roll(1, dims=1)], dim=2)

    sorted_qk = qk.gather(1, rows[..., None].expand(-1, -1, E))
    q, k = chunks(sorted_qk), with_previous(chunks(F.normalize(sorted_qk, dim=-1)))
    values = with_previous(chunks(v.gather(1, rows[..., None].expand(-1, -1, E))))
    at = rows.unflatten(1, (hashes * buckets, bucket_size))
    logits = q @ k.mT / math.sqrt(E)  # (B, chunks, bucket_size, 2 bucket_size)
    logits = logits.masked_fill(at[..., :, None] == with_previous(at[..., None])[..., 0][..., None, :], ITSELF)
    total = logits.logsumexp(-1, keepdim=True)
    out = (logits - total).exp() @ values
    back = order.argsort(-1)  # undo the sorting
    out = out.flatten(1, 2).gather(1, back[..., None].expand(-1, -1, E)).unflatten(1, (hashes, L))
    weight = total.flatten(1, 3).gather(1, back).unflatten(1, (hashes, L)).softmax(1)  # (B, hashes, L)
    return (out * weight[..., None]).sum(1)


class LSHAttention(nn.Module):
    """Heads around `lsh_attention`; rows are padded with zeros to a multiple of 2 bucket_size."""

    def __init__(self, d: int, heads: int, bucket_size: int, hashes: int):
        super().__init__()
        self.heads, self.bucket_size, self.hashes = heads, bucket_size, hashes
        self.qk, self.v, self.out = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False), nn.Linear(d, d)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        B, L, _ = x.shape
        x = F.pad(x, (0, 0, 0, -L % (2 * self.bucket_size)))
        qk, v = (
            map(x).unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1) for map in (self.qk, self.v)
        )  # (B H, L, E)
        mixed = lsh_attention(qk, v, self.bucket_size, self.hashes)
        return self.out(mixed.unflatten(0, (B, self.heads)).transpose(1, 2).flatten(2))[:, :L]


class Reformer(nn.Module):
    def __init__(self, shape: Shape, o: Any):
        super().__init__()
        d, self.horizon = o.d_model, shape.horizon
        self.embedding = Embedding(shape.channels, shape.marks, d, o.dropout)
        self.encoder = nn.ModuleList(
            EncoderLayer(LSHAttention(d, o.heads, o.bucket_size, o.hashes), d, o.d_ff, o.dropout)
            for _ in range(o.encoder_layers)
        )
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, shape.channels)

    def forward(self, x: Tensor, x_mark: Tensor, decoder_input: Tensor, y_mark: Tensor) -> Tensor:
        rows = torch.cat([x, decoder_input[:, -self.horizon :]], dim=1)  # (B, T_c + T_p, C), the end empty
        rows = self.embedding(rows, torch.cat([x_mark, y_mark[:, -self.horizon :]], dim=1))
        for layer in self.encoder:
            rows = layer(rows)
        return self.out(self.norm(rows))[:, -self.horizon :]
