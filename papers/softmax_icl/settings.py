"""The door: what a config asks for is checked once, before anything runs, and said in one sentence where it cannot be."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from common.configs import at_least
from common.errors import UserError

AT_LEAST = {
    "N": 1, "steps": 1, "samples": 1, "snapshots": 1, "batch_size": 1, "test_prompts": 1, "test_samples": 1, "watch_every": 1,
    "head_steps": 1, "heads": 1, "N_per_K": 1, "floor_samples": 1, "floor_N": 1, "K": 2, "K_min": 2, "floor_K": 2, "dominant_K": 2,
    "points": 2, "label_noise": 0, "feature_noise": 0, "watch_first": 0,
}  # fmt: skip
POSITIVE = {
    "eps", "flow_eps", "dominant_eps", "lr", "flow_lr", "sgd_lr", "head_lr", "linear_lr", "softmax_lr", "adam_lr", "nu_lr", "init",
}  # fmt: skip


def check(cfg: Any) -> None:
    """Raise UserError unless the settings of the parts that are to run are such as a run can use."""
    for name in cfg.parts:
        for section in ("ablations", "tokens") if name == "ablations" else (name,):
            if section in cfg:  # a part that does not exist is named by `run_parts`
                at_least(cfg, {f"{section}.{key}": least for key, least in AT_LEAST.items()})
                _check_section(cfg[section], section)


def _check_section(part: Any, name: str) -> None:
    """Raise UserError unless losses and learning rates of the section `name` are positive and lists name something."""
    section: Any = OmegaConf.to_container(part)
    for key, value in section.items():
        values = value if isinstance(value, list) else [value]
        if not values:
            raise UserError(f"{name}.{key} is empty: name at least one")
        if key in POSITIVE and not min(values) > 0:
            raise UserError(f"{name}.{key} is {value}: it must be positive")
    if name == "spectrum" and section["K"] < 3:
        raise UserError(f"spectrum.K is {section['K']}: a slope over the rarer half needs at least 3 features")
    if name == "race":
        if len(set(section["K"])) < 2:
            raise UserError(f"race.K is {section['K']}: a slope needs two different values")
        if max(section["eps"]) >= (start := (min(section["K"]) - 1) / (2 * min(section["K"]))):
            raise UserError(
                f"race.eps is {section['eps']}: at K = {min(section['K'])} the loss starts at {start:.3g}, give less"
            )
