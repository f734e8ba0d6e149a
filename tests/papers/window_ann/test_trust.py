"""What people bring: equal rows, labels that go with places, queries of another kind, open ends, pickles, damaged files."""

import copy
import datetime
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.window_ann import WindowIndex, metrics, synthetic, vamana
from papers.window_ann.plans import METHODS
from papers.window_ann.twins import NONE, find, first_equal, from_before
from papers.window_ann.windows import rank_interval

SMALL = {"R": 16, "L": 32, "cutoff": 100, "threads": 1, "graph_cost": 1.0}


def cloud(n, d=8, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def true_distances(X, labels, Q, lo, hi, k):
    ids = synthetic.truth(X, labels, Q, lo, hi, k)
    return np.where(ids >= 0, np.linalg.norm(X[ids].astype(np.float64) - Q[:, None], axis=2), np.inf)


# ---- equal rows ------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=25))
def test_equal_rows_are_found_as_comparing_all_of_them_does(values):
    X = np.array([[v, -v] for v in values], np.float32)
    twins = find(X)
    for i, value in enumerate(values):
        same = [j for j, other in enumerate(values) if other == value]
        if len(same) == 1:
            assert len(twins.of) == 0 or twins.of[i] == -1
        else:
            c = twins.of[i]
            assert twins.ranks[twins.start[c] : twins.start[c + 1]].tolist() == same
            assert twins.before[i] == max([j for j in same if j < i], default=-1)
        assert first_equal(twins, i, i) == i if i in same else True
    assert all(np.array_equal(a, b) for a, b in zip(twins, from_before(twins.before), strict=True))


def test_zero_and_minus_zero_are_one_row():
    assert find(np.array([[0.0, 1.0], [-0.0, 1.0]], np.float32)).of.tolist() == [0, 0]
    assert find(cloud(50)) is NONE


def kinds():
    rng, X = np.random.default_rng(0), cloud(1200)
    at = lambda rows, what: (Y := X.copy(), Y.__setitem__(rows, what))[0]  # noqa: E731
    some = rng.permutation(1200)
    yield "three in the middle", at(some[:3], 0.0)
    yield "a tenth in the middle", at(some[:120], 0.0)
    yield "half in the middle", at(some[:600], 0.0)
    yield "pairs everywhere", at(some[:300], X[some[300:600]])
    yield "clusters of copies", np.repeat(X[:60], 20, axis=0)
    yield "constant columns", np.concatenate([X, np.ones((1200, 4), np.float32)], axis=1)
    yield "one-hot", np.eye(24, dtype=np.float32)[rng.integers(24, size=1200)]
    yield "all but one", at(slice(1, None), X[0])
    yield "integers", rng.integers(-2, 3, (1200, 8)).astype(np.float32)
    yield "a crowd in the middle", at(some[:60], 1e-4 * cloud(60, seed=3))
    yield "near the smallest floats", X * np.float32(1e-30)


@pytest.mark.parametrize(("name", "X"), list(kinds()), ids=lambda x: x if isinstance(x, str) else "")
def test_equal_rows_cost_the_others_no_recall(name, X):
    rng = np.random.default_rng(1)
    labels = rng.random(len(X))
    spread = X.std(axis=0).mean()
    Q = (X[rng.choice(len(X), 60)] + 0.3 * spread * rng.standard_normal((60, X.shape[1]))).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index = WindowIndex(**SMALL).fit(X, labels)
    for share in (1.0, 0.4):
        lo = rng.random(60) * (1 - share)
        scale = index.scale
        true = true_distances(X.astype(np.float64) * scale, labels, Q.astype(np.float64) * scale, lo, lo + share, 10)
        _, distances, counts = index.search_counted(Q, lo, lo + share, 10)
        assert metrics.recall_by_distance(distances.astype(np.float64) * scale, true) > 0.9
        assert counts.distances.max() <= 2 * 1200 * share + 100


def test_a_graph_with_many_equal_rows_is_searched_as_one_without():
    real, Q = cloud(1000, 12), cloud(60, 12, seed=1)
    X = np.concatenate([real, np.zeros((300, 12), np.float32)])[np.random.default_rng(2).permutation(1300)]
    true = np.sort(np.linalg.norm(X[None] - Q[:, None], axis=2), axis=1)[:, :10]
    ids, distances, _ = vamana.search(vamana.build(X, 24, 48), X, Q, 40, 10)
    assert metrics.recall_by_distance(distances, true) > 0.95
    assert np.allclose(np.linalg.norm(X[ids] - Q[:, None], axis=2), distances, rtol=1e-5)
    assert all(len(set(row)) == 10 for row in ids.tolist())


@pytest.mark.parametrize("method", METHODS)
def test_all_of_several_equal_rows_come_back_unless_they_were_deleted(method):
    X = np.concatenate([cloud(300, 4), np.full((12, 4), 5.0, np.float32)])
    index = WindowIndex(method, **SMALL).fit(X, np.arange(312))
    assert set(index.search(X[-1:], 0, 311, 12, beam=40)[0][0].tolist()) == set(range(300, 312))
    index.delete([300, 305])
    assert set(index.search(X[-1:], 0, 311, 10, beam=40)[0][0].tolist()) == set(range(301, 312)) - {305}
    assert set(index.search(X[-1:], 0, 308, 7, beam=40)[0][0].tolist()) == set(range(301, 309)) - {305}


def test_a_graph_that_finds_too_little_is_built_again_or_says_so(monkeypatch):
    from papers.window_ann import segment

    monkeypatch.setattr(segment, "SOUND", 1.1)
    monkeypatch.setattr(segment, "POOR", 1.1)
    built = []
    build = vamana.build_into
    monkeypatch.setattr(vamana, "build_into", lambda *args, **how: (built.append(args[4:6]), build(*args, **how))[1])
    with pytest.warns(UserWarning, match="find few of the neighbours"):
        WindowIndex("postfilter", R=8, L=16, threads=1).fit(cloud(400), np.arange(400))
    assert built[0] == (16, 1.0)
    assert built[-1] == (32, segment.DENSER)


# ---- the planner -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", ["independent", "drifting", "recurring"])
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_the_recall_asked_for_at_little_more_than_the_best_methods_work(labels, share):
    rng = np.random.default_rng(5)
    work = synthetic.LABELS[labels](rng, 4000, 150, 16)
    X = synthetic.with_copies(rng, work.X, share)
    index = WindowIndex(R=24, L=48, cutoff=125, threads=1, graph_cost=1.0).fit(X, work.labels)
    for p in (0, -1, -3, -5, -8):
        lo, hi = synthetic.windows_around(rng, work.labels, work.own, 2.0**p)
        true = true_distances(X, work.labels, work.queries, lo, hi, 10)
        _, distances, counts = index.search_counted(work.queries, lo, hi, 10)
        assert metrics.recall_by_distance(distances, true) > 0.93
        scan = 4000 * 2.0**p
        assert counts.distances.max() <= 2 * scan + 1
        best = scan
        for method in ("postfilter", "super_postfilter", "three_split", "tree"):
            for beam in (10, 14, 20, 40):
                _, found, cost = index.search_counted(work.queries, lo, hi, 10, method=method, beam=beam)
                if metrics.recall_by_distance(found, true) >= 0.94:
                    best = min(best, cost.distances.mean())
                    break
        assert counts.distances.mean() <= 1.3 * best


@pytest.mark.parametrize("method", METHODS)
def test_no_method_computes_more_than_twice_a_scan(method):
    X = cloud(2000, 8)
    z = X[:, 0]
    index = WindowIndex(method, **SMALL).fit(X, z)
    Q = cloud(30, 8, seed=1)
    Q[:, 0] = -3
    for share in (0.05, 0.2, 0.5):
        lo = np.sort(z)[int((1 - share) * 2000)]
        ids, _, counts = index.search_counted(Q, lo, np.inf, 10, multiply=4)
        assert counts.distances.max() <= 2 * share * 2000
        assert (ids >= 0).all()


def test_a_search_measures_nothing_whatever_k_and_after_an_insert_too(monkeypatch):
    from papers.window_ann import probe

    index = WindowIndex(**SMALL).fit(cloud(600), np.arange(600))
    index.insert(cloud(500, seed=1), np.arange(500))
    monkeypatch.setattr(probe, "curve", lambda *args, **how: pytest.fail("measured while searching"))
    for k in (1, 10, 11, 50):
        index.search(cloud(2, seed=2), 0, 600, k)


def test_queries_of_another_kind_are_said_and_a_sample_of_them_is_measured():
    rng = np.random.default_rng(0)
    work = synthetic.mixture(rng, 4000, 300, d=32, centres=40)
    gap = synthetic.normalised(rng.standard_normal((1, 32)))
    far = synthetic.normalised(work.queries + 2 * gap + 0.5 * synthetic.normalised(rng.standard_normal((300, 32))))
    options = {**SMALL, "metric": "angular"}
    index = WindowIndex(**options).fit(work.X, work.labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index.search(work.queries, 0, 1)
    assert "rows of the data" in index.explain(0, 1)["promise"]
    with pytest.warns(UserWarning, match="give a sample"):
        index.search(far, 0, 1)
    told = WindowIndex(**options).fit(work.X, work.labels, queries=far[:150])
    assert "sample of 150" in told.explain(0, 1)["promise"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for share in (1.0, 0.5, 0.25):
            lo = rng.random(150) * (1 - share)
            truth = synthetic.truth(work.X, work.labels, far[150:], lo, lo + share, 10)
            assert metrics.recall(told.search(far[150:], lo, lo + share)[0], truth) > 0.93
    assert told.calibrate(work.queries).explain(0, 1)["promise"] == "queries like the sample of 300 given"


# ---- bounds and labels -----------------------------------------------------------------------------------------------

DAYS = np.datetime64("2020-01-01") + np.arange(300)


@pytest.mark.parametrize("unit", ["ns", "us", "s", "h", "D"])
@pytest.mark.parametrize("end", ["2020-12-31", "2262-04-12", "2300-01-01", "2604-10-01", "9999-12-31"])
def test_an_end_beyond_what_the_unit_holds_is_beyond_all_labels(unit, end):
    labels = DAYS.astype(f"M8[{unit}]")
    lo = np.datetime64("2020-06-01")
    assert tuple(map(int, rank_interval(labels, lo, np.datetime64(end)))) == (152, 300)
    assert tuple(map(int, rank_interval(labels, np.datetime64("-9999-01-01"), lo))) == (0, 153)
    assert tuple(map(int, rank_interval(labels, np.datetime64(end) + 400, np.datetime64("19999-01-01")))) == (300, 300)


@settings(deadline=None, max_examples=150)
@given(st.integers(-(2**62), 2**62), st.sampled_from(["s", "ms", "us", "ns", "m", "h", "D", "W"]),
       st.integers(-(10**6), 10**6), st.sampled_from(["s", "ms", "m", "h", "D", "W"]))  # fmt: skip
def test_dates_of_two_units_compare_as_integers_do(bound, unit, label, kind):
    seconds = {
        "W": 604800 * 10**9,
        "D": 86400 * 10**9,
        "h": 3600 * 10**9,
        "m": 60 * 10**9,
        "s": 10**9,
        "ms": 10**6,
        "us": 1000,
        "ns": 1,
    }
    labels = np.array([label], f"M8[{kind}]")
    s, e = rank_interval(labels, np.datetime64(bound, unit), None)
    assert (int(e) - int(s) == 1) == (label * seconds[kind] >= bound * seconds[unit])
    s, e = rank_interval(labels, None, np.datetime64(bound, unit))
    assert (int(e) - int(s) == 1) == (label * seconds[kind] <= bound * seconds[unit])


def test_months_and_years_are_dates_too():
    months = np.array(["2019-12", "2020-01", "2020-02"], "M8[M]")
    assert tuple(map(int, rank_interval(months, np.datetime64("2020-01-01"), np.datetime64("2020-02-15")))) == (1, 3)
    assert tuple(map(int, rank_interval(months, np.datetime64("2020-01-02"), np.datetime64("2020")))) == (2, 2)
    assert tuple(map(int, rank_interval(DAYS, np.datetime64("2020-02"), np.datetime64("2020-03")))) == (31, 61)
    before = np.array(["1969-11-30", "1969-12-01"], "M8[D]")
    assert tuple(map(int, rank_interval(before, np.datetime64("1969-12"), None))) == (1, 2)


@pytest.mark.parametrize(
    ("labels", "value"),
    [
        (2**60 + np.arange(300), 2**60 + 5),
        (DAYS, DAYS[5]),
        (np.arange(300.0), 5.0),
        (DAYS - DAYS[0], np.timedelta64(5)),
    ],
)
@pytest.mark.parametrize("open_", [None, np.inf, "NaT"])
def test_open_ends_stand_beside_others_in_one_batch(labels, value, open_):
    if open_ == "NaT":
        if labels.dtype.kind not in "mM":
            pytest.skip("numbers have no NaT")
        lo, hi = np.array([value, "NaT"], labels.dtype), np.array(["NaT", value], labels.dtype)
    else:
        lo, hi = [value, open_ and -open_], [open_, value]
    index = WindowIndex(**SMALL).fit(cloud(300), labels)
    ids, _ = index.search(cloud(2), lo, hi, 300)
    assert set(ids[0][ids[0] >= 0].tolist()) == set(range(5, 300))
    assert set(ids[1][ids[1] >= 0].tolist()) == set(range(6))
    assert set(index.search(cloud(1), None, value, 300)[0][0].tolist()) - {-1} == set(range(6))


def test_dates_of_the_standard_library_are_bounds():
    assert tuple(map(int, rank_interval(DAYS, datetime.date(2020, 1, 3), datetime.datetime(2020, 1, 5, 12)))) == (2, 5)
    assert tuple(map(int, rank_interval(DAYS, [datetime.date(2020, 1, 3)], [None])[0])) == (2,)


@pytest.mark.parametrize("label", ["9999-12-31", "-9999-01-01"])
def test_a_label_that_the_index_cannot_hold_is_not_inserted(label):
    index = WindowIndex(**SMALL).fit(cloud(300), DAYS.astype("M8[ns]"))
    with pytest.raises(ValueError, match="outside what"):
        index.insert(cloud(1), np.array([label], "M8[D]"))
    assert len(index) == 300
    assert index.search(cloud(1), np.datetime64("1700-01-01"), np.datetime64("1900-01-01"), 1)[0].tolist() == [[-1]]


def test_bounds_of_several_kinds_are_refused_by_name():
    with pytest.raises(ValueError, match=r"lo is|lo holds"):
        rank_interval(np.arange(5), ["a", 3], 4)
    with pytest.raises(ValueError, match="different lengths"):
        rank_interval(np.arange(5), [[1, 2], [3]], 4)
    with pytest.raises(ValueError, match="without a unit"):
        WindowIndex(**SMALL).fit(cloud(2), np.array([1, 2], "m8"))


# ---- unions ----------------------------------------------------------------------------------------------------------


def test_windows_that_touch_cost_what_the_whole_does():
    index = WindowIndex(**SMALL).fit(cloud(2000), np.arange(2000))
    Q, lo = cloud(20, seed=1), np.tile(np.arange(0, 2000, 100), (20, 1))
    parts, whole = index.search_counted(Q, lo, lo + 99), index.search_counted(Q, 0, 1999)
    assert np.array_equal(parts[0], whole[0])
    assert np.array_equal(parts[2].distances, whole[2].distances)
    holes = index.search_counted(Q, lo[:, ::2], lo[:, ::2] + 99)
    assert ((holes[0] // 100) % 2 == 0).all()


# ---- between processes, on disk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
def test_a_copy_answers_as_the_index_and_is_apart_from_it(copy_of):
    index = WindowIndex(**SMALL).fit(cloud(500), DAYS[np.arange(500) % 300])
    index.insert(cloud(40, seed=2), DAYS[:40])
    other = copy_of(index)
    Q = cloud(10, seed=1)
    answers = index.search(Q, DAYS[10], DAYS[200])
    assert all(np.array_equal(a, b) for a, b in zip(answers, other.search(Q, DAYS[10], DAYS[200]), strict=True))
    other.delete(answers[0][0][:1])
    assert np.array_equal(index.search(Q, DAYS[10], DAYS[200])[0], answers[0])
    assert copy_of(WindowIndex("tree", seed=3)).get_params() == WindowIndex("tree", seed=3).get_params()


@pytest.mark.slow
def test_another_process_answers_alike(tmp_path):
    index = WindowIndex(**SMALL).fit(cloud(800), np.arange(800))
    index.save(tmp_path / "i")
    code = (
        "import sys, numpy as np; from papers.window_ann import WindowIndex;"
        "Q = np.random.default_rng(1).standard_normal((20, 8)).astype(np.float32);"
        f"np.save({str(tmp_path / 'a.npy')!r}, WindowIndex.load({str(tmp_path / 'i')!r}, threads=2).search(Q, 100, 600)[0])"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert np.array_equal(np.load(tmp_path / "a.npy"), index.search(cloud(20, seed=1), 100, 600)[0])


@pytest.mark.parametrize("name", ["G", "entry", "before", "X", "labels"])
def test_what_is_damaged_and_not_verified_does_no_harm_to_the_process(tmp_path, name):
    X = np.concatenate([cloud(300), np.zeros((9, 8), np.float32)])
    WindowIndex(**SMALL).fit(X, np.arange(309)).save(tmp_path / "i")
    path = tmp_path / "i" / f"0.{name}.npy"
    raw = bytearray(path.read_bytes())
    raw[140:] = np.random.default_rng(0).integers(0, 256, len(raw) - 140, dtype=np.uint8).tobytes()
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="damaged"):
        WindowIndex.load(tmp_path / "i")
    try:
        index = WindowIndex.load(tmp_path / "i", threads=1, verify=False)
    except ValueError:
        return
    for method in METHODS:
        index.search(cloud(20, seed=1), 20, 280, method=method)


# ---- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_largest_inner_products_come_first(method):
    rng = np.random.default_rng(0)
    X = cloud(400) * rng.uniform(0.2, 3, (400, 1)).astype(np.float32)
    Q = cloud(20, seed=1)
    index = WindowIndex(method, "inner", **SMALL).fit(X, np.arange(400))
    ids, distances = index.search(Q, 50, 349, 10, beam=400, recall=1.0)
    product = Q @ X[50:350].T
    assert np.array_equal(ids, 50 + np.argsort(-product, axis=1)[:, :10])
    np.testing.assert_allclose(-distances, np.sort(product, axis=1)[:, ::-1][:, :10], rtol=1e-4, atol=1e-5)


def test_longer_rows_may_be_inserted_under_inner_products():
    X, Q = cloud(300), cloud(20, seed=1)
    index = WindowIndex("auto", "inner", **SMALL).fit(X, np.arange(300))
    assert index.insert(5 * X[:20], np.arange(20)).tolist() == list(range(300, 320))
    every = np.concatenate([X, 5 * X[:20]])
    ids, _ = index.search(Q, -np.inf, np.inf, 5, recall=1.0)
    assert np.array_equal(ids, np.argsort(-(Q @ every.T), axis=1, kind="stable")[:, :5])
    loaded = pickle.loads(pickle.dumps(index))
    assert np.array_equal(loaded.search(Q, -np.inf, np.inf, 5, recall=1.0)[0], ids)


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e-18, 1e-23, 1e-37])
def test_tiny_values_keep_their_distances(scale):
    X = cloud(300, 8).astype(np.float64)
    index = WindowIndex(**SMALL).fit(X * scale, np.arange(300))
    ids, distances = index.search(X[:40] * scale, 0, 299, 2)
    assert ids[:, 0].tolist() == list(range(40))
    np.testing.assert_allclose(
        distances[:, 1] / scale, np.sort(np.linalg.norm(X[None] - X[:40, None], axis=2))[:, 1], rtol=1e-4
    )
