"""The whole method on a language model, as a run does it: Hessians once, then any method at any number of bits.

    quantizer = Quantizer(cfg, run, data.load(cfg, run))
    model, history = quantizer.quantize("quip_sharp", bits=2, tuned=True)

Every decoder layer of a QuIP# model is a unit of work that a killed run keeps, at four layers as at eighty.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from torch import nn

from common.run import Run
from papers.quip_sharp.data import Inputs
from papers.quip_sharp.finetune import BlockTuning, finetune_model
from papers.quip_sharp.hessian_store import StoredHessians
from papers.quip_sharp.model import quantize_model, summary
from papers.quip_sharp.quantizer import RECIPES, widths


class Quantizer:
    """Quantises `inputs.model`, which stays as it is, with the settings of cfg.quantize and cfg.tuning."""

    def __init__(self, cfg: Any, run: Run, inputs: Inputs):
        self.cfg, self.run, self.inputs = cfg, run, inputs

    @cached_property
    def hessians(self) -> StoredHessians:
        """Second moments of each linear's inputs (sec. 3.4), found in the cache or collected on first use."""
        with self.run.time("hessians"):
            return StoredHessians(
                self.run,
                self.inputs.model,
                self.inputs.calibration,
                self.cfg.batch_size,
                self.inputs.key,
                self.cfg.offload,
            )

    def plan(self) -> list[tuple[str, int, bool]]:
        """(method, bits, fine-tuned) of every model that the config asks for."""
        all_bits = bits_of(self.cfg.bits)
        plan = [(method, bits, False) for bits in all_bits for method in self.cfg.methods if bits in widths(method)]
        if self.cfg.finetune:
            plan += [("quip_sharp", bits, True) for bits in bits_of(self.cfg.tuning.bits or all_bits)]
        return plan

    def quantize(self, method: str, bits: int, tuned: bool = False) -> tuple[nn.Module, list[dict]]:
        """The quantised model, and the history of its end-to-end fine-tuning ([] without)."""
        cfg, run = self.cfg, self.run
        block = self.block_tuning if tuned else None
        label = f"{method}{bits}{'-tuned' if tuned else ''}"
        hessians = self.hessians
        with run.time(f"quantize.{label}"):
            model = quantize_model(
                self.inputs.model,
                self.inputs.calibration if block else None,
                method,
                bits,
                run.rng("signs"),
                hessians=hessians,
                batch_size=cfg.batch_size,
                tuning=block,
                offload=cfg.offload,
                keep=self._keep(label) if method in RECIPES else None,
                **self.options(method, bits),
            )
        if not tuned:
            return model, []
        end = cfg.tuning.end_to_end
        assert self.inputs.tuning is not None
        with run.time(f"finetune.{bits}"):
            history = finetune_model(
                model,
                self.inputs.model,
                self.inputs.tuning,
                run.rng("tuning", bits),
                valid=cfg.tuning.valid,
                epochs=end.epochs,
                batch_size=cfg.tuning.batch_size,
                lr_signs=end.lr_signs,
                lr_others=end.lr_others,
            )
        return model, history

    def options(self, method: str, bits: int) -> dict:
        """The settings of quantize_linear for this method. rho is E8P's: other codebooks take their own optimum."""
        cfg = self.cfg.quantize
        if method not in RECIPES:
            return {}
        e8p = RECIPES[method].codebooks[bits - 1].startswith("e8p")
        return {"rho": cfg.rho[f"bits{bits}"] if e8p else None, "tune": cfg.tune, "sigma": cfg.sigma}

    @property
    def block_tuning(self) -> BlockTuning | None:
        """Settings of the fine-tuning within blocks; None where the config has no sequences for it."""
        cfg = self.cfg.tuning
        if not cfg.block.sequences:
            return None
        return BlockTuning(
            train=cfg.block.sequences,
            valid=cfg.valid,
            epochs=cfg.block.epochs,
            batch_size=cfg.batch_size,
            lr_signs=cfg.block.lr_signs,
            lr_others=cfg.block.lr_others,
        )

    def summary(self, model: nn.Module) -> dict:
        """Bits per weight, everything stored included, and the mean relative proxy error."""
        found = summary(model)
        return {"bits_per_weight": found["bits_per_weight"], "proxy_error": found["proxy_error"]}

    def _keep(self, label: str) -> Callable[[str, Callable[[], dict]], dict]:
        return lambda name, fn: self.run.stage(f"{label}-{name}", fn)


def bits_of(bits: Any) -> list[int]:
    """`bits: 2` and `bits: [2, 3, 4]` both as a list."""
    return [bits] if isinstance(bits, int) else list(bits)
