"""One look for every figure: colours by role, constrained layout, legends without frames."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

__all__ = ["LEVEL", "NEUTRAL", "OURS", "RIVAL", "SERIES", "THEORY", "Figure", "axes"]

OURS, RIVAL, NEUTRAL, THEORY = "#1f6f8b", "#c8553d", "#8a8d91", "black"
LEVEL = "#d9a441"  # thresholds, levels asked for
SERIES = (OURS, RIVAL, LEVEL, "#5b8c5a", "#7a5195", NEUTRAL)  # where several are equal

plt.rcParams.update({
    "legend.frameon": False, "legend.fontsize": 9, "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
    "figure.constrained_layout.use": True,
})  # fmt: skip


def axes(
    columns: int = 1, rows: int = 1, width: float = 4.6, height: float = 3.2, **subplots: Any
) -> tuple[Figure, Any]:
    """(figure, axis), or (figure, array of axes) for several: each `width` x `height` inches."""
    return plt.subplots(rows, columns, figsize=(width * columns, height * rows), **subplots)
