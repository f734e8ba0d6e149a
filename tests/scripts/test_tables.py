"""The headline tables: run once, rendered from the record alone, never edited by hand."""

import json
import shutil
import subprocess
import sys
import time

import pytest

from common import configs
from common.files import ROOT
from scripts import pages, tables
from tests.common import toy


@pytest.fixture
def toy_copy(tmp_path, monkeypatch):
    """The toy paper as the only paper, in a folder whose chapter may be written, and pages below tmp_path."""
    copy = shutil.copytree(toy.HERE, tmp_path / "toy", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("TOY_FOLDER", str(copy))
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(pages, "FRONT", tmp_path / "README.md")
    (tmp_path / "README.md").write_text(f"front\n{pages.BEGIN}\n{pages.END}\n")
    monkeypatch.setattr(tables, "COMMAND", [sys.executable, "-m", "tests.common.toy"])
    monkeypatch.setattr(configs, "papers", lambda: ["toy"])
    monkeypatch.chdir(ROOT)
    configs.declared_types.cache_clear()
    toy.attach(copy)
    yield copy
    toy.detach(copy)
    configs.declared_types.cache_clear()


def results(tmp_path) -> dict:
    return json.loads((tmp_path / "results" / "results.json").read_text())


def test_tables_are_run_once_and_rendered_into_pages_and_chapter(toy_copy, tmp_path, capsys):
    assert tables.main([]) == 0
    first = results(tmp_path)
    assert [c["holds"] for c in first["papers"]["toy"]["claims"]] == [True, None]
    chapter = (toy_copy / "papers" / "toy" / "README.md").read_text()
    assert "the slope is found" in chapter
    assert chapter.startswith("# A toy\n\nbefore\n")
    assert chapter.endswith("after\n")
    assert "the slope is found" in (tmp_path / "results" / "index.md").read_text()
    assert "1 holds" in (tmp_path / "README.md").read_text()
    capsys.readouterr()
    assert tables.main([]) == 0
    assert "0 of 1" in capsys.readouterr().err
    assert results(tmp_path) == first


def test_slow_adds_the_other_experiments_and_a_failing_gate_is_said(toy_copy, tmp_path, capsys):
    assert tables.main(["--slow"]) == 3
    assert "T2.impossible does not hold" in capsys.readouterr().out
    assert set(results(tmp_path)["papers"]["toy"]["runs"]) == {"ci", "wrong"}
    assert "| NO |" in (tmp_path / "results" / "toy.md").read_text()


def test_changed_code_is_run_again(toy_copy):
    before = tables.fingerprint("toy", "ci")
    path = toy_copy / "papers" / "toy" / "train.py"
    path.write_text(path.read_text() + "# changed\n")
    assert tables.fingerprint("toy", "ci") != before
    assert tables.fingerprint("toy", "smoke") != tables.fingerprint("toy", "ci")


def test_a_failing_run_does_not_stop_the_others_and_is_reported(toy_copy, tmp_path, capsys):
    path = toy_copy / "configs" / "toy" / "exp" / "ci.yaml"
    path.write_text(path.read_text() + "fail: bug\n")
    assert tables.main(["--slow"]) == 1
    assert "toy ci failed with 1" in capsys.readouterr().err
    assert set(results(tmp_path)["papers"]["toy"]["runs"]) == {"wrong"}


def test_interrupted_tables_go_on_in_the_same_run_folder(toy_copy, tmp_path):
    path = toy_copy / "configs" / "toy" / "exp" / "ci.yaml"
    path.write_text(path.read_text() + "sleep: 0.2\n")
    code = (
        "import sys; from pathlib import Path; from scripts import pages, tables; from common import configs; from tests.common import toy; toy.attach(); "
        f"pages.RESULTS = Path({str(tmp_path / 'results')!r}); pages.FRONT = Path({str(tmp_path / 'README.md')!r}); "
        "tables.COMMAND = [sys.executable, '-m', 'tests.common.toy']; "
        "configs.papers = lambda: ['toy']; sys.exit(tables.main([]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL)
    pending = tmp_path / "runs" / "tables.json"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list((tmp_path / "runs").glob("toy/ci/2*/steps.count")):
        time.sleep(0.05)
    process.kill()
    process.wait()
    (folder,) = json.loads(pending.read_text()).values()
    assert tables.main([]) == 0
    assert [str(f) for f in (tmp_path / "runs" / "toy" / "ci").glob("2*-*")] == [folder]


def test_a_run_that_ended_before_it_was_recorded_is_not_run_again(toy_copy, tmp_path):
    assert tables.main([]) == 0
    (folder,) = (tmp_path / "runs" / "toy" / "ci").glob("2*-*")
    (tmp_path / "results" / "results.json").unlink()
    (tmp_path / "runs" / "tables.json").write_text(json.dumps({tables.fingerprint("toy", "ci"): str(folder)}))
    assert tables.main([]) == 0
    assert list((tmp_path / "runs" / "toy" / "ci").glob("2*-*")) == [folder]
    assert results(tmp_path)["papers"]["toy"]["runs"]["ci"]["fingerprints"]


def test_committed_pages_are_what_the_record_says():
    if not (pages.RESULTS / "results.json").exists():
        pytest.skip("no results are recorded yet")
    recorded = tables.read()
    for path, text in pages.pages(recorded).items():
        assert path.read_text() == text, f"{path} was edited by hand: run `python -m scripts.tables --render`"
    for path, text in pages.blocks(recorded).items():
        assert pages.with_block(path.read_text(), text) == path.read_text(), path


def recorded_runs(folder, *runs, requires=("a_module_that_is_not_here",)):
    """The record after runs of the toy's first claim, each a (value, holds, source of its data)."""
    from common.result import Result

    recorded = {"papers": {}}
    for value, holds, source in runs:
        claim = {**tables.claims.read("toy")[0], "value": value, "holds": holds}
        if (value, holds) == (None, None):
            claim["requires"] = list(requires)
        run = {"data": {"x": {"source": source, "path": "/somewhere/x", "sha256": None}}, "git_commit": None, "seed": 0, "wall_s": 1.0,
               "peak_rss_mb": 1.0, "tables": {}, "figures": [], "notes": [f"from /home/me/{source}.csv"], "machine": {}, "versions": {},
               "claims": [claim]}  # fmt: skip
        tables.record(recorded, tables.Entry("toy", "ci", f"fingerprint of {source}"), Result(folder, run))
    return recorded["papers"]["toy"]


@pytest.mark.parametrize(
    ("runs", "kept"),
    [
        ([(3.0, True, "real"), (None, None, "real")], (3.0, True, "real")),  # not measured here
        ([(3.0, True, "real"), (None, False, "real")], (None, False, "real")),  # measured, and not a number
        ([(3.0, True, "real"), (None, None, "synthetic")], (3.0, True, "real")),  # it requires what is not here
        (
            [(3.0, True, "real"), (9.0, False, "synthetic")],
            (9.0, False, "synthetic"),
        ),  # judged on whatever is here: the last counts
        ([(2.6, True, "synthetic"), (3.0, True, "real")], (3.0, True, "real")),
        ([(3.0, True, "real"), (9.0, False, "real")], (9.0, False, "real")),
    ],
)
def test_what_is_recorded_is_displaced_by_a_measurement_and_not_by_the_lack_of_one(toy_copy, runs, kept):
    paper = recorded_runs(toy_copy, *runs)
    (claim,) = paper["claims"]
    assert (claim["value"], claim["holds"], claim["data"]) == kept
    assert paper["runs"]["ci"]["notes"] == ["from real.csv"]  # tables and figures of made-up data displace no real ones
    assert set(paper["runs"]["ci"]["fingerprints"]) == {source for _, _, source in runs}


def test_a_figure_that_is_no_longer_measured_opens_its_claim(toy_copy):
    paper = recorded_runs(toy_copy, (3.0, True, "real"), (None, None, "real"), requires=())
    (claim,) = paper["claims"]
    assert (claim["value"], claim["holds"]) == (None, None)


def test_a_changed_threshold_judges_what_was_recorded(toy_copy):
    path = toy_copy / "papers" / "toy" / "claims.yaml"
    paper = recorded_runs(toy_copy, (3.0, True, "real"))
    path.write_text(path.read_text().replace("[2.5, 3.5]", "[10, 20]"))
    (claim,) = tables.current(paper["claims"], tables.claims.read("toy"))
    assert claim["holds"] is False


def test_two_at_once_are_refused(toy_copy, tmp_path, capsys):
    from filelock import FileLock

    with FileLock(tmp_path / ".tables.lock"):
        assert tables.main([]) == 2
    assert "another process" in capsys.readouterr().err
