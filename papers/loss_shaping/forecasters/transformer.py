"""The vanilla Transformer (Vaswani et al., 2017) as the benchmark has it: one pass, the decoder reads zeros where the answer goes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from papers.loss_shaping.forecasters import Shape
from papers.loss_shaping.forecasters.layers import Attention, DecoderLayer, Embedding, EncoderLayer, Softmax


class Transformer(nn.Module):
    """Encoder over the context, decoder over the last T_l known rows and T_p zeros, a linear map to C channels."""

    def __init__(self, shape: Shape, o: Any):
        super().__init__()
        d, self.horizon = o.d_model, shape.horizon
        self.encoder_embedding = Embedding(shape.channels, shape.marks, d, o.dropout)
        self.decoder_embedding = Embedding(shape.channels, shape.marks, d, o.dropout)

        def attention(causal: bool) -> Attention:
            return Attention(Softmax(o.dropout, causal), d, o.heads)

        self.encoder = nn.ModuleList(
            EncoderLayer(attention(False), d, o.d_ff, o.dropout) for _ in range(o.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(attention(True), attention(False), d, o.d_ff, o.dropout) for _ in range(o.decoder_layers)
        )
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.out = nn.Linear(d, shape.channels)

    def forward(self, x: Tensor, x_mark: Tensor, decoder_input: Tensor, y_mark: Tensor) -> Tensor:
        memory = self.encoder_embedding(x, x_mark)  # (B, T_c, d)
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.encoder_norm(memory)
        rows = self.decoder_embedding(decoder_input, y_mark)  # (B, T_l + T_p, d)
        for layer in self.decoder:
            rows = layer(rows, memory)
        return self.out(self.decoder_norm(rows))[:, -self.horizon :]


def transformer(shape: Shape, o: Any) -> Transformer:
    return Transformer(shape, o)
