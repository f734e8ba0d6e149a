"""The quantisers by name: E8P, its residual extensions to 3 and 4 bits, 1-bit E8, D4 and scalar grids (sec. 4.2, 4.3).

    codebook = get("e8p_rvq3")
    x_hat, codes = codebook.quantize(x * codebook.scale)      # x: (..., 8) of unit variance

One word per block of `block` weights, `bits * block` bits each. BlockLDLQ, RTN-like rounding and every ablation use
the same objects, so what differs between two methods is the name of the codebook and nothing else.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from math import ceil, erf, exp, pi, sqrt
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from papers.quip_sharp import e8p, lookup

Table = Callable[..., np.ndarray]  # a cached constant, see `lookup`


@dataclass(frozen=True)
class Codebook:
    """A quantiser of blocks of `block` weights at `bits` bits per weight.

    scale: rho, the root mean square that weights are brought to before quantising (Gaussian optimum).
    widths: bits of each word stored per block, one per residual stage; they sum to bits * block.
    encode: (..., block) float -> (...) int64, the code (stages side by side, first << width of second | second).
    decode: (...) int -> (..., block) float32.
    residual_scale: r in x_hat = Q1(x) + Q2((x - Q1(x)) r) / r, None where there is one stage.
    tables: entries of each stage, (2^width, 8) multiples of 1/4, where `decode_packed` can look them up in bytes.
    """

    name: str
    bits: int
    block: int
    scale: float
    widths: tuple[int, ...]
    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]
    residual_scale: float | None = None
    tables: tuple[Table, ...] = ()

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Nearest entry and its code: (..., block) -> (..., block) of x's dtype (float32 for integers), (...) int64."""
        x = x if x.is_floating_point() else x.float()
        codes = self.encode(x)
        return self.decode(codes).to(x.dtype), codes

    def row_bytes(self, blocks: int) -> int:
        """Bytes that a row of `blocks` codes takes when packed."""
        return sum(ceil(blocks * width / 8) for width in self.widths)

    def pack(self, codes: Tensor) -> Tensor:
        """Codes (m, blocks) -> (m, row_bytes) uint8, all first-stage words of a row, then all residual words."""
        fields, shift = [], 0
        for width in reversed(self.widths):
            fields.append(_to_bytes((codes >> shift) & (2**width - 1), width))
            shift += width
        return torch.cat(fields[::-1], 1)

    def unpack(self, packed: Tensor, blocks: int) -> Tensor:
        """Inverse of `pack`: (m, row_bytes) uint8 -> (m, blocks) int64."""
        codes, start = torch.zeros((), dtype=torch.int64, device=packed.device), 0
        for width in self.widths:
            size = ceil(blocks * width / 8)
            codes = (codes << width) | _from_bytes(packed[:, start : start + size], width, blocks)
            start += size
        return codes

    @property
    def weights(self) -> tuple[float, ...]:
        """What each stage's entries are multiplied by: 1, and 1 / r for the residual."""
        return (1.0, 1 / self.residual_scale) if self.residual_scale else (1.0,)

    def decode_packed(self, packed: Tensor, blocks: int) -> Tensor:
        """decode(unpack(packed)), whole rows: (m, row_bytes) uint8 -> (m, blocks * block) float32.

        The entries of the E8 codebooks are multiples of 1/4, so eight of them fit an int64: one look-up of 8 bytes a
        block in a table of 512 KB, which stays in cache, in place of 32 bytes from one of 2 MB.
        """
        if not self.tables or sys.byteorder != "little":
            return self.decode(self.unpack(packed, blocks)).flatten(1)
        rows, start = None, 0
        for table, width, weight in zip(self.tables, self.widths, self.weights, strict=True):
            end = start + blocks * width // 8
            part, start = packed[:, start:end].flatten(), end
            if width == 16:
                part = part.clone() if part.storage_offset() % 2 else part
                words = part.view(torch.int16).int() & 0xFFFF
            else:
                words = part.int()
            quarters = lookup.tensor(in_quarters, table, dtype=torch.int64, device=packed.device)
            entries = quarters.index_select(0, words).view(torch.int8)
            stage = entries.view(len(packed), -1).float()  # (m, blocks * 8), in quarters
            rows = stage if rows is None else rows.add_(stage, alpha=weight)
        assert rows is not None
        return rows.mul_(0.25)


@lookup.constant
def in_quarters(table: Table) -> np.ndarray:
    """A stage's entries, (2^width,) int64: the eight values of an entry in quarters, a byte each, the first lowest."""
    return (table() * 4).astype(np.int8).view(np.int64)[:, 0].copy()


def get(name: str, residual_scale: float | None = None) -> Codebook:
    """The codebook called `name`, one of `NAMES`. residual_scale replaces r (residual codebooks only)."""
    if name not in _BUILDERS:
        raise ValueError(f"unknown codebook {name!r}: choose one of {', '.join(NAMES)}")
    if residual_scale is None:
        return _BUILDERS[name]()
    if not name.startswith("e8p_rvq"):
        raise ValueError(f"codebook {name!r} has no residual stage, so no residual_scale")
    return _BUILDERS[name](number("residual_scale", residual_scale, "positive (2.04 and 3.45 are its defaults)"))


def number(name: str, value: Any, rule: str, least: float = 1e-12) -> float:
    """A setting as a float. TypeError where it is no number, ValueError where it is not in [least, 1e12]."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not least <= value <= 1e12:  # type: ignore[operator]  # (float(value) may overflow)
        raise ValueError(f"{name} must be {rule}, got {value}")
    return float(value)


# ------------------------------------------------------------------------------------------------------- one stage


def _e8p() -> Codebook:
    return Codebook("e8p", 2, 8, 1.03, (16,), e8p.encode, e8p.decode, tables=(e8p.codebook,))


def _table(name: str, bits: int, scale: float, grid: Table) -> Codebook:
    """A codebook that is searched whole: grid() is (2^(bits * block), block)."""
    block = grid().shape[1]
    tables = (grid,) if block == 8 else ()
    encode, decode = partial(_nearest, grid), partial(_lookup, grid)
    return Codebook(name, bits, block, scale, (bits * block,), encode, decode, tables=tables)


def _nearest(grid: Table, x: Tensor) -> Tensor:
    score = partial(_best, grid)
    return lookup.encode_vectors(x, grid().shape[1], score, score)


def _best(grid: Table, x: Tensor) -> Tensor:
    table = lookup.tensor(grid, dtype=x.dtype, device=x.device)
    scorer, norms = 2 * table.T, table.square().sum(1)
    return torch.cat([(part @ scorer - norms).argmax(1) for part in x.split(1 << 13)])


def _lookup(grid: Table, codes: Tensor, *args: Any) -> Tensor:
    return lookup.look_up(lookup.tensor(grid, *args, dtype=torch.float32, device=codes.device), codes)


@lookup.constant
def e8_ball() -> np.ndarray:
    """1-bit E8, (256, 8) float32: the 241 vectors of E8 with norm^2 <= 2, and 15 of norm^2 4 (+-2 e_i, not -2 e_8)."""
    integer = np.array(list(product((-1.0, 0.0, 1.0), repeat=8)), np.float32)
    half = np.array(list(product((-0.5, 0.5), repeat=8)), np.float32)
    near = [v[(v.sum(1) % 2 == 0) & ((v**2).sum(1) <= 2)] for v in (integer, half)]  # 113 and 128
    axes = 2 * np.eye(8, dtype=np.float32)
    return np.concatenate([*near, axes, -axes[:7]])


@lookup.constant
def d4_ball() -> np.ndarray:
    """D4: the 256 half-integer 4-vectors with an even sum and norm^2 <= 9. (256, 4) float32."""
    grid = np.array(list(product([k / 2 for k in range(-5, 6, 2)], repeat=4)), np.float32)
    return grid[(grid.sum(1) % 2 == 0) & ((grid**2).sum(1) <= 9)]


def _scalar(bits: int, scale: float) -> Codebook:
    """The half-integer grid {+-1/2, ..., +-(2^bits - 1)/2}, one weight at a time."""
    half = 2 ** (bits - 1)

    def nearest(x: Tensor) -> Tensor:
        return x.squeeze(-1).floor().clamp(-half, half - 1).long() + half

    def encode(x: Tensor) -> Tensor:
        return lookup.encode_vectors(x, 1, nearest, nearest)

    def decode(codes: Tensor) -> Tensor:
        return _lookup(_levels, codes, bits)

    return Codebook(f"scalar{bits}", bits, 1, scale, (bits,), encode, decode)


@lookup.constant
def _levels(bits: int) -> np.ndarray:
    return np.arange(2**bits, dtype=np.float32)[:, None] - np.float32((2**bits - 1) / 2)


# ------------------------------------------------------------------------------------------------ residual stages


def residual(name: str, scale: float, r: float, first: Codebook, second: Codebook) -> Codebook:
    """Residual vector quantisation: x_hat = Q1(x) + Q2((x - Q1(x)) r) / r (sec. 4.3). One quantiser to BlockLDLQ."""
    (width,) = second.widths

    def encode(x: Tensor) -> Tensor:
        x = lookup.as_float(x)
        if x.numel() and lookup.largest(x) > lookup.LONGEST:  # or the remainder's scale may take it out of float32
            x = lookup.shorten(x)
        x1, code1 = first.quantize(x)
        return (code1 << width) | second.encode((x - x1) * r)

    def decode(codes: Tensor) -> Tensor:
        lookup.check_words(codes, 1 << (sum(first.widths) + width))
        codes = codes.long()
        return first.decode(codes >> width) + second.decode(codes & (2**width - 1)) / r

    bits, widths, tables = first.bits + second.bits, first.widths + second.widths, first.tables + second.tables
    return Codebook(name, bits, first.block, scale, widths, encode, decode, r, tables)


_BUILDERS: dict[str, Callable[..., Codebook]] = {
    "e8p": _e8p,
    "e8p_rvq3": lambda r=2.04: residual("e8p_rvq3", 0.98, r, get("e8p"), get("e8_1bit")),
    "e8p_rvq4": lambda r=3.45: residual("e8p_rvq4", 1.03, r, get("e8p"), get("e8p")),
    "e8_1bit": lambda: _table("e8_1bit", 1, 0.6, e8_ball),
    "d4": lambda: _table("d4", 2, 1.2, d4_ball),
    "scalar2": lambda: _scalar(2, 1.004),  # one over the step of the best uniform quantiser of N(0, 1)
    "scalar3": lambda: _scalar(3, 1.706),
    "scalar4": lambda: _scalar(4, 2.983),
}
NAMES = tuple(_BUILDERS)


# -------------------------------------------------------------------------------------------------------- packing


def _to_bytes(words: Tensor, width: int) -> Tensor:
    """(m, N) integers below 2^width -> (m, ceil(N width / 8)) uint8, least significant bit first."""
    m, n = words.shape
    if width == 8:
        return words.to(torch.uint8)
    if width == 16:
        return torch.stack([words & 255, words >> 8], -1).to(torch.uint8).reshape(m, 2 * n)
    bits = (words[..., None] >> torch.arange(width, device=words.device)) & 1  # (m, N, width)
    bits = torch.nn.functional.pad(bits.reshape(m, n * width), (0, -n * width % 8))
    return (bits.reshape(m, -1, 8) << torch.arange(8, device=words.device)).sum(-1).to(torch.uint8)


def _from_bytes(packed: Tensor, width: int, n: int) -> Tensor:
    """Inverse of `_to_bytes`: -> (m, n) int64."""
    m = packed.shape[0]
    if width == 8:
        return packed.long()
    if width == 16:
        low, high = packed.reshape(m, n, 2).long().unbind(-1)
        return low | (high << 8)
    bits = (packed[..., None].long() >> torch.arange(8, device=packed.device)) & 1  # (m, bytes, 8)
    bits = bits.reshape(m, -1)[:, : n * width].reshape(m, n, width)
    return (bits << torch.arange(width, device=packed.device)).sum(-1)


# ------------------------------------------------------------------------------------------------------ references


def lloyd_max(bits: int, iterations: int = 1000) -> tuple[list[float], float]:
    """The best scalar quantiser of N(0, 1): its 2^bits levels and its mean squared error (a reference for E2)."""
    count = 2 ** (bits - 1)
    levels = [(i + 0.5) * 2.0 / count for i in range(count)]  # the positive half; the rest by symmetry
    for _ in range(iterations):
        edges = [0.0, *((a + b) / 2 for a, b in pairwise(levels)), 40.0]
        mass = [(erf(b / sqrt(2)) - erf(a / sqrt(2))) / 2 for a, b in pairwise(edges)]
        moment = [(exp(-a * a / 2) - exp(-b * b / 2)) / sqrt(2 * pi) for a, b in pairwise(edges)]
        levels = [m / p for m, p in zip(moment, mass, strict=True)]  # each level moves to the centroid of its cell
    mse = 1 - 2 * sum(x * x * p for x, p in zip(levels, mass, strict=True))  # centroids: E(x - Q)^2 = 1 - E Q^2
    return [-x for x in reversed(levels)] + levels, mse
