"""Forecasters f(x, m_x, dec_in, m_y) -> (B, T_p, C): the paper's eight, DLinear and PatchTST, and three to learn from.

All take the benchmark's four inputs: x (B, T_c, C), m_x (B, T_c, d_m), dec_in (B, T_l + T_p, C), m_y (B, T_l + T_p, d_m).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

FORECASTERS = {
    "autoformer": "autoformer.Autoformer",
    "informer": "informer.Informer",
    "reformer": "reformer.Reformer",
    "pyraformer": "pyraformer.Pyraformer",
    "transformer": "transformer.Transformer",
    "nonstationary": "nonstationary.Nonstationary",
    "itransformer": "itransformer.ITransformer",
    "film": "film.FiLM",
    "patchtst": "patchtst.PatchTST",
    "dlinear": "linear.DLinear",
    "linear": "linear.Linear",
    "bottleneck": "linear.Bottleneck",
    "repeat": "linear.Repeat",
}


@dataclass(frozen=True)
class Shape:
    """What data and task say of a forecaster."""

    channels: int  # C
    marks: int  # d_m
    context: int  # T_c
    label: int  # T_l
    horizon: int  # T_p


def build_forecaster(name: str, shape: Shape, options: Any = None, **more: Any) -> Any:
    """The forecaster `name` with `options` (a mapping; keywords win). Raises ValueError for a name that there is not.

    >>> forecaster = build_forecaster("dlinear", Shape(channels=7, marks=4, context=96, label=48, horizon=96))
    """
    if name not in FORECASTERS:
        raise ValueError(f"name is {name!r}: the forecasters are {', '.join(FORECASTERS)}")
    module, kind = FORECASTERS[name].split(".")
    forecaster = getattr(import_module(f"papers.loss_shaping.forecasters.{module}"), kind)
    return forecaster(shape, Options(**{**DEFAULTS, **(dict(options) if options else {}), **more}))


class Options(dict):
    """A mapping whose keys are attributes."""

    __getattr__ = dict.__getitem__


# The benchmark's values, for what `options` does not name; the command's are in configs (a test holds the two together).
DEFAULTS: dict[str, Any] = {"d_model": 512, "heads": 8, "encoder_layers": 2, "decoder_layers": 1, "d_ff": 2048, "dropout": 0.05,
                            "factor": 3, "moving_average": 25, "width": 3, "distil": True, "bucket_size": 4, "hashes": 4,
                            "windows": [4, 4], "inner_size": 5, "projector": [128, 128], "hippo_order": 256, "scales": [1, 2, 4],
                            "modes": 32, "patch": 16, "patch_stride": 8, "head_dropout": 0.0}  # fmt: skip
