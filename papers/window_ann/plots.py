"""The figures of the chapter."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from common.files import write_atomic
from common.run import Run
from papers.window_ann.evaluate import pareto

LABELS = {"prefilter": "prefilter", "postfilter": "postfilter", "tree": "tree (WST)", "optimized_postfilter": "optimized postfilter",
          "three_split": "three-split", "super_postfilter": "super-postfilter", "auto": "planner"}  # fmt: skip
STYLE = {"prefilter": ("0.45", "--", "s"), "postfilter": ("0.45", ":", "v"), "tree": ("C0", "-", "o"), "optimized_postfilter": ("C1", "-", "o"),
         "three_split": ("C2", "-", "o"), "super_postfilter": ("C3", "-", "o"), "auto": ("black", "-", "*")}  # fmt: skip


def write_rows(run: Run, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """All settings that were tried, as <run>/<name>.csv: too many for a table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(run.dir / f"{name}.csv", text.getvalue())


def _line(axis, method: str, x, y) -> None:
    color, style, marker = STYLE[method]
    axis.plot(x, y, color=color, linestyle=style, marker=marker, markersize=4, label=LABELS[method])


def by_window(table: Sequence[Mapping[str, Any]], level: float) -> Figure:
    """Distances for each query at the level against the window's share of the points."""
    figure, axis = plt.subplots(figsize=(6.5, 4.2))
    shares = [2.0 ** int(row["window"][2:]) for row in table]
    for method in STYLE:
        _line(axis, method, shares, [row[method] for row in table])
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("share of the points inside the window")
    axis.set_ylabel(f"distances a query, recall@10 at least {level}")
    axis.legend(fontsize=8)
    return figure


def curves(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Recall against distances at up to six window sizes; each line is a method's best settings."""
    every = sorted({row["p"] for row in rows}, reverse=True)
    shown = [every[i] for i in np.unique(np.linspace(0, len(every) - 1, min(6, len(every))).astype(int))]
    figure, axes = plt.subplots(
        -(-len(shown) // 3),
        min(3, len(shown)),
        figsize=(3.4 * min(3, len(shown)), 2.9 * -(-len(shown) // 3)),
        squeeze=False,
        layout="constrained",
    )
    for axis, p in zip(axes.flat, shown, strict=False):
        for method in STYLE:
            points = [(row["recall"], -row["distances"]) for row in rows if row["p"] == p and row["method"] == method]
            front = [(r, -d) for r, d in pareto(points) if r >= 0.7]
            if front:
                _line(axis, method, *zip(*front, strict=True))
        axis.set_yscale("log")
        axis.set_xlim(0.69, 1.01)
        axis.set_title(f"windows of $2^{{{p}}}$", fontsize=9)
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    figure.supxlabel("recall@10", fontsize=9)
    figure.supylabel("distances a query (lower is better)", fontsize=9)
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def adversarial(table: Sequence[Mapping[str, Any]]) -> Figure:
    """Recall and cost of every method where the window is far from the query."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    names = [LABELS.get(row["method"], row["method"]) for row in table]
    colors = [STYLE.get(row["method"], ("0.7",))[0] for row in table]
    left.barh(names, [row["recall"] for row in table], color=colors)
    left.set_xlabel("recall@10")
    right.barh(names, [row["distances"] for row in table], color=colors)
    right.set_xlabel("distances a query")
    right.set_xscale("log")
    left.invert_yaxis()
    return figure


def blowup(widest: Sequence[float], bound: float, n: int, sure: int) -> Figure:
    """The largest blowup of the windows of each width, and the bound that holds above the bottom row's width."""
    figure, axis = plt.subplots(figsize=(6, 3.6))
    width = np.arange(1, n + 1)
    axis.plot(width, widest[1:], linewidth=1.2, label="largest blowup, all windows of this width")
    axis.axhline(bound, color="0.4", linestyle="--", label=r"$\beta / (1 - \sigma)$")
    axis.axvline(sure, color="0.7", linestyle=":", label="below: always in a bottom bucket, scanned")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xlabel("window width (points)")
    axis.set_ylabel("bucket size / window width")
    axis.legend(fontsize=8)
    return figure


def branching(table: Sequence[Mapping[str, Any]]) -> Figure:
    """Edges stored and distances a query, by branching factor."""
    figure, axis = plt.subplots(figsize=(5, 3.4))
    betas = [str(row["beta"]) for row in table]
    axis.plot(betas, [row["edges"] / table[0]["edges"] for row in table], marker="o", label="edges stored")
    axis.plot(
        betas,
        [row["distances"] / table[0]["distances"] for row in table],
        marker="s",
        label="distances a query, tree search",
    )
    axis.axhline(1, color="0.8", linewidth=0.8)
    axis.set_xlabel(r"branching factor $\beta$")
    axis.set_ylabel(r"relative to $\beta = 2$" if betas[0] == "2" else "relative to the first")
    axis.set_ylim(0)
    axis.legend()
    return figure


def methods(n: int) -> Figure:
    """One window, and what each method searches for it: the picture at the head of the chapter."""
    from papers.window_ann.overlap import OverlappingRows
    from papers.window_ann.plans import SCAN
    from papers.window_ann.segment import Segment

    rng = np.random.default_rng(0)
    segment = Segment(rng.random((n, 2), np.float32), np.arange(n), np.arange(n), parts="rto", beta=2, cutoff=max(2, n // 8), shift=0.5, overlap=2.0,
                      seed=0, threads=1, base="brute", options={})  # fmt: skip
    s, e = int(0.36 * n), int(0.83 * n)
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.6), sharey=True, layout="constrained")
    rows = OverlappingRows(n, 2.0, max(2, n // 8))
    from papers.window_ann.plans import METHODS, Options

    for axis, method in zip(axes, ("tree", "optimized_postfilter", "three_split", "super_postfilter"), strict=True):
        pieces, _, _ = segment.explain(s, e, Options(METHODS.index(method), 10, 1, 100, 0.0, 0), None)
        used = {node: (lo, hi) for node, lo, hi, _, _ in pieces.tolist() if node != SCAN}
        buckets = rows.buckets() if method == "super_postfilter" else segment.tree.buckets()
        shifted = len(segment.tree.buckets()) if method == "super_postfilter" else 0
        heights = (
            np.repeat(np.arange(rows.rows), rows.count)
            if shifted
            else np.concatenate([np.full(len(segment.tree.row(r)) - 1, r) for r in range(segment.tree.rows)])
        )
        for i, ((start, end), row) in enumerate(zip(buckets, heights, strict=True)):
            lift = 0.4 * (i - rows.first[row]) % 0.8 if shifted else 0.0
            high = 0.36 if shifted and row else 0.76
            picked = i + shifted in used
            axis.add_patch(
                Rectangle(
                    (start, -row - lift),
                    end - start,
                    high,
                    facecolor="C0" if picked else "white",
                    edgecolor="0.5",
                    linewidth=0.7,
                    alpha=0.85,
                )
            )
        for node, lo, hi, _, _ in pieces.tolist():
            if node == SCAN:
                axis.add_patch(Rectangle((lo, -rows.rows - 0.1), hi - lo, 0.5, facecolor="C1", edgecolor="none"))
        axis.axvspan(s, e, color="C2", alpha=0.18)
        axis.set_xlim(0, n)
        axis.set_ylim(-rows.rows - 0.3, 1)
        axis.set_title(LABELS[method], fontsize=10)
        axis.set_yticks([])
        axis.set_xlabel("points in label order", fontsize=8)
        axis.set_xticks([s, e], ["lo", "hi"])
    figure.supylabel("rows of nodes", fontsize=8)
    return figure
