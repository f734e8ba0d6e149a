"""Nineteen ICML 2024 papers, one package each. `papers list` shows them."""

import importlib.util
import os
import sys


def _refuse_strangers() -> None:
    """Stop where another package named `common` or `configs` would be imported in place of the one beside this folder."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in ("common", "configs"):
        spec = importlib.util.find_spec(name)
        ours = os.path.join(root, name, "__init__.py")
        if spec is None or spec.origin is None or not os.path.samefile(spec.origin, ours):
            found = (spec and (spec.origin or list(spec.submodule_search_locations or []))) or "nothing"
            message = f"the package {name!r} of this project is shadowed by {found}: run from another folder, or use `papers run`"
            program = os.path.basename(sys.argv[0])
            if program in ("-m", "papers", "__main__.py"):  # a command, not an import
                sys.stderr.write(f"error: {message}\n")
                raise SystemExit(2)
            raise ImportError(message)


_refuse_strangers()
