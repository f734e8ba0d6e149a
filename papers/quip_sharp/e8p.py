"""E8P, the 2-bit codebook of QuIP#: 65,536 points of the shifted lattice E8 + 1/4, 16 bits for 8 weights (sec. 4.2).

D8hat = {x in (Z + 1/2)^8 : sum x even}, and E8 + 1/4 = (D8hat + 1/4) u (D8hat - 1/4). Flipping an even number of signs
keeps a vector in D8hat, so a codeword is one of 256 absolute values S, an even sign pattern (7 bits), a shift (1 bit).

Bit layout of a word w:  a = w >> 8 is the row of S; b = w & 255; p = parity of b; bit 0 of b is XORed with p, which
leaves an even sign pattern; coordinate i is negated where bit COORDINATE_BIT[i] is set; then -1/4 if p else +1/4 is
added. Rows of S with an odd sum are first brought into D8hat by negating coordinate 8.
"""

from itertools import product

import numpy as np
import torch
from torch import Tensor

from papers.quip_sharp.lookup import constant, encode_vectors, look_up, tensor

COORDINATE_BIT = (0, 4, 1, 5, 2, 6, 3, 7)  # bit of b that holds the sign of coordinate 1..8
SHIFT = 0.25
# The 29 of the 56 absolute values with norm^2 = 12 (five 3/2, three 1/2) that fill S up to 256; digits are 2 x.
NORM_12 = (
    "31113333 13113333 11313333 11133333 33313311 33313131 33311331 33313113 33311313 33311133 33133311 33133131 "
    "33131331 33133113 33131313 33131133 31333311 31333131 31331331 31333113 31331313 13331133 13333311 13333131 "
    "13331331 13333113 13331313 11331333 33113331"
)
CHUNK = 1 << 14  # vectors encoded at a time: the working set stays in cache and the memory bounded
SEARCH_CHUNK = 1 << 10  # the same for the search, whose scores take 1,366 numbers a vector
# ------------------------------------------------------------------------------------------------- the codebook


@constant
def source_set() -> np.ndarray:
    """S, the absolute values: (256, 8) float32 in {1/2, 3/2, 5/2}. 227 rows of norm^2 <= 10, then 29 of norm^2 12."""
    grid = np.array(list(product((0.5, 1.5, 2.5), repeat=8)), np.float32)  # (6561, 8), lexicographic
    ball = grid[(grid**2).sum(1) <= 10]  # (227, 8)
    shell = np.array([[int(digit) / 2 for digit in row] for row in NORM_12.split()], np.float32)  # (29, 8)
    return np.concatenate([ball, shell])


@constant
def is_odd() -> np.ndarray:
    """Whether each row of S has an odd sum, and so is not itself in D8hat. (256,) bool."""
    return source_set().sum(1) % 2 == 1


@constant
def in_d8hat() -> np.ndarray:
    """S with coordinate 8 negated where a row's sum is odd: all rows in D8hat. (256, 8) float32."""
    rows = source_set().copy()
    rows[is_odd(), 7] *= -1
    return rows


@constant
def codebook() -> np.ndarray:
    """All codewords in the order of their words. (65536, 8) float32, entries +-0.25, +-0.75, ..., +-2.75."""
    words = np.arange(65536)
    signs = words & 255
    parity = _parity(signs)
    signs = signs ^ parity  # bit 0 carries the parity, that is the shift
    flip = ((signs[:, None] >> np.array(COORDINATE_BIT)) & 1).astype(np.float32)  # (65536, 8) by coordinate
    shift = SHIFT * (1 - 2 * parity.astype(np.float32))
    return in_d8hat()[words >> 8] * (1 - 2 * flip) + shift[:, None]


def decode(words: Tensor) -> Tensor:
    """Codewords of words. (...) int in [0, 65536) -> (..., 8) float32. ValueError for other words (on the CPU)."""
    return look_up(tensor(codebook, dtype=torch.float32, device=words.device), words)


@constant
def packed_table() -> np.ndarray:
    """The decoder's whole table, 1 KiB: nibble k of entry a holds 2 s[perm[k]] + 8, s row a of S inside D8hat.

    (256,) int64 in [0, 2^32). perm = 0 2 4 6 1 3 5 7 suits kernels that flip signs by XOR (all nibbles are odd).
    """
    nibbles = (2 * in_d8hat()[:, [0, 2, 4, 6, 1, 3, 5, 7]] + 8).astype(np.int64)
    return (nibbles << (4 * np.arange(8))).sum(1)


def _parity(bits: np.ndarray) -> np.ndarray:
    bits = bits ^ (bits >> 4)
    bits = bits ^ (bits >> 2)
    return (bits ^ (bits >> 1)) & 1


# ---------------------------------------------------------------------------------------------------- the encoder


def encode(x: Tensor) -> Tensor:
    """Word of the nearest codeword, exactly. x: (..., 8) float, already scaled -> (...) int64 in [0, 65536).

    For each shift, the nearest point of the lattice coset D8hat + shift is found in O(1) (Conway and Sloane). If it
    is in the codebook it is that coset's nearest codeword. If not, and the coset can still win, 1,366 rows are
    searched. Ties go to the shift +1/4, then to whichever of the equally near words the search meets first; the same
    input always gives the same word. Exact up to the rounding of |x - y|^2, and beyond `FAR` of 2 x.y - |y|^2 in
    float64: the score is within 1e-11 of the best whatever the size of x. ValueError where the last axis is not 8
    long or an entry not finite.
    """
    return encode_vectors(x, 8, _encode_near, _encode_far)


def _encode_near(x: Tensor) -> Tensor:
    """(N, 8) -> (N,)"""
    return torch.cat([_encode_chunk(chunk.T.contiguous()) for chunk in x.split(CHUNK)])


def _encode_far(x: Tensor) -> Tensor:
    """Words of vectors so long that their distances to any two codewords round to the same. (F, 8) float64 -> (F,).

    |x - y|^2 = |x|^2 - (2 x.y - |y|^2), so the brackets are compared, of the best codeword of either coset.
    """
    shift = torch.tensor([SHIFT, -SHIFT], dtype=x.dtype, device=x.device)[:, None]
    shifted = x.T[:, None] - shift  # (8, 2, F)
    points = _search(shifted.flatten(1)).view_as(shifted)
    y = points + shift
    score = (2 * x.T[:, None] * y - y.square()).sum(0)  # (2, F)
    minus = score[1] > score[0]
    y = torch.where(minus, points[:, 1], points[:, 0])
    return _word_of(y, _row_of(y), minus)


def _encode_chunk(x: Tensor) -> Tensor:
    """x: (8, N), coordinates first so that sums over them run over contiguous memory. Returns (N,) int64."""
    shifted = torch.stack([x - SHIFT, x + SHIFT], 1)  # (8, 2, N): what is left for D8hat under either shift
    points = _nearest_d8hat(shifted)
    error = (shifted - points).square_().sum(0)  # (2, N)
    rows = _row_of(points)
    inside = rows >= 0

    # A coset whose unrestricted nearest point is already no nearer than the other coset's codeword cannot win.
    bound = torch.where(inside, error, torch.inf)
    search = ~inside & (error < bound.flip(0))
    which, column = search.nonzero(as_tuple=True)
    if len(which):
        found = _search(shifted[:, which, column])  # (8, F)
        points[:, which, column] = found
        bound[which, column] = (shifted[:, which, column] - found).square().sum(0)
        rows[which, column] = _row_of(found)

    minus = bound[1] < bound[0]  # (N,): the shift is -1/4
    y = torch.where(minus, points[:, 1], points[:, 0])
    return _word_of(y, torch.where(minus, rows[1], rows[0]), minus)


def _word_of(y: Tensor, row: Tensor, minus: Tensor) -> Tensor:
    """Words of points y (8, N) of D8hat, whose rows of S are given, and which are shifted by -1/4 where minus."""
    bit = tensor(_coordinate_bit, dtype=torch.int64, device=y.device)
    signs = ((y < 0).long() << bit[:, None]).sum(0)
    signs = signs ^ (tensor(is_odd, dtype=torch.int64, device=y.device)[row] << 7) ^ minus.long()
    return (row << 8) | signs


def _nearest_d8hat(x: Tensor) -> Tensor:
    """Nearest point of D8hat, (8, ...): round to half-integers, then mend the sum's parity where it costs least."""
    y = x.floor() + 0.5
    residual = x - y  # in [-1/2, 1/2)
    worst = residual.abs().argmax(0, keepdim=True)  # moving this coordinate to its second nearest value costs least
    odd = y.sum(0, keepdim=True) % 2
    step = torch.where(residual.gather(0, worst) < 0, -1.0, 1.0).to(x.dtype)
    return y.scatter_add_(0, worst, step * odd)


def _row_of(y: Tensor) -> Tensor:
    """Row of |y| in S, -1 where it is not there. y: (8, ...) half-integers -> (...) int64."""
    digits = (y.abs() - 0.5).clamp_(max=3)  # 0 1 2 for 1/2 3/2 5/2, and 3 for anything larger
    place = tensor(_place, dtype=y.dtype, device=y.device)
    rows = tensor(_row_table, dtype=torch.int64, device=y.device)
    return rows[torch.tensordot(place, digits, 1).long()]


@constant
def _coordinate_bit() -> np.ndarray:
    return np.array(COORDINATE_BIT)


@constant
def _place() -> np.ndarray:
    """Place values of eight base-4 digits."""
    return 4 ** np.arange(8)


@constant
def _row_table() -> np.ndarray:
    """(65536,) int64: row of S by the base-4 digits of |y| - 1/2."""
    table = np.full(65536, -1)
    table[(source_set() - 0.5).astype(np.int64) @ _place()] = np.arange(256)
    return table


# ------------------------------------------------------------------------------- search of one coset's codewords


@constant
def part_grid() -> np.ndarray:
    """The 1,366 codewords (without shift) that a vector with an even pattern of signs removed can be nearest to.

    They have at most one negative entry among coordinates 1..7, and that one is -1/2. (1366, 8) float32.
    """
    plus = codebook()[_parity(np.arange(65536) & 255) == 0] - np.float32(SHIFT)  # (32768, 8): all within D8hat
    low = plus[:, :7]
    negative = (low < 0).sum(1)
    return plus[(negative == 0) | ((negative == 1) & (low.min(1) == -0.5))]


def _search(x: Tensor) -> Tensor:
    """Nearest codeword (without shift) of each column. (8, N) -> (8, N)."""
    grid = tensor(part_grid, dtype=x.dtype, device=x.device).T  # (8, 1366)
    scorer = tensor(_scorer, dtype=x.dtype, device=x.device)
    sign = torch.where(x < 0, -1.0, 1.0).to(x.dtype)
    # Only even sign patterns are symmetries of the codebook: with an odd one, coordinate 8 keeps a minus.
    sign[7] *= sign.prod(0)
    lifted = torch.cat([x * sign, torch.ones_like(x[:1])]).T.contiguous()  # (N, 9)
    # Vectors in rows: argmax over a contiguous axis is 4 x as fast as over the first (measured).
    best = torch.cat([(part @ scorer).argmax(1) for part in lifted.split(SEARCH_CHUNK)])
    return grid[:, best] * sign


@constant
def _scorer() -> np.ndarray:
    """(9, 1366) with [x, 1] @ scorer = 2 x.y - |y|^2 for the rows y of the part grid."""
    grid = part_grid()
    return np.ascontiguousarray(np.concatenate([2 * grid, -(grid**2).sum(1, keepdims=True)], 1).T)
