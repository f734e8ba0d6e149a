"""Look-up tables of the codebooks, and what every encoder and decoder begins with.

Tables are cached as numpy arrays, never as tensors of the CPU: a tensor that is made while a model is exported,
faked, compiled or run in inference mode, or under another default device or dtype, belongs to that moment, and a
cache would hand it to whoever comes next. `tensor` makes one of an array where it is used; on the CPU that copies
nothing.
"""

from collections.abc import Callable
from functools import cache, wraps
from math import inf
from typing import Any, ParamSpec

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

FAR = 256.0  # beyond it, squared distances in float32 do not tell codewords apart: 2 x.y - |y|^2 does
LONGEST = 2.0**40  # entries above it are scaled down to it: float64 still resolves |y|^2 beside x.y there
DTYPES = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64, torch.int8: np.int8}

P = ParamSpec("P")


def constant(build: Callable[P, np.ndarray]) -> Callable[P, np.ndarray]:
    """Cache of a table: built once, with numpy alone, and read-only."""

    @cache
    @wraps(build)
    def table(*args: P.args, **kwargs: P.kwargs) -> np.ndarray:
        array = build(*args, **kwargs)
        array.setflags(write=False)
        return array

    return table  # type: ignore[return-value]  # (a cached function)


def tensor(
    table: Callable[..., np.ndarray], *args: Any, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """The table(*args) as a tensor of a dtype in `DTYPES`, not to be written to.

    A view of the cached array on the CPU; on another device a copy that is made once. While tensors are traced or faked
    (`in_plain_context`), a new one every time.
    """
    device = torch.device(device)
    if not in_plain_context():
        return torch.tensor(_converted(table, args, dtype), device=device)
    if device.type == "cpu":
        return torch.from_numpy(_converted(table, args, dtype))
    return _on_device(table, args, dtype, device)


def in_plain_context() -> bool:
    """Whether tensors made now are what they seem: nothing traces, fakes or batches them (torch.export, torch.func)."""
    return not is_in_torch_dispatch_mode() and torch._C._functorch.peek_interpreter_stack() is None


@cache
def _converted(table: Callable[..., np.ndarray], args: tuple, dtype: torch.dtype) -> np.ndarray:
    """A writable copy, since torch warns of others; its memory layout is the table's."""
    return np.array(table(*args), DTYPES[dtype], order="K")


@cache
def _on_device(table: Callable[..., np.ndarray], args: tuple, dtype: torch.dtype, device: torch.device) -> Tensor:
    assert in_plain_context(), "a tensor made here and now would be kept for others"
    with torch.inference_mode(False):
        return torch.from_numpy(_converted(table, args, dtype)).to(device)


# ------------------------------------------------------------------------------------------------------- decoding


def look_up(table: Tensor, words: Tensor) -> Tensor:
    """Rows of table (N, g) by number: (...) int in [0, N) -> (..., g). ValueError for other words (on the CPU)."""
    check_words(words, len(table))
    try:
        # 3 x as fast as table[words] (measured), and it finds words out of range at no cost
        return table.index_select(0, words.flatten().long()).view(*words.shape, table.shape[1])
    except IndexError:
        low, high = (int(end) for end in words.aminmax())
        raise ValueError(f"words must lie in [0, {len(table)}), got {low} to {high}") from None


def check_words(words: Tensor, count: int) -> None:
    """ValueError for words whose type cannot hold the integers below count."""
    dtype = words.dtype
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool or torch.iinfo(dtype).max < count - 1:
        raise ValueError(f"words must be integers below {count}, of a type that holds them (int64, say), got {dtype}")


# ------------------------------------------------------------------------------------------------------- encoding


def encode_vectors(x: Tensor, block: int, near: Callable[[Tensor], Tensor], far: Callable[[Tensor], Tensor]) -> Tensor:
    """What every encoder begins with: (..., block) -> words (...) by near((N, block) float32 or float64), int64.

    Vectors with an entry beyond `FAR` are left to far((F, block) float64). ValueError for other shapes, NaN,
    infinities.
    """
    if x.ndim == 0 or x.shape[-1] != block:
        raise ValueError(f"this codebook takes blocks of {block} weights, got a shape of {tuple(x.shape)}")
    if not x.numel():
        return torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
    flat = as_float(x).reshape(-1, block)
    peak = largest(flat)
    if peak <= FAR:
        return near(flat).reshape(x.shape[:-1])
    is_far = flat.abs().amax(1) > FAR  # (N,), row by row: a word does not depend on the others
    words = near(flat.masked_fill(is_far[:, None], 0))
    words[is_far] = far(shorten(flat[is_far].double()))
    return words.reshape(x.shape[:-1])


def as_float(x: Tensor) -> Tensor:
    if x.is_complex():
        raise ValueError(f"a codebook encodes real numbers, got {x.dtype}")
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def largest(x: Tensor) -> float:
    """max |x| of a non-empty tensor, in one pass. ValueError for NaN and infinite entries."""
    low, high = x.aminmax()
    peak = torch.maximum(-low, high).item()
    if not peak < inf:
        raise ValueError("a codebook cannot encode NaN or infinite weights: look for them in W and H")
    return peak


def shorten(x: Tensor) -> Tensor:
    """Vectors with an entry beyond `LONGEST`, scaled down to it: at that length the direction decides."""
    return x * (LONGEST / x.abs().amax(-1, keepdim=True)).clamp(max=1)
