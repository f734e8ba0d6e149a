"""Race the papers' code against its peers, record it (papers/<name>/record) and write docs/benchmarks.md.

    python -m scripts.bench [--quick] [--threads N] [PAPER ...]

Each paper with a `bench.py` has a function `bench(quick) -> {title: rows}`, and may have `figures(tables) -> {name:
figure}`. Contestants take turns in one process with equal threads, at least seven turns each. Run it on a quiet machine: a
busy one is noted beside the figures. A peer that is not installed is a note; `peers` in paper.yaml names the packages whose
versions are recorded, `races` says who wins where.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from common import cards, catalogue, exits, files, machine, report, result
from common.errors import UserError, did_you_mean
from scripts import benchmarks, pages


def racers() -> list[str]:
    """The papers that have races."""
    return [paper for paper in catalogue.papers() if (catalogue.folder_of(f"papers.{paper}") / "bench.py").exists()]


def run(paper: str, quick: bool, threads: int) -> dict[str, Any]:
    """One paper's races and the circumstances they were run under."""
    load = os.getloadavg()[0]
    module = importlib.import_module(f"papers.{paper}.bench")
    tables = module.bench(quick=quick)
    for title, rows in tables.items():
        report.show(f"{paper}: {title}", rows)
    peers = cards.card(paper).peers
    return {
        "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "tables": files.plain(tables),
        "peers": list(peers),
        "threads": threads,
        "quick": quick,
        "load_before": round(load, 2),
        "machine": result.machine(),
        "versions": result.versions(peers),
        "git_commit": result.git_state()[0],
        "figures": {},
    }


def keep(paper: str, entry: dict[str, Any]) -> None:
    """Record a paper's races, draw their pictures, and write the pages."""
    benchmarks.draw(paper, entry)
    benchmarks.write(paper, entry)
    pages.write()
    if why := benchmarks.unread(paper, entry):
        print(f"note: {why}", file=sys.stderr)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench", description="Race the papers' code against its peers."
    )
    parser.add_argument("papers", nargs="*", help="default: all that have races")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few turns, to see that the races run; nothing is recorded"
    )
    parser.add_argument("--render", action="store_true", help="run nothing: draw and write what is recorded")
    parser.add_argument("--threads", type=int, default=1, help="threads for every contestant (default 1)")
    arguments = parser.parse_args(argv)
    try:
        if unknown := set(arguments.papers) - set(racers()):
            raise UserError(
                f"no races for {sorted(unknown)[0]!r}: {did_you_mean('there are', sorted(unknown)[0], racers())}"
            )
        machine.limit_threads(arguments.threads)
        for paper in arguments.papers or racers():
            entry = benchmarks.read(paper) if arguments.render else run(paper, arguments.quick, arguments.threads)
            if entry and not arguments.quick:
                keep(paper, entry)  # after each: an interruption loses one paper's races
    except (UserError, OSError, KeyboardInterrupt) as error:
        return exits.explain(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
