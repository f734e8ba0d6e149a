"""paper.yaml: what others need to know of a paper (title, data sets, extras, peers, what is left), read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from common import catalogue
from common.errors import UserError

FILE = "paper.yaml"
TEXTS = ("short", "title", "authors", "arxiv", "area", "does", "picture", "left")
LISTS = ("needs", "peers", "record")
MAPPINGS = ("use", "extras", "races", "data")
OPTIONAL: dict[str, Any] = {"arxiv": None, "picture": None, "use": {}, "extras": {}, "needs": [], "peers": [], "races": {},
                            "record": [], "data": {}}  # fmt: skip


@dataclass(frozen=True)
class Card:
    """A paper's paper.yaml; docs/add_a_paper.md says what each field means."""

    name: str
    short: str
    title: str
    authors: str
    area: str
    does: str  # one plain sentence
    left: str
    arxiv: str | None
    picture: str | None  # below the paper's folder
    use: Mapping[str, str]  # verb: what a practitioner runs, line: the command
    extras: Mapping[str, Mapping[str, str]]  # extra -> {module: the requirement that brings it}
    needs: tuple[str, ...]  # extras without which the default job does not run
    peers: tuple[str, ...]  # distributions that its races are run against
    races: Mapping[str, Any]  # title of a race -> {says, bars or picture}; read: date of the record that this speaks of
    record: tuple[str, ...]  # experiments to record beside those that claims name
    data: Mapping[str, Any]  # registry entries that this paper alone uses

    @property
    def line(self) -> str:
        """The paper in a line: the first of its package's docstring."""
        return f"{self.short}: {self.title} ({self.authors}, ICML 2024)."


@cache
def card(paper: str) -> Card:
    """The card of a paper. Raises UserError where it has none or the file is wrong."""
    path = catalogue.folder_of(f"papers.{paper}") / FILE
    try:
        return Card(name=paper, **validate(read(path), path))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: write it as docs/add_a_paper.md says") from None
    except ValueError as error:
        raise UserError(str(error)) from None


def cards() -> list[Card]:
    """The cards of the papers that have one, by name; a test holds that all have."""
    return [card(paper) for paper in catalogue.papers() if (catalogue.folder_of(f"papers.{paper}") / FILE).is_file()]


def read(path: Path) -> Any:
    """What a YAML file holds; ValueError names a file that cannot be read as YAML."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the compiled one is ten times as quick
    try:
        reading = loader(path.read_text())
        try:
            return reading.get_single_data()
        finally:
            reading.dispose()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None


def validate(found: Any, path: Path) -> dict[str, Any]:
    """The fields of a card, defaults filled in. Raises ValueError naming file and field."""

    def wrong(what: str) -> ValueError:
        return ValueError(f"{path}: {what}")

    if not isinstance(found, dict):
        raise wrong("a mapping is expected")
    fields = (*TEXTS, *LISTS, *MAPPINGS)
    if unknown := set(found) - set(fields):
        raise wrong(f"unknown field {sorted(unknown)[0]}; the fields are {', '.join(fields)}")
    values = OPTIONAL | found
    for name in TEXTS:
        if name not in values:
            raise wrong(f"{name} is missing")
        text = values[name]
        if not (isinstance(text, str) and text.strip()) and not (text is None and name in OPTIONAL):
            raise wrong(f"{name} is a text")
    for name in LISTS:
        if not isinstance(values[name], list) or not all(isinstance(item, str) for item in values[name]):
            raise wrong(f"{name} is a list of names")
        values[name] = tuple(values[name])
    for name in MAPPINGS:
        if not isinstance(values[name], dict):
            raise wrong(f"{name} is a mapping")
    if values["use"] and set(values["use"]) != {"verb", "line"}:
        raise wrong("use is {verb: what a practitioner runs, line: the command}")
    for extra, modules in values["extras"].items():
        if not isinstance(modules, dict) or not all(isinstance(word, str) for pair in modules.items() for word in pair):
            raise wrong(f"extras.{extra} is {{module: requirement}}")
    if missing := set(values["needs"]) - set(values["extras"]):
        raise wrong(f"needs names {sorted(missing)[0]}, which is not among its extras")
    for race, entry in values["races"].items():
        if race != "read" and not (isinstance(entry, dict) and set(entry) <= {"says", "bars", "picture"}):
            raise wrong(f"races.{race} is {{says: who wins where, bars or picture: what is drawn}}")
    return values
