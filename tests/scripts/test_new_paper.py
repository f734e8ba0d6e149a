"""The scaffold makes a paper that passes the checks as it stands, and touches nothing but its own folders."""

import os
import shutil
import subprocess
import sys

import pytest

from common.errors import UserError
from common.files import ROOT
from scripts import new_paper

OWN = ("papers/scratch_paper/", "configs/scratch_paper/", "tests/papers/scratch_paper/")
GENERATED = {"README.md", "docs/index.md", "docs/roadmap.md", "docs/results/index.md", "docs/results/results.json",
             "docs/results/scratch_paper.md"}  # fmt: skip


@pytest.mark.parametrize("name", ["Quip", "1st", "a-b", "class", "quip_sharp", "common", ""])
def test_bad_and_taken_names_are_refused(name):
    with pytest.raises(UserError):
        new_paper.scaffold(name, "T", "A")


@pytest.mark.parametrize(
    ("title", "authors", "short"), [('a "b"', "A", None), ("T", "A\nB", None), ("", "A", None), ("T", "A", "a: b")]
)
def test_texts_that_no_docstring_can_hold_are_refused(title, authors, short):
    with pytest.raises(UserError):
        new_paper.scaffold("never_made", title, authors, short)
    assert not (ROOT / "papers" / "never_made").exists()


@pytest.fixture
def clone(tmp_path):
    """A scratch clone of what git knows here, as it stands, committed."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git clone")
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("data/models/"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "as it stands")
    return tmp_path


def git(folder, *words):
    return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True).stdout


def call(folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(folder), "PAPERS_TESTED": "scratch_paper"}
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )


BEGIN = ("scripts.new_paper", "scratch_paper", "A title", "Somebody and Another", "--short", "Scratch")


def test_a_new_paper_touches_its_three_folders_and_the_generated_pages_alone(clone):
    made = call(clone, *BEGIN)
    assert made.returncode == 0, made.stderr
    changed = git(clone, "status", "--porcelain", "--untracked-files=all").splitlines()
    others = {line[3:] for line in changed if not line[3:].startswith(OWN)}
    assert others == GENERATED
    assert (
        "| [scratch_paper](papers/scratch_paper/README.md) | A title (Somebody and Another) |"
        in (clone / "README.md").read_text()
    )
    assert call(clone, "scripts.pages", "--check").stdout == ""
    again = call(clone, *BEGIN)
    assert again.returncode == 2
    assert "already something named" in again.stderr


@pytest.mark.slow
def test_a_new_paper_passes_the_checks_as_it_stands(clone):
    call(clone, *BEGIN)
    checks = call(clone, "pytest", "-n0", "-x", "tests/papers/scratch_paper", "tests/test_architecture.py", "tests/test_papers.py",
                  "tests/common/test_cards.py", "--deselect",
                  "tests/test_architecture.py::test_a_foreign_package_in_the_current_folder_is_refused")  # fmt: skip
    assert checks.returncode == 0, checks.stdout[-3000:]
    python = sorted(str(path) for folder in OWN for path in (clone / folder).rglob("*.py"))
    assert call(clone, "ruff", "check", *python).returncode == 0
    assert call(clone, "ruff", "format", "--check", *python).returncode == 0
    ran = call(clone, "papers", "run", "scratch_paper", "+exp=ci")
    assert ran.returncode == 0, ran.stderr
    assert "A title" in call(clone, "papers", "list").stdout
