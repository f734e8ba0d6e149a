"""What must hold between the settings of a config, said before anything is built."""

from __future__ import annotations

from typing import Any

from common.errors import UserError


def check(cfg: Any) -> None:
    """Raise UserError for values that do not go together."""
    pairs = cfg.adversarial.clusters * (cfg.adversarial.clusters - 1)
    if cfg.adversarial.queries is not None and cfg.adversarial.queries > pairs:
        raise UserError(
            f"adversarial.queries is {cfg.adversarial.queries}: its {cfg.adversarial.clusters} clusters "
            f"have {pairs} ordered pairs, give at most so many"
        )
    if cfg.index.cutoff < cfg.index.beta:
        raise UserError(
            f"index.cutoff is {cfg.index.cutoff}: give at least index.beta = {cfg.index.beta}, else leaves are empty"
        )
    if not cfg.structure.n > cfg.structure.cutoff >= cfg.structure.beta:
        raise UserError(
            f"structure needs n > cutoff >= beta and has {cfg.structure.n}, {cfg.structure.cutoff}, {cfg.structure.beta}"
        )
    smallest = min(cfg.search.fractions)
    if "curves" in cfg.parts and cfg.data.n * 2.0**smallest < cfg.search.k:
        raise UserError(
            f"the smallest window, 2^{smallest} of {cfg.data.n} points, holds less than k = {cfg.search.k}: "
            "leave it out of search.fractions, or raise data.n"
        )
    if "curves" in cfg.parts and cfg.search.level not in cfg.search.targets:
        raise UserError(
            f"search.level is {cfg.search.level}: name it among search.targets, so that the planner is asked for it"
        )
    if cfg.data.name == "npy" and not cfg.data.path:
        raise UserError("data.name=npy needs data.path=<folder> and data.prefix=<name of the set>")
