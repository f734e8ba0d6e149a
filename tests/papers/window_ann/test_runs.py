"""The command: bad configs, fallback, dry runs, and caches that change nothing."""

import pytest

from common.configs import experiments
from common.errors import UserError
from common.experiment import launch

TINY = ["+exp=smoke", "threads=1", "parts=[curves]", "data.n=400", "search.targets=[0.95]"]


def test_figures_do_not_depend_on_whether_graphs_are_cached(monkeypatch, tmp_path):
    first, cached = launch("window_ann", TINY), launch("window_ann", TINY)
    monkeypatch.setenv("PAPERS_CACHE", str(tmp_path / "other"))
    fresh = launch("window_ann", TINY)
    assert first.metrics == cached.metrics == fresh.metrics
    assert first.record["tables"] == fresh.record["tables"]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("parts=[curve]", "did you mean curves"),
        ("parts=[]", "parts is empty"),
        ("search.fractions=[1]", "powers of two"),
        ("search.fractions=[-9]", "smallest window"),
        ("search.k=0", "at least 1"),
        ("search.level=95.0", "between 0 and 1"),
        ("index.cutoff=1", "cutoff"),
        ("index.alpha=0.5", "alpha"),
        ("index.shift=1.5", "shift"),
        ("data.queries=0", "at least 1"),
        ("adversarial.clusters=1", "at least 2"),
        ("structure.cutoff=1", "structure needs"),
        ("branching.betas=[]", "give at least one"),
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
