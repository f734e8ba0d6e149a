"""Begin a paper: a package, its configs, tests and chapter, which pass all checks as they stand.

    python -m scripts.new_paper NAME "Title of the paper" "Author et al., ICML 2024"

Then replace mechanism.py and studies.py by the paper's own, and follow docs/add_a_paper.md.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Sequence

from common.errors import UserError
from common.exits import explain
from common.files import ROOT, write_atomic

FILES = {
    "papers/{name}/__init__.py": '''"""{title} ({citation})."""

from common.lazy import exports

__all__, __getattr__, __dir__ = exports(__name__, {{"estimate": "mechanism"}})
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
    "papers/{name}/studies.py": '''"""The parts of the job, each a section of the paper: `part(cfg, run)`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from common.experiment import Run
from common.metrics.summary import log_slope, spread
from papers.{name} import plots
from papers.{name}.mechanism import estimate


def accuracy(cfg: Any, run: Run) -> None:
    """E1, sec. 1: how far the estimate is off, over seeds."""
    run.use_data("normal", "synthetic", "papers.{name}.studies", None)
    errors = [error(cfg, run, cfg.n, seed) for seed in run.seeds(cfg.seeds)]
    run.log({{"accuracy.error": max(errors)}})  # <part>.<figure>; a claim speaks of the worst seed
    run.table("accuracy", [{{"n": cfg.n, **spread(errors)}}])


def rate(cfg: Any, run: Run) -> None:
    """E2, sec. 2: how the error falls with n. Each n is a stage: a run that is killed goes on with the next one."""
    rows = []
    for n in run.progress(cfg.rate.n, "rate"):
        errors = run.stage(f"rate{{n}}", partial(errors_at, cfg, run, n))
        rows.append({{"n": n, "rms": float(np.sqrt(np.mean(np.square(errors))))}})
    run.log({{"rate.slope": log_slope([row["n"] for row in rows], [row["rms"] for row in rows])}})
    run.table("rate", rows)
    run.figure("rate", plots.rate(rows))


def errors_at(cfg: Any, run: Run, n: int) -> list[float]:
    """The errors of `cfg.rate.repeats` estimates from n samples each."""
    return [error(cfg, run, n, repeat) for repeat in range(cfg.rate.repeats)]


def error(cfg: Any, run: Run, n: int, seed: int) -> float:
    x = run.rng("data", n, seed).numpy.normal(cfg.mean, 1.0, size=n)  # (n,)
    return abs(estimate(x) - cfg.mean)
''',
    "papers/{name}/plots.py": '''"""The figures: each from rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common import plots


def rate(rows: Sequence[Mapping[str, Any]]) -> plots.Figure:
    """Error against the number of samples, both on log axes, with the slope of -1/2 that theory gives."""
    figure, axis = plots.axes()
    n = [row["n"] for row in rows]
    axis.loglog(n, [row["rms"] for row in rows], "o-", color=plots.OURS, label="estimate")
    axis.loglog(n, [x**-0.5 for x in n], "--", color=plots.THEORY, label="$n^{{-1/2}}$")
    axis.set_xlabel("samples n")
    axis.set_ylabel("root mean square error")
    axis.legend()
    return figure
''',
    "papers/{name}/train.py": '''"""{title} ({citation}). See README.md."""

from __future__ import annotations

from common.experiment import Run, main, run_parts


def train(cfg, run: Run) -> None:
    from common.configs import at_least
    from papers.{name} import studies  # heavy imports stay inside the job: --help is instant

    at_least(cfg, {{"n": 1, "rate.n": 1, "rate.repeats": 1}})  # what no part could use is refused before the first
    run_parts(cfg, run, {{
        "accuracy": studies.accuracy,  # E1: the estimate is close to the mean
        "rate": studies.rate,  # E2: its error falls as 1 / sqrt(n)
    }})  # fmt: skip


if __name__ == "__main__":
    main(train)
''',
    "papers/{name}/claims.yaml": """# The paper's headline claims: docs/add_a_paper.md says what each field means.
- id: E1.mean
  statement: the estimate is within 0.1 of the mean, on the worst of three seeds
  source: the law of large numbers
  provenance: derived
  metric: accuracy.error
  op: "<="
  threshold: 0.1
- id: E2.rate
  statement: slope of ln error against ln n
  source: the central limit theorem, -1/2
  provenance: derived
  metric: rate.slope
  op: in
  threshold: [-0.65, -0.35]
""",
    "papers/{name}/README.md": """# {title}

{citation}.

## 1. The problem

For a third-year student: what is given, what is wanted, why it is hard.

## 2. The idea

One picture made by the code, once `make tables` has recorded it:
`![what it shows](../../docs/results/figures/{name}/ci/rate.png)`.

## 3. The mathematics

The estimate is $\\hat\\mu = \\frac1n \\sum_i x_i$: [`mechanism.estimate`](mechanism.py).

## 4. Run it

```
python -m papers.{name}.train +exp=smoke   # every part once; a second
python -m papers.{name}.train +exp=ci      # the claims below; a second
```

## 5. What holds

<!-- claims:begin -->
<!-- claims:end -->

## 6. What we do differently, and why

## 7. Use it as a library

```python
from papers.{name} import estimate
```

## 8. Exercises

## 9. References
""",
    "configs/{name}/__init__.py": "",
    "configs/{name}/exp/__init__.py": "",
    "configs/{name}/train.yaml": """# {title}: the default job. A second.
defaults:
  - base
  - _self_
hydra:
  searchpath: [pkg://configs.common]

parts: [accuracy, rate]   # accuracy | rate, in this order
seeds: [0, 1, 2]          # of each study; shifted by 1000 x seed
n: 1000                   # samples
mean: 2.0
rate: {{n: [30, 100, 300, 1000], repeats: 50}}
""",
    "configs/{name}/exp/smoke.yaml": """# @package _global_
# every part once; a second, no claims
seeds: [0]
n: 10
rate: {{n: [10, 30], repeats: 5}}
""",
    "configs/{name}/exp/ci.yaml": """# @package _global_
# the claims; a second
n: 10000
rate: {{repeats: 300}}
""",
    "tests/papers/{name}/test_mechanism.py": '''"""Oracles first: closed forms, invariants, published constants. What papers share: tests/test_papers.py."""

import numpy as np
import pytest

from papers.{name}.mechanism import estimate


def test_mean_of_equal_numbers_is_that_number():
    assert estimate(np.full(5, 3.0)) == 3.0


def test_nothing_has_no_mean():
    with pytest.raises(ValueError, match="empty"):
        estimate(np.array([]))
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


def show_on_the_front_page() -> None:
    """Give the paper its place in the pages, as `python -m scripts.pages` would."""
    from scripts import pages

    pages.write()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.new_paper", description="Begin a paper.")
    parser.add_argument("name", help="of the package, such as quip_sharp")
    parser.add_argument("title", nargs="?", help="default: the name")
    parser.add_argument("citation", nargs="?", default="ICML 2024")
    arguments = parser.parse_args(argv)
    try:
        for path in scaffold(arguments.name, arguments.title or arguments.name, arguments.citation):
            print(path)
        show_on_the_front_page()
    except (UserError, OSError) as error:
        return explain(error)
    print(f"next: .venv/bin/python -m pytest -n0 tests/papers/{arguments.name}, then docs/add_a_paper.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
