"""Optional packages: the extras of pyproject.toml and of the papers, and how to ask for one of their packages."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from common.errors import UserError

# extra -> {module: the requirement that brings it}, of what is common; the papers' own are in their paper.yaml
COMMON: dict[str, dict[str, str]] = {
    "smollm": {"gguf": "gguf>=0.17"},
    "launchers": {
        "hydra_plugins.hydra_joblib_launcher": "hydra-joblib-launcher>=1.2",
        "hydra_plugins.hydra_submitit_launcher": "hydra-submitit-launcher>=1.2",
    },
    "compiled": {"numba": "numba>=0.61"},
    "docs": {"sphinx": "sphinx>=8.2", "myst_parser": "myst-parser>=4"},
    "dev": {"pytest": "pytest>=8", "hypothesis": "hypothesis>=6.120"},
}


@cache
def extras() -> dict[str, dict[str, str]]:
    """Every extra, the papers' own included: extra -> {module: requirement}. UserError where two papers disagree."""
    from common.cards import cards

    found = {name: dict(modules) for name, modules in COMMON.items()}
    for card in cards():
        for extra, modules in card.extras.items():
            known = found.setdefault(extra, {})
            for module, requirement in modules.items():
                if known.setdefault(module, requirement) != requirement:
                    raise UserError(
                        f"{card.name} asks for {requirement} in extra {extra}, another for {known[module]}: choose one"
                    )
    return found


def installed(name: str) -> bool:
    """Whether a module can be imported, or for an extra, all of its modules. Nothing is imported but their parents."""
    try:
        return all(find_spec(module) for module in extras().get(name, {name: name}))
    except ModuleNotFoundError:  # of a parent
        return False


def need(module: str) -> ModuleType:
    """The optional module of this name. UserError that says which extra, or which package, to install where it is not here."""
    try:
        return import_module(module)
    except ImportError as error:
        brings = {found: extra for extra, modules in extras().items() for found in modules}
        extra = next((brings[found] for found in brings if f"{module}.".startswith(f"{found}.")), None)
        get = f"pip install -e '.[{extra}]' in the clone" if extra else f"pip install {module.partition('.')[0]}"
        raise UserError(f"{module} is not here ({error}): {get}") from None


def __getattr__(name: str) -> Any:
    if name == "EXTRAS":  # until its users call extras()
        return extras()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
