"""The figures. Each function returns a matplotlib figure; a run saves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.plots import NEUTRAL, OURS, RIVAL, THEORY, Figure, axes

Array = NDArray[np.float64]
ERM, LEVEL, PRICE = NEUTRAL, THEORY, RIVAL
COLOURS = {"erm": ERM, "hard": OURS, "resilient": "#6a994e", "penalty": "#b8860b", "reweight": "#9467bd",
           "minimax": PRICE, "hard_as_is": OURS, "hard_rescaled": THEORY,
           "hard_exact": "#5f0f40", "monotone": "#3b3b98", "smooth": "#e07ab0", "groups": OURS}  # fmt: skip


def before_after(profiles: Mapping[str, tuple[Array, Array]], method: str, levels: Array | None, prices: Array, path: Array,
                 path_steps: Sequence[int]) -> Figure:  # fmt: skip
    """Error along the window before and after, with levels, on train and test; the prices below, and their way there.

    profiles: segment (train, test) -> the (T,) of ERM and of `method`. levels, prices: (T,). path: (points, T) prices at path_steps.
    """
    fig, grid = axes(2, 2, height=2.5, height_ratios=(2, 1), sharex="row")
    steps = np.arange(1, len(prices) + 1)
    for ax, segment in zip(grid[0], ("train", "test"), strict=True):
        for e, colour, label in zip(profiles[segment], (ERM, OURS), ("ERM", f"constrained ({method})"), strict=True):
            ax.plot(steps, e, color=colour, lw=1.8, label=f"{label}: STD {e.std():.4f}, mean {e.mean():.4f}")
        if levels is not None:
            ax.plot(steps, levels, color=LEVEL, lw=0.9, ls="--", label=r"level $\epsilon_i$")
        ax.set(ylabel="mean squared error", xlabel="step $i$ of the forecast")
        ax.legend(
            title=f"{segment} windows", fontsize=8, loc="lower left", bbox_to_anchor=(0, 1)
        )  # above: curves fill the axes
    left, right = grid[1]
    left.fill_between(steps, prices, color=PRICE, alpha=0.5, lw=0)
    left.set(ylabel=r"price $\lambda_i$ at the end", xlabel="step $i$", ylim=(0, None))
    right.remove()
    right = fig.add_subplot(grid[1, 1].get_subplotspec())
    image = right.imshow(path.T, aspect="auto", origin="lower", cmap="OrRd", interpolation="nearest",
                         extent=(0, path_steps[-1], 0.5, len(steps) + 0.5))  # fmt: skip
    right.set(xlabel="training step", ylabel="step $i$")
    fig.colorbar(image, ax=right, label=r"$\lambda_i$")
    return fig


def profiles(tests: Mapping[str, Array], title: str) -> Figure:
    """The test profile (T,) of every method, and mean against Window STD in the same colours."""
    fig, (left, right) = axes(2, height=3.6, width_ratios=(3, 2))
    for method, e in tests.items():
        colour = COLOURS[method]
        left.plot(np.arange(1, len(e) + 1), e, color=colour, label=method)
        right.plot(e.std(), e.mean(), "o", color=colour)
    left.set(xlabel="step $i$ of the forecast", ylabel="test mean squared error", title=title)
    left.legend(fontsize=8)
    right.margins(0.2)
    right.set(xlabel="Window STD", ylabel="mean over steps")
    return fig


def convex(erm: Any, levels: dict[str, float], saddles: dict[str, Any]) -> Figure:
    """E1: profiles under each level; prices on their way, and for ever on it where no model is feasible."""
    fig, (left, right) = axes(2, height=3.6)
    steps = np.arange(1, len(erm) + 1)
    left.plot(steps, erm, "o-", color=ERM, label="ERM")
    for name, colour in (("loose", "#6a994e"), ("tight", OURS)):
        left.plot(steps, saddles[name].losses, "o-", color=colour, label=f"{name} level")
        left.axhline(levels[name], color=colour, lw=0.8, ls="--")
        right.plot(saddles[name].path.sum(1), color=colour, label=name)
    right.plot(saddles["hard"].path.sum(1), color=PRICE, label="infeasible, hard")
    right.plot(saddles["resilient"].path.sum(1), color="black", ls=":", label="infeasible, resilient")
    left.set(xlabel="step $i$", ylabel="mean squared error")
    right.set(xlabel="dual steps (each curve scaled to its length)", ylabel=r"$\sum_i\lambda_i$", yscale="symlog", xticks=[])  # fmt: skip
    left.legend()
    right.legend()
    return fig


def frontier(rows: list[dict[str, Any]], picture: dict[str, Any]) -> Figure:
    """What a common level costs: the mean error of the best model that keeps every step under it, and its profiles."""
    fig, (left, right) = axes(2, height=3.6)
    left.plot([row["level"] for row in rows], [row["mse"] for row in rows], "o-", color=OURS)
    left.axvspan(picture["floor"], picture["bound"], color="#f3e9dc", zorder=0)
    left.text((picture["floor"] + picture["bound"]) / 2, 0.9, "no model", transform=left.get_xaxis_transform(), ha="center")  # fmt: skip
    left.set(xlabel=r"level $\epsilon$ for all steps", ylabel="least mean error, train")
    steps = np.arange(1, len(picture["erm"]) + 1)
    right.plot(steps, picture["erm"], color=ERM, label="ERM")
    right.plot(steps, picture["tightest"], color=OURS, label="at the lowest level")
    right.set(xlabel="step $i$", ylabel="mean squared error, train")
    right.legend()
    return fig
