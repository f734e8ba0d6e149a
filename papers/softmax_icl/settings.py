"""The door: what a config asks for is checked once, before anything runs, and said in one sentence where it cannot be."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from common.errors import UserError

AT_LEAST_ONE = {"N", "steps", "samples", "snapshots", "batch_size", "test_prompts", "test_samples", "watch_every", "head_steps", "heads", "N_per_K",
                "floor_samples", "floor_N"}  # fmt: skip
POSITIVE = {
    "eps",
    "flow_eps",
    "dominant_eps",
    "lr",
    "flow_lr",
    "sgd_lr",
    "head_lr",
    "linear_lr",
    "softmax_lr",
    "adam_lr",
    "nu_lr",
    "init",
}
AT_LEAST_TWO = {"K", "K_min", "floor_K", "dominant_K", "points"}
NOT_NEGATIVE = {"label_noise", "feature_noise", "watch_first"}


def check(cfg: Any) -> None:
    """Raise UserError unless the settings of the parts that are to run are such as a run can use."""
    for name in cfg.parts:
        for section in ("ablations", "tokens") if name == "ablations" else (name,):
            if section in cfg:  # a part that does not exist is named by `run_parts`
                _check_sizes(cfg[section], section)


def _check_sizes(part: Any, name: str) -> None:
    """Raise UserError unless the sizes, losses and learning rates of the section `name` are such; lists have to name something."""
    section: Any = OmegaConf.to_container(part)
    for key, value in section.items():
        values = value if isinstance(value, list) else [value]
        if not values:
            raise UserError(f"{name}.{key} is empty: name at least one")
        for least, keys in ((0, NOT_NEGATIVE), (1, AT_LEAST_ONE), (2, AT_LEAST_TWO)):
            if key in keys and not min(values) >= least:
                raise UserError(f"{name}.{key} is {value}: it must be at least {least}")
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
