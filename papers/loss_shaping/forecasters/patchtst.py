"""PatchTST (Nie et al., 2023), as transformers has it, with a point forecast and channels kept apart."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from papers.loss_shaping.forecasters import Shape


class PatchTST(nn.Module):
    def __init__(self, shape: Shape, o: Any):
        super().__init__()
        from transformers import PatchTSTConfig, PatchTSTForPrediction

        config = PatchTSTConfig(
            num_input_channels=shape.channels,
            context_length=shape.context,
            prediction_length=shape.horizon,
            patch_length=o.patch,
            patch_stride=o.patch_stride,
            num_hidden_layers=o.encoder_layers,
            d_model=o.d_model,
            num_attention_heads=o.heads,
            ffn_dim=o.d_ff,
            attention_dropout=o.dropout,
            ff_dropout=o.dropout,
            positional_dropout=o.dropout,
            path_dropout=0.0,
            head_dropout=o.head_dropout,
            scaling="std",
            pooling_type=None,  # the head reads all patches, as the authors' does
            positional_encoding_type="random",  # learned
            loss="mse",  # a point forecast: transformers' default is a distribution
            pre_norm=False,
            norm_type="batchnorm",
        )
        self.model = PatchTSTForPrediction(config)

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        return self.model(past_values=x).prediction_outputs


def patchtst(shape: Shape, o: Any) -> PatchTST:
    return PatchTST(shape, o)
