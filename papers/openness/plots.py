"""The figures: each from profiles or rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common import plots
from papers.openness.profile import Profile
from papers.openness.taxonomy import COLOURS, IDS, short


def strips(profiles: Sequence[Profile]) -> plots.Figure:
    """The table: a row for each model, a cell for each component, coloured by level with the code printed in it."""
    figure, axis = plots.axes(width=9.5, height=0.21 * len(profiles) + 1.6)
    for row, p in enumerate(profiles):
        for column, rating in enumerate(p.ratings.values()):
            colour = COLOURS[str(rating.level) if rating.level else rating.code]
            axis.add_patch(_box(column, row, colour))
            text = {"N/A": "–", "Unknown": "?"}.get(rating.code, rating.code)
            axis.text(column + 0.5, row + 0.52, text, ha="center", va="center", color="white", fontsize=6.5)
    axis.set_xlim(0, len(IDS))
    axis.set_ylim(len(profiles), 0)
    axis.set_xticks(
        [column + 0.5 for column in range(len(IDS))], [short(name) for name in IDS], rotation=40, ha="left", fontsize=7
    )
    axis.xaxis.tick_top()
    axis.set_yticks(
        [row + 0.5 for row in range(len(profiles))],
        [f"{p.title} ({(p.release or '')[:7]})" for p in profiles],
        fontsize=6.5,
    )
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)
    return figure


def _box(column: int, row: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column + 0.03, row + 0.06), 0.94, 0.88, color=colour, linewidth=0)


def gaps(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> plots.Figure:
    """Mean level of the weights less that of each other component, filled where the sign test is significant after Holm."""
    figure, axis = plots.axes(width=6.4, height=3.8)
    for place, (sample, colour) in enumerate(zip(rows, (plots.OURS, plots.RIVAL), strict=False)):
        for y, row in enumerate(rows[sample]):
            face = colour if row["p_holm"] < 0.05 else "white"
            axis.plot(
                row["mean_gap"],
                y + 0.22 * place,
                "o",
                color=colour,
                markerfacecolor=face,
                label=sample if y == 0 else None,
            )
    first = next(iter(rows.values()))
    axis.axvline(0, color=plots.NEUTRAL, linewidth=0.8)
    axis.set_yticks(range(len(first)), [f"{short(row['component'])} (n = {row['n']})" for row in first], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("levels by which the weights are more open (filled: significant)")
    axis.legend()
    return figure


def arena(pairs: Sequence[tuple[str, float, int | None, float]]) -> plots.Figure:
    """Score and level of weights against the Arena rating: two pictures of the same models."""
    figure, (left, right) = plots.axes(columns=2, width=4.6, height=3.4, sharey=True)
    for name, score, weights, elo in pairs:
        colour = plots.OURS if (weights or 0) >= 3 else plots.RIVAL
        for axis, x in ((left, score), (right, weights)):
            axis.plot(x, elo, "o", color=colour, markersize=4)
            axis.annotate(name[:18], (x, elo), fontsize=5.5, xytext=(3, 2), textcoords="offset points")
    left.set_xlabel("openness score")
    right.set_xlabel("level of weights")
    left.set_ylabel("Arena rating, June 2024")
    return figure


def trend(rows: Sequence[Mapping[str, Any]]) -> plots.Figure:
    """Mean level by year of release: weights and inference code against training data and code."""
    figure, axis = plots.axes(width=5.2)
    chosen = (
        "deployment.data.weights",
        "deployment.code.inference",
        "training.data.pretraining",
        "training.code.pretraining",
    )
    for name, colour in zip(chosen, plots.SERIES, strict=False):
        axis.plot([row["year"] for row in rows], [row[name] for row in rows], "o-", color=colour, label=short(name))
    axis.set_ylabel("mean level")
    axis.set_xlabel("year of release")
    axis.set_ylim(0.8, 5.2)
    axis.legend()
    return figure


def licences(rows: Sequence[Mapping[str, Any]]) -> plots.Figure:
    """Labels whose printed level is not that of the criteria."""
    figure, axis = plots.axes(width=5.4, height=2.6)
    for y, row in enumerate(rows):
        axis.annotate(
            "", (row["printed"], y), (row["criteria"], y), arrowprops={"arrowstyle": "->", "color": plots.NEUTRAL}
        )
        axis.plot(row["criteria"], y, "o", color=plots.OURS, label="criteria" if y == 0 else None)
        axis.plot(row["printed"], y, "s", color=plots.RIVAL, label="printed" if y == 0 else None)
    axis.set_yticks(
        range(len(rows)), [f"{row['label']} ({row['cells']} cells, {row['rights']})" for row in rows], fontsize=8
    )
    axis.set_xlim(2.5, 5.5)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlabel("level")
    axis.legend(loc="lower left")
    return figure


def agreement(mof: Sequence[tuple[str, float, float, int]], index: Sequence[tuple[str, float, float]]) -> plots.Figure:
    """Our score against MOF's progress to class I, and against the total of the openness index."""
    figure, (left, right) = plots.axes(columns=2)
    left.plot([x for _, x, _, _ in mof], [y for _, _, y, _ in mof], "o", color=plots.OURS, alpha=0.6)
    left.set_ylabel("MOF progress to class I, %")
    right.plot([x for _, x, _ in index], [y for _, _, y in index], "o", color=plots.RIVAL)
    for name, x, y in index:
        right.annotate(name, (x, y), fontsize=6, xytext=(3, 2), textcoords="offset points")
    right.set_ylabel("openness index 2023, of 14")
    for axis in (left, right):
        axis.set_xlabel("openness score")
    return figure


def confusion(rows: Sequence[Mapping[str, Any]]) -> plots.Figure:
    """Readers of folders: how many levels each states, and how many of them the truth contradicts."""
    figure, axis = plots.axes(width=5.4, height=2.6)
    names = [row["reader"] for row in rows]
    axis.barh(names, [row["levels"] for row in rows], color=plots.NEUTRAL, label="levels stated")
    axis.barh(names, [row["contradicted"] for row in rows], color=plots.RIVAL, label="contradicted by the truth")
    axis.invert_yaxis()
    axis.set_xlabel("components of the synthetic folders")
    axis.legend()
    return figure


def risks(rows: Sequence[Mapping[str, Any]]) -> plots.Figure:
    """Claims by area and side, stacked by what they lean to."""
    figure, axis = plots.axes(width=6.4, height=4.2)
    names = [f"{row['area'].replace('_', ' ')}: {row['side']}" for row in rows]
    start = [0.0] * len(rows)
    for key, colour in (("open", plots.OURS), ("closed", plots.RIVAL), ("neutral", plots.NEUTRAL)):
        axis.barh(names, [row[key] for row in rows], left=start, color=colour, label=key)
        start = [a + row[key] for a, row in zip(start, rows, strict=True)]
    axis.invert_yaxis()
    axis.tick_params(axis="y", labelsize=7)
    axis.set_xlabel("claims")
    axis.legend()
    return figure
