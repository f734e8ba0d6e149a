"""Checks between the settings of the parts that are to run; what a setting may be by itself stands beside it in the YAML."""

from __future__ import annotations

from typing import Any

from common.errors import UserError


def check(cfg: Any) -> None:
    """Raise UserError for values that do not go together."""
    if "race" in cfg.parts:
        least = min(cfg.race.K)
        if len(cfg.race.K) < 2:
            raise UserError(f"race.K is {list(cfg.race.K)}: a slope needs two different values")
        if max(cfg.race.eps) >= (start := (least - 1) / (2 * least)):
            raise UserError(
                f"race.eps is {list(cfg.race.eps)}: at K = {least} the loss starts at {start:.3g}, give less"
            )
    part = cfg.phase_diagram
    if "phase_diagram" in cfg.parts and not part.p1_min < part.p1_max:
        raise UserError(f"phase_diagram.p1_min is {part.p1_min} and p1_max {part.p1_max}: they must rise")
    if "phase_diagram" in cfg.parts and not part.K_min < part.K_max:
        raise UserError(f"phase_diagram.K_min is {part.K_min} and K_max {part.K_max}: they must rise")
