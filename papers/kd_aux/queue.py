"""Queue of teacher features, first in first out: the instances that the auxiliary variable ranges over (sec. 3.5)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from papers.kd_aux.losses import check_labels

WIDEST = {torch.float16: 65504.0, torch.bfloat16: 3.3e38, torch.float32: 3.4e38, torch.float64: 1.7e308}


class FeatureQueue(nn.Module):
    """The newest `size` rows of teacher embeddings, logits and labels, whatever loader they came from.

    No index into a data set is needed. Half precision by default: losses sum in float32. With `gather`, ranks of a process
    group enqueue each other's rows too (equal batches). Buffers, so `state_dict` has all of it.

    >>> queue = FeatureQueue(4096, 64, 10)
    >>> queue.enqueue(torch.eye(64)[:2], torch.zeros(2, 10), torch.tensor([0, 1]))
    >>> queue.filled
    2
    """

    t: Tensor
    logits: Tensor
    y: Tensor
    group: Tensor
    counts: Tensor

    def __init__(self, size: int, dim: int, classes: int, dtype: torch.dtype = torch.float16, gather: bool = True):
        super().__init__()
        for name, value in (("size", size), ("dim", dim), ("classes", classes)):
            if value < 1:
                raise ValueError(f"{name} is {value}: a queue has at least one")
        if dtype not in WIDEST:
            raise ValueError(f"dtype is {dtype}: choose a floating type")
        self.size, self.dim, self.classes, self.gather = size, dim, classes, gather
        self.register_buffer("t", torch.zeros(size, dim, dtype=dtype))  # (L, D)
        self.register_buffer("logits", torch.zeros(size, classes, dtype=dtype))  # (L, C)
        self.register_buffer("y", torch.full((size,), -1, dtype=torch.int64))  # (L,)
        self.register_buffer("group", torch.full((size,), -1, dtype=torch.int64))  # (L,) an augmentation's number, say
        self.register_buffer("counts", torch.zeros(2, dtype=torch.int64))  # next slot, filled slots

    @property
    def filled(self) -> int:
        return int(self.counts[1])

    @property
    def mask(self) -> Tensor:
        """(size,) bool, True where a slot is filled."""
        return torch.arange(self.size, device=self.y.device) < self.counts[1]

    @torch.no_grad()
    def enqueue(self, t: Tensor, logits: Tensor, y: Tensor, group: Tensor | None = None) -> None:
        """Add rows, the oldest give way; of more rows than slots the newest stay. ValueError for what does not fit."""
        if t.dim() != 2 or t.shape[1] != self.dim:
            raise ValueError(f"features of shape {tuple(t.shape)} do not fit a queue of width {self.dim}")
        if logits.dim() != 2 or logits.shape[1] != self.classes:
            raise ValueError(f"logits of shape {tuple(logits.shape)} do not fit a queue of {self.classes} classes")
        if not len(t) == len(logits) == len(y):
            raise ValueError(f"{len(t)} features, {len(logits)} logits, {len(y)} labels: give one of each for a row")
        check_labels(y, self.classes)
        if not bool(torch.isfinite(t).all()) or not bool((t.abs().amax(dim=1) > 0).all()):
            raise ValueError("a feature is not finite or has norm zero: it has no direction")
        if len(logits) and not float(logits.abs().max()) <= WIDEST[self.logits.dtype]:
            raise ValueError(
                f"logits reach {float(logits.abs().max()):.3g}, more than {self.logits.dtype} holds: dtype=torch.float32"
            )
        if group is None:
            group = torch.full_like(y, -1)
        parts = [t.to(self.t), logits.to(self.logits), y.to(self.y), group.to(self.group)]
        if self.gather and torch.distributed.is_available() and torch.distributed.is_initialized():
            parts = [_gathered(part) for part in parts]
        parts = [part[-self.size :] for part in parts]
        n = len(parts[0])
        slots = (self.counts[0] + torch.arange(n, device=self.y.device)) % self.size
        for buffer, part in zip((self.t, self.logits, self.y, self.group), parts, strict=True):
            buffer[slots] = part
        self.counts[0] = (self.counts[0] + n) % self.size
        self.counts[1] = torch.clamp(self.counts[1] + n, max=self.size)

    def missing(self) -> list[int]:
        """Classes that no row has."""
        return sorted(set(range(self.classes)) - set(self.y[self.mask].tolist()))


def _gathered(part: Tensor) -> Tensor:
    """The rows of all ranks, in the order of the ranks."""
    world = torch.distributed.get_world_size()
    received = [torch.empty_like(part) for _ in range(world)]
    torch.distributed.all_gather(received, part.contiguous())
    return torch.cat(received)
