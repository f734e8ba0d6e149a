"""The races as they are recorded (papers/<name>/record/benchmarks.json): their pictures, and docs/benchmarks.md.

Of each race a paper's paper.yaml says who wins where (`races: {title: {says, bars or picture}}`); `races.read` is the date
of the record that it speaks of, so that a new record asks for the sentences to be read again.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from common import cards, catalogue, files, report
from common.cards import Card
from common.errors import UserError
from scripts import record

Rows = Sequence[Mapping[str, Any]]
BUSY = 0.5  # load before a race, from which on it is said


def read(paper: str) -> dict[str, Any] | None:
    """The recorded races of a paper. Raises UserError where the record is damaged."""
    path = record.folder(paper) / "benchmarks.json"
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): check it out again, or race anew") from None


def read_all() -> dict[str, dict[str, Any]]:
    """The recorded races of all papers that have any."""
    return {paper: entry for paper in catalogue.papers() if (entry := read(paper)) is not None}


def write(paper: str, entry: Mapping[str, Any]) -> None:
    files.write_json(record.folder(paper) / "benchmarks.json", entry)


# ---- pictures --------------------------------------------------------------------------------------------------------


def draw(paper: str, entry: dict[str, Any]) -> None:
    """Draw the pictures of recorded races: those of `figures(tables)` in bench.py, and the bars that paper.yaml asks for."""
    module = importlib.import_module(f"papers.{paper}.bench")
    figures = dict(module.figures(entry["tables"])) if hasattr(module, "figures") else {}
    for race, spec in races(cards.card(paper)).items():
        if "bars" in spec and race in entry["tables"]:
            figures[race] = bars(
                entry["tables"][race], **{key.replace("for", "over"): v for key, v in spec["bars"].items()}
            )
    entry["figures"] = {}
    for name, figure in figures.items():
        path = record.folder(paper) / "figures" / "bench" / f"{name}.png"
        with files.atomic_path(path) as scratch:
            figure.savefig(scratch, format="png", dpi=110, bbox_inches="tight")
        record.copy_picture(path, path)
        entry["figures"][name] = path.relative_to(record.folder(paper)).as_posix()


def bars(rows: Rows, of: str, by: Sequence[str], over: str | None = None, ours: str = "", better: str = "lower") -> Any:
    """A bar for each contestant, a panel for each value of the column `over`.

    of: the column that is raced. by: the columns that name a contestant. ours: texts in the names of ours, "|" between
    them. better: "lower" or "higher".
    """
    from common import plots

    rows = [row for row in rows if row.get(of) is not None]
    panels = list(dict.fromkeys(row[over] for row in rows)) if over else [None]
    shown = [[row for row in rows if over is None or row[over] == panel] for panel in panels]
    stacked = len(panels) > 2 or len({len(part) for part in shown}) > 1  # side by side is too small on a phone
    size = {"width": 7.2 if stacked or len(panels) == 1 else 4.7, "height": 0.8 + 0.27 * max(map(len, shown))}
    columns = 1 if stacked else len(panels)
    figure, axes = plots.axes(
        columns, len(panels) // columns, **size, squeeze=False, sharey=not stacked and len(panels) > 1
    )
    for axis, panel, part in zip(axes.flat, panels, shown, strict=True):
        names = [", ".join(report.number(row[column]) for column in by) for row in part]
        own = [any(text in name for text in ours.split("|")) for name in names]
        axis.barh(names, [row[of] for row in part], color=[plots.OURS if o else plots.NEUTRAL for o in own], height=0.7)
        for name, row in zip(names, part, strict=True):
            axis.annotate(
                report.number(row[of]),
                (row[of], name),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        values = [row[of] for row in part]
        if min(values) > 0 and max(values) > 30 * min(values):
            axis.set_xscale("log")
        axis.margins(x=0.25)
        axis.set_xlabel(f"{words(of)} ({better} is better)")
        axis.set_title(f"{words(over)} {report.number(panel)}" if over else "", fontsize=10)
        if stacked or axis is axes.flat[0]:
            axis.invert_yaxis()
    return figure


def words(column: str) -> str:
    """A column's name as an axis says it: "tokens per s" of tokens_per_s."""
    return re.sub(r"(?<!_per)_(m?s)$", r", \1", column).replace("_", " ")


def races(card: Card) -> dict[str, dict[str, Any]]:
    """The races that a card speaks of, in its order."""
    return {name: spec for name, spec in card.races.items() if name != "read"}


# ---- the page --------------------------------------------------------------------------------------------------------


def render(recorded: Mapping[str, Mapping[str, Any]]) -> str:
    """docs/benchmarks.md: of each race a sentence and a picture, its table folded below."""
    lines = [
        "# Benchmarks\n",
        "Contestants take turns in one process with equal threads; figures are medians. Absolute times belong to the machine named",
        "with them; ratios carry over better. `python -m scripts.bench` races anew.\n",
    ]
    for paper, entry in sorted(recorded.items()):
        card = cards.card(paper)
        lines.append(f"## {card.short}\n\n{circumstances(entry)}\n")
        spoken = {name: spec for name, spec in races(card).items() if name in entry["tables"]}
        for name in [*spoken, *(name for name in entry["tables"] if name not in spoken)]:
            spec = spoken.get(name, {})
            if "says" in spec:
                lines.append(f"**{words(name)}.** {spec['says']}\n")
            figure = entry["figures"].get(spec.get("picture", name))
            if figure and spec:
                lines.append(f"![{words(name)}: {card.short}](../papers/{paper}/record/{figure})\n")
            rows = entry["tables"][name]
            table = report.markdown(rows)
            lines.append(f"<details><summary>{words(name)}: {len(rows)} rows</summary>\n\n{table}\n</details>\n")
    return "\n".join(lines)


def circumstances(entry: Mapping[str, Any]) -> str:
    """The machine, threads, date and peers of a paper's races, and whether the machine was busy."""
    machine = entry["machine"]
    own = any("threads" in row for rows in entry["tables"].values() for row in rows)  # said row by row
    threads = "" if own else f"{entry['threads']} thread{'s' if entry['threads'] > 1 else ''}, "
    peers = [f"{name} {entry['versions'][name]}" for name in entry["peers"] if name in entry["versions"]]
    against = f" Peers: {', '.join(peers)}." if peers else ""
    load = entry["load_before"]
    busy = "" if load < BUSY else f" **The machine was busy (load {load}) when this began.**"
    return f"{machine['cpu']}, {machine['cores']} cores, {threads}{entry['recorded_at'][:10]}.{against}{busy}"


def unread(paper: str, entry: Mapping[str, Any]) -> str | None:
    """Why the sentences on a paper's races have to be read again; None where they speak of what is recorded."""
    card = cards.card(paper)
    if missing := [name for name in races(card) if name not in entry["tables"]]:
        return f"paper.yaml of {paper} speaks of a race {missing[0]} that is not recorded"
    without = [name for name, spec in races(card).items() if spec.get("picture", name) not in entry["figures"]]
    if without:
        return f"the race {without[0]} of {paper} has no picture: give it bars, or a figure in bench.py"
    if str(card.races.get("read")) != entry["recorded_at"][:10]:
        return f"the races of {paper} were recorded anew: read what its paper.yaml says of them, and set races.read"
    return None
