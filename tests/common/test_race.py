"""Races take turns."""

import pytest

from common.race import race


def test_contestants_take_turns_and_warm_up_turns_do_not_count():
    order = []
    rows = race({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=2, warmup=1)
    assert order == ["a", "b"] * 3
    assert [row["contestant"] for row in rows] == ["a", "b"]
    assert rows[0]["ratio"] == 1
    assert all(row["min_s"] <= row["median_s"] <= row["max_s"] for row in rows)


def test_an_empty_race_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        race({})
