"""The figures of the QuIP# chapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

LABELS = {"fp": "unquantised", "rtn": "RTN", "gptq": "GPTQ", "quip": "QuIP", "quip_sharp": "QuIP#", "quip_sharp_rfft": "QuIP# (FFT)"}


def perplexity(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Perplexity against stored bits per weight, a line a method; the unquantised model is the floor."""
    figure, axis = plt.subplots(figsize=(6, 4))
    for method in dict.fromkeys(row["method"] for row in rows if row["method"] != "fp"):
        points = sorted((row["bits_per_weight"], row["perplexity"]) for row in rows if row["method"] == method)
        axis.plot(*zip(*points, strict=True), marker="o", label=LABELS.get(method, method))
    floor = next(row["perplexity"] for row in rows if row["method"] == "fp")
    axis.axhline(floor, color="grey", linestyle=":", label=LABELS["fp"])
    axis.set_xlabel("bits per weight, everything stored included")
    axis.set_ylabel("perplexity per token (lower is better)")
    axis.legend()
    return figure
