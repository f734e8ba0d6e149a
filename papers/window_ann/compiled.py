"""The compiler of this paper's hot loops, and what they need of the processor: prefetching, and arrays that begin with a cache line."""

from __future__ import annotations

from typing import Any

import numpy as np

from common.compiled import compiler

jit = compiler(__file__, "compiled", "tree", "overlap", "beam", "twins", "vamana", "probe", "plans", "executor")

from llvmlite import ir  # noqa: E402  (numba is here, or the line above has said how to get it)
from numba.core import types  # noqa: E402
from numba.extending import intrinsic  # noqa: E402


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
