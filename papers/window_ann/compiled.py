"""Compiling the hot loops: numba, without the GIL, cached on disk where a folder can be written.

Everything compiled here runs without the GIL, so plain threads give parallelism over queries and over graph nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common.optional import need

need("numba")
import numba  # noqa: E402
from llvmlite import ir  # noqa: E402
from numba.core import types  # noqa: E402
from numba.extending import intrinsic  # noqa: E402

HERE = Path(__file__).parent
SOURCES = ("compiled", "tree", "overlap", "beam", "vamana", "plans", "executor")
# Sums may be reordered and fused (that is what vectorises them); infinities and NaN keep their meaning.
FAST = {"reassoc", "contract", "nsz", "arcp"}


def _cache_folder() -> str:
    """A folder for machine code that is named after all compiled sources: numba's own check misses changed callees."""
    digest = hashlib.sha256(b"".join((HERE / f"{name}.py").read_bytes() for name in SOURCES)).hexdigest()[:12]
    return str(HERE / "__pycache__" / f"numba-{digest}")


CACHE = _cache_folder()


def jit(function: Callable) -> Any:
    """Compile `function` on its first call for each type of arguments. Cached; compiled anew where no cache can be written."""
    before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    numba.config.CACHE_DIR = CACHE  # type: ignore[attr-defined]  # where it cannot be written numba goes on to the user's own
    try:
        return numba.njit(function, nogil=True, fastmath=FAST, error_model="numpy", cache=True)
    except (RuntimeError, OSError):
        return numba.njit(function, nogil=True, fastmath=FAST, error_model="numpy")
    finally:
        numba.config.CACHE_DIR = before  # type: ignore[attr-defined]


@intrinsic
def _prefetch_line(typingctx, array, row, offset):
    """Ask for the cache line `offset` bytes into array[row] (a 2-D C array)."""

    def codegen(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        stride = builder.extract_value(view.strides, 0)
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        place = builder.add(builder.mul(arguments[1], stride), arguments[2])
        address = builder.gep(builder.bitcast(view.data, byte), [place])
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(hint, [address, *(ir.Constant(flag, value) for value in (0, 3, 1))])  # read, keep, data
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), codegen


prefetch_line: Any = _prefetch_line
LINE = 64  # bytes of a cache line
LINES = 8  # asked for ahead at most; the hardware prefetcher follows a longer row by itself


@jit
def prefetch(array, row):
    """Ask for array[row]; the search computes something else until it comes. A row may begin within a line: one more."""
    for line in range(min((array.shape[1] * array.itemsize - 1) // LINE + 2, LINES)):
        prefetch_line(array, row, line * LINE)


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An empty array that begins with a cache line: rows of whole lines then touch no line too many."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size].view(dtype).reshape(shape)
