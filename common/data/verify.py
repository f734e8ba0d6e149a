"""Checksums of data files: what a file holds (unpacked where it is a .gz), and that it is what the registry says."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from pathlib import Path

from common import files
from common.errors import UserError


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
    """The sha256 of what a file holds, unpacked where it is a .gz; a text that is no sum where that cannot be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return "(damaged archive)"


def sum_over(names: list[str], sums: list[str]) -> str:
    """The sha256 over the names and sums of several files."""
    listed = "".join(f"{name}\0{found}\n" for name, found in zip(names, sums, strict=True))
    return hashlib.sha256(listed.encode()).hexdigest()


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked where its name ends in .gz."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def read_text(path: Path) -> str:
    """The text of a file, unpacked where its name ends in .gz; what is not UTF-8 becomes U+FFFD."""
    return read_bytes(path).decode("utf-8", errors="replace")
