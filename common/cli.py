"""`papers list | run | compare | doctor | clean`."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from common import command, configs, experiment, files, optional, report, result
from common.errors import UserError


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="papers", description="Nineteen ICML 2024 papers: list them, run them, compare runs."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="{list,run,compare,doctor,clean}")
    listing = commands.add_parser("list", help="the papers, their experiments and verdicts")
    listing.add_argument("--json", action="store_true", help="machine-readable")
    commands.add_parser("run", help="papers run NAME [verb] [+exp=...] [key=value ...]", add_help=False)
    compare = commands.add_parser("compare", help="two runs side by side")
    compare.add_argument("run_a")
    compare.add_argument("run_b")
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
    try:
        if argv[:1] == ["run"]:
            return run(argv[1:])
        arguments = parser.parse_args(argv)
        if arguments.command == "list":
            list_papers(arguments.json)
        elif arguments.command == "compare":
            compare_runs(arguments.run_a, arguments.run_b)
        elif arguments.command == "doctor":
            doctor()
        else:
            clean_up(Path(arguments.runs).expanduser().absolute(), arguments.yes, arguments.interrupted)
        return command.flushed(0)
    except (UserError, OSError, KeyboardInterrupt) as error:
        return command.explain(error)


def run(argv: Sequence[str]) -> int:
    """`papers run NAME [verb] ...`: as `python -m papers.NAME.verb ...`, but blind to packages in the current folder."""
    if argv[:1] in (["-h"], ["--help"]):
        print(
            f"papers run NAME [verb] [+exp=...] [key=value ...]; papers run NAME --help shows a paper's own\npapers: {' '.join(configs.papers())}"
        )
        return 0
    if not argv or argv[0].startswith("-"):
        raise UserError(f"papers run takes the name of a paper: one of {', '.join(configs.papers())}")
    here = os.getcwd()
    sys.path[:] = [entry for entry in sys.path if entry and (os.path.abspath(entry) != here or here == str(files.ROOT))]
    has_verb = len(argv) > 1 and "=" not in argv[1] and not argv[1].startswith("-")
    job = experiment.find_job(argv[0], argv[1] if has_verb else "train")
    return command.main(job, argv[2 if has_verb else 1 :])


def title_of(paper: str) -> str:
    """The first line of the package's docstring, read without importing it."""
    doc = ast.get_docstring(ast.parse((configs.folder_of(f"papers.{paper}") / "__init__.py").read_text())) or paper
    return doc.splitlines()[0]


def describe() -> list[dict[str, Any]]:
    """Every paper: name, title, verbs, experiments, and the verdicts of docs/results/results.json."""
    try:
        recorded = json.loads((files.ROOT / "docs" / "results" / "results.json").read_text())["papers"]
    except FileNotFoundError:
        recorded = {}
    except ValueError as error:
        raise UserError(f"docs/results/results.json is damaged ({error}): check it out again") from None
    found = []
    for name in configs.papers():
        verbs = configs.verbs(name)
        judged = recorded.get(name, {}).get("claims", [])
        verdicts = {
            word: sum(claim["gate"] and claim["holds"] is value for claim in judged)
            for word, value in (("hold", True), ("fail", False), ("open", None))
        }
        experiments = {e.name: e.title for verb in verbs for e in configs.experiments(name, verb)}
        found.append(
            {
                "name": name,
                "title": title_of(name),
                "verbs": verbs,
                "experiments": experiments,
                "verdicts": verdicts if judged else None,
            }
        )
    return found


def list_papers(as_json: bool) -> None:
    papers = describe()
    if as_json:
        print(files.to_json(papers), end="")
        return

    def verdict(counts: dict[str, int] | None) -> str:
        return ", ".join(f"{n} {word}" for word, n in counts.items() if n) if counts else "not recorded"

    report.show(
        "",
        [
            {
                "paper": p["name"],
                "title": p["title"],
                "experiments": " ".join(p["experiments"]),
                "gated claims": verdict(p["verdicts"]),
            }
            for p in papers
        ],
    )


def compare_runs(folder_a: str, folder_b: str) -> None:
    """Print what differs between two runs: settings, then figures."""
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
    claims = {c["id"]: c["holds"] for c in a.claims}
    for claim in b.claims:
        if claim["id"] in claims and claims[claim["id"]] is not claim["holds"]:
            print(
                f"claim {claim['id']}: {report.VERDICT[claims[claim['id']]]} in a, {report.VERDICT[claim['holds']]} in b"
            )


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
    """Failed and killed runs and cached stages, interrupted runs if asked; what is in use is left alone."""
    found = 0
    dead = ("failed", "running", "interrupted") if interrupted else ("failed", "running")
    for path in sorted(runs.glob("*/*/**/result.json")):
        with contextlib.suppress(UserError), experiment.locked(path.parent):  # a run that is locked is at work
            if result.load_result(path.parent).status in dead:
                found += remove(path.parent, delete)
    for path in sorted((files.cache_folder() / "stages").rglob("*.stage")):
        with contextlib.suppress(Timeout), FileLock(f"{path}.lock", timeout=0):
            found += remove(path, delete)
    if not found:
        print(f"nothing to clean below {runs} and {files.cache_folder()}")
    elif not delete:
        print("delete them with `papers clean --yes`")


def remove(path: Path, delete: bool) -> int:
    """Name a file or folder with its size, and delete it where asked to; returns 1."""
    size = sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file()) / 1e6
    print(f"{'delete' if delete else 'would delete'} {path} ({size:.1f} MB)")
    if delete:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return 1
