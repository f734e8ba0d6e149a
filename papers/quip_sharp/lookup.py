"""Look-up tables that are built once, and what encoders and decoders of every codebook begin with."""

from collections.abc import Callable
from functools import cache, wraps
from math import inf
from typing import ParamSpec, TypeVar, cast

import torch
from torch import Tensor

FAR = 256.0  # beyond it, squared distances in float32 no longer tell codewords apart: they are judged by 2 x.y - |y|^2 instead
LONGEST = 2.0**40  # entries above it are scaled down to it: float64 still resolves |y|^2 beside x.y there

P = ParamSpec("P")
T = TypeVar("T")


def constant(build: Callable[P, T]) -> Callable[P, T]:
    """Cache for tables: built once, on the CPU unless it is given a device, whatever modes are on (inference, "meta").

    (A cached inference tensor could not take part in a later backward pass, one on "meta" has no values.)
    """

    @cache
    @wraps(build)
    def table(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode(False), torch.device("cpu"):
            return build(*args, **kwargs)

    return cast(Callable[P, T], table)


# ------------------------------------------------------------------------------------------------------- decoding


@constant
def cached_copy(table: Callable[[], Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The constant table() on a device, copied there once."""
    return table().to(dtype=dtype, device=device)


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

    Vectors with an entry beyond `FAR` are left to far((F, block) float64). ValueError for other shapes, NaN, infinities.
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
    """Vectors with an entry beyond `LONGEST` scaled down to it, (..., g) -> (..., g). At that length the direction decides."""
    return x * (LONGEST / x.abs().amax(-1, keepdim=True)).clamp(max=1)
