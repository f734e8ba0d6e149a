"""The figures of the QuIP# chapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.colors import LogNorm
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from torch import Tensor
from torch.nn.functional import max_pool2d

from common.plots import LEVEL, NEUTRAL, OURS, RIVAL, SERIES, THEORY, Figure, axes

LABELS = {
    "fp": "unquantised",
    "rtn": "RTN",
    "gptq": "GPTQ",
    "quip": "QuIP",
    "quip_sharp": "QuIP#",
    "quip_sharp_rfft": "QuIP#, FFT",
    "quip_sharp_ft": "QuIP#, fine-tuned",
}
COLOURS = {"rtn": NEUTRAL, "gptq": LEVEL, "quip": RIVAL, "quip_sharp": OURS, "quip_sharp_ft": OURS}
CODEBOOKS = {"scalar2": "scalar, 1 dimension", "d4": "D4, 4 dimensions", "e8p": "E8P, 8 dimensions"}


def perplexity(rows: Sequence[Mapping[str, Any]], context: int) -> Figure:
    """Perplexity against stored bits per weight, a line a method; the unquantised model is the floor."""
    figure, axis = axes(width=6, height=4)
    for method in dict.fromkeys(row["method"] for row in rows if row["method"] != "fp"):
        points = sorted((row["bits_per_weight"], row["perplexity"]) for row in rows if row["method"] == method)
        marker = "*" if method.endswith("_ft") else "o"
        style = "--" if method.endswith("_ft") else "-"
        label, colour = LABELS.get(method, method), COLOURS.get(method)
        axis.plot(*zip(*points, strict=True), marker=marker, linestyle=style, color=colour, label=label)
    floor = next(row["perplexity"] for row in rows if row["method"] == "fp")
    axis.axhline(floor, color=THEORY, linestyle=":", label=LABELS["fp"])
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}")
    axis.set_xlabel("bits per weight of the quantised layers, everything stored included")
    axis.set_ylabel(f"perplexity per token at context {context}")
    axis.legend()
    return figure


def incoherence(W: Tensor, H: Tensor, W_tilde: Tensor, H_tilde: Tensor) -> Figure:
    """Size of the entries of a weight and its Hessian before and after the randomised Hadamard transform."""
    figure, grid = axes(2, 2, width=3.6, height=2.7)
    parts = [(("weight W", W), ("rotated, U W Vᵀ", W_tilde)), (("Hessian H", H), ("rotated, V H Vᵀ", H_tilde))]
    for row, pair, ylabel in zip(grid, parts, ("output", "input"), strict=True):
        images = []
        for axis, (title, matrix) in zip(row, pair, strict=True):
            relative = matrix.abs() / matrix.square().mean().sqrt()
            pooled = max_pool2d(relative[None].float(), min(8, *matrix.shape))[0]  # outliers survive the pooling
            extent = (0, matrix.shape[1], matrix.shape[0], 0)
            images.append(
                axis.imshow(pooled.numpy(), cmap="magma", norm=LogNorm(0.3, 30), extent=extent, aspect="auto")
            )
            axis.set_title(f"{title}: largest {relative.max():.0f} × rms", fontsize=10)
            axis.set(xlabel="input", ylabel=ylabel)
        figure.colorbar(
            images[-1], ax=row, label="largest |entry| / rms\nin each tile", ticks=[0.3, 1, 3, 10, 30], format="{x:g}"
        )
    return figure


def codebooks(rows: Sequence[Mapping[str, Any]], lloyd_max: float) -> Figure:
    """Error of the 2-bit codebooks on Gaussian weights against the scale that the weights are brought to."""
    figure, axis = axes(width=6, height=4)
    for colour, name in zip(SERIES, dict.fromkeys(row["codebook"] for row in rows), strict=False):
        points = [(row["scale"], row["mse"]) for row in rows if row["codebook"] == name]
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3, color=colour, label=CODEBOOKS.get(name, name))
    axis.axhline(lloyd_max, color=NEUTRAL, linestyle=":", label="Lloyd-Max, the best scalar quantiser")
    axis.axhline(4.0**-2, color=THEORY, linestyle="--", label="rate-distortion limit, any dimension")
    axis.set(xlabel="scale ρ: rms of the weights in grid units", ylabel="mean squared error per weight")
    axis.set(xlim=(0.5, 1.8), ylim=(0.05, 0.33))  # room for the legend above the curves
    axis.legend(loc="upper right")
    return figure


def tuning(histories: Mapping[int, Sequence[Mapping[str, Any]]]) -> Figure:
    """Loss against the original model's distribution by epoch of end-to-end fine-tuning; epoch 0 is before any step."""
    figure, axis = axes(width=6, height=4)
    for bits, rows in histories.items():
        axis.plot(
            [r["epoch"] for r in rows], [r["valid_loss"] for r in rows], marker="o", label=f"{bits} bits, validation"
        )
        later = [r for r in rows if r["train_loss"] is not None]
        axis.plot([r["epoch"] for r in later], [r["train_loss"] for r in later], marker=".", linestyle=":",
                  label=f"{bits} bits, training (mean of the epoch)")  # fmt: skip
    axis.set(xlabel="epoch", ylabel="cross-entropy against the original, nats")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend()
    return figure


def scaling(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Perplexity against all bits of the quantised layers, a line for each number of bits per weight."""
    figure, axis = axes(width=6, height=4)
    for bits in dict.fromkeys(row["bits"] for row in rows):
        points = sorted((row["kilobytes"], row["perplexity"]) for row in rows if row["bits"] == bits)
        label = "16 bits, unquantised" if bits == 16 else f"{bits} bits, QuIP#"
        axis.plot(*zip(*points, strict=True), marker="o", label=label)
    axis.set(xscale="log", yscale="log", xlabel="kilobytes of the quantised layers", ylabel="perplexity per token")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        side.set_major_formatter("{x:g}")
        side.set_minor_formatter(NullFormatter())
    axis.legend()
    return figure
