"""Resumable quantisation of a language model by a run: Hessians once, then any method at any number of bits.

    job = LanguageModelJob(cfg, run, data.load(cfg, run))
    model, history = job.quantize("quip_sharp", bits=2, tuned=True)

Every decoder layer of a QuIP# model is a unit of work that a killed run keeps, at four layers as at eighty, and
fine-tuning end to end goes on from the last saved step.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from common import files
from common.errors import UserError
from common.run import Run
from common.training import resumable
from papers.quip_sharp.data import Inputs
from papers.quip_sharp.finetune import Tuning, finetune_model
from papers.quip_sharp.hessian_store import StoredHessians
from papers.quip_sharp.quantize_llm import quantize_model
from papers.quip_sharp.quantize_weight import RECIPES, widths


def plan(cfg: Any) -> list[tuple[str, int, bool]]:
    """(method, bits, fine-tuned) of every model that the config asks for, a fine-tuned one after what it begins with.

    UserError where there is none.
    """
    found: list[tuple[str, int, bool]] = []
    tuned = list(cfg.bits if cfg.tuning.bits is None else cfg.tuning.bits) if cfg.finetune else []
    for bits in cfg.bits:
        for method in (*cfg.methods, *(cfg.ablations if bits == 2 else ())):
            if bits in widths(method):
                found.append((method, bits, False))
            if method == "quip_sharp" and bits in tuned:
                found.append((method, bits, True))
    found += [("quip_sharp", bits, True) for bits in tuned if ("quip_sharp", bits, True) not in found]
    if not found:
        raise UserError(f"none of the methods {list(cfg.methods)} comes in bits={cfg.bits}: choose others")
    return found


class LanguageModelJob:
    """Quantises `inputs.model`, which stays as it is, with the settings of cfg.quantize and cfg.tuning."""

    def __init__(self, cfg: Any, run: Run, inputs: Inputs):
        self.cfg, self.run, self.inputs = cfg, run, inputs
        self._latest: dict[str, nn.Module] = {}  # what was quantised last, for its fine-tuning to begin with

    @cached_property
    def hessians(self) -> StoredHessians:
        """Second moments of each linear's inputs (sec. 3), found in the cache or collected on first use."""
        with self.run.time("hessians"):
            return StoredHessians(
                self.run,
                self.inputs.model,
                self.inputs.calibration,
                self.cfg.batch_size,
                self.inputs.key,
                self.offload,
            )

    @cached_property
    def offload(self) -> str | None:
        """This run's own folder for hidden states below cfg.offload, cleared of what a killed run left there."""
        if self.cfg.offload is None:
            return None
        own = f"{self.run.dir.name}-{files.digest(str(self.run.dir))[:8]}"
        folder = Path(self.cfg.offload).expanduser().absolute() / own
        shutil.rmtree(folder, ignore_errors=True)
        return str(folder)

    def quantize(self, method: str, bits: int, tuned: bool = False) -> tuple[nn.Module, list[dict]]:
        """The quantised model, and the history of its end-to-end fine-tuning ([] without)."""
        block = self.block_tuning if tuned else None
        label = f"{method}{bits}{'-tuned' if block else ''}"
        model = self._latest.pop(label, None)
        self._latest.clear()  # or it would be in memory beside the next one
        if model is None:
            model = self._quantize(method, bits, block, label)
        if not tuned:
            if self.cfg.finetune and self.block_tuning is None:
                self._latest[label] = model
            return model, []
        cfg, run, end = self.cfg, self.run, self.cfg.tuning.end_to_end
        assert self.inputs.tuning is not None
        with run.time(f"finetune.{bits}"):
            history = finetune_model(
                model,
                self.inputs.model,
                self.inputs.tuning,
                self._tuning(end),
                run.rng("tuning", bits).torch,
                head=end.head,
                recompute=cfg.tuning.recompute,
                loop=lambda steps, state: resumable(run, f"tuning{bits}", steps, state, cfg.tuning.save_seconds),
            )
        return model, history

    def _quantize(self, method: str, bits: int, block: Tuning | None, label: str) -> nn.Module:
        cfg, run = self.cfg, self.run
        hessians = self.hessians
        with run.time(f"quantize.{label}"):
            return quantize_model(
                self.inputs.model,
                self.inputs.calibration if block else None,
                method,
                bits,
                run.rng("signs"),
                hessians=hessians,
                batch_size=cfg.batch_size,
                tuning=block,
                offload=self.offload,
                keep=self._keep(label) if method in RECIPES else None,
                **self.options(method, bits),
            )

    def options(self, method: str, bits: int) -> dict:
        """The settings of quantize_linear for this method. rho: by bits for E8P, by name for codebooks in its place."""
        cfg = self.cfg.quantize
        if method not in RECIPES:
            return {}
        codebook = RECIPES[method].codebooks[bits - 1]
        rho = cfg.rho[f"bits{bits}"] if codebook.startswith("e8p") else cfg.rho.get(codebook)
        return {"rho": rho, "tune": cfg.tune, "sigma": cfg.sigma, "rescale_rows": cfg.rescale_rows}

    @property
    def block_tuning(self) -> Tuning | None:
        """Settings of the fine-tuning within blocks; None where the config has no sequences for it."""
        block = self.cfg.tuning.block
        return self._tuning(block) if block.sequences else None

    def _tuning(self, stage: Any) -> Tuning:
        return Tuning(
            train=stage.sequences,
            valid=self.cfg.tuning.valid,
            epochs=stage.epochs,
            batch_size=stage.batch_size,
            micro_batch=self.cfg.tuning.micro_batch,
            lr_signs=stage.lr_signs,
            lr_others=stage.lr_others,
        )

    def _keep(self, label: str) -> Callable[..., dict]:
        return lambda name, fn, *args: self.run.stage(f"{label}-{name}", fn, *args)
