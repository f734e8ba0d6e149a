"""A job as a command: what it prints, --help and --cfg job, exit codes, and why it ended early, in one sentence."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Sequence

from common import configs, experiment
from common.errors import Interrupted, UserError, as_user_error
from common.run import rank


def main(job: experiment.Job, argv: Sequence[str]) -> int:
    """Run a command line and return its exit code; everything a user sees on the way is printed here."""
    try:
        line = configs.parse_line(argv)
        from common import report

        if "help" in line.flags:
            print(help_text(job))
            return flushed(0)
        if "cfg" in line.flags:
            print(config_text(job, line), end="")
            return flushed(0)
        if "multirun" in line.flags:
            from common import sweep

            return flushed(sweep.run(job, line.overrides))
        outcome = experiment.launch_line(job, line.overrides)
        if rank() == 0:
            with contextlib.suppress(BrokenPipeError, SystemExit):  # (rich exits) the reader had enough
                report.show_result(outcome.record if outcome.was_done else outcome.record | {"notes": []})
                print(f"result: {outcome.folder / 'result.json'}")
        return flushed(outcome.exit_code)
    except BaseException as error:
        return explain(error)


def explain(error: BaseException) -> int:
    """Say on stderr why a command ends early, and return its exit code. Bugs keep their traceback."""
    error = as_user_error(error)
    folder = getattr(error, "run_folder", None)
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, BrokenPipeError):
        return flushed(0)  # the reader of our output had enough
    if isinstance(error, UserError):
        code = 2
        print(f"error: {error}", file=sys.stderr)
    elif isinstance(error, (Interrupted, KeyboardInterrupt)):
        code = error.code if isinstance(error, Interrupted) else 130
        print(
            f"interrupted: what was finished is kept{f', go on with resume={folder}' if folder else ''}",
            file=sys.stderr,
        )
    else:
        code = 1
        traceback.print_exception(error)
        kept = f"; the traceback is also in {folder / 'traceback.txt'}" if folder else ""
        print(f"this is a bug: {type(error).__name__}{kept}", file=sys.stderr)
    if folder and rank() == 0 and (folder / "result.json").exists():
        with contextlib.suppress(OSError):
            print(f"result: {folder / 'result.json'}")
    return flushed(code)


def flushed(code: int) -> int:
    """`code`, or 2 where stdout cannot be written (a full disk, a closed pipe), without Python's own complaint at exit."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return code
        print(f"error: cannot write to the output ({error.strerror}): send it to a place with room", file=sys.stderr)
        return 2
    return code


def help_text(job: experiment.Job) -> str:
    """What --help prints: experiments with a line each, then every key with its comment."""
    found = configs.experiments(job.paper, job.verb)
    width = max((len(e.name) for e in found), default=0)
    listed = "".join(f"  {e.name:<{width}}  {e.title}\n" for e in found) or "  (none)\n"
    available = {k: v for k, v in configs.groups(job.paper, job.verb).items() if k != "exp"}
    chosen = "".join(f"  {name}={'|'.join(options)}\n" for name, options in available.items())
    return (
        f"python -m {job.module} [+exp=EXPERIMENT] [key=value ...] [-m] [--cfg job] [resume=RUN_FOLDER]\n\n"
        f"{_first_line(job)}\n\nexperiments (+exp=...)\n{listed}\ngroups\n{chosen}\n"
        f"keys of this job, with their defaults\n{_indented(configs.read_text(job.paper, job.verb))}\n"
        f"keys of every job\n{_indented(configs.read_text('common', 'base'))}\n"
        "-m runs a sweep (seed=0,1,2); --cfg job prints the composed config; resume= goes on with a run that was stopped"
    )


def _first_line(job: experiment.Job) -> str:
    doc = job.function.__globals__.get("__doc__") or ""
    return doc.strip().splitlines()[0] if doc.strip() else job.module


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


def config_text(job: experiment.Job, line: configs.CommandLine) -> str:
    """The composed config as YAML: `--cfg job`."""
    from omegaconf import OmegaConf

    cfg = configs.compose(job.paper, job.verb, line.overrides)
    if package := line.flags.get("package"):
        if (part := OmegaConf.select(cfg, package)) is None:
            raise UserError(f"the config has no part {package!r}: its parts are {', '.join(map(str, cfg))}")
        cfg = part
    return OmegaConf.to_yaml(cfg) if OmegaConf.is_config(cfg) else f"{cfg}\n"
