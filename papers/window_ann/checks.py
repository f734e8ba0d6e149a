"""What can be said before anything is built: whether the config makes sense, and what the run will need."""

from __future__ import annotations

from typing import Any

from common.configs import known
from common.errors import UserError
from common.run import Run

STUDIES = ("curves", "adversarial", "structure", "branching")
SECONDS_A_POINT = (
    60e-6  # to insert one point into one graph on one core: measured at R = 24, L = 48, d = 96, n = 200,000
)


def config(cfg: Any) -> None:
    """Raise UserError for values that no study can use."""
    for name in cfg.studies:
        if name not in STUDIES:
            raise UserError(f"unknown study {name!r}: {known('the studies are', name, STUDIES)}")
    if not cfg.studies or not cfg.seeds or not cfg.search.fractions or not cfg.search.beams:
        raise UserError(
            "studies, seeds, search.fractions and search.beams must not be empty: give at least one of each"
        )
    if any(p > 0 for p in cfg.search.fractions):
        raise UserError(
            f"search.fractions are {list(cfg.search.fractions)}: they are powers of two of the share, give 0 or less"
        )
    if cfg.search.k < 1:
        raise UserError(f"search.k is {cfg.search.k}: give at least 1")
    if not 0 < cfg.search.level < 1 or any(not 0 < t < 1 for t in cfg.search.targets):
        raise UserError("search.level and search.targets are recalls: give values between 0 and 1")
    if cfg.data.queries < 1 or cfg.data.n < 2:
        raise UserError(
            f"data.queries is {cfg.data.queries} and data.n {cfg.data.n}: give at least 1 query and 2 points"
        )
    pairs = cfg.adversarial.clusters * (cfg.adversarial.clusters - 1)
    if (
        min(cfg.adversarial.size, cfg.adversarial.d) < 1
        or not 1 <= (pairs if cfg.adversarial.queries is None else cfg.adversarial.queries) <= pairs
    ):
        raise UserError(
            f"adversarial.queries is {cfg.adversarial.queries}: give 1 to {pairs}, the ordered pairs of its {cfg.adversarial.clusters} clusters"
        )
    if not cfg.adversarial.alphas or not cfg.branching.betas or not cfg.branching.fractions:
        raise UserError(
            "adversarial.alphas, branching.betas and branching.fractions must not be empty: give at least one of each"
        )
    if (
        not cfg.structure.n > cfg.structure.cutoff >= cfg.structure.beta >= 2
        or not 0 < cfg.structure.shift < 1
        or not cfg.structure.blowup > 1
    ):
        raise UserError(
            "structure needs n > cutoff >= beta >= 2, a shift between 0 and 1 and a blowup above 1: see the defaults"
        )
    smallest = cfg.data.n * 2.0 ** min(cfg.search.fractions)
    if "curves" in cfg.studies and smallest < cfg.search.k:
        raise UserError(
            f"the smallest window, 2^{min(cfg.search.fractions)} of {cfg.data.n} points, holds less than k = {cfg.search.k}: leave it out, or raise data.n"
        )


def estimate(cfg: Any, run: Run) -> dict[str, float]:
    """Memory and build hours of the run's index, from the structure alone."""
    from papers.window_ann.overlap import OverlappingRows
    from papers.window_ann.tree import Tree

    large = "adversarial" in cfg.studies and "curves" not in cfg.studies
    n, d = (cfg.adversarial.clusters * cfg.adversarial.size, cfg.adversarial.d) if large else (cfg.data.n, cfg.data.d)
    tree = Tree(n, cfg.index.beta, cfg.index.cutoff)
    overlap = OverlappingRows(n, cfg.index.overlap, cfg.index.cutoff, cfg.index.shift)
    stored = n * tree.rows + overlap.stored - n  # the root is shared
    memory = (n * d + stored * cfg.index.R) * 4 / 1e9
    hours = stored * SECONDS_A_POINT * (cfg.index.L / 48) * (cfg.index.R / 24) * max(d / 96, 0.5) / run.threads / 3600
    run.note(f"estimate for n = {n:,}, d = {d}: {tree.rows} tree rows, {overlap.rows} overlapping rows; build time scaled from {SECONDS_A_POINT * 1e6:.0f} "
             f"microseconds a point and graph at R = 24, L = 48, d = 96, over {run.threads} threads")  # fmt: skip
    return {"params": stored * cfg.index.R, "memory_gb": memory, "hours": hours}
