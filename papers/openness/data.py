"""The shipped tables: facts with a source in each row, read once."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

FOLDER = Path(__file__).parent / "tables"
Row = Mapping[str, str]


@cache
def rows(name: str) -> tuple[Row, ...]:
    """The rows of `tables/<name>.csv`, read-only."""
    with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return tuple(MappingProxyType(row) for row in csv.DictReader(file))


@cache
def by(name: str, key: str) -> Mapping[str, Row]:
    """The rows of a table by one of its columns, which names each once."""
    found = {row[key]: row for row in rows(name)}
    if len(found) < len(rows(name)):
        raise ValueError(f"{name}.csv has a {key} twice")
    return MappingProxyType(found)


@cache
def risks() -> Mapping[str, Any]:
    """The risks and opportunities: stages, areas, and claims with their evidence."""
    import yaml

    return MappingProxyType(yaml.safe_load((FOLDER / "risks.yaml").read_text(encoding="utf-8")))


@cache
def fingerprint() -> str:
    """One sha256 over all shipped tables, their names included."""
    total = sha256()
    for path in sorted(FOLDER.iterdir()):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()
