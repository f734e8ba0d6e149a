"""Random generators that depend on a seed and a name alone, so that order of use and resuming do not matter."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


class Rng:
    """The generator of `(seed, *name)`, as numpy and as torch; each view is made once and then advances.

    >>> Rng(0, "signs", 3).numpy.integers(10) == Rng(0, "signs", 3).numpy.integers(10)
    True
    """

    def __init__(self, seed: int, *name: str | int):
        self.root, self.name = int(seed), name
        # repr keeps ("a", 1) apart from ("a1",) and from ("a", "1")
        self.seed = int.from_bytes(hashlib.sha256(repr((self.root, *self.name)).encode()).digest()[:8], "big") >> 1

    @cached_property
    def numpy(self) -> np.random.Generator:
        import numpy as np

        return np.random.default_rng(self.seed)

    @cached_property
    def torch(self) -> torch.Generator:
        """A CPU generator: draw on the CPU and move, so that figures do not depend on the device."""
        import torch

        return torch.Generator().manual_seed(self.seed)

    def __repr__(self) -> str:
        return f"Rng{(self.root, *self.name)}"


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's global generator starts from `seed` inside the block (CPU) and goes on as if nothing had been drawn after it.

    For library code that takes no generator: the initial weights of torch.nn and transformers.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def seed_globals(rng: Rng) -> None:
    """Set the global generators of the libraries that are imported: what code that takes no generator draws from."""
    import random

    random.seed(rng.seed)
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed(rng.seed % 2**32)  # noqa: NPY002 (for libraries that draw from it)
    if "torch" in sys.modules:
        import torch

        # torch.manual_seed would also queue a call, with a formatted stack, for each backend that is not here
        torch.default_generator.manual_seed(rng.seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(rng.seed)
