"""Text to tokens: documents of a corpus by name, one stream of them, chunks to measure on, windows to train on.

    stream = text.stream("stdlib", tokenizer, run=run)                                  # (n,) int64, the training split
    chunks = text.load("wikitext2", tokenizer, 256, split="test", limit=64, run=run)    # (64, 256), for perplexities
    batch = text.windows(stream, 256, 16, run.rng("windows").torch)                     # (16, 256), at random places

A corpus is `stdlib` (every machine has it), `wikitext2`, a registry entry, or a .txt or .jsonl file; of the first two
the splits train and test are apart. A run that is given records what was read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.data import registry, stdlib
from common.errors import UserError
from common.run import Run

# ---- documents -------------------------------------------------------------------------------------------------------


def documents(name: str, split: str = "train", *, characters: int | None = None, run: Run | None = None) -> list[str]:
    """The documents of a corpus; only the first `characters` of them all, where it is given.

    Of a .txt file one document, of a .jsonl file the field `text` of each line; either may be a .gz. A file of the
    user's and a registry entry have no splits. Raises UserError where there is no such corpus, or a file holds
    something else.
    """
    return limited(_documents(name, split, run), characters)


def _documents(name: str, split: str, run: Run | None) -> list[str]:
    if split not in ("train", "test"):
        raise ValueError(f"split is {split!r}: choose train or test")
    if name == "stdlib":
        corpus = stdlib.load(run=run)
        return list((corpus.train if split == "train" else corpus.test).values())
    if name == "wikitext2":
        path = registry.locate("wikitext2_valid" if split == "train" else "wikitext2_test", run=run)
    elif name in registry.entries():
        path = registry.locate(name, run=run)
    else:
        path = Path(name).expanduser()
        if not path.is_file():
            raise UserError(
                f"no text at {name!r}: choose stdlib, wikitext2, a registry entry, or a .txt or .jsonl file"
            )
        if run is not None:
            run.use_data(path.name, "real", path.absolute(), registry.sha256_of_content(path))
    return read(path)


def read(path: Path) -> list[str]:
    """The documents of a file: its text, or the field `text` of each line of a .jsonl. Raises UserError."""
    try:
        content = registry.read_text(path)
    except (EOFError, zlib.error, OSError) as error:
        raise UserError(f"{path} cannot be read ({error or type(error).__name__}): get the file again") from None
    if not {".jsonl", ".json"}.intersection(path.suffixes):
        return [content]
    try:
        lines = [line for line in content.split("\n") if line.strip()]  # not splitlines: strings may hold U+2028
        found = [json.loads(line)["text"] for line in lines]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = [None]
    if not all(isinstance(document, str) for document in found):
        raise UserError(f"{path} is not JSON lines with a field text: convert it, or give a .txt file")
    return found


def limited(texts: Sequence[str], characters: int | None) -> list[str]:
    """The first `characters` of some documents, the last of them cut; all of them if None."""
    kept, left = [], characters
    for document in texts:
        if left is not None and left <= 0:
            break
        kept.append(document if left is None else document[:left])
        left = None if left is None else left - len(document)
    return kept


# ---- tokens ----------------------------------------------------------------------------------------------------------


def token_stream(texts: Iterable[str], tokenizer: Any) -> Tensor:
    """One (n,) int64 stream: each text's tokens, an end-of-text token before each (the first one starts the stream).

    Special tokens are added here and nowhere else: per document, never per chunk.
    """
    texts = list(texts)
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    head = [] if start is None else [start]
    encoded = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
    return torch.tensor([token for ids in encoded for token in (*head, *ids)], dtype=torch.int64)


def stream(
    name: str, tokenizer: Any, split: str = "train", *, characters: int | None = None, run: Run | None = None
) -> Tensor:
    """The token stream (n,) int64 of a corpus; see `documents` and `token_stream`."""
    return token_stream(documents(name, split, characters=characters, run=run), tokenizer)


def load(name: str, tokenizer: Any, context: int, split: str = "test", *, characters: int | None = None,
         limit: int | None = None, run: Run | None = None) -> Tensor:  # fmt: skip
    """The chunks (n, context) int64 of a corpus that a perplexity is measured on: documents, stream, chunks in one.

    characters: read only so much text. limit: the first so many chunks. Raises UserError where there is none.
    """
    return chunked(stream(name, tokenizer, split, characters=characters, run=run), context, limit)


def chunked(stream: Tensor, context: int, limit: int | None = None) -> Tensor:
    """Non-overlapping chunks (n, context) of a token stream, the tail dropped; the first `limit` of them.

    Raises UserError where the stream is shorter than one chunk.
    """
    n = len(_long_enough(stream, context)) // context
    return stream[: n * context].view(n, context)[:limit]


def windows(stream: Tensor, context: int, n: int, generator: torch.Generator) -> Tensor:
    """Random windows (n, context) int64 of a token stream, with replacement. UserError where it is shorter."""
    starts = torch.randint(len(_long_enough(stream, context)) - context + 1, (n,), generator=generator)
    return stream[starts[:, None] + torch.arange(context)]


def batches(stream: Tensor, context: int, batch_size: int, run: Run, *name: str | int) -> Callable[[int], Tensor]:
    """Training batches for `language.fit`: step -> (batch_size, context) int64 random windows of a token stream.

    A batch depends on the run's seed, `name` and the step alone, so that a resumed loop sees the same ones. Each
    window has a token after it in the stream. Raises UserError where the stream has none such.
    """
    places = len(_long_enough(stream, context + 1)) - context

    def batch(step: int) -> Tensor:
        starts = torch.randint(places, (batch_size,), generator=run.rng(*name, step).torch)
        return stream[starts[:, None] + torch.arange(context)]

    return batch


def beginnings(texts: Sequence[str], tokenizer: Any, context: int, n: int, generator: torch.Generator) -> Tensor:
    """(n, context) int64: the beginnings of n random documents that are long enough. Nothing is joined or padded.

    Raises UserError where fewer than n documents reach `context` tokens.
    """
    found: list[Tensor] = []
    for index in torch.randperm(len(texts), generator=generator).tolist():
        if len(found) == n:
            break
        # The beginning is enough for most: eight characters a token, and the whole document where that was too little.
        for characters in (8 * context, None):
            tokens = token_stream([texts[index][:characters]], tokenizer)
            if len(tokens) >= context:
                found.append(tokens[:context])
                break
            if characters is None or len(texts[index]) <= characters:
                break
    if len(found) < n:
        raise UserError(
            f"only {len(found)} of {n} documents reach {context} tokens: use more text, a smaller context, "
            "or windows of the joined text"
        )
    return torch.stack(found)


def _long_enough(stream: Tensor, context: int) -> Tensor:
    if len(stream) < context:
        raise UserError(
            f"the text has {len(stream)} tokens, fewer than one context of {context}: "
            "use more text or a smaller context"
        )
    return stream


def token_bytes(tokenizer: Any) -> Tensor:
    """UTF-8 bytes per token of a byte-level BPE tokenizer: (vocabulary,) int64, 0 for special tokens.

    ValueError for tokenizers of other kinds (SentencePiece, say), whose tokens have no fixed number of bytes.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet, special, added = set(ByteLevel.alphabet()), set(tokenizer.all_special_ids), tokenizer.get_added_vocab()
    sizes = torch.zeros(len(tokenizer), dtype=torch.int64)
    for token, index in tokenizer.get_vocab().items():
        if index in special:
            continue
        if token not in added and not alphabet.issuperset(token):
            raise ValueError(
                f"the tokenizer is not byte-level (it has the token {token!r}): bytes per token are not defined"
            )
        sizes[index] = len(token.encode() if token in added else token)  # a character of the alphabet is one byte
    return sizes
