"""Other libraries agree where they are installed (oracles 9 and 10), and the baselines are what they say."""

import numpy as np
import pytest

from papers.window_ann import WindowIndex, baselines, bench, metrics, peers, synthetic
from papers.window_ann.windows import rank_interval


@pytest.fixture(scope="module")
def ready():
    rng = np.random.default_rng(0)
    work = synthetic.mixture(rng, 1500, 30, d=12, centres=10)
    segment = WindowIndex("postfilter", cutoff=100, R=12, L=24, threads=1).fit(work.X, work.labels).segments[0]
    lo, hi = synthetic.windows(work.labels, 0.2, 30, rng)
    S, E = rank_interval(segment.labels, lo, hi)
    truth = synthetic.truth(segment.X, np.arange(1500), work.queries, S, E - 1, 10)
    return segment, work.queries, S, E, truth


def test_prefiltering_by_blas_and_by_gathering_are_exact(ready):
    segment, Q, S, E, truth = ready
    norms = (segment.X**2).sum(1)
    assert metrics.recall(baselines.prefilter_blas(segment.X, norms, Q, S, E, 10), truth) == 1.0
    whole = baselines.prefilter_blas(segment.X, norms, Q, 0 * S, 0 * E + 1500, 10)
    assert whole.shape == (30, 10)
    assert (whole >= 0).all()
    rows = np.random.default_rng(1).permutation(1500)
    X = np.empty_like(segment.X)
    X[rows] = segment.X
    assert metrics.recall(baselines.prefilter_scattered(X, rows, Q, S, E, 10), truth) == 1.0


def test_incremental_postfiltering_needs_no_restart_and_gets_better_with_patience(ready):
    segment, Q, S, E, truth = ready
    found = [baselines.incremental(segment, Q, S, E, 10, patience) for patience in (1, 10, 100, 2000)]
    recall = [metrics.recall(ids, truth) for ids, _ in found]
    assert recall == sorted(recall)
    assert recall[-1] == 1.0
    assert found[0][1].mean() < found[-1][1].mean() <= 1500


def test_the_budgeted_postfilter_stays_within_its_budget(ready):
    segment, Q, S, E, _ = ready
    ranks, spent = baselines.postfilter_within(segment, Q, S, E, 10, 300.0)
    assert spent <= 300
    assert ((ranks < 0) | ((ranks >= S[:, None]) & (ranks < E[:, None]))).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_faiss_with_a_range_selector_agrees(ready, threads):
    pytest.importorskip("faiss")
    segment, Q, S, E, truth = ready
    assert metrics.recall(peers.faiss_range(segment.X, "flat").find(Q, S, E, 10, 0, threads), truth) == 1.0
    assert metrics.recall(peers.faiss_range(segment.X, "ivf").find(Q, S, E, 10, 38, threads), truth) == 1.0
    assert metrics.recall(peers.faiss_range(segment.X, "hnsw").find(Q, S, E, 10, 1500, threads), truth) > 0.97


@pytest.mark.parametrize(("library", "make"), [("hnswlib", "hnswlib_filter"), ("hnswlib", "hnswlib_post"), ("usearch", "usearch_post")])  # fmt: skip
def test_a_library_that_filters_or_is_filtered_agrees_at_full_width(ready, library, make):
    pytest.importorskip(library)
    segment, Q, S, E, truth = ready
    assert metrics.recall(getattr(peers, make)(segment.X).find(Q, S, E, 10, 1500), truth) > 0.99


def test_dropping_what_lies_outside_keeps_the_order_and_pads():
    ranks = np.array([[5, 1, 9, 3], [0, 1, 2, 3], [8, 7, 6, 5]])
    kept = peers.inside(ranks, np.array([2, 4, 5]), np.array([6, 9, 8]), 3)
    np.testing.assert_array_equal(kept, [[5, 3, -1], [-1, -1, -1], [7, 6, 5]])


def test_cutting_a_batch_among_threads_changes_no_answer(ready):
    segment, Q, S, E, _ = ready
    search = peers.in_parts(lambda Q, S, E, k, _: baselines.prefilter_scattered(segment.X, np.arange(1500), Q, S, E, k))
    np.testing.assert_array_equal(search(Q, S, E, 10, "", 3), search(Q, S, E, 10, "", 1))


def test_a_small_race_has_whole_curves_counts_builds_and_memory(monkeypatch):
    monkeypatch.setattr(bench, "BUDGET", 0.001)
    rng = np.random.default_rng(0)
    work = synthetic.mixture(rng, 600, 20, d=12, centres=10)
    found = bench.windows("small", work, {"R": 8, "L": 16, "cutoff": 100}, (-1,), (1, 2), 1, rng)
    tables = {title.removeprefix("small_"): rows for title, rows in found.items()}
    assert {row["threads"] for row in tables["speedup"]} == {1, 2}
    names = {row["contender"] for row in tables["curves"]}
    assert {"planner", "tree", "postfilter", "prefilter, BLAS", "incremental postfilter"} <= names
    for line in tables["curves"]:
        assert line["recall"] == sorted(line["recall"])
        assert len(line["recall"]) == len(line["qps"]) == len(line["pareto"])
    assert any(any(line["pareto"]) for line in tables["curves"])
    assert all(row["low"] <= row["qps"] <= row["high"] for row in tables["fastest_at_0.9"])
    assert all(row["distances"] > 0 for row in tables["fastest_at_0.9"] if row["contender"] == "planner")
    assert tables["builds"][0]["mb"] > 0
    assert all(row["build_s"] is not None or "pip install" in row["note"] for row in tables["builds"])
    drawn = bench.figures({f"mixture_{title}": rows for title, rows in tables.items()})
    assert set(drawn) == {"windows", "curves"}


def test_a_setting_that_a_better_one_beats_clearly_does_not_race(monkeypatch):
    cost = {"slow and poor": 3.0, "fast": 1.0, "slow and good": 2.0, "slower by little": 2.2, "too slow": 9.0}
    found = {"slow and poor": 3, "fast": 9, "slow and good": 10, "slower by little": 10, "too slow": 10}

    def search(setting, count):
        return np.where(np.arange(count) % 10 < found[setting], 0, -1)[:, None], None

    monkeypatch.setattr(bench, "seconds", lambda call: (cost[call.args[0]] * call.args[1] / 1e4, call()))
    truth = np.zeros((10, 1), np.int64)
    one = bench.sweep(bench.Contender("x", ("slow and poor", "fast"), search), truth, 0.9)
    assert [row["setting"] for row in one] == ["fast"]
    ends = bench.sweep(bench.Contender("x", ("fast", "slow and good", "too slow"), search), truth, 0.9)
    assert [row["setting"] for row in ends] == ["fast", "slow and good"]  # recall 1: the sweep ended
    close = bench.sweep(bench.Contender("x", ("slower by little", "fast"), search), truth, 0.9)
    assert [row["setting"] for row in close] == ["slower by little"]
