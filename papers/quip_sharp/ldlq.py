"""BlockLDLQ: adaptive rounding with linear feedback from the block LDL factor of the proxy Hessian (QuIP# sec. 4.1).

W (m, n) is the weight, H (n, n) the second moment of its inputs, and the damage that W_hat does is the proxy loss
l(W_hat) = tr((W_hat - W) H (W_hat - W)^T). With H = L D L^T (L unit block-lower-triangular, D block diagonal),

    W_hat_k = Q(W_k + (W - W_hat)_{>k} L_{>k, k})      for the column blocks k = n/g ... 1, right to left,

and eta = (W - W_hat) L, the error that Q itself makes, gives l = tr(eta D eta^T) exactly.
"""

import logging
from collections.abc import Callable
from math import floor, log2
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

log = logging.getLogger(__name__)
T = TypeVar("T")

NOT_A_MOMENT = "it is not a second moment (was it averaged or stored in too low a precision?)"
ROWS = 4096  # rows whose proxy error is computed at a time
Quantize = Callable[[Tensor], Tensor]  # (m, g) -> (m, g): the nearest entry for every row
QuantizeCodes = Callable[[Tensor], tuple[Tensor, Tensor]]  # (m, g) -> ((m, g), (m, ...)): the entry and its code


# --------------------------------------------------------------------------------------------------- the Hessian


def check_hessian(H: Tensor) -> Tensor:
    """H in at least float32. ValueError, in words a user can act on, where it is not square, finite and symmetric."""
    if not isinstance(H, Tensor):
        raise TypeError(f"the Hessian must be a tensor, got {type(H).__name__}")
    if H.ndim != 2 or H.shape[0] != H.shape[1] or not H.numel() or H.is_complex():
        raise ValueError(f"the Hessian must be a square matrix of real numbers, got shape {tuple(H.shape)} {H.dtype}")
    H = H.to(torch.promote_types(H.dtype, torch.float32))
    if not torch.isfinite(H).all():
        raise ValueError(
            "the Hessian has NaN or infinite entries: the model overflows on its calibration data "
            "(run it in float32 or bfloat16, and check the calibration tokens)"
        )
    least, most = H.aminmax()
    allowed = 1e-3 * torch.maximum(-least, most)
    for i in range(0, len(H), 512):  # a panel at a time: H may be as large as the memory allows
        if (H[i : i + 512, : i + 512] - H[: i + 512, i : i + 512].T).abs().amax() > allowed:
            raise ValueError("the Hessian is not symmetric: give the second moment of the inputs, x^T x / N")
    return H


def second_moment(H: Tensor) -> Tensor:
    """`check_hessian`, and ValueError where H's diagonal shows that it is no inputs' second moment E[x x^T].

    An H of extreme scale is brought to about 1 (by a power of 4: exactly, and its square roots too); only ratios count.
    """
    H = check_hessian(H)
    low, peak = (end.item() for end in H.diagonal().aminmax())
    if low < -1e-6 * abs(peak) or (peak <= 0 and H.any()):
        raise ValueError(f"the Hessian has diagonal entries down to {low:g}, so {NOT_A_MOMENT}")
    return H if peak == 0 or 1e-20 < peak < 1e20 else H / 4.0 ** floor(log2(peak) / 2)


def check_weight(W: Tensor, inputs: int) -> None:
    """ValueError where W is not a matrix (m, inputs) of finite real numbers."""
    if not isinstance(W, Tensor):
        raise TypeError(f"the weight must be a tensor, got {type(W).__name__}")
    if W.ndim != 2 or W.shape[1] != inputs or not len(W):
        raise ValueError(f"a weight of shape {tuple(W.shape)} does not fit a Hessian of {inputs} inputs")
    if W.is_complex() or W.dtype == torch.bool:
        raise ValueError(f"the weight is {W.dtype}: give one of real numbers")
    if not torch.isfinite(W).all():
        raise ValueError("the weight has NaN or infinite entries")


def regularize(H: Tensor, sigma: float = 1e-2) -> Tensor:
    """Symmetrise, scale to mean diagonal 1 and add sigma to the diagonal. (n, n) -> (n, n), same dtype.

    An H of zeros (a layer that never fires) becomes sigma I: every direction then counts the same.
    """
    return _regularized(check_hessian(H), sigma)


def _regularized(H: Tensor, sigma: float) -> Tensor:
    H = (H + H.T) / 2
    mean = H.diagonal().mean()
    if mean < 0:
        raise ValueError(f"the Hessian has a negative trace, so {NOT_A_MOMENT}")
    H = H / mean if mean > 0 else torch.zeros_like(H)
    H.diagonal().add_(sigma)
    return H


def block_ldl(H: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Unit block-lower-triangular L and block-diagonal D with H = L D L^T (QuIP# sec. 4.1).

    H: (n, n), symmetric positive definite, n % block == 0. Returns L (n, n), D (n/block, block, block), in at least
    float32. Raises LinAlgError where H is not positive definite: regularise it first (`regularize`, or `factor`,
    which retries).
    """
    H = check_hessian(H)
    n = H.shape[0]
    if isinstance(block, bool) or not isinstance(block, int):
        raise TypeError(f"the block must be an integer, got {block!r}")
    if block < 1 or n % block:
        raise ValueError(f"the size of H ({n}) must be a multiple of the block ({block})")
    return _block_ldl(H, block)


def _block_ldl(H: Tensor, block: int) -> tuple[Tensor, Tensor]:
    n = len(H)
    C = torch.linalg.cholesky(H)
    k = n // block
    diagonal = C.reshape(k, block, k, block).diagonal(dim1=0, dim2=2).permute(2, 0, 1)  # (k, g, g)
    D = diagonal @ diagonal.mT
    columns = C.reshape(n, k, block).transpose(0, 1)  # (k, n, g)
    L = torch.linalg.solve_triangular(diagonal, columns, upper=False, left=False)  # C_{:,k} C_kk^{-1}
    L = L.transpose(0, 1).reshape(n, n).contiguous()
    # exactly I in the diagonal blocks, where the solve leaves rounding errors
    L.view(k, block, k, block).diagonal(dim1=0, dim2=2).copy_(
        torch.eye(block, dtype=H.dtype, device=H.device)[..., None]
    )
    return L, D


class Factors(NamedTuple):
    """H (n, n) as regularised, its block LDL, and what it took: the damping used and how often it was doubled."""

    H: Tensor
    L: Tensor
    D: Tensor
    sigma: float
    retries: int


def factor(H: Tensor, block: int, sigma: float = 1e-2) -> Factors:
    """Regularise and factor H, doubling the damping until it is positive definite. Logged, and counted in `retries`.

    Raises ValueError for NaN, and where damping by the mean diagonal does not help.
    """
    H = check_hessian(H)

    def attempt(damping: float) -> tuple[Tensor, Tensor, Tensor]:
        regular = _regularized(H, damping)
        L, D = _block_ldl(regular, block)
        if not torch.isfinite(L).all():
            raise torch.linalg.LinAlgError("the factor overflows")
        return regular, L, D

    (regular, L, D), used, retries = damped(attempt, sigma)
    return Factors(regular, L, D, used, retries)


def damped(attempt: Callable[[float], T], sigma: float) -> tuple[T, float, int]:
    """attempt(damping) for the first of sigma, 2 sigma, ... 1 that raises no LinAlgError; that damping; retries.

    Raises ValueError where even damping by the mean diagonal is too little.
    """
    used, retries = sigma, 0
    while True:
        try:
            found = attempt(used)
        except torch.linalg.LinAlgError:
            if used >= 1:
                raise ValueError(
                    f"the Hessian is not positive definite even with damping {used:g} of its mean diagonal: "
                    f"it has large negative eigenvalues, so {NOT_A_MOMENT}"
                ) from None
            used, retries = min(max(2 * used, 1e-8), 1.0), retries + 1
            continue
        if retries:
            log.warning("Hessian not positive definite: damping %g, doubled %d times to %g", sigma, retries, used)
        return found, used, retries


def proxy_error(W: Tensor, W_hat: Tensor, H: Tensor) -> float:
    """Relative proxy error tr((W_hat - W) H (W_hat - W)^T) / tr(W H W^T), in float64. 0 where both vanish."""
    H = H.double()
    damage = whole = 0.0
    for w, w_hat in zip(W.split(ROWS), W_hat.split(ROWS), strict=True):  # float64 copies of a panel, not of all of W
        w, error = w.double(), w_hat.double() - w.double()
        damage += ((error @ H) * error).sum().item()
        whole += ((w @ H) * w).sum().item()
    return damage / whole if whole > 0 else (0.0 if damage == 0 else float("inf"))


# --------------------------------------------------------------------------------------------------- the rounding


def block_ldlq(
    W: Tensor,
    H: Tensor,
    quantize: Quantize,
    block: int = 8,
    *,
    buffer: int | None = 128,
    tune: int = 0,
    guard: bool = True,
) -> Tensor:
    """Round W (m, n) with feedback through H (n, n), which must be positive definite. Returns W_hat (m, n), W's dtype.

    quantize: (m, block) -> (m, block), called once per column block, right to left; nothing is scaled in here.
    buffer: feedback is gathered in panels of this many columns; None is the plain loop (same result up to rounding).
    tune, guard: coordinate-descent passes afterwards, see `tune_pass`. Raises LinAlgError where H is not PD.
    """
    L, _ = block_ldl(H, block)
    check_weight(W, len(L))
    W = W if W.is_floating_point() else W.float()

    def with_codes(x: Tensor) -> tuple[Tensor, Tensor]:
        x_hat = quantize(x)
        if not isinstance(x_hat, Tensor) or x_hat.shape != x.shape:
            got = tuple(x_hat.shape) if isinstance(x_hat, Tensor) else type(x_hat).__name__
            raise ValueError(f"quantize must return one tensor of the shape it is given, {tuple(x.shape)}, got {got}")
        return x_hat, x.new_empty(len(x), 0)

    W_hat, codes = ldlq(W, L.to(W.dtype), with_codes, block, buffer)
    for _ in range(tune):
        W_hat, codes = tune_pass(W, W_hat, codes, H, with_codes, block, guard)
    return W_hat


def ldlq(W: Tensor, L: Tensor, quantize: QuantizeCodes, block: int, buffer: int | None = 128) -> tuple[Tensor, Tensor]:
    """The feedback loop for a given factor L (n, n). Returns W_hat (m, n) and the codes (m, n/block, ...).

    Right to left, because L is *lower* triangular: block k hears the errors of the blocks to its right.
    """
    n = W.shape[1]
    if n % block:
        raise ValueError(f"W has {n} columns, which must be a multiple of the block ({block})")
    panel = n if buffer is None else max(block, buffer // block * block)
    error = torch.zeros_like(W)  # W - W_hat, right of the current block
    W_hat = torch.zeros_like(W)
    codes: list[Tensor] = []
    for end in range(n, 0, -panel):
        start = max(0, end - panel)
        target = W[:, start:end] + error[:, end:] @ L[end:, start:end]  # (m, panel): all that lies right of the panel
        for k in range(end - block, start - 1, -block):
            cols, right = slice(k, k + block), slice(k + block, end)
            T = target[:, k - start : k - start + block] + error[:, right] @ L[right, cols]  # (m, g)
            W_hat[:, cols], code = quantize(T)
            error[:, cols] = W[:, cols] - W_hat[:, cols]
            codes.append(code)
    return W_hat, torch.stack(codes[::-1], 1)


def tune_pass(
    W: Tensor,
    W_hat: Tensor,
    codes: Tensor,
    H: Tensor,
    quantize: QuantizeCodes,
    block: int,
    guard: bool = True,
) -> tuple[Tensor, Tensor]:
    """One pass of coordinate descent: each block is rounded again with all others fixed. Returns new W_hat and codes.

    For block k the unrestricted optimum is T = W_hat_k + (W - W_hat) H_{:,k} H_kk^{-1}. Q(T) is nearest in the
    Euclidean norm, but the loss around T is (c - T)^T H_kk (c - T), so for blocks of more than one column Q(T) can be
    worse than what was there. guard=True keeps a row's old block unless the new one lowers that form, so the proxy
    loss never rises. guard=False ("repo" mode) always takes Q(T), as the official code does; on Hessians with outlier
    channels that hurts.
    """
    n = W.shape[1]
    H = H.to(W.dtype)
    W_hat, codes = W_hat.clone(), codes.clone()
    for k in reversed(range(n // block)):
        cols = slice(k * block, (k + 1) * block)
        Hkk = H[cols, cols]
        gradient = (W - W_hat) @ H[:, cols]  # (m, g)
        T = W_hat[:, cols] + torch.linalg.solve(Hkk, gradient, left=False)
        new, code = quantize(T)
        if guard:
            before, after = W_hat[:, cols] - T, new - T
            better = ((after @ Hkk) * after).sum(1) < ((before @ Hkk) * before).sum(1)  # (m,)
        else:
            better = torch.ones(len(W), dtype=torch.bool, device=W.device)
        W_hat[better, cols] = new[better]
        codes[better, k] = code[better]
    return W_hat, codes
