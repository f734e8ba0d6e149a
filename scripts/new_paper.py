"""Begin a paper: a package, its configs, tests and chapter, which pass all checks as they stand.

    python -m scripts.new_paper NAME "Title of the paper" "Author et al., ICML 2024"

Then replace mechanism.py by the paper's own, and follow docs/add_a_paper.md.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Sequence

from common.errors import UserError
from common.experiment import explain
from common.files import ROOT, write_atomic

FILES = {
    "papers/{name}/__init__.py": '''"""{title} ({citation})."""

from importlib import import_module

_EXPORTS = {{"estimate": "papers.{name}.mechanism"}}
__all__ = list(_EXPORTS)


def __getattr__(name: str):
    """Import on first use (PEP 562), so that `import papers.{name}` is light."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")
    return getattr(import_module(_EXPORTS[name]), name)
''',
    "papers/{name}/mechanism.py": '''"""The paper's mechanism, one file for each, named as the field names it."""

from __future__ import annotations

import numpy as np


def estimate(x: np.ndarray) -> float:
    """The mean of x. x: (n,) float, n >= 1. ValueError where it is empty. Replace by eq. (1) of the paper."""
    if len(x) == 0:
        raise ValueError("x is empty: give at least one number")
    return float(x.mean())
''',
    "papers/{name}/train.py": '''"""{title} ({citation}). See README.md."""

from __future__ import annotations

from common.experiment import Run, experiment


@experiment("{name}")
def train(cfg, run: Run) -> None:
    import matplotlib.pyplot as plt

    from papers.{name}.mechanism import estimate

    x = run.rng("data").numpy.normal(cfg.mean, 1.0, size=cfg.n)  # (n,)
    run.record_data("normal", "synthetic", "papers.{name}.train", None)
    run.log({{"error": abs(estimate(x) - cfg.mean)}})

    figure, axis = plt.subplots()
    axis.hist(x)
    run.figure("data", figure)


if __name__ == "__main__":
    train()
''',
    "papers/{name}/claims.yaml": """# The paper's headline claims: docs/add_a_paper.md says what each field means.
- id: E1.mean
  statement: the estimate is close to the mean
  source: the law of large numbers
  provenance: derived
  metric: error
  op: "<="
  threshold: 0.1
  experiments: [ci]
""",
    "papers/{name}/README.md": """# {title}

{citation}.

## The problem

## The idea

## The mathematics

The estimate is $\\hat\\mu = \\frac1n \\sum_i x_i$: `mechanism.estimate`.

## Run it

```
python -m papers.{name}.train +exp=smoke
python -m papers.{name}.train +exp=ci
```

## What holds

<!-- claims:begin -->
<!-- claims:end -->

## What is different here, and why

## Use it as a library

```python
from papers.{name} import estimate
```

## Exercises

## References
""",
    "configs/{name}/__init__.py": "",
    "configs/{name}/exp/__init__.py": "",
    "configs/{name}/train.yaml": """# {title}: the default job. A second.
defaults:
  - base
  - _self_
hydra:
  searchpath: [pkg://configs.common]

n: 1000     # samples
mean: 2.0
""",
    "configs/{name}/exp/smoke.yaml": """# @package _global_
# every part once; a second, no claims
n: 10
""",
    "configs/{name}/exp/ci.yaml": """# @package _global_
# the claims; a second
n: 10000
""",
    "tests/papers/{name}/test_mechanism.py": '''"""Oracles first: closed forms, invariants, published constants."""

import numpy as np
import pytest

from papers.{name}.mechanism import estimate


def test_mean_of_equal_numbers_is_that_number():
    assert estimate(np.full(5, 3.0)) == 3.0


def test_nothing_has_no_mean():
    with pytest.raises(ValueError, match="empty"):
        estimate(np.array([]))
''',
    "tests/papers/{name}/test_train.py": '''"""The job end to end."""

from common.experiment import launch


def test_smoke_is_the_same_twice():
    first, second = launch("{name}", ["+exp=smoke"]), launch("{name}", ["+exp=smoke"])
    assert first.metrics == second.metrics
    assert first.figures == ["figures/data.png"]


def test_claims_hold_at_ci_scale():
    assert all(claim["holds"] for claim in launch("{name}", ["+exp=ci"]).claims)
''',
}


def scaffold(name: str, title: str, citation: str) -> list[str]:
    """Write the files of a new paper and return their paths. Raises UserError for a bad or taken name."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(f"{name!r} cannot name a paper: use lower-case letters, digits and _, beginning with a letter")
    if (ROOT / "papers" / name).exists() or (ROOT / "configs" / name).exists():
        raise UserError(f"there is already something named {name!r} under papers/ or configs/: choose another name")
    for text in (title, citation):
        if '"' in text or "\n" in text or "\\" in text:
            raise UserError(f"{text!r} goes into docstrings: leave out double quotes, backslashes and line breaks")
    written = []
    for path, content in FILES.items():
        path = path.format(name=name)
        write_atomic(ROOT / path, content.format(name=name, title=title, citation=citation))
        written.append(path)
    return written


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.new_paper", description="Begin a paper.")
    parser.add_argument("name", help="of the package, such as quip_sharp")
    parser.add_argument("title", nargs="?", help="default: the name")
    parser.add_argument("citation", nargs="?", default="ICML 2024")
    arguments = parser.parse_args(argv)
    try:
        for path in scaffold(arguments.name, arguments.title or arguments.name, arguments.citation):
            print(path)
    except (UserError, OSError) as error:
        return explain(error)
    print(
        f"next: .venv/bin/python -m pytest tests/papers/{arguments.name} tests/test_architecture.py, then docs/add_a_paper.md"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
