"""The figures: each from rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common import plots

Rows = Sequence[Mapping[str, Any]]


def methods(rows: Rows) -> plots.Figure:
    """Gain over plain cross-entropy by method, paired over worlds, with 95 % intervals."""
    shown = [row for row in rows if "over_ce" in row and row["method"] != "ce"]
    value = "over_ce" if shown else "accuracy"
    shown = sorted(shown or rows, key=lambda row: row[value])
    figure, axis = plots.axes(width=5.6, height=1.0 + 0.26 * len(shown))
    for i, row in enumerate(shown):
        ours = row["method"].split("_")[0] in ("joint", "marginal", "elbo", "feature")
        colour = plots.OURS if ours else plots.RIVAL
        reach = [[row[value] - row["low"]], [row["high"] - row[value]]] if "low" in row else None
        axis.errorbar(row[value], i, xerr=reach, fmt="o", color=colour, capsize=2)
    axis.set_yticks(range(len(shown)), [row["method"] for row in shown])
    axis.set_xlabel("accuracy over cross-entropy alone, points" if value == "over_ce" else "accuracy, %")
    if value == "over_ce":
        axis.axvline(0, color=plots.NEUTRAL, lw=1)
    return figure


def purity(curves: Mapping[str, Rows]) -> plots.Figure:
    """Mass of p_S(z|x) on instances of the own class, and gradient norms of the first method's terms."""
    figure, (left, right) = plots.axes(2)
    for colour, (name, points) in zip(plots.SERIES, curves.items(), strict=False):
        left.plot([p["step"] for p in points], [p["purity"] for p in points], color=colour, label=name)
    left.set_xlabel("step")
    left.set_ylabel("mass on the own class, test rows")
    left.legend()
    name, points = next(iter(curves.items()))
    for colour, key in zip(plots.SERIES, [k for k in points[0] if k.startswith("gradient.")], strict=False):
        right.plot(
            [p["step"] for p in points], [p[key] for p in points], color=colour, label=key.removeprefix("gradient.")
        )
    right.set_xlabel("step")
    right.set_ylabel(f"gradient norm, {name}")
    right.legend()
    return figure


def tau_queue(by_tau: Rows, by_queue: Rows) -> plots.Figure:
    """Accuracy against tau and against the queue's length."""
    figure, (left, right) = plots.axes(2)
    for colour, key in zip(plots.SERIES, [key for key in by_tau[0] if key != "tau"], strict=False):
        left.semilogx([row["tau"] for row in by_tau], [row[key] for row in by_tau], "o-", color=colour, label=key)
    left.set_xlabel("tau")
    left.set_ylabel("accuracy, %")
    left.legend()
    right.semilogx([row["queue"] for row in by_queue], [row["accuracy"] for row in by_queue], "o-", color=plots.OURS)
    right.set_xlabel("queue length L")
    right.set_ylabel("accuracy, %")
    return figure


def capacity(rows: Rows, names: Sequence[str]) -> plots.Figure:
    """Student accuracy as the teacher grows."""
    figure, axis = plots.axes()
    for colour, name in zip(plots.SERIES, names, strict=False):
        axis.semilogx([row["factor"] for row in rows], [row[name] for row in rows], "o-", color=colour, label=name)
    axis.set_xticks([row["factor"] for row in rows], [f"x{row['factor']}" for row in rows])
    axis.set_xlabel("teacher width")
    axis.set_ylabel("student accuracy, %")
    axis.legend()
    return figure


def variants(rows: Rows) -> plots.Figure:
    """Each variant's gain over tuned KD on validation rows, with 95 % intervals."""
    shown = sorted(rows, key=lambda row: row["over_kd"])
    figure, axis = plots.axes(width=5.6, height=1.0 + 0.26 * len(shown))
    for i, row in enumerate(shown):
        reach = [[row["over_kd"] - row["low"]], [row["high"] - row["over_kd"]]] if row["low"] == row["low"] else None
        axis.errorbar(row["over_kd"], i, xerr=reach, fmt="o", color=plots.OURS, capsize=2)
    axis.axvline(0, color=plots.NEUTRAL, lw=1)
    axis.set_yticks(range(len(shown)), [row["variant"] for row in shown])
    axis.set_xlabel("accuracy over tuned KD, points (validation)")
    return figure
