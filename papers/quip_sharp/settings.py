"""What must hold between the settings of a config, said before any work is done."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from common.errors import UserError


def check(cfg: Any) -> None:
    """Raise UserError for values that do not go together. What a verb's config does not have is skipped."""
    get = OmegaConf.select
    # a dry run estimates in float32 whatever is asked for
    if get(cfg, "finetune") and cfg.model.dtype != "float32" and not get(cfg, "run.dry"):
        raise UserError(
            f"finetune=true needs model.dtype=float32, not {cfg.model.dtype}: Adam's steps vanish in half precision"
        )
    if get(cfg, "finetune") and cfg.tuning.block.sequences:
        needed = cfg.tuning.block.sequences + cfg.tuning.valid
        if needed > cfg.data.calibration_sequences:
            raise UserError(
                f"tuning within blocks needs {needed} calibration sequences (tuning.block.sequences + tuning.valid): "
                f"set data.calibration_sequences={needed} or more"
            )
    if get(cfg, "tuning.bits") == []:
        raise UserError("tuning.bits is empty: give at least one, or null for those of `bits`")
    if both := set(get(cfg, "methods") or []) & set(get(cfg, "ablations") or []):
        raise UserError(f"{sorted(both)[0]} is in methods and in ablations: name it once")
    for width in get(cfg, "scaling.widths") or []:
        if width % (2 * cfg.scaling.heads):
            raise UserError(
                f"scaling.widths: {width} is not a multiple of {2 * cfg.scaling.heads}, twice scaling.heads"
            )
