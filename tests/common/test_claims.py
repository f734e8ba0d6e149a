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


def record(value, overrides=(), data=None, **changes):
    """What result.json says of one claim, by a run that measured this value ("missing": none)."""
    entries = claims.validate([BASE | changes], Path("x"))
    judged, _ = claims.judge(entries, "ci", {} if value == "missing" else {"m": value}, {}, data or {})
    return {"claims": judged, "overrides": ["+exp=ci", *overrides]}


def test_a_gate_fails_a_run_when_it_does_not_hold_and_when_nothing_measured_it():
    assert claims.failing(record(1)) == []
    assert claims.failing(record(2)) == ["A"]
    assert claims.failing(record(float("nan"))) == ["A"]
    assert claims.failing(record("missing")) == ["A"]
    assert record("missing")["claims"][0]["holds"] is None
    assert claims.failing(record("missing", gate=False)) == []
    assert claims.failing(record("missing", requires=["a_module_that_is_not_here"])) == []


@pytest.mark.parametrize(
    "kept", ["seed=3", "device=cpu", "threads=1", "logger=csv", "paths.runs=/x", "resume=/x", "hydra/launcher=joblib"]
)
def test_an_experiment_as_it_stands_is_judged_and_a_changed_one_fails_nothing(kept):
    assert claims.failing(record(2, [kept])) == ["A"]
    assert claims.failing(record(2, [kept, "n=3"])) == []
    assert claims.changed(["+exp=ci", kept, "data.n=3", "model=small"]) == ["data.n=3", "model=small"]


def test_a_metric_with_ends_beside_it_carries_an_interval():
    entries = claims.validate([BASE], Path("x"))
    (claim,), _ = claims.judge(entries, "ci", {"m": 0.7, "m.low": 0.6, "m.high": 0.8}, {}, {})
    assert claim["interval"] == [0.6, 0.8]
    (claim,), _ = claims.judge(entries, "ci", {"m": 0.7, "m.low": float("nan"), "m.high": 0.8}, {}, {})
    assert "interval" not in claim


def test_a_refutation_misses_the_threshold_of_its_gate():
    refuted = {"what": "untrained", "value": 1.5}
    (claim,) = claims.validate([BASE | {"refuted_by": refuted}], Path("x"))
    assert claim["refuted_by"] == refuted
    with pytest.raises(ValueError, match="meets the threshold"):
        claims.validate([BASE | {"refuted_by": {"what": "untrained", "value": 1}}], Path("x"))
    claims.validate([BASE | {"gate": False, "refuted_by": {"what": "untrained", "value": 1}}], Path("x"))
    assert claims.validate([BASE], Path("x"))[0]["refuted_by"] is None


TUNED = {"trials": 12, "on": "worlds 100-109", "chosen": {"alpha": 0.3}}


def test_rivals_are_tuned_alike():
    random = {"trials": 0, "on": None, "chosen": {}}
    tuned = {"ours": TUNED, "LinUCB": TUNED | {"chosen": {"alpha": 1}}, "random": random}
    assert claims.validate([BASE | {"tuned": tuned}], Path("x"))[0]["tuned"] == tuned
    for other in ({"trials": 3}, {"on": "worlds 0-4"}):
        with pytest.raises(ValueError, match="as many trials"):
            claims.validate([BASE | {"tuned": {"ours": TUNED, "LinUCB": TUNED | other}}], Path("x"))


def test_other_experiments_are_not_judged():
    assert claims.judge(claims.validate([BASE], Path("x")), "smoke", {"m": 0}, {}, {}) == ([], [])


@pytest.mark.parametrize(
    "changes",
    [
        {"op": "~"}, {"provenance": "told"}, {"threshold": None}, {"threshold": True}, {"op": "in", "threshold": 3}, {"op": "report"},
        {"metric": ""}, {"surprise": 1}, {"paper_value": "3.4"}, {"metric": "timings.x"}, {"op": "report", "threshold": None},
        {"refuted_by": 3}, {"refuted_by": {"what": "untrained"}}, {"refuted_by": {"what": " ", "value": 2}},
        {"refuted_by": {"what": "untrained", "value": float("nan")}}, {"refuted_by": {"what": "untrained", "value": "2"}},
        {"op": "report", "threshold": None, "gate": False, "refuted_by": {"what": "untrained", "value": 2}},
        {"tuned": {}}, {"tuned": {"a": {"trials": 2}}}, {"tuned": {"a": {"trials": -1, "on": "x", "chosen": {}}}},
        {"tuned": {"a": {"trials": 2, "on": "", "chosen": {}}}}, {"tuned": {"a": {"trials": 0, "on": None, "chosen": {"b": 1}}}},
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
