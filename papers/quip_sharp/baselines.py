"""What QuIP# is compared with: round to nearest, GPTQ (Frantar et al., 2023) and QuIP (Chee et al., 2023).

Own implementations from the papers' equations. Each returns W_hat (m, n) of W's dtype in the original basis.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from papers.quip_sharp.incoherence import draw, rotate_hessian, rotate_weight, unrotate_weight
from papers.quip_sharp.ldlq import damped, factor, ldlq, second_moment, tune_pass

# ---------------------------------------------------------------------------------------------- round to nearest


def minmax_grid(W: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Step and zero point of the asymmetric min-max grid of every row: (m, 1) each. 0 is always on the grid."""
    levels = 2**bits - 1
    low, high = W.amin(1, keepdim=True).clamp(max=0), W.amax(1, keepdim=True).clamp(min=0)
    step = (high - low) / levels
    step = torch.where(step > 0, step, 1.0)  # a row of zeros
    return step, (-low / step).round()


def round_to_grid(W: Tensor, step: Tensor, zero: Tensor, bits: int) -> Tensor:
    """Nearest point of each row's grid. W: (m, k); step, zero: (m, 1)."""
    return step * ((W / step).round().add(zero).clamp(0, 2**bits - 1) - zero)


def rtn(W: Tensor, bits: int) -> Tensor:
    """Round to nearest on a min-max grid per output row."""
    return round_to_grid(W, *minmax_grid(W, bits), bits)


# --------------------------------------------------------------------------------------------------------- GPTQ


def gptq(W: Tensor, H: Tensor, bits: int, *, damping: float = 0.01, block: int = 128) -> Tensor:
    """GPTQ on the same grids as `rtn`. Inputs that never fire (H_ii = 0) get weight 0, as in the original.

    The damping, of the mean diagonal, is doubled until H is positive definite. ValueError where 1 is too little.
    """
    H, W = second_moment(H).double().clone(), W.clone()
    dead = H.diagonal() == 0
    H.diagonal()[dead] = 1
    W[:, dead] = 0
    undamped = H.diagonal().clone()
    step, zero = minmax_grid(W, bits)

    def attempt(damping: float) -> Tensor:
        H.diagonal().copy_(undamped + damping * undamped.mean())
        return gptq_columns(W, H, lambda w: round_to_grid(w, step, zero, bits), block)

    return damped(attempt, damping)[0]


def gptq_columns(W: Tensor, H: Tensor, quantize: Callable[[Tensor], Tensor], block: int = 128) -> Tensor:
    """Columns left to right; each rounding error is spread over the columns to its right through H^{-1}.

    With U = chol_upper(H^{-1}): e_i = (w_i - q_i) / U_ii and W_{:,i:} -= e_i U_{i,i:}. H: (n, n) positive definite;
    quantize: (m, 1) -> (m, 1). Updates beyond `block` columns are gathered: same result, less memory traffic.
    """
    W = W.clone()
    W_hat = torch.zeros_like(W)
    identity = torch.eye(len(H), dtype=H.dtype, device=H.device)
    inverse = torch.cholesky_solve(identity, torch.linalg.cholesky(H))
    U = torch.linalg.cholesky((inverse + inverse.T) / 2, upper=True).to(W.dtype)
    n = W.shape[1]
    for start in range(0, n, block):
        end = min(start + block, n)
        errors = torch.zeros(len(W), end - start, dtype=W.dtype, device=W.device)
        for i in range(start, end):
            W_hat[:, i : i + 1] = quantize(W[:, i : i + 1])
            e = (W[:, i] - W_hat[:, i]) / U[i, i]
            W[:, i:end] -= e[:, None] * U[i, i:end]
            errors[:, i - start] = e
        W[:, end:] -= errors @ U[start:end, end:]
    return W_hat


# --------------------------------------------------------------------------------------------------------- QuIP


def quip(
    W: Tensor,
    H: Tensor,
    bits: int,
    generator: torch.Generator,
    *,
    sigma: float = 1e-2,
    range_rms: float = 2.4,
    greedy_passes: int = 0,
) -> Tensor:
    """QuIP: diagonal rescale, two-sided Kronecker rotation, one grid for the matrix, LDLQ a column at a time.

    The grid has 2^bits points on [-range_rms, range_rms] x rms(W~). greedy_passes: coordinate-descent passes after
    LDLQ (monotone, since the blocks have one column).
    """
    H = second_moment(H).double()
    s = rescale(W, H)
    m, n = W.shape
    U, V = draw("kron", m, generator), draw("kron", n, generator)
    W_tilde = rotate_weight((W.double() * s).to(W.dtype), U, V)
    factors = factor(rotate_hessian(H / s[:, None] / s, V), 1, sigma)
    scale = (range_rms * W_tilde.double().square().mean().sqrt()).to(W.dtype)
    if scale == 0:
        return torch.zeros_like(W)  # no point of the grid is 0, which only its scale could make up for
    levels = 2**bits - 1

    def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
        # Round half up on the 0 .. levels scale. x: (m, 1)
        index = ((x / scale + 1) / 2 * levels + 0.5).floor().clamp(0, levels)
        return (index / levels * 2 - 1) * scale, index[:, 0].long()

    W_hat, codes = ldlq(W_tilde, factors.L.to(W.dtype), quantize, 1)
    for _ in range(greedy_passes):
        W_hat, codes = tune_pass(W_tilde, W_hat, codes, factors.H, quantize, 1)
    return (unrotate_weight(W_hat, U, V).double() / s).to(W.dtype)


def rescale(W: Tensor, H: Tensor) -> Tensor:
    """QuIP's diagonal rescale of the inputs, s = (diag H / diag W^T W)^{1/4}, (n,) float64.

    To be used as W <- W diag(s), H <- diag(1/s) H diag(1/s). Both diagonals are clamped at 1e-8 (H's relative to its
    largest entry), so dead inputs and zero columns are harmless.
    """
    H = H.double()
    peak = H.abs().max()
    power = (H.diagonal() / (peak if peak > 0 else 1)).clamp(min=1e-8)
    return (power / W.double().square().sum(0).clamp(min=1e-8)) ** 0.25
