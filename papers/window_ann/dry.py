"""What a run will need, without building anything."""

from __future__ import annotations

from typing import Any

from common.run import Run

# to insert one point into one graph on one core: measured at R = 24, L = 48, d = 96, n = 200,000
SECONDS_A_POINT = 24e-6


def estimate(cfg: Any, run: Run) -> None:
    """Memory and build hours of the run's index, from the structure alone."""
    from papers.window_ann.overlap import OverlappingRows
    from papers.window_ann.tree import Tree

    large = "adversarial" in cfg.parts and "curves" not in cfg.parts
    n, d = (cfg.adversarial.clusters * cfg.adversarial.size, cfg.adversarial.d) if large else (cfg.data.n, cfg.data.d)
    tree = Tree(n, cfg.index.beta, cfg.index.cutoff)
    overlap = OverlappingRows(n, cfg.index.overlap, cfg.index.cutoff, cfg.index.shift)
    stored = n * tree.rows + overlap.stored - n  # the root is shared
    memory = (n * d + stored * cfg.index.R) * 4 / 1e9
    hours = stored * SECONDS_A_POINT * (cfg.index.L / 48) * (cfg.index.R / 24) * max(d / 96, 0.5) / run.threads / 3600
    run.note(f"estimate for n = {n:,}, d = {d}: {tree.rows} tree rows, {overlap.rows} overlapping rows; build time scaled from {SECONDS_A_POINT * 1e6:.0f} "
             f"microseconds a point and graph at R = 24, L = 48, d = 96, over {run.threads} threads")  # fmt: skip
    run.log({"params": stored * cfg.index.R, "memory_gb": memory, "hours": hours})
