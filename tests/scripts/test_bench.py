"""The races as a command: quick sizes run and record nothing; the page is a function of the record."""

import json
import sys

import pytest

from scripts import bench


@pytest.fixture
def record(tmp_path, monkeypatch):
    for name, path in (("RECORD", "benchmarks.json"), ("PAGE", "benchmarks.md"), ("PICTURES", "benchmarks")):
        monkeypatch.setattr(bench, name, tmp_path / path)
    monkeypatch.setattr(bench.machine, "limit_threads", lambda threads: None)
    return tmp_path


def test_races_are_recorded_with_what_they_ran_on_and_rendered(record, monkeypatch, capsys):
    import matplotlib.pyplot as plt

    class Module:
        PEERS = ("numpy", "a_peer_that_is_not_here")

        @staticmethod
        def bench(quick):
            return {"sort": [{"contestant": "numpy", "threads": 1, "ratio": 1.0}] * (70 if not quick else 1)}

        @staticmethod
        def figures(tables):
            return {"sort": plt.figure()}

    monkeypatch.setitem(sys.modules, "papers.neg_ucb.bench", Module)
    assert bench.main(["neg_ucb", "--quick"]) == 0
    assert not list(record.iterdir())
    assert bench.main(["neg_ucb"]) == 0
    entry = json.loads((record / "benchmarks.json").read_text())["neg_ucb"]
    assert {"numpy", "python"} <= set(entry["versions"])
    assert "a_peer_that_is_not_here" not in entry["versions"]
    page = (record / "benchmarks.md").read_text()
    assert "Peers: numpy" in page
    assert "<details><summary>70 rows" in page
    assert "cores, 1 thread" not in page  # said row by row
    assert "![neg_ucb-sort](benchmarks/neg_ucb-sort.png)" in page
    assert (record / "benchmarks" / "neg_ucb-sort.png").stat().st_size > 0


def test_a_paper_without_races_is_refused(capsys):
    assert bench.main(["no_paper"]) == 2
    assert "no races for 'no_paper'" in capsys.readouterr().err
