"""`-m`: one run for each combination of values, side by side where a launcher is chosen, and sweep.json over them.

sweep.json is there from the first moment and names every job, so that `resume=<sweep folder>` does what is missing.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import exits, experiment, files, line, settings, signals
from common.catalogue import WHERE_ONLY, catalogue
from common.errors import Interrupted, UserError, shorten
from common.line import Line
from common.metrics.summary import spread
from common.optional import need
from common.result import Result, load_result, read_record

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from common.experiment import Job

STOP = ".stop"  # a file in a sweep's folder: a job has failed and no more are to begin
PREEMPTED = 128 + signal.SIGUSR2
LAUNCHERS = {
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "submitit_local": "hydra_plugins.hydra_submitit_launcher",
    "slurm": "hydra_plugins.hydra_submitit_launcher",
}


@dataclass
class Sweep:
    """A sweep's folder and what is known of it: the content of its sweep.json."""

    folder: Path
    paper: str
    verb: str
    experiment: str
    swept: list[str]
    jobs: list[list[str]]  # overrides of each
    started: str = ""
    stop_at_first_failure: bool = False
    codes: dict[int, int] = field(default_factory=dict)

    def save(self, status: str) -> list[Result | None]:
        """Write sweep.json from what the jobs' folders hold; returns the jobs' results.

        `metrics`: for each metric, a line per setting: its `key` (the swept values without the seed), n, mean and sample sd
        over the runs of that setting that are done.
        """
        outcomes: list[Result | None] = []
        rows: list[dict[str, Any]] = []
        values: dict[str, dict[str, list[float]]] = {}
        for number, overrides in enumerate(self.jobs):
            outcome = None
            with contextlib.suppress(UserError):  # killed before it could say anything
                outcome = load_result(self.folder / str(number))
            outcomes.append(outcome)
            if outcome is None:
                waiting = status == "running"
                rows.append({"job": number, "status": "waiting" if waiting else "missing",
                             "exit_code": None if waiting else exits.BUG, "overrides": overrides, "message": None})  # fmt: skip
                continue
            message = outcome.record.get("error", {}).get("message")
            rows.append({"job": number, "status": outcome.status, "exit_code": outcome.exit_code, "overrides": overrides,
                         "message": message})  # fmt: skip
            if outcome.status == "done":
                named = {text.lstrip("+").partition("=")[0]: text.lstrip("+") for text in overrides}
                key = " ".join(named[name] for name in self.swept if name != "seed" and name in named)
                for name, value in outcome.metrics.items():
                    if value is not None:
                        values.setdefault(name, {}).setdefault(key, []).append(value)
        metrics = {name: [{"key": key, **spread(v)} for key, v in groups.items()] for name, groups in values.items()}
        files.write_json(self.folder / "sweep.json", {
            "schema": 1, "paper": self.paper, "verb": self.verb, "experiment": self.experiment, "status": status,
            "started": self.started, "swept": self.swept, "stop_at_first_failure": self.stop_at_first_failure,
            "jobs": rows, "metrics": metrics,
        })  # fmt: skip
        return outcomes


def is_sweep(resume: str | None) -> bool:
    """Whether `resume=` names the folder of a sweep."""
    return resume is not None and (Path(resume).expanduser() / "sweep.json").exists()


def load(folder: Path) -> Sweep:
    """Read a sweep.json. Raises UserError where it is damaged."""
    record = read_record(folder / "sweep.json")
    try:
        jobs = [[str(text) for text in job["overrides"]] for job in record["jobs"]]
        return Sweep(folder, str(record["paper"]), str(record["verb"]), str(record["experiment"]), list(record["swept"]),
                     jobs, str(record["started"]), bool(record["stop_at_first_failure"]))  # fmt: skip
    except (KeyError, TypeError):
        raise UserError(f"{folder / 'sweep.json'} is damaged or of an earlier version: start the sweep again") from None


def run(job: Job, given: Line) -> int:
    """Run the sweep that the line describes, or go on with that of resume=; every job runs. Returns the worst exit code."""
    if given.resume and "multirun" in given.flags:
        raise UserError("resume= goes on with one run or sweep: leave out -m")
    sweep, cfg, launcher = _resumed(job, given) if given.resume else _planned(job, given)
    sweep.save("running")
    (sweep.folder / STOP).unlink(missing_ok=True)
    status = "interrupted"
    try:
        _launch(sweep, cfg, launcher)
        status = "done"
    finally:
        outcomes = sweep.save(status)
        _show(sweep)
        print(f"result: {sweep.folder / 'sweep.json'}")
    return exits.worst([outcome.exit_code if outcome else exits.BUG for outcome in outcomes])


def _planned(job: Job, given: Line) -> tuple[Sweep, DictConfig, Line]:
    """The sweep of a line, its folder made; the config of its choices; the overrides that speak to the launcher."""
    known = catalogue(job.paper, job.verb)
    line.check_choices(given, known)
    where = (*WHERE_ONLY, "trainer", "hydra", "stop_at_first_failure")  # the rest is looked at job by job
    first = line.chosen_first(given, known)
    kept = [o.input_line for o in first.parsed if o.key_or_group in known.groups or line.top(o.key_or_group) in where]
    composed = settings.compose_line(Line(tuple(kept), given.flags), known)
    line.check_keys(given, known, dict(line.keys_below(composed.cfg)))
    jobs, swept = line.jobs_of(given, known, composed.sweep)
    refuse_ranks(composed.cfg)
    launcher = Line(tuple(o.input_line for o in given.parsed if line.top(o.key_or_group) in ("launcher", "hydra")))
    _check_launcher(launcher)
    name = given.experiment if len(given.experiment) <= 80 else "several"
    parent = experiment.runs_folder(composed.cfg) / job.paper / name
    folder = parent / f"sweep-{datetime.now():%Y%m%d-%H%M%S}-{os.urandom(2).hex()}"
    try:
        folder.mkdir(parents=True)
        experiment.mark(folder)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"cannot make {shorten(str(folder), 160)} ({why}): set paths.runs or $PAPERS_RUNS to a folder you can write to"
        ) from None
    sweep = Sweep(folder, job.paper, job.verb, given.experiment, swept, jobs, f"{datetime.now():%Y-%m-%dT%H:%M:%S}",
                  bool(composed.cfg.get("stop_at_first_failure")))  # fmt: skip
    return sweep, composed.cfg, launcher


def _resumed(job: Job, given: Line) -> tuple[Sweep, DictConfig, Line]:
    folder = Path(str(given.resume)).expanduser().resolve()
    sweep = load(folder)
    if sweep.paper != job.paper:
        raise UserError(
            f"{folder} is a sweep of {sweep.paper}: resume it with `papers run {sweep.paper} resume={folder}`"
        )
    extra = given.without("resume")
    for override in extra.parsed:
        if line.top(override.key_or_group) not in (*WHERE_ONLY, "launcher", "hydra"):
            raise UserError(f"resume= stands alone: leave out {shorten(override.input_line)!r}")
    launcher = Line(tuple(o.input_line for o in extra.parsed if line.top(o.key_or_group) in ("launcher", "hydra")))
    _check_launcher(launcher)
    where = extra.without("launcher", "hydra")
    sweep.jobs = [list(Line(tuple(overrides)).replaced(where).overrides) for overrides in sweep.jobs]
    return sweep, settings.compose(sweep.paper, sweep.verb, Line()), launcher


def refuse_ranks(cfg: DictConfig) -> None:
    """Raise UserError for a trainer that starts processes of its own: each would begin the sweep again."""
    trainer = cfg.get("trainer") or {}
    if str(trainer.get("strategy", "auto")).startswith(("ddp", "fsdp", "deepspeed")) and trainer.get("devices") != 1:
        raise UserError(
            "trainer=ddp starts processes of its own and cannot run in a sweep: run each job alone, without -m"
        )


def _check_launcher(launcher: Line) -> None:
    """Raise UserError for a launcher whose package, or whose cluster, is not here."""
    chosen = next((str(o.value()) for o in launcher.parsed if o.key_or_group == "launcher"), "local")
    if chosen in LAUNCHERS:
        need(LAUNCHERS[chosen])
    if chosen == "slurm" and shutil.which("sbatch") is None:
        raise UserError("launcher=slurm, but there is no sbatch here: use it on a cluster, or launcher=joblib")
    if chosen == "local" and any(o.key_or_group.startswith("hydra") for o in launcher.parsed):
        raise UserError("hydra.launcher.* needs a launcher: add launcher=joblib, submitit_local or slurm")


# ---- running the jobs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What a launcher runs for each job: a plain object, so that other processes can be handed it."""

    folder: Path
    paper: str
    verb: str
    jobs: tuple[tuple[int, tuple[str, ...]], ...]  # those to run: number and overrides
    stop_at_first_failure: bool
    parent: tuple[str, int] | None = None  # host and process that this job is not to outlive

    def __call__(self, cfg: DictConfig | None = None, index: int | None = None) -> int:
        """Run one job in its numbered folder; returns its exit code and never raises but for a stop."""
        if index is None:  # a launcher numbers the jobs that it was given
            from hydra.core.hydra_config import HydraConfig

            index = int(HydraConfig.get().job.num)
        if self.parent is not None:
            _die_with(*self.parent)
        number, overrides = self.jobs[index]
        if (self.folder / STOP).exists():
            return exits.DONE  # not begun: an earlier one has failed
        requeue = signal.getsignal(signal.SIGUSR2)
        queued = callable(requeue)  # submitit has put its own handlers in place: SIGUSR2 comes before the node is taken
        try:
            with signals.handled(*((signal.SIGINT, signal.SIGUSR2) if queued else ())):
                code = run_one(self.folder / str(number), self.paper, self.verb, overrides)
        except Interrupted as stopped:
            if queued and stopped.code == PREEMPTED and callable(requeue):
                requeue(signal.SIGUSR2, None)
            raise
        if self.stop_at_first_failure and code in (exits.BUG, exits.USER):
            (self.folder / STOP).touch()
        return code


def run_one(folder: Path, paper: str, verb: str, overrides: Sequence[str]) -> int:
    """Run a sweep's job in its folder, or go on with it there; returns its exit code, raises Interrupted alone."""
    exits.tell(f"job {folder.name}: {' '.join(overrides)}")
    job = experiment.find_job(paper, verb)
    given = Line(tuple(overrides))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        experiment.mark(folder)
        before = None
        with contextlib.suppress(UserError):
            before = load_result(folder)
        if before is not None and before.config:
            outcome = experiment.launch_line(job, line.of([f"resume='{folder}'"]))
        else:
            checked = settings.compose(paper, verb, given)
            refuse_ranks(checked)
            outcome = experiment.run_in(folder, job, checked, given)
    except (Interrupted, KeyboardInterrupt):
        raise
    except BaseException as error:
        if signals.asked() is not None:
            raise Interrupted(signals.asked() or 130) from error
        if not (folder / "result.json").exists():
            _record_refused(folder, job, given, error)
        return exits.explain(error)
    return Result(outcome.folder, outcome.record).exit_code  # that of the run, also where it was done before


def _record_refused(folder: Path, job: Job, given: Line, error: BaseException) -> None:
    """A result.json for a job whose config was refused before a run began."""
    from common.run import Run

    run = Run(folder, paper=job.paper, verb=job.verb, experiment=given.experiment, overrides=given.overrides)
    run.error = {"exit_code": exits.code_of(error), "message": str(error)}
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        run.save("failed")


def _launch(sweep: Sweep, cfg: DictConfig, launcher: Line) -> None:
    """Run what is not done: here one after the other, or through one of Hydra's launchers."""
    pending = []
    for number, overrides in enumerate(sweep.jobs):
        done = False
        with contextlib.suppress(UserError):
            done = load_result(sweep.folder / str(number)).status == "done"
        if not done:
            pending.append((number, tuple(overrides)))
    if not pending:
        return
    chosen = next((str(o.value()) for o in launcher.parsed if o.key_or_group == "launcher"), "local")
    here = (platform.node(), os.getpid()) if chosen in ("joblib", "submitit_local") else None
    task = Task(sweep.folder, sweep.paper, sweep.verb, tuple(pending), sweep.stop_at_first_failure, here)
    if chosen == "local":
        for index in range(len(pending)):
            task(index=index)
            sweep.save("running")
        return
    try:
        _launch_with_hydra(task, launcher, len(pending), sweep.folder)
    except (Interrupted, KeyboardInterrupt, SystemExit):
        raise
    except Exception as error:
        if signals.asked() is not None:
            raise Interrupted(signals.asked() or 130) from error
        if any((sweep.folder / str(number) / "result.json").exists() for number, _ in pending):
            exits.tell(f"note: launcher={chosen} ended early ({type(error).__name__}): resume={sweep.folder} goes on")
            return
        raise UserError(
            f"launcher={chosen} cannot begin ({type(error).__name__}: {shorten(str(error), 160)}): look at hydra.launcher.*"
        ) from error


def _launch_with_hydra(task: Callable[[Any], int], launcher: Line, count: int, folder: Path) -> None:
    """Hand `count` numbered jobs to the launcher plugin that the line chooses. Jobs compose their own configs."""
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.plugins import Plugins
    from hydra.types import HydraContext, RunMode

    quoted = str(folder).replace("'", "\\'")
    texts = [*launcher.overrides, f"hydra.sweep.dir='{quoted}'", "hydra.sweep.subdir=.hydra/${hydra.job.num}",
             "hydra.output_subdir=null", "hydra/job_logging=none", "hydra/hydra_logging=none"]  # fmt: skip
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module(config_module="configs.common", version_base="1.3"):
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            loader = hydra.config_loader
            cfg = loader.load_configuration(config_name="base", overrides=texts, run_mode=RunMode.MULTIRUN)
            context = HydraContext(config_loader=loader, callbacks=_callbacks(cfg))
            plugin = Plugins.instance().instantiate_launcher(
                hydra_context=context,
                task_function=task,
                config=cfg,
            )
            for outcome in plugin.launch([[] for _ in range(count)], initial_job_idx=0):
                _ = outcome.return_value  # raises what a job has raised
    finally:
        GlobalHydra.instance().clear()


def _callbacks(cfg: DictConfig) -> Any:
    from hydra._internal.callbacks import Callbacks

    return Callbacks(cfg)


_watched: set[int] = set()


def _die_with(host: str, pid: int) -> None:
    """Stop this process when the one that began the sweep is gone, kill -9 included."""
    if host != platform.node() or pid == os.getpid() or pid in _watched:
        return
    _watched.add(pid)
    born = _birth(pid)

    def watch() -> None:
        while _birth(pid) == born and born is not None:
            time.sleep(0.5)
        if born is None:
            return
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="sweep's parent").start()


def _birth(pid: int) -> str | None:
    """When a process began, in the system's ticks; None where it is gone (or a zombie), or the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _show(sweep: Sweep) -> None:
    """Print a line per setting: how many of its runs are done, and the first metrics."""
    from common import report

    with contextlib.suppress(UserError, BrokenPipeError, OSError):
        record = read_record(sweep.folder / "sweep.json")
        names = list(record["metrics"])[:5]
        keys = list(dict.fromkeys(row["key"] for name in names for row in record["metrics"][name]))
        rows = []
        for key in keys:
            found = {n: row for n in names for row in record["metrics"][n] if row["key"] == key}
            means = {n: f"{row['mean']:.4g} ± {row['sd'] or 0:.2g}" for n, row in found.items()}
            rows.append({"setting": key or "(all)", "runs": max(row["n"] for row in found.values()), **means})
        if rows:
            report.show("sweep: mean and sample sd over its runs", rows)
        states = [job["status"] for job in record["jobs"]]
        counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        print(f"{len(states)} jobs: {counted}")
