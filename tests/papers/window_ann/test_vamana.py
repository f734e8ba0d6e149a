"""The graph: RobustPrune's invariant, exactness where it must be exact, reachability, determinism (oracles 6 to 8, T4, T9, T12)."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.window_ann import metrics, synthetic, vamana
from papers.window_ann.beam import Place, as_key, insert, key_distance, key_id
from papers.window_ann.twins import NONE, representatives


def cloud(n, d=8, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def prune(X, p, R, alpha, among=None):
    """robust_prune of p among all other points (or some), as a list of ids."""
    among = [i for i in range(len(X)) if i != p] if among is None else among
    keys = np.sort(np.array([as_key(np.float32(((X[i] - X[p]) ** 2).sum()), i) for i in among], np.uint64))
    kept = np.full(R, -1, np.int32)
    degree = vamana.robust_prune(X, 0, p, keys, len(keys), np.float32(alpha * alpha), vamana.NO_HUBS, kept)
    return kept[:degree].tolist()


def reachable(graph):
    seen, todo = {graph.entry}, [graph.entry]
    while todo:
        for v in graph.neighbors[todo.pop()]:
            if v >= 0 and v not in seen:
                seen.add(int(v))
                todo.append(int(v))
    return seen


# ---- candidates ------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.floats(0, 2.0**100, width=32), st.integers(0, 2**30))
def test_a_key_gives_back_its_distance_and_id(distance, i):
    key = np.uint64(as_key(np.float32(distance), i))
    assert key_distance(key) == np.float32(distance)
    assert key_id(key) == i


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 9, width=32), st.integers(0, 50)), unique=True, max_size=30), st.integers(1, 10))
def test_insertion_keeps_the_smallest_by_distance_then_id(pairs, capacity):
    keys, size = np.empty(capacity + 1, np.uint64), 0
    for distance, i in pairs:
        size, _ = insert(keys, size, capacity, np.uint64(as_key(np.float32(distance), i)))
    assert [(float(key_distance(k)), int(key_id(k))) for k in keys[:size]] == sorted(pairs)[:capacity]


# ---- RobustPrune -----------------------------------------------------------------------------------------------------


def test_four_collinear_points_by_hand():
    X = np.array([[0.0], [1.0], [2.2], [4.0]], np.float32)
    # from 0: 1 is kept and hides 2 (1.2 <= 2.2) and 3 (3 <= 4)
    assert prune(X, 0, 3, 1.0) == [1]
    # alpha 1.5: 1.5 * 1.2 = 1.8 <= 2.2 hides 2; 1.5 * 3 = 4.5 > 4 keeps 3
    assert prune(X, 0, 3, 1.5) == [1, 3]
    # alpha 2: 2.4 > 2.2 keeps 2, which hides nothing more than it must: 2 * 1.8 = 3.6 <= 4 hides 3
    assert prune(X, 0, 3, 2.0) == [1, 2]


def test_alpha_acts_on_true_distances():
    X = np.array([[0.0], [1.0], [2.2]], np.float32)
    assert prune(X, 0, 2, 1.8) == [
        1
    ]  # 1.8 * 1.2 = 2.16 <= 2.2; on squared distances 1.8 * 1.44 = 2.59 <= 4.84 also hides
    assert prune(X, 0, 2, 1.84) == [1, 2]  # 1.84 * 1.2 = 2.21 > 2.2; on squared ones it would still hide (2.65 <= 4.84)


def test_a_build_too_applies_alpha_to_true_distances():
    X = np.array([[0.0], [1.0], [2.2]], np.float32)
    linked = lambda alpha: any(2 in vamana.build(X, R=2, L=3, alpha=alpha, seed=seed).neighbors[0] for seed in range(8))  # noqa: E731
    assert not linked(1.8)
    assert linked(1.84)  # where 2 enters before 0; on squared distances it would stay hidden


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(1.0, 2.0), st.integers(1, 12))
def test_no_kept_point_hides_a_later_one_and_the_degree_is_bounded(seed, alpha, R):
    X = cloud(30, 4, seed)
    kept = prune(X, 0, R, alpha)
    d = lambda i, j: float(np.linalg.norm(X[i].astype(float) - X[j]))  # noqa: E731
    assert len(kept) <= R
    assert len(set(kept)) == len(kept)
    for i, a in enumerate(kept):
        for b in kept[i + 1 :]:
            assert alpha * d(a, b) > d(0, b) * (1 - 1e-5)
    assert kept[0] == min(range(1, 30), key=lambda j: d(0, j))


def test_the_degree_does_not_fall_as_alpha_grows():
    X = cloud(200, 6)
    degrees = [np.mean([len(prune(X, p, 200, alpha)) for p in range(20)]) for alpha in (1.0, 1.2, 1.5, 2.0)]
    assert degrees == sorted(degrees)
    assert degrees[0] < degrees[-1]


# ---- build -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 17, 400])
def test_edges_are_distinct_other_points_at_most_R_nearest_first(n):
    X = cloud(n)
    graph = vamana.build(X, R=6, L=12)
    for p, row in enumerate(graph.neighbors):
        edges = row[row >= 0]
        assert (row[len(edges) :] == -1).all()
        assert len(set(edges.tolist())) == len(edges)
        assert p not in edges
        distance = ((X[edges] - X[p]) ** 2).sum(1)
        assert (np.diff(distance) >= -1e-5).all()


@pytest.mark.parametrize("start", ["medoid", "first"])
@pytest.mark.parametrize(
    "X",
    [
        cloud(500),
        np.repeat(cloud(20), 30, axis=0),
        np.zeros((50, 4), np.float32),
        np.concatenate([cloud(100), 1000 + cloud(100)]),
    ],
)
def test_every_distinct_point_is_reachable_from_the_entry_even_in_far_clusters(X, start):
    graph = vamana.build(X, R=5, L=10, start=start)
    assert reachable(graph) == set(np.flatnonzero(representatives(graph.twins, 0, len(X))))
    if start == "first":
        assert graph.entry == 0


def test_a_seed_gives_one_graph_on_any_number_of_threads():
    X = cloud(700)
    one = vamana.build(X, R=8, L=16, seed=3).neighbors
    G = np.empty((700, 8), np.int32)
    with ThreadPoolExecutor(3) as pool:
        place = Place(0, 700, 0, vamana.medoid(X))
        vamana.build_into(X, G, place, NONE, 16, 1.0, np.random.default_rng(3), pool.map, 3)
    assert np.array_equal(one, G)
    assert not np.array_equal(one, vamana.build(X, R=8, L=16, seed=4).neighbors)


def test_a_graph_inside_shared_arrays_equals_the_graph_by_itself():
    X = cloud(300)
    G = np.full((500, 8), 7, np.int32)
    place = Place(100, 150, 40, vamana.medoid(X[100:250]))
    vamana.build_into(X, G, place, NONE, 16, 1.0, np.random.default_rng(0))
    assert np.array_equal(G[40:190], vamana.build(X[100:250], R=8, L=16).neighbors)
    assert (G[:40] == 7).all()
    assert (G[190:] == 7).all()


@pytest.mark.parametrize("options", [{"R": 0}, {"L": 0}, {"alpha": 0.9}, {"alpha": float("nan")}, {"start": "middle"}])
def test_build_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match=r"R is|alpha is|start is"):
        vamana.build(cloud(10), **options)


# ---- search ----------------------------------------------------------------------------------------------------------


def test_a_beam_as_wide_as_the_data_is_exact_and_looks_at_each_point_once():
    X, Q = cloud(300), cloud(20, seed=1)
    ids, distances, computed = vamana.search(vamana.build(X, R=8, L=16), X, Q, 300, 10)
    true = np.linalg.norm(X[None] - Q[:, None], axis=2)
    assert np.array_equal(ids, np.argsort(true, axis=1)[:, :10])
    assert np.allclose(distances, np.sort(true, axis=1)[:, :10], rtol=1e-5)
    assert (computed == 300).all()


def test_recall_rises_with_the_beam_and_cost_too():
    work = synthetic.mixture(np.random.default_rng(0), 3000, 100, d=24, centres=30)
    graph = vamana.build(work.X, R=16, L=32)
    true = np.argsort(((work.X[None] - work.queries[:, None]) ** 2).sum(2), axis=1)[:, :10]
    found = [
        (metrics.recall(ids, true), cost.mean())
        for ids, _, cost in (vamana.search(graph, work.X, work.queries, b, 10) for b in (10, 20, 40, 80))
    ]
    recall, cost = zip(*found, strict=True)
    assert list(recall) == sorted(recall)
    assert recall[-1] > 0.95
    assert list(cost) == sorted(cost)
    assert cost[-1] < 1500


def test_the_cut_drops_far_candidates_and_never_the_k_nearest():
    X, Q = cloud(800), cloud(30, seed=1)
    graph = vamana.build(X, R=10, L=20)
    full, _, cost = vamana.search(graph, X, Q, 100, 5)
    cut, _, less = vamana.search(graph, X, Q, 100, 5, cut=1.35)
    assert less.mean() < cost.mean()
    assert metrics.recall(cut, full) > 0.8


def test_a_graph_is_not_built_of_nan_nor_searched_for_other_dimensions():
    X = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    with pytest.raises(ValueError, match="Q has shape"):
        vamana.search(vamana.build(X), X, np.zeros((1, 5)), 10, 3)
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        vamana.build(X)


@pytest.mark.parametrize("k", [0, 11])
def test_k_outside_the_data_is_refused(k):
    X = cloud(10)
    with pytest.raises(ValueError, match="k is"):
        vamana.search(vamana.build(X, R=4, L=8), X, X, 10, k)
