"""Windows are exact rank intervals: ties, open ends, integers beyond 2^53, dates, infinities (traps T1, T3, T10)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.window_ann.windows import CLOSED, as_labels, disjoint, rank_interval

INSIDE = {
    "both": lambda x, lo, hi: lo <= x <= hi,
    "left": lambda x, lo, hi: lo <= x < hi,
    "right": lambda x, lo, hi: lo < x <= hi,
    "neither": lambda x, lo, hi: lo < x < hi,
}
small = st.integers(-4, 4)
bound = st.one_of(small, st.sampled_from([-1.5, 0.5, 2.25, -np.inf, np.inf]))


def members(labels, lo, hi, closed):
    return [x for x in labels.tolist() if INSIDE[closed](x, lo, hi)]


@settings(deadline=None)
@given(
    st.lists(small, max_size=12),
    bound,
    bound,
    st.sampled_from(CLOSED),
    st.sampled_from([np.int64, np.float64, np.float32, np.int8, np.uint8]),
)
def test_the_interval_holds_exactly_the_labels_inside(values, lo, hi, closed, dtype):
    labels = np.sort(np.array(values)).astype(dtype) if dtype != np.uint8 else np.sort(np.abs(values)).astype(dtype)
    s, e = rank_interval(labels, lo, hi, closed)
    assert labels[int(s) : int(e)].tolist() == members(labels, lo, hi, closed)


def test_a_label_equal_to_a_bound_is_inside_a_closed_window_with_all_its_ties():
    labels = np.array([1, 2, 2, 2, 3])
    assert tuple(map(int, rank_interval(labels, 2, 2))) == (1, 4)
    assert tuple(map(int, rank_interval(labels, 1, 2, "left"))) == (0, 1)
    assert tuple(map(int, rank_interval(labels, 2, 3, "right"))) == (4, 5)


def test_integers_beyond_two_to_the_53_are_told_apart():
    base = 2**60
    labels = base + np.arange(5)
    assert tuple(map(int, rank_interval(labels, base + 1, base + 3))) == (1, 4)
    assert tuple(map(int, rank_interval(labels, base + 1, base + 3, "neither"))) == (2, 3)
    assert int(rank_interval(labels, np.float64(base), np.inf)[0]) == 0


def test_integer_bounds_on_float_labels_do_not_round():
    labels = np.array([2.0**53, 2.0**53 + 2])
    s, e = rank_interval(labels, 2**53 + 1, 2**53 + 1)
    assert int(s) == int(e) == 1  # 2^53 + 1 is no double: it lies between the two


def test_unix_timestamps_keep_their_seconds():
    labels = 1_600_000_000 + np.arange(300)
    s, e = rank_interval(labels, 1_600_000_010, 1_600_000_019)
    assert (int(s), int(e)) == (10, 20)
    assert len(np.unique(labels.astype(np.float32))) < 10  # what float32 would make of them


def test_dates_take_finer_bounds_than_their_own():
    days = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], "M8[D]")
    noon = np.datetime64("2020-01-02T12:00")
    assert tuple(map(int, rank_interval(days, noon, noon + 24 * 60))) == (2, 3)
    assert tuple(map(int, rank_interval(days, np.datetime64("2020-01-02"), noon))) == (1, 2)
    before = np.array(["1969-12-30", "1969-12-31"], "M8[D]")
    assert tuple(map(int, rank_interval(before, np.datetime64("1969-12-30T12:00"), np.datetime64("1969-12-31")))) == (
        1,
        2,
    )
    assert tuple(map(int, rank_interval(days, -np.inf, np.inf))) == (0, 3)


def test_unsigned_labels_above_int64_are_exact():
    labels = np.array([2**63, 2**63 + 1, 2**64 - 1], np.uint64)
    assert tuple(map(int, rank_interval(labels, np.uint64(2**63 + 1), np.inf))) == (1, 3)
    assert tuple(map(int, rank_interval(labels, -5, np.uint64(2**63)))) == (0, 1)


def test_infinite_labels_belong_to_closed_unbounded_windows():
    labels = np.array([-np.inf, 0.0, np.inf])
    assert tuple(map(int, rank_interval(labels, -np.inf, np.inf))) == (0, 3)
    assert tuple(map(int, rank_interval(labels, -np.inf, np.inf, "neither"))) == (1, 2)


def test_a_reversed_window_is_empty():
    s, e = rank_interval(np.arange(10), 7, 3)
    assert s == e


@pytest.mark.parametrize("labels", [[1.0, np.nan], np.array(["NaT"], "M8[s]"), ["a", "b"], [1j], [[1, 2]]])
def test_labels_that_are_no_numbers_are_refused(labels):
    with pytest.raises(ValueError, match="labels"):
        as_labels(labels)


@pytest.mark.parametrize(
    ("lo", "closed", "word"),
    [
        (np.nan, "both", "NaN"),
        (np.datetime64("2020-01-01"), "both", "kind"),
        ("a", "both", "kind"),
        (0, "open", "closed"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(lo, closed, word):
    with pytest.raises(ValueError, match=word):
        rank_interval(np.arange(3), lo, 2, closed)


def test_numbers_are_no_bounds_of_dates():
    with pytest.raises(ValueError, match="kind"):
        rank_interval(np.array(["2020-01-01"], "M8[D]"), 3, 4)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=6))
def test_a_union_becomes_disjoint_intervals_with_the_same_points(pairs):
    s = np.array([[min(p) for p in pairs]])
    e = np.array([[max(p) for p in pairs]])
    ds, de = disjoint(s, e)
    parts = [x for a, b in zip(ds[0], de[0], strict=True) for x in range(a, b)]
    assert len(parts) == len(set(parts))
    assert set(parts) == {x for a, b in zip(s[0], e[0], strict=True) for x in range(a, b)}
