"""Names that moved: `catalogue` (what there is), `line` (the command line), `settings` (compose and check)."""

from common.catalogue import *  # noqa: F403
from common.catalogue import experiments, folder_of, papers, verb_of, verbs  # noqa: F401
from common.errors import did_you_mean as known  # noqa: F401
from common.line import parse_line  # noqa: F401
from common.settings import compose, config_hash  # noqa: F401


def config_folders(paper):
    return folder_of("configs.common"), folder_of(f"configs.{paper}")


def groups(paper, verb="train"):
    from common.catalogue import catalogue

    return catalogue(paper, verb).groups


def at_least(cfg, bounds):
    from omegaconf import OmegaConf

    from common.errors import UserError

    for key, least in bounds.items():
        value = OmegaConf.select(cfg, key)
        values = list(value) if OmegaConf.is_list(value) else [] if value is None else [value]
        if OmegaConf.is_list(value) and not values:
            raise UserError(f"{key} is empty: give at least one")
        if any(not isinstance(number, (int, float)) or not number >= least for number in values):
            raise UserError(f"{key} is {value}: give at least {least}")
