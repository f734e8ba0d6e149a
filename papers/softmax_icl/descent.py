"""Gradient descent on the population loss, in feature coordinates: Qf <- Qf - lr dL/dQf from Qf = 0, everything watched."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.run import Run
from common.training import resumable
from papers.softmax_icl.population import count_law, descent_direction
from papers.softmax_icl.trajectory import Trajectory

WATCHED = ("A", "B1", "Bo", "alpha", "beta1", "loss")


class Descent:
    """Full-batch gradient descent with fresh count vectors for every step, and what was seen on the way.

    p (K,); N, mode and samples as for `population_gradient`. Feature 1 is the one whose influence B_{k,1} is watched; for query 1
    it is the mean of the others. Raises ValueError for arguments that do not fit.
    """

    def __init__(self, p: NDArray, N: int, lr: float, mode: str = "counts_mc", samples: int | None = None):
        self.p, self.N, self.lr, self.mode, self.samples = p, N, lr, mode, samples
        law = count_law(p, N, mode, samples, np.random.default_rng(0))
        self.law = None if mode == "counts_mc" else law  # counts that are drawn are drawn anew for every step
        self.Qf = np.zeros((len(p), len(p)))
        self.times: list[float] = []
        self.watched: dict[str, list[NDArray]] = {name: [] for name in WATCHED}
        self.snapshots: list[tuple[float, NDArray]] = []

    def direction(self, generator: np.random.Generator) -> tuple[NDArray, NDArray]:
        """(-dL/dQf (K, K), L_k (K,)) at Qf, on counts drawn from `generator` where they are drawn."""
        law = self.law or count_law(self.p, self.N, self.mode, self.samples, generator)
        return descent_direction(self.Qf, self.p, *law)

    def watch(self, t: float, direction: NDArray, L_k: NDArray, snapshot: bool = False) -> None:
        """Note the state at time t, before the step along `direction`."""
        K = len(self.p)
        A, alpha = self.Qf.diagonal(), direction.diagonal()
        Bo, beta_o = (self.Qf.sum(axis=0) - A) / (K - 1), (direction.sum(axis=0) - alpha) / (K - 1)  # mean over n != k
        B1, beta1 = self.Qf[0].copy(), direction[0].copy()
        B1[0], beta1[0] = Bo[0], beta_o[0]
        if K > 2:
            Bo[1:] = (Bo[1:] * (K - 1) - B1[1:]) / (K - 2)
        self.times.append(t)
        for name, value in zip(WATCHED, (A, B1, Bo, alpha, beta1, L_k), strict=True):
            self.watched[name].append(np.array(value))
        if snapshot:
            self.snapshots.append((t, self.Qf.copy()))

    def trajectory(self, queries: slice | int, kind: str) -> Trajectory:
        """What was watched, meaned over query features."""
        means = {name: np.array(values)[:, queries] for name, values in self.watched.items()}
        means = {name: values if values.ndim == 1 else values.mean(axis=1) for name, values in means.items()}
        return Trajectory(kind, len(self.p), np.array(self.times), **means)

    def snapshot_near(self, t: float) -> tuple[float, NDArray]:
        """(time, Qf) of the snapshot that is nearest to time t."""
        return min(self.snapshots, key=lambda kept: abs(kept[0] - t))

    def state_dict(self) -> dict[str, Any]:
        return {
            "Qf": self.Qf,
            "times": self.times,
            "snapshots": self.snapshots,
            "watched": {n: np.array(v) for n, v in self.watched.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.Qf, self.times, self.snapshots = state["Qf"], state["times"], state["snapshots"]
        self.watched = {name: list(values) for name, values in state["watched"].items()}


def descend(
    run: Run, name: str, descent: Descent, steps: int, *, watch_every: int = 1, watch_first: int = 0, snapshots: int = 0
) -> Descent:
    """Take `steps` steps; step i draws its counts from run.rng(name, "counts", i). Returns `descent`, trained.

    The first `watch_first` steps are watched, and every `watch_every`-th. The mean loss is a curve, `<name>.loss`, of some 200 points.
    A run that is killed goes on from its last checkpoint and ends at the same figures.
    """
    snapshot_every = max(1, steps // snapshots) if snapshots else 0
    log_every = max(1, steps // 200)
    for i in resumable(run, name, steps, {"descent": descent}):
        direction, L_k = descent.direction(run.rng(name, "counts", i).numpy)
        snapshot = bool(snapshots) and i % snapshot_every == 0
        if i < watch_first or i % watch_every == 0 or snapshot:
            descent.watch(descent.lr * i, direction, L_k, snapshot)
        if i % log_every == 0 or i == steps - 1:
            run.log({f"{name}.loss": float(descent.p @ L_k)}, step=i)
        descent.Qf = descent.Qf + descent.lr * direction
    return descent
