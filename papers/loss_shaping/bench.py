"""Races: what a constrained step costs beside a plain one, and what dual ascent costs beside a general solver.

`bench(quick)` returns tables of medians over interleaved runs in seconds. Wall-clock is reported, never judged.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from papers.loss_shaping.convex import Quadratic


def bench(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Tables by name; a row has a contestant, its median, fastest and slowest run, and the ratio to the first's median."""
    repeats = 3 if quick else 7
    return {"training_step": _training_step(repeats, steps=20 if quick else 200), "convex": _convex(repeats)}


def _training_step(repeats: int, steps: int) -> list[dict[str, Any]]:
    """ERM against hard and resilient constraints (and Adam's memory rescaled), a vanilla Transformer of width 32 on the synthetic series."""
    import numpy as np
    import torch

    from papers.loss_shaping import baselines
    from papers.loss_shaping.constraints import DualVariables
    from papers.loss_shaping.data import Windows
    from papers.loss_shaping.forecasters import Shape, build_forecaster
    from papers.loss_shaping.shaping import ConstrainedTraining, WindowLosses

    T, C = 96, 7
    generator = torch.Generator().manual_seed(0)
    windows = Windows(torch.randn(1000, C, generator=generator), torch.zeros(1000, 4), torch.arange(800), 96, 48, T)
    batch = windows.batch(torch.arange(32))

    def contestant(weighting: Any, state: str = "as_is") -> Callable[[], None]:
        torch.manual_seed(0)
        forecaster = build_forecaster("transformer", Shape(C, 4, 96, 48, T), d_model=32, heads=4, d_ff=64)
        module = ConstrainedTraining(WindowLosses(forecaster), weighting, lr=1e-4, optimiser_state=state)
        adam = module.configure_optimizers()["optimizer"]

        def run() -> None:
            for _ in range(steps):
                losses = module.losses(batch)
                loss = module.lagrangian(losses)
                module.look_at(losses)
                module.dual_update(losses)
                adam.zero_grad()
                loss.backward()
                module.follow(adam)
                adam.step()

        return run

    return _race(repeats, {
        "ERM": contestant(baselines.erm(T)),
        "hard": contestant(DualVariables(np.full(T, 0.5), 0.01, 1.0, 10.0)),
        "hard, memory rescaled": contestant(DualVariables(np.full(T, 0.5), 0.01, 1.0, 10.0), "rescaled"),
        "resilient": contestant(DualVariables(np.full(T, 0.5), 0.01, 1.0, 10.0, slack_lr=0.1)),
    })  # fmt: skip


def _convex(repeats: int) -> list[dict[str, Any]]:
    """The tight convex problem by 2,000 dual steps (gap under 1e-4), by SLSQP, and by cooper-optim where it is installed."""
    import numpy as np

    from common.optional import installed
    from papers.loss_shaping import convex

    q = convex.problem(np.random.default_rng(0), steps=12, d=4, samples=400, noise=0.1)
    eps = np.full(12, 1.02 * convex.lowest_level(q))
    contestants: dict[str, Callable[[], Any]] = {
        "SLSQP": lambda: convex.solve(q, eps),
        "dual ascent": lambda: convex.dual_ascent(q, eps, lr=0.01, steps=2000),
    }
    if installed("cooper"):
        contestants["cooper-optim"] = lambda: by_cooper(q, eps, lr=0.01, steps=2000)
    return _race(repeats, contestants)


def by_cooper(q: Quadratic, levels: NDArray[np.float64], *, lr: float, steps: int) -> tuple[NDArray, NDArray]:
    """The saddle point by cooper-optim (theta (d,), prices (T,)): alternating gradient steps from the ERM solution."""
    import cooper
    import numpy as np
    import torch

    H, b, c, eps = (torch.tensor(part, dtype=torch.float32) for part in (q.H, q.b, q.c, levels))
    T = len(eps)
    theta = torch.tensor(q.minimise(np.full(T, 1.0 / T)), dtype=torch.float32, requires_grad=True)

    class Problem(cooper.ConstrainedMinimizationProblem):
        def __init__(self) -> None:
            super().__init__()
            self.levels = cooper.Constraint(
                multiplier=cooper.multipliers.DenseMultiplier(num_constraints=T),
                constraint_type=cooper.ConstraintType.INEQUALITY,
                formulation_type=cooper.formulations.Lagrangian,
            )

        def compute_cmp_state(self) -> Any:
            losses = torch.einsum("tij,i,j->t", H, theta, theta) - 2 * b @ theta + c
            return cooper.CMPState(losses.mean(), {self.levels: cooper.ConstraintState(losses - eps)})

    saddle = Problem()
    optimizer = cooper.optim.AlternatingDualPrimalOptimizer(
        primal_optimizers=torch.optim.SGD([theta], lr=lr),
        dual_optimizers=torch.optim.SGD(saddle.dual_parameters(), lr=lr, maximize=True),
        cmp=saddle,
    )
    for _ in range(steps):
        optimizer.roll()
    return theta.detach().numpy(), next(iter(saddle.dual_parameters())).detach().numpy()


def _race(repeats: int, contestants: dict[str, Callable[[], Any]]) -> list[dict[str, Any]]:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):  # the first turn warms up
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if turn:
                times[name].append(time.perf_counter() - start)
    first = statistics.median(next(iter(times.values())))
    return [{"contestant": name, "median_s": statistics.median(t), "min_s": min(t), "max_s": max(t), "ratio": statistics.median(t) / first}
            for name, t in times.items()]  # fmt: skip
