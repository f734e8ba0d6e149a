"""What is printed of claims and rows: one vocabulary of verdicts, everywhere."""

import pytest

from common import report

CLAIM = {"id": "A", "statement": "s", "provenance": "derived", "paper_value": None, "op": "<=", "threshold": 1.0, "gate": True,
         "requires": [], "value": 0.5, "holds": True}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "holds"),
        ({"holds": False}, "does not hold"),
        ({"value": None, "holds": False}, "does not hold"),  # not a number
        ({"value": None, "holds": None}, "not measured"),
        ({"value": None, "holds": None, "needs": ["llama2_7b"]}, "not run: needs llama2_7b"),
        ({"op": "report", "holds": None}, "reported"),
    ],
)
def test_every_claim_has_one_verdict(changes, word):
    assert report.verdict(CLAIM | changes) == word
    (row,) = report.claim_rows([CLAIM | changes])
    assert row["verdict"] == word


def test_gated_claims_are_counted_and_nought_is_left_out():
    claims = [CLAIM, CLAIM, CLAIM | {"holds": False}, CLAIM | {"holds": None}, CLAIM | {"gate": False, "holds": False}]
    assert report.counts(claims) == {"holds": 2, "does not hold": 1, "not measured": 1}
    assert report.counted(claims) == "2 hold, 1 does not hold, 1 not measured"
    assert report.counted([CLAIM]) == "1 holds"
    assert report.counted([]) == ""


def test_a_refutation_and_an_interval_are_printed_where_there_are_any():
    assert "refuted by" not in report.claim_rows([CLAIM])[0]
    refuted = CLAIM | {"refuted_by": {"what": "Q = 0", "value": 2}, "interval": [0.4, 0.6]}
    first, second = report.claim_rows([refuted, CLAIM])
    assert (first["refuted by"], second["refuted by"]) == ("a run with Q = 0 gives 2", "")
    assert first["ours"] == "0.5 [0.4, 0.6]"


def test_tuning_has_a_row_for_each_method():
    tuned = {"ours": {"trials": 12, "on": "worlds 100-109", "chosen": {"alpha": 0.3, "kernel": "rbf"}},
             "random": {"trials": 0, "on": None, "chosen": {}}}  # fmt: skip
    first, second = report.tuning_rows([CLAIM, CLAIM | {"tuned": tuned}])
    assert first == {
        "claim": "A", "method": "ours", "trials": 12, "on": "worlds 100-109", "chosen": "alpha = 0.3, kernel = rbf"
    }  # fmt: skip
    assert second["on"] == ""
