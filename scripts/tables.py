"""Run every paper's claims and render the headline tables under docs/results.

    python -m scripts.tables [--slow] [PAPER ...]

Runs `+exp=ci` of each paper, one thread each, as many at once as there are cores; `--slow` adds the other experiments
that claims are judged in. What is recorded with an unchanged fingerprint is not run again, and a run that was interrupted
is resumed. `--render` only renders what is recorded.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from common import claims, command, configs, files, report, result
from common.data import registry
from common.errors import UserError
from common.processes import Service
from scripts import pages

SCHEMA = 1
KINDS = ("real", "package", "synthetic")
POLL = 0.2  # seconds between looks at the running jobs
COMMAND = [sys.executable, "-m", "papers"]


@dataclass
class Entry:
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


def wanted(papers: Sequence[str], slow: bool) -> list[Entry]:
    """The experiments whose claims belong in the tables."""
    jobs = []
    for paper in papers:
        chapter = configs.folder_of(f"papers.{paper}") / "README.md"
        if not chapter.exists() or not {pages.BEGIN, pages.END} <= set(chapter.read_text().splitlines()):
            raise UserError(
                f"{chapter} has no lines {pages.BEGIN} and {pages.END}: put them where the table of claims belongs"
            )
        names = ["ci"]
        if slow:
            here = [claim for claim in claims.read(paper) if all(map(can_be_met, claim["requires"]))]
            names += sorted({name for claim in here for name in claim["experiments"]} - {"default", "ci", "smoke"})
        jobs += [Entry(paper, name, fingerprint(paper, name)) for name in names]
    return jobs


def can_be_met(need: str) -> bool:
    """Whether a `requires` entry may be met here: False for a data set that is not on this machine."""
    name = need.partition("@")[0]
    return name not in registry.entries() or registry.status(name)[0] == "found"


def fingerprint(paper: str, name: str) -> str:
    """What a result depends on: the paper's code and all it imports, its configs, the data here, Python and pinned versions."""
    from common.data import stdlib

    sources = import_closure(paper)
    sources |= {path for folder in configs.config_folders(paper) for path in folder.rglob("*.yaml")}
    sources |= {configs.folder_of(f"papers.{paper}") / "claims.yaml", files.ROOT / "constraints.txt"}
    sources = {path for path in sources if path.is_file()}
    text = "".join(path.read_text() for path in sources if path.suffix in (".py", ".yaml"))
    data: dict[str, str] = {}
    for found, entry in registry.entries().items():
        if found in text and (state := registry.status(found))[0] == "found":
            data[found] = registry.combined_sha(entry, Path(state[1]))
    if "stdlib" in text:
        data["stdlib"] = stdlib.load().sha256
        sources |= set((files.ROOT / "data" / "models" / "stdlib_lm").glob("*.safetensors"))
    shas = sorted((os.path.relpath(path, files.ROOT), files.sha256_of(path)) for path in sources)
    return files.digest([name, shas, data, result.versions()["python"]])


def import_closure(paper: str) -> set[Path]:
    """The files of a paper and every file of this repository that they import, directly or not."""
    found: set[Path] = set()
    waiting = list(configs.folder_of(f"papers.{paper}").rglob("*.py"))
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += imported_files(path)
    return found


def imported_files(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.split(".")[0] in ("common", "papers"):
                base = files.ROOT / name.replace(".", "/")
                yield from (file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file())


# ---- running ---------------------------------------------------------------------------------------------------------


class Pending:
    """Run folders of jobs that have begun, so that the next call goes on with them: `<runs>/tables.json`."""

    def __init__(self, runs: Path):
        self.path = runs / "tables.json"
        try:
            self.folders: dict[str, str] = json.loads(self.path.read_text())
        except (OSError, ValueError):
            self.folders = {}

    def folder(self, job: Entry) -> str | None:
        """Where a run of this very job lies that is unfinished, or done and not recorded yet (`resume=` then only reads it)."""
        folder = self.folders.get(job.fingerprint)
        try:
            return (
                folder if folder and result.load_result(folder).status in ("running", "interrupted", "done") else None
            )
        except UserError:
            return None

    def note(self, job: Entry, folder: str | None) -> None:
        self.folders = {k: v for k, v in self.folders.items() if k != job.fingerprint}
        if folder:
            self.folders[job.fingerprint] = folder
        files.write_json(self.path, self.folders)


def start(job: Entry, runs: Path) -> None:
    """Begin a job in a process of its own, with one thread."""
    words = [f"resume={job.folder}"] if job.folder else [f"+exp={job.experiment}", "threads=1", f"paths.runs={runs}"]
    log = runs / f"tables-{job.paper}-{job.experiment}.log"
    log.unlink(missing_ok=True)
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    # a Service dies with us, kill -9 included: nothing would hold the folder's lock against the next call
    job.service = Service(
        job.name,
        [*COMMAND, "run", job.paper, configs.verb_of(job.paper, job.experiment), *words],
        log,
        cwd=files.ROOT,
        env={**os.environ, **threads},
    )


def run_folder(job: Entry) -> str | None:
    """The run folder that a started job has named in its log, None where it has not yet."""
    text = job.service.log.read_text() if job.service else ""
    return next((line[5:] for line in text.splitlines() if line.startswith("run: ")), None)


def run_all(jobs: list[Entry], runs: Path, recorded: dict[str, Any]) -> list[str]:
    """Run jobs side by side, record each as it ends, and return the names of those that failed."""
    from common.progress import Progress

    pending, waiting = Pending(runs), list(jobs)
    running: list[Entry] = []
    failed: list[str] = []
    cores = result.available_cores()
    progress = Progress()

    def ended() -> Iterator[Entry]:
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
                record(recorded, job, result.load_result(job.folder))
                pages.write(recorded)
                pending.note(job, None)
            else:
                failed.append(job.name)
                log = job.service.log if job.service else runs
                last = (log.read_text().strip().splitlines() or ["no output"])[-1]
                print(f"{job.name} failed with {code}: {last} (see {log})", file=sys.stderr)
    finally:
        for job in running:
            if job.service:
                job.service.process.terminate()  # all at once: each saves its state, and the next call goes on
        for job in running:
            if job.service:
                job.service.stop(grace=30)
        progress.close()
    return failed


# ---- the record ------------------------------------------------------------------------------------------------------


def read() -> dict[str, Any]:
    """What docs/results/results.json holds. Raises UserError where it is damaged."""
    path = pages.RESULTS / "results.json"
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {"schema": SCHEMA, "generated": None, "machine": None, "versions": None, "papers": {}}
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): check it out again, or delete it and run all papers") from None


def record(recorded: dict[str, Any], job: Entry, run: result.Result) -> None:
    """Put a run into the record. A claim that requires what is not here keeps what was recorded for it before."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    paper = recorded["papers"].setdefault(job.paper, {"wall_s": None, "peak_rss_mb": None, "claims": [], "runs": {}})
    for claim in run.claims:
        kind = kind_of_data(claim, run.data)
        entry = claim | {"experiment": job.experiment, "recorded_at": now, "data": kind}
        same = [c for c in paper["claims"] if (c["id"], c["experiment"]) == (claim["id"], job.experiment)]
        elsewhere = not all(claims.available(need, run.data) for need in claim["requires"])
        if elsewhere and any(c["value"] is not None for c in same):
            continue  # it cannot be measured here: what was measured elsewhere stays
        paper["claims"] = [c for c in paper["claims"] if c not in same] + [entry]
    paper["claims"] = current(paper["claims"], claims.read(job.paper))
    previous = paper["runs"].get(job.experiment)
    kind = kind_of_run(run.data)
    seen = (previous["fingerprints"] if previous else {}) | {kind: job.fingerprint}
    if previous and KINDS.index(previous["kind"]) < KINDS.index(kind):
        paper["runs"][job.experiment] = previous | {"fingerprints": seen}
    else:
        paper["runs"][job.experiment] = {
            "kind": kind,
            "fingerprints": seen,
            "recorded_at": now,
            "figures": copy_figures(job, run),
            "notes": [without_paths(note) for note in run.notes],
            "data": clean(run.data),
            **{name: getattr(run, name) for name in ("git_commit", "seed", "wall_s", "peak_rss_mb", "tables")},
        }
    paper["wall_s"] = sum(r["wall_s"] for r in paper["runs"].values())
    paper["peak_rss_mb"] = max(r["peak_rss_mb"] for r in paper["runs"].values())
    recorded |= {"schema": SCHEMA, "generated": now, "machine": run.machine, "versions": run.versions}


def current(recorded: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The recorded claims as the claims file has them now, judged by its thresholds, in its order; the others are dropped."""
    found = []
    for claim in now:
        for old in (c for c in recorded if c["id"] == claim["id"]):
            measured = old["value"] is not None
            found.append(old | claim | {"holds": claims.verdict(claim, old["value"]) if measured else old["holds"]})
    return found


def without_paths(note: str) -> str:
    """A note as it may be published: without the folders of the machine it was made on."""
    return re.sub(r"(?<![\w:/.])/(?:[\w.+=-]+/)+([\w.+=-]+)", r"\1", note)


def clean(data: dict[str, Any]) -> dict[str, Any]:
    """Data records without the paths of the machine they were used on."""
    return {name: {"source": entry["source"], "sha256": entry["sha256"]} for name, entry in data.items()}


def kind_of_data(claim: dict[str, Any], data: dict[str, Any]) -> str:
    """real, package or synthetic: of the data the claim requires, else of the least real data in the run (a claim on real
    data requires them)."""
    required = {name: data[name] for need in claim["requires"] if (name := need.partition("@")[0]) in data}
    if required:
        return kind_of_run(required)
    return max((kind_of_run({"": entry}) for entry in data.values()), key=KINDS.index, default="synthetic")


def kind_of_run(data: dict[str, Any]) -> str:
    """The most real kind of data in a run."""
    sources = {entry["source"] for entry in data.values()}
    return "real" if "real" in sources else "package" if {"package", "artefact"} & sources else "synthetic"


def copy_figures(job: Entry, run: result.Result) -> list[str]:
    """Copy a run's figures beside the pages, in 256 colours; returns their paths relative to docs/results."""
    from PIL import Image

    target = pages.RESULTS / "figures" / job.paper / job.experiment
    shutil.rmtree(target, ignore_errors=True)
    copied = []
    for figure in run.figures:
        target.mkdir(parents=True, exist_ok=True)
        with Image.open(run.folder / figure) as picture:
            picture.convert("RGB").quantize(256).save(target / Path(figure).name, optimize=True)  # a third of the bytes
        copied.append((target / Path(figure).name).relative_to(pages.RESULTS).as_posix())
    return copied


# ---- the command -----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """0 where every gated claim holds, 3 where one does not, 1 where a run failed."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.tables", description="Run the papers' claims and render docs/results."
    )
    parser.add_argument("papers", nargs="*", help="default: all")
    parser.add_argument("--slow", action="store_true", help="also the experiments that take longer than a ci may")
    parser.add_argument("--render", action="store_true", help="run nothing")
    arguments = parser.parse_args(argv)
    runs = Path(os.environ.get("PAPERS_RUNS") or files.ROOT / "runs").absolute()
    try:
        unknown = set(arguments.papers) - set(configs.papers())
        if unknown:
            raise UserError(
                f"unknown paper {sorted(unknown)[0]!r}: {configs.known('the papers are', sorted(unknown)[0], configs.papers())}"
            )
        jobs = [] if arguments.render else wanted(arguments.papers or configs.papers(), arguments.slow)
        with FileLock(pages.RESULTS.parent / ".tables.lock", timeout=0):  # two would overwrite each other's record
            recorded, failed = bring_up_to_date(jobs, runs)
    except Timeout:
        return command.explain(UserError("the tables are being made by another process: wait for it"))
    except (UserError, OSError, KeyboardInterrupt) as error:
        return command.explain(error)
    return summary(recorded, arguments.papers or list(recorded["papers"]), failed)


def bring_up_to_date(jobs: list[Entry], runs: Path) -> tuple[dict[str, Any], list[str]]:
    """Run the jobs that are not recorded as they stand now, and render; returns the record and what failed."""
    recorded = read()
    known = {
        (paper, name): set(run["fingerprints"].values())
        for paper, entry in recorded["papers"].items()
        for name, run in entry["runs"].items()
    }
    due = [job for job in jobs if job.fingerprint not in known.get((job.paper, job.experiment), ())]
    print(f"{len(due)} of {len(jobs)} experiments to run", file=sys.stderr)
    runs.mkdir(parents=True, exist_ok=True)
    failed = run_all(due, runs, recorded)
    if recorded["papers"]:
        pages.write(recorded)
    return recorded, failed


def summary(recorded: dict[str, Any], papers: Sequence[str], failed: list[str]) -> int:
    """Say what of these papers' claims does not hold, and return the exit code."""
    entries = {paper: entry for paper, entry in recorded["papers"].items() if paper in papers}
    gated = [(paper, claim) for paper, entry in entries.items() for claim in entry["claims"] if claim["gate"]]
    broken = [(paper, claim) for paper, claim in gated if claim["holds"] is False]
    for paper, claim in broken:
        print(
            f"{paper} {claim['id']} does not hold: {report.number(claim['value'])}, threshold {report.threshold(claim)}"
        )
    for paper, claim in gated:
        if claim["holds"] is None:
            print(f"{paper} {claim['id']} was not measured")
    print(f"gated claims: {pages.counted([claim['holds'] for _, claim in gated])}; {pages.RESULTS / 'index.md'}")
    return 1 if failed else 3 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
