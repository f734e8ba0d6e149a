"""The registry of data sets: data/registry.yaml, which several papers use, and what each paper.yaml adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from common import files
from common.cards import cards, read
from common.errors import UserError, did_you_mean

SHARED = files.DATA / "registry.yaml"


@dataclass(frozen=True)
class File:
    """One file of a data set."""

    path: str  # below the entry's folder; may hold a *; empty for a set of one file
    sha256: str  # of the plain content; a .gz beside it counts
    bytes: int
    url: str | None = None


@dataclass(frozen=True)
class DataSet:
    """One data set. `paths` are the names it may have: of the one file, or of the folder of several."""

    name: str
    title: str
    licence: str
    paths: tuple[str, ...]
    files: tuple[File, ...]
    how: str = ""  # for what is not downloaded: where to ask, which files to put where
    is_folder: bool = False


@cache
def entries() -> dict[str, DataSet]:
    """The registry by name. UserError where a name stands twice or an entry lacks a field."""
    found: dict[str, DataSet] = {}
    for where, listed in _sources():
        for name, raw in listed.items():
            if name in found:
                raise UserError(f"the data set {name} of {where} is in the registry already: give it another name")
            try:
                found[name] = _data_set(name, raw)
            except (KeyError, TypeError) as error:
                raise UserError(f"the data set {name} of {where} is not as it should be: {error}") from None
    return found


def _sources() -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield SHARED.name, read(SHARED) or {}
    for card in cards():
        yield f"{card.name}/paper.yaml", card.data


def _data_set(name: str, raw: Mapping[str, Any]) -> DataSet:
    is_folder = "files" in raw
    one = {"path": "", "sha256": raw.get("sha256", ""), "bytes": raw.get("bytes", 0), "url": raw.get("url")}
    listed = tuple(File(**file) for file in (raw["files"] if is_folder else [one]))
    return DataSet(name, raw["title"], raw["licence"], tuple(raw["paths"]), listed, raw.get("how", ""), is_folder)


def entry(name: str) -> DataSet:
    """The data set of a name. UserError for one that the registry does not have."""
    if name not in entries():
        raise UserError(f"unknown data set {name!r}: {did_you_mean('the registry has', name, list(entries()))}")
    return entries()[name]


def how_to_get(wanted: DataSet) -> str:
    """How a person gets a data set: the end of a sentence."""
    if wanted.how:
        return f"{wanted.how}; then check with `python -m scripts.data verify {wanted.name}`"
    get = (
        f"fetch it with `python -m scripts.data fetch {wanted.name}` or data.download=true, or "
        if all(file.url for file in wanted.files)
        else ""
    )
    return f"{get}put {wanted.paths[0]} below a folder that $PAPERS_DATA names"


def __getattr__(name: str) -> Any:  # until all import these from where they now are
    from common.data import locate, verify

    for module in (locate, verify):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
