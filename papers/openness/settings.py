"""What must hold between the settings of a config, said before anything is read."""

from __future__ import annotations

from typing import Any

from common.errors import UserError, user_errors
from papers.openness import data, licences, report
from papers.openness.folders import day_of
from papers.openness.taxonomy import component


def check(cfg: Any) -> None:
    """Of `train`. Raises UserError for overlays that are not there."""
    known = {row["overlay"] for row in data.rows("overlays")}
    for name in cfg.overlays:
        if name not in known:
            raise UserError(f"overlays has {name!r}: choose {', '.join(sorted(known))}")


def check_classify(cfg: Any) -> None:
    """Of `classify`: components and licences that are named must be ones."""
    if cfg.path is None:
        raise UserError("path is missing: name a model folder, a folder of clones or a file, path=my_model")
    with user_errors():
        if cfg.component is not None:
            component(cfg.component)
        for name, licence in cfg.set.items():
            component(name)
            if not isinstance(licence, str):
                raise ValueError(f"set.{name} is {licence!r}: give a licence, none, api, closed, na or unknown")
            if licence not in WHAT_IF:
                licences.parse(licence)
        for name, level in cfg.require.items():
            component(name)
            if isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= 5:
                raise ValueError(f"require.{name} is {level!r}: give a level from 1 to 5")
        if cfg.as_of is not None:
            day_of(cfg.as_of)
    for name in cfg.formats:
        if name not in report.FORMS:
            raise UserError(f"formats has {name!r}: choose {', '.join(report.FORMS)}")


WHAT_IF = {
    "none": ("public", "none"),
    "api": ("api", None),
    "closed": ("none", None),
    "na": ("na", None),
    "unknown": ("unknown", None),
}
