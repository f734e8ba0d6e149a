"""What must hold between the settings of a config, said before the first model is trained."""

from __future__ import annotations

from typing import Any

from common.errors import UserError, choose
from papers.kd_aux import distillers

IMAGES = ("mnist", "cifar10", "digits")


def check(cfg: Any) -> None:
    """Raise UserError for values that do not go together."""
    used = {"methods": cfg.methods, "watch": cfg.watch.methods, "tune": cfg.tune.methods, "capacity": cfg.capacity.methods,
            "transfer": cfg.transfer.methods, "variants": [cfg.variants.against]}  # fmt: skip
    for part in cfg.parts:
        for name in used.get(part, ()):
            choose(f"method of {part}", name, cfg.method_settings)
    for name, entry in cfg.method_settings.items():
        method = choose(f"method_settings.{name}.method", entry.get("method"), distillers.names())
        if "watch" in cfg.parts and name in cfg.watch.methods and not method.startswith("aux"):
            raise UserError(f"watch.methods has {name}, which has no auxiliary variable: choose methods aux_*")
        _check_method(name, entry)
    for name, both in cfg.compare.items():
        for method in both:
            choose(f"method of compare.{name}", method, cfg.method_settings)
    if "tune" in cfg.parts:
        for name in cfg.tune.methods:
            choose("tune.spaces entry", name, cfg.tune.spaces)
    if "variants" in cfg.parts:
        for name in cfg.variants.run:
            choose("variant", name, cfg.variants.settings)
    if "transfer" in cfg.parts and cfg.data.name not in IMAGES:
        raise UserError(f"data.name is {cfg.data.name}: transfer needs images, choose {', '.join(IMAGES)}")


def _check_method(name: str, entry: Any) -> None:
    for key in ("T", "tau", "beta", "alpha"):
        if entry.get(key) is not None and not entry[key] > 0:
            raise UserError(f"method_settings.{name}.{key} is {entry[key]}: give a number above 0")
    for key in ("ce", "kd", "weight"):
        if entry.get(key) is not None and not entry[key] >= 0:
            raise UserError(f"method_settings.{name}.{key} is {entry[key]}: give a number of at least 0")
