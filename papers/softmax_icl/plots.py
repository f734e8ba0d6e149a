"""The figures. Each function returns a matplotlib figure; a run saves it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from common.plots import NEUTRAL as OTHERS
from common.plots import OURS as OWN
from common.plots import RIVAL as DOMINANT
from common.plots import THEORY, Figure, axes
from papers.softmax_icl.trajectory import Phase, Trajectory, phases

SHADES = ("#f3e9dc", "#e4eef2", "#eef2e4", "#f4f4f4")
ROMAN = ("I", "II", "III", "IV")


def phase_spans(found: Sequence[Phase]) -> list[tuple[str, float, float, str]]:
    """(label, start, end, colour) of the phases to be seen. One whose event never comes is shown as one with the next."""
    spans, open_since = [], None
    for i, phase in enumerate(found):
        if phase.end is None:
            open_since = i if open_since is None else open_since
            continue
        if phase.end > phase.start:
            label = ROMAN[i] if open_since is None else f"{ROMAN[open_since]}+{ROMAN[i]}"
            spans.append((label, phase.start, phase.end, SHADES[i]))
        open_since = None
    return spans


def _shade(ax: Axes, path: Trajectory, eps: float) -> None:
    """Colour the phases and number them above the axes."""
    for label, start, end, colour in phase_spans(phases(path, eps)):
        ax.axvspan(start, end, color=colour, zorder=0)
        ax.text((start + end) / 2, 1.01, label, transform=ax.get_xaxis_transform(), ha="center", va="bottom")


def balanced(limit: Trajectory, finite: Trajectory, eps: float) -> Figure:
    """A_k, B_{k,n} and the loss for balanced features."""
    fig, (left, right) = axes(2, height=3.6)
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
    left.legend(loc=(0.55, 0.2))
    right.legend()
    return fig


def imbalanced(rare: Trajectory, dominant: Trajectory, theory: Trajectory, eps: float) -> Figure:
    """The picture of the paper: a rare query un-learns the dominant feature, then learns its own."""
    fig, panels = axes(3, width=4, height=3.6)
    scores, speeds, loss = panels
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
    scores.text(1.01, log_K, "ln K", transform=scores.get_yaxis_transform(), va="center")
    scores.set(ylabel="bilinear weight of a rare query")
    speeds.semilogy(rare.t, rare.alpha, color=OWN, label=r"$\alpha_k$")
    speeds.semilogy(rare.t, np.abs(rare.beta1), color=DOMINANT, label=r"$|\beta_{k,1}|$")
    speeds.set(ylabel="velocity")
    loss.semilogy(rare.t, rare.loss, color=OWN, label="rare queries")
    loss.semilogy(dominant.t, dominant.loss, color=DOMINANT, label="dominant query")
    loss.axhline(eps, color=THEORY, lw=0.8, ls="--")
    loss.text(rare.t[-1], eps, f"{eps:g}", ha="right", va="bottom")
    loss.set(ylabel="loss $L_k$")
    for ax in panels:
        ax.set(xlabel="time t = learning rate x steps", xlim=(0, rare.t[-1] or 1))
        ax.xaxis.set_major_locator(MaxNLocator(4))
        _shade(ax, rare, eps)
        ax.legend(fontsize=8, handlelength=1.4)
    return fig


def attention_maps(maps: Sequence[tuple[str, NDArray]]) -> Figure:
    """E[Attn_n] for each query k at some moments: columns are queries, and sum to one."""
    fig, panels = axes(len(maps), width=3.2, height=3.6, squeeze=False)
    for ax, (title, attn) in zip(panels[0], maps, strict=True):
        image = ax.imshow(
            attn,
            norm=PowerNorm(0.5, 0, 1),  # so that what is small is seen too
            cmap="magma",
            interpolation="nearest",
            extent=(0.5, len(attn) + 0.5, len(attn) + 0.5, 0.5),
        )
        ax.set(title=title, xlabel="query feature k")
    panels[0][0].set(ylabel="key feature n")
    fig.colorbar(image, ax=panels[0].tolist(), label="attention on feature n", shrink=0.8)
    return fig


def scaling(rows: Sequence[Mapping[str, Any]], dominant: Mapping[int, float], p1: float) -> Figure:
    """Learning times against K, and where the switch comes."""
    fig, (left, right) = axes(2, height=3.6)
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
        ax.legend()
    return fig


def token_losses(curves: Sequence[Sequence[float]], population: NDArray | None, floors: Mapping[str, float]) -> Figure:
    """Batch losses of the transformer, the population loss under the same descent, and the floors of linear and softmax attention."""
    fig, ax = axes(width=5.5, height=3.6)
    for i, losses in enumerate(curves):
        ax.semilogy(losses, color=OWN, lw=0.6, alpha=0.6, label=None if i else "SGD on real prompts, one line a seed")
    if population is not None:
        ax.semilogy(population, color=THEORY, lw=1.2, label="gradient descent on the population loss")
    for (name, floor), (colour, style) in zip(floors.items(), ((DOMINANT, "--"), (THEORY, ":")), strict=False):
        ax.axhline(floor, color=colour, ls=style, label=f"floor of {name} attention")
    ax.set(xlabel="step", ylabel="loss")
    ax.legend()
    return fig


def losses(curves: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Batch losses by name, smoothed over 20 steps."""
    fig, ax = axes(width=6, height=3.6)
    for (name, values), style in zip(curves.items(), cycle(("-", "-.", ":", "--", "-")), strict=False):
        width = min(20, len(values))
        ax.semilogy(np.convolve(values, np.ones(width) / width, "valid"), style, label=name.replace("_", " "))
    ax.set(xlabel="step", ylabel="batch loss, mean of 20 steps", title=title)
    ax.legend()
    return fig


# ---- beyond the paper ------------------------------------------------------------------------------------------------


def spectrum(curves: Sequence[tuple[float, NDArray, NDArray, NDArray | None]], eps: float, N: int) -> Figure:
    """Learning time against frequency, one colour an exponent s."""
    fig, ax = axes(width=6, height=3.6)
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.85, len(curves)))
    for (s, p, times, finite), colour in zip(curves, colours, strict=True):
        ax.loglog(p, times, "-" if s else "o", color=colour, label=f"s = {s:g}")
        if finite is not None:
            ax.loglog(p, finite, "o", ms=5, mfc="none", mew=0.8, color=colour)
    ax.loglog([], [], "o", ms=5, mfc="none", mew=0.8, color=THEORY, label=f"prompts of {N:,}")
    reference = np.array([1e-3, 1e-1])
    ax.loglog(reference, reference**-2.0, ":", color=THEORY, label="$p_k^{-2}$")
    ax.set(xlabel="frequency $p_k$ of the feature", ylabel=f"time to $L_k$ = {eps:g}")
    ax.legend()
    return fig


def phase_diagram(rows: Sequence[Mapping[str, Any]], thresholds: Mapping[int, float]) -> Figure:
    """Number of phases and depth of un-learning in (K, p_1)."""
    fig, (left, right) = axes(2, width=5, height=3.6)
    K, p1 = np.array([row["K"] for row in rows]), np.array([row["p1"] for row in rows])
    for n, colour in ((2, "#d9d9d9"), (3, "#8fb8c6"), (4, OWN)):
        chosen = np.array([row["phases"] == n for row in rows])
        left.loglog(K[chosen], p1[chosen], "s", ms=6, color=colour, label=f"{n} phases")
    points = right.scatter(K, p1, c=[row["B1_over_lnK"] for row in rows], marker="s", s=36, cmap="magma")
    fig.colorbar(points, ax=right, label="$B_{k,1} / \\ln K$ at the switch")
    edge = np.geomspace(K.min(), K.max(), 50)
    for ax in (left, right):
        ax.plot(
            list(thresholds),
            list(thresholds.values()),
            color=DOMINANT,
            label="$p_1 = K^{-1/2}$",
        )
        ax.plot(edge, 1 / edge, ":", color=THEORY, label="$p_1 = 1/K$")
        ax.set(xlabel="features K", ylabel="frequency $p_1$ of the dominant feature", xscale="log", yscale="log")
    left.legend(frameon=True, loc="lower left")
    return fig


def finite_n(rows: Sequence[Mapping[str, Any]], theory: Trajectory, asymptote: float, eps: float) -> Figure:
    """The switch and the final loss against prompt length."""
    fig, (left, right) = axes(2, height=3.6)
    N = [row["N"] for row in rows]
    switch = phases(theory, eps)[0].end
    left.semilogx(N, [row["t_switch"] for row in rows], "o-", color=DOMINANT, label="gradient descent")
    assert switch is not None
    left.axhline(switch, color=THEORY, ls="--", label="flow, N infinite")
    left.axhline(asymptote, color=THEORY, ls=":", label="asymptote, K infinite")
    left.set(xlabel="examples N in a prompt", ylabel="time of the switch", ylim=(0, None))
    right.loglog(N, [row["loss_end"] for row in rows], "o-", color=OWN, label="loss of rare queries at the end")
    right.loglog(N, [row["floor"] for row in rows], ":", color=THEORY, label="lower bound: the feature may be absent")
    right.set(xlabel="examples N in a prompt", ylabel="loss", ylim=(1e-6, 1))
    for ax in (left, right):
        ax.legend()
    return fig


def optimisers(curves: Mapping[str, NDArray], eps: float) -> Figure:
    """Losses of dominant (dashed) and rare (solid) queries, one panel an optimiser."""
    fig, panels = axes(math.ceil(len(curves) / 2), 2, width=3.4, height=2.5, sharey=True)
    for ax, (name, losses) in zip(panels.T.flat, curves.items(), strict=False):
        steps = np.arange(1, len(losses) + 1)
        ax.loglog(steps, losses[:, 1], color=OWN, label="rare queries")
        ax.loglog(steps, losses[:, 0], color=DOMINANT, ls="--", label="dominant query")
        ax.axhline(eps, color=THEORY, lw=0.8, ls=":")
        ax.set(title=name, ylim=(eps / 10, 1))
    for ax in panels[-1]:
        ax.set(xlabel="step")
    for ax in panels[:, 0]:
        ax.set(ylabel="loss $L_k$")
    panels[0, 0].legend()
    return fig


def race(times: Sequence[Mapping[str, Any]], floors: Sequence[Mapping[str, Any]], K: int) -> Figure:
    """Softmax against linear attention: time to a loss above the floor, and the floor."""
    fig, (left, right) = axes(2, width=5, height=3.6)
    for eps, style in zip(sorted({row["eps"] for row in times}), ("-", "--", "-.", ":"), strict=False):
        rows = [row for row in times if row["eps"] == eps]
        for name, colour in (("softmax", OWN), ("linear", DOMINANT)):
            left.loglog(
                [row["K"] for row in rows],
                [row[f"{name}_theory"] for row in rows],
                style,
                color=colour,
                label=f"{name}, eps = {eps:g}",
            )
            left.loglog([row["K"] for row in rows], [row[name] for row in rows], "o", ms=4, color=colour)
    left.loglog([], [], "o", color=THEORY, ms=4, label="gradient descent")
    left.set(xlabel="features K", ylabel="time to eps above the floor")
    left.set_xticks(
        sorted({row["K"] for row in times}), [str(K) for K in sorted({row["K"] for row in times})], minor=False
    )
    left.minorticks_off()
    N = [row["N"] for row in floors]
    right.semilogy(
        N, [row["softmax_theory"] for row in floors], color=OWN, label="softmax, $Q = \\beta I$, $\\beta \\to \\infty$"
    )
    right.semilogy(N, [row["softmax"] for row in floors], "o", ms=4, color=OWN, label="the same, measured")
    right.semilogy(N, [row["bound"] for row in floors], ":", color=THEORY, label="no softmax attention is below")
    right.semilogy(N, [row["linear"] for row in floors], color=DOMINANT, label="best linear attention")
    right.set(xlabel=f"examples N in a prompt, K = {K}", ylabel="loss")
    for ax in (left, right):
        ax.legend()
    return fig


def transformers(paths: Mapping[tuple[str, int], Mapping[str, Any]], eps: float) -> Figure:
    """Losses above, effective bilinear weights of rare queries below: one column a variant, one line a seed."""
    variants = list(dict.fromkeys(name for name, _ in paths))
    fig, panels = axes(len(variants), 2, width=1.55, height=2.05, sharex=True, sharey="row", squeeze=False)
    for (upper, lower), variant in zip(panels.T, variants, strict=True):
        for i, path in enumerate(path for (name, _), path in paths.items() if name == variant):
            steps = path["steps"] + 1
            for ax, key, colour, label in (
                (upper, "rare", OWN, "rare queries"),
                (upper, "dominant", DOMINANT, "dominant query"),
                (lower, "A", OWN, "$A_k$"),
                (lower, "B1", DOMINANT, "$B_{k,1}$"),
            ):
                ax.plot(steps, path[key], color=colour, lw=0.8, label=None if i else label)
        upper.set(xscale="log", yscale="log")
        upper.axhline(eps, color=THEORY, lw=0.8, ls=":")
        upper.set_title(variant.replace("_", " "), fontsize=9)
        lower.set(xlabel="step")
    panels[0, 0].set(ylabel="loss $L_k$")
    panels[1, 0].set(ylabel="effective weight")
    panels[0, 0].legend(fontsize=8, loc="lower left")
    panels[1, 0].legend(fontsize=8, loc="upper left")
    return fig


def finite_tasks(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Loss on old and on new tasks against the number of tasks, one panel a model: each seed, and a line through the medians."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    fig, panels = axes(len(models), height=3.6, squeeze=False, sharey=True)
    for ax, model in zip(panels[0], models, strict=True):
        own = [row for row in rows if row["model"] == model]
        tasks = list(dict.fromkeys(row["tasks"] for row in own))
        for key, colour, label in (
            ("loss_new_tasks", DOMINANT, "new tasks"),
            ("loss_old_tasks", OWN, "tasks of the training"),
        ):
            values = [[row[key] for row in own if row["tasks"] == M] for M in tasks]
            ax.semilogy([np.median(found) for found in values], color=colour, label=label)
            for i, found in enumerate(values):
                ax.semilogy([i] * len(found), found, "o", ms=4, mfc="none", color=colour)
        ax.set(title=model, xlabel="tasks M in training")
        ax.set_xticks(range(len(tasks)), [str(M) for M in tasks])
    panels[0][0].set(ylabel="loss")
    panels[0][0].legend()
    return fig
