"""The authors' table of 45 models (40 of them before 2024), its three revisions, two corrections, and its forms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from papers.openness import data
from papers.openness.profile import Evidence, Profile
from papers.openness.rating import Rating, not_applicable, rated, unknown
from papers.openness.taxonomy import BY_ID, IDS

SAMPLES = ("all45", "icml40")
REVISIONS = {"491f021": "2024-04-28", "d777252": "2024-05-01", "159a7bc": "2024-05-16"}  # commit -> date


def table(sample: str = "all45", *, as_of: str | None = None, overlays: Sequence[str] = ()) -> list[Profile]:
    """The models of the table in the order of their release.

    sample: "all45", or "icml40" for those released before 2024. as_of: "2024-05-01" gives every cell the value it had
    then (the values only: which models stood in a revision is not shipped). overlays: corrections to apply, of
    `overlays.csv`: "xglm" moves a cell, "grok" opens one; none by default. Raises ValueError for other names.
    """
    if sample not in SAMPLES:
        raise ValueError(f"sample is {sample!r}: choose {', '.join(SAMPLES)}")
    known = {row["overlay"] for row in data.rows("overlays")}
    if wrong := set(overlays) - known:
        raise ValueError(f"there is no overlay {min(wrong)!r}: choose {', '.join(sorted(known))}")
    if as_of is not None and as_of < min(REVISIONS.values()):
        raise ValueError(f"the first revision of the table is of {min(REVISIONS.values())}, after {as_of}")
    revision = max(date for date in REVISIONS.values() if as_of is None or date <= as_of)
    return [
        _profile(row, revision, overlays, as_of)
        for row in data.rows("models")
        if sample == "all45" or row["icml40"] == "1"
    ]  # fmt: skip


def model(slug: str, **options: Any) -> Profile:
    """One model of the table by its slug. ValueError naming those that are near."""
    found = {profile.name: profile for profile in table(**options)}
    if slug not in found:
        from common.errors import did_you_mean

        raise ValueError(f"the table has no model {slug!r}: {did_you_mean('choose', slug, list(found))}")
    return found[slug]


def _profile(row: data.Row, revision: str, overlays: Sequence[str], as_of: str | None) -> Profile:
    cells = {name: (row[name], row["source"], revision) for name in IDS}
    for change in sorted(data.rows("history"), key=lambda change: change["date"], reverse=True):
        if change["slug"] == row["slug"] and revision <= change["date"]:  # until then it had another value
            then = re.sub(r"^[cd](?=[1-5]$)", "", change["then"])  # one revision wrote a c on weights
            cells[change["component"]] = (
                then.replace("~", " "),
                f"{change['source']}, {change['revision']}",
                change["date"],
            )
    for change in data.rows("overlays"):
        in_time = as_of is None or change["as_of"] <= as_of
        if change["overlay"] in overlays and change["slug"] == row["slug"] and in_time:
            cells[change["component"]] = (change["cell"], f"{change['reason']} ({change['source']})", change["as_of"])
    ratings, licences, hints, evidence = {}, {}, {}, {}
    for name, (cell, source, date) in cells.items():
        rating, licence, hint = read_cell(BY_ID[name].kind, cell)
        ratings[name] = rating
        if licence:
            licences[name] = licence
        if hint:
            hints[name] = hint
        evidence[name] = [Evidence("table", source, key=name, licence=licence, note=hint or "", as_of=date)]
    return Profile(row["slug"], ratings, evidence, [], licences, row["title"], "published", row["release"],
                   {key: row[key] for key in ("developer", "org_type", "link")}, hints)  # fmt: skip


def read_cell(kind: str, cell: str) -> tuple[Rating, str | None, str | None]:
    """(rating, licence label, hint) of a cell: "5 MIT", "1", "-", "? D3 or D4"; older revisions write "c1", "NA"."""
    first, _, rest = cell.strip().partition(" ")
    if first in ("-", "NA", "N/A", "(absent)"):
        return not_applicable(kind), None, None
    if first == "?" or first.startswith("Unk"):
        hint = rest.strip("() ") or None
        ends = [int(digit) for digit in re.findall(r"[cCdD]([1-5])", hint or "")]
        likely = "likely" in (hint or "")  # a guess is no bound
        bounds = (min(ends), max(ends)) if ends and not likely else (1, 5)
        return unknown(kind, *bounds), None, hint
    if not re.fullmatch(r"[cCdD]?[1-5]", first):
        raise ValueError(f"{cell!r} is no cell of the table: give a level 1 to 5, N/A or Unknown")
    if len(first) == 2 and first[0].lower() != kind[0]:
        raise ValueError(f"{cell!r} stands on a {kind} component: it says the other kind")
    return rated(kind, int(first[-1])), rest.strip() or None, None


def history(cells: bool = True) -> list[dict[str, str]]:
    """What differs in an earlier revision from the last one, cell by cell."""
    return [dict(row) for row in data.rows("history")]


# ---- forms -----------------------------------------------------------------------------------------------------------

FIELDS: dict[str, dict[str, tuple[str, ...]]] = {  # of a page, in the order in which the authors' pages have them
    "training": {"code": ("pretraining", "finetuning", "alignment"), "data": ("pretraining", "sft", "alignment")},
    "evaluation": {"code": ("general", "safety"), "data": ("utility", "safety")},
    "deployment": {"code": ("inference",), "data": ("weights",)},
}


def page(profile: Profile) -> str:
    """The model as a page of the authors' site: Markdown with front matter, ready to be proposed there."""
    import json

    year, _, month = (profile.release or "").partition("-")
    lines = ["---", f"title: {json.dumps(profile.title or profile.name, ensure_ascii=False)}"]
    if profile.about.get("link"):
        lines.append(f"link: {json.dumps(profile.about['link'])}")
    if year and month:
        lines += ["release:", f"  month: {int(month)}", f"  year: {int(year)}"]
    for stage, kinds in FIELDS.items():
        lines.append(f"{stage}:")
        for kind, names in kinds.items():
            lines.append(f"  {kind}:")
            for name in names:
                full = f"{stage}.{kind}.{name}"
                rating = profile.ratings[full]
                value = {"na": "N/A", "unknown": "Unknown"}.get(rating.status, rating.level)
                if rating.status == "unknown" and full in profile.hints:
                    value = f"Unknown ({profile.hints[full]})"
                elif rating.status == "unknown" and (rating.low, rating.high) != (1, 5):
                    value = f"Unknown ({rating.kind[0].upper()}{rating.low} or {rating.kind[0].upper()}{rating.high})"
                lines += [f"    {name}:", f"      value: {value}"]
                if full in profile.licences:
                    lines.append(f"      license: {json.dumps(profile.licences[full], ensure_ascii=False)}")
    return "\n".join([*lines, "---", ""])


def long(profiles: Iterable[Profile]) -> list[dict[str, Any]]:
    """One row for each model and component."""
    return [
        {"slug": p.name, "component": name, "kind": r.kind, "status": r.status, "level": r.level, "code": r.code,
         "low": r.low, "high": r.high, "licence": p.licences.get(name, ""), "hint": p.hints.get(name, "")}
        for p in profiles for name, r in p.ratings.items()
    ]  # fmt: skip


def wide(profiles: Iterable[Profile]) -> list[dict[str, Any]]:
    """One row for each model: score, bounds, label, and a cell for each component, as `read_cell` reads them."""
    rows = []
    for p in profiles:
        ends = p.bounds or (None, None)
        row: dict[str, Any] = {"slug": p.name, "title": p.title, "release": p.release or "", "label": p.label,
                               "score": p.score, "low": ends[0], "high": ends[1], "rated": p.n_rated, "applicable": p.n_applicable}  # fmt: skip
        rows.append(row | {name: cell(p, name) for name in IDS})
    return rows


def cell(profile: Profile, name: str) -> str:
    """A component as one cell: "C5 MIT", "N/A", "? D3 or D4"."""
    rating = profile.ratings[name]
    if rating.status == "unknown":
        hint = profile.hints.get(name)
        ends = (
            f"{rating.kind[0].upper()}{rating.low} to {rating.kind[0].upper()}{rating.high}"
            if (rating.low, rating.high) != (1, 5)
            else ""
        )
        return f"? {hint or ends}".strip()
    return f"{rating.code} {profile.licences.get(name, '')}".strip()


def from_long(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Rating]]:
    """slug -> component -> rating, of the rows of `long` (numbers may be text). ValueError for a wrong row."""
    found: dict[str, dict[str, Rating]] = {}
    for row in rows:
        kind = BY_ID[row["component"]].kind
        number = {key: int(row[key]) if row[key] not in (None, "") else None for key in ("level", "low", "high")}
        rating = Rating(kind, row["status"], number["level"], number["low"], number["high"])
        if rating.code != row["code"]:
            raise ValueError(f"{row['slug']}, {row['component']}: the code {row['code']!r} is not that of its level")
        found.setdefault(row["slug"], {})[row["component"]] = rating
    return found


def from_wide(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Rating]]:
    """slug -> component -> rating, of the rows of `wide`."""
    return {row["slug"]: {name: read_cell(BY_ID[name].kind, row[name])[0] for name in IDS} for row in rows}
