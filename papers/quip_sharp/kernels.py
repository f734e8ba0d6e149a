"""Compiled CPU product W~ y straight from packed words (QuIP# algorithm "Inference", decompress-multiply).

A row is looked up eight weights at a time, a byte each and in quarters, into a buffer of one byte a weight that stays
in the nearest cache, and multiplied from there. Nothing but words and look-ups crosses the memory: 2 bits where
float32 reads 32.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from torch import Tensor

from common.compiled import compiler
from papers.quip_sharp import codebooks
from papers.quip_sharp.codebooks import Codebook, Table, in_quarters
from papers.quip_sharp.lookup import in_plain_context

VECTORS = 16  # taken at a time; with more, decoding to float32 once and a matrix product is as fast
WEIGHTS_PER_THREAD = 1 << 22  # a quarter of a millisecond of work: starting a thread costs a tenth of one

jit = compiler(__file__, "kernels")


@cache
def look_ups(table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Two small tables (rows, flips), int64: the entry of a word is rows[high byte] ^ flips[low byte].

    An entry is eight values as bytes, in quarters.

    An E8P value in quarters is 4 s + 1 or 4 s - 1 with s in +-{1/2, 3/2, 5/2}: negating s is an XOR with 0b11111100,
    and the other shift one with 2. So the 65,536 entries (512 KB) come from two tables of 2 KB. Words of one byte
    have no flips.
    """
    entries = in_quarters(table)  # (2^width,)
    return (
        (entries[::256].copy(), entries[:256] ^ entries[0])
        if len(entries) > 256
        else (entries.copy(), entries[:0].copy())
    )


@cache
def stages(name: str, residual_scale: float | None, blocks: int) -> tuple:
    """starts, rows, flips and weights of a codebook's stages, as `product` takes them, for rows of so many blocks."""
    codebook = codebooks.get(name, residual_scale)
    rows, flips = zip(*map(look_ups, codebook.tables), strict=True)
    sizes = [blocks * width // 8 for width in codebook.widths]  # bytes
    return np.cumsum([0, *sizes[:-1]]), rows, flips, np.array(codebook.weights, np.float32) / 4


@jit
def product(words, starts, rows, flips, weights, y, out, first, last):
    """out[:, r] = y @ (entries of row r's words) for first <= r < last, the stages of a codebook added up.

    words (m, bytes) uint8; of stage s: its words begin at byte starts[s] of a row, rows[s] and flips[s] are its
    `look_ups`, weights[s] its factor; y (vectors, columns) and out (vectors, m) float32. A row is read once, from its
    first byte to its last.
    """
    vectors, columns = y.shape
    entries = np.empty(columns // 8, np.int64)
    values = entries.view(np.int8)  # (columns,)
    for r in range(first, last):
        out[:, r] = 0
        for s in range(len(rows)):
            row, high, low = words[r, starts[s] :], rows[s], flips[s]
            if len(low):
                for j in range(len(entries)):
                    entries[j] = high[row[2 * j + 1]] ^ low[row[2 * j]]
            else:
                for j in range(len(entries)):
                    entries[j] = high[row[j]]
            for k in range(vectors):
                total = np.float32(0)
                for i in range(columns):
                    total += np.float32(values[i]) * y[k, i]
                out[k, r] += weights[s] * total


def multiply(words: Tensor, codebook: Codebook, columns: int, y: Tensor) -> Tensor | None:
    """W~ y for a few vectors, (..., columns) -> (..., rows) float32; None for what is better done otherwise.

    words: (rows, bytes) uint8, packed by the codebook. Done otherwise: more than VECTORS vectors, other dtypes than
    float32, a gradient to compute, tensors without values (torch.export), and codebooks without tables of bytes.
    """
    m, vectors = len(words), y.numel() // columns
    if not codebook.tables or sys.byteorder != "little" or not 0 < vectors <= VECTORS or y.dtype != torch.float32:
        return None
    if (torch.is_grad_enabled() and y.requires_grad) or not in_plain_context():
        return None
    flat = y.detach().reshape(vectors, columns).contiguous().numpy()
    packed = words.contiguous().numpy()
    out = np.empty((vectors, m), np.float32)
    codes = stages(codebook.name, codebook.residual_scale, columns // 8)

    def work(first: int, last: int) -> None:
        product(packed, *codes, flat, out, first, last)

    pieces = min(torch.get_num_threads(), m * columns // WEIGHTS_PER_THREAD + 1)
    edges = [m * i // pieces for i in range(pieces + 1)]
    if pieces == 1:
        work(0, m)
    else:
        with ThreadPoolExecutor(pieces) as pool:
            list(pool.map(work, edges, edges[1:]))
    return torch.from_numpy(out).reshape(*y.shape[:-1], m)
