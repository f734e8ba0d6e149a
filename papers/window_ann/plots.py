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
from matplotlib.ticker import NullFormatter

from common.files import write_atomic
from common.run import Run
from papers.window_ann.metrics import pareto
from papers.window_ann.plans import METHODS, OURS, SCAN, Options
from papers.window_ann.segment import Segment, Shape

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
    figure, axis = plt.subplots(figsize=(7.5, 4), layout="constrained")
    shares = [2.0 ** int(row["window"][2:]) for row in table]
    for method in STYLE:
        _line(axis, method, shares, [row[method] for row in table])
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("share of the points inside the window")
    axis.set_ylabel(f"distances a query, recall@10 at least {level}")
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def decades(axis: Any, lowest: float) -> None:
    """Whole decades up the side, recall from `lowest` to 1 along the bottom."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.set_ylim(10 ** np.floor(np.log10(low)), 10 ** np.ceil(np.log10(high)))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlim(lowest - 0.005, 1.005)


def curves(rows: Sequence[Mapping[str, Any]], lowest: float = 0.85) -> Figure:
    """Recall against distances at up to six window sizes; each line is a method's best settings."""
    every = sorted({row["p"] for row in rows}, reverse=True)
    shown = [p for p in every if p >= -6][:6]
    wide = min(3, len(shown))
    figure, axes = plt.subplots(
        -(-len(shown) // wide),
        wide,
        figsize=(3.3 * wide, 2.7 * -(-len(shown) // wide)),
        squeeze=False,
        layout="constrained",
    )
    for axis, p in zip(axes.flat, shown, strict=False):
        for method in STYLE:
            points = [(row["recall"], -row["distances"]) for row in rows if row["p"] == p and row["method"] == method]
            front = [(r, -d) for r, d in pareto(points) if r >= lowest]
            if front:
                _line(axis, method, *zip(*front, strict=True))
        decades(axis, lowest)
        axis.set_title(f"windows of $2^{{{p}}}$ of the points", fontsize=9)
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    figure.supxlabel("recall@10", fontsize=9)
    figure.supylabel("distances a query (lower is better)", fontsize=9)
    _legend(figure, axes)
    return figure


RACERS = {"planner (ours)": (("planner",), "black", "-"),
          "the paper's methods": (OURS, "C3", "-"),
          "prefilter": (("prefilter", "prefilter, BLAS", "faiss flat, range selector"), "0.45", "--"),
          "postfilter, one Vamana": (("postfilter", "incremental postfilter"), "0.45", ":"),
          "faiss HNSW or IVF, range selector": (("faiss HNSW, range selector", "faiss IVF, range selector"), "C0", "-."),
          "hnswlib, filter or postfilter": (("hnswlib, filter", "hnswlib, postfilter"), "C2", "-."),
          "usearch, postfilter": (("usearch, postfilter",), "C1", "-.")}  # fmt: skip


def raced(sets: Mapping[str, tuple[Sequence[Mapping[str, Any]], Sequence[str]]], lowest: float = 0.8) -> Figure:
    """Recall against queries a second: a row a set (its curves, the windows to show); a line is the front of its contenders' settings."""
    wide = max(len(windows) for _, windows in sets.values())
    figure, axes = plt.subplots(
        len(sets), wide, figsize=(3.3 * wide, 2.8 * len(sets)), squeeze=False, layout="constrained"
    )
    for row, (name, (lines, windows)) in zip(axes, sets.items(), strict=True):
        for axis, window in zip(row, windows, strict=True):
            mine = [line for line in lines if line["window"] == window]
            for label, (names, color, style) in RACERS.items():
                points = [
                    p
                    for line in mine
                    if line["contender"] in names
                    for p in zip(line["recall"], line["qps"], strict=True)
                ]
                front = [(r, q) for r, q in pareto(points) if r >= lowest]
                if front:
                    axis.plot(
                        *zip(*front, strict=True), color=color, linestyle=style, marker="o", markersize=3, label=label
                    )
            decades(axis, lowest)
            axis.set_title(f"{name}, windows of $2^{{{window[2:]}}}$", fontsize=9)
    figure.supxlabel("recall@10", fontsize=9)
    figure.supylabel("queries a second (higher is better)", fontsize=9)
    _legend(figure, axes)
    return figure


def fastest(sets: Mapping[str, Sequence[Mapping[str, Any]]], level: float) -> Figure:
    """Queries a second at the level by window size; a line is the fastest of its contenders."""
    figure, axes = plt.subplots(1, len(sets), figsize=(4.6 * len(sets), 3.6), squeeze=False, layout="constrained")
    for axis, (name, rows) in zip(axes.flat, sets.items(), strict=True):
        for label, (names, color, style) in RACERS.items():
            best: dict[str, float] = {}
            for row in rows:
                if row["contender"] in names:
                    best[row["window"]] = max(best.get(row["window"], 0.0), row["qps"])
            axis.plot(
                [2.0 ** int(w[2:]) for w in best],
                best.values(),
                color=color,
                linestyle=style,
                marker="o",
                markersize=3,
                label=label,
            )
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("share of the points inside the window")
        axis.set_title(name, fontsize=9)
    axes[0, 0].set_ylabel(f"queries a second, recall@10 at least {level}")
    _legend(figure, axes)
    return figure


def _legend(figure: Figure, axes: np.ndarray) -> None:
    """One legend for all panels."""
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4, fontsize=8)


def adversarial(table: Sequence[Mapping[str, Any]]) -> Figure:
    """Recall and cost of every method where the window is far from the query."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    names = [LABELS.get(row["method"], row["method"]) for row in table]
    colors = [STYLE.get(row["method"], ("0.7",))[0] for row in table]
    left.barh(names, [row["recall"] for row in table], color=colors)
    left.set_xlabel("recall@10")
    left.axvline(0.95, color="black", linewidth=0.8, linestyle=":")
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
    rng = np.random.default_rng(0)
    segment = Segment(
        rng.random((n, 2), np.float32), np.arange(n), np.arange(n), "rto", Shape(cutoff=n // 16), threads=1
    )
    s, e, rows = int(0.3 * n), int(0.69 * n), segment.tree.rows
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.7), sharey=True, layout="constrained")
    for axis, method in zip(axes, ("tree", "optimized_postfilter", "three_split", "super_postfilter"), strict=True):
        pieces, _, _ = segment.explain(s, e, 10, Options(METHODS.index(method), 10, 1, 100, 0.0, 0), None)
        searched = {
            tuple(buckets)
            for buckets in np.stack([segment.start, segment.end], 1)[
                [p[0] for p in pieces.tolist() if p[0] != SCAN]
            ].tolist()
        }
        for row in range(rows):
            if method == "super_postfilter":
                first = segment.overlap.first
                buckets = segment.overlap.buckets()[first[row] : first[row + 1]].tolist()
            else:
                border = segment.tree.row(row)
                buckets = np.stack([border[:-1], border[1:]], 1).tolist()
            for i, (start, end) in enumerate(buckets):
                lane, height = (
                    (0.42 * (i % 2), 0.36) if method == "super_postfilter" and row else (0.0, 0.78)
                )  # overlapping buckets in two lanes
                color = "C0" if (start, end) in searched else "white"
                axis.add_patch(
                    Rectangle(
                        (start, -row - lane - height),
                        end - start,
                        height,
                        facecolor=color,
                        edgecolor="0.5",
                        linewidth=0.7,
                    )
                )
        for node, lo, hi, _, _ in pieces.tolist():
            if node == SCAN:
                axis.add_patch(Rectangle((lo, -rows - 0.7), hi - lo, 0.5, facecolor="C1"))
        axis.axvspan(s, e, color="C2", alpha=0.2)
        axis.set_xlim(0, n)
        axis.set_ylim(-rows - 0.8, 0.2)
        axis.set_title(LABELS[method], fontsize=10)
        axis.set_yticks([])
        axis.set_xticks([s, e], ["lo", "hi"])
        axis.set_xlabel("points in label order", fontsize=8)
    figure.legend([Rectangle((0, 0), 1, 1, facecolor=c) for c in ("C0", "C1", "#c8e6c9")], ["graph searched", "scanned", "window"],
                  loc="outside lower center", ncols=3, fontsize=8)  # fmt: skip
    return figure
