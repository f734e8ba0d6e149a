"""Text to token chunks, the way perplexities are usually reported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from common.errors import UserError


def token_stream(texts: Iterable[str], tokenizer: Any) -> Tensor:
    """One (n,) int64 stream: each text's tokens, an end-of-text token before each (the first one starts the stream).

    Special tokens are added here and nowhere else: per document, never per chunk.
    """
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    head = [] if start is None else [start]
    encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor([token for ids in encoded for token in (*head, *ids)], dtype=torch.int64)


def chunked(stream: Tensor, context: int, limit: int | None = None) -> Tensor:
    """Non-overlapping chunks (n, context) of a token stream, the tail dropped; the first `limit` of them.

    Raises UserError where the stream is shorter than one chunk.
    """
    n = len(stream) // context
    if n == 0:
        raise UserError(
            f"the text has {len(stream)} tokens, fewer than one context of {context}: use more text or a smaller context"
        )
    return stream[: n * context].view(n, context)[:limit]


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
