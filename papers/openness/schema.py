"""Schemas: of a profile, a manifest and a list of claims, as JSON schema documents, and checks that say the line.

The checks are our own and need no package; the tests hold them against a JSON schema validator.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from papers.openness import licences
from papers.openness.documents import Document
from papers.openness.rating import AVAILABILITY
from papers.openness.taxonomy import BY_ID, IDS

DRAFT = "https://json-schema.org/draft/2020-12/schema"
EVIDENCE_OF_CLAIMS = ("abstract", "secondary_source", "recalled_unverified")
SIDES, LEANS = ("opportunity", "risk", "mitigation", "observation", "position"), ("open", "closed", "neutral")
FIELDS = ("availability", "licence", "gated", "url", "note", "as_of", "low", "high")


def profile_schema() -> dict[str, Any]:
    """A rated model, as `Profile.to_dict` writes it: twelve components, each with evidence."""
    return {
        "$schema": DRAFT,
        "title": "Openness of a generative model",
        "type": "object",
        "required": ["schema", "name", "components"],
        "properties": {
            "schema": {"const": "openness-profile-1"},
            "name": {"type": "string", "minLength": 1},
            "components": {
                "type": "object",
                "required": list(IDS),
                "additionalProperties": False,
                "properties": {name: {"$ref": f"#/$defs/{BY_ID[name].kind}"} for name in IDS},
            },
        },
        "$defs": {"code": _component("C"), "data": _component("D")},
    }


def _component(letter: str) -> dict[str, Any]:
    number = {"type": "integer", "minimum": 1, "maximum": 5}
    none, text = {"type": "null"}, {"type": "string", "minLength": 1}
    rated = [
        {"properties": {"status": {"const": "rated"}, "code": {"const": f"{letter}{n}"}, "level": {"const": n}, "low": {"const": n}, "high": {"const": n}}}
        for n in range(1, 6)
    ]  # fmt: skip
    return {
        "type": "object",
        "required": ["code", "status", "level", "low", "high", "evidence"],
        "properties": {
            "evidence": {
                "type": "array", "minItems": 1,
                "items": {"type": "object", "required": ["rule", "source"], "properties": {"rule": text, "source": text}},
            },
            "licence": {"type": "string", "minLength": 1},
            "hint": {"type": "string"},
        },
        "oneOf": [
            *rated,
            {"properties": {"status": {"const": "na"}, "code": {"const": "N/A"}, "level": none, "low": none, "high": none}},
            {"properties": {"status": {"const": "unknown"}, "code": {"const": "Unknown"}, "level": none, "low": number, "high": number}},
        ],
    }  # fmt: skip


def manifest_schema() -> dict[str, Any]:
    """openness.yaml: what a release says of itself."""
    entry = {
        "type": "object",
        "required": ["availability"],
        "additionalProperties": False,
        "properties": {
            "availability": {"enum": list(AVAILABILITY)},
            "licence": {"type": ["string", "null"]},
            "gated": {"type": "boolean"},
            "url": {"type": "string"},
            "note": {"type": "string"},
            "as_of": {"type": "string", "pattern": r"^\d{4}-\d{2}(-\d{2})?$"},
            "low": {"type": "integer", "minimum": 1, "maximum": 5},
            "high": {"type": "integer", "minimum": 1, "maximum": 5},
        },
    }
    return {
        "$schema": DRAFT,
        "title": "openness.yaml",
        "type": "object",
        "required": ["components"],
        "properties": {
            "name": {"type": "string"},
            "documents": {"type": "object", "additionalProperties": {"type": "string"}},
            "components": {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": False,
                "properties": {
                    name: {"oneOf": [entry, {"type": "array", "minItems": 1, "items": entry}]} for name in IDS
                },
            },
        },
    }


def claims_schema() -> dict[str, Any]:
    """Risks and opportunities: no claim without its evidence."""
    return {
        "$schema": DRAFT,
        "title": "Claims on open and closed models",
        "type": "object",
        "required": ["claims"],
        "properties": {
            "claims": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["id", "stage", "area", "side", "leans", "claim", "evidence"],
                    "properties": {
                        **{key: {"type": "string", "minLength": 1} for key in ("id", "stage", "area", "claim")},
                        "side": {"enum": list(SIDES)},
                        "leans": {"enum": list(LEANS)},
                        "evidence": {"enum": list(EVIDENCE_OF_CLAIMS)},
                        "source": {"type": "string"},
                    },
                },
            }
        },
    }


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_profile(raw: Any) -> list[str]:
    """What is wrong with a profile that was read from JSON; empty where nothing is."""
    if not isinstance(raw, Mapping) or raw.get("schema") != "openness-profile-1":
        return ["this is no profile: schema must be openness-profile-1"]
    if not isinstance(raw.get("name"), str) or not raw["name"]:
        return ["name is missing: give the model's name"]
    parts = raw.get("components")
    if not isinstance(parts, Mapping):
        return ["components is missing: give all twelve"]
    problems = [f"{name} is no component of the taxonomy" for name in parts if name not in BY_ID]
    for name in IDS:
        if not isinstance(parts.get(name), Mapping):
            problems.append(f"{name} is missing: give all twelve components")
            continue
        problems += [f"{name}: {what}" for what in _check_component(BY_ID[name].kind, parts[name])]
    return problems


def _check_component(kind: str, part: Mapping[str, Any]) -> Iterable[str]:
    status, code, level = part.get("status"), part.get("code"), part.get("level")
    ends = part.get("low"), part.get("high")
    letter = kind[0].upper()
    if status not in ("rated", "na", "unknown"):
        yield f"status is {status!r}: choose rated, na, unknown"
    elif status == "rated":
        if not _level(level):
            yield f"level is {level!r}: give 1 to 5"
        elif code != f"{letter}{level}":
            yield f"code is {code!r}: a {kind} component of level {level} is {letter}{level}"
        elif ends != (level, level):
            yield f"low and high are {ends}: of a rated component they are its level"
    elif level is not None or code != {"na": "N/A", "unknown": "Unknown"}[status]:
        yield f"code is {code!r} and level {level!r}: they do not go with status {status}"
    elif status == "na" and ends != (None, None):
        yield "low and high have no meaning where a component is not applicable"
    elif status == "unknown" and (not all(map(_level, ends)) or int(ends[0] or 0) > int(ends[1] or 0)):
        yield f"low and high are {ends}: give 1 <= low <= high <= 5"
    evidence = part.get("evidence")
    if not isinstance(evidence, list) or not evidence:
        yield "evidence is missing: say where it was seen"
    elif not all(isinstance(item, Mapping) and item.get("rule") and item.get("source") for item in evidence):
        yield "evidence needs a rule and a source each"


def _level(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 5


def check_manifest(document: Document, source: str) -> list[str]:
    """What is wrong with a manifest, each with its line; empty where nothing is."""

    def wrong(path: str, what: str) -> str:
        line = document.line(path)
        return f"{source}{f', line {line}' if line else ''}: {what}"

    raw = document.value
    if not isinstance(raw, Mapping) or not isinstance(raw.get("components"), Mapping) or not raw["components"]:
        return [wrong("components", "no mapping `components: {<id>: {availability: ...}}`")]
    problems = []
    papers = raw.get("documents", {})
    if not isinstance(papers, Mapping) or not all(isinstance(value, str) for value in papers.values()):
        problems.append(wrong("documents", "documents is a mapping of MOF components to licences"))
    for name, entries in raw["components"].items():
        path = f"components.{name}"
        if name not in BY_ID:
            from common.errors import did_you_mean

            problems.append(wrong(path, f"{name[:60]!r} is no component: {did_you_mean('choose', name, list(IDS))}"))
            continue
        if isinstance(entries, list) and not entries:
            problems.append(wrong(path, f"{name} is an empty list"))
        for entry in entries if isinstance(entries, list) else [entries]:
            problems += [
                wrong(f"{path}.{key}" if key else path, f"{name}: {what}") for key, what in _check_entry(entry)
            ]
    return problems


def _check_entry(entry: Any) -> Iterable[tuple[str, str]]:
    if not isinstance(entry, Mapping):
        yield "", "give {availability: public, licence: MIT}, say"
        return
    for key, value in entry.items():
        if key not in FIELDS:
            yield key, f"there is no field {key[:40]!r}: choose {', '.join(FIELDS)}"
        elif not isinstance(value, str):
            yield key, f"{key} is a list or a mapping: give one text"
    availability = entry.get("availability")
    if availability not in AVAILABILITY:
        yield "availability", f"availability is {availability!r}: choose {', '.join(AVAILABILITY)}"
    licence = entry.get("licence")
    if isinstance(licence, str) and licence and licence.lower() != "none":
        try:
            licences.parse(licence)
        except ValueError as error:
            yield "licence", str(error)
    if isinstance(entry.get("gated"), str) and entry["gated"] not in ("true", "false"):
        yield "gated", f"gated is {entry['gated']!r}: choose true, false"
    if isinstance(entry.get("as_of"), str) and not _is_day(entry["as_of"]):
        yield "as_of", f"as_of is {entry['as_of']!r}: write a day as 2024-06-01"
    ends = entry.get("low", "1"), entry.get("high", "5")
    if not all(isinstance(end, str) and end in "12345" and len(end) == 1 for end in ends) or ends[0] > ends[1]:
        yield (
            "low" if "low" in entry else "high",
            f"low and high are {ends[0]!r} and {ends[1]!r}: give 1 <= low <= high <= 5",
        )


def _is_day(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text if len(text) > 7 else f"{text}-01")
    except ValueError:
        return False
    return True


def check_claims(document: Document, source: str) -> list[str]:
    """What is wrong with a file of risks and opportunities: above all, a claim without evidence."""
    claims = document.value.get("claims") if isinstance(document.value, Mapping) else None
    if not isinstance(claims, list) or not claims:
        return [f"{source}: no list `claims`"]
    problems, seen = [], set()
    for number, claim in enumerate(claims, 1):
        if not isinstance(claim, Mapping):
            problems.append(f"{source}: claim {number} is no mapping")
            continue
        where = f"{source}: claim {claim.get('id', number)}"
        problems += [
            f"{where}: {key} is missing"
            for key in ("id", "stage", "area", "claim", "evidence")
            if not isinstance(claim.get(key), str) or not claim[key]
        ]
        for key, choices in (("side", SIDES), ("leans", LEANS), ("evidence", EVIDENCE_OF_CLAIMS)):
            if claim.get(key) is not None and claim[key] not in choices:
                problems.append(f"{where}: {key} is {claim[key]!r}: choose {', '.join(choices)}")
        problems += [f"{where}: {key} is missing" for key in ("side", "leans") if claim.get(key) is None]
        if claim.get("id") in seen:
            problems.append(f"{where}: the id stands twice")
        seen.add(claim.get("id"))
    return problems
