"""The figures. Each function returns a matplotlib figure; a run saves it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from papers.softmax_icl.trajectory import Trajectory, phases

OWN, DOMINANT, OTHERS, THEORY = "#1f6f8b", "#c8553d", "#8a8d91", "black"
SHADES = ("#f3e9dc", "#e4eef2", "#eef2e4", "#f4f4f4")
ROMAN = ("I", "II", "III", "IV")


def _new(width: float, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    return plt.subplots(1, columns, figsize=(width, 3.6), layout="constrained", **options)


def _shade(ax: Axes, path: Trajectory, eps: float) -> None:
    """Colour the phases and number them above the axes."""
    found = [phase for phase in phases(path, eps) if phase.end is not None]
    number = 0
    for i, phase in enumerate(phases(path, eps)):
        if phase.end is None or phase.end <= phase.start:
            continue
        first, number = number, i + 1  # a phase whose event never comes is shown as one with the next
        label = ROMAN[i] if i == first or phase is found[0] else f"{ROMAN[first]}+{ROMAN[i]}"
        ax.axvspan(phase.start, phase.end, color=SHADES[i], zorder=0)
        ax.text(
            (phase.start + phase.end) / 2, 1.01, label, transform=ax.get_xaxis_transform(), ha="center", va="bottom"
        )


def balanced(limit: Trajectory, finite: Trajectory, eps: float) -> Figure:
    """A_k, B_{k,n} and the loss for balanced features."""
    fig, (left, right) = _new(9, 2)
    left.plot(limit.t, limit.A, color=OWN, label="$A_k$")
    left.plot(limit.t, limit.Bo, color=OTHERS, label="$B_{k,n}$")
    left.plot(finite.t, finite.A, ":", color=THEORY, label="$A_k$, finite prompts")
    left.axhline(math.log(limit.K), color=THEORY, lw=0.8, ls="--")
    left.text(limit.t[-1], math.log(limit.K), "ln K", ha="right", va="bottom")
    left.set(ylabel="bilinear weight")
    right.semilogy(limit.t, limit.loss, color=OWN, label="infinite prompts")
    right.semilogy(finite.t, finite.loss, ":", color=THEORY, label="finite prompts")
    right.set(ylabel="loss $L_k$", ylim=(0.5 * min(eps, finite.loss.min()), 1))
    for ax in (left, right):
        ax.set(xlabel="time t = learning rate x steps", xlim=(0, limit.t[-1]))
        _shade(ax, limit, eps)
        ax.legend(frameon=False, loc="center right")
    return fig


def imbalanced(rare: Trajectory, dominant: Trajectory, theory: Trajectory, eps: float) -> Figure:
    """The picture of the paper: a rare query un-learns the dominant feature, then learns its own."""
    fig, axes = _new(12, 3)
    scores, speeds, loss = axes
    scores.plot(rare.t, rare.A, color=OWN, label="$A_k$ (own feature)")
    scores.plot(rare.t, rare.B1, color=DOMINANT, label="$B_{k,1}$ (dominant feature)")
    scores.plot(rare.t, rare.Bo, color=OTHERS, label="$B_{k,n}$ (others)")
    for name in ("A", "B1"):
        scores.plot(
            theory.t,
            getattr(theory, name),
            ":",
            color=THEORY,
            lw=1.2,
            label="infinite prompts" if name == "A" else None,
        )
    log_K = math.log(rare.K)
    scores.axhline(log_K, color=THEORY, lw=0.8, ls="--")
    scores.text(0.02 * rare.t[-1], log_K, "ln K", va="bottom")
    scores.set(ylabel="bilinear weight of a rare query")
    speeds.semilogy(rare.t, rare.alpha, color=OWN, label=r"$\alpha_k$")
    speeds.semilogy(rare.t, np.abs(rare.beta1), color=DOMINANT, label=r"$|\beta_{k,1}|$")
    speeds.set(ylabel="velocity")
    loss.semilogy(rare.t, rare.loss, color=OWN, label="rare queries")
    loss.semilogy(dominant.t, dominant.loss, color=DOMINANT, label="dominant query")
    loss.axhline(eps, color=THEORY, lw=0.8, ls="--")
    loss.text(rare.t[-1], eps, f"{eps:g}", ha="right", va="bottom")
    loss.set(ylabel="loss $L_k$")
    for ax in axes:
        ax.set(xlabel="time t = learning rate x steps", xlim=(0, rare.t[-1]))
        _shade(ax, rare, eps)
        ax.legend(frameon=False, fontsize=8)
    return fig


def attention_maps(maps: Sequence[tuple[str, NDArray]]) -> Figure:
    """E[Attn_n] for each query k at some moments: columns are queries, and sum to one."""
    fig, axes = _new(3 * len(maps) + 0.6, len(maps), squeeze=False)
    for ax, (title, attn) in zip(axes[0], maps, strict=True):
        image = ax.imshow(attn, vmin=0, vmax=1, cmap="magma", interpolation="nearest")
        ax.set(title=title, xlabel="query feature k")
    axes[0][0].set(ylabel="key feature n")
    fig.colorbar(image, ax=axes[0].tolist(), label="attention on feature n", shrink=0.8)
    return fig


def scaling(rows: Sequence[Mapping[str, Any]], dominant: Mapping[int, float], p1: float) -> Figure:
    """Learning times against K, and where the switch comes."""
    fig, (left, right) = _new(9, 2)
    K = [row["K"] for row in rows]
    for name, label, color in (("t_switch", "rare: switch", DOMINANT), ("t_log_K", "rare: $A_k = \\ln K$", OWN)):
        left.loglog(K, [row[name] for row in rows], "o-", ms=3, color=color, label=label)
        left.loglog(K, [row[f"{name}_asymptote"] for row in rows], ":", color=THEORY)
    left.loglog([], [], ":", color=THEORY, label="asymptotes, $\\propto K^2$")
    left.loglog(list(dominant), list(dominant.values()), "s-", ms=3, color=OTHERS, label="dominant query")
    left.set(xlabel="features K", ylabel="time")
    right.semilogx(
        K, [row["B1_over_lnK_at_switch"] for row in rows], "o-", ms=3, color=DOMINANT, label=f"flow, $p_1$ = {p1:g}"
    )
    right.semilogx(K, [row["asymptote"] for row in rows], ":", color=THEORY, label="asymptote")
    right.axhspan(-0.51, -0.49, color=SHADES[0])
    right.text(K[0], -0.49, "[-0.51, -0.49], as $K \\to \\infty$", va="bottom", fontsize=8)
    right.set(xlabel="features K", ylabel="$B_{k,1} / \\ln K$ at the switch")
    for ax in (left, right):
        ax.legend(frameon=False, fontsize=8)
    return fig


def token_losses(curves: Sequence[Sequence[float]], linear: float, softmax: float) -> Figure:
    """Batch losses of the transformer, against the two floors."""
    fig, ax = _new(5)
    for i, losses in enumerate(curves):
        ax.semilogy(
            losses, color=OWN, lw=0.8, alpha=0.8, label="softmax attention, one line a seed" if i == 0 else None
        )
    ax.axhline(linear, color=DOMINANT, ls="--", label="floor of linear attention")
    ax.axhline(softmax, color=THEORY, ls=":", label="floor of softmax attention")
    ax.set(xlabel="step", ylabel="batch loss")
    ax.legend(frameon=False, fontsize=8)
    return fig


def losses(curves: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Batch losses by name, smoothed over 20 steps."""
    fig, ax = _new(6)
    for name, values in curves.items():
        width = min(20, len(values))
        ax.semilogy(np.convolve(values, np.ones(width) / width, "valid"), label=name)
    ax.set(xlabel="step", ylabel="batch loss, mean of 20 steps", title=title)
    ax.legend(frameon=False, fontsize=8)
    return fig
