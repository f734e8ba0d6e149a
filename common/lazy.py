"""The public names of a package, imported when they are first used (PEP 562), so that `import papers.x` is light."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(package: str, names: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package.

    names: public name -> the module of the package that holds it; "" for the module of that name itself.

    >>> __all__, __getattr__, __dir__ = exports(__name__, {"WindowIndex": "index", "vamana": ""})     # doctest: +SKIP
    """

    def getattribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{names[name] or name}")
        return getattr(module, name) if names[name] else module

    def directory() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return list(names), getattribute, directory
