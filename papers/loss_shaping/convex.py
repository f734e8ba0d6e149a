"""The case where everything is exact: one linear model theta shared by T steps, quadratic losses, no duality gap.

l_i(theta) = theta^T H_i theta - 2 b_i^T theta + c_i, the mean squared error of step i. The inner minimisation is a linear
system, so the dual loop of constraints.DualVariables is exact gradient ascent, and a general solver gives the answer too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from papers.loss_shaping.constraints import DualVariables

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Quadratic:
    """H (T, d, d), b (T, d), c (T,)."""

    H: Array
    b: Array
    c: Array

    def losses(self, theta: Array) -> Array:
        """l(theta): (d,) -> (T,)"""
        return np.asarray(np.einsum("tij,i,j->t", self.H, theta, theta) - 2 * self.b @ theta + self.c, dtype=np.float64)

    def jacobian(self, theta: Array) -> Array:
        """(T, d)"""
        return 2 * (self.H @ theta - self.b)

    def minimise(self, w: Array) -> Array:
        """argmin_theta sum_i w_i l_i(theta): (T,) -> (d,)"""
        return np.asarray(np.linalg.solve(np.tensordot(w, self.H, 1), w @ self.b), dtype=np.float64)


def problem(generator: np.random.Generator, *, steps: int, d: int, samples: int, noise: float) -> Quadratic:
    """Regressors that grow along the window, and at each step another truth: one theta cannot serve them all."""
    Phi = generator.normal(size=(samples, steps, d)) * np.linspace(0.5, 1.5, steps)[:, None]
    truth = generator.normal(size=(steps, d)) * 0.6 + 1.0
    y = np.einsum("ntd,td->nt", Phi, truth) + noise * generator.normal(size=(samples, steps))
    return Quadratic(
        np.einsum("nti,ntj->tij", Phi, Phi) / samples,
        np.einsum("nti,nt->ti", Phi, y) / samples,
        (y**2).mean(0),
    )


@dataclass(frozen=True)
class Saddle:
    """Where dual ascent stands after its last step. slack (zeta) is zero for the hard variant."""

    theta: Array
    losses: Array
    multipliers: Array
    slack: Array
    primal: float  # mean loss + h(zeta)
    dual: float  # Lagrangian at its minimum over theta (and zeta)
    path: Array  # (points, T) multipliers on the way
    kkt: float  # the worst of infeasibility, complementarity, and (resilient) |lambda - alpha zeta|


def dual_ascent(q: Quadratic, levels: Array, *, lr: float, steps: int, slack_lr: float = 0.0, alpha: float = 2.0,
                points: int = 200) -> Saddle:  # fmt: skip
    """Dual ascent with exact inner minimisation, by the very class that trains networks."""
    duals = DualVariables(levels, lr, slack_lr=slack_lr, slack_alpha=alpha, dtype=torch.float64)
    lam, zeta = duals.multipliers.numpy(), duals.slack.numpy()  # views of the state
    n, path, every = len(levels), [], max(1, steps // points)
    for step in range(steps):
        losses = q.losses(q.minimise(lam + 1.0 / n))
        if step % every == 0:
            path.append(lam.copy())
        duals.step(torch.from_numpy(losses))
    theta = q.minimise(lam + 1.0 / n)
    losses = q.losses(theta)
    h = alpha / 2 * zeta @ zeta
    finite = np.isfinite(levels)
    excess = np.where(finite, losses - np.where(finite, levels, 0.0) - zeta, -1.0)
    price = np.where(finite, lam * excess, 0.0)
    kkt = max(excess.max(), np.abs(price).max(), np.abs(lam - alpha * zeta).max() if slack_lr > 0 else 0.0)
    return Saddle(theta, losses, lam.copy(), zeta.copy(), float(losses.mean() + h), float(losses.mean() + h + price.sum()),
                  np.array(path), float(kkt))  # fmt: skip


def solve(q: Quadratic, levels: Array, *, alpha: float | None = None) -> tuple[float, Array, bool]:
    """The same problem by sequential quadratic programming (scipy): value, theta, and whether it is feasible.

    alpha: None for hard levels, else the cost alpha/2 |zeta|^2 of slacks.
    """
    from scipy.optimize import minimize

    d, T = q.b.shape[1], len(levels)
    start = np.concatenate([q.minimise(np.full(T, 1.0 / T)), np.zeros(T if alpha is not None else 0)])
    a = alpha or 0.0
    bounds: Any = [(None, None)] * d + [(0, None)] * (len(start) - d)

    def slack(z: Array) -> Array | float:
        return z[d:] if alpha is not None else 0.0

    found = minimize(
        lambda z: q.losses(z[:d]).mean() + a / 2 * np.sum(np.square(slack(z))),
        start,
        jac=lambda z: np.concatenate([q.jacobian(z[:d]).mean(0), a * z[d:]]),
        bounds=bounds,
        constraints={
            "type": "ineq",
            "fun": lambda z: levels + slack(z) - q.losses(z[:d]),
            "jac": lambda z: np.concatenate([-q.jacobian(z[:d]), np.eye(T)[:, : len(z) - d]], axis=1),
        },
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    theta, zeta = found.x[:d], slack(found.x)
    return float(found.fun), theta, bool((q.losses(theta) <= levels + zeta + 1e-7).all())


def lowest_level(q: Quadratic) -> float:
    """The least eps that one theta can hold at every step: min_theta max_i l_i, exactly (an epigraph program)."""
    from scipy.optimize import minimize

    d, T = q.b.shape[1], len(q.c)
    theta = q.minimise(np.full(T, 1.0 / T))
    found = minimize(
        lambda z: z[-1],
        np.append(theta, q.losses(theta).max()),
        jac=lambda z: np.append(np.zeros(d), 1.0),
        constraints={
            "type": "ineq",
            "fun": lambda z: z[-1] - q.losses(z[:d]),
            "jac": lambda z: np.concatenate([-q.jacobian(z[:d]), np.ones((T, 1))], axis=1),
        },
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    return float(q.losses(found.x[:d]).max())
