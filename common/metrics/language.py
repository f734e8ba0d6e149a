"""Perplexity and bits per byte of a causal language model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor


@torch.inference_mode()
def chunk_losses(
    model: torch.nn.Module, chunks: Tensor, batch_size: int = 16, track: Callable[[Iterable], Iterable] = iter
) -> Tensor:
    """Mean cross-entropy in nats of each chunk, its first token unscored.

    chunks: (n, ctx) int64. Returns (n,) float64 on the CPU. `track` wraps the batches, for a progress bar.
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    losses = []
    for batch in track(chunks.split(batch_size)):
        batch = batch.to(device)
        logits = model(input_ids=batch, use_cache=False).logits[:, :-1].float()  # (b, ctx-1, vocabulary)
        nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none")  # (b, ctx-1)
        losses.append(nll.double().mean(1).cpu())
    model.train(training)
    return torch.cat(losses)


def perplexity(model: torch.nn.Module, chunks: Tensor, batch_size: int = 16) -> float:
    """exp of the mean chunk loss: per token, for non-overlapping chunks (n, ctx) int64. Always print ctx beside it."""
    return math.exp(chunk_losses(model, chunks, batch_size).mean().item())


def bits_per_byte(losses: Tensor, chunks: Tensor, token_bytes: Tensor) -> float:
    """Bits per byte of text, comparable between tokenizers.

    losses: (n,) as `chunk_losses` returns; chunks: (n, ctx) int64; token_bytes: (vocabulary,) int64, the UTF-8 bytes
    that each token stands for (0 for special tokens).
    """
    nats = losses.sum().item() * (chunks.shape[1] - 1)
    return nats / math.log(2) / token_bytes[chunks[:, 1:]].sum().item()
