"""Fast orthonormal transforms of the last axis: Hadamard, its FFT stand-in, and the sizes each of them covers.

QuIP# sec. 3 (incoherence processing). A Hadamard matrix H_n has entries +-1 and H H^T = n I. It is known for n = 2^q
(Sylvester) and n = 2^q K for a few base orders K, built here from number theory: Paley I and II, and Williamson.
Where a size has no such factorisation, an FFT with random phases does the same work for every even size.
"""

from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from papers.quip_sharp.lookup import constant, tensor

# Base orders K = 4 * odd, in the order they are looked up (n = odd * 2^q needs q >= 2, so K is unique).
PALEY_I = {12: 11, 20: 19, 60: 59, 108: 107, 140: 139}  # K = q + 1,    q prime = 3 mod 4
PALEY_II = {28: 13, 36: 17, 124: 61}  # K = 2 (q + 1), q prime = 1 mod 4
WILLIAMSON = {  # K = 4 p: first rows of four symmetric circulants with A^2 + B^2 + C^2 + D^2 = 4 p I
    52: ("+-+--++++--+-", "+---++++++---", "++-+--++--+-+", "+----+--+----"),
    116: (
        "++--+--+-+++-++++-+++-+--+--+",
        "++++-++-+---++++++---+-++-+++",
        "+-+---++--+-++++++-+--++---+-",
        "+++---++--+-+----+-+--++---++",
    ),
    156: (
        "+++--+-+-----+--++----++--+-----+-+--++",
        "++++---+--++----+-+--+-+----++--+---+++",
        "+++--++-+---+-+--+----+--+-+---+-++--++",
        "+---++-+-+-----+++-++-+++-----+-+-++---",
    ),
    172: (
        "+---++--++++-+-+++-++--++-+++-+-++++--++---",
        "++-++++++----+-+--++-++-++--+-+----++++++-+",
        "+++-+-++--+-+-++++-+----+-++++-+-+--++-+-++",
        "++---++++-+--+--++--------++--+--+-++++---+",
    ),
}
BASES = tuple(sorted({**PALEY_I, **PALEY_II, **WILLIAMSON}))  # 12 20 28 36 52 60 108 116 124 140 156 172

# Sylvester factors are applied 2^4 at a time as small matrix products. Measured on CPU against log2(n) butterfly
# passes: 2-5 x faster for (1..1024, 256..4096), since a 16 x 16 product costs one pass over the memory.
SYLVESTER_BLOCK = 4


# ---------------------------------------------------------------------------------------------- the matrices


def hadamard_matrix(K: int) -> Tensor:
    """Hadamard matrix of order K, (K, K) float32 with entries +-1 and H H^T = K I.

    K: 2^q, or one of the twelve base orders `BASES`. Raises ValueError otherwise, TypeError where K is not an integer.
    """
    if isinstance(K, bool) or not isinstance(K, Integral):
        raise TypeError(f"the order of a Hadamard matrix must be an integer, got {K!r}")
    return torch.from_numpy(_matrix(K).astype(np.float32))


@constant
def _matrix(K: int) -> np.ndarray:
    if K in PALEY_I:
        H = _paley_i(PALEY_I[K])
    elif K in PALEY_II:
        H = _paley_ii(PALEY_II[K])
    elif K in WILLIAMSON:
        H = _williamson(WILLIAMSON[K])
    elif K >= 1 and K & (K - 1) == 0:
        H = np.ones((1, 1), dtype=np.int8)
        while len(H) < K:
            H = np.kron(np.array([[1, 1], [1, -1]], dtype=np.int8), H)
    else:
        raise ValueError(f"no Hadamard matrix of order {K} here: choose a power of two or one of {BASES}")
    return H


def _legendre(q: int) -> np.ndarray:
    """Q_ij = chi(j - i) over the integers mod the prime q: 0 on the diagonal, +1 for squares, -1 else. (q, q) int8."""
    chi = -np.ones(q, dtype=np.int8)
    chi[np.arange(q) ** 2 % q] = 1
    chi[0] = 0
    i = np.arange(q)
    return chi[(i[None, :] - i[:, None]) % q]


def _bordered(q: int, left: int) -> np.ndarray:
    """[[0, 1^T], [left * 1, Q]], the (q + 1)-conference matrix of Paley."""
    S = np.ones((q + 1, q + 1), dtype=np.int8)
    S[1:, 1:] = _legendre(q)
    S[1:, 0] = left
    S[0, 0] = 0
    return S


def _paley_i(q: int) -> np.ndarray:
    return _bordered(q, -1) + np.eye(q + 1, dtype=np.int8)


def _paley_ii(q: int) -> np.ndarray:
    off = np.array([[1, 1], [1, -1]], dtype=np.int8)
    on = np.array([[1, -1], [-1, -1]], dtype=np.int8)
    return np.kron(_bordered(q, 1), off) + np.kron(np.eye(q + 1, dtype=np.int8), on)


def _williamson(rows: tuple[str, ...]) -> np.ndarray:
    A, B, C, D = (_circulant([1 if c == "+" else -1 for c in row]) for row in rows)
    return np.block([[A, B, C, D], [-B, A, -D, C], [-C, D, A, -B], [-D, -C, B, A]])


def _circulant(first: list[int]) -> np.ndarray:
    i = np.arange(len(first))
    return np.array(first, dtype=np.int8)[(i[None, :] - i[:, None]) % len(first)]


# ------------------------------------------------------------------------------------------- the fast transform


def factor(n: int) -> tuple[int, int] | None:
    """n = 2^q * K with K = 1 or a base order: returns (K, 2^q), or None where no Hadamard matrix is at hand."""
    odd = n
    while odd % 2 == 0 and odd > 0:
        odd //= 2
    if odd == 1:
        return 1, n
    return (4 * odd, n // (4 * odd)) if 4 * odd in BASES and n % (4 * odd) == 0 else None


def is_supported(n: int) -> bool:
    """Whether a Hadamard matrix of size n is at hand, that is whether n = 2^q K."""
    return n >= 1 and factor(n) is not None


def padded_size(n: int, multiple: int = 1) -> tuple[int, str]:
    """The fallback chain: the size that n is padded to, and the transform used there ("hadamard" or "rfft").

    Hadamard where n has one, else the FFT where n is even, else (n odd, or not a multiple of `multiple`) the next
    larger size with either. multiple: what the size must divide by, 8 for the input side (codebook block), else 1.
    """
    if n < 1:
        raise ValueError(f"size must be at least 1, got {n}")
    size = -(-n // multiple) * multiple
    while not is_supported(size) and size % 2:
        size += multiple
    return size, "hadamard" if is_supported(size) else "rfft"


def transform(x: Tensor, inverse: bool = False) -> Tensor:
    """Orthonormal transform of the last axis: V x with V = (had_K kron H_{n/K}) / sqrt(n), a Hadamard matrix.

    x: (..., n) float. Even n that is not 2^q K (see `is_supported`) takes the FFT in its place (`rfft`, all phases
    0). inverse=True applies V^T, which differs where V is not symmetric. Half precisions are computed in float32.
    Returns (..., n) of x's dtype, float32 for integers. ValueError where n is odd and larger than 1, or 0: pad (see
    `padded_size`).
    """
    x = _real(x)
    n = x.shape[-1]
    parts = factor(n)
    if parts is None and n % 2 == 0 and n > 0:
        return rfft(x, x.new_zeros(n // 2), inverse)
    if parts is None:
        raise ValueError(f"no orthonormal transform of size {n}: even sizes have one, pad to it (see padded_size)")
    if x.numel() == 0:
        return x
    K, length = parts
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    y = x.to(dtype)
    inner = 1  # entries to the right of the axis being transformed
    while inner < length:
        size = min(2**SYLVESTER_BLOCK, length // inner)
        y = _along(tensor(_matrix, size, dtype=dtype, device=x.device), y, inner)
        inner *= size
    if K > 1:
        y = _along(tensor(_transposed if inverse else _matrix, K, dtype=dtype, device=x.device), y, inner)
    # The scale is one over the square root of the whole size n, not of n / K: the base matrix has norm sqrt(K) too.
    return (y * n**-0.5).reshape(x.shape).to(x.dtype)


def _real(x: Tensor) -> Tensor:
    """x, float32 for integers. ValueError for what has no last axis of real numbers."""
    if x.ndim == 0 or x.is_complex():
        raise ValueError(f"a transform needs real numbers (..., n), got shape {tuple(x.shape)} {x.dtype}")
    return x if x.is_floating_point() else x.float()


def _along(M: Tensor, x: Tensor, inner: int) -> Tensor:
    """Multiply by M (k, k) along the axis of length k that has `inner` entries to its right."""
    k = M.shape[0]
    if inner == 1:
        return x.reshape(-1, k) @ M.T
    return torch.matmul(M, x.reshape(-1, k, inner))  # (N, k, inner)


@constant
def _transposed(K: int) -> np.ndarray:
    return np.ascontiguousarray(_matrix(K).T)


# ------------------------------------------------------------------------------------------------ the FFT stand-in


def rfft(x: Tensor, phases: Tensor, inverse: bool = False) -> Tensor:
    """FFT of the last axis with given phases, an orthogonal map of R^n (QuIP# "IP-RFFT").

    Consecutive pairs of x (..., n) are read as n/2 complex numbers c, then c <- FFT_orthonormal(exp(i phases) * c).
    phases: (n/2,) in [0, 2 pi). inverse=True applies the transpose. Half precisions are computed in float32.
    """
    x = _real(x)
    n = x.shape[-1]
    if n % 2 or phases.shape != (n // 2,):
        raise ValueError(f"rfft needs an even size and n/2 phases, got size {n} and phases {tuple(phases.shape)}")
    if x.numel() == 0:
        return x
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    theta = phases.to(dtype)
    turn = torch.complex(theta.cos(), -theta.sin() if inverse else theta.sin())
    c = torch.view_as_complex(x.to(dtype).reshape(*x.shape[:-1], n // 2, 2).contiguous())  # (..., n/2)
    c = torch.fft.ifft(c, norm="ortho") * turn if inverse else torch.fft.fft(c * turn, norm="ortho")
    return torch.view_as_real(c).reshape(x.shape).to(x.dtype)
