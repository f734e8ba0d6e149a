"""PatchTST (Nie et al., 2023) around the encoder that transformers has: a point forecast, channels kept apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from papers.loss_shaping.forecasters import Shape
from papers.loss_shaping.forecasters.layers import instance_norm


class PatchTST(nn.Module):
    """As its authors do, windows are z-scored and their last value is repeated for one more patch before they are cut.

    What transformers' encoder lacks of theirs: attention scores handed from layer to layer (res_attention).
    """

    def __init__(self, shape: Shape, o: Any):
        super().__init__()
        from transformers import PatchTSTConfig, PatchTSTForPrediction

        config = PatchTSTConfig(
            num_input_channels=shape.channels,
            context_length=shape.context + o.patch_stride,
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
            scaling=None,  # done here, before the repeated rows could count
            pooling_type=None,  # the head reads all patches, as the authors' does
            positional_encoding_type="random",  # learned
            loss="mse",  # a point forecast: transformers' default is a distribution
            pre_norm=False,
            norm_type="batchnorm",
        )
        self.model = PatchTSTForPrediction(config)
        self.extra = o.patch_stride

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        z, mean, std = instance_norm(x)
        z = torch.cat([z, z[:, -1:].expand(-1, self.extra, -1)], dim=1)  # (B, T_c + stride, C)
        return self.model(past_values=z).prediction_outputs * std + mean
