"""How perplexities are measured: tokenise once, score within the chunk, never mix contexts (traps x and xi)."""

import math

import pytest
import torch

from common.data.text import chunked, token_stream
from common.metrics.language import perplexity


class Words:
    """A tokenizer of single letters whose every call would add a begin-of-sequence token if it were let to."""

    bos_token_id, eos_token_id = 0, None

    def __call__(self, texts, add_special_tokens=True, **_):
        ids = [[ord(c) - 96 for c in text] for text in texts]
        return {"input_ids": [[0, *row] if add_special_tokens else row for row in ids]}


def test_joined_text_has_one_begin_of_sequence_token_and_chunks_add_none():
    stream = token_stream(["abcdefghijk"], Words())
    assert stream.tolist() == list(range(12))
    chunks = chunked(stream, 5)
    assert chunks.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]  # the tail is dropped


class Counter(torch.nn.Module):
    """Knows the next token better the more context it has: probability 1 - 1/(t + 2) at position t."""

    def __init__(self, vocabulary: int = 64):
        super().__init__()
        self.vocabulary, self.unused = vocabulary, torch.nn.Parameter(torch.zeros(()))

    def forward(self, input_ids, use_cache=False):
        context = input_ids.shape[1]
        p = 1 - 1 / (torch.arange(context) + 2.0)
        right = torch.nn.functional.one_hot((input_ids + 1) % self.vocabulary, self.vocabulary).bool()
        wrong = (1 - p) / (self.vocabulary - 1)
        return type("Output", (), {"logits": torch.where(right, p[:, None], wrong[:, None]).log()})


def test_the_first_token_of_a_chunk_is_not_scored():
    chunks = chunked(torch.arange(40), 10)
    expected = math.exp(-sum(math.log(1 - 1 / (t + 2)) for t in range(9)) / 9)
    assert perplexity(Counter(), chunks) == pytest.approx(expected, rel=1e-5)


def test_perplexities_at_two_contexts_are_different_numbers():
    """Trap xi: Llama-2 measured at 2048 must not be held against a table for 4096; the text is the same."""
    short, long = (perplexity(Counter(), chunked(torch.arange(64), context)) for context in (8, 32))
    assert short > 1.1 * long
