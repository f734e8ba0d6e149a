"""Model, calibration sequences and test chunks of a QuIP# job."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.data import registry, stdlib, text
from common.errors import UserError
from common.models import language
from common.run import Run
from papers.quip_sharp.hessian_store import model_key
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
            f"{cfg.model.path} has no nn.Linear besides its output head, so there is nothing to quantise: is it quantised already?"
        )
    broken = next((name for name, p in model.named_parameters() if not torch.isfinite(p).all()), None)
    if broken is not None:
        raise UserError(f"{broken} of {cfg.model.path} has NaN or infinite entries: get or train the model again")
    documents = limited(texts(cfg.data.calibration, "train", run), cfg.data.characters)
    draw = {"windows": random_windows, "documents": random_documents}.get(cfg.data.sampling)
    if draw is None:
        raise UserError(f"data.sampling={cfg.data.sampling} is unknown: choose windows or documents")
    n = cfg.data.calibration_sequences
    calibration = draw(documents, tokenizer, context, n, run.rng("calibration").torch)
    tuning = None
    if cfg.finetune:
        n = cfg.tuning.end_to_end.sequences + cfg.tuning.valid
        tuning = draw(documents, tokenizer, context, n, run.rng("tuning").torch)
    test = text.chunked(
        text.token_stream(limited(texts(cfg.data.test, "test", run), cfg.data.characters), tokenizer),
        context,
        cfg.data.test_chunks,
    )
    config = json.loads(model.config.to_json_string(use_diff=False))
    config.pop("_name_or_path", None)  # a copy of a folder is the same model
    check_ids(model, cfg.model.path, calibration, test, *([] if tuning is None else [tuning]))
    key = [*model_key(where), config, cfg.model.dtype]
    return Inputs(model, tokenizer, calibration, tuning, test, key)


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
            f"the tokenizer in {path} gives token {largest}, and its model knows {count}: get the tokenizer that belongs to it"
        )


def random_windows(documents: list[str], tokenizer: Any, context: int, n: int, rng: torch.Generator) -> Tensor:
    """(n, context) int64 windows of the joined documents at random places. UserError where they are shorter than one."""
    stream = text.token_stream(documents, tokenizer)
    if len(stream) < context:
        raise UserError(
            f"the calibration text has {len(stream)} tokens, fewer than one context of {context}: use more text or a smaller data.context"
        )
    starts = torch.randint(len(stream) - context + 1, (n,), generator=rng)
    return stream[starts[:, None] + torch.arange(context)]


def random_documents(documents: list[str], tokenizer: Any, context: int, n: int, rng: torch.Generator) -> Tensor:
    """(n, context) int64: the beginnings of n random documents that are long enough, as the paper draws them.

    Nothing is joined or padded. UserError where fewer than n documents reach `context` tokens.
    """
    found: list[Tensor] = []
    for index in torch.randperm(len(documents), generator=rng).tolist():
        if len(found) == n:
            break
        # The beginning is enough for most: eight characters a token, and the whole document where that was too little.
        for characters in (8 * context, None):
            tokens = text.token_stream([documents[index][:characters]], tokenizer)
            if len(tokens) >= context:
                found.append(tokens[:context])
                break
            if characters is None or len(documents[index]) <= characters:
                break
    if len(found) < n:
        raise UserError(
            f"only {len(found)} of {n} calibration documents reach {context} tokens: use more text, a smaller data.context, or data.sampling=windows"
        )
    return torch.stack(found)


def limited(documents: list[str], characters: int | None) -> list[str]:
    """The first `characters` of the documents; all of them if None."""
    kept, left = [], characters
    for document in documents:
        if left is not None and left <= 0:
            break
        kept.append(document if left is None else document[:left])
        left = None if left is None else left - len(document)
    return kept


def sequences(name: str, tokenizer: Any, context: int, n: int, seed: int = 0) -> Tensor:
    """(n, context) int64 calibration sequences from a corpus of `texts`, without a run."""
    return random_windows(texts(name, "train"), tokenizer, context, n, torch.Generator().manual_seed(seed))


def texts(name: str, split: str, run: Run | None = None) -> list[str]:
    """The documents of a named corpus, or of a .txt (one document) or .jsonl file (field `text` of each line)."""
    if name == "stdlib":
        corpus = stdlib.load(run=run)
        return list((corpus.train if split == "train" else corpus.test).values())
    if name == "wikitext2":
        path = registry.locate("wikitext2_valid" if split == "train" else "wikitext2_test", run=run)
        return [registry.read_text(path)]
    if name in registry.entries():
        path = registry.locate(name, run=run)
    else:
        path = Path(name).expanduser()
        if not path.is_file():
            raise UserError(
                f"no text at {name!r}: choose stdlib, wikitext2, a registry entry, or a .txt or .jsonl file"
            )
        if run is not None:
            run.record_data(path.name, "real", path.absolute(), registry.sha256_of_content(path))
    content = registry.read_text(path)
    if not {".jsonl", ".json"}.intersection(path.suffixes):
        return [content]
    try:
        return [
            json.loads(line)["text"] for line in content.split("\n") if line.strip()
        ]  # not splitlines: strings may hold U+2028
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not JSON lines with a field text: convert it, or give a .txt file") from None
