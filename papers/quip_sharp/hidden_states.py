"""Hidden states between two decoder layers, batch by batch: in the computer's memory, or in files where that is small.

At the paper's scale (6144 sequences of 4096 tokens, 4096 wide, float32) they are 412 GB; the device holds one batch.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor


class HiddenStates:
    """A list of CPU tensors (batch, ctx, d). folder: keep them in files there, mapped into memory, until `close`."""

    def __init__(self, folder: str | os.PathLike | None = None):
        self.batches: list[Tensor] = []
        self.scratch: tempfile.TemporaryDirectory | None = None
        self.made: Path | None = None  # the folder, where it was not there before
        if folder is not None:
            self.made = None if Path(folder).exists() else Path(folder)
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.scratch = tempfile.TemporaryDirectory(prefix="hidden-states-", dir=folder)

    def append(self, x: Tensor) -> None:
        self.batches.append(x)
        self[len(self) - 1] = x

    def __setitem__(self, index: int, x: Tensor) -> None:
        if self.scratch is None:
            self.batches[index] = x.detach().cpu()
            return
        # Written to a file of its own and mapped anew, so that whoever still holds the old batch keeps its values.
        path = Path(self.scratch.name) / f"{index}.bin"
        path.unlink(missing_ok=True)
        mapped = torch.from_file(str(path), shared=True, size=x.numel(), dtype=x.dtype).view(x.shape)
        self.batches[index] = mapped.copy_(x.detach())

    def __getitem__(self, index: int) -> Tensor:
        return self.batches[index]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Tensor]:
        return (self.batches[i] for i in range(len(self)))

    def close(self) -> None:
        """Let go of the states, and remove the files."""
        self.batches = []
        if self.scratch is not None:
            self.scratch.cleanup()
        if self.made is not None:
            with suppress(OSError):  # somebody else keeps something there by now
                self.made.rmdir()
