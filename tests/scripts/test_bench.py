"""The races as a command: quick sizes run and record nothing; the page is a function of the records."""

import json
import sys

import pytest

from common import cards
from common.catalogue import papers
from scripts import bench, benchmarks, pages, record

ROWS = [
    {"contestant": name, "n": n, "ms": ms} for n in (10, 1000) for name, ms in (("ours", 1.5 * n), ("theirs", 2.0 * n))
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the record of a paper goes; no page is written."""
    monkeypatch.setattr(record, "folder", lambda paper: tmp_path)
    monkeypatch.setattr(bench.machine, "limit_threads", lambda threads: None)
    monkeypatch.setattr(pages, "write", lambda: [])
    return tmp_path


@pytest.fixture
def card(monkeypatch):
    """The card of the paper that races, and a way to change it."""
    fields = {
        "short": "Ours",
        "title": "T",
        "authors": "A",
        "area": "a",
        "does": "d",
        "left": "l",
        "peers": ["numpy", "a_peer_not_here"],
    }
    races = {
        "sort": {"says": "Ours is quicker.", "bars": {"of": "ms", "by": ["contestant"], "for": "n", "ours": "ours"}},
        "own": {"says": "As drawn.", "picture": "drawn"},
    }

    def change(**more):
        made = cards.Card(name="neg_ucb", **cards.validate(fields | {"races": races} | more, record.Path("paper.yaml")))
        monkeypatch.setattr(cards, "card", lambda paper: made)

    change()
    return change


class Module:
    @staticmethod
    def bench(quick):
        return {"own": [{"threads": 1, "ratio": 1.0}] * (1 if quick else 70), "sort": ROWS}

    @staticmethod
    def figures(tables):
        from common import plots

        return {"drawn": plots.axes()[0]}


def test_races_are_recorded_with_what_they_ran_on_and_drawn(folder, card, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "papers.neg_ucb.bench", Module)
    assert bench.main(["neg_ucb", "--quick"]) == 0
    assert not list(folder.iterdir())
    assert bench.main(["neg_ucb"]) == 0
    assert "recorded anew: read what its paper.yaml says" in capsys.readouterr().err
    entry = json.loads((folder / "benchmarks.json").read_text())
    assert {"numpy", "python"} <= set(entry["versions"])
    assert "a_peer_not_here" not in entry["versions"]
    assert set(entry["figures"]) == {"sort", "drawn"}
    assert all((folder / path).stat().st_size > 0 for path in entry["figures"].values())
    page = benchmarks.render({"neg_ucb": entry})
    assert "Peers: numpy" in page
    assert page.index("**sort.** Ours is quicker.") < page.index("**own.** As drawn.")
    assert "<details><summary>own: 70 rows" in page
    assert "cores, 1 thread" not in page  # said row by row
    assert "![sort: Ours](../papers/neg_ucb/record/figures/bench/sort.png)" in page


def test_bars_are_those_of_the_rows(card):
    figure = benchmarks.bars(ROWS, of="ms", by=["contestant"], over="n", ours="ours")
    assert [axis.get_title() for axis in figure.axes] == ["n 10", "n 1,000"]
    assert [[bar.get_width() for bar in axis.patches] for axis in figure.axes] == [[15.0, 20.0], [1500.0, 2000.0]]
    assert figure.axes[0].get_xscale() == "linear"
    wide = benchmarks.bars([*ROWS, {"contestant": "slow", "n": 10, "ms": 1000.0}], of="ms", by=["contestant"], over="n")
    assert [axis.get_xscale() for axis in wide.axes] == ["log", "linear"]
    assert figure.axes[0].patches[0].get_facecolor() != figure.axes[0].patches[1].get_facecolor()


@pytest.mark.parametrize("paper", papers())
def test_what_is_said_of_races_speaks_of_what_is_recorded(paper):
    entry = benchmarks.read(paper)
    if entry is None:
        assert not cards.card(paper).races
    else:
        assert benchmarks.unread(paper, entry) is None


def test_a_paper_without_races_is_refused(capsys):
    assert bench.main(["no_paper"]) == 2
    assert "no races for 'no_paper'" in capsys.readouterr().err
