"""Model, calibration sequences and test chunks of a QuIP# job."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.data import registry, stdlib, text
from common.errors import UserError
from common.models import language
from common.run import Run


@dataclass(frozen=True)
class Inputs:
    model: Any
    tokenizer: Any
    calibration: Tensor  # (n_seq, context) int64
    test: Tensor  # (n_chunks, context) int64


def load(cfg: Any, run: Run) -> Inputs:
    """What `cfg.model` and `cfg.data` name. Calibration sequences are drawn at random places of the training text."""
    model, tokenizer = language.load(cfg.model.path, run=run, dtype=cfg.model.dtype, device=run.device)
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest and cfg.data.context > longest:
        raise UserError(f"data.context={cfg.data.context} is more than the model's {longest} positions: set data.context={longest} or less")
    stream = text.token_stream(texts(cfg.data.calibration, "train", run), tokenizer)
    test = text.chunked(text.token_stream(texts(cfg.data.test, "test", run), tokenizer), cfg.data.context, cfg.data.test_chunks)
    return Inputs(model, tokenizer, random_sequences(stream, cfg.data.context, cfg.data.calibration_sequences, run), test)


def random_sequences(stream: Tensor, context: int, n: int, run: Run) -> Tensor:
    """(n, context) int64 windows of a token stream at random places. Raises UserError where it is shorter than one."""
    if len(stream) < context:
        raise UserError(f"the calibration text has {len(stream)} tokens, fewer than one context of {context}: use more text or a smaller data.context")
    starts = torch.randint(len(stream) - context + 1, (n,), generator=run.rng("calibration").torch)
    return stream[starts[:, None] + torch.arange(context)]


def texts(name: str, split: str, run: Run) -> list[str]:
    """The documents of a named corpus, or of a .txt (one document) or .jsonl file (field `text` of each line)."""
    if name == "stdlib":
        corpus = stdlib.load()
        run.data["stdlib"] = corpus.record
        return list((corpus.train if split == "train" else corpus.test).values())
    if name == "wikitext2":
        path = registry.locate("wikitext2_valid" if split == "train" else "wikitext2_test", run=run)
        return [registry.read_text(path)]
    if name in registry.entries():
        path = registry.locate(name, run=run)
    else:
        path = Path(name).expanduser()
        if not path.is_file():
            raise UserError(f"no text at {name!r}: choose stdlib, wikitext2, a registry entry, or a .txt or .jsonl file")
        run.record_data(path.name, "real", path.absolute(), registry.sha256_of_content(path))
    content = registry.read_text(path)
    if ".jsonl" not in path.suffixes:
        return [content]
    try:
        return [json.loads(line)["text"] for line in content.splitlines() if line.strip()]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not JSON lines with a field text: convert it, or give a .txt file") from None
