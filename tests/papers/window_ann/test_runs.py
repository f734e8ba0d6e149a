"""The command: smoke, dry runs, bad configs, resuming, and what needs numba says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.claims import read
from common.configs import experiments
from common.errors import UserError
from common.experiment import launch

TINY = ["+exp=smoke", "threads=1", "studies=[curves]", "data.n=400", "search.targets=[0.95]"]


def test_smoke_runs_from_another_folder(tmp_path):
    environment = os.environ | {"PAPERS_RUNS": str(tmp_path / "r"), "PAPERS_CACHE": str(tmp_path / "c")}
    done = subprocess.run(
        [sys.executable, "-m", "papers.window_ann.train", "+exp=smoke", "threads=1"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(Path(done.stdout.strip().splitlines()[-1].removeprefix("result: ")).read_text())
    assert record["status"] == "done"
    assert len(record["figures"]) == 6
    assert set(record["tables"]) == {"distances_at_recall", "adversarial", "structure", "branching"}


def test_the_same_seed_gives_the_same_figures_whether_graphs_are_cached_or_not(monkeypatch, tmp_path):
    first, cached = launch("window_ann", TINY), launch("window_ann", TINY)
    monkeypatch.setenv("PAPERS_CACHE", str(tmp_path / "other"))
    fresh = launch("window_ann", TINY)
    assert first.metrics == cached.metrics == fresh.metrics
    assert first.record["tables"] == fresh.record["tables"]
    assert launch("window_ann", [*TINY, "seed=1"]).record["tables"] != first.record["tables"]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("studies=[curve]", "did you mean curves"),
        ("studies=[]", "must not be empty"),
        ("search.fractions=[1]", "powers of two"),
        ("search.fractions=[-9]", "smallest window"),
        ("search.k=0", "at least 1"),
        ("search.level=95.0", "between 0 and 1"),
        ("index.cutoff=1", "cutoff"),
        ("index.alpha=0.5", "alpha"),
        ("index.shift=1.5", "shift"),
        ("data.queries=0", "at least 1 query"),
        ("adversarial.clusters=1", "ordered pairs"),
        ("structure.cutoff=1", "structure needs"),
        ("branching.betas=[]", "must not be empty"),
        ("data.name=imagenet", "unknown data.name"),
        ("data.name=npy", "data.path"),
        ("data.name=glove", "ann-benchmarks"),
    ],
)
def test_a_config_that_cannot_run_is_one_sentence(override, word):
    with pytest.raises(UserError, match=word):
        launch("window_ann", [*TINY, override])


def test_missing_deep_vectors_fall_back_on_the_mixture_and_say_so():
    result = launch("window_ann", [*TINY, "data.name=deep_10k"])
    assert any("using the mixture instead" in note for note in result.record["notes"])
    assert "mixture.planner_worst" in result.metrics
    with pytest.raises(UserError, match="not here"):
        launch("window_ann", [*TINY, "data.name=deep_10k", "data.fallback=false"])


@pytest.mark.parametrize("name", [e.name for e in experiments("window_ann") if e.name not in ("smoke", "ci")])
def test_large_experiments_say_what_they_need_without_running(name):
    result = launch("window_ann", [f"+exp={name}", "run.dry=true"])
    assert result.metrics["memory_gb"] > 0
    assert result.metrics["hours"] > 0


def test_claims_name_figures_that_ci_or_their_experiment_writes():
    for claim in read("window_ann"):
        assert claim["metric"].split(".")[0] in {
            "deep",
            "mixture",
            "adversarial",
            "structure",
            "timings",
            "hacker_news",
        }
        if claim["gate"] and claim["calibrated"]:
            assert {"seeds", "values", "commit", "date"} <= set(claim["calibrated"])
        json.dumps(claim)  # a run writes its claims as JSON: an unquoted date would end it after all its work
