"""Begin a paper: a package, its configs, tests and chapter, which pass all checks as they stand.

    python -m scripts.new_paper NAME "Title of the paper" "Author, Author and Author" [--short "Short name"]

Only papers/NAME, configs/NAME and tests/papers/NAME are made; the pages that speak of all papers are written anew. Then
replace mechanism.py and parts.py by the paper's own, and follow docs/add_a_paper.md.
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
    "papers/{name}/__init__.py": '''"""{short}: {title} ({authors}, ICML 2024)."""

from common.lazy import exports

__all__, __getattr__, __dir__ = exports(__name__, {{"estimate": "mechanism"}})
''',
    "papers/{name}/paper.yaml": """# What others need to know of this paper; docs/add_a_paper.md says what each field means.
short: "{short}"
title: "{title}"
authors: "{authors}"
arxiv: null
area: theory
does: One plain sentence, what it does for whoever uses it.
picture: null
use: {{verb: train, line: "papers run {name} +exp=ci"}}
extras: {{}}
needs: []
peers: []
races: {{}}
left: Everything.
data: {{}}
""",
    "papers/{name}/mechanism.py": '''"""The mean of numbers. One file a mechanism, named as the field names it: replace it by the paper's."""

from __future__ import annotations

import numpy as np


def estimate(x: np.ndarray) -> float:
    """The mean of x. x: (n,) float, n >= 1. ValueError where it is empty. Replace by eq. (1) of the paper."""
    if len(x) == 0:
        raise ValueError("x is empty: give at least one number")
    return float(x.mean())
''',
    "papers/{name}/parts.py": '''"""The parts of the job, each a section of the paper: `part(cfg, run)`."""

from __future__ import annotations

from typing import Any

import numpy as np

from common.experiment import Run
from common.metrics.summary import log_slope, spread
from papers.{name} import plots
from papers.{name}.mechanism import estimate


def accuracy(cfg: Any, run: Run) -> None:
    """E1, sec. 1: how far the estimate is off, over seeds, and how far its control is: the first number alone."""
    run.use_data("normal", "synthetic", "papers.{name}.parts.sample", None)
    rows = []
    for seed in run.seeds(cfg.seeds):
        x = sample(cfg.n, cfg.mean, run.rng("data", cfg.n, seed).numpy)
        rows.append({{"seed": seed, "error": abs(estimate(x) - cfg.mean), "first": abs(estimate(x[:1]) - cfg.mean)}})
    run.log({{"accuracy.error": max(row["error"] for row in rows)}})  # a claim speaks of the worst seed
    run.log({{"accuracy.first_error": max(row["first"] for row in rows)}})  # what refutes it
    run.table("accuracy", [{{"n": cfg.n, **spread([row["error"] for row in rows])}}])


def rate(cfg: Any, run: Run) -> None:
    """E2, sec. 2: how the error falls with n. Each n is a stage: a run that is killed goes on with the next one."""
    rows = []
    for n in run.progress(cfg.rate.n, "rate"):
        errors = run.stage(f"rate{{n}}", errors_at, cfg, run, n)
        rows.append({{"n": n, "rms": float(np.sqrt(np.mean(np.square(errors))))}})
    run.log({{"rate.slope": log_slope([row["n"] for row in rows], [row["rms"] for row in rows])}})
    run.table("rate", rows)
    run.figure("rate", plots.rate(rows))


def errors_at(cfg: Any, run: Run, n: int) -> list[float]:
    """The errors of `cfg.rate.repeats` estimates from n samples each."""
    draws = (run.rng("rate", n, repeat).numpy for repeat in range(cfg.rate.repeats))
    return [abs(estimate(sample(n, cfg.mean, generator)) - cfg.mean) for generator in draws]


def sample(n: int, mean: float, generator: np.random.Generator) -> np.ndarray:
    """n normal numbers of this mean: (n,) float64."""
    return generator.normal(mean, 1.0, size=n)
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
    "papers/{name}/train.py": '''"""{short}: what a run does, part by part. See README.md."""

from __future__ import annotations

from common.experiment import Run, main, run_parts


def train(cfg, run: Run) -> None:
    from papers.{name} import parts  # heavy imports stay inside the job: --help is instant

    run_parts(cfg, run, {{
        "accuracy": parts.accuracy,  # sec. 1, E1: the estimate is close to the mean
        "rate": parts.rate,  # sec. 2, E2: its error falls as 1 / sqrt(n)
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
  refuted_by: {{what: the first number alone, value: 1.0}}   # accuracy.first_error of the same run
""",
    "papers/{name}/README.md": """# {short}

{title} ({authors}, ICML 2024).

## 1. The problem

For a third-year student: what is given, what is wanted, why it is hard.

## 2. The idea

One picture made by the code, once `make tables` has recorded it: `![what it shows](record/figures/ci/rate.png)`.

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

parts: [accuracy, rate]   # accuracy | rate, once; in this order
seeds: [0, 1, 2]          # >= 0, once; of each study; shifted by 1000 x seed
n: 1000                   # >= 1; samples
mean: 2.0                 # any; what is estimated
rate:
  n: [30, 100, 300, 1000] # >= 1, increasing; samples of each estimate
  repeats: 50             # >= 2; estimates at each n
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
    "tests/papers/{name}/__init__.py": "",
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


def scaffold(name: str, title: str, authors: str, short: str | None = None) -> list[str]:
    """Write the files of a new paper and return their paths. Raises UserError for a bad or taken name."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(f"{name!r} cannot name a paper: use lower-case letters, digits and _, beginning with a letter")
    if (ROOT / "papers" / name).exists() or (ROOT / "configs" / name).exists():
        raise UserError(f"there is already something named {name!r} under papers/ or configs/: choose another name")
    authors = re.sub(r",? *ICML 2024$", "", authors.strip()).strip("() ")
    short = short or name
    for text in (title, authors, short):
        if not text.strip() or any(sign in text for sign in '"\n\\'):
            raise UserError(f"{text!r} goes into docstrings: leave out double quotes, backslashes and line breaks")
    if ":" in short:
        raise UserError(f"{short!r} is the short name: leave out the colon")
    written = []
    for path, content in FILES.items():
        path = path.format(name=name)
        write_atomic(ROOT / path, content.format(name=name, title=title, authors=authors, short=short))
        written.append(path)
    return written


def main(argv: Sequence[str]) -> int:
    """Make the files, write the pages, and say what comes next."""
    parser = argparse.ArgumentParser(prog="python -m scripts.new_paper", description="Begin a paper.")
    parser.add_argument("name", help="of the package, such as quip_sharp")
    parser.add_argument("title", nargs="?", help="default: the name")
    parser.add_argument("authors", nargs="?", default="Author et al.")
    parser.add_argument("--short", help="what one calls it, such as QuIP#; default: the name")
    arguments = parser.parse_args(argv)
    try:
        made = scaffold(arguments.name, arguments.title or arguments.name, arguments.authors, arguments.short)
        for path in made:
            print(path)
        from scripts import pages

        pages.write()
    except (UserError, OSError) as error:
        return explain(error)
    print(f"next: make test PAPER={arguments.name}, then docs/add_a_paper.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
