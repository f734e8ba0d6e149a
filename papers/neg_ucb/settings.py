"""What must hold between the settings of a config, said before the first round is played."""

from __future__ import annotations

from typing import Any

from common.errors import UserError, choose
from papers.neg_ucb.kernel import CAP
from papers.neg_ucb.worlds import method_of, task_of


def check(cfg: Any) -> None:
    """Raise UserError for values that do not go together, before any part has run."""
    for name in cfg.tasks:
        task = task_of(cfg, name)
        for method in cfg.methods:
            entry = method_of(cfg, method, task)
            if entry.get("alpha", 0) < 0 or not 0 <= entry.get("epsilon", 0) <= 1:
                raise UserError(f"method {method}: alpha must be at least 0 and epsilon in [0, 1]")
            if entry["kind"] == "exact" and task["rounds"] > CAP:
                raise UserError(
                    f"method {method} holds at most {CAP:,} rounds, not {task['rounds']:,}: "
                    "leave it out of methods, or take kernel_ucb"
                )
    if "tune" in cfg.parts:
        _check_tuning(cfg)


def _check_tuning(cfg: Any) -> None:
    tuned = [method for method in cfg.methods if method in cfg.tune.settings]
    if not tuned:
        raise UserError(f"tune.settings names none of {', '.join(cfg.methods)}: there is nothing to tune")
    for method in tuned:
        for name in cfg.tune.settings[method]:
            choose(f"tune.settings.{method}", name, cfg.tune.space)
    if both := set(cfg.tune.seeds) & set(cfg.tune.final_seeds):
        raise UserError(f"tune.seeds and tune.final_seeds share {min(both)}: they are worlds of two rungs")
