"""What softmax attention is compared with: linear attention, least squares, kernel regression.

All predict y_hat (B,) from x (B, N, d), y (B, N), x_q (B, d).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn


class LinearICL(nn.Module):
    """Linear self-attention: y_hat = 1/N sum_i y_i x_i' Q x_q (von Oswald et al. 2023; Zhang, Frei and Bartlett 2023)."""

    def __init__(self, d: int):
        super().__init__()
        self.d = d
        self.Q = nn.Parameter(torch.zeros(d, d, dtype=torch.float64))

    def predict(self, x: Tensor, y: Tensor, x_q: Tensor) -> Tensor:
        return torch.einsum("bn,bnd,de,be->b", y, x, self.Q, x_q) / x.shape[1]


def linear_second_moment(p: ArrayLike, N: float) -> NDArray:
    """E[(c_k / N)^2] = p_k^2 + p_k (1 - p_k) / N, all that linear attention's loss needs. (K,) -> (K,)."""
    p = np.asarray(p, float)
    return p**2 + p * (1 - p) / N


def linear_loss(u: ArrayLike, p: ArrayLike, N: float) -> NDArray:
    """L_k of linear attention with Q v_k = u_k v_k: 1/2 (1 - 2 p_k u_k + E[(c_k / N)^2] u_k^2). (K,), (K,) -> (K,)."""
    u, p = np.asarray(u, float), np.asarray(p, float)
    return 0.5 * (1 - 2 * p * u + linear_second_moment(p, N) * u**2)


def linear_descent(p: ArrayLike, N: float, lr: float, steps: int) -> NDArray:
    """u (steps + 1, K) under population gradient descent from Q = 0; entries off the diagonal never leave zero."""
    p = np.asarray(p, float)
    u = np.zeros((steps + 1, len(p)))
    for i in range(steps):
        u[i + 1] = u[i] + lr * p * (p - linear_second_moment(p, N) * u[i])
    return u


def least_squares(x: Tensor, y: Tensor, x_q: Tensor) -> Tensor:
    """Minimum-norm least squares on the prompt: exact wherever the query's feature appears (no label noise)."""
    w = torch.linalg.pinv(x) @ y[..., None]  # (B, d, 1)
    return (x_q[:, None] @ w)[:, 0, 0]


def nadaraya_watson(x: Tensor, y: Tensor, x_q: Tensor, beta: float) -> Tensor:
    """Kernel regression with kernel exp(beta <x, x_q>): the paper's model at Q = beta I."""
    attn = (beta * torch.einsum("bnd,bd->bn", x, x_q)).softmax(dim=1)
    return (attn * y).sum(dim=1)
