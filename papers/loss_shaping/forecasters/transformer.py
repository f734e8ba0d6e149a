"""The vanilla Transformer (Vaswani et al., 2017) as the benchmark has it: one pass, the decoder reads zeros where the answer goes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from papers.loss_shaping.forecasters import Shape
from papers.loss_shaping.forecasters.layers import EncoderDecoder, Softmax


class Transformer(EncoderDecoder):
    """Full attention everywhere."""

    def __init__(self, shape: Shape, o: Any):
        super().__init__(shape, o, lambda causal: Softmax(o.dropout, causal))

    def forward(self, x: Tensor, x_mark: Tensor, decoder_input: Tensor, y_mark: Tensor) -> Tensor:
        return self.decode(decoder_input, y_mark, self.encode(x, x_mark))
