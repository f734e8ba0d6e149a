"""Checks between the settings of a config; what a setting may be by itself stands beside it in the YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from common.catalogue import catalogue
from common.errors import UserError, choose
from papers.loss_shaping import constraints, methods


def check(cfg: Any) -> None:
    """Raise UserError for values that do not go together."""
    if cfg.label > cfg.context:
        raise UserError(
            f"label is {cfg.label}, and the context has {cfg.context} rows to take it from: lower label, or raise context"
        )
    if cfg.model.name in ("autoformer", "dlinear") and cfg.model.moving_average % 2 == 0:
        raise UserError(f"model.moving_average is {cfg.model.moving_average}: it must be odd, to have a middle")
    if cfg.convex.samples < cfg.convex.d:
        raise UserError(
            f"convex.samples is {cfg.convex.samples}: give at least convex.d = {cfg.convex.d}, or no model is the best"
        )
    check_sets(cfg)
    check_levels(cfg)
    fixed = [name for name in ("shaping", "control", "tuned") if name in cfg.parts]
    if fixed and (cfg.data.path is not None or cfg.groups):
        raise UserError(
            f"part {fixed[0]} runs on data sets of its own and on single steps: take data.path= and groups= to parts=[compare]"
        )
    check_groups(cfg)
    if "shaping" in cfg.parts and not {"erm", "hard"} <= set(cfg.shaping.methods):
        raise UserError("shaping.methods must have erm and hard: its prices are what E3 reads")
    check_tuned(cfg)
    if cfg.sampling and {"monotone", "smooth"} & set(cfg.methods):
        raise UserError(
            "sampling draws steps by their weights, which monotone and smooth make negative: leave these methods out"
        )
    if cfg.duals.optimiser_state == "exact" and cfg.trainer.get("devices", 1) not in (1, "1", "auto"):
        raise UserError(
            "duals.optimiser_state=exact keeps every step's gradients in one process: use rescaled with several"
        )


def check_entries(key: str, entries: Any, keys: Sequence[str], like: str) -> None:
    """Raise UserError unless each entry of a list is a mapping with no other keys than these."""
    for entry in entries:
        if not isinstance(entry, Mapping) and not OmegaConf.is_dict(entry):
            raise UserError(f"{key} has {entry!r}: write each entry as {like}")
        for name in entry:
            choose(f"key of {key}", name, keys)


def once(key: str, values: Sequence[Any]) -> None:
    """Raise UserError for entries of which one comes twice."""
    if twice := [value for place, value in enumerate(values) if value in values[:place]]:
        raise UserError(f"{key} has {twice[0]} twice: name each once")


def check_sets(cfg: Any) -> None:
    """Raise UserError for a set of `shaping.sets` or `tuned.sets`, or a `control.data`, that cannot be had."""
    available = catalogue("loss_shaping", "train").groups["data"]
    like = "{data: etth1, epochs: 3}"
    for key, sets in (("shaping.sets", cfg.shaping.sets), ("tuned.sets", cfg.tuned.sets)):
        check_entries(key, sets, ("data", "epochs"), like)
        for entry in sets:
            epochs = entry.get("epochs")
            if entry.get("data") is None or isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
                raise UserError(f"{key} has {dict(entry)}: write data and at least one epoch, as in {like}")
            choose(f"data of {key}", entry.data, available)
        once(key, [entry.data for entry in sets])
    choose("control.data", cfg.control.data, available)


def check_tuned(cfg: Any) -> None:
    """Raise UserError for contestants that cannot be tuned alike: other numbers of trials, unknown methods or settings."""
    like = "{name: rescaled, method: hard_rescaled, grid: {lr: [0.005, 0.01]}}"
    check_entries("tuned.methods", cfg.tuned.methods, ("name", "method", "grid"), like)
    counts = {}
    for entry in cfg.tuned.methods:
        if not {"name", "method", "grid"} <= set(entry) or not entry.grid:
            raise UserError(f"tuned.methods has {dict(entry)}: write each entry as {like}")
        choose(f"method of {entry.name}", entry.method, methods.NAMES)
        counts[entry.name] = 1
        for key, values in entry.grid.items():
            if OmegaConf.select(cfg, key) is None or not OmegaConf.is_list(values) or not values:
                raise UserError(f"grid of {entry.name}: {key} is no setting with a list of values, as in {like}")
            counts[entry.name] *= len(values)
    once("tuned.methods", [entry.name for entry in cfg.tuned.methods])
    if not cfg.tuned.methods or cfg.tuned.methods[0].method != "erm":
        raise UserError("tuned.methods begins with ERM: levels and changes are taken from it")
    if len(set(counts.values())) > 1:
        raise UserError(f"tuned.methods have {counts} trials: give each as many as the others")
    if shared := set(cfg.tuned.seeds) & set(cfg.tuned.judge):
        raise UserError(f"tuned.judge has {min(shared)}, which chose: judge on other seeds")


def check_levels(cfg: Any) -> None:
    """Raise UserError for a rule that there is not, and for levels that no squared error can meet."""
    rules = {"level": cfg.level, "control.level": cfg.control.level}
    for key, rule in rules.items():
        if rule not in ("linear", "exponential", "select") and not methods.RULE.fullmatch(rule):
            raise UserError(
                f"{key} is {rule!r}: use train_q25, _q50, _q75 or val_q.. (of the ERM run), published_train_q.. or "
                f"published_val_q.. (of the paper's runs), linear, exponential, select, or give numbers with levels=[...]"
            )
    if methods.own_levels(cfg) is not None:
        return
    for key, rule in rules.items():
        if rule in ("linear", "exponential"):
            try:
                constraints.checked_levels(methods.family_levels(cfg, rule))
            except ValueError as error:
                raise UserError(f"{key}={rule} cannot be used ({error}): change family, {dict(cfg.family)}") from None
    if cfg.level.startswith("published") and "compare" in cfg.parts:
        methods.levels_of(cfg, cfg.level, {})


def check_groups(cfg: Any) -> None:
    """Raise UserError for a group that says nothing, or something that there is not. Channels are held against the data later."""
    if "groups" in cfg.methods and not cfg.groups:
        raise UserError("method groups needs groups=[{steps: [...], channels: [...], level: ...}, ...]")
    if cfg.groups and set(cfg.methods) - {"erm", "groups"}:
        raise UserError("with groups= the methods are erm and groups: set methods=[erm,groups]")
    like = "{steps: [1, 2], channels: [OT], level: 0.4}"
    check_entries("groups", cfg.groups, ("steps", "channels", "level"), like)
    for place, group in enumerate(cfg.groups, 1):
        if isinstance(group.get("level"), bool) or not isinstance(group.get("level"), (int, float)):
            raise UserError(f"group {place} has no level that is a number: write it as {like}")
        for key, kind in (("steps", int), ("channels", str)):
            if (values := group.get(key)) is not None:
                if not OmegaConf.is_list(values) or not values or any(not isinstance(value, kind) for value in values):
                    raise UserError(f"{key} of group {place} are {values}: write a list, as in {like}")
                once(f"{key} of group {place}", list(values))
