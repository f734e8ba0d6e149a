"""What every paper must do, whatever it is about."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from common.experiment import launch
from common.files import ROOT
from tests import contexts

PAPERS = sorted(path.parent.name for path in (ROOT / "papers").glob("*/train.py"))
HEAVY = ("torch", "numpy", "scipy", "pandas", "numba", "matplotlib", "transformers", "pytorch_lightning", "hydra")
CHAPTER = ("1. The problem", "2. The idea", "3. The mathematics", "4. Run it", "5. What holds", "6. What we do differently, and why",
           "7. Use it as a library", "8. Exercises", "9. References")  # fmt: skip


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_is_imported_lightly_and_gives_the_names_it_promises(paper):
    code = (
        f"import sys, papers.{paper} as p, papers.{paper}.train; dir(p); print([m for m in {HEAVY} if m in sys.modules]); "
        "[getattr(p, name) for name in p.__all__]; assert set(p.__all__) <= set(dir(p))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert process.stdout.splitlines()[:1] == ["[]"], process.stdout + process.stderr
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
    assert record["data"], "say which data was used: run.use_data, or locate(name, run=run)"
    assert record["figures"]
    assert all((path.parent / figure).stat().st_size > 0 for figure in record["figures"])
    again, other = launch(paper, line), launch(paper, [*line, "seed=1"])
    assert again.record["metrics"] == record["metrics"]
    assert again.record["tables"] == record["tables"]
    assert other.record["metrics"] != record["metrics"]
    held = [name for package in (f"papers.{paper}", "common") for name in caches_of_tensors(package)]
    assert held == [], "a cached tensor is whatever the first caller was in: keep numpy arrays or plain values"


def caches_of_tensors(package):
    """The functools caches of a package's imported modules that hold a torch tensor."""
    import torch

    def has_tensor(value):
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        return isinstance(value, torch.Tensor) or any(map(has_tensor, parts))

    found = contexts.cached_functions(package)
    return [name for name, function in found.items() if any(map(has_tensor, contexts.contents(function).values()))]


@pytest.mark.parametrize("paper", PAPERS)
def test_chapters_have_the_same_sections(paper):
    text = (ROOT / "papers" / paper / "README.md").read_text()
    assert tuple(line[3:] for line in text.splitlines() if line.startswith("## ")) == CHAPTER
