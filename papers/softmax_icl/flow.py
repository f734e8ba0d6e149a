"""Gradient flow in the limit of infinite prompts: c/N -> p, so a query's scores obey an ordinary differential equation.

Features that start equal stay equal. Grouped, a query has two unknowns (balanced, dominant) or three (rare), whatever K is;
with frequencies all different it has K. Time t is (learning rate) x (steps).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from papers.softmax_icl.laws import check_eps, check_frequencies, whole
from papers.softmax_icl.trajectory import NEGLIGIBLE, QUERIES, Trajectory

RTOL, ATOL = 1e-9, 1e-12


class State(NamedTuple):
    """A query's attention and velocities, group by group (group 0 is its own feature). Arrays are (G,) or (G, T)."""

    a: NDArray  # attention on one feature of each group
    velocity: NDArray  # d(score)/dt
    loss: NDArray


def column(scores: NDArray, p: NDArray, multiplicity: NDArray) -> State:
    """The flow of one query at `scores` (G,) or (G, T): group g has multiplicity[g] features of frequency p[g] and score scores[g].

    d s_0 = p_0 a_0 (S + (1 - a_0)^2),  d s_g = p_0 a_g (S - a_g - a_0 (1 - a_0)),  S = sum_{g > 0} multiplicity_g a_g^2.
    """
    if scores.ndim == 2:
        p, multiplicity = p[:, None], multiplicity[:, None]
    e = p * np.exp(scores - scores.max(axis=0))
    a = e / (multiplicity * e).sum(axis=0)
    rest = (multiplicity * a)[1:].sum(axis=0)  # 1 - a_0, with all its digits
    S = (multiplicity * a**2)[1:].sum(axis=0)
    velocity = p[0] * a * (S - a - a[0] * rest)
    velocity[0] = p[0] * a[0] * (S + rest**2)
    return State(a, velocity, 0.5 * (S + rest**2))


def integrate_flow(K: int, p1: float | None = None, eps: float = 1e-3, query: str = "rare") -> Trajectory:
    """The trajectory of a query from Q = 0 until L_k <= eps, by LSODA; event times are samples of it.

    p1=None: balanced features (query is then ignored). Else feature 1 has frequency p1 and the others share the rest; query
    "rare" is any k >= 2, "dominant" is k = 1. Cost does not depend on K: about ten milliseconds.
    Raises ValueError for arguments that do not fit, RuntimeError where the solver stops early.
    """
    K, kind = whole("K", K), "balanced" if p1 is None else query
    if kind not in QUERIES or (kind == "balanced" and p1 is not None):
        raise ValueError(f"query is {query!r}: use rare or dominant")
    if (3 if kind == "rare" else 2) > K:
        raise ValueError(f"K is {K}: a {kind} query needs at least {3 if kind == 'rare' else 2} features")
    if p1 is not None and not 0 < p1 < 1:
        raise ValueError(f"p1 is {p1}: it must lie strictly between 0 and 1")
    if p1 is None:
        p, multiplicity = np.full(2, 1 / K), np.array([1.0, K - 1])  # own feature, others
    else:
        rare = (1 - p1) / (K - 1)
        p = np.array([p1, rare]) if kind == "dominant" else np.array([rare, p1, rare])  # own, (dominant,) others
        multiplicity = np.array([1.0, K - 1]) if kind == "dominant" else np.array([1.0, 1.0, K - 2])
    events: list[Callable[[NDArray, State], float]] = [lambda s, _: s[0] - math.log(K)]
    if kind == "rare":
        events += [
            lambda _, x: (x.velocity[0] - abs(x.velocity[1])) / x.velocity[0],
            lambda _, x: NEGLIGIBLE - abs(x.velocity[1]) / x.velocity[0],
        ]
    t, scores = _solve(p, multiplicity, eps, events)
    x = column(scores, p, multiplicity)
    dominant = 1 if kind == "rare" else -1
    return Trajectory(kind, K, t, scores[0], scores[dominant], scores[-1], x.velocity[0], x.velocity[dominant], x.loss)


def learning_time(p: ArrayLike, k: int, eps: float) -> float:
    """Time the flow takes to L_k <= eps for query k (from 0) under any frequencies p (K,)."""
    p = check_frequencies(p)
    order = np.r_[k, np.delete(np.arange(len(p)), k)]
    return float(_solve(p[order], np.ones(len(p)), eps, [])[0][-1])


def _solve(
    p: NDArray, multiplicity: NDArray, eps: float, events: list[Callable[[NDArray, State], float]]
) -> tuple[NDArray, NDArray]:
    """Times (T,) and scores (G, T) from Q = 0 until the loss is eps; the zeros of `events` are among the times."""
    from scipy.integrate import solve_ivp

    check_eps(eps)
    start = np.zeros(len(p))
    if column(start, p, multiplicity).loss <= eps:
        return np.zeros(1), start[:, None]

    def watch(event: Callable[[NDArray, State], float]) -> Callable[[float, NDArray], float]:
        return lambda t, scores: event(scores, column(scores, p, multiplicity))

    reached = watch(lambda _, x: math.log(x.loss / eps))
    reached.terminal = True  # type: ignore[attr-defined]
    longest = 1e3 * (1 / p[0] ** 2 + 1 / (p[0] * eps))  # far above K^2 + K/(4 eps)
    found = solve_ivp(lambda t, s: column(s, p, multiplicity).velocity, (0, longest), start, method="LSODA", rtol=RTOL, atol=ATOL,
                      events=[reached, *map(watch, events)])  # fmt: skip
    if found.status != 1:
        raise RuntimeError(f"the flow did not reach a loss of {eps:g} by t = {found.t[-1]:.3g}: {found.message}")
    t = np.concatenate([found.t, *found.t_events])
    scores = np.concatenate([found.y.T, *(y.reshape(-1, len(p)) for y in found.y_events)]).T
    t, first = np.unique(t, return_index=True)
    keep = t <= found.t_events[0][0]
    return t[keep], scores[:, first][:, keep]
