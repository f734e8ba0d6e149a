"""A job as a command: --help, --cfg job, one run or a sweep, what is printed, and the exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from common import exits, experiment, settings, signals
from common.catalogue import catalogue, read_yaml
from common.errors import UserError
from common.line import Line, parse_line
from common.machine import rank


def main(job: experiment.Job, argv: Sequence[str]) -> int:
    """Run a command line and return its exit code; everything a user sees on the way is printed here."""
    exits.open_streams()
    with signals.handled():
        try:
            return exits.flushed(_run(job, parse_line(argv)))
        except BaseException as error:
            return exits.explain(error)


def _run(job: experiment.Job, line: Line) -> int:
    if "help" in line.flags:
        print(help_text(job))
        return exits.DONE
    if "cfg" in line.flags:
        print(config_text(job, line), end="")
        return exits.DONE
    from common import sweep

    if "multirun" in line.flags or sweep.is_sweep(line.resume):
        return sweep.run(job, line)
    from common import report

    outcome = experiment.launch_line(job, line)
    if rank() == 0:
        with contextlib.suppress(BrokenPipeError, SystemExit):  # (rich exits) the reader had enough
            report.show_result(outcome.record if outcome.was_done else outcome.record | {"notes": []})
            print(f"result: {outcome.folder / 'result.json'}")
    return outcome.exit_code


def help_text(job: experiment.Job) -> str:
    """What --help prints: experiments with a line each, then every key with its comment."""
    found = catalogue(job.paper, job.verb)
    width = max((len(e.name) for e in found.experiments), default=0)
    listed = "".join(f"  {e.name:<{width}}  {e.title}\n" for e in found.experiments) or "  (none)\n"
    available = {k: v for k, v in found.groups.items() if k != "exp"}
    chosen = "".join(f"  {name}={'|'.join(options)}\n" for name, options in available.items())
    return (
        f"python -m {job.module} [+exp=EXPERIMENT] [key=value ...] [-m] [--cfg job] [resume=RUN_FOLDER]\n\n"
        f"{_first_line(job)}\n\nexperiments (+exp=...)\n{listed}\ngroups\n{chosen}\n"
        f"keys of this job, with their defaults\n{_indented(read_yaml(job.paper, job.verb))}\n"
        f"keys of every job\n{_indented(read_yaml('common', 'base'))}\n"
        "-m runs a sweep (seed=0,1,2); --cfg job prints the composed config; resume= goes on with a run or sweep that was stopped"
    )


def _first_line(job: experiment.Job) -> str:
    doc = job.function.__globals__.get("__doc__") or ""
    return doc.strip().splitlines()[0] if doc.strip() else job.module


def _indented(text: str) -> str:
    return "".join(f"  {row}\n" for row in text.splitlines())


def config_text(job: experiment.Job, line: Line) -> str:
    """The composed config as YAML: `--cfg job`."""
    from omegaconf import OmegaConf

    cfg = settings.compose(job.paper, job.verb, line)
    if package := line.flags.get("package"):
        if (part := OmegaConf.select(cfg, package)) is None:
            raise UserError(f"the config has no part {package!r}: its parts are {', '.join(map(str, cfg))}")
        cfg = part
    return OmegaConf.to_yaml(cfg) if OmegaConf.is_config(cfg) else f"{cfg}\n"
