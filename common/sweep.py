"""`-m`: one run for each combination of values, through Hydra's launchers, and sweep.json over them."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import configs, files
from common.errors import Interrupted, UserError
from common.metrics.summary import spread
from common.result import Result, load_result

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from common.experiment import Job

WORST_FIRST = (1, 2, 3, 0)


class Task:
    """What a launcher runs for each job: importable by name, so that other processes can find it."""

    def __init__(self, paper: str, verb: str):
        self.paper, self.verb = paper, verb

    def __call__(self, cfg: DictConfig) -> int:
        """Run one job of the sweep in its numbered folder; returns its exit code and never raises but for a stop."""
        from hydra.core.hydra_config import HydraConfig

        from common import command, experiment

        hydra = HydraConfig.get()
        folder = Path(hydra.sweep.dir) / str(hydra.job.num)
        overrides = [text for text in hydra.overrides.task if not text.startswith("resume=")]
        job = experiment.find_job(self.paper, self.verb)
        print(f"job {hydra.job.num}: {' '.join(overrides)}", file=sys.stderr)
        try:
            checked = configs.compose(self.paper, self.verb, overrides)
            outcome = experiment.run_in(folder, job, checked, overrides)
        except (Interrupted, KeyboardInterrupt):
            raise
        except BaseException as error:
            if not (folder / "result.json").exists():
                _record_refused(folder, job, overrides, error)
            return command.explain(error)
        return outcome.exit_code


def _record_refused(folder: Path, job: Job, overrides: Sequence[str], error: BaseException) -> None:
    """A result.json for a job whose config was refused before a run began."""
    from common.run import Run

    run = Run(folder, paper=job.paper, verb=job.verb, experiment=configs.experiment_of(overrides), overrides=overrides)
    run.error = {"exit_code": 2 if isinstance(error, UserError) else 1, "message": str(error)}
    folder.mkdir(parents=True, exist_ok=True)
    run.save("failed")


def run(job: Job, overrides: Sequence[str]) -> int:
    """Run the sweep that the overrides describe; every job runs. Returns the worst exit code, 1 before 2, 3 and 0."""
    import hydra

    from common import machine

    parsed = configs.parse_overrides(overrides)
    configs.check_names(job.paper, job.verb, parsed)
    if any(text.startswith("resume=") for text in overrides):
        raise UserError("resume= goes on with one run: leave out -m")
    plain = [
        o.input_line
        for o in parsed
        if not o.is_sweep_override() and not o.key_or_group.startswith(("hydra", "launcher"))
    ]
    try:
        runs = configs.compose(job.paper, job.verb, plain).paths.runs
    except UserError:  # every job will say so for itself
        runs = configs.compose(job.paper, job.verb, []).paths.runs
    swept = [o for o in parsed if o.is_sweep_override()]
    count = len(list(itertools.product(*(o.sweep_iterator() for o in swept))))
    sweep = f"sweep-{datetime.now():%Y%m%d-%H%M%S}-{os.urandom(2).hex()}"
    parent = Path(runs or "runs").expanduser().absolute() / job.paper / configs.experiment_of(overrides) / sweep
    try:
        parent.mkdir(parents=True)
    except OSError as error:
        raise UserError(
            f"cannot make {parent} ({error.strerror}): set paths.runs or $PAPERS_RUNS to a folder you can write to"
        ) from None

    quoted = str(parent).replace("'", "\\'")
    argv = ["-m", *overrides, f"hydra.sweep.dir='{quoted}'", "hydra.sweep.subdir=${hydra.job.num}", "hydra.output_subdir=null",
            "hydra/job_logging=none", "hydra/hydra_logging=none"]  # fmt: skip
    before, sys.argv = sys.argv, [sys.argv[0], *argv]

    def stop(number: int, frame: Any) -> None:
        raise Interrupted(128 + number)  # a launcher that has workers ends them on the way out

    task = hydra.main(version_base="1.3", config_path=f"pkg://configs.{job.paper}", config_name=job.verb)(
        Task(job.paper, job.verb)
    )
    try:
        with machine.handling_signals(stop):
            task()
    finally:
        sys.argv = before
        outcomes = collect(parent, count, swept=[o.key_or_group for o in swept])
        print(f"result: {parent / 'sweep.json'}")
    codes = [outcome.exit_code if outcome else 1 for outcome in outcomes]
    return min(codes, key=lambda code: WORST_FIRST.index(code) if code in WORST_FIRST else -1)


def collect(parent: Path, count: int, swept: Sequence[str]) -> list[Result | None]:
    """Read the runs of a sweep and write sweep.json.

    `metrics`: for each metric, a line per setting: its `key` (the swept values without the seed), n, mean and sample sd
    over the runs of that setting that are done.
    """
    outcomes: list[Result | None] = []
    jobs: list[dict[str, Any]] = []
    values: dict[str, dict[str, list[float]]] = {}
    for number in range(count):
        outcome = None
        with contextlib.suppress(UserError):  # killed before it could say anything
            outcome = load_result(parent / str(number))
        outcomes.append(outcome)
        jobs.append({"job": number, "status": "missing", "exit_code": 1, "overrides": None, "message": None})
        if outcome is None:
            continue
        message = outcome.record.get("error", {}).get("message")
        jobs[-1] |= {
            "status": outcome.status,
            "exit_code": outcome.exit_code,
            "overrides": outcome.overrides,
            "message": message,
        }
        if outcome.status == "done":
            named = {text.lstrip("+").partition("=")[0]: text.lstrip("+") for text in outcome.overrides}
            key = " ".join(named[name] for name in swept if name != "seed" and name in named)
            for name, value in outcome.metrics.items():
                if value is not None:
                    values.setdefault(name, {}).setdefault(key, []).append(value)
    metrics = {name: [{"key": key, **spread(v)} for key, v in groups.items()] for name, groups in values.items()}
    files.write_json(parent / "sweep.json", {"schema": 1, "jobs": jobs, "metrics": metrics})
    return outcomes
