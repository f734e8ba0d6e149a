"""Claims files are checked strictly, and judged as written."""

import datetime
from pathlib import Path

import pytest

from common import claims

BASE = {
    "id": "A",
    "statement": "s",
    "source": "sec. 1",
    "provenance": "derived",
    "metric": "m",
    "op": "<=",
    "threshold": 1,
}


def judge(value, **changes):
    (claim,), notes = claims.judge(
        claims.validate([BASE | changes], Path("x")), "ci", {} if value == "missing" else {"m": value}, {"m": 7.0}, {}
    )
    return claim["holds"], claim["value"], notes


@pytest.mark.parametrize(
    ("value", "op", "threshold", "holds"),
    [
        (1, "<=", 1, True),
        (1, "<", 1, False),
        (1, ">=", 1, True),
        (1, ">", 1, False),
        (1, "in", [0, 1], True),
        (2, "in", [0, 1], False),
    ],
)
def test_comparisons(value, op, threshold, holds):
    assert judge(value, op=op, threshold=threshold)[0] is holds


def test_missing_is_open_and_nan_does_not_hold():
    assert judge("missing")[:2] == (None, None)
    assert judge(float("nan"))[:2] == (False, None)
    assert judge(None)[:2] == (False, None)


def test_reported_claims_have_a_value_and_no_verdict():
    assert judge(3, op="report", threshold=None, gate=False)[:2] == (None, 3)
    assert judge(3, op="report", threshold=None, gate=False, metric="timings.m")[1] == 7.0


def test_requirements_not_met_leave_the_claim_open():
    holds, value, notes = judge(0.5, requires=["stdlib@abcd1234"])
    assert (holds, value) == (None, None)
    assert "stdlib@abcd1234" in notes[0]
    used = {"stdlib": {"source": "package", "path": "", "sha256": "abcd1234ff"}}
    (claim,), _ = claims.judge(
        claims.validate([BASE | {"requires": ["stdlib@abcd1234"]}], Path("x")), "ci", {"m": 0.5}, {}, used
    )
    assert claim["holds"] is True


def test_a_claim_on_a_stand_in_is_judged_only_where_the_real_data_are_not_used():
    for source, holds in (("real", None), ("synthetic", True)):
        used = {"deep": {"source": source, "path": "", "sha256": None}}
        entries = claims.validate([BASE | {"requires": ["!deep"]}], Path("x"))
        (claim,), _ = claims.judge(entries, "ci", {"m": 0.5}, {}, used)
        assert claim["holds"] is holds


def test_other_experiments_are_not_judged():
    assert claims.judge(claims.validate([BASE], Path("x")), "smoke", {"m": 0}, {}, {}) == ([], [])


@pytest.mark.parametrize(
    "changes",
    [
        {"op": "~"}, {"provenance": "told"}, {"threshold": None}, {"threshold": True}, {"op": "in", "threshold": 3}, {"op": "report"},
        {"metric": ""}, {"surprise": 1}, {"paper_value": "3.4"}, {"metric": "timings.x"}, {"op": "report", "threshold": None},
    ],
)  # fmt: skip
def test_malformed_claims_are_refused(changes):
    with pytest.raises(ValueError, match="claim A"):
        claims.validate([BASE | changes], Path("claims.yaml"))


def test_an_id_is_used_once():
    with pytest.raises(ValueError, match="twice"):
        claims.validate([BASE, BASE], Path("x"))


def test_a_calibration_date_reaches_the_record():
    from common.files import to_json

    (claim,) = claims.validate(
        [BASE | {"calibrated": {"seeds": [0], "values": [0.5], "commit": "abc", "date": datetime.date(2026, 11, 30)}}],
        Path("x"),
    )
    assert '"date": "2026-11-30"' in to_json(claim)
