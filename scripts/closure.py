"""Which files of this repository a file imports, directly or not: read from the sources, nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from common.files import ROOT

OURS = ("common", "papers", "scripts", "tests", "configs")
LOADERS = ("need", "import_module", "find_spec")  # calls that import what their first argument names


def closure(starts: Iterable[Path], leave_out: Iterable[Path] = ()) -> set[Path]:
    """These files and all of ours that they import, directly or not; what is left out is not followed either."""
    found: set[Path] = set()
    left_out = set(leave_out)
    waiting = list(starts)
    while waiting:
        path = waiting.pop()
        if path not in found and path not in left_out:
            found.add(path)
            waiting += [file for name in imported(path) for file in files_of(name)]
    return found


def packages(paths: Iterable[Path]) -> set[str]:
    """The top-level packages, not ours, that files import: {"numpy", "torch"}."""
    return {name.split(".")[0] for path in paths for name in imported(path)} - set(OURS)


@cache
def imported(path: Path) -> frozenset[str]:
    """The dotted names that a file imports in any scope, also by `need("...")` and `import_module("...")`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in LOADERS:
            names |= {str(argument.value) for argument in node.args[:1] if isinstance(argument, ast.Constant)}
    return frozenset(names)


def files_of(name: str) -> Iterator[Path]:
    """The file of a dotted name of ours, and the `__init__.py` of each package above it; none for a foreign name."""
    parts = name.split(".")
    if parts[0] not in OURS:
        return
    base = place(parts)
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            yield path
    for i in range(1, len(parts)):
        above = place(parts[:i]) / "__init__.py"
        if above.is_file():
            yield above


def place(parts: list[str]) -> Path:
    """Where a module or package of this name lies or would lie; a paper may lie elsewhere than in this clone."""
    if parts[0] in ("papers", "configs") and len(parts) > 1 and not (ROOT / parts[0] / parts[1]).exists():
        try:
            spec = find_spec(".".join(parts[:2]))
        except ModuleNotFoundError:
            spec = None
        if spec and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations))).joinpath(*parts[2:])
    return ROOT.joinpath(*parts)
