"""The gallery of papers: on the front page of the clone (README.md) and of the site (docs/index.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from common import report
from common.cards import Card

Shown = Mapping[str, Sequence[Mapping[str, Any]]]


def verdicts(card: Card, shown: Shown) -> str:
    """The gated claims of a paper in words, or that none is recorded."""
    claims = shown[card.name]
    if not any(claim["recorded_at"] for claim in claims):
        return "not recorded yet"
    return report.counted(claims) or "no gated claims"


def table(known: Sequence[Card], shown: Shown, link: str) -> str:
    """One line a paper: its title, area, verdicts. link: where a chapter lies, with {name} in it."""
    return report.markdown(
        [
            {
                "package": f"[{card.name}]({link.format(name=card.name)})",
                "paper": f"{card.title} ({card.authors})",
                "area": card.area,
                "gated claims": verdicts(card, shown),
            }
            for card in known
        ]
    )


def for_the_clone(known: Sequence[Card], shown: Shown) -> str:
    """The gallery as Markdown hosts show it: two papers a row, then the table."""
    cells = []
    for card in known:
        chapter = f"papers/{card.name}/README.md"
        picture = (
            f'<a href="{chapter}"><img src="papers/{card.name}/{card.picture}" alt="{escape(card.title)}"></a><br>\n'
        )
        line = f"<br>\n<code>{escape(card.use['line'])}</code>" if card.use else ""
        cells.append(
            f'<td width="50%" valign="top">\n{picture if card.picture else ""}<b><a href="{chapter}">{escape(card.short)}</a></b> '
            f"({escape(card.area)}): {escape(card.does)}<br>\n<i>{verdicts(card, shown)}</i>{line}\n</td>"
        )
    rows = ["\n".join(cells[i : i + 2]) for i in range(0, len(cells), 2)]
    drawn = "".join(f"<tr>\n{row}\n</tr>\n" for row in rows)
    return f"<table>\n{drawn}</table>\n\n{table(known, shown, 'papers/{name}/README.md')}"


def for_the_site(known: Sequence[Card], shown: Shown) -> str:
    """The gallery as the site shows it: cards that can be chosen by area with style sheets alone, then the table."""
    areas = sorted({card.area for card in known})
    boxes = [
        ("all", "everything"),
        *((slug(area), area) for area in areas),
    ]
    chooser = "".join(
        f'<input type="radio" name="area" id="area-{key}"{" checked" if key == "all" else ""}>'
        f'<label for="area-{key}">{escape(word)}</label>\n'
        for key, word in boxes
    )
    hidden = "".join(
        f"section:has(#area-{slug(area)}:checked) .paper:not(.area-{slug(area)}) {{ display: none; }}\n"
        for area in areas
    )
    parts = [
        f'```{{raw}} html\n<style>\n{hidden}</style>\n<div class="areas" role="radiogroup" aria-label="area">\n{chooser}</div>\n```\n'
    ]
    parts.append("::::{container} gallery\n")
    for card in known:
        parts.append(f":::{{container}} paper area-{slug(card.area)}\n")
        if card.picture:
            parts.append(
                f"[![{alt(card.title)}](../papers/{card.name}/{card.picture})](../papers/{card.name}/README.md)\n"
            )
        parts.append(f"**[{card.short}](../papers/{card.name}/README.md)**: {card.does}\n")
        parts.append(f"*{verdicts(card, shown)}*\n")
        if card.use:
            parts.append(f"`{card.use['line']}`\n")
        parts.append(":::\n")
    parts.append("::::\n")
    return "\n".join(parts) + "\n" + table(known, shown, "../papers/{name}/README.md")


def slug(area: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", area.lower())


def alt(text: str) -> str:
    return text.replace("[", "(").replace("]", ")")
