"""The library surface: bad input, inserts and deletes, saving, the planner's promises."""

import json

import numpy as np
import pytest

from papers.window_ann import WindowIndex, metrics, synthetic
from papers.window_ann.plans import METHODS

SMALL = {"cutoff": 40, "R": 8, "L": 16, "threads": 1}


@pytest.fixture(scope="module")
def work():
    return synthetic.mixture(np.random.default_rng(0), 2000, 50, d=16, centres=15)


@pytest.fixture(scope="module")
def index(work):
    return WindowIndex(cutoff=100, R=12, L=24, threads=1).fit(work.X, work.labels)


# ---- bad input -------------------------------------------------------------------------------------------------------


def fit(X=None, labels=None, **options):
    X = np.ones((5, 3)) if X is None else X
    return WindowIndex(**{**SMALL, **options}).fit(X, np.arange(len(X)) if labels is None else labels)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: fit(labels=np.arange(4)), "one label a row"),
        (lambda: fit(labels=[0, 1, 2, 3, np.nan]), "labels hold NaN"),
        (lambda: fit(X=np.array([[1.0, np.nan]])), "NaN or infinite values, first in row 0"),
        (lambda: fit(X=np.array([["a"]])), "real numbers"),
        (lambda: fit(X=np.ones((2, 2, 2))), "shape"),
        (lambda: fit(X=np.ones((0, 3))), "shape"),
        (lambda: fit(X=np.zeros((2, 3)), metric="angular"), "row of zeros"),
        (lambda: fit(method="best"), "choose auto|choose prefilter"),
        (lambda: fit(metric="cosine"), "metric"),
        (lambda: fit(base="annoy"), "unknown option base"),
        (lambda: fit(ef=3), "unknown option ef"),
        (lambda: fit(alpha=0.5), "alpha"),
        (lambda: fit(beta=1), "beta"),
        (lambda: fit(recall=1.5), "recall"),
        (lambda: fit(threads=0), "threads"),
        (lambda: fit(graph_cost=float("nan")), "graph_cost"),
        (lambda: fit(seed=-1), "seed"),
        (lambda: fit(R=2.5), "R is 2.5"),
        (lambda: fit(X=np.full((5, 3), 1e19)), "squared distances"),
        (lambda: fit(X=np.full((5, 3), 1e39)), "infinite"),
        (lambda: WindowIndex().search(np.ones((1, 3)), 0, 1), "fit"),
    ],
)
def test_what_cannot_be_indexed_is_refused_by_name(call, word):
    with pytest.raises(ValueError, match=word):
        call()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"k": 0}, "k is 0"),
        ({"k": -1}, "k is -1"),
        ({"k": 2001}, "k is 2001"),
        ({"lo": 0.9, "hi": 0.1}, "lo > hi"),
        ({"lo": np.zeros(7)}, "lo has shape"),
        ({"lo": np.nan}, "NaN"),
        ({"lo": np.datetime64("2020-01-01")}, "kind"),
        ({"closed": "open"}, "closed"),
        ({"method": "best"}, "method"),
        ({"beam": 0}, "beam"),
        ({"min_ratio": 2}, "min_ratio"),
        ({"compat": "yes"}, "compat"),
        ({"Q": np.ones((2, 5))}, "columns"),
        ({"Q": np.full((2, 16), np.inf)}, "NaN or infinite"),
    ],
)
def test_what_cannot_be_searched_is_refused_by_name(work, index, arguments, word):
    call = {"Q": work.queries[:3], "lo": 0.1, "hi": 0.5, **arguments}
    with pytest.raises(ValueError, match=word):
        index.search(**call)


@pytest.mark.parametrize("k", [None, "3", 2.5, float("nan"), float("inf"), 2001])
def test_a_k_that_is_no_number_of_points_is_refused_by_search_and_explain(work, index, k):
    for call in (lambda: index.search(work.queries, 0, 1, k=k), lambda: index.explain(0, 1, k=k)):
        with pytest.raises(ValueError, match="k is"):
            call()


def test_explain_refuses_what_it_does_not_know(index):
    with pytest.raises(ValueError, match="method is 'best'"):
        index.explain(0, 1, method="best")
    with pytest.raises(ValueError, match="unknown option baem"):
        index.explain(0, 1, baem=10)


def test_an_infinite_lower_end_above_a_whole_number_is_refused(index, work):
    with pytest.raises(ValueError, match="lo > hi"):
        index.search(work.queries, np.inf, 5)


def test_a_second_fit_starts_afresh_and_one_that_fails_changes_nothing(work):
    index = fit(work.X[:60], work.labels[:60])
    with pytest.raises(ValueError, match="NaN"):
        index.fit(np.full((5, 3), np.nan), np.arange(5))
    assert len(index) == 60
    assert index.search(work.X[:1], -np.inf, np.inf, k=1)[0][0, 0] == 0
    assert index.fit(np.eye(3), np.arange(3)).search(np.eye(3)[1:2], 0, 2, k=1)[0][0, 0] == 1


def test_a_method_without_graphs_is_refused(work):
    with pytest.raises(ValueError, match="no graphs"):
        WindowIndex("tree", **SMALL).fit(work.X[:100], work.labels[:100]).search(
            work.queries, 0, 1, method="super_postfilter"
        )


def test_integers_and_bytes_are_vectors_too():
    X = np.arange(30, dtype=np.uint8).reshape(10, 3)
    assert fit(X=X).search(X[:2], 0, 9, 1)[0].tolist() == [[0], [1]]


def test_the_caller_may_change_their_arrays_after_fit(work):
    X, labels = work.X[:50].copy(), np.arange(50)
    index = WindowIndex("tree", **SMALL).fit(X, labels)
    X[:], labels[:] = 0, 0
    assert index.search(work.X[:3], 0, 49, 1)[0][:, 0].tolist() == [0, 1, 2]


def test_dates_go_with_a_bound_that_is_none(work):
    days = np.arange("2020-01-01", "2020-01-11", dtype="M8[D]")
    index = WindowIndex("tree", **SMALL).fit(work.X[:10], days)
    assert sorted(index.search(work.X[:1], days[7], np.inf, 3)[0][0].tolist()) == [7, 8, 9]
    assert index.search(work.X[:1], -np.inf, days[0], 2, closed="right")[0][0].tolist() == [0, -1]
    with pytest.raises(ValueError, match="lo > hi"):
        index.search(work.X[:1], days[2], days[1])
    with pytest.raises(ValueError, match="finer"):
        index.insert(work.X[:1], np.array(["2020-01-01T12"], "M8[h]"))


def test_no_queries_have_no_answers(index):
    ids, distances = index.search(np.empty((0, 16)), 0, 1)
    assert ids.shape == distances.shape == (0, 10)


# ---- planner ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.02])
def test_the_planner_reaches_its_recall_at_less_than_one_and_a_half_times_the_best_method(work, index, share):
    rng = np.random.default_rng(1)
    lo, hi = synthetic.windows(work.labels, share, 50, rng)
    truth = synthetic.truth(work.X, work.labels, work.queries, lo, hi, 10)

    def cost(method, settings):
        points = []
        for how in settings:
            ids, _, counts = index.search_counted(work.queries, lo, hi, method=method, **how)
            points.append((metrics.recall(ids, truth), counts.distances.mean()))
        return metrics.cost_at(points, 0.9)

    index.graph_cost = 1.0
    single = np.nanmin([cost(m, [{"beam": b} for b in (10, 20, 40, 80, 160)]) for m in METHODS[:-1]])
    assert cost("auto", [{"recall": r} for r in (0.9, 0.93, 0.96, 0.98, 0.99)]) <= 1.5 * single


def test_the_planner_scans_small_windows_and_uses_a_graph_for_large_ones(index):
    assert [p["do"] for p in index.explain(0.1, 0.105)["pieces"]] == ["scan"]
    assert "graph" in [p["do"] for p in index.explain(0.0, 1.0)["pieces"]]


def test_plans_are_the_same_after_the_same_fit(work, index):
    other = WindowIndex(cutoff=100, R=12, L=24, threads=1, graph_cost=index.graph_cost).fit(work.X, work.labels)
    assert index.explain(0.2, 0.6) == other.explain(0.2, 0.6)


# ---- inserts and deletes ---------------------------------------------------------------------------------------------


def test_inserted_rows_are_found_under_new_ids_and_segments_stay_few(work):
    index = WindowIndex("tree", **SMALL).fit(work.X[:200], work.labels[:200])
    for i in range(200, 600, 25):
        ids = index.insert(work.X[i : i + 25], work.labels[i : i + 25])
        assert ids.tolist() == list(range(i, i + 25))
        sizes = [segment.live for segment in index.segments]
        assert all(a >= 2 * b for a, b in zip(sizes, sizes[1:], strict=False))
        assert len(index) == i + 25
    found, distances = index.search(work.X[:600], -np.inf, np.inf, 1, beam=600)
    assert found[:, 0].tolist() == list(range(600))
    assert np.allclose(distances, 0, atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_deleted_rows_never_come_back_and_the_others_still_do(work, method):
    n, rng = 400, np.random.default_rng(2)
    index = WindowIndex(method, **SMALL).fit(work.X[:n], work.labels[:n])
    gone = rng.permutation(n)[:150]
    index.delete(gone)
    kept = np.setdiff1d(np.arange(n), gone)
    lo, hi = synthetic.windows(work.labels[:n], 0.3, 50, rng)
    ids, _ = index.search(work.queries, lo, hi, 10, beam=n)
    assert not np.isin(ids, gone).any()
    truth = synthetic.truth(work.X[kept], work.labels[kept], work.queries, lo, hi, 10)
    assert metrics.recall(ids, np.where(truth >= 0, kept[truth], -1)) > 0.97
    index.delete(kept[: len(kept) - 5])  # far more than half: built anew
    assert len(index) == 5
    assert set(index.search(work.queries[:1], 0, 1, 5)[0][0].tolist()) == set(kept[-5:].tolist())


def test_deleting_what_is_not_there_deletes_nothing(work):
    index = WindowIndex("tree", **SMALL).fit(work.X[:50], work.labels[:50])
    index.delete([3])
    for ids in ([3], [1, 99], [-1], [1.5]):
        with pytest.raises(ValueError, match=r"no row|row numbers"):
            index.delete(ids)
    assert len(index) == 49


def test_an_insert_that_is_interrupted_loses_no_rows(work, monkeypatch):
    index = fit(work.X[:60], work.labels[:60])

    def interrupted(part):
        raise KeyboardInterrupt

    monkeypatch.setattr(index, "_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index.insert(work.X[60:120], work.labels[60:120])
    monkeypatch.undo()
    assert len(index) == 60
    assert index.insert(work.X[60:120], work.labels[60:120])[0] == 60
    assert len(index) == 120


def test_deleting_nothing_is_allowed_and_an_emptied_index_says_so(work):
    index = fit(work.X[:10], work.labels[:10])
    index.delete([])
    index.delete(np.arange(10))
    for call in (lambda: index.search(work.X[:1], 0, 1, k=1), lambda: index.explain(0, 1)):
        with pytest.raises(ValueError, match="every row was deleted"):
            call()


def test_an_index_can_be_emptied_and_filled_again(work):
    index = WindowIndex("auto", **SMALL).fit(work.X[:20], work.labels[:20])
    index.delete(np.arange(20))
    assert len(index) == 0
    with pytest.raises(ValueError, match="every row was deleted"):
        index.search(work.queries, 0, 1)
    assert index.insert(work.X[:3], work.labels[:3]).tolist() == [20, 21, 22]
    assert index.search(work.X[:3], 0, 1, 1)[0][:, 0].tolist() == [20, 21, 22]


def test_labels_of_another_kind_cannot_be_inserted(work):
    index = WindowIndex("tree", **SMALL).fit(work.X[:20], np.arange("2020-01-01", "2020-01-21", dtype="M8[D]"))
    with pytest.raises(ValueError, match="same kind"):
        index.insert(work.X[:2], [1.0, 2.0])
    ids, _ = index.search(work.X[:1], np.datetime64("2020-01-05"), np.datetime64("2020-01-06"), 3)
    assert sorted(ids[0].tolist()) == [-1, 4, 5]


# ---- saving ----------------------------------------------------------------------------------------------------------


def test_a_loaded_index_answers_as_the_saved_one(work, index, tmp_path):
    index.save(tmp_path / "index")
    loaded = WindowIndex.load(tmp_path / "index", work.X, work.labels, threads=1)
    lo, hi = synthetic.windows(work.labels, 0.2, 50, np.random.default_rng(0))
    for method in METHODS:
        a, b = index.search(work.queries, lo, hi, method=method), loaded.search(work.queries, lo, hi, method=method)
        assert np.array_equal(a[0], b[0])
        assert np.array_equal(a[1], b[1])
    index.save(tmp_path / "index")  # over itself
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index"]


def test_deletes_and_inserts_survive_saving(work, tmp_path):
    index = WindowIndex("tree", **SMALL).fit(work.X[:300], work.labels[:300])
    index.insert(work.X[300:330], work.labels[300:330])
    index.delete([5, 310])
    index.save(tmp_path / "i")
    loaded = WindowIndex.load(tmp_path / "i")
    assert len(loaded) == 328
    assert loaded.insert(work.X[:1], [0.5]).tolist() == [330]
    assert not np.isin(loaded.search(work.X[[5, 310]], 0, 1, 3)[0], [5, 310]).any()


@pytest.fixture
def saved(work, tmp_path):
    WindowIndex("tree", **SMALL).fit(work.X[:100], work.labels[:100]).save(tmp_path / "i")
    return tmp_path / "i"


def test_a_flipped_byte_is_noticed(saved):
    raw = bytearray((saved / "0.G.npy").read_bytes())
    raw[-3] ^= 1
    (saved / "0.G.npy").write_bytes(raw)
    with pytest.raises(ValueError, match=r"damaged \(0\.G\.npy\)"):
        WindowIndex.load(saved)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"files": {}, "settings": {}, "segments": 0}',
        '{"format": 99, "files": {}, "settings": {}, "segments": 0}',
    ],
)
def test_a_damaged_head_is_noticed(saved, content):
    (saved / "index.json").write_text(content)
    with pytest.raises(ValueError, match="build it again"):
        WindowIndex.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head["settings"].update(metric="angular"),
        lambda head: head["settings"]["shape"].update(cutoff=39),
        lambda head: head["settings"].pop("d"),
        lambda head: head["files"].pop("0.G.npy"),
        lambda head: head.update(segments=0),
        lambda head: head.update(segments=2),
    ],
)
def test_a_changed_head_is_noticed_even_where_it_makes_sense(saved, change):
    head = json.loads((saved / "index.json").read_text())
    change(head)
    (saved / "index.json").write_text(json.dumps(head))
    with pytest.raises(ValueError, match="damaged"):
        WindowIndex.load(saved)


def test_saving_over_an_index_replaces_it_and_leaves_nothing_else(work, saved):
    index = WindowIndex.load(saved)
    index.delete([0])
    index.save(saved)
    assert len(WindowIndex.load(saved)) == 99
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_missing_part_is_noticed(saved):
    (saved / "0.X.npy").unlink()
    with pytest.raises(ValueError, match="damaged"):
        WindowIndex.load(saved)


def test_an_index_of_other_data_is_refused(work, saved):
    with pytest.raises(ValueError, match="other data"):
        WindowIndex.load(saved, work.X[:100], work.labels[1:101])
    with pytest.raises(ValueError, match="no index"):
        WindowIndex.load(saved.parent / "nowhere")
    with pytest.raises(ValueError, match="both X and labels"):
        WindowIndex.load(saved, work.X[:100])


def test_saving_never_replaces_what_is_no_index(work, index, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("x")
    with pytest.raises(ValueError, match="not an index"):
        index.save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.tex").exists()


def test_the_head_is_plain_json(saved):
    head = json.loads((saved / "index.json").read_text())
    assert head["settings"]["method"] == "tree"
    assert set(head["files"]["0.X.npy"]) == {"sha256", "bytes"}
