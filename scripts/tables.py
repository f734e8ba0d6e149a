"""Run the papers' claims, record them (papers/<name>/record) and write the pages.

    python -m scripts.tables [--slow] [--all] [--adopt REASON] [PAPER ...]

Runs `+exp=ci` of each paper, one thread each, as many at once as there are cores; `--slow` adds the other experiments that
are recorded. What stands in the record is not run again (see scripts/fingerprints.py), and a run that was interrupted is
resumed. `--all` measures anew what is declared to have the figures of an earlier state, and fails where it has not;
`--adopt REASON` declares that for whatever is recorded and would have to be run, and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from common import cards, catalogue, claims, exits, files, report, result
from common.data import locate, registry
from common.errors import UserError, did_you_mean
from common.processes import Service
from scripts import fingerprints, pages, record

POLL = 0.2  # seconds between looks at the running jobs
COMMAND = [sys.executable, "-m", "papers"]


@dataclass
class TableJob:
    """One experiment of one paper, and what is known of it."""

    paper: str
    experiment: str
    fingerprint: str
    folder: str | None = None  # of an interrupted run to go on with
    service: Service | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return f"{self.paper} {self.experiment}"


# ---- what has to be run ----------------------------------------------------------------------------------------------


def wanted(papers: Sequence[str], slow: bool) -> list[TableJob]:
    """The experiments that belong in the tables: `ci`, and with `slow` those of other claims and of paper.yaml's `record`."""
    jobs = []
    for paper in papers:
        names = ["ci"]
        if slow:
            here = [claim for claim in claims.read(paper) if all(map(can_be_met, claim["requires"]))]
            others = {name for claim in here for name in claim["experiments"]} | set(cards.card(paper).record)
            names += sorted(others - {"default", "ci", "smoke"})
        jobs += [TableJob(paper, name, fingerprints.fingerprint(paper, name)) for name in names]
    return jobs


def can_be_met(need: str) -> bool:
    """Whether a `requires` entry may be met here: False for a data set that is not on this machine."""
    name = need.partition("@")[0]
    return name not in registry.entries() or locate.status(name)[0] == "found"


def due(jobs: Sequence[TableJob], everything: bool) -> list[TableJob]:
    """The jobs whose result does not stand; with `everything` also those that only a declaration keeps standing."""
    found = []
    for job in jobs:
        recorded = record.read(job.paper)
        run = recorded["runs"].get(job.experiment)
        why = fingerprints.why_stale(job.paper, job.experiment, run, job.fingerprint)
        if why is None and everything and run and job.fingerprint not in run["fingerprints"].values():
            why = "it is declared to be as it was"
        if why is None and missing(recorded, job.experiment):
            why = "a claim of it has no figure yet"
        if why:
            print(f"{job.name}: {why}", file=sys.stderr)
            found.append(job)
    return found


def missing(recorded: dict[str, Any], experiment: str) -> list[str]:
    """The claims of a recorded experiment that came after its run and that the run has not measured."""
    ids = {c["id"] for c in recorded["claims"] if c["experiment"] == experiment}
    shown = record.current(recorded["paper"], recorded)
    return [c["id"] for c in shown if c["experiment"] == experiment and c["id"] not in ids and c.get("unmeasured")]


# ---- running ---------------------------------------------------------------------------------------------------------


class Pending:
    """Run folders of jobs that have begun, so that the next call goes on with them: `<runs>/tables.json`."""

    def __init__(self, runs: Path):
        self.path = runs / "tables.json"
        try:
            self.folders: dict[str, str] = json.loads(self.path.read_text())
        except (OSError, ValueError):
            self.folders = {}

    def folder(self, job: TableJob) -> str | None:
        """Where a run of this very job lies that is unfinished, or done and not recorded yet (`resume=` then only reads it)."""
        folder = self.folders.get(job.fingerprint)
        try:
            return (
                folder if folder and result.load_result(folder).status in ("running", "interrupted", "done") else None
            )
        except UserError:
            return None

    def note(self, job: TableJob, folder: str | None) -> None:
        self.folders = {k: v for k, v in self.folders.items() if k != job.fingerprint}
        if folder:
            self.folders[job.fingerprint] = folder
        files.write_json(self.path, self.folders)


def start(job: TableJob, runs: Path) -> None:
    """Begin a job in a process of its own, with one thread."""
    words = [f"resume={job.folder}"] if job.folder else [f"+exp={job.experiment}", "threads=1", f"paths.runs={runs}"]
    log = runs / f"tables-{job.paper}-{job.experiment}.log"
    log.unlink(missing_ok=True)
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    # a Service dies with us, kill -9 included: nothing would hold the folder's lock against the next call
    job.service = Service(
        job.name,
        [*COMMAND, "run", job.paper, catalogue.verb_of(job.paper, job.experiment), *words],
        log,
        cwd=files.ROOT,
        env={**os.environ, **threads},
    )


def run_folder(job: TableJob) -> str | None:
    """The run folder that a started job has named in its log, None where it has not yet."""
    text = job.service.log.read_text() if job.service else ""
    return next((line[5:] for line in text.splitlines() if line.startswith("run: ")), None)


def run_all(jobs: list[TableJob], runs: Path) -> list[str]:
    """Run jobs side by side, record each as it ends, and return what went wrong, a line each."""
    from common.progress import Progress

    pending, waiting = Pending(runs), list(jobs)
    running: list[TableJob] = []
    failed: list[str] = []
    cores = result.available_cores()
    progress = Progress()

    def ended() -> Iterator[TableJob]:
        while waiting or running:
            while waiting and len(running) < cores:
                job = waiting.pop(0)
                job.folder = pending.folder(job)
                start(job, runs)
                running.append(job)
            time.sleep(POLL)
            for job in list(running):
                if job.folder is None and (folder := run_folder(job)):
                    job.folder = folder
                    pending.note(job, folder)
                if job.service and job.service.process.poll() is not None:
                    job.folder = job.folder or run_folder(job)
                    running.remove(job)
                    yield job

    try:
        for job in progress.track(ended(), "tables", len(jobs)):
            code = job.service.stop() if job.service else 1
            if code in (0, 3) and job.folder:
                failed += keep(job, result.load_result(job.folder))
                pending.note(job, None)
            else:
                log = job.service.log if job.service else runs
                last = (log.read_text().strip().splitlines() or ["no output"])[-1]
                failed.append(f"{job.name} failed with {code}: {last} (see {log})")
                print(failed[-1], file=sys.stderr)
    finally:
        for job in running:
            if job.service:
                job.service.process.terminate()  # all at once: each saves its state, and the next call goes on
        for job in running:
            if job.service:
                job.service.stop(grace=30)
        progress.close()
    return failed


def keep(job: TableJob, run: result.Result) -> list[str]:
    """Record a run and write the pages; a line where it was declared to change no figure and has changed some."""
    recorded = record.read(job.paper)
    before = json.loads(json.dumps(recorded))
    known = (before["runs"].get(job.experiment) or {}).get("fingerprints", {}).values()
    declared = any(
        job.fingerprint in fingerprints.same_as(job.paper, job.experiment, old)
        for old in known
        if old != job.fingerprint
    )
    record.add(recorded, job.experiment, job.fingerprint, run)
    record.write(recorded)
    fingerprints.forget(job.paper, job.experiment)
    pages.write()
    changed = record.differences(before, recorded, job.experiment) if declared else []
    if not changed:
        return []
    line = f"{job.name} was declared to have the figures it had, and has not: {', '.join(changed)}"
    print(line, file=sys.stderr)
    return [line]


# ---- the command -----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """0 where every gated claim holds, 3 where one does not or was not measured, 1 where a run failed."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.tables", description="Run the papers' claims, record them and write the pages."
    )
    parser.add_argument("papers", nargs="*", help="default: all")
    parser.add_argument("--slow", action="store_true", help="also the experiments that take longer than a ci may")
    parser.add_argument("--all", action="store_true", help="also what is declared to have the figures it had before")
    parser.add_argument("--render", action="store_true", help="run nothing, write the pages")
    parser.add_argument(
        "--adopt", metavar="REASON", help="declare that what is recorded has the same figures now; run nothing"
    )
    arguments = parser.parse_args(argv)
    runs = Path(os.environ.get("PAPERS_RUNS") or files.ROOT / "runs").absolute()
    papers = arguments.papers or catalogue.papers()
    failed: list[str] = []
    try:
        if unknown := sorted(set(arguments.papers) - set(catalogue.papers())):
            raise UserError(
                f"unknown paper {unknown[0]!r}: {did_you_mean('the papers are', unknown[0], catalogue.papers())}"
            )
        if arguments.adopt is not None and not arguments.adopt.strip():
            raise UserError("--adopt takes a reason: say why no figure has changed")
        pages.rendered()  # a chapter without its markers is said before the work
        jobs = [] if arguments.render else wanted(papers, arguments.slow or arguments.adopt is not None)
        with FileLock(pages.ROOT / "docs" / ".tables.lock", timeout=0):  # two would overwrite each other's record
            if arguments.adopt is not None:
                adopt(jobs, arguments.adopt)
            elif not arguments.render:
                chosen = due(jobs, arguments.all)
                print(f"{len(chosen)} of {len(jobs)} experiments to run", file=sys.stderr)
                runs.mkdir(parents=True, exist_ok=True)
                failed = run_all(chosen, runs)
            pages.write()
    except Timeout:
        return exits.explain(UserError("the tables are being made by another process: wait for it"))
    except (UserError, OSError, ValueError, KeyboardInterrupt) as error:
        return exits.explain(error)
    return summary(papers, failed)


def adopt(jobs: Sequence[TableJob], reason: str) -> None:
    """Declare, for every recorded job whose fingerprint is another now, that its figures are the same."""
    for job in jobs:
        run = record.read(job.paper)["runs"].get(job.experiment)
        if run and fingerprints.why_stale(job.paper, job.experiment, run, job.fingerprint):
            if changed := fingerprints.changed_data(run["data"]):
                raise UserError(f"{job.name} cannot be declared unchanged: {changed}; run the tables")
            fingerprints.declare(job.paper, job.experiment, run, job.fingerprint, reason)
            print(f"{job.name}: declared the same ({reason})")


def summary(papers: Sequence[str], failed: list[str]) -> int:
    """Say what of these papers' claims does not hold or was not measured, and return the exit code."""
    shown = {paper: record.current(paper, record.read(paper)) for paper in papers}
    gated = [(paper, claim) for paper, found in shown.items() for claim in found if claim["gate"]]
    code = 0
    for paper, claim in gated:
        if claim["holds"] is False:
            print(
                f"{paper} {claim['id']} does not hold: {report.number(claim['value'])}, threshold {report.threshold(claim)}"
            )
            code = 3
        elif claim.get("unmeasured"):
            print(f"{paper} {claim['id']} was not measured: no figure is called {claim['metric']}")
            code = 3
        elif claim["holds"] is None:
            print(f"{paper} {claim['id']}: {report.verdict(claim)}")
    print(
        f"gated claims: {report.counted([claim for _, claim in gated])}; {pages.ROOT / 'docs' / 'results' / 'index.md'}"
    )
    return 1 if failed else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
