"""The tree and the overlapping rows against their definitions, exhaustively where n is small (oracles 2 to 5)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.window_ann.overlap import OverlappingRows, tradeoff
from papers.window_ann.structure import survey
from papers.window_ann.tree import Tree

trees = st.builds(
    lambda n, beta, extra: Tree(n, beta, beta + extra), st.integers(1, 300), st.integers(2, 6), st.integers(0, 20)
)


@settings(deadline=None)
@given(trees)
def test_every_row_partitions_all_ranks_into_beta_to_the_row_buckets_of_nearly_one_size(tree):
    for r in range(tree.rows):
        row = tree.row(r)
        sizes = np.diff(row)
        assert row[0] == 0
        assert row[-1] == tree.n
        assert len(sizes) == tree.beta**r
        assert sizes.max() - sizes.min() <= 1
        assert sizes[0] == sizes.max()
        assert sizes.min() >= 1


@settings(deadline=None)
@given(trees)
def test_children_of_a_bucket_are_its_beta_parts_in_the_next_row(tree):
    for r in range(tree.rows - 1):
        assert np.array_equal(tree.row(r + 1)[:: tree.beta], tree.row(r))


@settings(deadline=None)
@given(trees)
def test_the_number_of_rows_has_a_closed_form(tree):
    r = 0
    while -(-tree.n // tree.beta**r) > tree.cutoff:
        r += 1
    assert tree.rows == r + 1


def test_a_million_points_make_eleven_rows_and_2047_nodes():
    tree = Tree(1_000_000, 2, 1000)
    assert tree.rows == 11
    assert len(tree.buckets()) == 2047
    assert [int(np.diff(Tree(10_000, 2, 1000).row(r))[0]) for r in range(5)] == [10000, 5000, 2500, 1250, 625]


@settings(deadline=None)
@given(trees)
def test_node_numbers_go_row_by_row(tree):
    numbers = [tree.node(r, j) for r in range(tree.rows) for j in range(tree.beta**r)]
    assert numbers == list(range(len(tree.buckets())))
    assert all(tree.node(*tree.row_bucket(i)) == i for i in numbers)


def slow_decompose(tree, s, e):
    """Maximal nodes inside [s, e), from the definition: inside it, and the parent is not."""
    found = []
    for r in range(tree.rows):
        row = tree.row(r)
        for j in range(len(row) - 1):
            if s <= row[j] and row[j + 1] <= e:
                up = tree.row(r - 1)[j // tree.beta : j // tree.beta + 2] if r else None
                if r == 0 or not (s <= up[0] and up[1] <= e):
                    found.append((r, j))
    return found


@pytest.mark.parametrize(("n", "beta", "cutoff"), [(37, 2, 4), (60, 3, 5), (64, 2, 2), (50, 5, 6), (9, 2, 20)])
def test_every_window_decomposes_into_its_maximal_nodes_and_two_short_ends(n, beta, cutoff):
    tree = Tree(n, beta, cutoff)
    for s in range(n + 1):
        for e in range(s, n + 1):
            nodes, left, right = tree.decompose(s, e)
            assert sorted(nodes) == sorted(slow_decompose(tree, s, e)) if s < e else nodes == []
            parts = [(int(tree.row(r)[j]), int(tree.row(r)[j + 1])) for r, j in nodes] + [left, right]
            covered = sorted(x for a, b in parts for x in range(a, b))
            assert covered == list(range(s, e))
            if nodes:
                assert max(left[1] - left[0], right[1] - right[0]) < int(np.diff(tree.row(tree.rows - 1)).max())
                top = min(r for r, _ in nodes)
                assert len(nodes) <= 2 * (beta - 1) * (tree.rows - 1 - top) + 2 * (beta - 1)


@pytest.mark.parametrize(("n", "beta", "cutoff"), [(37, 2, 4), (60, 3, 5)])
def test_the_smallest_node_contains_the_window_and_no_child_does(n, beta, cutoff):
    tree = Tree(n, beta, cutoff)
    for s in range(n):
        for e in range(s + 1, n + 1):
            r, j = tree.smallest(s, e)
            row = tree.row(r)
            assert row[j] <= s
            assert e <= row[j + 1]
            if r + 1 < tree.rows:
                below = tree.row(r + 1)
                assert not any(below[i] <= s and e <= below[i + 1] for i in range(len(below) - 1))


@pytest.mark.parametrize(("n", "beta", "cutoff"), [(0, 2, 10), (10, 1, 10), (10, 2.5, 10), (10, 4, 3)])
def test_a_tree_that_cannot_be_is_refused(n, beta, cutoff):
    with pytest.raises(ValueError, match=r"n is|beta is|cutoff is"):
        Tree(n, beta, cutoff)


def test_decompose_refuses_ranks_outside():
    with pytest.raises(ValueError, match="inside"):
        Tree(10, 2, 4).decompose(3, 11)


# ---- overlapping rows ------------------------------------------------------------------------------------------------


def test_twenty_points_in_buckets_of_three_shifted_by_two_are_ten_buckets():
    rows = OverlappingRows(20, beta=20 / 3, cutoff=3, shift=0.5)
    assert (rows.size[1], rows.shift[1], rows.count[1]) == (3, 2, 10)


overlapping = st.builds(
    OverlappingRows,
    st.integers(1, 90),
    st.sampled_from([1.3, 2.0, 3.0]),
    st.integers(1, 12),
    st.sampled_from([0.25, 0.5, 0.8]),
)


@settings(max_examples=40, deadline=None)
@given(overlapping)
def test_every_window_lies_in_the_bucket_chosen_and_in_no_lower_row(rows):
    buckets = rows.buckets()
    for s in range(rows.n):
        for e in range(s + 1, rows.n + 1):
            row, j = rows.smallest(s, e)
            start, end = buckets[rows.first[row] + j]
            assert start <= s
            assert e <= end
            lower = buckets[rows.first[row + 1] :] if row + 1 < rows.rows else np.empty((0, 2))
            assert not ((lower[:, 0] <= s) & (e <= lower[:, 1])).any()


@settings(max_examples=40, deadline=None)
@given(overlapping)
def test_a_row_contains_every_window_up_to_its_size_less_its_shift_plus_one(rows):
    buckets = rows.buckets()
    for row in range(1, rows.rows):
        mine = buckets[rows.first[row] : rows.first[row + 1]]
        w = min(int(rows.size[row] - rows.shift[row] + 1), rows.n)
        for s in range(rows.n - w + 1):
            assert ((mine[:, 0] <= s) & (s + w <= mine[:, 1])).any()


@pytest.mark.parametrize(("beta", "shift"), [(2, 0.5), (2, 0.25), (4, 0.5)])
def test_blowup_stays_under_beta_over_one_minus_sigma_above_the_bottom_width(beta, shift):
    found = survey(512, 32, beta, shift, 4.5, 10_000, 64)
    assert found["covered_share"] == found["inside_share"] == 1.0
    assert found["blowup_share"] <= 1.0  # against the bound with its rounding written out
    assert found["max_blowup"] < found["bound"] * 1.1
    assert found["max_nodes"] <= found["max_nodes_bound"]


def test_super_stores_about_twice_what_the_tree_does():
    rows, tree = OverlappingRows(1_000_000, 2, 1000), Tree(1_000_000, 2, 1000)
    assert 1.8 < rows.stored / (1_000_000 * tree.rows) < 2.0


def test_the_tradeoff_is_the_minimum_over_a_fine_grid():
    beta, shift, stored = tradeoff(4.0, 1_000_000)
    grid = np.linspace(1.01, 3.99, 3000)
    cost = 1 / ((1 - grid / 4) * np.log(grid))
    assert beta == pytest.approx(grid[np.argmin(cost)], abs=2e-3)
    assert beta / (1 - shift) == pytest.approx(4.0)
    assert stored == pytest.approx(1e6 * np.log(1000) * cost.min(), rel=1e-5)


def test_sizes_fall_even_where_beta_is_close_to_one():
    assert (np.diff(OverlappingRows(50, 1.01, 3).size) < 0).all()


@pytest.mark.parametrize(
    ("options", "word"),
    [({"beta": 1.0}, "beta"), ({"shift": 1.0}, "shift"), ({"shift": 0.0}, "shift"), ({"cutoff": 0}, "cutoff")],
)
def test_rows_that_cannot_be_are_refused(options, word):
    with pytest.raises(ValueError, match=word):
        OverlappingRows(100, **options)
