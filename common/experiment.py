"""Run a job: `main(train)` makes a function `train(cfg, run)` the command of its file, `launch` runs it from Python.

The way of a run: the line is read and checked, Hydra composes the config, a folder is opened and locked, result.json
says `running`, the job does its work, the claims are judged, result.json says `done`. See docs/design.md.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from common import exits, files, line, machine, result, settings, signals
from common.catalogue import WHERE_ONLY, catalogue, module_of
from common.errors import Interrupted, UserError, as_user_error, choose, shorten, user_errors
from common.line import Line
from common.result import Result, load_result
from common.run import Run

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["Job", "Result", "Run", "launch", "load_result", "main", "run_parts"]

MARK = ".papers-run"  # lies in every folder that a run has made: what `papers clean` may delete


@dataclass(frozen=True)
class Job:
    """A function `(cfg, run) -> None` of a module, and the names it has: `papers.<paper>.<verb>` holds `<verb>`."""

    module: str
    function: Callable[[DictConfig, Run], None]

    @property
    def paper(self) -> str:
        return self.module.split(".")[-2]

    @property
    def verb(self) -> str:
        return self.module.split(".")[-1]


def main(function: Callable[[DictConfig, Run], None]) -> NoReturn:
    """Run a verb's function as the command of its file, and exit: `if __name__ == "__main__": main(train)`."""
    from common import command

    spec = function.__globals__["__spec__"]
    if spec is None:  # the file was started by its path, not with -m
        path = Path(function.__code__.co_filename).resolve()
        name = ".".join(path.relative_to(files.ROOT).with_suffix("").parts)
    else:
        name = spec.name
    sys.exit(command.main(Job(name, function), sys.argv[1:]))


def run_parts(cfg: Any, run: Run, parts: Mapping[str, Callable[[Any, Run], None]]) -> None:
    """Run the parts of a job that `cfg.parts` names, in the order given there.

    Raises UserError, before any of them runs, for a name that is not in `parts` or comes twice, and for an empty list.
    """
    if not cfg.parts:
        raise UserError(f"parts is empty: choose from {', '.join(parts)}")
    for name in cfg.parts:
        choose("part", name, parts)
    if len(set(cfg.parts)) < len(cfg.parts):
        raise UserError(f"parts is {list(cfg.parts)}: name each part once")
    for name in cfg.parts:
        parts[name](cfg, run)


def find_job(paper: str, verb: str = "train") -> Job:
    """The job of a paper's verb. Raises UserError naming what there is."""
    module = module_of(paper, verb)
    return Job(module, getattr(importlib.import_module(module), verb))


def launch(paper: str, overrides: Sequence[str] = (), verb: str = "train") -> Result:
    """Run a job in this process, as `python -m papers.<paper>.<verb> <overrides>` would, and return its result.

    Raises UserError for what the user can fix, Interrupted when stopped, and whatever a bug raises; each is also written
    to the run folder. A claim that does not hold raises nothing: see `Result.exit_code` and `Result.claims`.

    >>> launch("quip_sharp", ["+exp=smoke"]).metrics["..."]                      # doctest: +SKIP
    """
    return launch_line(find_job(paper, verb), line.of(overrides))


# ---- one run ---------------------------------------------------------------------------------------------------------


def launch_line(job: Job, line: Line) -> Result:
    """Run a job as its line says, in a folder of its own or in that of `resume=`."""
    if line.resume is not None:
        return _resume(job, line.resume, line.without("resume"))
    cfg = settings.compose(job.paper, job.verb, line)
    return run_in(_new_folder(job, cfg, line), job, cfg, line)


def _new_folder(job: Job, cfg: DictConfig, line: Line) -> Path:
    if machine.rank() > 0:  # the folder belongs to rank 0, which names it to the ranks it starts
        import tempfile

        return Path(os.environ.get("PAPERS_RUN_FOLDER") or tempfile.mkdtemp(prefix="papers-rank"))
    return free_folder(runs_folder(cfg) / job.paper / line.experiment)


def runs_folder(cfg: DictConfig) -> Path:
    """Where a config's runs lie, absolute."""
    return Path(cfg.paths.runs or "runs").expanduser().absolute()


def free_folder(parent: Path) -> Path:
    """Make and return `<parent>/<YYYYmmdd-HHMMSS-xxxx>`, and point `<parent>/latest` at it. Raises UserError."""
    try:
        for _ in range(100):
            folder = parent / f"{datetime.now():%Y%m%d-%H%M%S}-{os.urandom(2).hex()}"
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                if not folder.is_dir():
                    raise
                continue
            mark(folder)
            link = parent / f".latest-{os.getpid()}"
            link.unlink(missing_ok=True)
            link.symlink_to(folder.name)
            os.replace(link, parent / "latest")
            return folder
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"cannot make a run folder under {shorten(str(parent), 160)} ({why}): "
            "set paths.runs or $PAPERS_RUNS to a folder you can write to"
        ) from None
    raise UserError(f"cannot find a free run folder name under {parent}: empty it with `papers clean`")


def mark(folder: Path) -> None:
    """Say in a folder that it is a run's, so that `papers clean` may delete it."""
    (folder / MARK).write_text("made by a run; `papers clean` may delete this folder\n")


def _resume(job: Job, name: str, extra: Line) -> Result:
    """Go on in the folder of an earlier run or sweep, with its verb, experiment and overrides."""
    for override in extra.parsed:
        if line.top(override.key_or_group) not in WHERE_ONLY:
            raise UserError(
                f"resume= takes everything from its folder and stands alone: leave out {shorten(override.input_line)!r} "
                f"(only {', '.join(WHERE_ONLY)} may be added)"
            )
    folder = Path(name).expanduser().resolve()  # `latest` may come to mean another run
    if (folder / "sweep.json").is_file():
        raise UserError(f"{folder} is a sweep: go on with it on the command line, resume={folder}")
    before = load_result(folder)
    if before.paper != job.paper:
        raise UserError(
            f"{before.folder} is a run of {before.paper}, not of {job.paper}: "
            f"resume it with `papers run {before.paper} resume={before.folder}`"
        )
    if before.verb != job.verb:
        job = find_job(before.paper, before.verb)
    whole = Line(tuple(before.overrides)).replaced(extra)
    cfg = settings.compose(job.paper, job.verb, whole)
    if settings.config_hash(settings.resolved(cfg)) != settings.config_hash(before.config):
        raise UserError(
            f"the config of {job.paper} {job.verb} has changed since {before.folder} was started: start a new run"
        )
    return run_in(before.folder, job, cfg, whole, resumed=True)


def run_in(folder: Path, job: Job, cfg: DictConfig, line: Line, resumed: bool = False) -> Result:
    """Run `job` in this folder, and say on stderr where it is. A resumed run that is done already is only read."""
    from common.processes import forget_peak_rss

    with locked(folder):
        before = load_result(folder) if resumed else None  # now that nobody else writes there
        if before and before.status == "done":
            return Result(before.folder, before.record, was_done=True)
        run = Run(folder, paper=job.paper, verb=job.verb, experiment=line.experiment, seed=cfg.seed, device=cfg.device,
                  threads=cfg.threads, config=settings.resolved(cfg), overrides=line.overrides,
                  wall_before=before.wall_s if before else 0.0, started=before.started if before else None,
                  data_before=before.data if before else None)  # fmt: skip
        run.say(f"run: {folder}")
        forget_peak_rss()
        with signals.handled():
            try:
                with machine.process_state(run):
                    run.save("running")
                    _work(run, job, cfg, line, before)
            except BaseException as error:
                ended = _ended_early(run, error)
                ended.run_folder = folder  # type: ignore[attr-defined]
                raise ended from error.__cause__
            finally:
                run.close()
        return load_result(folder) if run.is_main else Result(folder, run.to_json("done"))


def _work(run: Run, job: Job, cfg: DictConfig, line: Line, before: Result | None) -> None:
    """What happens between `running` and `done`."""
    from common import claims, loggers

    signals.stop_here()
    loggers.check(cfg.logger)
    with user_errors():
        judged = claims.read(run.paper)  # a mistake in the file shows before the work
    machine.prepare(run, cfg)
    if before and before.git_commit != result.git_state()[0]:
        run.note(f"resumed at commit {result.git_state()[0]}, started at {before.git_commit}")
    if run.is_main:
        run.loggers = loggers.make(cfg.logger, run.dir, run.config)
    with settings.reads() as read:
        job.function(cfg, run)
    if before is None:  # a resumed run does not compute, nor read, what is done
        for text in settings.unread(line, catalogue(job.paper, job.verb), read):
            run.note(f"{text} changes nothing: no part of this run reads it")
    if run.verb != "train":  # its figures are on what the user gave it: only claims on such a figure concern it
        judged = [claim for claim in judged if claim["metric"] in run.metrics]
    run.claims, notes = claims.judge(judged, run.experiment, run.metrics, run.timings, run.data)
    for note in notes:
        run.note(note)
    if run.claims and (changed := claims.changed(line.overrides)):
        run.note(f"the claims are shown for information: the experiment was changed by {' '.join(changed)}")
    signals.stop_here()
    run.save("done")


def _ended_early(run: Run, error: BaseException) -> BaseException:
    """Write how the run ended and return the exception to raise in its place."""
    error = exits.as_ending(error)
    if isinstance(error, SystemExit):
        error = RuntimeError(f"the job called sys.exit({error.code!r}): a job returns, or raises UserError")
    code = exits.code_of(error)
    run.error = {"exit_code": code, "message": str(error) or type(error).__name__}
    with contextlib.suppress(OSError):  # no room to say that there is no room
        if code == exits.BUG and run.is_main:
            files.write_atomic(run.dir / "traceback.txt", "".join(traceback.format_exception(error)))
        run.save("interrupted" if isinstance(error, Interrupted) else "failed")
    return error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system lets go of it when the process dies, however it dies."""
    from filelock import FileLock, Timeout

    if machine.rank() > 0:
        yield
        return
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"{folder} is in use by another process: wait for it, or start a run of your own") from None
    except OSError as error:
        raise as_user_error(error) from None
    try:
        yield
    finally:
        lock.release()
