"""Compiling hot loops with numba: without the GIL, cached on disk where a folder can be written.

What is compiled here runs without the GIL, so plain threads give parallelism.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.optional import need

# Sums may be reordered and fused (that is what vectorises them); infinities and NaN keep their meaning.
FAST = {"reassoc", "contract", "nsz", "arcp"}


def compiler(file: str, *modules: str) -> Callable[[Callable], Any]:
    """The decorator that compiles functions of a module on their first call for each type of arguments.

    file: the module's `__file__`. modules: names of all modules beside it whose compiled functions call each other, this
    one too: machine code is cached in `__pycache__` under a name made from their sources, because numba's own check
    misses changed callees. UserError where numba is not installed.

    >>> jit = compiler(__file__, "loops")                                          # doctest: +SKIP
    """
    numba = need("numba")
    folder = Path(file).parent
    options: dict[str, Any] = {"nogil": True, "fastmath": FAST, "error_model": "numpy"}
    sources = b"".join((folder / f"{name}.py").read_bytes() for name in modules)
    digest = hashlib.sha256(sources + repr([sorted(FAST), options["error_model"]]).encode()).hexdigest()[:12]
    cache = str(folder / "__pycache__" / f"numba-{digest}")

    def jit(function: Callable) -> Any:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = cache  # where it cannot be written numba goes on to the user's own
        try:
            return numba.njit(function, cache=True, **options)
        except (RuntimeError, OSError):
            return numba.njit(function, **options)
        finally:
            numba.config.CACHE_DIR = before

    return jit
