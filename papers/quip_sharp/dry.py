"""Dry run: memory and hours of a config, estimated without weights, from the model on the meta device."""

from __future__ import annotations

from typing import Any

from torch import nn

from common.errors import UserError
from common.models import language
from common.run import Run
from papers.quip_sharp.hessians import decoder_layers, groups_of
from papers.quip_sharp.resumable import plan

# Arithmetic that a machine sustains on these shapes, floating-point operations per second.
SPEED = {
    "cuda": {"forward": 3e14, "hessian": 4e13, "encode": 5e7},
    "cpu": {"forward": 1e11, "hessian": 5e10, "encode": 2e6},
}


def estimate(cfg: Any, run: Run) -> None:
    """Log params, memory_gb and hours of this config; a note says how they were estimated."""
    if cfg.model.architecture is None:
        model, _ = language.load(cfg.model.path, run=run)
    else:
        model = language.on_meta(cfg.model.architecture)
    found = decoder_layers(model)
    if found is None:
        raise UserError("the model has no nn.Linear in decoder layers: there is nothing to quantise")
    layers = found[1]
    linears = [m for m in layers.modules() if isinstance(m, nn.Linear)]
    params = sum(p.numel() for p in model.parameters())
    quantised = sum(m.weight.numel() for m in linears)
    width = max(m.in_features for m in linears)
    hidden = getattr(model.config, "hidden_size", width)
    tokens = cfg.data.calibration_sequences * cfg.data.context
    itemsize = 2 if cfg.model.dtype in ("bfloat16", "float16") and not cfg.finetune else 4
    if cfg.finetune and cfg.model.dtype != "float32":
        run.note(f"fine-tuning needs model.dtype=float32, which is estimated here, not {cfg.model.dtype}")
    models = plan(cfg)
    tuned_bits = sum(tuned for _, _, tuned in models)

    gb = {
        "weights": params * itemsize,
        "hessians_of_a_layer": sum(8 * 2 * _inputs(layers[0], g) ** 2 for g in groups_of(layers[0])),
        "factorisation": 8 * 4 * width**2,
        "quantised_model": quantised * max(cfg.bits) / 8 + (params - quantised) * itemsize,
        "fine_tuning": tuning_bytes(cfg, model, layers, quantised, params) if cfg.finetune else 0,
    }
    gb = {name: value / 1e9 for name, value in gb.items()}
    states = tokens * hidden * itemsize / 1e9
    cached = sum(2 * _inputs(layer, g) ** 2 for layer in layers for g in groups_of(layer)) / 1e9
    speed = SPEED["cuda" if run.device == "cuda" or cfg.device == "auto" else "cpu"]
    moments = sum(2 * tokens * _inputs(layer, g) ** 2 for layer in layers for g in groups_of(layer))
    feedback = sum(m.weight.numel() * m.in_features for m in linears)  # 2 m n^2 / 2: each block column against the rest
    steps = (
        cfg.tuning.end_to_end.sequences * cfg.tuning.end_to_end.epochs
        + cfg.tuning.block.sequences * 3 * cfg.tuning.block.epochs
    )
    hours = {
        "hessians": (2 * quantised * tokens / speed["forward"] + moments / speed["hessian"]) / 3600,
        "rounding": len(models)
        * (1 + 2 * cfg.quantize.tune)
        * (feedback / speed["hessian"] + quantised / speed["encode"])
        / 3600,
        "fine_tuning": tuned_bits * 8 * quantised * steps * cfg.data.context / speed["forward"] / 3600,
    }
    run.log({"params": params, "quantised_params": quantised, "layers": len(layers), "hours": sum(hours.values())})
    # the device holds memory_gb, the computer's memory (or the folder `offload`) hidden states, the cache Hessians
    totals = {"memory_gb": sum(gb.values()), "hidden_states_gb": states, "cached_hessians_gb": cached}
    run.log(totals)
    where = f"files in {cfg.offload}" if cfg.offload else "the computer's memory (offload=FOLDER: files)"
    run.table(
        "needs",
        [
            {"what": "memory of the device", "gb": totals["memory_gb"]},
            {"what": f"hidden states, in {where}", "gb": states},
            {"what": "Hessians, on disk in the cache", "gb": cached},
            {"what": "time", "hours": sum(hours.values())},
        ],
    )
    run.table("memory", [{"what": name, "gb": value} for name, value in gb.items()])
    run.table("time", [{"what": name, "hours": value} for name, value in hours.items()])
    kind = "one data-centre GPU (device=cpu: for two cores)" if speed is SPEED["cuda"] else "two CPU cores"
    run.note(
        f"dry run, nothing was quantised. Estimated for {kind}: "
        + ", ".join(f"{name} at {value:g} per s" for name, value in speed.items())
        + f"; {tokens:,} calibration tokens, quantised models: {len(models)}, evaluation and reading of files left out"
    )


def tuning_bytes(cfg: Any, model: Any, layers: nn.ModuleList, quantised: int, params: int) -> float:
    """What end-to-end fine-tuning needs beside the original model and the quantised one.

    W~ decoded; gradient, Adam's two moments and the best epoch of the head; what the backward pass needs of every layer
    (of one, and the inputs of all, where they are computed again), about 10 bytes for each input and output of a linear
    and token; logits of both models and their softmax.
    """
    end = cfg.tuning.end_to_end
    tokens = (cfg.tuning.micro_batch or end.batch_size) * cfg.data.context
    layer = sum(10 * (m.in_features + m.out_features) for m in layers[0].modules() if isinstance(m, nn.Linear))
    hidden = getattr(model.config, "hidden_size", 0)
    kept = layer + 4 * hidden * len(layers) if cfg.tuning.recompute else layer * len(layers)
    return 4 * quantised + 16 * (params - quantised) + tokens * (kept + 16 * model.config.vocab_size)


def _inputs(layer: nn.Module, group: tuple[str, ...]) -> int:
    linear = layer.get_submodule(group[0])
    assert isinstance(linear, nn.Linear)
    return linear.in_features
