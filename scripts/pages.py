"""Write every page that speaks of several papers, from the papers' own folders alone.

    python -m scripts.pages [--check]

docs/results, docs/benchmarks.md, docs/data.md, and the parts between markers in README.md, docs/index.md, docs/roadmap.md,
each chapter and pyproject.toml. `--check` writes nothing and exits with 2 where a page is not what it would be.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import cards, catalogue, exits, files, optional, report
from common.cards import Card
from common.data import registry
from common.errors import UserError
from scripts import benchmarks, gallery, record

ROOT = files.ROOT
CLAIMS = ("<!-- claims:begin -->", "<!-- claims:end -->")
GALLERY = ("<!-- papers:begin -->", "<!-- papers:end -->")
LEFT = ("<!-- left:begin -->", "<!-- left:end -->")
EXTRAS = ("# papers:begin", "# papers:end")

Records = Mapping[str, Mapping[str, Any]]


def records() -> dict[str, dict[str, Any]]:
    """The record of every paper, empty ones included."""
    return {paper: record.read(paper) for paper in catalogue.papers()}


def rendered() -> dict[Path, str]:
    """Path -> the text of every page, a function of the papers' folders (and of what is written by hand around markers)."""
    recorded = records()
    known = cards.cards()
    races = benchmarks.read_all()
    shown = {card.name: record.current(card.name, recorded[card.name]) for card in known}
    results = ROOT / "docs" / "results"
    pages = {
        results / "results.json": files.to_json(record.summary(recorded)),
        results / "index.md": index(known, recorded, shown),
        **{results / f"{card.name}.md": page(card, recorded[card.name], shown[card.name]) for card in known},
        ROOT / "docs" / "benchmarks.md": benchmarks.render(races),
        ROOT / "docs" / "data.md": data_page(),
    }
    blocks = {
        ROOT / "README.md": (GALLERY, gallery.for_the_clone(known, shown)),
        ROOT / "docs" / "index.md": (GALLERY, gallery.for_the_site(known, shown)),
        ROOT / "docs" / "roadmap.md": (LEFT, left(known)),
        ROOT / "pyproject.toml": (EXTRAS, extras()),
    }
    for card in known:
        chapter = catalogue.folder_of(f"papers.{card.name}") / "README.md"
        if chapter.exists():
            blocks[chapter] = (CLAIMS, block(recorded[card.name], shown[card.name]))
    return pages | {path: with_block(path, *parts) for path, parts in blocks.items()}


def write() -> list[Path]:
    """Write the pages that have changed, remove those of papers that are gone, and return their paths."""
    wanted = rendered()
    changed = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in changed:
        files.write_atomic(path, wanted[path])
    gone = stale(wanted)
    for path in gone:
        path.unlink()
    return changed + gone


def stale(wanted: Mapping[Path, str]) -> list[Path]:
    """Pages under docs/results that no paper has any more."""
    return [path for path in sorted((ROOT / "docs" / "results").glob("*.md")) if path not in wanted]


def with_block(path: Path, markers: tuple[str, str], text: str) -> str:
    """A file with the lines between its markers replaced. A marker is the beginning of a line."""
    try:
        old = path.read_text()
    except FileNotFoundError:
        raise UserError(f"{path} is missing: check it out again") from None
    begin, end = (re.escape(marker) for marker in markers)
    pattern = re.compile(rf"(^{begin}[^\n]*\n)(.*?)(^{end}[^\n]*$)", flags=re.S | re.M)
    if not pattern.search(old):
        raise UserError(f"{path} has no lines {markers[0]} and {markers[1]}: put them where that part belongs")
    return pattern.sub(lambda match: match[1] + text + match[3], old, count=1)


# ---- claims ----------------------------------------------------------------------------------------------------------


def rows(shown: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The claims as rows of a page: a verdict that needs a look is bold, and what was measured says on which data."""
    found = []
    for row, claim in zip(report.claim_rows(shown), shown, strict=True):
        bold = claim["holds"] is False or claim.get("unmeasured")
        found.append(
            row | {"verdict": f"**{row['verdict']}**" if bold else row["verdict"], "data": claim["data"] or ""}
        )
    return found


def block(recorded: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]) -> str:
    """The table of claims in a chapter, and how what is compared was tuned."""
    dates = sorted({run["recorded_at"][:10] for run in recorded["runs"].values()})
    tuning = report.tuning_rows(shown)
    tuned = f"\nHow the methods were tuned:\n\n{report.markdown(tuning)}" if tuning else ""
    return f"{report.markdown(rows(shown))}{tuned}\n{f'Recorded {dates[-1]}.' if dates else 'Not recorded yet.'}\n"


def index(known: Sequence[Card], recorded: Records, shown: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The page with every claim."""
    every = [claim for claims_ in shown.values() for claim in claims_]
    lines = [
        "# Headline tables\n",
        "One line a claim. *paper*: the paper's own figure, or where the claim comes from; *ours*: measured by a run here;",
        "*refuted by*: what a named wrong variant gives, which misses the threshold; *gate*: whether a run fails when the",
        f"claim does not hold. Gated claims: {report.counted(every)}.\n",
    ]
    for card in known:
        lines.append(
            f"## [{card.short}]({card.name}.md)\n\n{where(recorded[card.name])}\n\n{report.markdown(rows(shown[card.name]))}"
        )
    return "\n".join(lines)


def page(card: Card, recorded: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]) -> str:
    """The page of one paper: its claims, how methods were tuned, and tables, notes and figures of each run."""
    lines = [
        f"# {card.short}: results\n",
        f"{card.title}: [the chapter](../../papers/{card.name}/README.md).\n",
        report.markdown(rows(shown)),
    ]
    if tuning := report.tuning_rows(shown):
        lines.append(f"## How the methods were tuned\n\n{report.markdown(tuning)}")
    for name, run in sorted(recorded["runs"].items()):
        lines.append(f"## {name}\n\n{circumstances(run)}\n")
        lines += [f"- {note}" for note in run["notes"]] + [""]
        for title, table in run["tables"].items():
            lines.append(f"### {title}\n\n{report.markdown(table)}")
        lines += [f"![{Path(figure).stem}](../../papers/{card.name}/record/{figure})\n" for figure in run["figures"]]
    return "\n".join(lines)


def circumstances(run: Mapping[str, Any]) -> str:
    """When, where and at what cost a run was made."""
    machine, versions = run["machine"] or {}, run["versions"] or {}
    torch = f", torch {versions['torch']}" if "torch" in versions else ""
    return (
        f"Recorded {run['recorded_at'][:10]}, seed {run['seed']}, {run['wall_s']:.0f} s on one thread, {run['peak_rss_mb']:.0f} MB; "
        f"{machine.get('cpu')}, {machine.get('cores')} cores, Python {versions.get('python')}{torch}."
    )


def where(recorded: Mapping[str, Any]) -> str:
    """The runs of a paper in a sentence."""
    runs = [
        f"`{name}` {run['recorded_at'][:10]} ({run['wall_s']:.0f} s)" for name, run in sorted(recorded["runs"].items())
    ]
    return f"Recorded: {', '.join(runs)}." if runs else "Not recorded yet."


# ---- the other pages -------------------------------------------------------------------------------------------------


def left(known: Sequence[Card]) -> str:
    """What is left, paper by paper: the list of the roadmap."""
    return "".join(f"- **{card.short}** (`{card.name}`). {' '.join(card.left.split())}\n" for card in known)


def data_page() -> str:
    """docs/data.md: every data set, its licence and size, who uses it, how to get it."""
    users = {name: card.name for card in cards.cards() for name in card.data}
    lines = [
        "# Data\n",
        "No file of these is in the repository. Each is looked for below the folders that `$PAPERS_DATA` names, and checked",
        "against its sum; what has a public address is fetched on request (`python -m scripts.data fetch NAME`, or",
        "`data.download=true` in a run). `python -m scripts.data list` says what is here.\n",
    ]
    table = []
    for name, entry in sorted(registry.entries().items()):
        size = sum(file.bytes for file in entry.files) / 1e6
        table.append(
            {
                "name": f"`{name}`",
                "what": entry.title,
                "licence": entry.licence,
                "MB": f"{size:.2f}" if size > 0.005 else "",
                "checked": "yes" if all(file.sha256 for file in entry.files) else "no",
                "used by": users.get(name, "several"),
                "fetched": "on request" if all(file.url for file in entry.files) else "by hand",
            }
        )
    return "\n".join([*lines, report.markdown(table)])


def extras() -> str:
    """The papers' extras as lines of pyproject.toml; "papers" is what the default jobs of all papers need."""
    lines = []
    for extra, modules in sorted(optional.extras().items()):
        if extra not in optional.COMMON:
            listed = ", ".join(f'"{requirement}"' for requirement in sorted(set(modules.values())))
            lines.append(f"{extra} = [{listed}]\n")
    needs = ",".join(sorted({need for card in cards.cards() for need in card.needs}))
    return "".join(lines) + (f'papers = ["icml24-papers[{needs}]"]\n' if needs else "papers = []\n")


# ---- the command -----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """0, or 2 where `--check` finds a page that is not what it would be."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.pages", description="Write the pages that speak of several papers."
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; name the pages that are not what they would be"
    )
    arguments = parser.parse_args(argv)
    try:
        if arguments.check:
            wanted = rendered()
            wrong = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
            for path in (*wrong, *stale(wanted)):
                print(f"{path.relative_to(ROOT)} is not what the papers' folders say: run `python -m scripts.pages`")
            return 2 if wrong or stale(wanted) else 0
        for path in write():
            print(path.relative_to(ROOT))
    except (UserError, OSError, ValueError, KeyboardInterrupt) as error:
        return exits.explain(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
