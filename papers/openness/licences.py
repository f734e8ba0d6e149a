"""Licences: the five rights of an id, an SPDX expression, a hub id or a label; and the id that a LICENSE text has.

AND takes the minimum of each right. OR is a choice over the whole expression: it is distributed outwards, and the choice with
the most points is taken. WITH an exception has the rights of the licence. No legal advice: the bits are a reading of the terms
with a stated confidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from papers.openness import data
from papers.openness.rating import ALL_RIGHTS, NO_RIGHTS, Rating, Rights, between, level_of, unknown

MODES = ("criteria", "published")
NONE = "LicenseRef-no-licence"
# hub ids that name several licences: the lowest and the highest of their members
FAMILIES = {
    "cc": ("CC-BY-NC-ND-4.0", "CC0-1.0"),
    "gpl": ("GPL-3.0-only", "GPL-3.0-only"),
    "lgpl": ("LGPL-3.0-only", "LGPL-3.0-only"),
    "bsd": ("BSD-3-Clause", "BSD-3-Clause"),
    "openrail": ("LicenseRef-bigscience-openrail-m", "LicenseRef-bigscience-openrail-m"),
}
SPECIAL = {  # other names of what the table has
    "openmdw-1.0": "LicenseRef-OpenMDW-1.0", "openmdw-1.1": "LicenseRef-OpenMDW-1.1",
    "gfdl-1.3": "GFDL-1.3-only", "none": NONE, "apache 2.0": "Apache-2.0",
}  # fmt: skip
# published mode: what the authors' table prints against the criteria, as rights; a level of 4 needs one right less
LABEL = {"composite", "terms of use", "mixed public"}


@dataclass(frozen=True)
class Licence:
    """A licence of the table."""

    id: str
    rights: Rights
    confidence: str  # high | medium | low
    published: int | None  # the level the authors' table prints, if it shows one
    basis: str
    scancode: str  # ScanCode's category, where both name the licence

    @property
    def spdx(self) -> bool:
        """Whether the id is an SPDX id, as a bill of materials may say it."""
        return not self.id.startswith("LicenseRef-")

    def in_mode(self, mode: str) -> Rights:
        """The rights by the criteria, or those the printed level would need."""
        if mode == "criteria" or self.published is None or self.published == self.rights.points:
            return self.rights
        if level_of("data", self.rights) == self.published:
            return self.rights
        return ALL_RIGHTS if self.published == 5 else Rights(1, 1, 1, 1, 0)


@cache
def table() -> dict[str, Licence]:
    """Every licence of the table by id."""
    return {
        row["licence"]: Licence(row["licence"], Rights.of(row["rights"]), row["confidence"],
                                int(row["published"]) if row["published"] else None, row["basis"], row["scancode"])
        for row in data.rows("licences")
    }  # fmt: skip


@cache
def _names() -> dict[str, str]:
    """Every name, in lower case, of a licence of the table."""
    names = {row["hub"].lower(): row["licence"] for row in data.rows("hub") if row["licence"]}
    names |= {row["label"].lower(): row["licence"] for row in data.rows("labels") if row["licence"] in table()}
    names |= {known.lower(): known for known in table()}
    for known in table():
        if known.lower().startswith("licenseref-"):
            names.setdefault(known.lower().removeprefix("licenseref-"), known)
    return names | SPECIAL


@cache
def _labels() -> dict[str, int]:
    """The labels of the authors' table that name no licence, in lower case, with the level it prints."""
    return {row["label"].lower(): int(row["published"]) for row in data.rows("labels") if row["licence"] in LABEL}


def find(name: str) -> Licence | None:
    """The licence that one name stands for: an SPDX id (deprecated and -or-later ones too), LicenseRef, hub id or label."""
    lower = " ".join(name.lower().split())
    names = _names()
    stem = re.sub(r"(-or-later|-only|\+)$", "", lower)
    for candidate in (lower, f"{stem}-only", stem):
        if candidate in names and (candidate == lower or stem != lower or candidate == f"{stem}-only"):
            return table()[names[candidate]]
    return None


# ---- expressions -----------------------------------------------------------------------------------------------------

TOKEN = re.compile(r"\s*(?:(\()|(\))|([A-Za-z0-9][A-Za-z0-9.+:_-]*))")


@dataclass(frozen=True)
class Atom:
    """A licence in an expression, with its exception."""

    name: str
    exception: str | None = None

    def __str__(self) -> str:
        return f"{self.name} WITH {self.exception}" if self.exception else self.name


@dataclass(frozen=True)
class Node:
    """AND or OR of two or more."""

    operator: str
    parts: tuple[Node | Atom, ...]

    def __str__(self) -> str:
        texts = [f"({part})" if isinstance(part, Node) else str(part) for part in self.parts]
        return f" {self.operator} ".join(texts)


def parse(expression: str) -> Node | Atom:
    """The tree of an SPDX expression; a known hub id or label is one licence. ValueError where it does not parse."""
    text = " ".join(expression.split()) if isinstance(expression, str) else ""
    if not text:
        raise ValueError("the licence expression is empty: give an SPDX expression such as MIT OR Apache-2.0")
    if text.lower() in _names() or text.lower() in _labels() or text.lower() in FAMILIES:
        return Atom(text)
    tokens = list(_tokens(text))
    tree, end = _either(text, tokens, 0, 0)
    if end < len(tokens):
        raise _wrong(text, f"{tokens[end]!r} is one word too many")
    return tree


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match:
            raise _wrong(text, f"{text[at:].split()[0][:20]!r} is no part of one")
        yield match[0].strip()
        at = match.end()


def _wrong(text: str, why: str) -> ValueError:
    from common.errors import shorten

    return ValueError(f"{shorten(text)!r} is no licence expression ({why}): write ids joined by AND, OR, WITH")


def _either(text: str, tokens: list[str], at: int, depth: int) -> tuple[Node | Atom, int]:
    return _joined(text, tokens, at, "OR", lambda place: _both(text, tokens, place, depth))


def _both(text: str, tokens: list[str], at: int, depth: int) -> tuple[Node | Atom, int]:
    return _joined(text, tokens, at, "AND", lambda place: _one(text, tokens, place, depth))


def _joined(text, tokens, at, operator, inner) -> tuple[Node | Atom, int]:
    parts = []
    part, at = inner(at)
    parts.append(part)
    while at < len(tokens) and tokens[at].upper() == operator:
        part, at = inner(at + 1)
        parts.append(part)
    return (parts[0] if len(parts) == 1 else Node(operator, tuple(parts))), at


def _one(text: str, tokens: list[str], at: int, depth: int) -> tuple[Node | Atom, int]:
    if depth > 50:
        raise _wrong(text, "it has more than 50 brackets within each other")
    if at >= len(tokens) or tokens[at] == ")" or tokens[at].upper() in ("AND", "OR", "WITH"):
        raise _wrong(text, f"a licence is missing before {tokens[at]!r}" if at < len(tokens) else "its end is missing")
    if tokens[at] == "(":
        tree, at = _either(text, tokens, at + 1, depth + 1)
        if at >= len(tokens) or tokens[at] != ")":
            raise _wrong(text, "a bracket is not closed")
        return tree, at + 1
    name, at = tokens[at], at + 1
    if at < len(tokens) and tokens[at].upper() == "WITH":
        if at + 1 >= len(tokens) or tokens[at + 1] in "()" or tokens[at + 1].upper() in ("AND", "OR", "WITH"):
            raise _wrong(text, "an exception is missing after WITH")
        return Atom(name, tokens[at + 1]), at + 2
    return Atom(name), at


def atoms(tree: Node | Atom) -> list[Atom]:
    """The licences of an expression, as written."""
    if isinstance(tree, Atom):
        return [tree]
    return [atom for part in tree.parts for atom in atoms(part)]


@dataclass(frozen=True)
class Span:
    """Rights that lie between two."""

    low: Rights
    high: Rights
    sure: bool = True  # False of a family of licences: never a level, even where its members agree

    @property
    def exact(self) -> bool:
        return self.sure and self.low == self.high

    def __and__(self, other: Span) -> Span:
        return Span(self.low & other.low, self.high & other.high, self.sure and other.sure)


def _span_of(atom: Atom, mode: str) -> Span:
    known = find(atom.name)
    if known:
        rights = known.in_mode(mode)
        return Span(rights, rights)
    if (family := FAMILIES.get(atom.name.lower())) is not None:
        ends = [table()[name].in_mode(mode) for name in family]
        return Span(ends[0], ends[1], sure=False)
    return Span(NO_RIGHTS, ALL_RIGHTS)


def _choices(tree: Node | Atom, mode: str) -> list[Span]:
    """Every complete choice of an expression, first as written; those with equal rights once (at most 32 x 32)."""
    if isinstance(tree, Atom):
        return [_span_of(tree, mode)]
    found = [_choices(part, mode) for part in tree.parts]
    if tree.operator == "OR":
        return list(dict.fromkeys(choice for part in found for choice in part))
    joined = [Span(ALL_RIGHTS, ALL_RIGHTS)]
    for part in found:
        joined = list(dict.fromkeys(a & b for a in joined for b in part))
    return joined


def span(expression: str, mode: str = "criteria") -> Span:
    """The least and the most that an expression may allow. ValueError where it does not parse."""
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}: choose {', '.join(MODES)}")
    text = " ".join(expression.split()) if isinstance(expression, str) else ""
    if mode == "published" and text.lower() in _labels():
        rights = ALL_RIGHTS if _labels()[text.lower()] == 5 else Rights(1, 1, 1, 1, 0)
        return Span(rights, rights)
    choices = _choices(parse(expression), mode)
    least = max(choices, key=lambda choice: choice.low.points)  # the first of equals
    high = max((choice.high for choice in choices), key=lambda r: r.points)
    if least.low.points == high.points:  # whatever the unknown ones allow, no choice is better than this one
        return Span(least.low, least.low, least.sure)
    return Span(least.low, high)


def rights(expression: str, mode: str = "criteria") -> Rights | None:
    """The five rights of an SPDX expression, LicenseRef, hub id or label; None where not known. ValueError: does not parse."""
    found = span(expression, mode)
    return found.low if found.exact else None


def level(expression: str, kind: str, mode: str = "criteria") -> int | None:
    """The level of a public component under this licence; None where it is not known. ValueError: does not parse."""
    return rating(kind, span(expression, mode)).level


def rating(kind: str, found: Span) -> Rating:
    """The rating of a public component whose rights are these: a level, or unknown within bounds."""
    rated = between(kind, found.low, found.high)
    return rated if found.sure or rated.level is None else unknown(kind, rated.level, rated.level)


def confidence(expression: str) -> str | None:
    """The lowest confidence among the licences of an expression; None where one is not known."""
    found = [find(atom.name) for atom in atoms(parse(expression))]
    if not all(found):
        return None
    return max((known.confidence for known in found if known), key=("high", "medium", "low").index)


def ids(expression: str) -> list[str]:
    """The table's ids of the licences in an expression; what the table does not have stays as it is written."""
    return [known.id if (known := find(atom.name)) else atom.name for atom in atoms(parse(expression))]


def ids_or_none(expression: str) -> list[str]:
    """As `ids`, and nothing where the text does not parse."""
    try:
        return ids(expression)
    except ValueError:
        return []


# ---- LICENSE texts ---------------------------------------------------------------------------------------------------

# title -> id, the more special first; matched in the first lines, without case, spaces and punctuation made single spaces
TITLES: tuple[tuple[str, str], ...] = (
    ("openmdw license agreement", "LicenseRef-OpenMDW-1.0"),
    (r"llama 2 community license", "LicenseRef-llama2"),
    (r"llama 3\.1 community license", "LicenseRef-llama3.1"),
    (r"llama 3\.2 community license", "LicenseRef-llama3.2"),
    (r"llama 3\.3 community license", "LicenseRef-llama3.3"),
    (r"llama 4 community license", "LicenseRef-llama4"),
    (r"llama 3 community license", "LicenseRef-llama3"),
    (r"databricks open model license", "LicenseRef-databricks-open-model"),
    (r"falcon 180b tii license", "LicenseRef-falcon-180b-tii"),
    (r"falcon 2.{0,20}tii license|tii falcon license 2", "LicenseRef-falcon-2-tii"),
    (r"tii falcon llm license", "LicenseRef-falcon-llm-tii-1.0"),
    (r"tongyi qianwen license", "LicenseRef-tongyi-qianwen"),
    (r"qwen research license", "LicenseRef-qwen-research"),
    (r"deepseek license agreement", "LicenseRef-deepseek-model"),
    (r"bigscience bloom rail|bigscience rail license|bigscience.{0,20} rail license", "LicenseRef-bigscience-bloom-rail-1.0"),
    (r"bigscience openrail m|bigscience open rail m", "LicenseRef-bigscience-openrail-m"),
    (r"creativeml open rail\+\+ m", "LicenseRef-openrail++"),
    (r"creativeml open ?rail m", "LicenseRef-creativeml-openrail-m"),
    (r"bigcode open ?rail m", "LicenseRef-bigcode-openrail-m"),
    (r"gemma terms of use", "LicenseRef-gemma"),
    (r"opt 175b license", "LicenseRef-opt-175b"),
    (r"glm 130b license", "LicenseRef-glm-130b"),
    (r"stability ai community license", "LicenseRef-stabilityai-community"),
    (r"stability ai non commercial research", "LicenseRef-stabilityai-nc-research"),
    (r"mistral ai non production license", "LicenseRef-mistral-mnpl-0.1"),
    (r"mistral ai research license", "LicenseRef-mistral-mrl-0.1"),
    (r"jamba open model license", "LicenseRef-jamba-open-model"),
    (r"nvidia open model license", "LicenseRef-nvidia-open-model"),
    (r"ai2 impact license", "LicenseRef-ai2-impact"),
    (r"yi series models (community )?license", "LicenseRef-yi-license"),
    (r"microsoft research license", "LicenseRef-ms-research"),
    (r"attribution noncommercial sharealike 4\.0", "CC-BY-NC-SA-4.0"),
    (r"attribution noncommercial sharealike 3\.0", "CC-BY-NC-SA-3.0"),
    (r"attribution noncommercial sharealike 2\.0", "CC-BY-NC-SA-2.0"),
    (r"attribution noncommercial noderiv(ative)?s 4\.0", "CC-BY-NC-ND-4.0"),
    (r"attribution noncommercial noderiv(ative)?s 3\.0", "CC-BY-NC-ND-3.0"),
    (r"attribution noncommercial 4\.0", "CC-BY-NC-4.0"),
    (r"attribution noncommercial 3\.0", "CC-BY-NC-3.0"),
    (r"attribution noncommercial 2\.0", "CC-BY-NC-2.0"),
    (r"attribution sharealike 4\.0", "CC-BY-SA-4.0"),
    (r"attribution sharealike 3\.0", "CC-BY-SA-3.0"),
    (r"attribution noderiv(ative)?s 4\.0", "CC-BY-ND-4.0"),
    (r"attribution 4\.0", "CC-BY-4.0"),
    (r"attribution 3\.0", "CC-BY-3.0"),
    (r"attribution 2\.5", "CC-BY-2.5"),
    (r"attribution 2\.0", "CC-BY-2.0"),
    (r"cc0 1\.0 universal", "CC0-1.0"),
    (r"gnu affero general public license version 3", "AGPL-3.0-only"),
    (r"gnu lesser general public license version 2\.1", "LGPL-2.1-only"),
    (r"gnu lesser general public license version 3", "LGPL-3.0-only"),
    (r"gnu free documentation license version 1\.3", "GFDL-1.3-only"),
    (r"gnu general public license version 2", "GPL-2.0-only"),
    (r"gnu general public license version 3", "GPL-3.0-only"),
    (r"academic free license.{0,12} v ?(ersion)? ?3\.0", "AFL-3.0"),
    (r"artistic license 2\.0", "Artistic-2.0"),
    (r"boost software license version 1\.0", "BSL-1.0"),
    (r"business source license 1\.1", "BUSL-1.1"),
    (r"blue oak model license version 1\.0", "BlueOak-1.0.0"),
    (r"bsd zero clause license", "0BSD"),
    (r"clear bsd license", "BSD-3-Clause-Clear"),
    (r"bsd 2 clause", "BSD-2-Clause"),
    (r"bsd 3 clause", "BSD-3-Clause"),
    (r"bsd 4 clause", "BSD-4-Clause"),
    (r"educational community license version 2\.0", "ECL-2.0"),
    (r"eclipse public license v(ersion)? 1\.0", "EPL-1.0"),
    (r"eclipse public license v(ersion)? 2\.0", "EPL-2.0"),
    (r"european union public licence v ?\.? ?1\.1", "EUPL-1.1"),
    (r"european union public licence v ?\.? ?1\.2", "EUPL-1.2"),
    (r"mozilla public license version 2\.0", "MPL-2.0"),
    (r"microsoft public license", "MS-PL"),
    (r"microsoft reciprocal license", "MS-RL"),
    (r"(mulan permissive software license.?|木兰宽松许可证.{0,3}) ?(第2版|v2|version 2)", "MulanPSL-2.0"),
    (r"university of illinois.{0,3}ncsa open source license", "NCSA"),
    (r"open database license", "ODbL-1.0"),
    (r"open data commons attribution license|odc attribution license|odc by", "ODC-By-1.0"),
    (r"open data commons public domain dedication|odc public domain dedication", "PDDL-1.0"),
    (r"community data license agreement permissive version 1\.0", "CDLA-Permissive-1.0"),
    (r"community data license agreement permissive version 2\.0", "CDLA-Permissive-2.0"),
    (r"community data license agreement sharing version 1\.0", "CDLA-Sharing-1.0"),
    (r"sil open font license version 1\.1", "OFL-1.1"),
    (r"open software license.{0,12} v ?(ersion)? ?3\.0", "OSL-3.0"),
    (r"postgresql license", "PostgreSQL"),
    (r"latex project public license.{0,20}1\.3c", "LPPL-1.3c"),
    (r"(cecill.{0,60}2\.1|2\.1.{0,60}cecill)", "CECILL-2.1"),
    (r"universal permissive license.{0,8}version 1\.0", "UPL-1.0"),
    (r"do what the f.{2,3} you want to public license", "WTFPL"),
    (r"mit no attribution", "MIT-0"),
    (r"this is free and unencumbered software released into the public domain", "Unlicense"),
    (r"zlib license", "Zlib"),
    (r"\bisc license", "ISC"),
    (r"apache license version 2\.0", "Apache-2.0"),
    (r"\bmit license", "MIT"),
    (r"permission is hereby granted free of charge", "MIT"),
)  # fmt: skip
_TITLES = tuple((re.compile(pattern), name) for pattern, name in TITLES)


def identify(text: str) -> str | None:
    """The id of the licence whose text this is, by its title lines; None where no title is known."""
    lines = [line for line in text.lstrip("\ufeff").splitlines()[:60] if line.strip()][:12]
    squeezed = " ".join(re.sub(r"[^\w.+]+", " ", " ".join(lines).lower()).split())[:1200]
    if spdx := re.search(r"spdx-license-identifier:\s*([^\n*/#]+)", "\n".join(lines), flags=re.I):
        known = find(spdx[1].strip())
        return known.id if known else None
    best = None
    for pattern, name in _TITLES:
        match = pattern.search(squeezed)
        if match and (best is None or match.start() < best[0]):
            best = (match.start(), name)
    return best[1] if best else None


def read(path: Path) -> str:
    """A LICENSE text as a file holds it: ValueError where it is no text or no file."""
    from papers.openness.documents import text_of

    return text_of(path, limit=200_000)
