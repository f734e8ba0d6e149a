"""Tables for people: on a terminal, and as Markdown in pages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LONG = 40  # rows; of a longer table a terminal gets both ends
VERDICT = {True: "yes", False: "NO", None: "-"}


def number(value: Any) -> str:
    """A figure as a reader wants it: four significant digits, integers whole, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or (abs(value) < 1e9 and value == int(value)):
        return f"{int(value):,}"
    return f"{value:.4g}"


def threshold(claim: Mapping[str, Any]) -> str:
    """A claim's comparison in words: "<= 0.6", "in [2, 4]", "reported"."""
    if claim["op"] == "report":
        return "reported"
    if claim["op"] == "in":
        return f"in [{claim['threshold'][0]:.8g}, {claim['threshold'][1]:.8g}]"
    return f"{claim['op']} {claim['threshold']:.8g}"


def papers_value(claim: Mapping[str, Any]) -> str:
    """The paper's own figure where the claim has one, else where the claim comes from."""
    return str(claim["paper_value"]) if claim["paper_value"] is not None else f"({claim['provenance']})"


CLAIM_COLUMNS = ("claim", "statement", "paper", "ours", "threshold", "gate", "holds")


def claim_rows(claims: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """One row a claim, the columns being `CLAIM_COLUMNS`."""
    return [
        dict(zip(CLAIM_COLUMNS, (c["id"], " ".join(c["statement"].split()), papers_value(c), number(c["value"]), threshold(c),
                                 "yes" if c["gate"] else "no", VERDICT[c["holds"]]), strict=True))
        for c in claims
    ]  # fmt: skip


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of rows, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table."""
    if not rows:
        return "(no rows)\n"
    columns = columns_of(rows)
    lines = [
        columns,
        ["---"] * len(columns),
        *([number(row.get(c)).replace("|", "\\|") for c in columns] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows, all of them, as a table on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns_of(rows):
        numeric = all(isinstance(row.get(column), (int, float, type(None))) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(number(row.get(column)) for column in columns_of(rows)))
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140
    Console(width=width, highlight=False, markup=False).print(table)


def show_result(data: Mapping[str, Any]) -> None:
    """Print what a run found: its tables (of long ones both ends), or its metrics where it has none, its claims and notes."""
    for name, rows in data["tables"].items():
        show(name, rows if len(rows) <= LONG else [*rows[: LONG // 2], *rows[-LONG // 4 :]])
        if len(rows) > LONG:
            print(f"({name}: {len(rows)} rows in all, in result.json)")
    if not data["tables"] and data["metrics"]:
        show("metrics", [{"metric": name, "value": value} for name, value in data["metrics"].items()])
    if measured := [claim for claim in data["claims"] if (claim["value"], claim["holds"]) != (None, None)]:
        show("claims", claim_rows(measured))
    for note in data["notes"]:
        print(f"note: {note}")
