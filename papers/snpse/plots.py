"""The figures. Each function returns a matplotlib figure; a run saves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from common.plots import LEVEL, NEUTRAL, OURS, RIVAL, SERIES, THEORY, Figure, axes


def against_budget(rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """C2ST and error of the mean against simulations."""
    figure, (left, right) = axes(2)
    n = [row["simulations"] for row in rows]
    left.plot(n, [row["c2st"] for row in rows], "o-", color=OURS)
    left.axhline(0.5, color=THEORY, lw=0.8, ls=":")
    left.set(xscale="log", xlabel="simulations", ylabel="C2ST", title=title)
    right.plot(n, [row["mean_error"] for row in rows], "o-", color=OURS)
    right.set(xscale="log", xlabel="simulations", ylabel="error of the posterior mean")
    return figure


def clouds(reference: Tensor, shown: Mapping[str, Tensor], x: Tensor) -> Figure:
    """Draws of each fit beside the reference, first two parameters."""
    figure, panels = axes(len(shown) + 1, 1, 2.6, 2.6, sharex=True, sharey=True, squeeze=False)
    for ax, (name, draws) in zip(panels[0], {"reference": reference, **shown}.items(), strict=True):
        ax.scatter(draws[:, 0], draws[:, 1], s=1, color=NEUTRAL if name == "reference" else OURS, alpha=0.4, lw=0)
        ax.set_title(name, fontsize=8)
    low, high = reference[:, :2].amin(0), reference[:, :2].amax(0)
    pad = 0.3 * (high - low)
    panels[0, 0].set(xlim=(low[0] - pad[0], high[0] + pad[0]), ylim=(low[1] - pad[1], high[1] + pad[1]))
    return figure


def rounds(found: Mapping[str, Any], reference: Tensor, name: str) -> Figure:
    """Where each round simulates, its box, and the posterior it ends with."""
    reports, theta = found["rounds"], np.array(found["theta"])
    figure, panels = axes(len(reports), 1, 2.6, 2.6, sharex=True, sharey=True, squeeze=False)
    start = 0
    for r, (ax, report) in enumerate(zip(panels[0], reports, strict=True)):
        here = theta[start : start + int(report["simulated"])]
        start += int(report["simulated"])
        ax.scatter(here[:, 0], here[:, 1], s=2, color=LEVEL, lw=0, label="simulated")
        ax.scatter(reference[:500, 0], reference[:500, 1], s=1, color=RIVAL, lw=0, label="reference")
        ax.set_title(f"{name}, round {r + 1}: {float(report['acceptance']):.0%} of the prior", fontsize=8)
    panels[0, 0].legend(markerscale=4, loc="upper right", fontsize=7)
    return figure


def valid(shares: Sequence[float], prior: float) -> Figure:
    """Share of valid simulations against rounds."""
    figure, ax = axes()
    ax.plot(range(1, len(shares) + 1), shares, "o-", color=OURS, label="truncated prior")
    ax.axhline(prior, color=RIVAL, ls="--", label="prior")
    ax.set(xlabel="round", ylabel="share of valid simulations", xticks=range(1, len(shares) + 1))
    ax.legend()
    return figure


def samplers(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Error of samplers against evaluations."""
    figure, ax = axes()
    for method, colour in zip(dict.fromkeys(row["method"] for row in rows), SERIES, strict=False):
        here = [row for row in rows if row["method"] == method]
        ax.plot([r["evaluations"] for r in here], [r["rms"] for r in here], "o-", color=colour, label=method)
    ax.set(xscale="log", yscale="log", xlabel="network evaluations a draw", ylabel="distance from RK45's draws")
    ax.legend()
    return figure


def coverage(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Empirical coverage against the level asked for."""
    figure, ax = axes(width=3.4, height=3.2)
    ax.plot([0, 1], [0, 1], color=THEORY, lw=0.8, ls=":")
    ax.plot([r["level"] for r in rows], [r["hpr"] for r in rows], "o-", ms=3, color=OURS, label="highest density")
    ax.plot([r["level"] for r in rows], [r["tarp"] for r in rows], "o-", ms=3, color=RIVAL, label="TARP")
    ax.set(xlabel="level", ylabel="coverage")
    ax.legend()
    return figure


def benchmark(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """C2ST against simulations, a panel a task, a line a method."""
    names = list(dict.fromkeys(row["task"] for row in rows))
    columns = min(4, len(names))
    figure, panels = axes(columns, -(-len(names) // columns), 2.6, 2.4, sharey=True, squeeze=False)
    for ax in panels.flat[len(names) :]:
        ax.axis("off")
    for ax, name in zip(panels.flat, names, strict=False):
        for method, colour in zip(dict.fromkeys(row["method"] for row in rows), SERIES * 2, strict=False):
            budgets = sorted({r["budget"] for r in rows if r["task"] == name and r["method"] == method})
            means = [
                np.mean([r["c2st"] for r in rows if (r["task"], r["method"], r["budget"]) == (name, method, b)])
                for b in budgets
            ]
            ax.plot(budgets, means, "o-", ms=3, color=colour, label=method)
        ax.set(xscale="log", title=name, ylim=(0.48, 1.02))
    panels.flat[0].set_ylabel("C2ST")
    panels.flat[0].legend(fontsize=7)
    return figure


def pairs(draws: Tensor, prior: Tensor, most: int = 6) -> Figure:
    """Marginals on the diagonal, pairs below it, of the first parameters."""
    d = min(most, draws.shape[1])
    figure, panels = axes(d, d, 1.8, 1.8, squeeze=False)
    for i in range(d):
        for j in range(d):
            ax = panels[i, j]
            if i == j:
                ax.hist(prior[:, i], bins=30, density=True, color=NEUTRAL, alpha=0.4)
                ax.hist(draws[:, i], bins=30, density=True, color=OURS, alpha=0.8)
                ax.set_title(f"parameter {i + 1}", fontsize=8)
            elif j < i:
                ax.scatter(draws[:, j], draws[:, i], s=1, lw=0, color=OURS, alpha=0.5)
            else:
                ax.axis("off")
    return figure
