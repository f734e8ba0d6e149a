"""Incoherence processing: random orthogonal rotations of W and H that even out their entries (QuIP# sec. 3).

With rotations V of the inputs and U of the outputs, W~ = U W V^T and H~ = V H V^T keep tr(W~ H~ W~^T) = tr(W H W^T),
while no entry of W~ and no eigenvector entry of H~ stands out. A rotation is drawn once and applied to the last axis:

    V = draw("rht", n, generator)          # x -> Had(pad(signs * x))
    W_tilde = rotate_weight(W, U, V);  H_tilde = rotate_hessian(H, V);  W = unrotate_weight(W_tilde, U, V)

Kinds: "rht" signs and a Hadamard transform (falls back to the FFT where n has none, and pads where n is odd);
"rfft" random phases and an FFT; "kron" QuIP's Kronecker product of two random orthogonal matrices; "none".
"""

import logging
from dataclasses import dataclass, field
from math import log as ln
from math import sqrt
from numbers import Integral

import torch
import torch.nn.functional as F
from torch import Tensor

from papers.quip_sharp import hadamard

log = logging.getLogger(__name__)
KINDS = ("rht", "rfft", "kron", "none")
CORES = ("hadamard", "rfft", "kron", "none")


@dataclass(frozen=True)
class Rotation:
    """An orthogonal map of R^n into R^size (size > n only where n had to be padded).

    core: "hadamard", "rfft", "kron" or "none"; signs: (n,) float32 of +-1, multiplied first; state: the core's tensors.
    """

    core: str
    n: int
    size: int
    signs: Tensor
    state: dict[str, Tensor] = field(default_factory=dict)


def as_generator(rng: object) -> torch.Generator:
    """A CPU generator from an int seed, a torch.Generator, or any object with a `.torch` generator."""
    if isinstance(rng, Integral) and not isinstance(rng, bool):
        seed = int(rng)
        if not -(2**63) <= seed < 2**64:
            raise ValueError(f"a seed must fit into 64 bits, got {seed}")
        return torch.Generator().manual_seed(seed)
    generator = rng if isinstance(rng, torch.Generator) else getattr(rng, "torch", None)
    if isinstance(generator, torch.Generator):
        if generator.device.type != "cpu":
            raise ValueError(
                f"rng is a generator on {generator.device}: give one on the CPU, so that draws are the same everywhere"
            )
        return generator
    raise TypeError(f"rng must be an int seed, a torch.Generator or have a .torch generator, got {type(rng).__name__}")


# ------------------------------------------------------------------------------------------------------- drawing


def draw_signs(n: int, generator: torch.Generator) -> Tensor:
    """Uniform signs, (n,) float32 of exactly +-1 (the sign of a normal draw could be 0)."""
    return torch.randint(0, 2, (n,), generator=generator).float() * 2 - 1


def draw(kind: str, n: int, generator: torch.Generator, multiple: int = 1) -> Rotation:
    """Draw a rotation of R^n. multiple: what the rotated size must divide by (8 for the inputs of an E8P layer)."""
    if kind not in KINDS:
        raise ValueError(f"unknown rotation {kind!r}: choose one of {', '.join(KINDS)}")
    size = -(-n // multiple) * multiple
    ones = torch.ones(n)
    if kind == "none":
        return Rotation("none", n, size, ones)
    if kind == "kron":
        return Rotation("kron", n, size, ones, _draw_kron(size, generator))
    if kind == "rht":
        size, core = hadamard.padded_size(n, multiple)
        if core == "hadamard":
            if size != n:
                log.info("no transform of size %d: padded to %d", n, size)
            return Rotation("hadamard", n, size, draw_signs(n, generator))
        log.info("no Hadamard matrix of size %d: random-phase FFT of size %d", n, size)
    size += multiple if size % 2 else 0  # multiple is odd here, so the size becomes even
    # Stored as float16, so rounded before use: any phases whatsoever give an orthogonal map.
    phases = (2 * torch.pi * torch.rand(size // 2, generator=generator)).half()
    return Rotation("rfft", n, size, ones, {"phases": phases})


def random_orthogonal(n: int, generator: torch.Generator) -> Tensor:
    """Haar-distributed rotation (determinant +1), (n, n) float64."""
    Q, R = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    Q = Q * torch.where(R.diagonal() < 0, -1.0, 1.0)  # without this the QR convention, not Haar, decides the signs
    if n > 1 and torch.linalg.det(Q) < 0:
        Q[:, 0] *= -1
    return Q


def kron_factors(n: int) -> tuple[int, int]:
    """n = p q with p and q close: the sorted prime factors dealt out in turn (QuIP; 4096 -> 64, 64)."""
    primes, rest, p = [], n, 2
    while rest > 1:
        while rest % p == 0:
            primes.append(p)
            rest //= p
        p = p + 1 if p * p <= rest else max(rest, p + 1)
    sizes = [1, 1]
    for i, prime in enumerate(sorted(primes)):
        sizes[i % 2] *= prime
    return sizes[0], sizes[1]


def _draw_kron(n: int, generator: torch.Generator) -> dict[str, Tensor]:
    p, q = kron_factors(n)
    return {
        "left": random_orthogonal(p, generator),
        "right": random_orthogonal(q, generator),
        "before": torch.randperm(n, generator=generator),
        "after": torch.randperm(n, generator=generator),
    }


def empty_state(core: str, size: int) -> dict[str, Tensor]:
    """Tensors of a rotation's shapes and dtypes, to be loaded into. ValueError for no core of `CORES`."""
    if core not in CORES:
        raise ValueError(f"unknown rotation {core!r}: choose one of {', '.join(CORES)}")
    if core == "rfft":
        return {"phases": torch.zeros(size // 2, dtype=torch.float16)}
    if core == "kron":
        p, q = kron_factors(size)
        order = torch.arange(size)
        eyes = {"left": torch.eye(p, dtype=torch.float64), "right": torch.eye(q, dtype=torch.float64)}
        return {**eyes, "before": order, "after": order.clone()}
    return {}


# ------------------------------------------------------------------------------------------------------ applying


def apply_core(core: str, state: dict[str, Tensor], x: Tensor, inverse: bool = False) -> Tensor:
    """The orthogonal map without signs and padding. (..., size) -> (..., size); inverse=True applies the transpose."""
    if core == "hadamard":
        return hadamard.transform(x, inverse)
    if core == "rfft":
        return hadamard.rfft(x, state["phases"], inverse)
    if core == "kron":
        return _apply_kron(x, inverse, **state)
    if core == "none":
        return x
    raise ValueError(f"unknown rotation {core!r}: choose one of {', '.join(CORES)}")


def _apply_kron(x: Tensor, inverse: bool, left: Tensor, right: Tensor, before: Tensor, after: Tensor) -> Tensor:
    left, right = left.to(x.dtype), right.to(x.dtype)
    if inverse:
        left, right, before, after = left.T, right.T, after.argsort(), before.argsort()
    x = x[..., before].unflatten(-1, (left.shape[0], right.shape[0]))  # (..., p, q)
    return (left @ x @ right.T).flatten(-2)[..., after]


def rotate(rotation: Rotation, x: Tensor) -> Tensor:
    """V x along the last axis: (..., n) -> (..., size)."""
    x = x * rotation.signs.to(x)
    return apply_core(rotation.core, _on(rotation, x), F.pad(x, (0, rotation.size - rotation.n)))


def unrotate(rotation: Rotation, x: Tensor) -> Tensor:
    """V^T x along the last axis: (..., size) -> (..., n)."""
    x = apply_core(rotation.core, _on(rotation, x), x, inverse=True)[..., : rotation.n]
    return x * rotation.signs.to(x)


def rotate_weight(W: Tensor, U: Rotation, V: Rotation) -> Tensor:
    """W~ = U W V^T: (m, n) -> (U.size, V.size)."""
    return rotate(U, rotate(V, W).T).T


def unrotate_weight(W_tilde: Tensor, U: Rotation, V: Rotation) -> Tensor:
    """W = U^T W~ V: (U.size, V.size) -> (m, n)."""
    return unrotate(U, unrotate(V, W_tilde).T).T


def rotate_hessian(H: Tensor, V: Rotation) -> Tensor:
    """H~ = V H V^T: (n, n) -> (size, size), exactly symmetric: rounding breaks that, and Cholesky reads one half."""
    H = rotate(V, rotate(V, H).T)
    return (H + H.T) / 2


def _on(rotation: Rotation, x: Tensor) -> dict[str, Tensor]:
    return {name: value.to(x.device) for name, value in rotation.state.items()}


# ------------------------------------------------------------------------------------------- how incoherent it is


def mu_weight(W: Tensor) -> float:
    """mu_W = max |W_ij| sqrt(mn) / ||W||_F, at least 1."""
    W = W.double()
    return (W.abs().max() * sqrt(W.numel()) / W.norm()).item()


def mu_hessian(H: Tensor) -> float:
    """mu_H = max |Q_ij| sqrt(n) over the eigenvectors Q of H (n, n), at least 1. Equal eigenvalues leave Q a choice."""
    Q = torch.linalg.eigh(H.double()).eigenvectors
    return (Q.abs().max() * sqrt(len(Q))).item()


def mu_weight_bound(m: int, n: int, delta: float = 0.01) -> float:
    """mu_W <= 2 log(4 m n / delta) with probability 1 - delta after the RHT (Lemma 3.1)."""
    return 2 * ln(4 * m * n / delta)


def mu_hessian_bound(n: int, delta: float = 0.01) -> float:
    """mu_H <= sqrt(2 log(2 n^2 / delta)) with probability 1 - delta after the RHT (Lemma 3.1)."""
    return sqrt(2 * ln(2 * n * n / delta))
