"""Which levels are within reach? A frontier of mean error against level, computed before any network is trained.

The stand-in is linear: the forecast is a sum of k fixed curves over the window (principal components of the targets),
y_i = phi_i^T W (x, 1), so that steps share W and compete, as they do in a network. Everything is convex: for weights w the
best W is (Phi^T D_w Phi)^{-1} Phi^T D_w S with S the unrestricted least-squares rows, and duals are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from papers.loss_shaping.constraints import DualVariables
from papers.loss_shaping.data import Dataset, Windows

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Second moments over windows and channels. G (p, p) of (x, 1); B (T, p) with y; Y (T, T) of y; p = T_c + 1."""

    G: Array
    B: Array
    Y: Array


def moments(windows: Windows, batch_size: int = 2048) -> Moments:
    G = B = Y = torch.zeros((), dtype=torch.float64)
    count = 0
    for batch in windows.batches(batch_size):
        x = batch["x"].mT.flatten(0, 1).double()  # (B C, T_c)
        x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
        y = batch["y"].mT.flatten(0, 1).double()
        if "seen" in batch:  # products of targets: rows without a gap alone
            whole = batch["seen"].mT.flatten(0, 1).all(1)
            x, y = x[whole], y[whole]
        G, B, Y, count = G + x.T @ x, B + y.T @ x, Y + y.T @ y, count + len(x)
    if not count:
        raise ValueError("no window of the training rows is without a gap in its targets")
    return Moments(*((part / count).numpy() for part in (G, B, Y)))


class SharedCurves:
    """Forecasts in the span of k curves Phi (T, k)."""

    def __init__(self, m: Moments, width: int):
        ridge = 1e-8 * np.trace(m.G) / len(m.G) * np.eye(len(m.G))
        self.G = m.G
        self.S = np.linalg.solve(m.G + ridge, m.B.T).T  # (T, p) least squares, a row for each step
        self.floor = np.diag(m.Y) - 2 * np.sum(self.S * m.B, 1) + np.sum(self.S @ m.G * self.S, 1)  # (T,)
        self.Phi = np.linalg.eigh(m.Y)[1][:, ::-1][:, :width]

    def losses(self, w: Array) -> Array:
        """l (T,) of the model that minimises sum_i w_i l_i."""
        D = self.Phi * w[:, None]
        miss = self.Phi @ np.linalg.solve(self.Phi.T @ D, D.T @ self.S) - self.S  # (T, p)
        return self.floor + np.sum(miss @ self.G * miss, 1)

    def minimax(self, steps: int = 3000) -> tuple[Array, float]:
        """The losses (T,) whose largest is least, by exponentiated gradient on the weights with a falling step.

        Also a bound that no model of this kind goes below: for any weights w that sum to 1, min_W max_i l_i is at least
        min_W sum_i w_i l_i, whose minimum is known exactly.
        """
        T = len(self.S)
        log_w, best, bound = np.zeros(T), self.losses(np.full(T, 1.0 / T)), 0.0
        scale = best.std() + 1e-12
        for step in range(steps):
            w = np.exp(log_w - log_w.max())
            w = 0.999 * w / w.sum() + 0.001 / T  # no weight reaches zero: the system stays solvable
            losses = self.losses(w)
            bound = max(bound, float(w @ losses))
            if losses.max() < best.max():
                best = losses
            log_w = log_w + (losses - losses.max()) / (scale * np.sqrt(step + 1.0))
        return best, bound

    def constrained(self, level: float, lr: float, steps: int) -> tuple[Array, Array]:
        """Losses and prices (T,) at a common level, by dual ascent with exact inner minimisation."""
        T = len(self.S)
        duals = DualVariables(np.full(T, level), lr, dtype=torch.float64)
        losses = self.losses(np.full(T, 1.0 / T))
        for _ in range(steps):
            duals.step(torch.from_numpy(losses))
            losses = self.losses(duals.multipliers.numpy() + 1.0 / T)
        return losses, duals.multipliers.numpy().copy()


def held(row: dict[str, Any]) -> bool:
    """Whether the prices of a row of the frontier had settled: no step is above its level, to 0.1 %."""
    return bool(row["max_step"] <= 1.001 * row["level"])


def frontier(data: Dataset, *, width: int, points: int, dual_lr: float, steps: int, cost: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:  # fmt: skip
    """Rows from the ERM profile's largest step down to the lowest level, and the tightest whose mean costs at most `cost` %."""
    model = SharedCurves(moments(data.segments["train"]), width)
    erm = model.losses(np.full(len(model.S), 1.0))
    tightest, bound = model.minimax()
    lowest = float(tightest.max())
    rows = []
    for level in np.linspace(erm.max(), lowest, points):
        losses, prices = model.constrained(float(level), dual_lr, steps)
        rows.append({"level": float(level), "erm_quantile": float((erm <= level).mean()), "mse": float(losses.mean()),
                     "mse_change": 100 * float(losses.mean() / erm.mean() - 1), "window_std": float(losses.std()),
                     "max_step": float(losses.max()), "active": int((prices > 1e-9).sum()), "sum_prices": float(prices.sum())})  # fmt: skip
    # prices of the tightest levels may not have settled in so many steps: what is recommended was held
    affordable = [row for row in rows if row["mse_change"] <= cost + 1e-9 and held(row)]
    picture = {"erm": erm, "tightest": tightest, "lowest": lowest, "bound": bound, "floor": float(model.floor.max()),
               "recommended": affordable[-1]["level"]}  # fmt: skip
    return rows, picture
