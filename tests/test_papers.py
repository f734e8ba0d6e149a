"""What every paper must do, whatever it is about."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from common.experiment import launch
from common.files import ROOT

PAPERS = sorted(path.parent.name for path in (ROOT / "papers").glob("*/train.py"))
HEAVY = ("torch", "numpy", "scipy", "pandas", "numba", "matplotlib", "transformers", "pytorch_lightning", "hydra")
CHAPTER = ("1. The problem", "2. The idea", "3. The mathematics", "4. Run it", "5. What holds", "6. What we do differently, and why",
           "7. Use it as a library", "8. Exercises", "9. References")  # fmt: skip


@pytest.mark.parametrize("paper", PAPERS)
def test_importing_a_paper_imports_nothing_heavy(paper):
    code = f"import sys, papers.{paper} as p, papers.{paper}.train; dir(p); print([m for m in {HEAVY} if m in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert process.stdout == "[]\n", process.stdout + process.stderr


@pytest.mark.parametrize("paper", PAPERS)
def test_public_names_of_a_paper_are_there(paper):
    code = f"import papers.{paper} as p; [getattr(p, name) for name in p.__all__]; assert set(p.__all__) <= set(dir(p))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("paper", PAPERS)
def test_smoke_runs_from_any_folder_draws_and_depends_on_the_seed_alone(paper, tmp_path):
    line = ["+exp=smoke", "threads=1", "device=cpu"]
    process = subprocess.run([sys.executable, "-m", f"papers.{paper}.train", *line], capture_output=True, text=True, cwd=tmp_path,
                             timeout=280)  # fmt: skip
    assert process.returncode == 0, process.stderr
    path = Path(process.stdout.splitlines()[-1].removeprefix("result: "))
    record = json.loads(path.read_text())
    assert (record["status"], record["claims"]) == ("done", [])
    assert record["data"], "say which data was used: run.record_data, or locate(name, run=run)"
    assert record["figures"]
    assert all((path.parent / figure).stat().st_size > 0 for figure in record["figures"])
    again, other = launch(paper, line), launch(paper, [*line, "seed=1"])
    assert again.record["metrics"] == record["metrics"]
    assert again.record["tables"] == record["tables"]
    assert other.record["metrics"] != record["metrics"]


@pytest.mark.parametrize("paper", PAPERS)
def test_chapters_have_the_same_sections(paper):
    text = (ROOT / "papers" / paper / "README.md").read_text()
    assert tuple(line[3:] for line in text.splitlines() if line.startswith("## ")) == CHAPTER
