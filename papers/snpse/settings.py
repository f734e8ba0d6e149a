"""Checks between the settings of the parts that are to run; what a setting may be by itself stands beside it in the YAML."""

from __future__ import annotations

from typing import Any

from common.errors import UserError


def check(cfg: Any) -> None:
    """Raise UserError for values that do not go together, before any part has run."""
    for name in ("rounds", "corrections", "valid", "pyloric"):
        part = cfg[name]
        if name in cfg.parts and part.budget < 2 * part.rounds:
            raise UserError(f"{name}.budget is {part.budget} and {name}.rounds {part.rounds}: give at least 2 a round")
    if "benchmark" in cfg.parts and min(cfg.benchmark.budgets) < 2 * cfg.benchmark.rounds:
        raise UserError(
            f"benchmark.budgets has {min(cfg.benchmark.budgets)} for {cfg.benchmark.rounds} rounds: give at least 2 a round"
        )
    training = cfg.training
    if training.sigma_max is not None and not training.sigma_min < training.sigma_max:
        raise UserError(
            f"training.sigma_min is {training.sigma_min} and sigma_max {training.sigma_max}: they must rise"
        )
    if not training.beta_min < training.beta_max:
        raise UserError(f"training.beta_min is {training.beta_min} and beta_max {training.beta_max}: they must rise")
    if "moons" in cfg.parts and len(cfg.moons.budgets) < 2:
        raise UserError(f"moons.budgets is {list(cfg.moons.budgets)}: a gain needs two")
