"""Where curves go: metrics.csv always, TensorBoard or Weights & Biases when asked."""

from __future__ import annotations

import csv
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlparse

from common.errors import UserError
from common.files import digest


class Logger(Protocol):
    def log(self, metrics: Mapping[str, float], step: int | None) -> None: ...

    def figure(self, name: str, path: Path) -> None: ...

    def close(self) -> None: ...


class CsvLogger:
    """`metrics.csv`, one value a line: step,name,value (step empty for a single figure). Begun anew when a run is resumed,
    since a resumed run logs again what its finished stages logged."""

    def __init__(self, folder: Path):
        self._file = open(folder / "metrics.csv", "w", newline="", buffering=1)  # noqa: SIM115 (closed by close)
        self._writer = csv.writer(self._file)
        self._writer.writerow(["step", "name", "value"])

    def log(self, metrics: Mapping[str, float], step: int | None) -> None:
        self._writer.writerows(["" if step is None else step, name, value] for name, value in metrics.items())

    def figure(self, name: str, path: Path) -> None:
        pass

    def close(self) -> None:
        self._file.close()


class TensorBoardLogger:
    """Event files under <run>/tensorboard."""

    def __init__(self, folder: Path):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, metrics: Mapping[str, float], step: int | None) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def figure(self, name: str, path: Path) -> None:
        import matplotlib.image

        self._writer.add_image(name, matplotlib.image.imread(path), dataformats="HWC")

    def close(self) -> None:
        self._writer.close()


class WandbLogger:
    """A Weights & Biases run that a resumed job continues."""

    def __init__(self, folder: Path, options: Mapping[str, Any], config: Mapping[str, Any]):
        import wandb

        self._wandb = wandb
        try:
            self._run = self._begin(wandb, folder, options, config)
            self._steps: dict[str, str] = {}  # metric -> the step that its curve is drawn over
        except (wandb.errors.Error, OSError) as error:
            raise UserError(
                f"logger=wandb cannot begin ({str(error).splitlines()[0]}): check `wandb login`, or set WANDB_MODE=offline"
            ) from error

    @staticmethod
    def _begin(wandb: Any, folder: Path, options: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
        return wandb.init(
            project=options["project"], entity=options["entity"], group=options["group"], dir=str(folder), config=dict(config),
            id=digest([str(folder)]), resume="allow", settings=wandb.Settings(silent=True),
        )  # fmt: skip

    def log(self, metrics: Mapping[str, float], step: int | None) -> None:
        # every loop counts its own steps, and W&B drops points below the last of its one counter: a step for each loop
        if step is None:
            self._run.log(dict(metrics))
            return
        points: dict[str, float] = dict(metrics)
        loop = f"step/{next(iter(metrics), '')}"
        for name in metrics:
            if name not in self._steps:
                self._steps[name] = loop
                self._run.define_metric(loop, hidden=True)
                self._run.define_metric(name, step_metric=loop)
            points[self._steps[name]] = step
        self._run.log(points)

    def figure(self, name: str, path: Path) -> None:
        self._run.log({name: self._wandb.Image(str(path))})

    def close(self) -> None:
        self._run.finish()


def check(options: Mapping[str, Any]) -> None:
    """Raise UserError where the chosen logger cannot work, before a job starts."""
    if (
        options["name"] != "wandb"
        or os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
        or os.environ.get("WANDB_API_KEY")
    ):
        return
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        known = netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        known = False
    if not known:
        raise UserError(
            "logger=wandb has no key: run `wandb login`, or set WANDB_MODE=offline to log without key or network"
        )


def make(options: Mapping[str, Any], folder: Path, config: Mapping[str, Any]) -> list[Logger]:
    """The loggers of a run. options: the `logger` group; config: the run's config, for loggers that show it."""
    loggers: list[Logger] = [CsvLogger(folder)]
    if options["name"] == "tensorboard":
        loggers.append(TensorBoardLogger(folder))
    elif options["name"] == "wandb":
        loggers.append(WandbLogger(folder, options, config))
    return loggers
