"""`papers list | run | compare | data | tables | doctor | clean`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from common import claims, command, exits, experiment, files, optional, report, result, signals
from common.catalogue import experiments, folder_of, papers, title_of, verb_of, verbs
from common.errors import UserError, choose, shorten


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="papers", description="Nineteen ICML 2024 papers: list them, run them, compare runs."
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="{list,run,compare,data,tables,doctor,clean}"
    )
    listing = commands.add_parser("list", help="the papers, their experiments and verdicts")
    listing.add_argument("--json", action="store_true", help="machine-readable")
    commands.add_parser("run", help="papers run NAME [verb] [+exp=...] [key=value ...]", add_help=False)
    compare = commands.add_parser("compare", help="two runs side by side")
    compare.add_argument("run_a")
    compare.add_argument("run_b")
    commands.add_parser("data", help="papers data list | fetch NAME | verify [NAME]", add_help=False)
    tables = commands.add_parser("tables", help="run the claims of the papers (+exp=ci) and print them")
    tables.add_argument("names", nargs="*", metavar="PAPER", help="default: all")
    commands.add_parser("doctor", help="versions, device, threads, data found, extras")
    clean = commands.add_parser(
        "clean", help="show, and with --yes delete, runs that failed or were killed, and cached stages"
    )
    clean.add_argument("--yes", action="store_true", help="delete what is shown")
    clean.add_argument(
        "--interrupted", action="store_true", help="also runs that were asked to stop and can be resumed"
    )
    clean.add_argument(
        "--runs",
        default=os.environ.get("PAPERS_RUNS") or "runs",
        help="folder of the runs (default $PAPERS_RUNS or ./runs)",
    )
    exits.open_streams()
    with signals.handled():
        try:
            if argv[:1] == ["run"]:
                return run(argv[1:])
            if argv[:1] == ["data"]:
                from common.data.command import main as data

                return exits.flushed(data(argv[1:]))
            arguments = parser.parse_args(argv)
            if arguments.command == "list":
                list_papers(arguments.json)
            elif arguments.command == "compare":
                compare_runs(arguments.run_a, arguments.run_b)
            elif arguments.command == "tables":
                return exits.flushed(run_tables(arguments.names))
            elif arguments.command == "doctor":
                doctor()
            else:
                if not arguments.runs.strip():
                    raise UserError("--runs is empty: name the folder of the runs, or leave --runs out")
                clean_up(Path(arguments.runs).expanduser().absolute(), arguments.yes, arguments.interrupted)
            return exits.flushed(0)
        except BaseException as error:
            return exits.explain(error)


def run(argv: Sequence[str]) -> int:
    """`papers run NAME [verb] ...`: as `python -m papers.NAME.verb ...`, but blind to packages in the current folder."""
    if argv[:1] in (["-h"], ["--help"]):
        print(
            f"papers run NAME [verb] [+exp=...] [key=value ...]; papers run NAME --help shows a paper's own\npapers: {' '.join(papers())}"
        )
        return 0
    if not argv or argv[0].startswith("-"):
        raise UserError(f"papers run takes the name of a paper: one of {', '.join(papers())}")
    here = os.getcwd()
    sys.path[:] = [entry for entry in sys.path if entry and (os.path.abspath(entry) != here or here == str(files.ROOT))]
    has_verb = len(argv) > 1 and "=" not in argv[1] and not argv[1].startswith("-")
    job = experiment.find_job(argv[0], argv[1] if has_verb else "train")
    return command.main(job, argv[2 if has_verb else 1 :])


def describe() -> list[dict[str, Any]]:
    """Every paper: name, title, verbs, experiments, and the verdicts of its record.

    A paper whose files cannot be read is in the list, with what is wrong as its title.
    """
    found: list[dict[str, Any]] = []
    for name in papers():
        entry: dict[str, Any] = {"name": name, "title": name, "verbs": [], "experiments": {}, "verdicts": None}
        try:
            entry |= {"title": title_of(name), "verbs": verbs(name)}
            entry["experiments"] = {e.name: e.title for e in experiments(name)}
            judged = recorded(name)
            entry["verdicts"] = report.counts(judged) if judged else None
        except (UserError, OSError, ValueError, SyntaxError, KeyError, TypeError, AttributeError) as error:
            entry["title"] = f"cannot be read: {shorten(str(error))}"
        found.append(entry)
    return found


def recorded(paper: str) -> list[dict[str, Any]]:
    """The claims of a paper as its file has them, with the verdicts of its record; [] where nothing is recorded."""
    path = folder_of(f"papers.{paper}") / "record" / "results.json"
    if not path.is_file():
        return []
    kept = {claim["id"]: claim["holds"] for claim in json.loads(path.read_text())["claims"]}
    return [claim | {"holds": kept.get(claim["id"])} for claim in claims.read(paper)]


def list_papers(as_json: bool) -> None:
    found = describe()
    if as_json:
        print(files.to_json(found), end="")
        return

    report.show(
        "",
        [
            {
                "paper": p["name"],
                "title": p["title"],
                "experiments": " ".join(p["experiments"]),
                "gated claims": report.counted(recorded(p["name"])) if p["verdicts"] else "not recorded",
            }
            for p in found
        ],
    )


def run_tables(names: Sequence[str]) -> int:
    """Run `+exp=ci` of each paper in a process of its own, print its claims, and return the worst exit code.

    In a clone `make tables` also records what was found and renders the pages.
    """
    from common.processes import Service

    codes = []
    for name in names or papers():
        choose("paper", name, papers())
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            words = ["run", name, verb_of(name, "ci"), "+exp=ci", "threads=1"]
            service = Service(name, [sys.executable, "-m", "papers", *words], log)
            try:
                codes.append(service.process.wait())
            finally:
                service.stop()
            last = next((row for row in reversed(log.read_text().splitlines()) if row.startswith("result: ")), None)
        if last is None:
            print(f"{name}: exit {codes[-1]}, nothing was recorded: run it alone, papers {' '.join(words)}")
            continue
        outcome = result.load_result(last.removeprefix("result: "))
        report.show(f"{name} ({outcome.status}, exit {codes[-1]})", report.claim_rows(outcome.claims))
    return exits.worst(codes)


def compare_runs(folder_a: str, folder_b: str) -> None:
    """Print what differs between two runs: settings, then figures."""
    sweeps = [(Path(folder).expanduser() / "sweep.json").is_file() for folder in (folder_a, folder_b)]
    if all(sweeps):
        return compare_sweeps(Path(folder_a).expanduser(), Path(folder_b).expanduser())
    if any(sweeps):
        raise UserError("papers compare takes two runs or two sweeps: name two of a kind")
    a, b = result.load_result(folder_a), result.load_result(folder_b)
    settings = [
        (name, getattr(a, name), getattr(b, name))
        for name in ("paper", "verb", "experiment", "seed", "device", "threads", "git_commit")
    ]
    flat_a, flat_b = flattened(a.config), flattened(b.config)
    settings += [(name, flat_a.get(name), flat_b.get(name)) for name in dict.fromkeys([*flat_a, *flat_b])]
    report.show(
        "settings that differ",
        [{"setting": n, "a": repr(x), "b": repr(y)} for n, x, y in settings if x != y] or [{"setting": "none"}],
    )
    rows = []
    for name in dict.fromkeys([*a.metrics, *b.metrics]):
        x, y = a.metrics.get(name), b.metrics.get(name)
        rows.append({"metric": name, "a": x, "b": y, "b - a": None if x is None or y is None else y - x})
    report.show("metrics", rows)
    same = a.metrics == b.metrics and a.tables == b.tables
    print("metrics and tables are identical" if same else "metrics or tables differ")
    verdicts = {c["id"]: c["holds"] for c in a.claims}
    for claim in b.claims:
        if claim["id"] in verdicts and verdicts[claim["id"]] is not claim["holds"]:
            print(
                f"claim {claim['id']}: {report.VERDICTS[verdicts[claim['id']]]} in a, {report.VERDICTS[claim['holds']]} in b"
            )


def compare_sweeps(a: Path, b: Path) -> None:
    """Print the means of two sweeps side by side, setting by setting."""
    one, two = (result.read_record(folder / "sweep.json") for folder in (a, b))
    rows = []
    try:
        for name in dict.fromkeys([*one["metrics"], *two["metrics"]]):
            left = {row["key"]: row for row in one["metrics"].get(name, [])}
            right = {row["key"]: row for row in two["metrics"].get(name, [])}
            for key in dict.fromkeys([*left, *right]):
                x, y = left.get(key, {}), right.get(key, {})
                mean_a, mean_b = x.get("mean"), y.get("mean")
                both = mean_a is not None and mean_b is not None
                rows.append({"metric": name, "setting": key, "a": mean_a, "n a": x.get("n"), "b": mean_b, "n b": y.get("n"),
                             "b - a": mean_b - mean_a if both else None})  # fmt: skip
    except (KeyError, TypeError, AttributeError):
        raise UserError("a sweep.json is damaged: start that sweep again") from None
    report.show("means of the two sweeps", rows or [{"metric": "none"}])


def flattened(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def doctor() -> None:
    """Say what this installation has."""
    import torch

    from common.data import registry

    machine = result.machine()
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    facts = {"clone": files.ROOT, "git commit": result.git_state()[0], **machine, "cuda": cuda, "torch threads": torch.get_num_threads(),
             "cache": files.cache_folder(), "PAPERS_DATA": os.environ.get("PAPERS_DATA", "(not set)"), **result.versions()}  # fmt: skip
    report.show("installation", [{"": name, "value": str(value)} for name, value in facts.items()])
    report.show(
        "extras",
        [
            {"extra": name, "installed": "yes" if optional.installed(name) else f"no: pip install -e '.[{name}]'"}
            for name in optional.EXTRAS
        ],
    )
    print(f"data\n{registry.listing()}", end="")


def clean_up(runs: Path, delete: bool, interrupted: bool) -> None:
    """Failed and killed runs and cached stages, interrupted runs if asked; what is in use is left alone.

    Only folders that a run of ours has marked, and none that lies behind a link or outside the runs.
    """
    found = 0
    dead = ("failed", "running", "interrupted") if interrupted else ("failed", "running")
    for path in own_folders(runs):
        with contextlib.suppress(UserError), experiment.locked(path):  # a run that is locked is at work
            if result.load_result(path).status in dead:
                found += remove(path, delete)
    for path in sorted((files.cache_folder() / "stages").rglob("*.stage")):
        with contextlib.suppress(Timeout, OSError), FileLock(f"{path}.lock", timeout=0):
            found += remove(path, delete)
    if not found:
        print(f"nothing to clean below {runs} and {files.cache_folder()}")
    elif not delete:
        print("delete them with `papers clean --yes`")


def own_folders(runs: Path) -> list[Path]:
    """The folders of runs below `runs`, by way of real folders alone: <paper>/<experiment>/<run>, or /<sweep>/<job>."""
    found: list[Path] = []

    def walk(folder: Path, depth: int) -> None:
        try:
            inside = sorted(folder.iterdir())
        except OSError:
            return
        for path in inside:
            if path.is_symlink() or not path.is_dir():
                continue
            if depth >= 2 and (path / experiment.MARK).is_file() and (path / "result.json").is_file():
                found.append(path)
            elif depth < 4:
                walk(path, depth + 1)

    walk(runs, 0)
    return found


def remove(path: Path, delete: bool) -> int:
    """Name a file or folder with its size, and delete it where asked to; returns 1."""
    size = sum(file.lstat().st_size for file in [path, *path.rglob("*")] if not file.is_dir()) / 1e6
    print(f"{'delete' if delete else 'would delete'} {path} ({size:.1f} MB)")
    if delete:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return 1
