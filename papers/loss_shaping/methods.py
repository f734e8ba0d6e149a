"""From a config to levels and weightings: what `methods`, `level` and `groups` mean."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf

from common.errors import UserError, user_errors
from papers.loss_shaping import baselines, constraints
from papers.loss_shaping.data import Dataset

STATES = {
    "hard_as_is": "as_is",
    "hard_rescaled": "rescaled",
    "hard_exact": "exact",
}  # hard, whatever duals.optimiser_state says
NAMES = ("erm", "penalty", "reweight", "minimax", "hard", "resilient", "monotone", "smooth", "groups", *STATES)
NEED_LEVELS = ("penalty", "hard", "resilient", *STATES)
RULE = re.compile(r"(published_)?(train|val)_q(25|50|75)")


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


def family_levels(cfg: Any, rule: str) -> NDArray[np.float64]:
    """The levels (T,) of `rule`, linear or exponential, from the config's `family`."""
    if rule == "linear":
        return constraints.linear_levels(cfg.horizon, cfg.family.offset, cfg.family.slope)
    return constraints.exponential_levels(cfg.horizon, cfg.family.scale, cfg.family.rate)


def levels_of(cfg: Any, rule: str, erm: dict[str, Any]) -> NDArray[np.float64]:
    """The levels (T,) that `rule` (the config's `level`) gives, from the profiles of the ERM run where it needs them."""
    if (own := own_levels(cfg)) is not None:
        return own
    if rule in ("linear", "exponential"):
        return family_levels(cfg, rule)
    match = RULE.fullmatch(rule)
    assert match is not None, rule
    published, segment, q = match.groups()
    if published:
        if cfg.data.path is not None:
            raise UserError(f"level={rule} is of the paper's data, data.path is {cfg.data.path}: use level={segment}_q{q}, of your own ERM run")  # fmt: skip
        return np.full(cfg.horizon, published_level(cfg.data.name, cfg.model.name, cfg.horizon, segment, int(q)))
    return constraints.levels_from_profile(np.nanmean(erm[segment], axis=1), int(q) / 100, cfg.level_decimals)


def published_level(data: str, model: str, horizon: int, segment: str, q: int) -> float:
    """A level that the authors used: a quantile over the window of the step losses of their ERM run (levels.csv)."""
    with open(Path(__file__).parent / "levels.csv") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            if (row["data"], row["model"], int(row["horizon"]), row["segment"]) == (data, model, horizon, segment):
                return float(row[f"q{q}"])
    raise UserError(f"there is no published level for data={data} model={model} horizon={horizon}: use level={segment}_q{q}, of your own ERM run")  # fmt: skip


def with_state(cfg: Any, method: str) -> Any:
    """The config under which `method` trains: what becomes of Adam's memory may be in its name."""
    return OmegaConf.merge(cfg, {"duals": {"optimiser_state": STATES[method]}}) if method in STATES else cfg


def weighting(
    method: str, cfg: Any, data: Dataset, levels: NDArray[np.float64] | None, erm: dict[str, Any]
) -> constraints.Weighting:
    """What chooses the weights of the step losses under `method`."""
    T, d = cfg.horizon, cfg.duals
    controlled = {"averaged": d.averaged, "proportional": d.proportional, "penalty": d.penalty}
    if method == "erm":
        return baselines.erm(T * (data.channels if cfg.groups else 1))
    if method == "reweight":
        return baselines.reweight(np.nanmean(erm["train"], axis=1), cfg.reweight_power)
    if method == "minimax":
        return baselines.Minimax(T, cfg.minimax_share)
    if method == "monotone":
        return constraints.MonotoneVariables(
            T, d.lr, d.init, d.clip, tolerance=cfg.tolerance, official_sign_error=cfg.official_sign_error, **controlled
        )
    if method == "smooth":
        A = constraints.smooth_operator(T)
        return constraints.DualVariables(np.full(len(A), cfg.tolerance), d.lr, d.init, d.clip, operator=A, **controlled)
    if method == "groups":
        with user_errors("groups"):
            A = constraints.group_operator(cfg.groups, T, data.columns)
            eps = constraints.checked_levels([float(group["level"]) for group in cfg.groups])
        return constraints.DualVariables(eps, d.lr, d.init, d.clip, operator=A, **controlled)
    assert levels is not None
    if method == "penalty":
        return baselines.Penalty(levels, cfg.penalty_rho)
    slack_lr = cfg.resilience.lr if method == "resilient" else 0.0
    return constraints.DualVariables(
        levels, d.lr, d.init, d.clip, slack_lr=slack_lr, slack_alpha=cfg.resilience.alpha, **controlled
    )
