"""The requirements and their prices: levels eps, multipliers lambda, slacks zeta (sec. 3 of the paper).

Symbols: l (n,) losses, one a step of the window (n = T) or one a step and channel (n = T C); A (K, n) says what is
constrained, A = I being the paper's "every step"; eps (K,) levels; lambda (K,) >= 0 prices; zeta (K,) >= 0 slacks.

    min_theta, zeta >= 0   mean_i l_i(theta) + alpha/2 |zeta|^2     subject to   A l(theta) <= eps + zeta

Losses are in squared standardised units (z-scores by the mean and deviation of the training rows), and so are levels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn


def dual_step(multipliers: Tensor, values: Tensor, levels: Tensor, slack: Tensor, lr: float, clip: float) -> Tensor:
    """lambda <- [lambda + eta_d (l - eps - zeta)], kept in [0, clip]. All (K,). Clipped after the sum: prices can fall."""
    return (multipliers + lr * (values - levels - slack)).clamp(0.0, clip)


def resilient_step(slack: Tensor, multipliers: Tensor, lr: float, alpha: float) -> Tensor:
    """zeta <- [zeta - eta_z (grad h(zeta) - lambda)]_+ with h = alpha/2 |zeta|^2. All (K,).

    At rest lambda = alpha zeta: a level slips until its marginal cost is its price (resilient constrained learning).
    """
    return (slack + lr * (multipliers - alpha * slack)).clamp(min=0.0)


class Weighting(nn.Module):
    """What gives each of n losses its weight, and may move on them. State is buffers, so that checkpoints have it."""

    def weights(self, losses: Tensor) -> Tensor:
        """losses (n,) without graph -> weights (n,)."""
        raise NotImplementedError

    def step(self, losses: Tensor) -> Tensor | None:
        """Move on a batch's losses (n,)."""
        raise NotImplementedError


class DualVariables(Weighting):
    """Multipliers (and slacks) of A l <= eps + zeta, moved by projected gradient ascent on minibatch losses.

    levels: (K,) non-negative (any sign where an operator is given); inf leaves a step free.
    lr: eta_d. init: lambda at the start. clip: lambda's upper bound. operator: A (K, n), None for the identity.
    slack_lr, slack_alpha: eta_z and alpha of the resilient variant; slack_lr = 0 is the hard one.
    averaged: beta in [0, 1), the prices move on the mean xi <- beta xi + (1 - beta) l of the batches' losses (xi begins at
        the first): less noise, later news.
    proportional: kappa of a PI controller, lambda <- [lambda + eta_d e + kappa (e - e_before)]: a price answers to what a
        violation e = xi - eps - zeta does, not only to what it is, and so overshoots less.
    penalty: rho of the augmented Lagrangian, mean l + 1/(2 rho) sum_i ([lambda_i + rho e_i]_+^2 - lambda_i^2): what weighs a
        loss is [lambda + rho e]_+ with the batch's own e, in place of lambda; lr = rho is the method of multipliers.
    The state is buffers, not parameters: it is saved in checkpoints, and no optimiser or weight decay touches it.
    Raises ValueError for levels that are NaN, negative or not a vector, and for an operator that does not fit them.

    >>> duals = DualVariables(levels=[0.5, 0.5, 0.5], lr=0.01, init=1.0)
    >>> [round(price, 3) for price in duals.step(torch.tensor([0.2, 0.5, 0.9])).tolist()]
    [0.997, 1.0, 1.004]
    """

    levels: Tensor
    multipliers: Tensor
    slack: Tensor
    operator: Tensor | None
    mean: Tensor
    violation: Tensor

    def __init__(self, levels: ArrayLike | Tensor, lr: float, init: float = 0.0, clip: float = math.inf, *,
                 operator: ArrayLike | Tensor | None = None, slack_lr: float = 0.0, slack_alpha: float = 2.0,
                 averaged: float = 0.0, proportional: float = 0.0, penalty: float = 0.0,
                 dtype: torch.dtype = torch.float32):  # fmt: skip
        super().__init__()
        eps = checked_levels(levels, any_sign=operator is not None).to(dtype)
        if lr < 0 or init < 0 or clip <= 0 or slack_lr < 0 or slack_alpha < 0:
            raise ValueError("lr, init, slack_lr and slack_alpha must not be negative, and clip must be positive")
        if not 0 <= averaged < 1 or proportional < 0 or penalty < 0:
            raise ValueError("averaged must be in [0, 1), and proportional and penalty must not be negative")
        A = None if operator is None else torch.as_tensor(operator, dtype=dtype)
        if A is not None and (A.ndim != 2 or len(A) != len(eps)):
            raise ValueError(f"operator is {tuple(A.shape)}, and there are {len(eps)} levels: it takes a row for each")
        self.lr, self.clip, self.slack_lr, self.slack_alpha = lr, clip, slack_lr, slack_alpha
        self.averaged, self.proportional, self.penalty = averaged, proportional, penalty
        self.register_buffer("levels", eps)
        self.register_buffer("multipliers", torch.full_like(eps, min(init, clip)).masked_fill(eps.isinf(), 0.0))
        self.register_buffer("slack", torch.zeros_like(eps))
        self.register_buffer("operator", A)
        self.register_buffer("mean", torch.full_like(eps, math.nan))  # xi; NaN until a batch was seen
        self.register_buffer("violation", torch.full_like(eps, math.nan))  # e of the step before

    @property
    def n_losses(self) -> int:
        return len(self.levels) if self.operator is None else self.operator.shape[1]

    def constrained(self, losses: Tensor) -> Tensor:
        """A l, what the levels speak of. losses: (n,) -> (K,)."""
        if losses.shape != (self.n_losses,):
            raise ValueError(f"losses are {tuple(losses.shape)}, expected ({self.n_losses},): one for each step")
        return losses if self.operator is None else self.operator @ losses

    def weights(self, losses: Tensor | None = None) -> Tensor:
        """The weight of each loss in the Lagrangian, 1/n + A^T lambda. (n,)

        With a penalty, A^T [lambda + rho e]_+ of the batch's losses (n,), which it then takes.
        """
        prices = self.multipliers
        if self.penalty:
            if losses is None:
                raise ValueError("the weights of an augmented Lagrangian depend on the batch's losses: give them")
            excess = self.constrained(losses.detach().to(self.levels)) - self.levels - self.slack
            prices = (prices + self.penalty * excess).clamp(0.0, self.clip)  # an infinite level: -inf, so zero
        return (prices if self.operator is None else self.operator.T @ prices) + 1.0 / self.n_losses

    @torch.no_grad()
    def step(self, losses: Tensor) -> Tensor:
        """One ascent step on losses (n,): lambda first, then (resilient) zeta with the new lambda. Returns lambda (K,), a copy."""
        values = self.constrained(torch.as_tensor(losses).detach().to(self.levels))
        if self.averaged:
            values = torch.where(self.mean.isnan(), values, self.averaged * self.mean + (1 - self.averaged) * values)
            self.mean.copy_(values)
        prices = self.multipliers
        if self.proportional:
            e = (values - self.levels - self.slack).clamp(
                min=torch.finfo(values.dtype).min
            )  # an infinite level stays free
            prices = prices + self.proportional * torch.where(self.violation.isnan(), 0.0, e - self.violation)
            self.violation.copy_(e)
        self.multipliers.copy_(dual_step(prices, values, self.levels, self.slack, self.lr, self.clip))
        if self.slack_lr > 0:
            self.slack.copy_(resilient_step(self.slack, self.multipliers, self.slack_lr, self.slack_alpha))
        return self.multipliers.clone()


class MonotoneVariables(DualVariables):
    """No step worse than a later one: l_k - l_{k+1} <= slack for k < T, without levels to choose.

    The weights are w_k = 1/T + lambda_k - lambda_{k-1}; they sum to 1 and may be negative. The released code weighs the
    inner steps by lambda_{k-1} + lambda_k - 1/T, which is not the gradient of this Lagrangian; `official_sign_error`
    gives those weights, to compare with.
    """

    def __init__(self, steps: int, lr: float, init: float = 0.0, clip: float = math.inf, *, tolerance: float = 0.0,
                 official_sign_error: bool = False, **options: Any):  # fmt: skip
        super().__init__(np.full(steps - 1, tolerance), lr, init, clip, operator=monotone_operator(steps), **options)
        self.official_sign_error = official_sign_error

    def weights(self, losses: Tensor | None = None) -> Tensor:
        w = super().weights(losses)
        if self.official_sign_error:
            w[1:-1] = self.multipliers[:-1] + self.multipliers[1:] - 1.0 / self.n_losses
        return w


# ---- levels ----------------------------------------------------------------------------------------------------------


def checked_levels(levels: ArrayLike | Tensor, any_sign: bool = False) -> Tensor:
    """levels as a float64 vector. Raises ValueError for what no requirement can mean."""
    eps = torch.as_tensor(np.asarray(levels, dtype=float) if not isinstance(levels, Tensor) else levels).double()
    if eps.ndim != 1 or not len(eps):
        raise ValueError(
            f"levels must be a vector with a level for each step, not an array of shape {tuple(eps.shape)}"
        )
    if eps.isnan().any():
        raise ValueError("levels must not be NaN")
    if not any_sign and (eps < 0).any():
        raise ValueError(f"levels must not be negative, as no squared error is: the lowest is {eps.min().item():g}")
    return eps


def levels_from_profile(profile: ArrayLike, quantile: float, decimals: int | None = None) -> NDArray[np.float64]:
    """The same level for every step: a quantile over the window of an unconstrained run's step losses.

    profile: (T,); quantile in [0, 1], linear interpolation as in numpy and pandas; decimals: the paper rounds to 3.
    Returns (T,). Raises ValueError for a quantile outside [0, 1] or a profile that is not a finite vector.
    """
    e = np.asarray(profile, dtype=float)
    if e.ndim != 1 or not e.size or not np.isfinite(e).all():
        raise ValueError("profile must be a vector of finite step losses")
    if not 0.0 <= quantile <= 1.0:
        raise ValueError(f"quantile must be in [0, 1], not {quantile}")
    level = float(np.quantile(e, quantile))
    return np.full(len(e), level if decimals is None else round(level, decimals), dtype=np.float64)


def linear_levels(steps: int, offset: float, slope: float) -> NDArray[np.float64]:
    """eps_i = offset + slope i, i = 0 .. T-1. (T,)"""
    return offset + slope * np.arange(steps, dtype=np.float64)


def exponential_levels(steps: int, scale: float, rate: float) -> NDArray[np.float64]:
    """eps_i = scale exp(rate i), i = 0 .. T-1. (T,)"""
    return scale * np.exp(rate * np.arange(steps))


# ---- what is constrained: the operator A -----------------------------------------------------------------------------


def monotone_operator(steps: int) -> NDArray[np.float64]:
    """A (T-1, T) with (A l)_k = l_k - l_{k+1}."""
    if steps < 2:
        raise ValueError(f"steps is {steps}: an order needs at least two")
    return np.eye(steps - 1, steps) - np.eye(steps - 1, steps, 1)


def smooth_operator(steps: int) -> NDArray[np.float64]:
    """A (2T-2, T): both signs of the difference of neighbours, so that a level bounds |l_{i+1} - l_i|."""
    return np.concatenate([monotone_operator(steps), -monotone_operator(steps)])


def group_operator(groups: Sequence[Mapping[str, Any]], steps: int, channels: Sequence[str]) -> NDArray[np.float64]:
    """A (K, T C): row k averages the losses of group k's steps and channels, flattened with the channel running fastest.

    A group has `steps` (list of step numbers from 1, or absent: all) and `channels` (list of names, or absent: all).
    Raises ValueError for a step or a channel that there is not.
    """
    rows = np.zeros((len(groups), steps, len(channels)))
    for k, group in enumerate(groups):
        chosen = list(group.get("steps") or range(1, steps + 1))
        names = list(group.get("channels") or channels)
        if wrong := [i for i in chosen if not 1 <= int(i) <= steps]:
            raise ValueError(f"group {k + 1} names step {wrong[0]}: the steps are 1 to {steps}")
        if unknown := [name for name in names if name not in channels]:
            raise ValueError(f"group {k + 1} names channel {unknown[0]!r}: the channels are {', '.join(channels)}")
        where = np.ix_([int(i) - 1 for i in chosen], [list(channels).index(name) for name in names])
        rows[k][where] = 1.0 / (len(chosen) * len(names))
    return rows.reshape(len(groups), -1)
