"""Networks that denoise parameters given an observation: the score of the noised posterior, in four parameterisations.

score    the net is the score itself (paper, official code)
eps      score = net / s(t)
energy   score = gradient of a scalar net, so that truncation costs one forward pass a candidate
edm      the net predicts what is left after a skip connection; its input and output are scaled by the noise level
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from papers.snpse.sde import SDE

HEADS = ("score", "eps", "energy", "edm")
TIME_INPUTS = ("t", "std", "log_std")


def sinusoidal(t: Tensor, dim: int = 64) -> Tensor:
    """(n,) -> (n, dim): sin and cos of t 10000^(-i / (dim/2 - 1)), i = 0 .. dim/2 - 1 (section 3.4; no factor before t)."""
    half = dim // 2
    angles = t[:, None] * torch.exp(-math.log(10_000.0) * torch.arange(half, dtype=t.dtype) / (half - 1))
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def fourier(t: Tensor, dim: int = 16) -> Tensor:
    """(n,) -> (n, dim): sin and cos of (i + 1) t / 2; for inputs of size about 1, such as log sigma / 4."""
    angles = t[:, None] * (torch.arange(dim // 2, dtype=t.dtype) + 1) * 0.5
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def mlp(sizes: list[int]) -> nn.Sequential:
    """Linear layers of these sizes with SiLU between them."""
    layers: list[nn.Module] = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(a, b), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


class PaperNet(nn.Module):
    """The paper's network: an MLP each for theta and x, a 64-dim sinusoidal time, and an MLP over the three."""

    def __init__(self, d: int, p: int, width: int, out: int):
        super().__init__()
        a, b = max(30, 4 * d), max(30, 4 * p)
        self.theta = mlp([d, width, width, a])
        self.x = mlp([p, width, width, b])
        self.head = mlp([a + b + 64, width, width, out])

    def forward(self, theta: Tensor, x: Tensor, time: Tensor) -> Tensor:
        return self.head(torch.cat([self.theta(theta), self.x(x), sinusoidal(time)], dim=1))


class ConcatNet(nn.Module):
    """One MLP over (theta, x, time features): half the cost of `PaperNet` and no worse on the tasks here."""

    def __init__(self, d: int, p: int, width: int, depth: int, out: int):
        super().__init__()
        self.net = mlp([d + p + 16, *[width] * depth, out])

    def forward(self, theta: Tensor, x: Tensor, time: Tensor) -> Tensor:
        return self.net(torch.cat([theta, x, fourier(time)], dim=1))


class ScoreModel(nn.Module):
    """score(theta_t, x, t) in standardised units; `sde` fixes m and s. theta (n, d), x (n, p), t (n,) -> (n, d)."""

    def __init__(self, d: int, p: int, sde: SDE, *, head: str = "edm", net: str = "concat", width: int = 128, depth: int = 3,
                 time_input: str = "log_std", embedding: nn.Module | None = None):  # fmt: skip
        super().__init__()
        if head not in HEADS:
            raise ValueError(f"head is {head!r}: choose {', '.join(HEADS)}")
        if time_input not in TIME_INPUTS:
            raise ValueError(f"time_input is {time_input!r}: choose {', '.join(TIME_INPUTS)}")
        self.sde, self.head, self.time_input, self.embedding = sde, head, time_input, embedding
        out = 1 if head == "energy" else d
        if embedding is not None:
            with torch.no_grad():
                p = embedding(torch.zeros(2, p)).shape[1]
        self.net = PaperNet(d, p, width, out) if net == "paper" else ConcatNet(d, p, width, depth, out)

    def embed(self, x: Tensor) -> Tensor:
        """What the network sees of x: x itself, or its learned embedding."""
        return x if self.embedding is None else self.embedding(x)

    def _time(self, t: Tensor, m: Tensor, s: Tensor) -> Tensor:
        if self.time_input == "t":
            return t
        return s if self.time_input == "std" else (s / m).log() / 4

    def residual(self, theta: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """s(t) score: minus the noise that the model sees in theta_t. Finite at every noise level."""
        m, s = self.sde.mean_std(t)
        time, s = self._time(t, m, s), s[:, None]
        if self.head == "edm":
            sigma = s / m[:, None]
            y, scale = theta / m[:, None], torch.sqrt(1 + sigma**2)
            return (
                self.net(y / scale, x, time) - y * sigma / scale
            ) / scale  # (D - y) / sigma; D = y / scale^2 + sigma net / scale
        if self.head == "energy":
            return s * self.energy_gradient(theta, x, t)
        out = self.net(theta / torch.sqrt(1 + s**2) if self.head == "eps" else theta, x, time)
        return out if self.head == "eps" else s * out

    def energy(self, theta: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """E(theta, x, t) (n,), log density at noise level t up to a constant. The energy head only."""
        m, s = self.sde.mean_std(t)
        return self.net(theta, x, self._time(t, m, s))[:, 0]

    def energy_gradient(self, theta: Tensor, x: Tensor, t: Tensor) -> Tensor:
        create = torch.is_grad_enabled()
        with torch.enable_grad():
            theta = theta if theta.requires_grad else theta.detach().requires_grad_()
            return torch.autograd.grad(self.energy(theta, x, t).sum(), theta, create_graph=create)[0]

    def forward(self, theta: Tensor, x: Tensor, t: Tensor) -> Tensor:
        return self.residual(theta, x, t) / self.sde.mean_std(t)[1][:, None]

    def at(self, x: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """score(theta, t) for one observation x (p,), embedded once."""
        code = self.embed(x[None])

        def score(theta: Tensor, t: Tensor) -> Tensor:
            return self(theta, code.expand(len(theta), -1), t)

        return score


def options_of(training: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `ScoreModel` among the training options."""
    return {name: training[name] for name in ("head", "net", "width", "depth", "time_input")}
