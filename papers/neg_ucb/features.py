"""Feature maps phi of a bid in its context: the kernel side of the acceptance model.

Every map takes x (n, d) and returns phi(x) (n, m) float64 whose last entry is the constant 1/sqrt(2). A map is the explicit form of
the kernel k'(x, z) = (k(x, z) + 1)/2: the constant lets the model have an intercept, the halves keep ||phi|| at most about 1.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

HALF = np.sqrt(0.5)


class FeatureMap(Protocol):
    """phi: (n, d) -> (n, dim), with a state so that a saved learner brings its own features along."""

    dim: int

    def __call__(self, x: np.ndarray) -> np.ndarray: ...

    def state_dict(self) -> dict[str, Any]: ...


def gaussian(x: np.ndarray, z: np.ndarray, length: float) -> np.ndarray:
    """k(x, z) = exp(-||x - z||^2 / (2 length^2)). x: (n, d), z: (k, d) -> (n, k)."""
    squared = (x**2).sum(1)[:, None] + (z**2).sum(1)
    squared -= 2 * x @ z.T
    np.maximum(squared, 0, out=squared)
    squared /= -2 * length**2
    return np.exp(squared, out=squared)


def with_constant(kernel):
    """k' = (k + 1)/2, the kernel whose explicit map is `[psi, 1]/sqrt(2)`."""
    return lambda x, z: (kernel(x, z) + 1) / 2


def median_length(x: np.ndarray) -> float:
    """Median distance between distinct rows of x (n, d): the usual first guess of a kernel's length-scale."""
    squared = (x**2).sum(1)[:, None] + (x**2).sum(1) - 2 * x @ x.T
    distances = np.sqrt(np.maximum(squared[np.triu_indices(len(x), 1)], 0))
    distances = distances[distances > 1e-9]
    return float(np.median(distances)) if len(distances) else 1.0


def check_size(m: int, length: float) -> None:
    """Raise ValueError unless the number of features and the length-scale are positive."""
    if length <= 0 or m < 1:
        raise ValueError(f"length is {length} and m is {m}: both must be positive")


class Linear:
    """phi(x) = [x/bound, 1]/sqrt(2). bound: a norm that no x exceeds, the same for every bid (a bound per bid would bend the bids against each other)."""

    def __init__(self, d: int, bound: float = 1.0):
        if bound <= 0:
            raise ValueError(f"bound is {bound}: give a positive bound on the norm of x")
        self.d, self.dim, self.bound = d, d + 1, float(bound)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        phi = np.empty((len(x), self.d + 1))
        np.multiply(x, HALF / self.bound, out=phi[:, :-1])
        phi[:, -1] = HALF
        return phi

    def kernel(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        return (x @ z.T / self.bound**2 + 1) / 2

    def state_dict(self) -> dict[str, Any]:
        return {"bound": self.bound}


class Polynomial(Linear):
    """The explicit map of k = ((1 + x'z/bound^2)/2)^2, which holds the constant in its last entry; (d + 1)^2 features, for small d."""

    def __init__(self, d: int, bound: float = 1.0):
        super().__init__(d, bound)
        self.d, self.dim = d, (d + 1) ** 2

    def __call__(self, x: np.ndarray) -> np.ndarray:
        phi = super().__call__(x)  # (n, d + 1)
        return (phi[:, :, None] * phi[:, None, :]).reshape(len(x), -1)

    def kernel(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        return super().kernel(x, z) ** 2


class RandomFourier:
    """Random Fourier features of the Gaussian kernel: [sqrt(2/m) cos(W x + beta), 1]/sqrt(2) (Rahimi and Recht 2007).

    W: (m, d) ~ N(0, 1/length^2), beta: (m,) ~ U[0, 2 pi). The norm can exceed 1 a little; `unit` scales such rows back,
    as the theory's bound needs.
    """

    def __init__(self, d: int, m: int, length: float, generator: np.random.Generator, unit: bool = False):
        check_size(m, length)
        self.W = generator.normal(0, 1 / length, (m, d))
        self.beta = generator.uniform(0, 2 * np.pi, m)
        self.dim, self.unit = m + 1, unit

    def __call__(self, x: np.ndarray) -> np.ndarray:
        phi = np.empty((len(x), self.dim))
        angles = x @ self.W.T
        angles += self.beta
        np.cos(angles, out=angles)
        np.multiply(angles, np.sqrt(1 / (self.dim - 1)), out=phi[:, :-1])  # sqrt(2/m)/sqrt(2)
        phi[:, -1] = HALF
        if self.unit:
            phi /= np.maximum(1, np.linalg.norm(phi, axis=1))[:, None]
        return phi

    def state_dict(self) -> dict[str, Any]:
        return {"W": self.W, "beta": self.beta, "unit": self.unit}


class Nystrom:
    """K_ZZ^{-1/2} k(Z, x) for landmarks Z chosen greedily by largest posterior variance (pivoted Cholesky).

    candidates: (n, d) rows to choose from. Fewer than m landmarks are kept where the candidates span less.
    """

    def __init__(self, candidates: np.ndarray, m: int, length: float):
        check_size(m, length)
        K = gaussian(candidates, candidates, length)
        chosen, residual, rows = [], np.diag(K).copy(), np.zeros((0, len(K)))
        for _ in range(min(m, len(K))):
            i = int(residual.argmax())
            if residual[i] < 1e-9:
                break
            row = (K[i] - rows[:, i] @ rows) / np.sqrt(residual[i])  # the next row of the Cholesky factor
            rows, residual = np.vstack([rows, row]), residual - row**2
            chosen.append(i)
        self.Z, self.length = candidates[chosen], float(length)
        values, vectors = np.linalg.eigh(K[np.ix_(chosen, chosen)])
        self.root = vectors / np.sqrt(np.maximum(values, 1e-12)) @ vectors.T  # K_ZZ^{-1/2}
        self.dim = len(chosen) + 1

    def __call__(self, x: np.ndarray) -> np.ndarray:
        phi = np.full((len(x), self.dim), HALF)
        np.multiply(gaussian(x, self.Z, self.length) @ self.root, HALF, out=phi[:, :-1])
        return phi

    def state_dict(self) -> dict[str, Any]:
        return {"Z": self.Z, "root": self.root, "length": self.length}


def make(kind: str, d: int, *, generator: np.random.Generator, m: int = 48, length: float | None = None, bound: float = 1.0,
         candidates: np.ndarray | None = None) -> FeatureMap:  # fmt: skip
    """A map by name: linear | rff | nystrom. length None: the median distance among `candidates` (n, d)."""
    if kind == "linear":
        return Linear(d, bound)
    if kind not in ("rff", "nystrom"):
        raise ValueError(
            f"feature map {kind!r}: choose linear, rff or nystrom (the exact kernel is papers.neg_ucb.kernel)"
        )
    if candidates is None and (length is None or kind == "nystrom"):
        raise ValueError("candidates: a sample of x is needed for the length-scale or the landmarks")
    if length is None:
        length = median_length(candidates)  # type: ignore[arg-type]
    return RandomFourier(d, m, length, generator) if kind == "rff" else Nystrom(candidates, m, length)  # type: ignore[arg-type]
