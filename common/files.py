"""Atomic writes, strict JSON, sha256 sums and names of files: a file of ours is whole or not there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent  # the clone, or where the wheel's packages lie
IS_CLONE = (ROOT / "pyproject.toml").is_file()
DATA = ROOT / "data" if IS_CLONE else ROOT / "common" / "_data"  # the registry, and the small weights made here


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a scratch path beside `path`; when the block ends well it is flushed to disk and renamed to `path`.

    A reader sees the old file or the new one, never a part. When the block fails the scratch file is removed.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield scratch
        with open(scratch, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def write_atomic(path: str | os.PathLike, content: str | bytes) -> None:
    """Write text (UTF-8) or bytes to `path` in one step, see `atomic_path`."""
    with atomic_path(path) as scratch:
        scratch.write_bytes(content.encode() if isinstance(content, str) else content)


def plain(value: Any) -> Any:
    """`value` as strict JSON can hold it: NaN and infinities become None, numpy scalars numbers, paths strings.

    Raises TypeError for what has no JSON form.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, date):  # YAML reads 2026-11-30 as one
        return value.isoformat()
    if type(value).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        return plain(OmegaConf.to_container(value, resolve=True))
    if hasattr(value, "tolist"):  # numpy and torch scalars and arrays
        return plain(value.tolist())
    raise TypeError(f"no JSON form for {type(value).__name__}")


def to_json(value: Any, indent: int | None = 2) -> str:
    """Strict JSON text of `value`, see `plain`; ends in a line break."""
    return json.dumps(plain(value), indent=indent, allow_nan=False) + "\n"


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write `to_json(value)` to `path` in one step."""
    write_atomic(path, to_json(value))


def digest(value: Any) -> str:
    """Sixteen hex digits that depend on the JSON form of `value` alone (key order does not matter)."""
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()[:16]


def sha256_of(path: str | os.PathLike) -> str:
    """The sha256 of a file as it lies there, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_arrays(*arrays: Any) -> str:
    """The sha256 over dtypes, shapes and contents of numpy or torch (CPU) arrays, in hex."""
    import numpy as np

    sha = hashlib.sha256()
    for array in arrays:
        array = np.ascontiguousarray(array)
        sha.update(f"{array.dtype.str} {array.shape}\n".encode())
        sha.update(array.data)
    return sha.hexdigest()


def file_name(name: str) -> str:
    """`name`, which is to name a file. Raises ValueError where it cannot."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+=-]*", name) or len(name) > 200:
        raise ValueError(f"{name!r} cannot name a file: use letters, digits and _ . + = -")
    return name


def cache_folder() -> Path:
    """Where downloads and shared stages are kept: `$PAPERS_CACHE`, else `~/.cache/papers`."""
    return Path(os.environ.get("PAPERS_CACHE") or "~/.cache/papers").expanduser().absolute()
