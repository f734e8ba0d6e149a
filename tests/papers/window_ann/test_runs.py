"""The command: bad configs, fallback, dry runs, and caches that change nothing."""

import pytest

from common.errors import UserError
from common.experiment import launch
from common.settings import compose
from papers.window_ann import settings

TINY = ["+exp=smoke", "threads=1", "parts=[curves]", "data.n=400", "search.targets=[0.95]"]
LARGE = ("adversarial", "deep", "glove", "hackernews", "mixture_200k", "redcaps", "sift")


def test_figures_do_not_depend_on_whether_graphs_are_cached(monkeypatch, tmp_path):
    first, cached = launch("window_ann", TINY), launch("window_ann", TINY)
    monkeypatch.setenv("PAPERS_CACHE", str(tmp_path / "other"))
    fresh = launch("window_ann", TINY)
    assert first.metrics == cached.metrics == fresh.metrics
    assert first.record["tables"] == fresh.record["tables"]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("parts=[curve]", "choose adversarial|curves"),
        ("parts=[]", "parts is empty"),
        ("parts=[curves,curves]", "twice"),
        ("seeds=[]", "seeds is empty"),
        ("seeds=[1,1]", "twice"),
        ("search.fractions=[1]", "search.fractions"),
        ("search.fractions=[-9]", "smallest window"),
        ("search.k=0", "at least 1"),
        ("search.level=95.0", r"\(0, 1\)"),
        ("search.targets=[1.5]", r"\(0, 1\)"),
        ("index.cutoff=1", "index.cutoff"),
        ("index.beta=200", "index.cutoff"),
        ("index.alpha=0.5", "alpha"),
        ("index.shift=1.5", "shift"),
        ("index.overlap=1.0", "overlap"),
        ("index.start=middle", "choose medoid, first"),
        ("data.queries=0", "at least 1"),
        ("data.metric=cosine", "choose euclidean, angular"),
        ("data.label=title", "choose timestamp, points"),
        ("adversarial.clusters=1", "at least 2"),
        ("adversarial.queries=21", "at most"),
        ("adversarial.queries=0", "at least 1"),
        ("structure.cutoff=1", "structure"),
        ("structure.cutoff=128", "structure needs"),
        ("branching.betas=[]", "branching.betas is empty"),
        ("data.name=imagenet", "data.name"),
        ("data.name=npy", "data.path"),
    ],
)
def test_a_config_that_cannot_run_is_one_sentence(override, word):
    with pytest.raises(UserError, match=word):
        settings.check(compose("window_ann", "train", [*TINY, override]))


def test_data_that_are_not_here_are_named():
    with pytest.raises(UserError, match="ann-benchmarks"):
        launch("window_ann", [*TINY, "data.name=glove"])


def test_missing_deep_vectors_fall_back_on_the_mixture_and_say_so():
    result = launch("window_ann", [*TINY, "data.name=deep_10k"])
    assert any("made-up data" in note for note in result.record["notes"])
    assert result.record["data"]["deep_10k"]["source"] == "synthetic"
    assert "mixture.planner_worst" in result.metrics
    with pytest.raises(UserError, match="not here"):
        launch("window_ann", [*TINY, "data.name=deep_10k", "data.fallback=false"])


@pytest.mark.parametrize("name", LARGE)
def test_large_experiments_say_what_they_need_without_running(name):
    result = launch("window_ann", [f"+exp={name}", "run.dry=true"])
    assert result.metrics["memory_gb"] > 0
    assert result.metrics["hours"] > 0
