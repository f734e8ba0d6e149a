"""Whether a config makes sense, said before anything is read or trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from common.configs import at_least, groups
from common.errors import UserError, choose
from papers.loss_shaping import constraints, methods

AT_LEAST = {
    "seeds": 0, "context": 1, "label": 0, "horizon": 2, "level_decimals": 0, "tolerance": 0, "dual.lr": 0, "dual.init": 0,
    "resilience.lr": 0, "penalty_rho": 0, "reweight_power": 0, "epochs": 1, "batch_size": 1, "decay": 0, "eval_batch": 1,
    "data.rows": 2, "data.channels": 1, "data.stride.train": 1, "data.stride.val": 1, "data.stride.test": 1,
    "control.epochs": 1, "control.official_dual.lr": 0, "control.official_dual.init": 0,
    "convex.steps": 2, "convex.d": 1, "convex.noise": 0, "convex.seed": 0, "convex.tight": 1, "convex.infeasible": 0,
    "convex.iterations": 1, "convex.infeasible_iterations": 2, "recommend.width": 1, "recommend.points": 2, "recommend.steps": 1,
    "recommend.cost": 0,
    **{f"model.{key}": 1 for key in (
        "d_model", "heads", "encoder_layers", "decoder_layers", "d_ff", "factor", "moving_average", "width", "bucket_size", "hashes",
        "windows", "inner_size", "projector", "hippo_order", "scales", "modes", "patch", "patch_stride")},
    "model.dropout": 0, "model.head_dropout": 0,
}  # fmt: skip
POSITIVE = ("lr", "dual.clip", "resilience.alpha", "minimax_share", "control.lr", "convex.dual_lr", "convex.slack_lr", "recommend.dual_lr")  # fmt: skip
BELOW_ONE = ("beta2", "model.dropout", "model.head_dropout", "convex.infeasible")
CHOICES = {
    "variant": methods.NAMES,
    "schedule": ("constant", "exponential", "type1"),
    "report": ("best_val", "last"),
    "dual.order": ("before_primal", "after_primal"),
    "dual.every": ("batch", "epoch"),
    "data.missing": ("error", "ffill"),
    "data.irregular": ("error", "keep"),
}


def check(cfg: Any) -> None:
    """Raise UserError for a config that no part can use."""
    check_numbers(cfg)
    for key, valid in CHOICES.items():
        choose(key, OmegaConf.select(cfg, key), valid)
    for key in ("seeds", "methods", "shaping.methods"):
        check_list(key, OmegaConf.select(cfg, key))
    for name in (*cfg.methods, *cfg.shaping.methods):
        choose("method", name, methods.NAMES)
    check_sets(cfg)
    check_levels(cfg)
    fixed = [name for name in ("shaping", "control") if name in cfg.parts]
    if fixed and (cfg.data.path is not None or cfg.groups):
        raise UserError(
            f"part {fixed[0]} runs on data sets of its own and on single steps: take data.path= and groups= to parts=[compare]"
        )
    check_groups(cfg)
    if "shaping" in cfg.parts and "hard" not in cfg.shaping.methods:
        raise UserError("shaping.methods must have hard: its prices are what E3 reads")
    if cfg.sampling and {"monotone", "smooth"} & set(cfg.methods):
        raise UserError(
            "sampling draws steps by their weights, which monotone and smooth make negative: leave these methods out"
        )


def check_numbers(cfg: Any) -> None:
    """Raise UserError for a number out of its range, naming the range."""
    at_least(cfg, AT_LEAST)
    for key in POSITIVE:
        if not (value := OmegaConf.select(cfg, key)) > 0:
            raise UserError(f"{key} is {value}: it must be positive")
    for key in BELOW_ONE:
        if (value := OmegaConf.select(cfg, key)) is not None and not 0 <= value < 1:
            raise UserError(f"{key} is {value}: it must be in [0, 1)")
    if not cfg.minimax_share <= 1:
        raise UserError(f"minimax_share is {cfg.minimax_share}: it is a share of the steps, give at most 1")
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


def check_list(key: str, values: Sequence[Any]) -> None:
    """Raise UserError for a list that is empty or names something twice."""
    if not values:
        raise UserError(f"{key} is empty: give at least one")
    if twice := [value for place, value in enumerate(values) if value in values[:place]]:
        raise UserError(f"{key} has {twice[0]} twice: give each once")


def check_entries(key: str, entries: Any, keys: Sequence[str], like: str) -> None:
    """Raise UserError unless each entry of a list is a mapping with no other keys than these."""
    for entry in entries:
        if not isinstance(entry, Mapping) and not OmegaConf.is_dict(entry):
            raise UserError(f"{key} has {entry!r}: write each entry as {like}")
        for name in entry:
            choose(f"key of {key}", name, keys)


def check_sets(cfg: Any) -> None:
    """Raise UserError for a set of `shaping.sets`, or a `control.data`, that cannot be had."""
    available = groups("loss_shaping")["data"]
    like = "{data: etth1, epochs: 3}"
    check_entries("shaping.sets", cfg.shaping.sets, ("data", "epochs"), like)
    for entry in cfg.shaping.sets:
        epochs = entry.get("epochs")
        if entry.get("data") is None or isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
            raise UserError(f"shaping.sets has {dict(entry)}: write data and at least one epoch, as in {like}")
        choose("data of shaping.sets", entry.data, available)
    check_list("shaping.sets", [entry.data for entry in cfg.shaping.sets])
    choose("control.data", cfg.control.data, available)


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
                if not OmegaConf.is_list(values) or any(not isinstance(value, kind) for value in values):
                    raise UserError(f"{key} of group {place} are {values}: write a list, as in {like}")
                check_list(f"{key} of group {place}", values)
