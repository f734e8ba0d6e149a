"""Windows over labels, and the ranks they are: everything after this file works on ranks.

Sec. 3: with the labels sorted, a window is the rank interval [s, e), s = #{label < lo} and e = #{label <= hi} where it is
closed. Ranks are exact: bounds are compared with labels in the labels' own type, so int64 stays int64 (a float32
timestamp is off by two minutes), a date beyond the unit's range is beyond all labels, and ties never split.
"""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple

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
        if np.datetime_data(labels.dtype)[0] == "generic":
            raise ValueError(f"labels are {labels.dtype} without a unit: give one, datetime64[s] say")
        return labels.astype(labels.dtype.newbyteorder("="))
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


class Bounds(NamedTuple):
    """Bounds in the labels' type: floor, the largest value not above each; exact, whether it is the bound itself; below and
    above, bounds under and over every label there could be (open ends, too).
    """

    floor: np.ndarray
    exact: np.ndarray
    below: np.ndarray
    above: np.ndarray


def bounds(dtype: np.dtype, bound: Any, name: str) -> Bounds:
    """Bounds of windows in the labels' type, nothing rounded and nothing wrapped round; any shape.

    bound: a number, a date, None, or an array or list of those. None and NaT are an open end (`name` lo: no lower end, hi: no
    upper), as -inf and inf are. Raises ValueError for NaN and for what is not of the labels' kind.
    """
    given = bound if isinstance(bound, np.ndarray | np.generic) else _array(bound, name)
    given = np.asarray(given)
    if given.dtype == dtype and dtype.kind in "iu":
        none = np.zeros(given.shape, bool)
        return Bounds(given, ~none, none, none)
    if given.dtype.kind == "O":
        return _one_by_one(dtype, given, name)
    none = np.zeros(given.shape, bool)
    if given.dtype.kind == "f" and np.isnan(given).any():
        raise ValueError(f"{name} holds NaN: use None, -inf or inf for a window without a bound")
    if dtype.kind in "mM":
        return _dates(dtype, given, name)
    if given.dtype.kind not in "biuf":
        raise ValueError(f"{name} is {given.dtype} and the labels are {dtype}: give bounds of the labels' kind")
    if dtype.kind == "f":
        floor = np.asarray(given, np.float64)
        if given.dtype.kind not in "iu" or not given.size or np.abs(floor).max() < 2.0**53:
            return Bounds(floor, ~none, none, none)
        whole = np.array([int(x) for x in floor.ravel()], object).reshape(given.shape)  # may have been rounded
        wanted = np.array(given.ravel().tolist(), object).reshape(given.shape)
        floor = np.where(np.asarray(whole > wanted, bool), np.nextafter(floor, -np.inf), floor)
        return Bounds(floor, np.asarray(whole == wanted, bool), none, none)
    limits = np.iinfo(dtype)
    if given.dtype.kind == "f":
        low, whole = np.floor(given), np.floor(given) == given
        low = low.astype(np.float64)
        below, above = (
            low < float(limits.min),
            low >= float(limits.max),
        )  # the limit itself is rounded up to a power of two
    else:
        low, whole = given, ~none
        wide = (
            given if given.dtype.kind == dtype.kind else np.array(given.ravel().tolist(), object).reshape(given.shape)
        )
        below, above = np.asarray(wide < limits.min, bool), np.asarray(wide > limits.max, bool)
    inside = np.where(below | above, 0, low).astype(dtype)
    return Bounds(inside, whole, below, above)


def _array(bound: Any, name: str) -> np.ndarray:
    """Lists one by one: numpy would make floats of big integers beside an infinity."""
    if bound is None or not isinstance(bound, list | tuple):
        return np.asarray(bound) if bound is not None else np.array(None, object)
    try:
        plain = np.asarray(bound)
    except (ValueError, TypeError):
        plain = np.empty(0)
    if plain.size and plain.dtype.kind in "biumM":
        return plain
    found = np.array(bound, object)
    if any(isinstance(x, list | tuple) for x in found.ravel()):
        raise ValueError(f"{name} has rows of different lengths: give (nq,), or (nq, m) for unions")
    return found


def _one_by_one(dtype: np.dtype, given: np.ndarray, name: str) -> Bounds:
    out = Bounds(np.zeros(given.shape, dtype), *(np.zeros(given.shape, bool) for _ in range(3)))
    for i in np.ndindex(given.shape):
        x = given[i]
        if isinstance(x, int) and not isinstance(x, bool):  # of any size
            x = np.array(x) if -(2**63) <= x < 2**64 else np.array(float("inf") if x > 0 else float("-inf"))
        elif hasattr(x, "to_datetime64"):  # a pandas.Timestamp
            x = x.to_datetime64()
        elif isinstance(x, datetime.date | datetime.timedelta):
            x = np.timedelta64(x) if isinstance(x, datetime.timedelta) else np.datetime64(x)
        if x is None:
            one = Bounds(np.zeros((), dtype), np.True_, np.bool_(name == "lo"), np.bool_(name != "lo"))
        elif np.asarray(x).dtype.kind == "O":
            raise ValueError(f"{name} holds {x!r} and the labels are {dtype}: give bounds of the labels' kind")
        else:
            one = bounds(dtype, np.asarray(x), name)
        for array, value in zip(out, one, strict=True):
            array[i] = value
    return out


# how many of its parts a unit has: exact in integers, but for months and years, which have days of their own number
PARTS = {
    "W": 7,
    "D": 24,
    "h": 60,
    "m": 60,
    "s": 1000,
    "ms": 1000,
    "us": 1000,
    "ns": 1000,
    "ps": 1000,
    "fs": 1000,
    "as": 1,
}
UNITS = tuple(PARTS)


def _dates(dtype: np.dtype, given: np.ndarray, name: str) -> Bounds:
    none = np.zeros(given.shape, bool)
    if given.dtype.kind == "f" and np.isinf(given).all():
        return Bounds(np.zeros(given.shape, dtype), ~none, given < 0, given > 0)
    if given.dtype.kind != dtype.kind:
        raise ValueError(f"{name} is {given.dtype} and the labels are {dtype}: give bounds of the labels' kind")
    open_ = np.isnat(given)
    below, above = (open_, none) if name == "lo" else (none, open_)
    if given.dtype == dtype:
        return Bounds(given, ~none, below, above)
    unit, wanted = np.datetime_data(given.dtype), np.datetime_data(dtype)
    if unit[0] == "generic":  # a number of whatever the labels count
        return Bounds(given.view(np.int64).view(dtype), ~none, below, above)
    values = [0 if missing else v for v, missing in zip(given.view(np.int64).ravel().tolist(), open_.ravel().tolist(), strict=True)]  # fmt: skip
    found = [_in_unit(v, unit, wanted, dtype.kind) for v in values]
    limit = 2**63 - 1  # the least integer is NaT
    floor = np.array([min(max(x, -limit), limit) for x, _ in found], np.int64).reshape(given.shape).view(dtype)
    exact = np.array([whole for _, whole in found], bool).reshape(given.shape)
    below = below | np.array([x < -limit for x, _ in found], bool).reshape(given.shape)
    above = above | np.array([x > limit for x, _ in found], bool).reshape(given.shape)
    return Bounds(floor, exact, below, above)


def _in_unit(value: int, unit: tuple[str, int], wanted: tuple[str, int], kind: str) -> tuple[int, bool]:
    """(floor of a time in another unit, whether it is whole there), in integers of any size."""
    value *= unit[1]
    name, target = unit[0], wanted[0]
    whole = True
    months = {"Y": 12, "M": 1}
    if name in months and target in months:
        value, rest = divmod(value * months[name], months[target] * wanted[1])
        return value, rest == 0
    if (name in months or target in months) and kind == "m":
        raise ValueError("months and years have no fixed length: give time differences in one unit")
    if name in months:  # the first day of the month
        value, name = _days(value * months[name]), "D"
    if target in months:
        value, whole = _in_unit(value, (name, 1), ("D", 1), kind)
        month = _month(value)
        whole = whole and _days(month) == value
        value, rest = divmod(month, months[target] * wanted[1])
        return value, whole and rest == 0
    i, j = UNITS.index(name), UNITS.index(target)
    for part in UNITS[i:j]:
        value *= PARTS[part]
    size = wanted[1]
    for part in UNITS[j:i]:
        size *= PARTS[part]
    value, rest = divmod(value, size)
    return value, rest == 0


def _days(month: int) -> int:
    """Days from 1970 to the first of a month, counted from January 1970 (the Gregorian calendar, for ever in both directions)."""
    years, m = divmod(month, 12)
    cycles, year = divmod(years, 400)  # of 146,097 days
    start = np.datetime64(f"{1970 + year:04d}-{m + 1:02d}-01", "D").astype(np.int64)
    return cycles * 146_097 + int(start)


def _month(day: int) -> int:
    """The month, counted from January 1970, of a day counted from its first."""
    cycles, rest = divmod(day, 146_097)
    return cycles * 4800 + int(np.datetime64(rest, "D").astype("M8[M]").astype(np.int64))


def rank_interval(labels_sorted: np.ndarray, lo: Any, hi: Any, closed: str = "both") -> tuple[np.ndarray, np.ndarray]:
    """Rank intervals [s, e) of windows: the labels in the window are exactly labels_sorted[s:e].

    labels_sorted: (n,) ascending; lo, hi: scalars or arrays that broadcast, see `bounds` (which also makes Bounds of them);
    closed: which ends belong to the window, both | left | right | neither. Returns s, e: int64 of the broadcast shape,
    s <= e; a window with lo > hi is empty. Raises ValueError for NaN, for bounds of another kind than the labels, for another
    `closed`.
    """
    if closed not in CLOSED:
        raise ValueError(f"closed is {closed!r}: choose {', '.join(CLOSED)}")
    labels = np.asarray(labels_sorted)
    if labels.dtype not in (np.int64, np.uint64, np.float64) and labels.dtype.kind not in "mM":
        labels = as_labels(labels)
    elif (
        len(labels) and labels[-1] != labels[-1]
    ):  # in order, a NaN is last: no need to read all of them for each search
        as_labels(labels[-1:])
    low = lo if isinstance(lo, Bounds) else bounds(labels.dtype, lo, "lo")
    high = hi if isinstance(hi, Bounds) else bounds(labels.dtype, hi, "hi")
    s = _ranks(labels, low, after_equal=closed not in ("both", "left"))
    e = _ranks(labels, high, after_equal=closed in ("both", "right"))
    if s.shape != e.shape:
        s, e = np.broadcast_arrays(s, e)
    return s, np.maximum(s, e)


def _ranks(labels: np.ndarray, bound: Bounds, after_equal: bool) -> np.ndarray:
    """How many labels come before each bound; equal ones count where `after_equal`."""
    floor, exact, below, above = bound
    # a bound between two values of the labels' type stands after its floor, whatever `closed` says
    all_exact = exact.all()
    ranks = np.searchsorted(labels, floor, "right" if after_equal or not all_exact else "left").astype(np.int64)
    if not after_equal and not all_exact:
        ranks = np.where(exact, np.searchsorted(labels, floor, "left"), ranks)
    if below.any() or above.any():
        ranks = np.where(below, 0, np.where(above, len(labels), ranks))
    return ranks


def reversed_windows(lo: Bounds, hi: Bounds) -> np.ndarray:
    """Where lo is above hi, bool of their broadcast shape."""
    beyond = (lo.above & ~hi.above) | (hi.below & ~lo.below)
    free = lo.below | hi.above | lo.above | hi.below
    higher = (lo.floor > hi.floor) | ((lo.floor == hi.floor) & ~lo.exact & hi.exact)
    return beyond | (~free & higher)


def in_type(dtype: np.dtype, labels: np.ndarray) -> np.ndarray:
    """New labels in the type of an index. Raises ValueError for another kind, and for what that type cannot hold."""
    if labels.dtype.kind != dtype.kind:
        raise ValueError(f"labels are {labels.dtype} and the index's {dtype}: give the same kind")
    found = bounds(dtype, labels, "labels")
    if (found.below | found.above).any():
        first = labels[np.argmax(found.below | found.above)]
        raise ValueError(f"the label {first} lies outside what {dtype} can hold: fit anew with a coarser unit")
    if not found.exact.all():
        raise ValueError(f"labels are {labels.dtype}, finer than the index's {dtype}: round them, or fit anew")
    return found.floor


def disjoint(s: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same unions of rank intervals, row by row, as intervals that neither overlap nor touch. s, e: (nq, m) int64.

    Returns as many columns as the row with the most needs, empty intervals (0, 0) after the last.
    """
    s, e = np.where(s < e, s, np.iinfo(np.int64).max), np.where(s < e, e, -1)  # empty ones go to the end
    order = np.argsort(s, axis=1, kind="stable")
    s, e = np.take_along_axis(s, order, 1), np.take_along_axis(e, order, 1)
    covered = np.maximum.accumulate(e, axis=1)
    begins = e >= 0
    begins[:, 1:] &= s[:, 1:] > covered[:, :-1]
    number = np.cumsum(begins, axis=1) - 1
    width = int(number[:, -1].max(initial=-1)) + 1
    first, last = np.zeros((len(s), max(width, 1)), np.int64), np.zeros((len(s), max(width, 1)), np.int64)
    row, column = np.nonzero(e >= 0)
    np.maximum.at(last, (row, number[row, column]), covered[row, column])
    row, column = np.nonzero(begins)
    first[row, number[row, column]] = s[row, column]
    return first, last


def content_hash(X: np.ndarray, labels: np.ndarray) -> str:
    """The sha256 of points and their labels."""
    numbers = labels.view(np.int64) if labels.dtype.kind in "mM" else labels  # dates have no buffer of their own
    return digest([sha256_of_arrays(X, numbers), labels.dtype.str])
