"""Samples and densities from a score: probability-flow ODE, reverse SDE, change of variables.

In y = theta_t / m(t) and u = log(s / m) every diffusion has the flow dy/du = -s^2 score / m, so one set of solvers serves
all. They work on z = y / sqrt(1 + e^2u), which the flow leaves where it is when theta is standard normal: what they have to
resolve is only how theta differs from that. Steps are equal in u. `score` is any callable (theta (n, d), t (n,)) -> (n, d).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from papers.snpse.sde import SDE

Score = Callable[[Tensor, Tensor], Tensor]
METHODS = ("heun", "rk4", "rk45", "dpm")


def log_noise(sde: SDE) -> tuple[float, float]:
    """u = log(s / m) at t_min and at 1."""
    m, s = sde.mean_std(torch.tensor([max(sde.t_min, 0.0), 1.0], dtype=torch.float64))
    low, high = (s / m).log().tolist()
    return low, high


def _flow(score: Score, sde: SDE) -> Callable[[Tensor, float], Tensor]:
    """dy/du at (y, u)."""

    def velocity(y: Tensor, u: float) -> Tensor:
        t = sde.time_of(torch.tensor([math.exp(u)], dtype=torch.float64)).clamp(0.0, 1.0).to(y.dtype)
        m, s = sde.mean_std(t)
        return -(s**2 / m) * score(m * y, t.expand(len(y)))

    return velocity


def _scaled(velocity: Callable) -> Callable[[Tensor, float], Tensor]:
    """dz/du at (z, u) for z = y / sqrt(1 + e^2u)."""

    def scaled(z: Tensor, u: float) -> Tensor:
        r = _scale(u)
        return velocity(r * z, u) / r - z * (1 - 1 / r**2)

    return scaled


def _scale(u: float) -> float:
    return math.sqrt(1 + math.exp(2 * u))


def _start(sde: SDE, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return sde.prior_std * torch.randn(shape, generator=generator) / sde.mean_std(torch.ones(1))[0]


def _grid(sde: SDE, steps: int) -> list[float]:
    if steps < 1:
        raise ValueError(f"steps is {steps}: give at least 1")
    low, high = log_noise(sde)
    return [low + (high - low) * i / steps for i in range(steps + 1)]


def _generator(seed: int | torch.Generator) -> torch.Generator:
    return seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(int(seed))


def ode(score: Score, sde: SDE, shape: tuple[int, int], *, steps: int = 100, method: str = "heun",
        seed: int | torch.Generator = 0, tolerance: float = 1e-5) -> Tensor:  # fmt: skip
    """Draws (n, d) by the probability-flow ODE from N(0, prior_std^2) at t = 1 down to t_min.

    method: heun (2 scores a step), rk4 (4), dpm (DPM-Solver++ of second order, 1), rk45 (Dormand-Prince; its steps follow
    `tolerance`, relative to max(1, |y|) in root mean square, and `steps` is the most it may take times ten).
    seed: a number or a torch generator. Raises ValueError for arguments out of range.
    """
    if method not in METHODS:
        raise ValueError(f"method is {method!r}: choose {', '.join(METHODS)}")
    grid, velocity = _grid(sde, steps)[::-1], _flow(score, sde)
    y = _start(sde, shape, _generator(seed))
    if method == "dpm":
        y = _dpm(velocity, y, grid)
    else:
        z, flow = y / _scale(grid[0]), _scaled(velocity)
        if method == "rk45":
            z = _dormand_prince(flow, z, grid[0], grid[-1], tolerance, 10 * steps)
        else:
            step = _heun_step if method == "heun" else _rk4_step
            for u, v in zip(grid, grid[1:], strict=False):
                z = step(flow, z, u, v - u)
        y = z * _scale(grid[-1])
    return y * sde.mean_std(torch.tensor([max(sde.t_min, 0.0)], dtype=y.dtype))[0]


def _heun_step(velocity: Callable, y: Tensor, u: float, h: float) -> Tensor:
    a = velocity(y, u)
    return y + h / 2 * (a + velocity(y + h * a, u + h))


def _rk4_step(velocity: Callable, y: Tensor, u: float, h: float) -> Tensor:
    a = velocity(y, u)
    b = velocity(y + h / 2 * a, u + h / 2)
    c = velocity(y + h / 2 * b, u + h / 2)
    return y + h / 6 * (a + 2 * b + 2 * c + velocity(y + h * c, u + h))


def _dpm(velocity: Callable, y: Tensor, grid: list[float]) -> Tensor:
    """DPM-Solver++(2M): exact for a denoiser D that is linear in u, one evaluation a step.

    dy/du = y - D, so y(v) = e^(v-u) y(u) + (1 - e^(v-u)) D, and D is extrapolated from the last two steps.
    """
    before: Tensor | None = None
    h_before = 0.0
    for u, v in zip(grid, grid[1:], strict=False):
        denoised, h = y - velocity(y, u), v - u
        D = denoised if before is None else denoised + (denoised - before) * (h / (2 * h_before))
        y = math.exp(h) * y - math.expm1(h) * D
        before, h_before = denoised, h
    return y


A = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)  # Dormand and Prince (1980)
C = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
E = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)  # fifth minus fourth order


def _dormand_prince(velocity: Callable, y: Tensor, u: float, end: float, tolerance: float, most: int) -> Tensor:
    """Adaptive RK45; the step fits the root-mean-square error over all draws."""
    h = (end - u) / 20
    first = velocity(y, u)
    for _ in range(most):
        if abs(end - u) < 1e-12:
            return y
        h = h if abs(h) <= abs(end - u) else end - u
        k = [first]
        for a, c in zip(A[1:], C[1:], strict=True):
            k.append(velocity(y + h * sum(w * q for w, q in zip(a, k, strict=True) if w), u + c * h))
        new = y + h * sum(w * q for w, q in zip(A[6], k, strict=False) if w)
        error = h * sum(w * q for w, q in zip(E, k, strict=True) if w)
        size = float((error / (1 + torch.maximum(y.abs(), new.abs()))).square().mean().sqrt()) / tolerance
        if not math.isfinite(size):
            raise ValueError("the flow diverges: the score is not finite")
        if size <= 1:
            y, u, first = new, u + h, k[6]  # the last evaluation is the next step's first
        h *= min(5.0, max(0.2, 0.9 * (size + 1e-10) ** -0.2))
    raise ValueError(f"rk45 took {most} steps and did not arrive: give more steps or a larger tolerance")


def sde_sample(score: Score, sde: SDE, shape: tuple[int, int], *, steps: int = 200, corrector: int = 0, snr: float = 0.16,
               seed: int | torch.Generator = 0, start: Tensor | None = None) -> Tensor:  # fmt: skip
    """Draws (n, d) by the reverse SDE (exponential integrator of dy = 2 (y - D) du + noise), with Langevin steps.

    corrector: Langevin steps of size 2 (snr s)^2 after each step. Raises ValueError for steps < 1.
    """
    grid, generator = _grid(sde, steps)[::-1], _generator(seed)
    y = _start(sde, shape, generator) if start is None else start
    velocity = _flow(score, sde)
    for u, v in zip(grid, grid[1:], strict=False):
        ratio = math.exp(2 * (v - u))  # sigma_v^2 / sigma_u^2: the bridge to D keeps this share of y
        noise = math.exp(v) * math.sqrt(1 - ratio) * torch.randn(shape, generator=generator)
        y = ratio * y + (1 - ratio) * (y - velocity(y, u)) + noise
        for _ in range(corrector):
            size = (snr * math.exp(v)) ** 2  # of a Langevin step in y; its score is -velocity / sigma^2
            y = y - snr**2 * velocity(y, v) + math.sqrt(2 * size) * torch.randn(shape, generator=generator)
    return y * sde.mean_std(torch.tensor([max(sde.t_min, 0.0)], dtype=y.dtype))[0]


def divergence(f: Callable[[Tensor], Tensor], y: Tensor, probe: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(f(y), its divergence (n,)); exact by d vector-Jacobian products, or Hutchinson's estimate with a probe (n, d).

    f acts on each row by itself.
    """
    with torch.enable_grad():
        y = y.detach().requires_grad_()
        value = f(y)
        if probe is not None:
            (product,) = torch.autograd.grad(value, y, probe)
            return value.detach(), (product * probe).sum(1)
        d = y.shape[1]
        trace = torch.zeros(len(y), dtype=y.dtype)
        for j in range(d):
            (row,) = torch.autograd.grad(value[:, j].sum(), y, retain_graph=j < d - 1)
            trace = trace + row[:, j]
    return value.detach(), trace.detach()


def ode_log_prob(score: Score, sde: SDE, theta: Tensor, *, steps: int = 100, trace: str = "exact",
                 method: str = "rk4", seed: int | torch.Generator = 0) -> Tensor:  # fmt: skip
    """log density (n,) of theta (n, d) under the probability flow: log pi(theta_1) + the integral of the divergence.

    trace: exact, or hutchinson (one Rademacher probe, the same along the whole path). method: heun or rk4.
    theta lies at t_min. Raises ValueError for arguments out of range.
    """
    if trace not in ("exact", "hutchinson"):
        raise ValueError(f"trace is {trace!r}: choose exact, hutchinson")
    if method not in ("heun", "rk4"):
        raise ValueError(f"method is {method!r}: choose heun, rk4")
    grid, velocity = _grid(sde, steps), _flow(score, sde)
    n, d = theta.shape
    probe = None
    if trace == "hutchinson":
        probe = torch.randint(0, 2, theta.shape, generator=_generator(seed)).to(theta.dtype) * 2 - 1
    first_mean, last_mean = (sde.mean_std(torch.tensor([t], dtype=theta.dtype))[0] for t in (max(sde.t_min, 0.0), 1.0))
    low, high = _scale(grid[0]), _scale(grid[-1])
    state = torch.cat([theta / first_mean / low, theta.new_zeros(n, 1)], dim=1)  # z and the integral of its divergence
    flow = _scaled(velocity)

    def both(z: Tensor, u: float) -> Tensor:
        value, trace_ = divergence(lambda part: flow(part, u), z[:, :d], probe)
        return torch.cat([value, trace_[:, None]], dim=1)

    step = _heun_step if method == "heun" else _rk4_step
    for u, v in zip(grid, grid[1:], strict=False):
        state = step(both, state, u, v - u)
    end = state[:, :d] * high * last_mean
    log_pi = -0.5 * (end / sde.prior_std).square().sum(1) - d * math.log(sde.prior_std * math.sqrt(2 * math.pi))
    # theta_0 = m_0 r_0 z_0 and theta_1 = m_1 r_1 z_1: the Jacobians of the two scalings
    return log_pi + d * (last_mean.log() - first_mean.log() + math.log(high / low)) + state[:, d]
