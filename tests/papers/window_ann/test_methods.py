"""All methods on all windows against an exact scan in numpy (oracles 1, 11, 12; traps T2, T5, T6, T7, T10)."""

import itertools

import numpy as np
import pytest

from papers.window_ann import WindowIndex, synthetic
from papers.window_ann.plans import METHODS
from tests.papers.window_ann.exact import exact_index

SINGLE = METHODS[:-1]


def exact(X, labels, q, lo, hi, k, metric="euclidean"):
    """(ids, distances) by definition, -1 and inf where missing; ties by label, then row."""
    if metric == "angular":
        unit = X / np.linalg.norm(X, axis=1, keepdims=True)
        distance = 1 - unit @ (q / np.linalg.norm(q))
    else:
        distance = np.linalg.norm(X - q, axis=1)
    inside = np.flatnonzero((labels >= lo) & (labels <= hi))
    order = inside[np.lexsort((inside, labels[inside], distance[inside]))][:k]
    missing = k - len(order)
    return np.append(order, [-1] * missing).astype(int), np.append(distance[order], [np.inf] * missing)


def all_windows(n):
    return np.array([(s, e) for s in range(n) for e in range(s, n)]).T


@pytest.mark.parametrize(("graphs", "beta", "n"), [("complete", 2, 36), ("complete", 3, 36), ("vamana", 2, 70), ("vamana", 4, 70)])  # fmt: skip
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_exact_on_every_window(graphs, beta, n, method):
    rng = np.random.default_rng(1)
    X, labels = rng.standard_normal((n, 5)).astype(np.float32), rng.permutation(n)
    make = exact_index if graphs == "complete" else lambda X, y, m, **o: WindowIndex(m, threads=1, **o).fit(X, y)
    index = make(X, labels, method, beta=beta, cutoff=8, recall=0.9)
    lo, hi = all_windows(n)
    Q = rng.standard_normal((len(lo), 5)).astype(np.float32)
    for k in (1, 7):
        # a beam as wide as the node makes a graph exact; the planner chooses its own, so it is held to scans here
        ids, distances = index.search(Q, lo, hi, k, beam=n, recall=1.0)
        right = [exact(X, labels, q, a, b, k) for q, a, b in zip(Q, lo, hi, strict=True)]
        assert np.allclose(distances, [d for _, d in right], atol=1e-5)
        assert np.array_equal(ids, [i for i, _ in right])


@pytest.mark.parametrize("method", SINGLE)
def test_ties_in_labels_never_split_and_duplicates_are_all_found(method):
    rng = np.random.default_rng(2)
    X = np.repeat(rng.standard_normal((15, 3)).astype(np.float32), 4, axis=0)
    labels = rng.integers(0, 6, 60)
    index = exact_index(X, labels, method, cutoff=4)
    for lo, hi in itertools.product(range(-1, 7), repeat=2):
        if lo <= hi:
            q = X[:1] + 0.1
            ids, distances = index.search(q, lo, hi, 60)
            right, far = exact(X, labels, q[0], lo, hi, 60)
            found = ids[0][ids[0] >= 0]
            assert len(set(found.tolist())) == len(found)  # nothing twice
            assert set(found.tolist()) == set(right[right >= 0].tolist())
            assert np.allclose(distances[0], far, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_missing_is_minus_one_at_infinity(method):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((300, 4)).astype(np.float32)
    index = WindowIndex(method, cutoff=40, R=8, L=16).fit(X, np.arange(300))
    ids, distances = index.search(X[:3], [10, 400, 5], [13, 500, 5], 10)
    assert sorted(ids[0][:4].tolist()) == [10, 11, 12, 13]
    assert (ids[0][4:] == -1).all()
    assert np.isinf(distances[0][4:]).all()
    assert (ids[1] == -1).all()
    assert np.isinf(distances[1]).all()
    assert ids[2].tolist() == [5] + [-1] * 9


@pytest.mark.parametrize("method", METHODS)
def test_the_whole_range_finds_the_largest_label(method):
    X = np.random.default_rng(4).standard_normal((200, 4)).astype(np.float32)
    index = WindowIndex(method, cutoff=40, R=8, L=16).fit(X, np.arange(200))
    assert index.search(X[-1:], -np.inf, np.inf, 1, beam=200, recall=1.0)[0][0, 0] == 199
    assert index.search(X[-1:], 0, 199, 1, beam=200, recall=1.0)[0][0, 0] == 199
    assert index.search(X[-1:], 0, 199, 1, closed="left")[0][0, 0] != 199


@pytest.mark.parametrize("method", ["tree", "super_postfilter"])
def test_shuffling_the_rows_changes_ids_alone(method):
    rng = np.random.default_rng(5)
    work = synthetic.mixture(rng, 800, 20, d=12, centres=10)
    order = rng.permutation(800)
    lo, hi = synthetic.windows(work.labels, 0.2, 20, rng)
    a = WindowIndex(method, cutoff=50, R=8, L=16).fit(work.X, work.labels).search(work.queries, lo, hi)
    b = WindowIndex(method, cutoff=50, R=8, L=16).fit(work.X[order], work.labels[order]).search(work.queries, lo, hi)
    assert np.array_equal(a[0], order[b[0]])
    assert np.array_equal(a[1], b[1])


@pytest.mark.parametrize("method", METHODS)
def test_angular_is_one_minus_cosine_and_blind_to_length(method):
    rng = np.random.default_rng(6)
    X = rng.standard_normal((150, 6)) * rng.uniform(0.1, 10, (150, 1))
    index = exact_index(X, np.arange(150), method, "angular", cutoff=20)
    Q = rng.standard_normal((10, 6))
    ids, distances = index.search(Q, 20, 120, 5, recall=1.0)
    right = [exact(X, np.arange(150), q, 20, 120, 5, "angular") for q in Q]
    assert np.array_equal(ids, [i for i, _ in right])
    assert np.allclose(distances, [d for _, d in right], atol=1e-5)
    assert np.array_equal(ids, index.search(Q * 7, 20, 120, 5, recall=1.0)[0])


@pytest.mark.parametrize("method", METHODS)
def test_answers_do_not_depend_on_threads_or_on_the_batch(method):
    rng = np.random.default_rng(7)
    work = synthetic.mixture(rng, 1500, 40, d=12, centres=10)
    lo, hi = synthetic.windows(work.labels, 0.1, 40, rng)
    options = {"cutoff": 100, "R": 8, "L": 16}
    one = WindowIndex(method, threads=1, **options).fit(work.X, work.labels)
    many = WindowIndex(method, threads=3, **options).fit(work.X, work.labels)
    assert np.array_equal(one.segments[0].G, many.segments[0].G)
    whole = one.search(work.queries, lo, hi)
    assert all(np.array_equal(a, b) for a, b in zip(whole, many.search(work.queries, lo, hi), strict=True))
    many.threads = 2
    assert many.segments[0].threads == 2
    assert all(np.array_equal(a, b) for a, b in zip(whole, many.search(work.queries, lo, hi), strict=True))
    single = [one.search(work.queries[i : i + 1], lo[i], hi[i])[0][0] for i in range(40)]
    assert np.array_equal(whole[0], single)


def test_a_postfilter_that_meets_no_match_ends_in_a_scan():
    """Two far clusters, and a window on the one that the beam of the other never leaves (trap T6)."""
    rng = np.random.default_rng(8)
    X = np.concatenate([rng.standard_normal((300, 4)), 1000 + rng.standard_normal((300, 4))]).astype(np.float32)
    labels = np.repeat([0, 1], 300)
    index = WindowIndex("postfilter", R=8, L=16).fit(X, labels)
    ids, _, counts = index.search_counted(X[:1], 1, 1, 10, beam=10, max_beam=40)
    assert (ids >= 300).all()
    assert counts.distances[0] >= 300
    right, _ = exact(X, labels, X[0], 1, 1, 10)
    assert set(ids[0].tolist()) == set(right.tolist())


# ---- plans -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planned():
    rng = np.random.default_rng(9)
    return WindowIndex(R=8, L=8, cutoff=64, recall=0.9).fit(rng.standard_normal((1024, 3)), np.arange(1024))


def ranges(plan):
    return sorted(piece["ranks"] for piece in plan["pieces"])


@pytest.mark.parametrize("method", SINGLE)
@pytest.mark.parametrize("window", [(0, 1023), (100, 105), (200, 700), (511, 512), (37, 900), (500, 530)])
def test_pieces_are_disjoint_and_make_up_the_window(planned, method, window):
    plan = planned.explain(*window, method=method)
    covered = [x for a, b in ranges(plan) for x in range(a, b)]
    assert sorted(covered) == list(range(window[0], window[1] + 1))
    assert len(set(covered)) == len(covered)
    for piece in plan["pieces"]:
        if piece["do"] == "graph":
            assert piece["node"][0] <= piece["ranks"][0]
            assert piece["ranks"][1] <= piece["node"][1]


def test_tiny_windows_are_scanned_by_optimized_and_super_postfiltering(planned):
    for method in ("optimized_postfilter", "super_postfilter"):
        assert [piece["do"] for piece in planned.explain(500, 514, method=method)["pieces"]] == ["scan"]  # 4 * 15 < 64


def test_a_window_across_the_middle_blows_up_optimized_postfiltering_and_not_super(planned):
    window = (511, 560)
    size = lambda method: np.diff(planned.explain(*window, method=method)["pieces"][0]["node"])[0]  # noqa: E731
    assert size("optimized_postfilter") == 1024
    assert size("super_postfilter") <= 4 * 50


def test_three_split_has_one_center_and_two_postfilters(planned):
    plan = planned.explain(100, 900, method="three_split")
    center = [p for p in plan["pieces"] if p["ranks"] == p.get("node")]
    assert [p["node"] for p in center] == [(256, 512), (512, 768)]
    assert ranges(plan) == [(100, 256), (256, 512), (512, 768), (768, 901)]


def test_the_ratio_rule_as_intended_and_as_the_official_code_has_it(planned):
    def does(**how):
        return [piece["do"] for piece in planned.explain(505, 545, method="optimized_postfilter", **how)["pieces"]]

    assert does() == ["graph"]  # 41 points in the root's 1024
    assert does(min_ratio=0.05) == ["scan"]  # 41 / 1024 < 0.05: tree search, and no node fits
    assert does(min_ratio=0.03) == ["graph"]
    assert does(min_ratio=0.03, compat="official") == ["scan"]  # it asks whether |B| / w >= 0.03, which always holds


def test_unions_of_windows_equal_the_scan_of_their_union():
    rng = np.random.default_rng(10)
    X, labels = rng.standard_normal((400, 4)).astype(np.float32), rng.integers(0, 100, 400)
    index = exact_index(X, labels, "tree", cutoff=32)
    lo, hi = np.array([[10, 50, 12], [0, 0, 90]]), np.array([[20, 60, 30], [5, 5, 99]])
    ids, distances = index.search(X[:2], lo, hi, 20)
    for i in range(2):
        inside = np.any([(labels >= a) & (labels <= b) for a, b in zip(lo[i], hi[i], strict=True)], axis=0)
        d = np.where(inside, np.linalg.norm(X - X[i], axis=1), np.inf)
        assert np.allclose(distances[i], np.sort(d)[:20], atol=1e-6)
        assert set(ids[i].tolist()) == set(np.argsort(d)[:20].tolist())
