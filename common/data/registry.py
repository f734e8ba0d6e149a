"""Where a data set lies on this machine: `locate(name)`, from the entries of data/registry.yaml.

Searched: each folder of `$PAPERS_DATA` (separated as in PATH), `data/` of the clone, the cache. What is found is checked
against its sha256. Nothing is downloaded unless the entry has a public address and `data.download=true`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from common import files
from common.errors import UserError
from common.run import Run


@dataclass(frozen=True)
class File:
    path: str  # below the entry's folder; may hold a *; empty for a set of one file
    sha256: str  # of the plain content; a .gz beside it counts
    bytes: int
    url: str | None = None


@dataclass(frozen=True)
class Entry:
    """One data set. `paths` are the names it may have: of the one file, or of the folder of several."""

    name: str
    title: str
    licence: str
    paths: tuple[str, ...]
    files: tuple[File, ...]
    how: str = ""  # for what is not downloaded: where to ask, which files to put where
    is_folder: bool = False


@cache
def entries() -> dict[str, Entry]:
    """The registry by name."""
    import yaml

    found = {}
    for name, raw in yaml.safe_load((files.ROOT / "data" / "registry.yaml").read_text()).items():
        is_folder = "files" in raw
        listed = (
            raw["files"]
            if is_folder
            else [{"path": "", "sha256": raw.get("sha256", ""), "bytes": raw.get("bytes", 0), "url": raw.get("url")}]
        )
        found[name] = Entry(
            name,
            raw["title"],
            raw["licence"],
            tuple(raw["paths"]),
            tuple(File(**file) for file in listed),
            raw.get("how", ""),
            is_folder,
        )
    return found


def entry(name: str) -> Entry:
    if name not in entries():
        from common.configs import known

        raise UserError(f"unknown data set {name!r}: {known('the registry has', name, list(entries()))}")
    return entries()[name]


def folders() -> list[Path]:
    """The folders searched, in order."""
    named = [Path(part).expanduser().absolute() for part in os.environ.get("PAPERS_DATA", "").split(os.pathsep) if part]
    return [*named, files.ROOT / "data", files.cache_folder() / "data"]


def locate(name: str, *, run: Run | None = None) -> Path:
    """The verified file (or folder, for a set of several files) of a registry entry.

    With `run`, its use is recorded in the run's data, and a missing file is fetched where `data.download=true`.
    A file may be gzip-compressed (its name then ends in .gz): read it with `read_text` or `read_bytes`.
    Raises UserError where it is missing (saying how to get it) or its checksum is wrong.
    """
    wanted = entry(name)
    path = next(_found(wanted), None)
    if path is None and run is not None and run.config.get("data", {}).get("download"):
        from common.data.download import fetch

        path = fetch(wanted)
    if path is None:
        raise UserError(f"{wanted.title} is not here: {how_to_get(wanted)}")
    if run is not None:
        run.record_data(name, "real", path, combined_sha(wanted, path))
    return path


def combined_sha(wanted: Entry, path: Path) -> str:
    """The sha256 of the one file, or over the names and sums of several; computed where the registry names none."""
    parts = (
        [path] if not wanted.is_folder else [found for file in wanted.files for found in sorted(path.glob(file.path))]
    )
    known = {file.path: file.sha256 for file in wanted.files}
    sums = [
        known.get(p.relative_to(path).as_posix() if wanted.is_folder else "") or sha256_of_content(p) for p in parts
    ]
    if not wanted.is_folder:
        return sums[0]
    return hashlib.sha256(
        "".join(f"{p.relative_to(path).as_posix()}\0{s}\n" for p, s in zip(parts, sums, strict=True)).encode()
    ).hexdigest()


def how_to_get(wanted: Entry) -> str:
    if wanted.how:
        return f"{wanted.how}; then check with `python -m scripts.data verify {wanted.name}`"
    get = (
        f"fetch it with `python -m scripts.data fetch {wanted.name}` or data.download=true, or "
        if all(file.url for file in wanted.files)
        else ""
    )
    return f"{get}put {wanted.paths[0]} below a folder that $PAPERS_DATA names"


def _found(wanted: Entry) -> Iterator[Path]:
    """Whole, verified copies of an entry; a copy with a wrong checksum ends the search with an error."""
    for folder in folders():
        for relative in wanted.paths:
            here = [_matches(folder / relative, file) for file in wanted.files]
            if not all(here):
                continue
            for file, parts in zip(wanted.files, here, strict=True):
                if file.sha256:  # empty: weights whose sum depends on the licensee's copy
                    verify(parts[0], file.sha256)
            yield folder / relative if wanted.is_folder else here[0][0]


def _matches(base: Path, file: File) -> list[Path]:
    """The files that a registry file stands for: itself, itself compressed, or all that its pattern matches."""
    if "*" in file.path:
        return sorted(base.glob(file.path))
    path = _plain_or_gz(base / file.path if file.path else base)
    return [path] if path else []


def _plain_or_gz(path: Path) -> Path | None:
    return next((p for p in (path, path.with_name(path.name + ".gz")) if p.is_file()), None)


def verify(path: Path, sha256: str) -> None:
    """Raise UserError unless the (unpacked) content has this sha256. Remembered by path, size and time of change."""
    stat = path.stat()
    key, state = str(path), [stat.st_size, stat.st_mtime_ns, sha256]
    memory = files.cache_folder() / "verified.json"
    try:
        seen = json.loads(memory.read_text())
    except (OSError, ValueError):
        seen = {}
    if seen.get(key) == state:
        return
    found = sha256_of_content(path)
    if found != sha256:
        raise UserError(
            f"checksum mismatch: {path} has sha256 {found[:12]}..., expected {sha256[:12]}...; delete it and get it again"
        )
    try:
        files.write_json(memory, seen | {key: state})
    except OSError:
        pass  # a cache that cannot be written only costs time


def sha256_of_content(path: Path) -> str:
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return "(damaged archive)"


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked where its name ends in .gz."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def read_text(path: Path) -> str:
    return read_bytes(path).decode("utf-8", errors="replace")


def status(name: str) -> tuple[str, str]:
    """("found" | "missing" | "damaged", where it is or what to do)."""
    try:
        path = next(_found(entry(name)), None)
    except UserError as error:
        return "damaged", str(error)
    return ("found", str(path)) if path else ("missing", how_to_get(entry(name)))


def listing() -> str:
    """Two lines an entry, for `papers doctor` and `python -m scripts.data list`: what it is, and where or how to get it."""
    lines = []
    for name, wanted in entries().items():
        state, where = status(name)
        size = sum(file.bytes for file in wanted.files) / 1e6
        lines.append(
            f"{name}: {state}; {wanted.title} ({wanted.licence}{f', {size:.2f} MB' if size > 0.01 else ''})\n    {where}\n"
        )
    return "".join(lines)
