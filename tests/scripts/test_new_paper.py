"""The scaffold makes a paper that passes the checks as it stands."""

import shutil
import subprocess
import sys

import pytest

from common.errors import UserError
from common.files import ROOT
from scripts import new_paper


@pytest.mark.parametrize("name", ["Quip", "1st", "a-b", "class", "quip_sharp", "common", ""])
def test_bad_and_taken_names_are_refused(name):
    with pytest.raises(UserError):
        new_paper.scaffold(name, "T", "C")


def test_scaffolded_paper_runs_and_passes_the_checks(tmp_path, monkeypatch):
    for folder in ("common", "papers", "configs", "scripts", "tests", "data"):
        ignore = shutil.ignore_patterns(
            "__pycache__", "models", "[a-z]*" if folder in ("papers",) else "", ".hypothesis"
        )
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore if folder != "papers" else None)
    for path in (tmp_path / "papers").iterdir():  # the other papers have checks of their own
        if path.is_dir():
            shutil.rmtree(path)
            shutil.rmtree(tmp_path / "configs" / path.name, ignore_errors=True)
            shutil.rmtree(tmp_path / "tests" / "papers" / path.name, ignore_errors=True)
    for file in ("pyproject.toml", "Makefile", "constraints.txt"):
        shutil.copy(ROOT / file, tmp_path)
    monkeypatch.setattr(new_paper, "ROOT", tmp_path)
    written = new_paper.scaffold("scratch_paper", "A title", "Somebody, ICML 2024")

    def call(*words):
        return subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, env={**__import__("os").environ, "PYTHONPATH": str(tmp_path)},
                              capture_output=True, text=True, timeout=240)  # fmt: skip

    checks = call(
        "pytest",
        "-n0",
        "-x",
        "tests/papers/scratch_paper",
        "tests/test_architecture.py",
        "tests/test_papers.py",
        "--deselect",
        "tests/test_architecture.py::test_a_foreign_package_in_the_current_folder_is_refused",
    )
    assert checks.returncode == 0, checks.stdout[-3000:]
    assert call("ruff", "check", *written[:3]).returncode == 0
    assert call("ruff", "format", "--check", *[w for w in written if w.endswith(".py")]).returncode == 0
    assert call("papers", "run", "scratch_paper", "+exp=ci").returncode == 0
    listed = call("papers", "list")
    assert "A title" in listed.stdout
