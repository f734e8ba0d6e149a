"""Run a job: `main(train)` makes a function `train(cfg, run)` the command of its file, `launch` runs it from Python.

The way of a run: the line is parsed and checked, Hydra composes the config, a folder is opened and locked, result.json
says `running`, the job does its work, the claims are judged, result.json says `done`. See docs/design.md.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from common import configs, files, machine, result
from common.errors import Interrupted, UserError, as_user_error, choose, user_errors
from common.result import Result, load_result
from common.run import Run, free_folder, rank

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["Job", "Result", "Run", "launch", "load_result", "main", "run_parts"]

MAY_CHANGE_ON_RESUME = ("logger", "device", "threads", "paths")


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

    module = function.__globals__["__spec__"]  # the file was started by its path, not with -m, where this is None
    if module is None:
        path = Path(function.__code__.co_filename).resolve()
        name = ".".join(path.relative_to(files.ROOT).with_suffix("").parts)
    else:
        name = module.name
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


def module_of(paper: str, verb: str) -> str:
    """The module of a job: `papers.<paper>.<verb>`, or `<paper>.<verb>` where a package of jobs lies beside papers.

    Raises UserError naming what there is.
    """
    if paper not in configs.papers() and not (files.ROOT / "configs" / paper).is_dir() or paper == "common":
        raise UserError(f"unknown paper {paper!r}: {configs.known('the papers are', paper, configs.papers())}")
    if verb not in configs.verbs(paper):
        raise UserError(f"{paper} has no verb {verb!r}: {configs.known('its verbs are', verb, configs.verbs(paper))}")
    return f"papers.{paper}.{verb}" if paper in configs.papers() else f"{paper}.{verb}"


def launch(paper: str, overrides: Sequence[str] = (), verb: str = "train") -> Result:
    """Run a job in this process, as `python -m papers.<paper>.<verb> <overrides>` would, and return its result.

    Raises UserError for what the user can fix, Interrupted when stopped, and whatever a bug raises; each is also written
    to the run folder. A claim that does not hold raises nothing: see `Result.exit_code` and `Result.claims`.

    >>> launch("quip_sharp", ["+exp=smoke"]).metrics["..."]                      # doctest: +SKIP
    """
    return launch_line(find_job(paper, verb), configs.parse_line(overrides).overrides)


# ---- one run ---------------------------------------------------------------------------------------------------------


def launch_line(job: Job, overrides: Sequence[str]) -> Result:
    """Run a job with overrides as `configs.parse_line` gives them, in a folder of its own or in that of `resume=`."""
    resume = next((text for text in overrides if text.startswith("resume=") and text != "resume=null"), None)
    if resume is not None:
        return _resume(job, resume.partition("=")[2].strip("'\""), [text for text in overrides if text != resume])
    cfg = configs.compose(job.paper, job.verb, overrides)
    if any(text.startswith(("launcher=", "hydra/launcher=")) for text in overrides):
        raise UserError("launcher= runs the jobs of a sweep: add -m, or leave it out")
    return run_in(_new_folder(job, cfg, overrides), job, cfg, overrides)


def _new_folder(job: Job, cfg: DictConfig, overrides: Sequence[str]) -> Path:
    if rank() > 0:  # the folder belongs to rank 0, which names it to the ranks it starts
        import tempfile

        return Path(os.environ.get("PAPERS_RUN_FOLDER") or tempfile.mkdtemp(prefix="papers-rank"))
    runs = Path(cfg.paths.runs or "runs").expanduser().absolute()
    return free_folder(runs / job.paper / configs.experiment_of(overrides))


def _resume(job: Job, folder: str, extra: Sequence[str]) -> Result:
    """Go on in the folder of an earlier run, with its verb, experiment and overrides."""
    if not folder:
        raise UserError("resume= needs the folder of a run: resume=runs/<paper>/<experiment>/<run>")
    for text in extra:
        if text.lstrip("+").partition("=")[0].split(".")[0] not in MAY_CHANGE_ON_RESUME:
            raise UserError(
                f"resume= takes everything from its folder and stands alone: leave out {text!r} (only {', '.join(MAY_CHANGE_ON_RESUME)} may be added)"
            )
    before = load_result(Path(folder).expanduser().resolve())  # `latest` may come to mean another run
    if before.paper != job.paper:
        raise UserError(
            f"{before.folder} is a run of {before.paper}, not of {job.paper}: resume it with `papers run {before.paper} resume={before.folder}`"
        )
    if before.verb != job.verb:
        job = find_job(before.paper, before.verb)
    replaced = {text.partition("=")[0] for text in extra}
    overrides = [text for text in before.overrides if text.partition("=")[0] not in replaced] + list(extra)
    cfg = configs.compose(job.paper, job.verb, overrides)
    from omegaconf import OmegaConf

    now = OmegaConf.to_container(cfg, resolve=True)
    if configs.config_hash(files.plain(now)) != configs.config_hash(before.config):
        raise UserError(
            f"the config of {job.paper} {job.verb} has changed since {before.folder} was started: start a new run"
        )
    return run_in(before.folder, job, cfg, overrides, resumed=True)


def run_in(folder: Path, job: Job, cfg: DictConfig, overrides: Sequence[str], resumed: bool = False) -> Result:
    """Run `job` in this folder, and say on stderr where it is. A resumed run that is done already is only read."""
    from omegaconf import OmegaConf

    from common.processes import forget_peak_rss

    with locked(folder):
        before = load_result(folder) if resumed else None  # now that nobody else writes there
        if before and before.status == "done":
            return Result(before.folder, before.record, was_done=True)
        config = files.plain(OmegaConf.to_container(cfg, resolve=True))
        run = Run(folder, paper=job.paper, verb=job.verb, experiment=configs.experiment_of(overrides), seed=cfg.seed,
                  device="cpu", threads=cfg.threads, config=config, overrides=overrides,
                  wall_before=before.wall_s if before else 0.0, started=before.started if before else None,
                  data_before=before.data if before else None)  # fmt: skip
        run.say(f"run: {folder}")
        forget_peak_rss()
        try:
            with _signals(run), machine.process_state(run):
                run.save("running")
                _work(run, job, cfg, before)
        except BaseException as error:
            ended = _ended_early(run, error)
            ended.run_folder = folder  # type: ignore[attr-defined]
            raise ended from error.__cause__
        finally:
            run.close()
        return load_result(folder) if run.is_main else Result(folder, run.record("done"))


def _work(run: Run, job: Job, cfg: DictConfig, before: Result | None) -> None:
    """What happens between `running` and `done`."""
    from common import claims, loggers

    loggers.check(cfg.logger)
    with user_errors():
        judged = claims.read(run.paper)  # a mistake in the file shows before the work
    machine.prepare(run, cfg)
    if before and before.git_commit != result.git_state()[0]:
        run.note(f"resumed at commit {result.git_state()[0]}, started at {before.git_commit}")
    if run.is_main:
        run.loggers = loggers.make(cfg.logger, run.dir, run.config)
    job.function(cfg, run)
    if (
        run.verb != "train"
    ):  # its figures are on what the user gave it: of the claims only those on such a figure concern it
        judged = [claim for claim in judged if claim["metric"] in run.metrics]
    run.claims, notes = claims.judge(judged, run.experiment, run.metrics, run.timings, run.data)
    for note in notes:
        run.note(note)
    changed = [
        text
        for text in run.overrides
        if text.lstrip("+").partition("=")[0].split(".")[0] not in ("exp", "seed", *configs.WHERE_ONLY)
    ]
    if run.claims and changed:
        run.note(f"the claims are judged although the experiment was changed: {' '.join(changed)}")
    run.save("done")


def _ended_early(run: Run, error: BaseException) -> BaseException:
    """Write how the run ended and return the exception to raise in its place."""
    error = as_user_error(error)
    if isinstance(error, KeyboardInterrupt):
        error = Interrupted(130)
    if isinstance(error, SystemExit):
        error = RuntimeError(f"the job called sys.exit({error.code!r}): a job returns, or raises UserError")
    status = "interrupted" if isinstance(error, Interrupted) else "failed"
    code = error.code if isinstance(error, Interrupted) else 2 if isinstance(error, UserError) else 1
    run.error = {"exit_code": code, "message": str(error) or type(error).__name__}
    with contextlib.suppress(OSError):  # no room to say that there is no room
        if code == 1 and run.is_main:
            files.write_atomic(run.dir / "traceback.txt", "".join(traceback.format_exception(error)))
        run.save(status)
    return error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system lets go of it when the process dies, however it dies."""
    from filelock import FileLock, Timeout

    if rank() > 0:
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


@contextlib.contextmanager
def _signals(run: Run) -> Iterator[None]:
    """SIGINT and SIGTERM stop the run; inside a resumable loop they wait for the step to end, unless sent twice."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        code = 128 + number
        if run.holding_signals and run.deferred_stop is None:
            run.deferred_stop = code
            run.say("stopping after this step; once more to stop at once")
        else:
            raise Interrupted(code)

    with machine.handling_signals(stop):
        yield
