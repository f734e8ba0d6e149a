"""The standard-library corpus: the source of Python's own library, text that every machine has.

Included: the .py files of the modules named in `sys.stdlib_module_names`. Left out: tests, data tables and GUIs, whose
regular text flatters a language model (`encodings` alone moves the bits per byte by a tenth), and what differs from
one build of Python to the next (`_sysconfigdata*`, `site-packages`).
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.run import Run

EXCLUDED = {
    "test",
    "tests",
    "idle_test",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "ensurepip",
    "distutils",
    "tkinter",
    "encodings",
    "site-packages",
}
HELD_OUT = 20  # one file in this many


@dataclass(frozen=True)
class Corpus:
    """Files by relative path, in sorted order, and the sha256 over all of them."""

    files: dict[str, str]
    sha256: str

    @property
    def train(self) -> dict[str, str]:
        return {path: text for path, text in self.files.items() if not held_out(path)}

    @property
    def test(self) -> dict[str, str]:
        return {path: text for path, text in self.files.items() if held_out(path)}

    @property
    def name(self) -> str:
        return f"Python {sys.version.split()[0]} standard library"


def held_out(path: str) -> bool:
    """Whether the file at this relative path belongs to the test split, a rule of its name alone."""
    return int.from_bytes(hashlib.sha256(path.encode()).digest(), "big") % HELD_OUT == 0


def load(folder: str | Path | None = None, *, run: Run | None = None) -> Corpus:
    """The corpus of the running interpreter, or of another library `folder`; its use is recorded in `run`.

    Bytes that are not UTF-8 are replaced by U+FFFD, files are read in sorted order of their relative path.
    Raises UserError where the folder has no file of the corpus (some systems ship the library as bytecode only).
    """
    root = Path(folder or sysconfig.get_path("stdlib"))
    files: dict[str, str] = {}
    sha = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        parts = path.relative_to(root).parts
        module = parts[0].removesuffix(".py")
        if module not in sys.stdlib_module_names or EXCLUDED.intersection(parts) or module.startswith("_sysconfigdata"):
            continue
        name, content = "/".join(parts), path.read_bytes()
        sha.update(f"{name}\0{len(content)}\0".encode() + content)
        files[name] = content.decode("utf-8", errors="replace")
    if not files:
        raise UserError(
            f"no standard-library source under {root}: install a Python that ships its .py files, "
            "or name a folder that has them"
        )
    corpus = Corpus(files, sha.hexdigest())
    if run is not None:
        run.use_data("stdlib", "package", corpus.name, corpus.sha256)
    return corpus
