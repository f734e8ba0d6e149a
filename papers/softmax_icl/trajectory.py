"""What is watched while a query is learned, and the phases it goes through.

Phases are found by events, since the paper's constants (-0.49 log K, 0.01 log K) hold only as K -> inf: at K = 100 and
p_1 = 1/2 the switch comes at B_{k,1} = -0.42 ln K. The constants are reported beside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from papers.softmax_icl.laws import check_eps

QUERIES = ("balanced", "dominant", "rare")
NEGLIGIBLE = 0.1  # phase II ends when |beta_{k,1}| < 0.1 alpha_k: this package's choice, the paper names no constant


@dataclass(frozen=True)
class Trajectory:
    """One query feature k over time t = (learning rate) x (steps). All arrays are (T,).

    A = A_k; B1 = B_{k,1}, the score of the dominant feature; Bo, the mean score of the other features; alpha = alpha_k and
    beta1 = beta_{k,1}, the velocities of A and B1; loss = L_k. Where no feature dominates the query, B1 is Bo.
    """

    query: str  # balanced | dominant | rare
    K: int
    t: NDArray
    A: NDArray
    B1: NDArray
    Bo: NDArray
    alpha: NDArray
    beta1: NDArray
    loss: NDArray

    def at(self, t: float, name: str) -> float:
        """The value of `name` at time t, linear between samples."""
        return float(np.interp(t, self.t, getattr(self, name)))

    def gap(self, t: float) -> float:
        """How far apart the samples are between which time t lies; 0 where t is not within them."""
        i = int(np.searchsorted(self.t, t))
        return float(self.t[i] - self.t[i - 1]) if 0 < i < len(self.t) else 0.0

    def time_to(self, eps: float) -> float | None:
        """When the loss first is at most eps; None where it never is."""
        return time_to(self.t, self.loss, eps)


@dataclass(frozen=True)
class Phase:
    """One phase of learning, from `start` to `end`; `end` is None where its event is not reached, and the next phase then starts where it did.

    paper: the end that the paper's constant gives (None where that is not reached), paper_rule: the constant in words.
    """

    name: str
    start: float
    end: float | None
    paper_rule: str
    paper: float | None

    @property
    def length(self) -> float | None:
        return None if self.end is None else self.end - self.start


def crossing(t: NDArray, g: NDArray, start: float = 0.0, slack: float = 1e-8) -> float | None:
    """The first time from `start` on at which g >= 0 (up to `slack`: samples taken at the event itself), linear between samples.

    t, g: (T,). None where there is none.
    """
    reached = np.flatnonzero((g >= -slack) & (t >= start))
    if len(reached) == 0:
        return None
    i = int(reached[0])
    if i == 0 or g[i - 1] >= -slack:  # it held at `start` already
        return float(max(t[max(i - 1, 0)], start))
    step = 1.0 if g[i] <= 0 else float(g[i - 1] / (g[i - 1] - g[i])) if np.isfinite(g[i]) else 0.0
    return max(start, float(t[i - 1] + (t[i] - t[i - 1]) * step))


def time_to(t: NDArray, loss: NDArray, eps: float) -> float | None:
    """When `loss` (T,) first is at most eps, linear in its logarithm between the samples t (T,). None where it never is."""
    check_eps(eps)
    return crossing(t, math.log(eps) - np.log(np.maximum(loss, 1e-300)))


def phases(trajectory: Trajectory, eps: float) -> list[Phase]:
    """The phases of a query until L_k <= eps, each beginning where the one before ends.

    rare: I ends when alpha_k >= |beta_{k,1}|, II when |beta_{k,1}| < 0.1 alpha_k, III when A_k >= ln K, IV when L_k <= eps.
    balanced: I ends when A_k >= ln K, II when L_k <= eps. dominant: one phase, until L_k <= eps.
    Raises ValueError unless eps > 0.
    """
    check_eps(eps)
    T, log_K = trajectory, math.log(trajectory.K)
    with np.errstate(divide="ignore", invalid="ignore"):
        lead = np.log(T.alpha) - np.log(np.abs(T.beta1))  # >= 0 from the switch on
        converged = math.log(eps) - np.log(T.loss)
    learned = T.A / log_K - 1

    rules: list[tuple[str, NDArray, str, NDArray]] = []  # name, our event, the paper's constant in words, as an event
    if T.query == "rare":
        rules.append(("decrease of the dominant feature", lead, "B_1 <= -0.49 ln K", -0.49 - T.B1 / log_K))
        rules.append(
            ("switching of the leading influence", lead + math.log(NEGLIGIBLE), "A >= 0.01 ln K", T.A / log_K - 0.01)
        )
    if T.query != "dominant":
        rules.append(("growth of the target feature", learned, "A >= ln K", learned))
    rules.append(("convergence", converged, f"L <= {eps:g}", converged))

    found: list[Phase] = []
    start = float(T.t[0])
    for name, event, words, constant in rules:
        end = crossing(T.t, event, start)
        found.append(Phase(name, start, end, words, crossing(T.t, constant)))
        start = start if end is None else end
    return found
