"""Figures of the chapter: regret curves, bids of growing size, calibration, hidden states."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from common.plots import LEVEL, NEUTRAL, OURS, RIVAL, SERIES, Figure, axes
from papers.neg_ucb.replay import CLIP, running_base_rate

LABELS = {
    "random": "random",
    "eps_greedy": "ε-greedy (NegUCB's model)",
    "lin_ucb": "LinUCB",
    "lin_ts": "LinTS",
    "kernel_ucb": "KernelUCB",
    "hlin_ucb": "hLinUCB",
    "hlin_stale": "hLinUCB (stale)",
    "per_counterpart": "LinUCB per counterpart",
    "c2ucb": "C2UCB, adapted",
    "cucb": "CUCB, adapted",
    "neural_ucb": "NeuralUCB",
    "boulware": "boulware",
    "linear_concession": "linear concession",
    "conceder": "conceder",
    "tit_for_tat": "tit for tat",
    "frequency": "frequency model",
    "dqn": "DQN",
    "neg_ucb": "NegUCB",
    "neg_ts": "NegUCB, Thompson",
    "neg_additive": "NegUCB, additive",
    "neg_online": "NegUCB, chosen along the run",
    "lin_greedy": "ridge without a bonus",
    "oracle": "oracle",
}
STRONG = {
    "neg_ucb": OURS, "kernel_ucb": RIVAL, "hlin_ucb": SERIES[3], "lin_ucb": LEVEL, "random": NEUTRAL, "eps_greedy": SERIES[4],
}  # fmt: skip


def regret(curves: dict[str, np.ndarray], task: str) -> Figure:
    """Cumulative regret against rounds, mean over seeds with a 95 % band of the mean. curves: method -> (seeds, T)."""
    figure, (left, right) = axes(2, width=4.7, height=3.8, width_ratios=[1.6, 1])
    order = sorted((name for name in curves if name != "oracle"), key=lambda name: -curves[name][:, -1].mean())
    others = iter(plt.get_cmap("tab20b")(np.linspace(0, 1, max(len(order), 2))))
    for name in order:
        runs = curves[name]
        t = np.unique(np.linspace(0, runs.shape[1] - 1, 300).astype(int))
        mean, error = runs.mean(0)[t], 1.96 * runs.std(0, ddof=min(1, len(runs) - 1))[t] / np.sqrt(len(runs))
        colour = STRONG.get(name, next(others))
        left.plot(
            t + 1, mean, color=colour, lw=2 if name in STRONG else 1, label=f"{LABELS.get(name, name)} ({mean[-1]:.0f})"
        )
        left.fill_between(t + 1, mean - error, mean + error, color=colour, alpha=0.15, lw=0)
        if name in STRONG:
            right.loglog(t + 1, np.maximum(mean, 1e-2), color=colour, lw=1.5)
    low, top = right.get_ylim()
    T = max((runs.shape[1] for runs in curves.values()), default=10)
    right.loglog([T / 10, T], [2 * low, 20 * low], "k:", lw=1)  # a line's growth, below the curves
    right.annotate("slope 1", (T / 10, 2 * low), fontsize=8, ha="right")
    right.set_ylim(low, top)
    left.set(xlabel="round t", ylabel="cumulative regret", title=task.replace("_", " "))
    left.legend(fontsize=7)
    right.set(xlabel="round t (log)", ylabel="cumulative regret (log)", title="growth")
    return figure


def cardinality(rows: list[dict[str, Any]]) -> Figure:
    """Regret against the number of items, for whole-bid and item-summed bonuses."""
    figure, axis = axes(width=7, height=3.8)
    n = [row["items"] for row in rows]
    for name, label, style, colour in (
        ("one_hot", "one weight for each item", "^-", SERIES[4]), ("random", "random", ":", NEUTRAL), ("summed", "sum of item bonuses,\nsame α", "o-", RIVAL),
        ("summed_tuned", "sum of item bonuses,\nα tuned", "s-", LEVEL), ("averaged", "mean of item bonuses,\nsame α", "v-", SERIES[3]),
        ("whole", "one bonus for the bid\n(NegUCB)", "D-", OURS),
    ):  # fmt: skip
        if all(name in row for row in rows):
            axis.plot(n, [row[name] for row in rows], style, color=colour, label=label)
    axis.set(xscale="log", yscale="log", xlabel="items n", ylabel="regret", title="bids grow, the features do not")
    axis.set_xticks(n, [str(v) for v in n])
    axis.minorticks_off()
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def casino(curves: dict[str, dict[str, np.ndarray]]) -> Figure:
    """Left: cumulative gain in log-loss over the running base rate. Right: how often offers of a predicted q were accepted."""
    figure, (left, right) = axes(2, width=4.75, height=3.8)
    for (name, kept), colour in zip(curves.items(), SERIES * len(curves), strict=False):
        q, y = np.clip(kept["q"], CLIP, 1 - CLIP), kept["y"]
        base = running_base_rate(y)
        gain = np.log(np.where(y > 0.5, q, 1 - q)) - np.log(np.where(y > 0.5, base, 1 - base))
        left.plot(np.cumsum(gain), color=colour, label=name.replace("_", " "))
        edges = np.quantile(q, np.linspace(0, 1, 9))
        which = np.clip(np.searchsorted(edges, q, side="right") - 1, 0, 7)
        points = [(q[which == b].mean(), y[which == b].mean()) for b in range(8) if (which == b).any()]
        right.plot(*zip(*points, strict=True), "o-", ms=4, color=colour)
    left.axhline(0, color="k", lw=0.8)
    left.set(
        xlabel="offers seen", ylabel="nats gained on the running base rate", title="CaSiNo: predicted before learnt"
    )
    left.legend(fontsize=8)
    right.plot([0, 1], [0, 1], "k:")
    right.set(
        xlabel="predicted acceptance", ylabel="observed", title="calibration (eighths)", xlim=(0, 1.02), ylim=(0, 1.02)
    )
    return figure


def clusters(places: np.ndarray, types: np.ndarray) -> Figure:
    """Counterparts by what their hidden states add to the shared prediction, coloured by the kind they truly are."""
    figure, axis = axes(width=5, height=4)
    for kind, label, marker, colour in (
        (0, "wants part of everything", "o", OURS),
        (1, "wants things together", "s", RIVAL),
    ):
        axis.scatter(*places[types == kind].T, marker=marker, s=60, color=colour, label=label)
    axis.set(
        xlabel="first principal direction of what $W h_g$ adds",
        ylabel="second",
        title="counterparts, as their hidden states see them",
    )
    figure.legend(loc="outside lower center", ncols=2)
    return figure
