"""`run.dry=true`: parameters, memory and hours of an experiment, without data and without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from common.run import Run

# rows of the benchmark's files and their channels, as published
SIZES = {"etth1": (17420, 7), "etth2": (17420, 7), "ettm1": (69680, 7), "ettm2": (69680, 7), "exchange_rate": (7588, 8),
         "national_illness": (966, 7), "electricity": (26304, 321), "traffic": (17544, 862), "weather": (52696, 21)}  # fmt: skip
FLOPS = 20e12  # sustained, of one present GPU at these small sizes; an assumption, printed with the estimate


def estimate(cfg: Any, run: Run) -> None:
    """Build the model on the meta device and log params, memory_gb (weights, gradients, Adam) and hours."""
    import torch

    from papers.loss_shaping.forecasters import Shape, build_forecaster

    rows, channels = SIZES.get(cfg.data.name, (cfg.data.rows, cfg.data.channels))
    marks = {"auto": 4, "h": 4, "t": 5, "s": 6, "w": 2, "d": 3, "b": 3, "m": 1}[cfg.data.freq]
    with torch.device("meta"):
        model = build_forecaster(cfg.model.name, Shape(channels, marks, cfg.context, cfg.label, cfg.horizon), cfg.model)
    params = sum(p.numel() for p in model.parameters())
    tokens = cfg.context + cfg.label + cfg.horizon
    windows = 0.7 * rows * cfg.epochs
    runs = 1 + len([m for m in cfg.methods if m != "erm"]) * (6 if cfg.level == "select" else 1)
    hours = 6.0 * params * tokens * windows * runs * len(cfg.seeds) / FLOPS / 3600
    run.log({"params": params, "memory_gb": 16.0 * params / 1e9, "hours": hours})
    run.note(
        f"hours: {runs} trainings a seed, 6 x parameters x {tokens} rows x {windows:.0f} windows at {FLOPS:.0e} operations "
        f"a second; memory: weights, gradients and Adam in 32 bits, without activations"
    )
