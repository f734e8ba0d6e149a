"""Forward noising of parameters: variance exploding, variance preserving and sub-VP diffusions (section 3.2 of the chapter).

theta_t = m(t) theta_0 + s(t) eps for t in [0, 1]. Everything else about a diffusion follows from (m, s): with the relative
noise sigma = s / m, the probability flow of y = theta_t / m is dy / d sigma = eps_hat, whatever the SDE.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor


def _check(lower: str, low: float, upper: str, high: float) -> None:
    if not (0 < low < high < math.inf):
        raise ValueError(f"{lower} is {low} and {upper} is {high}: 0 < {lower} < {upper} is needed")


@dataclass(frozen=True)
class VE:
    """Variance exploding: m = 1, s = sigma_min (sigma_max / sigma_min)^t; the end is N(0, sigma_max^2).

    s(0) is sigma_min and not 0, as in the paper: the exact solution of the SDE has variance s^2 - sigma_min^2.
    """

    sigma_min: float = 0.005
    sigma_max: float = 10.0
    t_min = 0.0

    def __post_init__(self) -> None:
        _check("sigma_min", self.sigma_min, "sigma_max", self.sigma_max)

    @property
    def prior_std(self) -> float:
        """Standard deviation of the reference that reverse diffusions start from."""
        return self.sigma_max

    def mean_std(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """(m, s) at times t, each of t's shape."""
        return torch.ones_like(t), self.sigma_min * (self.sigma_max / self.sigma_min) ** t

    def drift(self, theta: Tensor, t: Tensor) -> Tensor:
        """f(theta, t) of d theta = f dt + g dw. theta (n, d), t (n,) -> (n, d)."""
        return torch.zeros_like(theta)

    def g(self, t: Tensor) -> Tensor:
        """Diffusion coefficient, of t's shape."""
        return self.mean_std(t)[1] * math.sqrt(2 * math.log(self.sigma_max / self.sigma_min))

    def time_of(self, sigma: Tensor) -> Tensor:
        """The t at which s / m is sigma."""
        return torch.log(sigma / self.sigma_min) / math.log(self.sigma_max / self.sigma_min)


@dataclass(frozen=True)
class VP:
    """Variance preserving: m = exp(-t^2 (beta_max - beta_min) / 4 - t beta_min / 2), s^2 = 1 - m^2; the end is N(0, 1)."""

    beta_min: float = 0.1
    beta_max: float = 11.0
    t_min = 1e-4

    def __post_init__(self) -> None:
        _check("beta_min", self.beta_min, "beta_max", self.beta_max)

    prior_std = 1.0

    def _log_mean(self, t: Tensor) -> Tensor:
        return -0.25 * t**2 * (self.beta_max - self.beta_min) - 0.5 * t * self.beta_min

    def _beta(self, t: Tensor) -> Tensor:
        return self.beta_min + t * (self.beta_max - self.beta_min)

    def mean_std(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """(m, s) at times t, each of t's shape."""
        log_mean = self._log_mean(t)
        return log_mean.exp(), torch.sqrt(-torch.expm1(2 * log_mean))

    def drift(self, theta: Tensor, t: Tensor) -> Tensor:
        """f(theta, t) = -beta theta / 2. theta (n, d), t (n,) -> (n, d)."""
        return -0.5 * self._beta(t)[:, None] * theta

    def g(self, t: Tensor) -> Tensor:
        """Diffusion coefficient, of t's shape."""
        return self._beta(t).sqrt()

    def time_of(self, sigma: Tensor) -> Tensor:
        """The t at which s / m is sigma."""
        return self._time_of_log_mean(-0.5 * torch.log1p(sigma**2))

    def _time_of_log_mean(self, log_mean: Tensor) -> Tensor:
        slope = self.beta_max - self.beta_min
        root = torch.sqrt(self.beta_min**2 - 4 * slope * log_mean)
        return -4 * log_mean / (self.beta_min + root)  # the root of a quadratic in t, without cancellation


@dataclass(frozen=True)
class SubVP(VP):
    """Sub-VP: the mean of VP with the smaller std s = 1 - m^2, g^2 = beta (1 - m^4)."""

    def mean_std(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """(m, s) at times t, each of t's shape."""
        log_mean = self._log_mean(t)
        return log_mean.exp(), -torch.expm1(2 * log_mean)

    def g(self, t: Tensor) -> Tensor:
        """Diffusion coefficient, of t's shape."""
        return torch.sqrt(-self._beta(t) * torch.expm1(4 * self._log_mean(t)))

    def time_of(self, sigma: Tensor) -> Tensor:
        """The t at which s / m is sigma: (1 - m^2) / m = sigma."""
        mean = 2 / (sigma + torch.sqrt(sigma**2 + 4))
        return self._time_of_log_mean(mean.log())


SDE = VE | VP
KINDS: dict[str, type[VE] | type[VP]] = {"ve": VE, "vp": VP, "subvp": SubVP}


def make(kind: str, options: Mapping[str, float]) -> SDE:
    """The SDE of a name, with those of `options` that it has. ValueError for an unknown name."""
    if kind not in KINDS:
        raise ValueError(f"sde is {kind!r}: choose {', '.join(KINDS)}")
    names = ("sigma_min", "sigma_max") if kind == "ve" else ("beta_min", "beta_max")
    return KINDS[kind](**{name: float(options[name]) for name in names if options.get(name) is not None})


def to_dict(sde: SDE) -> dict[str, Any]:
    """{"kind": ..., its parameters}: what `make` takes."""
    return {"kind": next(name for name, kind in KINDS.items() if type(sde) is kind), **asdict(sde)}
