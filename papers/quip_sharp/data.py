"""Model, calibration sequences and test chunks of a QuIP# job."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from common.data import text
from common.errors import UserError
from common.models import language
from common.run import Run
from papers.quip_sharp.hessians import output_head


@dataclass(frozen=True)
class Inputs:
    model: Any
    tokenizer: Any
    calibration: Tensor  # (n_seq, context) int64, for the Hessians
    tuning: Tensor | None  # (n_seq, context) int64, for end-to-end fine-tuning; None where there is none
    test: Tensor  # (n_chunks, context) int64
    key: list  # what tells the model from others


def load(cfg: Any, run: Run) -> Inputs:
    """What `cfg.model` and `cfg.data` name."""
    where = language.find(cfg.model.path)
    model, tokenizer = language.load(cfg.model.path, run=run, dtype=cfg.model.dtype, device=run.device)
    context = cfg.data.context
    check_context(model, context)
    head = output_head(model)
    if not any(isinstance(module, nn.Linear) and module is not head for module in model.modules()):
        raise UserError(
            f"{cfg.model.path} has no nn.Linear besides its output head, so there is nothing to quantise: "
            "is it quantised already?"
        )
    broken = next((name for name, p in model.named_parameters() if not torch.isfinite(p).all()), None)
    if broken is not None:
        raise UserError(f"{broken} of {cfg.model.path} has NaN or infinite entries: get or train the model again")
    documents = text.documents(cfg.data.calibration, characters=cfg.data.characters, run=run)
    draw = _drawing(cfg.data.sampling, documents, tokenizer, context)
    calibration = draw(cfg.data.calibration_sequences, run.rng("calibration").torch)
    tuning = None
    if cfg.finetune:
        tuning = draw(cfg.tuning.end_to_end.sequences + cfg.tuning.valid, run.rng("tuning").torch)
    test = text.load(cfg.data.test, tokenizer, context, characters=cfg.data.characters, limit=cfg.data.test_chunks,
                     run=run)  # fmt: skip
    config = json.loads(model.config.to_json_string(use_diff=False))
    config.pop("_name_or_path", None)  # a copy of a folder is the same model
    check_ids(model, cfg.model.path, calibration, test, *([] if tuning is None else [tuning]))
    key = [*(language.weight_sums(where) or [where]), config, cfg.model.dtype]
    return Inputs(model, tokenizer, calibration, tuning, test, key)


def _drawing(sampling: str, documents: list[str], tokenizer: Any, context: int) -> Callable[..., Tensor]:
    """A function (n, generator) -> (n, context) int64: windows of the joined documents, or beginnings of long ones.

    The paper takes beginnings.
    """
    if sampling == "documents":
        return partial(text.beginnings, documents, tokenizer, context)
    return partial(text.windows, text.token_stream(documents, tokenizer), context)


def check_context(model: nn.Module, context: int, what: str = "data.context is") -> None:
    """UserError where the model has no positions for `context` tokens."""
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest and context > longest:
        raise UserError(f"{what} {context} tokens, more than the model's {longest}: take {longest} or less")


def check_ids(model: Any, path: str, *tokens: Tensor) -> None:
    """UserError where the tokenizer gives ids that the model has no embedding for."""
    count = getattr(model.get_input_embeddings(), "num_embeddings", None)
    largest = max(int(ids.max()) for ids in tokens)
    if count is not None and largest >= count:
        raise UserError(
            f"the tokenizer in {path} gives token {largest}, and its model knows {count}: "
            "get the tokenizer that belongs to it"
        )


def sequences(name: str, tokenizer: Any, context: int, n: int, seed: int = 0) -> Tensor:
    """(n, context) int64 calibration sequences from a corpus of `text.documents`, without a run."""
    return text.windows(text.stream(name, tokenizer), context, n, torch.Generator().manual_seed(seed))
