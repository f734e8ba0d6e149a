"""Tables for people: on a terminal, and as Markdown in pages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LONG = 40  # rows; of a longer table a terminal gets both ends
# the one vocabulary of verdicts, by `holds`: on a terminal, in the pages, in `papers list --json`
VERDICTS: dict[bool | None, str] = {True: "holds", False: "does not hold", None: "not measured"}


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


def verdict(claim: Mapping[str, Any]) -> str:
    """What is said of a claim: one of VERDICTS, "reported" of a figure without a threshold, or what a run of it needs."""
    if claim["holds"] is None and claim["value"] is not None:
        return "reported"
    needs = claim.get("needs")
    return f"not run: needs {', '.join(needs)}" if needs and claim["holds"] is None else VERDICTS[claim["holds"]]


def counts(claims: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many gated claims have each of VERDICTS."""
    gated = [claim["holds"] for claim in claims if claim["gate"]]
    return {word: gated.count(holds) for holds, word in VERDICTS.items()}


def counted(claims: Iterable[Mapping[str, Any]]) -> str:
    """The gated claims in words, "25 hold, 1 does not hold, 2 not measured", without the parts that are nought."""
    found = counts(claims)
    plural = {"holds": "hold", "does not hold": "do not hold"}
    return ", ".join(f"{n} {word if n == 1 else plural.get(word, word)}" for word, n in found.items() if n)


def refutation(claim: Mapping[str, Any]) -> str:
    """What a wrong variant measures: "a run with Q = 0 gives 0.47"; empty where the claim names none."""
    refuted = claim.get("refuted_by")
    return f"a run with {refuted['what']} gives {number(refuted['value'])}" if refuted else ""


def measured(claim: Mapping[str, Any]) -> str:
    """Our figure, with its interval where it has one."""
    low, high = claim.get("interval") or (None, None)
    return number(claim["value"]) + (f" [{number(low)}, {number(high)}]" if low is not None else "")


def claim_rows(claims: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """One row a claim; the column of refutations is there where any claim has one."""
    claims = list(claims)
    refuted = any(claim.get("refuted_by") for claim in claims)
    return [
        {
            "claim": claim["id"],
            "verdict": verdict(claim),
            "statement": " ".join(claim["statement"].split()),
            "ours": measured(claim),
            "threshold": threshold(claim),
            **({"refuted by": refutation(claim)} if refuted else {}),
            "gate": "yes" if claim["gate"] else "no",
            "paper": papers_value(claim),
        }
        for claim in claims
    ]


def tuning_rows(claims: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each method that a claim compares: how it was tuned, and what was chosen."""
    return [
        {
            "claim": claim["id"],
            "method": method,
            "trials": entry["trials"],
            "on": entry["on"] or "",
            "chosen": ", ".join(f"{key} = {number(value)}" for key, value in entry["chosen"].items()),
        }
        for claim in claims
        for method, entry in (claim.get("tuned") or {}).items()
    ]


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
    """Print rows, all of them, as a table on stdout; of one too wide, the columns below each other, no number broken."""
    from rich.console import Console
    from rich.table import Table

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else 140
    console = Console(width=width, highlight=False, markup=False)
    columns = columns_of(rows)
    numeric = {c: all(isinstance(row.get(c), (int, float, type(None))) for row in rows) for c in columns}
    for place, group in enumerate(_fitting(rows, columns, numeric, console.width)):
        table = Table(title=title if place == 0 else None, title_justify="left", header_style="bold")
        for column in group:
            least = max((len(number(row.get(column))) for row in rows), default=1)
            table.add_column(column, justify="right" if numeric[column] else "left", overflow="fold",
                             min_width=least if numeric[column] else None)  # fmt: skip
        for row in rows:
            table.add_row(*(number(row.get(column)) for column in group))
        console.print(table)


def _fitting(
    rows: Sequence[Mapping[str, Any]], columns: list[str], numeric: Mapping[str, bool], width: int
) -> list[list[str]]:
    """The columns in groups that fit a width, the first column in each."""

    def needed(column: str) -> int:
        longest = max((len(number(row.get(column))) for row in rows), default=1)
        return 3 + (max(longest, min(len(column), 9)) if numeric[column] else min(max(longest, 4), 16))

    groups: list[list[str]] = [columns[:1]]
    for column in columns[1:]:
        if 1 + sum(map(needed, [*groups[-1], column])) > width and len(groups[-1]) > 1:
            groups.append(columns[:1])
        groups[-1].append(column)
    return groups


def show_result(data: Mapping[str, Any]) -> None:
    """Print what a run found: its tables (of long ones both ends), or its metrics where it has none, its claims and notes."""
    for name, rows in data["tables"].items():
        show(name, rows if len(rows) <= LONG else [*rows[: LONG // 2], *rows[-LONG // 4 :]])
        if len(rows) > LONG:
            print(f"({name}: {len(rows)} rows in all, in result.json)")
    if not data["tables"] and data["metrics"]:
        show("metrics", [{"metric": name, "value": value} for name, value in data["metrics"].items()])
    shown = [c for c in data["claims"] if (c["value"], c["holds"]) != (None, None) or c.get("unmeasured")]
    if shown:
        show("claims", claim_rows(shown))
    for note in data["notes"]:
        print(f"note: {note}")
