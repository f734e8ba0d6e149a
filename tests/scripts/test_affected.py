"""What a change reaches is tested; what cannot be reached is left out."""

import os
import subprocess
import sys

import pytest

from common.files import ROOT
from scripts import affected, closure

PAPERS = affected.papers()


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        (["papers/quip_sharp/ldlq.py"], ["quip_sharp"]),
        (["configs/neg_ucb/exp/ci.yaml"], ["neg_ucb"]),
        (["tests/papers/window_ann/test_tree.py", "papers/neg_ucb/README.md"], ["neg_ucb", "window_ann"]),
        (["docs/design.md", "README.md", "common/cli_that_is_not.py"], []),
        (["common/run.py"], PAPERS),
        (["common/experiment.py"], PAPERS),
        (["constraints.txt"], PAPERS),
        (["configs/common/base.yaml"], PAPERS),
        (["scripts/tables.py"], []),
    ],
)
def test_a_change_reaches_what_imports_it(changed, reached):
    assert affected.reached(changed, PAPERS) == reached


def test_a_shared_file_reaches_the_papers_that_use_it_and_no_others():
    reached = affected.reached(["common/models/language.py"], PAPERS)
    assert "quip_sharp" in reached
    assert "window_ann" not in reached


def test_a_commit_that_is_not_here_means_everything(capsys):
    assert affected.main(["0123456789abcdef"]) == 0
    assert capsys.readouterr().out == "all\n"


def test_what_is_imported_is_followed_in_any_scope_and_by_name(tmp_path):
    file = tmp_path / "a.py"
    file.write_text(
        'import numpy as np\ndef f():\n    from common import rng\n    need("faiss.contrib")\n    import_module("scipy")\n'
    )
    assert closure.imported(file) >= {"numpy", "common.rng", "faiss.contrib", "scipy"}
    assert closure.packages([file]) == {"numpy", "faiss", "scipy"}
    found = closure.closure([file])
    assert {ROOT / "common" / "rng.py", ROOT / "common" / "__init__.py"} <= found
    assert closure.closure([file], leave_out=[ROOT / "common" / "rng.py"]) == {file, ROOT / "common" / "__init__.py"}


def collected(papers):
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-n0",
        "-p",
        "no:cacheprovider",
        "--collect-only",
        "tests/test_papers.py",
        "tests/papers",
    ]
    done = subprocess.run([*words, "tests/scripts/test_bench.py"], cwd=ROOT, env={**os.environ, "PAPERS_TESTED": papers},
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    return done.stdout


@pytest.mark.slow
def test_one_paper_s_tests_are_chosen_by_name():
    text = collected("neg_ucb")
    assert "tests/papers/neg_ucb/" in text
    assert "[neg_ucb]" in text
    assert "quip_sharp" not in text
    assert "test_a_paper_without_races_is_refused" in text
    assert "tests/papers/" not in collected("none")
