"""Profiles as people and machines read them: Markdown, one self-contained HTML page, CSV, JSON, CycloneDX 1.6, a badge.

Every form is a function of the profiles alone: no time of day, no path of this machine, the same bytes each time.
"""

from __future__ import annotations

import csv
import io
import json
import uuid
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from papers.openness import advice, licences, published, scales
from papers.openness.profile import Profile
from papers.openness.rating import Rating
from papers.openness.taxonomy import BY_ID, COLOURS, IDS, MEANING, WEIGHTS, short

NOTE = (
    "Levels are read off files and licences by stated rules; this is no legal advice. Commercial use counts as free under limits "
    "on behaviour and not under caps on users, revenue or field; share-alike costs the fifth right; a score is over rated "
    "components only, its bounds over all that apply."
)


def markdown(profiles: Sequence[Profile]) -> str:
    """A table of the models, then evidence and advice for each."""
    lines = ["| model | score | bounds | rated | label | " + " | ".join(short(name) for name in IDS) + " |",
             "|" + "---|" * (5 + len(IDS))]  # fmt: skip
    for p in profiles:
        cells = [_cell(rating) for rating in p.ratings.values()]
        lines.append(
            f"| {_md(p.title or p.name)} | {_number(p.score)} | {_bounds(p)} | {p.n_rated} of {p.n_applicable} | {_label(p)} | "
            + " | ".join(cells)
            + " |"
        )
    lines += ["", NOTE, ""]
    for p in profiles:
        if len(profiles) > 5:
            break
        lines += [f"## {_md(p.title or p.name)}", "", f"Next: {_md(advice.next_step(p))}.", ""]
        lines += ["| component | rating | licence | evidence | would raise it |", "|---|---|---|---|---|"]
        for name, rating in p.ratings.items():
            evidence = "; ".join(str(item) for item in p.evidence.get(name, []))
            lines.append(
                f"| {name} | {rating.span} | {_md(p.licences.get(name, ''))} | {_md(evidence)} | {_md(advice.raises(p, name))} |"
            )
        lines += ["", *(f"- {code}: {_md(text)}" for code, text in p.warnings), ""]
    return "\n".join(lines).rstrip() + "\n"


def _md(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _bounds(profile: Profile) -> str:
    ends = profile.bounds
    return "-" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}"


def _cell(rating: Rating) -> str:
    return "?" if rating.code == "Unknown" else rating.code


def _label(profile: Profile) -> str:
    return ", ".join([profile.label, *profile.tags])


CSS = """
:root{color-scheme:light}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:72rem;padding:1rem;color:#1b1b1b;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem}
.strip{display:grid;grid-template-columns:repeat(auto-fill,minmax(7.5rem,1fr));gap:.3rem;padding:0;margin:.5rem 0;list-style:none}
.strip li{border-radius:.3rem;padding:.3rem .4rem;color:#fff;font-size:.8rem;line-height:1.25}
.strip b{display:block;font-size:1.05rem}
.rows{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;width:100%}
th,td{border-bottom:1px solid #ccc;text-align:left;vertical-align:top;padding:.25rem .4rem}
td.code{font-weight:700;white-space:nowrap}
.warn{border-left:.3rem solid #8a5a00;padding-left:.6rem}
@media print{.strip li{border:1px solid #000;color:#000;background:#fff!important}}
"""


def html(profiles: Sequence[Profile], title: str = "Openness of generative models") -> str:
    """One page that needs no network and no script: strips of twelve cells with the code printed in each, evidence below."""
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body><h1>{escape(title)}</h1><p>{escape(NOTE)}</p>"
    ]
    parts.append(
        "<h2>Levels</h2><div class=rows><table><tr><th>level<th>code<th>data</tr>"
        + "".join(
            f"<tr><td class=code>{n}<td>{escape(MEANING['code'][n])}<td>{escape(MEANING['data'][n])}</tr>"
            for n in range(1, 6)
        )
        + "</table></div>"
    )
    for p in profiles:
        parts.append(
            f"<section><h2>{escape(p.title or p.name)}</h2><p>Score {_number(p.score)} over {p.n_rated} rated components; "
            f"{_bounds(p)} over the {p.n_applicable} that apply. {escape(_label(p))}.</p>"
        )
        parts.append("<ul class=strip>" + "".join(_box(p, name) for name in IDS) + "</ul>")
        parts.append(f"<p>Next: {escape(advice.next_step(p))}.</p>")
        if p.warnings:
            parts.append(
                "<ul class=warn>"
                + "".join(f"<li>{escape(code)}: {escape(text)}</li>" for code, text in p.warnings)
                + "</ul>"
            )
        if len(profiles) <= 60:
            parts.append(_details(p))
        parts.append("</section>")
    return "".join(parts) + "</body></html>\n"


def _box(profile: Profile, name: str) -> str:
    rating = profile.ratings[name]
    colour = COLOURS[str(rating.level) if rating.level else rating.code]
    if colour == "#888888":
        colour = "#5f5f5f"  # white text on the figure's grey is too faint
    if colour in ("#c1820c", "#c55c10"):
        colour = {"#c1820c": "#8f5f05", "#c55c10": "#a84a08"}[colour]
    evidence = "; ".join(str(item) for item in profile.evidence.get(name, []))
    return f"<li style='background:{colour}' title=\"{escape(evidence)}\"><b>{escape(rating.span)}</b>{escape(short(name))}</li>"


def _details(profile: Profile) -> str:
    rows = []
    for name, rating in profile.ratings.items():
        licence = profile.licences.get(name, "")
        modes = []
        for mode in licences.MODES:
            try:
                modes.append(licences.rating(BY_ID[name].kind, licences.span(licence, mode)).span if licence else "")
            except ValueError:
                modes.append("")
        evidence = "<br>".join(escape(str(item)) for item in profile.evidence.get(name, []))
        rows.append(
            f"<tr><td>{escape(BY_ID[name].label)}<td class=code>{escape(rating.span)}<td>{escape(licence)}"
            f"<td>{modes[0]}<td>{modes[1]}<td>{evidence}<td>{escape(advice.raises(profile, name))}</tr>"
        )
    tool, osaid = scales.mof(profile), scales.osaid(profile)
    progress = ", ".join(f"{roman} {tool['progress'][k]:.0f}%" for k, roman in ((3, "III"), (2, "II"), (1, "I")))
    other = (
        f"Open weights: {_yes(scales.open_weights(profile))}. OSAID, by proxy: {_yes(osaid['pass'])}. "
        f"MOF class {tool['class'] or 'none'} (progress to {progress}; not seen: {', '.join(tool['unseen']) or 'nothing'}). "
        f"Gradient of release: {scales.solaiman(profile) or 'not known'}."
    )
    return (
        "<details><summary>Evidence and advice</summary><div class=rows><table><tr><th>component<th>rating<th>licence<th>by criteria"
        "<th>as published<th>evidence<th>would raise it</tr>"
        + "".join(rows)
        + f"</table></div><p>{escape(other)}</p></details>"
    )


def _yes(value: bool | None) -> str:
    return "not known" if value is None else "yes" if value else "no"


def table_csv(profiles: Sequence[Profile]) -> str:
    """One row for each model."""
    return _csv(published.wide(profiles))


def long_csv(profiles: Sequence[Profile]) -> str:
    """One row for each model and component."""
    return _csv(published.long(profiles))


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        # a spreadsheet takes a text that begins so for a formula
        writer.writerow(
            {
                key: f"'{value}" if isinstance(value, str) and value[:1] in "=+@" and value else value
                for key, value in row.items()
            }
        )
    return out.getvalue()


def as_json(profiles: Sequence[Profile]) -> str:
    """A list of profiles, or one."""
    content = [profile.to_dict() for profile in profiles]
    return json.dumps(content if len(content) != 1 else content[0], indent=1, ensure_ascii=False) + "\n"


def cyclonedx(profiles: Sequence[Profile]) -> str:
    """A CycloneDX 1.6 bill: each model a component; licence ids are SPDX ids, what has none goes by its name."""
    components = []
    for p in profiles:
        chosen = _bom_licences(p.licences.get(WEIGHTS))
        properties = [{"name": f"openness:{name}", "value": rating.span} for name, rating in p.ratings.items()]
        properties += [{"name": "openness:label", "value": p.label}, {"name": "openness:score", "value": _number(p.score)},
                       {"name": "openness:mode", "value": p.mode}]  # fmt: skip
        data = [
            {"type": "dataset", "name": f"{p.name}: {short(name)}", "contents": {"properties": [{"name": "licence", "value": p.licences[name]}]}}
            for name in IDS if BY_ID[name].kind == "data" and name != WEIGHTS and name in p.licences
        ]  # fmt: skip
        components.append({
            "type": "machine-learning-model", "bom-ref": f"model:{p.name}", "name": p.title or p.name,
            **({"licenses": chosen} if chosen else {}), **({"data": data} if data else {}), "properties": properties,
        })  # fmt: skip
    seed = json.dumps(components, sort_keys=True)
    bom = {"$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6",
           "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, seed)}", "version": 1, "components": components}  # fmt: skip
    return json.dumps(bom, indent=1, ensure_ascii=False) + "\n"


def _bom_licences(expression: str | None) -> list[dict[str, Any]]:
    """What CycloneDX takes: one expression where all ids are SPDX and there is more than one, else ids and names apart."""
    if not expression:
        return []
    try:
        tree = licences.parse(expression)
    except ValueError:
        return [{"license": {"name": expression}}]
    atoms = licences.atoms(tree)
    known = [licences.find(atom.name) for atom in atoms]
    spdx = [k.id if k and k.spdx else "OpenMDW-1.0" if k and k.id == "LicenseRef-OpenMDW-1.0" else None for k in known]
    if len(atoms) == 1 and not atoms[0].exception:
        later = atoms[0].name if atoms[0].name.lower().endswith("-or-later") else None
        return (
            [{"license": {"id": later or spdx[0]}}]
            if spdx[0]
            else [{"license": {"name": known[0].id if known[0] else expression}}]
        )
    if all(spdx) and " " in expression:
        return [{"expression": expression}]
    return [
        {"license": {"id": i} if i else {"name": k.id if k else str(atom)}}
        for i, k, atom in zip(spdx, known, atoms, strict=True)
    ]


def badge(profile: Profile) -> str:
    """A small picture for a README: weights and pre-training data by their codes."""
    text = f"{profile.ratings[IDS[11]].span} weights, {profile.ratings[IDS[3]].span} data"
    left, right = "openness", text
    a, b = 8 + 7 * len(left), 10 + 7 * len(right)
    colour = COLOURS.get(str(profile.ratings[WEIGHTS].level), "#5f5f5f")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{a + b}" height="20" role="img" aria-label="{escape(left)}: {escape(right)}">'
        f'<title>{escape(left)}: {escape(right)}</title><rect width="{a}" height="20" fill="#333"/><rect x="{a}" width="{b}" height="20" fill="{colour}"/>'
        f'<g fill="#fff" font-family="monospace" font-size="11"><text x="4" y="14">{escape(left)}</text>'
        f'<text x="{a + 5}" y="14">{escape(right)}</text></g></svg>\n'
    )


FORMS: dict[str, tuple[str, Callable[[Sequence[Profile]], str]]] = {  # name -> file, function
    "md": ("openness.md", markdown),
    "html": ("openness.html", html),
    "csv": ("openness.csv", table_csv),
    "long": ("openness_long.csv", long_csv),
    "json": ("openness.json", as_json),
    "cyclonedx": ("openness.cdx.json", cyclonedx),
    "badge": ("openness.svg", lambda profiles: badge(profiles[0])),
    "page": ("openness_page.md", lambda profiles: published.page(profiles[0])),
}
__all__ = ["FORMS", "as_json", "badge", "cyclonedx", "html", "long_csv", "markdown", "table_csv"]
