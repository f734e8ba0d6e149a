"""Windows over labels, and the ranks they are: everything after this file works on ranks.

Sec. 3: with the labels sorted, a window is the rank interval [s, e), s = #{label < lo} and e = #{label <= hi} where it is
closed. Ranks are exact: bounds are compared with labels in the labels' own type, so int64 stays int64 (a float32
timestamp is off by two minutes) and ties never split.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from common.files import digest, sha256_of_arrays

CLOSED = ("both", "left", "right", "neither")


def as_labels(labels: Any) -> np.ndarray:
    """Labels in the type they are kept in: int64, uint64, float64 or datetime64. Raises ValueError for anything else.

    labels: (n,) of any real dtype (bool to float64), datetime64 or timedelta64; NaN and NaT are refused.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"labels must be one number a row, shape (n,), not {labels.shape}")
    kind = labels.dtype.kind
    if kind in "mM":
        if np.isnat(labels).any():
            raise ValueError("labels hold NaT: drop those rows or give them a date")
        return labels
    if kind in "bi":
        return labels.astype(np.int64)
    if kind == "u":
        return labels.astype(np.uint64 if labels.dtype.itemsize == 8 else np.int64)
    if kind == "f":
        if labels.dtype.itemsize > 8:
            raise ValueError(f"labels are {labels.dtype}: give float64")
        if np.isnan(labels).any():
            raise ValueError("labels hold NaN: drop those rows or give them a value")
        return labels.astype(np.float64)
    raise ValueError(f"labels are {labels.dtype}: give real numbers or datetime64")


def rank_interval(labels_sorted: np.ndarray, lo: Any, hi: Any, closed: str = "both") -> tuple[np.ndarray, np.ndarray]:
    """Rank intervals [s, e) of windows: the labels in the window are exactly labels_sorted[s:e].

    labels_sorted: (n,) ascending; lo, hi: scalars or arrays that broadcast, -inf and inf for no bound; closed: which ends
    belong to the window, both | left | right | neither. Returns s, e: int64 of the broadcast shape, s <= e; a window
    with lo > hi is empty. Raises ValueError for NaN, for bounds of another kind than the labels, for another `closed`.
    """
    if closed not in CLOSED:
        raise ValueError(f"closed is {closed!r}: choose {', '.join(CLOSED)}")
    labels = np.asarray(labels_sorted)
    if labels.dtype in (np.int64, np.uint64, np.float64) or labels.dtype.kind in "mM":
        as_labels(labels[-1:])  # in order, a NaN is last: no need to read all of them for each search
    else:
        labels = as_labels(labels)
    lo, hi = np.broadcast_arrays(np.asarray(lo), np.asarray(hi))
    s = _ranks(labels, lo, "lo", after_equal=closed not in ("both", "left"))
    e = _ranks(labels, hi, "hi", after_equal=closed in ("both", "right"))
    return s, np.maximum(s, e)


def _ranks(labels: np.ndarray, bound: np.ndarray, name: str, after_equal: bool) -> np.ndarray:
    """How many labels come before each bound; equal ones count where `after_equal`."""
    floor, exact, below, above = _in_labels_type(labels, bound, name)
    # a bound between two values of the labels' type stands after its floor, whatever `closed` says
    ranks = np.searchsorted(labels, floor, "right" if after_equal or not exact.all() else "left").astype(np.int64)
    if not after_equal and not exact.all():
        ranks = np.where(exact, np.searchsorted(labels, floor, "left"), ranks)
    return np.where(below, 0, np.where(above, len(labels), ranks))


def _in_labels_type(labels: np.ndarray, bound: np.ndarray, name: str) -> tuple[np.ndarray, ...]:
    """(floor of each bound in the labels' type, whether it is exact, whether it lies below, above all that type's values)."""
    kind, none = bound.dtype.kind, np.zeros(bound.shape, bool)
    if (kind in "mM" and np.isnat(bound).any()) or (kind == "f" and np.isnan(bound).any()):
        raise ValueError(f"{name} holds NaN: use -inf or inf for a window without a bound")
    if labels.dtype.kind in "mM":
        if kind == "f" and np.isinf(bound).all():
            return np.zeros(bound.shape, labels.dtype), ~none, bound < 0, bound > 0
        if kind != labels.dtype.kind:
            raise ValueError(
                f"{name} is {bound.dtype} and the labels are {labels.dtype}: give bounds of the labels' kind"
            )
        floor = bound.astype(labels.dtype)
        floor = np.where(floor > bound, floor - np.ones((), f"m8[{np.datetime_data(labels.dtype)[0]}]"), floor)
        return floor, floor == bound, none, none
    if kind not in "biuf":
        raise ValueError(f"{name} is {bound.dtype} and the labels are {labels.dtype}: give bounds of the labels' kind")
    if labels.dtype.kind == "f":
        exact = bound.astype(np.float64)
        if kind in "iu":  # an integer beyond 2^53 may fall between two doubles
            rounded = np.array([int(x) for x in exact.ravel()], object).reshape(exact.shape)
            high = (rounded > bound.astype(object)).astype(bool)
            exact = np.where(high, np.nextafter(exact, -np.inf), exact)
            return exact, (rounded == bound.astype(object)).astype(bool), none, none
        return exact, ~none, none, none
    limits = np.iinfo(labels.dtype)
    flat = [_floor(x) for x in bound.ravel().tolist()]  # Python integers have no limits
    floor = np.array([min(max(x, limits.min), limits.max) for x, _ in flat], labels.dtype).reshape(bound.shape)
    exact = np.array([e for _, e in flat], bool).reshape(bound.shape)
    below = np.array([x < limits.min for x, _ in flat], bool).reshape(bound.shape)
    above = np.array([x > limits.max for x, _ in flat], bool).reshape(bound.shape)
    return floor, exact, below, above


def _floor(x: float | int) -> tuple[int, bool]:
    """(floor of x, whether x is whole); infinities become integers beyond every type."""
    if isinstance(x, int):
        return x, True
    if x in (np.inf, -np.inf):
        return (1 if x > 0 else -1) << 70, True
    whole = int(np.floor(x))
    return whole, whole == x


def disjoint(s: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same unions of rank intervals, row by row, as intervals that do not overlap. s, e: (nq, m) int64."""
    order = np.argsort(s, axis=1, kind="stable")
    s, e = np.take_along_axis(s, order, 1), np.take_along_axis(e, order, 1)
    covered = np.maximum.accumulate(e, axis=1)
    s = s.copy()
    s[:, 1:] = np.maximum(s[:, 1:], covered[:, :-1])
    return s, np.maximum(s, e)


def content_hash(X: np.ndarray, labels: np.ndarray) -> str:
    """The sha256 of points and their labels."""
    numbers = labels.view(np.int64) if labels.dtype.kind in "mM" else labels  # dates have no buffer of their own
    return digest([sha256_of_arrays(X, numbers), labels.dtype.str])
