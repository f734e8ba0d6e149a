"""Race the papers' code against its peers and render docs/benchmarks.md.

    python -m scripts.bench [--quick] [--threads N] [PAPER ...]

Each paper with a `bench.py` has a function `bench(quick) -> {title: rows}`, and `figures(tables) -> {name: figure}` where a
race is best seen. Its contestants take turns in one process with
equal threads, at least seven turns each, and medians and ratios are printed. Run it on a quiet machine: a busy one is
noted beside the figures. A peer that is not installed is a note; PEERS in bench.py names the packages whose versions are recorded.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import command, configs, files, machine, report, result
from common.errors import UserError

RECORD = files.ROOT / "docs" / "benchmarks.json"
LONG = 60  # rows; a longer table is folded on the page
PAGE = files.ROOT / "docs" / "benchmarks.md"
PICTURES = files.ROOT / "docs" / "benchmarks"


def racers() -> list[str]:
    """The papers that have races."""
    return [paper for paper in configs.papers() if (configs.folder_of(f"papers.{paper}") / "bench.py").exists()]


def run(paper: str, quick: bool, threads: int) -> dict[str, Any]:
    """One paper's races and the circumstances they were run under."""
    load = os.getloadavg()[0]
    module = importlib.import_module(f"papers.{paper}.bench")
    tables = module.bench(quick=quick)
    for title, rows in tables.items():
        report.show(f"{paper}: {title}", rows)
    peers = tuple(getattr(module, "PEERS", ()))
    return {
        "tables": files.plain(tables),
        "peers": list(peers),
        "threads": threads,
        "quick": quick,
        "load_before": round(load, 2),
        "machine": result.machine(),
        "versions": result.versions(peers),
        "git_commit": result.git_state()[0],
        "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def draw(paper: str, entry: dict[str, Any]) -> None:
    """Draw the figures of recorded races and note them in the record."""
    module = importlib.import_module(f"papers.{paper}.bench")
    entry["figures"] = []
    for name, figure in module.figures(entry["tables"]).items() if hasattr(module, "figures") else ():
        with files.atomic_path(PICTURES / f"{paper}-{name}.png") as scratch:
            figure.savefig(scratch, format="png", dpi=110, bbox_inches="tight")
        entry["figures"].append(f"{PICTURES.name}/{paper}-{name}.png")


def render(recorded: dict[str, Any]) -> str:
    """docs/benchmarks.md: a function of the record alone."""
    lines = [
        "# Benchmarks\n",
        "Written by `python -m scripts.bench`. Contestants take turns in one process with equal threads; figures are medians. Absolute times",
        "belong to the machine named with them; ratios carry over better.\n",
    ]
    for paper, entry in sorted(recorded.items()):
        machine = entry["machine"]
        busy = (
            ""
            if entry["load_before"] < 0.5
            else f" **The machine was busy (load {entry['load_before']}) when this began.**"
        )
        own = any("threads" in row for rows in entry["tables"].values() for row in rows)  # said row by row
        threads = "" if own else f"{entry['threads']} thread{'s' if entry['threads'] > 1 else ''}, "
        lines.append(
            f"## {paper}\n\n{machine['cpu']}, {machine['cores']} cores, {threads}"
            f"{entry['recorded_at'][:10]}{', quick' if entry['quick'] else ''}.{busy}\n"
        )
        raced = [f"{name} {entry['versions'][name]}" for name in entry.get("peers", []) if name in entry["versions"]]
        lines += [f"Peers: {', '.join(raced)}.\n"] if raced else []
        for title, rows in entry["tables"].items():
            table = report.markdown(rows)
            long = len(rows) > LONG
            lines += [
                f"### {title}\n",
                f"<details><summary>{len(rows)} rows</summary>\n\n{table}\n</details>\n" if long else table,
            ]
        lines += [f"![{Path(figure).stem}]({figure})\n" for figure in entry["figures"]]
    return "\n".join(lines)


def keep(recorded: dict[str, Any], papers: Sequence[str]) -> None:
    """Write the record, and the page and the figures of these papers."""
    for paper in papers:
        draw(paper, recorded[paper])
    files.write_json(RECORD, recorded)
    files.write_atomic(PAGE, render(recorded))


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
                f"no races for {sorted(unknown)[0]!r}: {configs.known('there are', sorted(unknown)[0], racers())}"
            )
        machine.limit_threads(arguments.threads)
        recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        for paper in [] if arguments.render else arguments.papers or racers():
            entry = run(paper, arguments.quick, arguments.threads)
            if not arguments.quick:
                recorded[paper] = entry
                keep(recorded, [paper])  # after each: an interruption loses one paper's races
        if arguments.render:
            keep(recorded, list(recorded))
    except (UserError, OSError, KeyboardInterrupt) as error:
        return command.explain(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
