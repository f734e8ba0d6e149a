"""iTransformer (Liu et al., 2024): a channel's whole window is one token; attention runs over channels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from papers.loss_shaping.forecasters import Shape
from papers.loss_shaping.forecasters.layers import Attention, EncoderLayer, Softmax, instance_norm


class ITransformer(nn.Module):
    """Tokens are the C channels and the d_m time marks, each by a Linear(T_c, d); a Linear(d, T_p) reads channels out."""

    def __init__(self, shape: Shape, o: Any):
        super().__init__()
        self.embedding, self.dropout = nn.Linear(shape.context, o.d_model), nn.Dropout(o.dropout)
        self.encoder = nn.ModuleList(
            EncoderLayer(Attention(Softmax(o.dropout), o.d_model, o.heads), o.d_model, o.d_ff, o.dropout)
            for _ in range(o.encoder_layers)
        )
        self.norm = nn.LayerNorm(o.d_model)
        self.out = nn.Linear(o.d_model, shape.horizon)

    def forward(self, x: Tensor, x_mark: Tensor, *_: Tensor) -> Tensor:
        z, mean, std = instance_norm(x)
        tokens = self.dropout(self.embedding(torch.cat([z.mT, x_mark.mT], dim=1)))  # (B, C + d_m, d)
        for layer in self.encoder:
            tokens = layer(tokens)
        return self.out(self.norm(tokens))[:, : x.shape[2]].mT * std + mean
