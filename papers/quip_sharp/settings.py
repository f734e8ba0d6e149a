"""The door of the jobs: settings that no step could work with, said in one sentence before any work is done."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from common.configs import at_least
from common.errors import UserError

AT_LEAST = {
    "data.context": 2,  # the first token of a chunk is not scored
    "data.characters": 1, "data.calibration_sequences": 1, "data.test_chunks": 1, "batch_size": 1, "new_tokens": 1,
    "quantize.tune": 0, "quantize.sigma": 0,
    "tuning.valid": 1, "tuning.micro_batch": 1, "tuning.save_seconds": 0,
    "tuning.block.sequences": 0, "tuning.block.epochs": 0, "tuning.block.batch_size": 1, "tuning.block.lr_signs": 0,
    "tuning.block.lr_others": 0,
    "tuning.end_to_end.sequences": 1, "tuning.end_to_end.epochs": 0, "tuning.end_to_end.batch_size": 1,
    "tuning.end_to_end.lr_signs": 0, "tuning.end_to_end.lr_others": 0,
    "incoherence.seeds": 0, "incoherence.m": 2, "incoherence.n": 2, "gaussian.samples": 10,
    "layers.seeds": 0, "layers.m": 1, "layers.n": 1, "layers.quip_rms": 0.1,
    "scaling.widths": 1, "scaling.blocks": 1, "scaling.heads": 1, "scaling.steps": 1, "scaling.batch_size": 1, "scaling.warmup": 1,
    "scaling.lr": 0, "scaling.weight_decay": 0, "scaling.save_seconds": 0,
}  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16")
NOT_EMPTY = ("parts", "bits", "tuning.bits", "gaussian.factors", "layers.methods", "methods")
# each entry names units of work
ONCE = ("bits", "tuning.bits", "methods", "ablations", "layers.bits", "layers.methods")
POSITIVE = ("layers.wide", *(f"quantize.rho.{name}" for name in ("bits2", "bits3", "bits4", "d4", "scalar2")))


def check(cfg: Any) -> None:
    """UserError for the first setting of cfg that is out of its range. Settings that cfg does not have are skipped."""
    at_least(cfg, AT_LEAST)
    for key in POSITIVE:
        value = OmegaConf.select(cfg, key)
        if value is not None and not value > 0:
            raise UserError(f"{key}={value}: the rms that weights are scaled to must be positive")
    for key in NOT_EMPTY:
        value = OmegaConf.select(cfg, key)
        if value is not None and value == []:
            raise UserError(f"{key} is empty: give at least one")
    if (dtype := OmegaConf.select(cfg, "model.dtype")) not in DTYPES:
        raise UserError(f"model.dtype is {dtype}: choose from {', '.join(DTYPES)}")
    dry = OmegaConf.select(cfg, "run.dry")  # which estimates in float32 then
    if OmegaConf.select(cfg, "finetune") and dtype != "float32" and not dry:
        raise UserError(f"finetune=true needs model.dtype=float32, not {dtype}: Adam's steps vanish in half precision")
    for key in ONCE:
        value = OmegaConf.select(cfg, key)
        if OmegaConf.is_list(value) and len(set(value)) < len(value):
            raise UserError(f"{key} is {list(value)}: name each once")
    if both := set(as_list(OmegaConf.select(cfg, "methods"))) & set(as_list(OmegaConf.select(cfg, "ablations"))):
        raise UserError(f"{sorted(both)[0]} is in methods and in ablations: name it once")
    for key in ("bits", "layers.bits"):
        for bits in as_list(OmegaConf.select(cfg, key)):
            if bits not in (1, 2, 3, 4):
                raise UserError(f"{key}={bits}: choose from 1, 2, 3, 4")
    for factor in as_list(OmegaConf.select(cfg, "gaussian.factors")):
        if not factor > 0:
            raise UserError(f"gaussian.factors: {factor} is not a scale, give positive numbers")
    delta = OmegaConf.select(cfg, "incoherence.delta")
    if delta is not None and not 0 < delta < 1:
        raise UserError(f"incoherence.delta is {delta}: a probability, give a number between 0 and 1")
    for width in OmegaConf.select(cfg, "scaling.widths") or []:
        if width % (2 * cfg.scaling.heads):
            raise UserError(
                f"scaling.widths: {width} is not a multiple of {2 * cfg.scaling.heads}, twice scaling.heads"
            )
    if OmegaConf.select(cfg, "finetune") and cfg.tuning.block.sequences:
        needed = cfg.tuning.block.sequences + cfg.tuning.valid
        if needed > cfg.data.calibration_sequences:
            raise UserError(
                f"tuning within blocks needs {needed} calibration sequences (tuning.block.sequences + tuning.valid): "
                f"set data.calibration_sequences={needed} or more"
            )


def as_list(value: Any) -> list[Any]:
    """A list of what a setting holds: bits is one number in some jobs and a list in others."""
    return list(value) if OmegaConf.is_list(value) else [] if value is None else [value]


def check_methods(methods: Any, known: tuple[str, ...]) -> None:
    """UserError where one of the methods is not known."""
    for method in methods:
        if method not in known:
            raise UserError(f"unknown method {method!r}: choose from {', '.join(known)}")
