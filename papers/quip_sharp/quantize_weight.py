"""Quantise one weight matrix, or several that share their inputs, by QuIP#, its ablations, or a baseline.

    quantized = quantize_linear(W, H, "quip_sharp", bits=2, rng=0)
    quantized.weight                       # (m, n) float32, the reconstruction in the original basis
    QuantLinear.from_quantized(quantized)  # the layer that computes with the words

The steps of QuIP# (sec. 3 and 4): fuse, rotate, regularise and factor H, scale to rho, BlockLDLQ, pack.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from papers.quip_sharp import baselines, codebooks, incoherence
from papers.quip_sharp.codebooks import Codebook
from papers.quip_sharp.incoherence import Rotation, as_generator
from papers.quip_sharp.ldlq import (
    NOT_A_MOMENT,
    Factors,
    check_weight,
    factor,
    ldlq,
    proxy_error,
    second_moment,
    tune_pass,
)


@dataclass(frozen=True)
class Recipe:
    """What a QuIP# method consists of: the rotation, the codebook for each number of bits, feedback or not."""

    rotation: str = "rht"
    codebooks: tuple[str, ...] = ("e8_1bit", "e8p", "e8p_rvq3", "e8p_rvq4")  # for 1, 2, 3, 4 bits
    feedback: bool = True


RECIPES = {
    "quip_sharp": Recipe(),
    "quip_sharp_rfft": Recipe(rotation="rfft"),
    "quip_sharp_no_e8": Recipe(codebooks=("", "scalar2", "scalar3", "scalar4")),
    "quip_sharp_d4": Recipe(codebooks=("", "d4", "", "")),
    "quip_sharp_no_rht": Recipe(rotation="none"),
    "quip_sharp_no_ldlq": Recipe(feedback=False),
}
BASELINES = ("rtn", "gptq", "quip")
METHODS = (*BASELINES, *RECIPES)
SMALLEST, LARGEST = 1e-38, 1e37  # of a weight's largest entry: float32 goes a little further, and so may the result


def widths(method: str) -> tuple[int, ...]:
    """The bits per weight that a method comes in."""
    if method in BASELINES:
        return (2, 3, 4)
    return tuple(bits for bits, name in enumerate(RECIPES[method].codebooks, 1) if name)


@dataclass(frozen=True)
class QuantizeOptions:
    """Options of the QuIP# methods. Baselines ignore them (QuIP takes sigma).

    rho: the rms that weights are scaled to (None: the codebook's own; several: the one with the least proxy error).
    tune, guard: coordinate-descent passes after BlockLDLQ (`ldlq.tune_pass`).
    sigma: the damping, of H's mean diagonal.
    rescale: QuIP's diagonal rescale of the inputs, folded into SV.
    rescale_rows: every output row brought to one rms, folded into SU (not in the paper: see `_row_factors`).
    residual_scale: r of the 3- and 4-bit codebooks.
    """

    rho: float | Sequence[float] | None = None
    tune: int = 0
    guard: bool = True
    sigma: float = 1e-2
    rescale: bool = False
    rescale_rows: bool = False
    residual_scale: float | None = None

    def __post_init__(self) -> None:
        check_int("tune", self.tune)
        if self.tune < 0:
            raise ValueError(f"tune must be a number of passes, 0 or more, got {self.tune}")
        codebooks.number("sigma", self.sigma, "0 or more (the damping, of H's mean diagonal)", 0)
        self.rhos(1.0)

    def rhos(self, own: float) -> list[float]:
        """What to scale to: the one rho or the several, a codebook's own where none is given."""
        rule = "positive (the rms that weights are scaled to)"
        several = self.rho if isinstance(self.rho, Sequence) else [own if self.rho is None else self.rho]
        if not several:
            raise ValueError(f"rho must be {rule}, got none")
        return [codebooks.number("rho", one, rule) for one in several]


@dataclass(frozen=True)
class Quantized:
    """A quantised weight. Baselines fill the first block only; QuIP# methods all of it.

    weight: (m, n) float32, W_hat in the original basis. bits_per_weight: everything that has to be stored (words, SU,
    SV, scales, phases) over m n. proxy_error: tr(E H E^T) / tr(W H W^T) with H as given, E = W_hat - W.
    words: (U.size, bytes) uint8; SU (m,), SV (n,) float16; scale (len(splits),) float32.
    """

    weight: Tensor
    bits_per_weight: float
    proxy_error: float
    method: str
    splits: tuple[int, ...]

    words: Tensor | None = None
    SU: Tensor | None = None
    SV: Tensor | None = None
    scale: Tensor | None = None
    U: Rotation | None = None
    V: Rotation | None = None
    codebook: Codebook | None = None
    rho: float | None = None
    sigma: float | None = None
    retries: int = 0

    def row(self) -> dict:
        """The figures to report of it, plain JSON."""
        row = {"method": self.method, "bits_per_weight": self.bits_per_weight, "proxy_error": self.proxy_error}
        row["weights"] = self.weight.numel()
        if self.codebook is not None and self.U is not None and self.V is not None:
            row |= {"codebook": self.codebook.name, "rho": self.rho, "sigma": self.sigma, "retries": self.retries}
            row |= {"rotations": f"{self.U.core} {self.U.size}, {self.V.core} {self.V.size}"}
        return row


def quantize_linear(
    W: Tensor | Sequence[Tensor], H: Tensor, method: str = "quip_sharp", bits: int = 2, rng: object = 0, **options: Any
) -> Quantized:
    """Quantise W (m, n), or the weights of several layers with the same inputs fused into one.

    H: (n, n), the second moment of the inputs, any float dtype. method: one of `METHODS`. bits: 2, 3 or 4 (QuIP# also
    1 with the E8 ball alone). rng: an int seed, a torch.Generator, or an object with a `.torch` generator. options:
    fields of `QuantizeOptions`. Raises ValueError for unknown names, shapes that do not fit, NaN or infinite entries,
    weights that float32 cannot compute with, and an H that is no second moment; TypeError for arguments of the wrong
    type.
    """
    generator = as_generator(rng)
    chosen = QuantizeOptions(**options)
    _check_method(method, bits)
    weights, H = _check_tensors(W, H)
    if method in BASELINES:
        return _checked(_baseline(weights, H, method, bits, generator, chosen))
    return _checked(_quip_sharp(weights, H, method, bits, generator, chosen))


def _baseline(
    weights: list[Tensor], H: Tensor, method: str, bits: int, generator: torch.Generator, options: QuantizeOptions
) -> Quantized:
    W = torch.cat([w.float() for w in weights])
    if method == "quip":
        parts = [baselines.quip(w.float(), H, bits, generator, sigma=options.sigma) for w in weights]
        weight = torch.cat(parts)
    else:
        weight = baselines.rtn(W, bits) if method == "rtn" else baselines.gptq(W, H, bits)
    overhead = _baseline_overhead(method, bits, W.shape, len(weights))
    splits = tuple(len(w) for w in weights)
    return Quantized(weight, bits + overhead / W.numel(), proxy_error(W, weight, H), method, splits)


def _quip_sharp(
    weights: list[Tensor], H: Tensor, method: str, bits: int, generator: torch.Generator, options: QuantizeOptions
) -> Quantized:
    recipe = RECIPES[method]
    codebook = codebooks.get(recipe.codebooks[bits - 1], options.residual_scale)
    W = torch.cat([w.float() for w in weights])  # (m, n)
    m, n = W.shape
    splits = [len(w) for w in weights]
    # Fused weights are brought to the same rms, so that one scale fits all of them.
    rms = torch.stack([_rms(w) for w in weights])  # (weights,)
    flat = W / _per_row(_nonzero(rms), splits)
    row_factors = _row_factors(flat) if options.rescale_rows else torch.ones(m, 1, device=W.device)
    flat = flat / row_factors
    U = incoherence.draw(recipe.rotation, m, generator)
    V = incoherence.draw(recipe.rotation, n, generator, multiple=codebook.block)

    # Diagonal rescale: W <- W diag(s), H <- diag(1/s) H diag(1/s); 1/s is kept in SV, so it is rounded like SV first.
    H64 = H.double()
    unscale = torch.ones(n, device=W.device)
    if options.rescale:
        s = baselines.rescale(flat, H64)
        unscale = (1 / (s / s.log().mean().exp())).clamp(2**-12, 2**12).half().float()
    W_tilde = incoherence.rotate_weight(flat / unscale, U, V)  # (U.size, V.size)
    H_tilde = incoherence.rotate_hessian(unscale.double()[:, None] * H64 * unscale.double(), V)
    factors = factor(H_tilde, codebook.block, options.sigma)

    whole = _nonzero(_rms(W_tilde))

    def attempt(rho: float) -> tuple[float, float, Tensor, Tensor, Tensor]:
        x = W_tilde * (rho / whole)
        x_hat, codes = _round(x, factors, codebook, recipe.feedback, options)
        scale = (rms * whole / rho).float()
        weight = incoherence.unrotate_weight(x_hat, U, V) * unscale * row_factors * _per_row(scale, splits)
        return proxy_error(W, weight, H), rho, weight, codebook.pack(codes), scale

    tried = map(attempt, options.rhos(codebook.scale))
    damage, chosen, weight, words, scale = min(tried, key=lambda found: found[0])
    SU, SV = (U.signs.to(W) * row_factors[:, 0]).half(), (V.signs.to(W) * unscale).half()
    stored = [words, SU, SV, scale, *U.state.values(), *V.state.values()]
    return Quantized(
        weight=weight,
        bits_per_weight=8 * sum(t.numel() * t.element_size() for t in stored) / W.numel(),
        proxy_error=damage,
        method=method,
        splits=tuple(splits),
        words=words,
        SU=SU,
        SV=SV,
        scale=scale,
        U=U,
        V=V,
        codebook=codebook,
        rho=float(chosen),
        sigma=factors.sigma,
        retries=factors.retries,
    )


def _round(
    x: Tensor, factors: Factors, codebook: Codebook, feedback: bool, options: QuantizeOptions
) -> tuple[Tensor, Tensor]:
    """Round scaled weights (m, n): returns the entries (m, n) and their codes (m, n / block)."""
    if not feedback:
        x_hat, codes = codebook.quantize(x.unflatten(-1, (-1, codebook.block)))  # (m, n/g, g)
        return x_hat.flatten(1), codes
    x_hat, codes = ldlq(x, factors.L.to(x.dtype), codebook.quantize, codebook.block)
    for _ in range(options.tune):
        x_hat, codes = tune_pass(x, x_hat, codes, factors.H, codebook.quantize, codebook.block, options.guard)
    return x_hat, codes


def _row_factors(W: Tensor) -> Tensor:
    """Each row's rms, rounded to the float16 that SU keeps it in. (m, n) -> (m, 1).

    The rotation U spreads the rounding error evenly over the rows, so rows of small norm get a large relative error.
    Brought to one rms first, every row gets the same relative error, at no cost in storage (SU has m float16 entries
    anyway) and hardly any in the proxy loss, which only sees the sum over rows.
    """
    return W.double().square().mean(1, keepdim=True).sqrt().clamp(2**-12, 2**12).half().float()


def _per_row(values: Tensor, splits: list[int]) -> Tensor:
    """One value per fused weight -> one per row, (m, 1)."""
    return torch.cat([value.expand(size) for value, size in zip(values, splits, strict=True)])[:, None]


def _rms(x: Tensor) -> Tensor:
    """Root mean square, float32; squared in float64, where neither 1e30 nor 1e-30 is lost."""
    return x.double().square().mean().sqrt().float()


def _nonzero(scale: Tensor) -> Tensor:
    """Divide by 1 where the scale is 0: a weight of zeros is restored by its scale of 0."""
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def _baseline_overhead(method: str, bits: int, shape: torch.Size, weights: int) -> float:
    """Bits beyond the codes. Grids: a float32 step and a zero point per row. QuIP: a float32 scale, a 64-bit seed for
    the two rotations, and the float32 rescale of the inputs, per weight."""
    m, n = shape
    return weights * (32 + 64 + 32 * n) if method == "quip" else m * (32 + bits)


def check_int(name: str, value: object) -> None:
    """TypeError where a value is not a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")


def _check_method(method: str, bits: int) -> None:
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")
    check_int("bits", bits)
    if bits not in widths(method):
        raise ValueError(f"method {method!r} takes {widths(method)} bits, got {bits!r}")


def _check_tensors(W: Tensor | Sequence[Tensor], H: Tensor) -> tuple[list[Tensor], Tensor]:
    """The weights to fuse, and H ready for use."""
    weights = [W] if isinstance(W, Tensor) else W
    if not isinstance(weights, Sequence) or not all(isinstance(w, Tensor) for w in weights):
        raise TypeError(f"W must be a tensor (m, n) or a list of them, got {type(W).__name__}")
    if not weights:
        raise ValueError("no weight to quantise")
    H = second_moment(H.to(weights[0].device) if isinstance(H, Tensor) else H)
    for w in weights:
        check_weight(w, len(H))
        peak = w.abs().max().item()
        if peak and not SMALLEST < peak < LARGEST:
            raise ValueError(
                f"the largest entry of the weight is {peak:.1e}, where float32 runs out: scale it to between "
                f"{SMALLEST:g} and {LARGEST:g}"
            )
    return [w.detach() for w in weights], H


def _checked(quantized: Quantized) -> Quantized:
    if not torch.isfinite(quantized.weight).all():
        raise ValueError("the quantised weight overflows float32: scale the weight down")
    if quantized.proxy_error < -1e-9:  # more than rounding
        raise ValueError(f"the proxy error comes out negative ({quantized.proxy_error:g}): check H, {NOT_A_MOMENT}")
    return quantized
