"""Where a data set lies on this machine: `locate(name)`, and what stands in where it does not.

Searched: each folder of `$PAPERS_DATA` (separated as in PATH), `data/` of the clone, the cache. What is found is checked
against its sha256. Nothing is downloaded unless the entry has a public address and `data.download=true`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from common import files
from common.data.registry import DataSet, File, entries, entry, how_to_get
from common.data.verify import sha256_of_content, sum_over, verify
from common.errors import MissingData, UserError, user_errors
from common.run import Run

T = TypeVar("T")


def folders() -> list[Path]:
    """The folders searched, in order."""
    named = [Path(part).expanduser().absolute() for part in os.environ.get("PAPERS_DATA", "").split(os.pathsep) if part]
    return [*named, files.DATA, files.cache_folder() / "data"]


def locate(name: str, *, run: Run | None = None) -> Path:
    """The verified file (or folder, for a set of several files) of a registry entry.

    With `run`, its use is recorded in the run's data, and a missing file is fetched where `data.download=true`.
    A file may be gzip-compressed (its name then ends in .gz): read it with `read_text` or `read_bytes`.
    Raises MissingData where it is not here (saying how to get it), UserError where its checksum is wrong.
    """
    wanted = entry(name)
    path = next(_found(wanted), None)
    if path is None and run is not None and run.may_download:
        from common.data.download import fetch

        path = fetch(wanted)
    if path is None:
        raise MissingData(f"{wanted.title} is not here: {how_to_get(wanted)}")
    if run is not None:
        run.use_data(name, "real", path, combined_sha(wanted, path))
    return path


def real_or_synthetic(
    name: str, read: Callable[[Path], T], make: Callable[[], T], *, run: Run, fallback: bool = True
) -> T:
    """What `read` makes of a registry entry or, where it is not on this machine, what `make` makes up.

    Made-up data are said (a note) and recorded as synthetic. A file that is there and damaged, or that `read` cannot make
    sense of (ValueError), is a UserError and never a reason to make data up. fallback: False for MissingData instead.
    """
    try:
        path = locate(name, run=run)
    except MissingData:
        if not fallback:
            raise
        run.note(
            f"{entry(name).title} is not here: made-up data of the same form stand in "
            "(`python -m scripts.data list` says how to get it)"
        )
        made_by = getattr(make, "func", make)  # of a partial
        run.use_data(name, "synthetic", f"{made_by.__module__}.{made_by.__qualname__}", None)
        return make()
    with user_errors(str(path)):
        return read(path)


def own_file(path: str, key: str, run: Run, folder: bool | None = False) -> Path:
    """A file (folder=True: a folder; None: either) that the user named in the setting `key`, recorded as real with its sum.

    Raises UserError where there is none. A folder's sum is over its files, their names included.
    """
    found = Path(path).expanduser()
    if not found.exists():
        raise UserError(f"{key}: there is no {path}: check the path")
    if folder is not None and found.is_dir() is not folder:
        raise UserError(
            f"{key}: {path} is a {'folder' if found.is_dir() else 'file'}: give a {'folder' if folder else 'file'}"
        )
    parts = sorted(p for p in found.rglob("*") if p.is_file()) if found.is_dir() else [found]
    sums = [sha256_of_content(part) for part in parts]
    names = [part.relative_to(found).as_posix() for part in parts]
    run.use_data(key, "real", found, sums[0] if found.is_file() else sum_over(names, sums))
    return found


def combined_sha(wanted: DataSet, path: Path) -> str:
    """The sha256 of the one file, or over the names and sums of several; computed where the registry names none."""
    parts = (
        [path] if not wanted.is_folder else [found for file in wanted.files for found in sorted(path.glob(file.path))]
    )
    listed = {file.path: file.sha256 for file in wanted.files}
    sums = [
        listed.get(p.relative_to(path).as_posix() if wanted.is_folder else "") or sha256_of_content(p) for p in parts
    ]
    if not wanted.is_folder:
        return sums[0]
    return sum_over([part.relative_to(path).as_posix() for part in parts], sums)


def _found(wanted: DataSet) -> Iterator[Path]:
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
