"""Files that people have on disk: text with its limits, YAML with the line of each key, front matter of cards and pages.

All scalars stay text: `language: no` is no False and `license_name: 1.0` no float.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = 2_000_000  # characters of a file that are read
NODES = 100_000  # of one document, aliases opened


def text_of(path: Path, limit: int = LIMIT) -> str:
    """The text of a file without BOM and CRLF, at most `limit` characters. ValueError where it is no text file."""
    if not path.is_file():
        raise ValueError(f"{path.name} is no file: give a file")
    with path.open("rb") as file:
        raw = file.read(limit)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(raw) < limit or error.start < limit - 4:
            raise ValueError(f"{path.name} is not UTF-8 text: save it as UTF-8") from None
        text = raw[: error.start].decode("utf-8-sig")
    if "\0" in text:
        raise ValueError(f"{path.name} holds zero bytes, so it is no text: check the file")
    return text.replace("\r\n", "\n").replace("\r", "\n")


@dataclass(frozen=True)
class Document:
    """A YAML document: `value` (mappings, lists, text) and the line, from 1, of each key by its dotted path."""

    value: Any
    lines: dict[str, int]

    def line(self, path: str) -> int | None:
        """The line of a key, or of the nearest key above it."""
        while path and path not in self.lines:
            path = path.rpartition(".")[0]
        return self.lines.get(path)


def yaml_of(text: str, name: str, offset: int = 0) -> Document:
    """Read YAML without giving its scalars types. ValueError naming the file and the line where it cannot be read."""
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        root = yaml.compose(text, Loader=loader)
        lines: dict[str, int] = {}
        count = [0]
        value = _value(root, "", lines, offset, count, frozenset()) if root is not None else None
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply to be read: make it flatter") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1 + offset}" if mark is not None else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise ValueError(f"{name}{where}: no YAML ({problem})") from None
    except _Refused as error:
        raise ValueError(f"{name}{error}") from None
    return Document(value, lines)


class _Refused(Exception):
    pass


def _value(node: Any, path: str, lines: dict[str, int], offset: int, count: list[int], above: frozenset[int]) -> Any:
    import yaml

    count[0] += 1
    if count[0] > NODES:
        raise _Refused(f": more than {NODES:,} entries, aliases opened: make it smaller")
    if id(node) in above:
        raise _Refused(": an alias holds itself: write it out")
    if isinstance(node, yaml.ScalarNode):
        return node.value
    above = above | {id(node)}
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, path, lines, offset, count, above) for item in node.value]
    found: dict[str, Any] = {}
    for key, item in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _Refused(f", line {key.start_mark.line + 1 + offset}: a key is not plain text")
        inner = f"{path}.{key.value}" if path else key.value
        if key.value in found:
            raise _Refused(f", line {key.start_mark.line + 1 + offset}: the key {key.value[:40]!r} stands twice")
        lines[inner] = key.start_mark.line + 1 + offset
        found[key.value] = _value(item, inner, lines, offset, count, above)
    return found


def read_yaml(path: Path) -> Document:
    """A YAML file whose document is a mapping. ValueError naming the file otherwise."""
    found = yaml_of(text_of(path), path.name)
    if not isinstance(found.value, dict):
        raise ValueError(f"{path.name} holds no mapping of keys to values: check the file")
    return found


def front_matter(path: Path) -> tuple[Document, str]:
    """The YAML between the first two `---` lines of a Markdown file, and the body. An empty mapping where there is none.

    The closing fence may end the file; a `---` in the body is a horizontal rule. ValueError for YAML that cannot be read.
    """
    text = text_of(path)
    match = re.match(r"\s*?---[ \t]*\n(.*?)(?:^|\n)---[ \t]*(?:\n|\Z)", text, flags=re.S)
    if not match:
        return Document({}, {}), text
    offset = text[: match.start(1)].count("\n")
    found = yaml_of(match[1], path.name, offset)
    if found.value is None:
        return Document({}, {}), text[match.end() :]
    if not isinstance(found.value, dict):
        raise ValueError(f"{path.name}: its front matter holds no mapping of keys to values")
    return found, text[match.end() :]


def listed(value: Any) -> list[str]:
    """A key that may hold one text or a list of texts, as a list without what is empty."""
    items = value if isinstance(value, list) else [value]
    return [
        item.strip() for item in items if isinstance(item, str) and item.strip() and item.strip() not in ("~", "null")
    ]


def files_below(folder: Path, depth: int = 4, most: int = 20_000) -> Iterator[Path]:
    """Files of a folder in the order of their names, hidden folders and links that lead out left out, at most `depth` deep."""
    seen = 0
    stack = [(folder, 0)]
    while stack:
        here, level = stack.pop()
        try:
            entries = sorted(here.iterdir(), key=lambda p: p.name)
        except OSError:
            continue
        inner = []
        for entry in entries:
            if entry.is_symlink() and not entry.exists():
                continue
            if entry.is_dir():
                if (
                    level + 1 < depth
                    and not entry.is_symlink()
                    and (not entry.name.startswith(".") or entry.name == ".eval_results")
                ):
                    inner.append((entry, level + 1))
            elif entry.is_file():
                seen += 1
                if seen > most:
                    return
                yield entry
        stack.extend(reversed(inner))
