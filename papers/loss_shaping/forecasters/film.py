"""FiLM (Zhou et al., 2022): the window as Legendre coefficients that change row by row, filtered by frequency."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from papers.loss_shaping.forecasters import Shape
from papers.loss_shaping.forecasters.layers import instance_norm


def legendre_memory(order: int, dt: float) -> tuple[NDArray, NDArray]:
    """HiPPO-LegT, discretised bilinearly: A (N, N) and B (N,) of c_t = A c_{t-1} + B f_t."""
    from scipy.signal import cont2discrete

    n = np.arange(order, dtype=float)
    i, j = n[:, None], n[None, :]
    A = -(2 * i + 1) * np.where(i < j, 1.0, (-1.0) ** (i - j))
    B = (2 * i + 1) * (-1.0) ** i
    A, B, *_ = cont2discrete((A, B, np.ones((1, order)), np.zeros((1, 1))), dt, method="bilinear")
    return A, B[:, 0]


def impulse_response(order: int, dt: float, length: int) -> NDArray[np.float64]:
    """Row t is A^t B: the memory of an input t rows ago. (length, N)"""
    A, B = legendre_memory(order, dt)
    rows = [B]
    for _ in range(length - 1):
        rows.append(A @ rows[-1])
    return np.stack(rows)


class Scale(nn.Module):
    """The last scale T_p rows through the memory, a filter of the lowest frequencies, and back to T_p values."""

    def __init__(self, shape: Shape, scale: int, order: int, modes: int):
        super().__init__()
        from scipy.special import eval_legendre

        T, dt = shape.horizon, 1.0 / shape.horizon / scale
        self.rows = min(scale * T, shape.context)
        self.read = T - 1 if shape.context >= T else -1  # the row whose coefficients are read
        self.modes = min(modes, min(T, shape.context) // 2)
        kernel = torch.tensor(impulse_response(order, dt, self.rows), dtype=torch.float32)
        self.register_buffer("kernel", torch.fft.rfft(kernel, n=2 * self.rows, dim=0), persistent=False)
        points = np.arange(0.0, 1.0, dt)[-T:]
        legendre = eval_legendre(np.arange(order)[:, None], 1 - 2 * points)  # (N, T)
        self.basis: Tensor
        self.register_buffer("basis", torch.tensor(legendre, dtype=torch.float32), persistent=False)
        self.real = nn.Parameter(torch.rand(order, order, self.modes) / order**2)
        self.imaginary = nn.Parameter(torch.rand(order, order, self.modes) / order**2)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, C, T_c) -> (B, C, T_p)."""
        f = torch.fft.rfft(x[..., -self.rows :].float(), n=2 * self.rows)  # convolution of f and kernel, by FFT
        c = torch.fft.irfft(f[..., None] * self.kernel, n=2 * self.rows, dim=2)[:, :, : self.rows]  # (B, C, rows, N)
        low = torch.fft.rfft(c, dim=2)[:, :, : self.modes]  # (B, C, modes, N)
        low = torch.einsum("bcmi,iom->bcmo", low, torch.complex(self.real, self.imaginary))
        # the inverse transform at one row: irfft of zeros above the modes, evaluated there
        row = torch.tensor(self.read % self.rows, device=x.device)
        m = torch.arange(self.modes, device=x.device)
        weight = torch.where((m == 0) | (2 * m == self.rows), 1.0, 2.0) / self.rows
        angle = 2 * torch.pi * m * row / self.rows
        wave = torch.polar(weight, angle)
        return (low * wave[:, None]).sum(2).real @ self.basis


class FiLM(nn.Module):
    """Three time scales, mixed by one linear map; windows are normalised with an affine map of each channel."""

    def __init__(self, shape: Shape, o: Any):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1, 1, shape.channels))
        self.offset = nn.Parameter(torch.zeros(1, 1, shape.channels))
        self.scales = nn.ModuleList(Scale(shape, scale, o.hippo_order, o.modes) for scale in o.scales)
        self.mix = nn.Linear(len(o.scales), 1)

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        z, mean, std = instance_norm(x)
        z = (z * self.gain + self.offset).mT  # (B, C, T_c)
        out = self.mix(torch.stack([scale(z) for scale in self.scales], dim=-1)).squeeze(-1).mT  # (B, T_p, C)
        return (out - self.offset) / (self.gain + 1e-10) * std + mean
