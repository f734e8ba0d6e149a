"""The exact kernel form: the same model as `acceptance.py` without a feature map, in dual variables (KernelUCB, Valko et al. 2013).

Joint kernel of two rounds: K_st = k(x_s, x_t) (1 + h_{g_s}' h_{g_t}). With a = (K + lambda_1 I)^{-1} y:

    mean(x, g) = k_t' a,   variance = (k(x, x) (1 + h_g'h_g) - k_t' (K + lambda_1 I)^{-1} k_t) / lambda_1
    v = W' phi(x) = sum_s a_s k(x_s, x) h_{g_s},   phi(x)' theta = sum_s a_s k(x_s, x)

so both steps of the alternation need kernels alone. Identical to the feature-space form where phi is the explicit map of k.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from common.rng import Rng
from papers.neg_ucb.acceptance import check_answer

CAP = 3_000  # rounds: memory grows with their square


class ExactNegUCB:
    """NegUCB with kernel(x (n, d), z (k, d)) -> (n, k) instead of a feature map. Parameters as in `acceptance.NegUCB`."""

    def __init__(self, kernel: Callable[[np.ndarray, np.ndarray], np.ndarray], hidden: int = 0, *, lambda_theta: float = 1.0, lambda_h: float = 0.5,
                 alpha_theta: float = 0.3, alpha_h: float = 0.1, every: int = 10, spread: float = 0.3, seed: int = 0):  # fmt: skip
        self.kernel, self.hidden, self.seed = kernel, hidden, seed
        self.lambda_theta, self.lambda_h, self.alpha_theta, self.alpha_h = lambda_theta, lambda_h, alpha_theta, alpha_h
        self.every, self.spread = every, spread
        self.index: dict[Hashable, int] = {}
        self.h, self.h0 = np.zeros((0, hidden)), np.zeros((0, hidden))
        self.x: np.ndarray | None = None  # (t, d)
        self.g, self.y = np.zeros(0, int), np.zeros(0)
        self.k = np.zeros((0, 0))  # k(x_s, x_t), without the hidden states
        self.L = np.zeros((0, 0))  # Cholesky factor of K + lambda_1 I
        self.a = np.zeros(0)

    def counterpart(self, g: Hashable) -> int:
        if g not in self.index:
            self.index[g] = len(self.index)
            h0 = Rng(self.seed, "h0", repr(g)).numpy.normal(0, self.spread, (1, self.hidden))
            self.h, self.h0 = np.concatenate([self.h, h0]), np.concatenate([self.h0, h0])
        return self.index[g]

    def ucb(self, x: np.ndarray, g: Hashable) -> tuple[np.ndarray, np.ndarray]:
        """(mean, bonus) of bids x (n, d) for counterpart g. O(n t^2)."""
        i = self.counterpart(g)
        own = np.array([self.kernel(row[None], row[None])[0, 0] for row in x]) * (1 + self.h[i] @ self.h[i])
        if self.x is None:
            return np.zeros(len(x)), self.alpha_theta * np.sqrt(own / self.lambda_theta)
        k = self.kernel(x, self.x)  # (n, t)
        joint = k * (1 + self.h[self.g] @ self.h[i])
        half = solve_triangular(self.L, joint.T, lower=True)  # (t, n)
        bonus = self.alpha_theta * np.sqrt(np.maximum(own - (half**2).sum(0), 0) / self.lambda_theta)
        if self.hidden and self.alpha_h:
            v = k @ (self.a[:, None] * self.h[self.g])  # (n, l)
            bonus += self.alpha_h * np.sqrt(np.maximum(np.einsum("ij,ij->i", v @ np.linalg.inv(self._C(i)), v), 0))
        return joint @ self.a, bonus

    def _v(self) -> np.ndarray:
        """v_s = W' phi(x_s) of every past round: (t, l)."""
        return self.k @ (self.a[:, None] * self.h[self.g])

    def _C(self, i: int) -> np.ndarray:
        v = self._v()[self.g == i]
        return self.lambda_h * np.eye(self.hidden) + v.T @ v

    def update(self, x: np.ndarray, g: Hashable, y: float) -> None:
        """One answer: a row is added to the Cholesky factor; every `every` rounds a full alternation. O(t^2), O(t^3)."""
        x, i = check_answer(x, y), self.counterpart(g)
        t = len(self.y)
        if t >= CAP:
            raise ValueError(f"the exact kernel holds at most {CAP} rounds: use the rff or nystrom map for longer runs")
        past = self.x if self.x is not None else np.zeros((0, x.shape[1]))
        new = self.kernel(x, past)[0] if t else np.zeros(0)
        own = self.kernel(x, x)[0, 0]
        self.k = np.block([[self.k, new[:, None]], [new[None], np.array([[own]])]])
        joint = new * (1 + self.h[self.g] @ self.h[i])
        row = solve_triangular(self.L, joint, lower=True) if t else joint
        corner = np.sqrt(own * (1 + self.h[i] @ self.h[i]) + self.lambda_theta - row @ row)
        self.L = np.block([[self.L, np.zeros((t, 1))], [row[None], np.array([[corner]])]])
        self.x, self.g, self.y = np.concatenate([past, x]), np.append(self.g, i), np.append(self.y, y)
        self.a = cho_solve((self.L, True), self.y)
        if (t + 1) % self.every == 0:
            self.alternate()

    def alternate(self) -> None:
        """All hidden states given Theta, then the factor and the dual weights given the states."""
        if not self.hidden:
            return
        v, shared = self._v(), self.k @ self.a  # (t, l), (t,): phi'theta
        h = self.h.copy()
        for i in range(len(h)):
            rows = self.g == i
            C = self.lambda_h * np.eye(self.hidden) + v[rows].T @ v[rows]
            h[i] = np.linalg.solve(C, v[rows].T @ (self.y[rows] - shared[rows]) + self.lambda_h * self.h0[i])
        self.h = h
        self._factor()

    def _factor(self) -> None:
        K = self.k * (1 + self.h[self.g] @ self.h[self.g].T)
        self.L = np.tril(cho_factor(K + self.lambda_theta * np.eye(len(K)), lower=True)[0])
        self.a = cho_solve((self.L, True), self.y)

    def state_dict(self) -> dict[str, Any]:
        x = self.x if self.x is not None else np.zeros((0, 0))
        return {
            "x": x,
            "g": self.g,
            "y": self.y,
            "index": dict(self.index),
            "h": self.h,
            "h0": self.h0,
            "seed": self.seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.x = np.array(state["x"]) if len(state["x"]) else None
        self.g, self.y, self.h, self.h0 = (np.array(state[name]) for name in ("g", "y", "h", "h0"))
        self.index, self.seed = dict(state["index"]), state["seed"]
        if self.x is not None:
            self.k = self.kernel(self.x, self.x)
            self._factor()
