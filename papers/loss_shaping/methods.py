"""From a config to levels and weightings: what `methods`, `level` and `groups` mean."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf

from common.errors import UserError, choose, user_errors
from papers.loss_shaping import baselines, constraints
from papers.loss_shaping.data import Dataset

NAMES = ("erm", "penalty", "reweight", "minimax", "hard", "resilient", "monotone", "smooth", "groups")
NEED_LEVELS = ("penalty", "hard", "resilient")
RULE = re.compile(r"(published_)?(train|val)_q(25|50|75)")


def check(cfg: Any) -> None:
    """Raise UserError for a config that no part can use, before anything is trained."""
    for name in (*cfg.methods, *cfg.shaping.methods):
        choose("method", name, NAMES)
    for key, rule in {"level": cfg.level, "control.level": cfg.control.level}.items():
        if rule not in ("linear", "exponential", "select") and not RULE.fullmatch(rule):
            raise UserError(
                f"{key} is {rule!r}: use train_q25, _q50, _q75 or val_q.. (of the ERM run), published_train_q.. or "
                f"published_val_q.. (of the paper's runs), linear, exponential, select, or give numbers with levels=[...]"
            )
    own_levels(cfg)
    check_numbers(cfg)
    fixed = [name for name in ("shaping", "control") if name in cfg.parts]
    if fixed and (cfg.data.path is not None or cfg.groups):
        raise UserError(
            f"part {fixed[0]} runs on data sets of its own and on single steps: take data.path= and groups= to parts=[compare]"
        )
    if "shaping" in cfg.parts and "hard" not in cfg.shaping.methods:
        raise UserError("shaping.methods must have hard: its prices are what E3 reads")
    if "groups" in cfg.methods and not cfg.groups:
        raise UserError("method groups needs groups=[{steps: [...], channels: [...], level: ...}, ...]")
    if cfg.groups and set(cfg.methods) - {"erm", "groups"}:
        raise UserError("with groups= the methods are erm and groups: set methods=[erm,groups]")
    if cfg.sampling and {"monotone", "smooth"} & set(cfg.methods):
        raise UserError(
            "sampling draws steps by their weights, which monotone and smooth make negative: leave these methods out"
        )


def check_numbers(cfg: Any) -> None:
    """Raise UserError for a setting out of its range, naming the range."""
    choices = {
        "schedule": (cfg.schedule, ("constant", "exponential", "type1")),
        "report": (cfg.report, ("best_val", "last")),
        "dual.order": (cfg.dual.order, ("before_primal", "after_primal")),
        "dual.every": (cfg.dual.every, ("batch", "epoch")),
    }
    for key, (value, valid) in choices.items():
        choose(key, value, valid)
    keys = ("context", "horizon", "epochs", "batch_size", "eval_batch", "lr", "dual.clip", "control.epochs", "control.lr",
            *(f"data.stride.{name}" for name in cfg.data.stride))  # fmt: skip
    for key, value in ((key, OmegaConf.select(cfg, key)) for key in keys):
        if not value > 0:
            raise UserError(f"{key} is {value}: it must be positive")
    for key in ("lr", "init"):
        if cfg.dual[key] < 0:
            raise UserError(f"dual.{key} is {cfg.dual[key]}: it must not be negative")
    if not 0 <= cfg.beta2 < 1:
        raise UserError(f"beta2 is {cfg.beta2}: it must be in [0, 1)")
    if cfg.resilience.lr < 0 or cfg.resilience.alpha <= 0 or not 0 < cfg.minimax_share <= 1 or cfg.label < 0:
        raise UserError(
            "resilience.lr and label must not be negative, resilience.alpha positive, minimax_share in (0, 1]"
        )


def own_levels(cfg: Any) -> NDArray[np.float64] | None:
    """cfg.levels as a vector (T,), one level standing for all steps; None where it is not given."""
    if cfg.levels is None:
        return None
    try:
        eps = constraints.checked_levels([float(level) for level in cfg.levels]).numpy()
    except (TypeError, ValueError) as error:
        raise UserError(f"levels cannot be used ({error}): give one number for all steps, or {cfg.horizon}") from None
    if len(eps) not in (1, cfg.horizon):
        raise UserError(f"levels has {len(eps)} entries: give one for all steps, or {cfg.horizon}, one for each step of the horizon")  # fmt: skip
    return np.broadcast_to(eps, (cfg.horizon,)).copy()


def levels_of(cfg: Any, rule: str, erm: dict[str, Any], data: Dataset) -> NDArray[np.float64]:
    """The levels (T,) that `rule` (the config's `level`) gives, from the profiles of the ERM run where it needs them."""
    if (own := own_levels(cfg)) is not None:
        return own
    if rule == "linear":
        return constraints.linear_levels(cfg.horizon, cfg.family.offset, cfg.family.slope)
    if rule == "exponential":
        return constraints.exponential_levels(cfg.horizon, cfg.family.scale, cfg.family.rate)
    match = RULE.fullmatch(rule)
    assert match is not None, rule
    published, segment, q = match.groups()
    if published:
        return np.full(cfg.horizon, published_level(cfg.data.name, cfg.model.name, cfg.horizon, segment, int(q)))
    return constraints.levels_from_profile(erm[segment].mean(1), int(q) / 100, cfg.level_decimals)


def published_level(data: str, model: str, horizon: int, segment: str, q: int) -> float:
    """A level that the authors used: a quantile over the window of the step losses of their ERM run (levels.csv)."""
    with open(Path(__file__).parent / "levels.csv") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            if (row["data"], row["model"], int(row["horizon"]), row["segment"]) == (data, model, horizon, segment):
                return float(row[f"q{q}"])
    raise UserError(f"there is no published level for data={data} model={model} horizon={horizon}: use level={segment}_q{q}, of your own ERM run")  # fmt: skip


def weighting(
    method: str, cfg: Any, data: Dataset, levels: NDArray[np.float64] | None, erm: dict[str, Any]
) -> constraints.Weighting:
    """What chooses the weights of the step losses under `method`."""
    T, d = cfg.horizon, cfg.dual
    if method == "erm":
        return baselines.erm(T * (data.channels if cfg.groups else 1))
    if method == "reweight":
        return baselines.reweight(erm["train"].mean(1), cfg.reweight_power)
    if method == "minimax":
        return baselines.Minimax(T, cfg.minimax_share)
    if method == "monotone":
        return constraints.MonotoneVariables(
            T, d.lr, d.init, d.clip, tolerance=cfg.tolerance, official_sign_error=cfg.official_sign_error
        )
    if method == "smooth":
        A = constraints.smooth_operator(T)
        return constraints.DualVariables(np.full(len(A), cfg.tolerance), d.lr, d.init, d.clip, operator=A)
    if method == "groups":
        if any(not isinstance(group.get("level"), (int, float)) for group in cfg.groups):
            raise UserError("a group has no level: write {steps: [...], channels: [...], level: 0.4}")
        with user_errors("groups"):
            A = constraints.group_operator(cfg.groups, T, data.columns)
            eps = constraints.checked_levels([float(group["level"]) for group in cfg.groups])
        return constraints.DualVariables(eps, d.lr, d.init, d.clip, operator=A)
    assert levels is not None
    if method == "penalty":
        return baselines.Penalty(levels, cfg.penalty_rho)
    slack_lr = cfg.resilience.lr if method == "resilient" else 0.0
    return constraints.DualVariables(levels, d.lr, d.init, d.clip, slack_lr=slack_lr, slack_alpha=cfg.resilience.alpha)
