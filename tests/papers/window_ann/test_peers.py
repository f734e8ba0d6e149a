"""Other libraries agree where they are installed (oracles 9 and 10), and the baselines are what they say."""

import numpy as np
import pytest

from common.errors import UserError
from papers.window_ann import WindowIndex, baselines, datasets, evaluate
from papers.window_ann.base import need
from papers.window_ann.windows import rank_interval


@pytest.fixture(scope="module")
def ready():
    rng = np.random.default_rng(0)
    work = datasets.mixture(rng, 1500, 30, d=12, centres=10)
    segment = WindowIndex("postfilter", cutoff=100, R=12, L=24, threads=1).fit(work.X, work.labels).segments[0]
    lo, hi = datasets.windows(work.labels, 0.2, 30, rng)
    S, E = rank_interval(segment.labels, lo, hi)
    truth = datasets.truth(segment.X, np.arange(1500), work.queries, S, E - 1, 10)
    return segment, work.queries, S, E, truth


def test_prefiltering_by_blas_and_by_gathering_are_exact(ready):
    segment, Q, S, E, truth = ready
    norms = (segment.X**2).sum(1)
    assert evaluate.recall(baselines.prefilter_blas(segment.X, norms, Q, S, E, 10), truth) == 1.0
    whole = baselines.prefilter_blas(segment.X, norms, Q, 0 * S, 0 * E + 1500, 10)
    assert whole.shape == (30, 10)
    assert (whole >= 0).all()
    rows = np.random.default_rng(1).permutation(1500)
    X = np.empty_like(segment.X)
    X[rows] = segment.X
    assert evaluate.recall(baselines.prefilter_scattered(X, rows, Q, S, E, 10), truth) == 1.0


def test_incremental_postfiltering_needs_no_restart_and_gets_better_with_patience(ready):
    segment, Q, S, E, truth = ready
    found = [baselines.incremental(segment, Q, S, E, 10, patience) for patience in (1, 10, 100, 2000)]
    recall = [evaluate.recall(ids, truth) for ids, _ in found]
    assert recall == sorted(recall)
    assert recall[-1] == 1.0
    assert found[0][1].mean() < found[-1][1].mean() <= 1500


def test_the_budgeted_postfilter_stays_within_its_budget(ready):
    segment, Q, S, E, _ = ready
    ranks, spent = baselines.postfilter_within(segment, Q, S, E, 10, 300.0)
    assert spent <= 300
    assert ((ranks < 0) | ((ranks >= S[:, None]) & (ranks < E[:, None]))).all()


def test_faiss_with_a_range_selector_agrees(ready):
    pytest.importorskip("faiss")
    segment, Q, S, E, truth = ready
    assert evaluate.recall(baselines.faiss_range(segment.X, "flat")(Q, S, E, 10, 0), truth) == 1.0
    assert evaluate.recall(baselines.faiss_range(segment.X, "hnsw")(Q, S, E, 10, 1500), truth) > 0.97


def test_hnswlib_with_a_filter_agrees_at_full_width(ready):
    pytest.importorskip("hnswlib")
    segment, Q, S, E, truth = ready
    assert evaluate.recall(baselines.hnswlib_filter(segment.X)(Q, S, E, 10, 1500), truth) > 0.99


@pytest.mark.parametrize("base", ["faiss", "hnswlib"])
@pytest.mark.parametrize("method", ["tree", "super_postfilter", "auto"])
def test_other_bases_serve_every_method(ready, base, method):
    pytest.importorskip(base)
    segment, Q, S, E, truth = ready
    index = WindowIndex(method, base=base, cutoff=200, threads=1).fit(segment.X, np.arange(1500))
    assert evaluate.recall(index.search(Q, S, E - 1, 10, beam=200)[0], truth) > 0.9


def test_a_missing_library_is_named_with_its_package():
    with pytest.raises(UserError, match="pip install some-package"):
        need("no_such_module_here", "some-package")
