"""An index on disk: a folder of .npy files, read by memory-mapping, and index.json, which says what they must be."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from common.files import digest, sha256_of, write_json

FORMAT = 3


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `state` (WindowIndex.state) as the folder `path`; whole, or not at all. What was there goes when this is written."""
    if path.exists() and not (path / "index.json").exists() and (path.is_file() or any(path.iterdir())):
        raise ValueError(f"{path} is there and is not an index: choose another path")
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        files = {}
        for number, segment in enumerate(state["segments"]):
            for name, array in segment.items():
                file = f"{number}.{name}.npy"
                np.save(scratch / file, array, allow_pickle=False)
                files[file] = {"sha256": sha256_of(scratch / file), "bytes": (scratch / file).stat().st_size}
        head = {"settings": state["settings"], "segments": len(state["segments"]), "files": files}
        write_json(scratch / "index.json", {"format": FORMAT, **head, "sha256": _digest(head)})
        old = scratch.with_suffix(".old")
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            os.replace(path, old)
        os.replace(scratch, path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _digest(head: dict[str, Any]) -> str:
    """Over what index.json says: a changed metric would otherwise give wrong answers without a word."""
    return digest({name: head[name] for name in ("settings", "segments", "files")})


def load(path: Path, verify: bool = True) -> dict[str, Any]:
    """What `save` wrote, arrays memory-mapped (copy on write). Raises ValueError where it is missing or damaged."""
    try:
        head = json.loads((path / "index.json").read_text())
        files, settings, count = head["files"], head["settings"], head["segments"]
    except FileNotFoundError:
        raise ValueError(f"there is no index at {path}: give the folder that save() wrote") from None
    except (ValueError, KeyError, TypeError, NotADirectoryError, UnicodeDecodeError) as error:
        raise ValueError(f"the index at {path} is damaged (index.json: {error}): build it again") from None
    if head.get("format") != FORMAT:
        raise ValueError(
            f"the index at {path} has format {head.get('format')}, this code reads {FORMAT}: build it again"
        )
    if head.get("sha256") != _digest(head):
        raise ValueError(f"the index at {path} is damaged (index.json): build it again")
    segments: list[dict[str, Any]] = [{} for _ in range(count)]
    for file, known in files.items():
        part = path / file
        if (
            not part.is_file()
            or part.stat().st_size != known["bytes"]
            or (verify and sha256_of(part) != known["sha256"])
        ):
            raise ValueError(f"the index at {path} is damaged ({file}): build it again")
        number, name, _ = file.split(".")
        try:
            segments[int(number)][name] = np.asarray(np.load(part, mmap_mode="c", allow_pickle=False))
        except (ValueError, OSError):  # an empty array cannot be mapped
            segments[int(number)][name] = np.load(part, allow_pickle=False)
    return {"settings": settings, "segments": segments}
