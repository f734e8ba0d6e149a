"""Which papers' tests a change reaches: for the tests of a push, and for `make test PAPER="$(...)"`.

    python -m scripts.affected BASE

Prints the names of papers, "all", or "none"; what is common is tested at any change. BASE is a commit: what differs from
its common ancestor with HEAD counts, and what is not committed yet. Needs nothing installed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Sequence

from common.files import ROOT
from scripts.closure import closure

EVERYTHING = (
    "constraints.txt",
    "pyproject.toml",
    "Makefile",
    "tests/conftest.py",
    "configs/__init__.py",
    "configs/common/",
)


def papers() -> list[str]:
    """The names of the papers of this clone."""
    return sorted(path.parent.name for path in (ROOT / "papers").glob("*/train.py"))


def reached(changed: Iterable[str], names: Sequence[str]) -> list[str]:
    """Of the papers of these names, those that changed files (paths below the clone) can reach by what they import."""
    changed = list(changed)
    if any(path == name or (name.endswith("/") and path.startswith(name)) for path in changed for name in EVERYTHING):
        return list(names)
    found = []
    for name in names:
        own = tuple(f"{folder}/{name}/" for folder in ("papers", "configs", "tests/papers"))
        if any(path.startswith(own) for path in changed):
            found.append(name)
            continue
        files = [file for folder in own for file in (ROOT / folder).rglob("*.py")]
        files += [ROOT / "tests" / "test_papers.py", ROOT / "tests" / "test_architecture.py"]
        imported = {path.relative_to(ROOT).as_posix() for path in closure(file for file in files if file.is_file())}
        if imported & set(changed):
            found.append(name)
    return found


def changed_since(base: str) -> list[str]:
    """The files that differ from a commit's common ancestor with HEAD, uncommitted and new ones included."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    ancestor = git("merge-base", base, "HEAD")[0]
    return [*git("diff", "--name-only", "--no-renames", ancestor), *git("ls-files", "--others", "--exclude-standard")]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.affected", description="Which papers' tests a change reaches."
    )
    parser.add_argument("base", help="the commit to compare with")
    arguments = parser.parse_args(argv)
    names = papers()
    try:
        found = reached(changed_since(arguments.base), names)
    except (subprocess.SubprocessError, OSError, IndexError):
        found = names  # a commit that is not here, as after a forced push
    print("all" if found == names else " ".join(found) or "none")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
