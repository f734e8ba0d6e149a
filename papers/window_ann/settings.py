"""Whether a config makes sense, said before anything is built."""

from __future__ import annotations

import math
from typing import Any

from common.configs import at_least
from common.errors import UserError


def check(cfg: Any) -> None:
    """Raise UserError for values that no part can use."""
    at_least(cfg, {
        "seeds": 0, "data.n": 2, "data.d": 1, "data.queries": 1, "index.R": 1, "index.L": 1, "search.k": 1, "search.beams": 1,
        "search.multiplies": 1, "search.targets": 0, "search.fractions": -math.inf, "adversarial.clusters": 2, "adversarial.size": 1,
        "adversarial.d": 1, "adversarial.beam": 1, "adversarial.alphas": 1, "branching.betas": 2, "branching.fractions": -math.inf,
    })  # fmt: skip
    if any(p > 0 for p in cfg.search.fractions):
        raise UserError(
            f"search.fractions are {list(cfg.search.fractions)}: they are powers of two of the share, give 0 or less"
        )
    if not 0 < cfg.search.level < 1 or any(not 0 < t < 1 for t in cfg.search.targets):
        raise UserError("search.level and search.targets are recalls: give values between 0 and 1")
    pairs = cfg.adversarial.clusters * (cfg.adversarial.clusters - 1)
    if not 1 <= (pairs if cfg.adversarial.queries is None else cfg.adversarial.queries) <= pairs:
        raise UserError(
            f"adversarial.queries is {cfg.adversarial.queries}: give 1 to {pairs}, the ordered pairs of its {cfg.adversarial.clusters} clusters"
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
    if "curves" in cfg.parts and smallest < cfg.search.k:
        raise UserError(
            f"the smallest window, 2^{min(cfg.search.fractions)} of {cfg.data.n} points, holds less than k = {cfg.search.k}: leave it out, or raise data.n"
        )
