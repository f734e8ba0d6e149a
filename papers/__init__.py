"""Nineteen ICML 2024 papers, one package each. `papers list` shows them."""

import importlib.util
import os
import signal
import sys


def _stop(message: str) -> None:
    """End a command with one sentence and exit code 2; raise ImportError where this is imported by a program."""
    if _is_command():
        sys.stderr.write(f"error: {message}\n")
        raise SystemExit(2)
    raise ImportError(message)


def _is_command() -> bool:
    return os.path.basename(sys.argv[0]) in ("-m", "papers", "__main__.py") if sys.argv else False


def _refuse_strangers() -> None:
    """Stop where another package named `common` or `configs` would be imported in place of the one beside this folder."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in ("common", "configs"):
        spec = importlib.util.find_spec(name)
        ours = os.path.join(root, name, "__init__.py")
        if spec is None or spec.origin is None or not os.path.samefile(spec.origin, ours):
            found = (spec and (spec.origin or list(spec.submodule_search_locations or []))) or "nothing"
            _stop(
                f"the package {name!r} of this project is shadowed by {found}: run from another folder, or use `papers run`"
            )


def _refuse_bare_interpreter() -> None:
    """Stop where the packages that every job needs are not installed: a system Python in place of the environment's."""
    missing = [name for name in ("hydra", "torch", "filelock") if importlib.util.find_spec(name) is None]
    if missing:
        _stop(
            f"{sys.executable} has no {', '.join(missing)}: run with the environment's Python "
            "(.venv/bin/python, made by `make demo`), or `pip install -e .` in the clone"
        )


if _is_command():  # until the command's own handlers are in place, Ctrl-C ends it without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)
_refuse_strangers()
_refuse_bare_interpreter()
