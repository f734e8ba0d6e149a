"""docs/results, the table in each chapter and the one on the front page, as functions of the record alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common import cli, configs, files, report

RESULTS = files.ROOT / "docs" / "results"
FRONT = files.ROOT / "README.md"
BEGIN, END = "<!-- claims:begin -->", "<!-- claims:end -->"


def write(recorded: dict[str, Any]) -> None:
    """Write results.json and every page that is rendered from it."""
    files.write_json(RESULTS / "results.json", recorded)
    for path, text in pages(recorded).items():
        files.write_atomic(path, text)
    for path, text in blocks(recorded).items():
        files.write_atomic(path, with_block(path.read_text(), text))


def pages(recorded: dict[str, Any]) -> dict[Path, str]:
    """Path -> text of the pages under docs/results: a function of the record alone."""
    return {
        RESULTS / "index.md": index(recorded),
        **{RESULTS / f"{paper}.md": page(recorded, paper) for paper in recorded["papers"]},
    }


def blocks(recorded: dict[str, Any]) -> dict[Path, str]:
    """Path -> text between the markers, for each chapter and for the front page."""
    found = {configs.folder_of(f"papers.{paper}") / "README.md": block(recorded, paper) for paper in recorded["papers"]}
    return found | {FRONT: overview(recorded)}


def counted(verdicts: list[bool | None]) -> str:
    """ "25 hold, 1 does not, 2 are not measured", without the parts that are nought."""
    held, broken, open_ = (verdicts.count(verdict) for verdict in (True, False, None))
    parts = [
        f"{held} hold{'s' * (held == 1)}" if held else "",
        f"{broken} do{'es' * (broken == 1)} not" if broken else "",
    ]
    return ", ".join(part for part in (*parts, f"{open_} not measured" if open_ else "") if part)


def overview(recorded: dict[str, Any]) -> str:
    """One line a paper: its title and how many of its gated claims hold."""
    lines = []
    for paper in configs.papers():
        gated = [c["holds"] for c in recorded["papers"].get(paper, {}).get("claims", []) if c["gate"]]
        lines.append(
            {
                "package": f"[{paper}](papers/{paper}/README.md)",
                "paper": cli.title_of(paper),
                "gated claims": counted(gated) or "not recorded",
            }
        )
    return report.markdown(lines)


def rows(recorded: dict[str, Any], paper: str) -> list[dict[str, str]]:
    """The claims of a paper as rows of text, with the kind of data each was judged on."""
    found = recorded["papers"][paper]["claims"]
    return [row | {"data": claim["data"]} for row, claim in zip(report.claim_rows(found), found, strict=True)]


def block(recorded: dict[str, Any], paper: str) -> str:
    """The claims table of a chapter."""
    dates = sorted({claim["recorded_at"][:10] for claim in recorded["papers"][paper]["claims"]})
    return f"{report.markdown(rows(recorded, paper))}\nRecorded {' to '.join(dict.fromkeys(dates[:1] + dates[-1:]))}.\n"


def with_block(chapter: str, text: str) -> str:
    """A chapter with the text between its markers replaced. Raises ValueError where the markers are missing."""
    head, begin, rest = chapter.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the chapter has no {BEGIN} ... {END}")
    return f"{head}{BEGIN}\n{text}{END}{tail}"


def index(recorded: dict[str, Any]) -> str:
    """The page with every claim."""
    lines = ["# Headline tables\n", "One line a claim. *paper*: the paper's own figure, or where the claim comes from; *ours*: measured by a run here;",
             "*gate*: whether a run fails when the claim does not hold. A claim that does not hold says NO.\n"]  # fmt: skip
    for paper in sorted(recorded["papers"]):
        lines.append(f"## [{paper}]({paper}.md)\n\n{report.markdown(rows(recorded, paper))}")
    machine = recorded["machine"] or {}
    lines.append(
        f"Generated {recorded['generated']} on {machine.get('cpu')}, {machine.get('cores')} cores, Python {(recorded['versions'] or {}).get('python')}."
    )
    return "\n".join(lines) + "\n"


def page(recorded: dict[str, Any], paper: str) -> str:
    """The page of one paper: its claims, and tables, notes and figures of each run."""
    lines = [f"# {paper}\n", report.markdown(rows(recorded, paper))]
    for name, run in sorted(recorded["papers"][paper]["runs"].items()):
        lines.append(
            f"## {name}\n\nRecorded {run['recorded_at']}, seed {run['seed']}, {run['wall_s']:.0f} s on one thread, {run['peak_rss_mb']:.0f} MB.\n"
        )
        lines += [f"- {note}" for note in run["notes"]] + [""]
        for title, table in run["tables"].items():
            lines.append(f"### {title}\n\n{report.markdown(table)}")
        lines += [f"![{Path(figure).stem}]({figure})\n" for figure in run["figures"]]
    return "\n".join(lines)
