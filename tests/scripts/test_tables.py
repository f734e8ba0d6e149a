"""The headline tables: run once, rendered from the record alone, never edited by hand."""

import json
import shutil
import subprocess
import sys
import time

import pytest

from common import cards, catalogue, optional, settings
from common.data import registry
from common.experiment import launch
from common.files import ROOT
from common.result import Result
from scripts import closure, fingerprints, pages, record, tables
from tests.common import toy

PAGES = {
    "README.md": "front\n<!-- papers:begin -->\n<!-- papers:end -->\n",
    "docs/index.md": "site\n<!-- papers:begin -->\n<!-- papers:end -->\n",
    "docs/roadmap.md": "left\n<!-- left:begin -->\n<!-- left:end -->\n",
    "pyproject.toml": "extras\n# papers:begin (whence)\n# papers:end\n",
}


@pytest.fixture
def toy_copy(tmp_path, monkeypatch):
    """The toy paper as the only paper, in a folder that may be written, and pages below tmp_path."""
    copy = shutil.copytree(toy.HERE, tmp_path / "toy", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("TOY_FOLDER", str(copy))
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    for name, text in PAGES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(tables, "COMMAND", [sys.executable, "-m", "tests.common.toy"])
    monkeypatch.setattr(catalogue, "papers", lambda: ["toy"])
    monkeypatch.chdir(ROOT)
    clear()
    toy.attach(copy)
    yield copy
    toy.detach(copy)
    clear()


def clear():
    for function in (
        catalogue.catalogue,
        settings.declarations,
        cards.card,
        optional.extras,
        registry.entries,
        closure.imported,
    ):
        function.cache_clear()


def recorded(toy_copy) -> dict:
    return json.loads((toy_copy / "papers" / "toy" / "record" / "results.json").read_text())


def test_tables_are_run_once_and_written_into_pages_and_chapter(toy_copy, tmp_path, capsys):
    assert tables.main([]) == 0
    first = recorded(toy_copy)
    assert {"machine", "versions", "recorded_at", "metrics"} <= set(first["runs"]["ci"])
    summary = json.loads((tmp_path / "docs" / "results" / "results.json").read_text())
    claims = {c["id"]: c for c in summary["papers"]["toy"]["claims"]}
    assert [c["holds"] for c in claims.values()] == [True, None, None]
    assert claims["T1.slope"]["threshold"] == [2.5, 3.5]
    chapter = (toy_copy / "papers" / "toy" / "README.md").read_text()
    assert "the slope is found" in chapter
    assert chapter.startswith("# A toy\n\nbefore\n")
    assert chapter.endswith("after\n")
    assert "the slope is found" in (tmp_path / "docs" / "results" / "index.md").read_text()
    for front in ("README.md", "docs/index.md"):
        assert "1 holds, 1 not measured" in (tmp_path / front).read_text()
    assert "- **Toy** (`toy`). Nothing." in (tmp_path / "docs" / "roadmap.md").read_text()
    assert "not run: needs +exp=wrong" in (tmp_path / "docs" / "results" / "toy.md").read_text()
    capsys.readouterr()
    assert tables.main([]) == 0
    assert "0 of 1" in capsys.readouterr().err
    assert recorded(toy_copy) == first
    assert pages.main(["--check"]) == 0
    (tmp_path / "docs" / "results" / "toy.md").write_text("by hand")
    assert pages.main(["--check"]) == 2


@pytest.fixture
def at_once(monkeypatch):
    """Jobs are run in this process, one after the other."""

    def run_all(jobs, runs):
        lines = []
        for job in jobs:
            for name in [name for name in sys.modules if name.startswith("papers.toy")]:
                del sys.modules[name]  # its code may have been changed
            lines += tables.keep(job, launch(job.paper, [f"+exp={job.experiment}", f"paths.runs={runs}"]))
        return lines

    monkeypatch.setattr(tables, "run_all", run_all)


def test_a_misspelt_metric_of_a_gate_fails_the_tables(toy_copy, at_once, capsys):
    path = toy_copy / "papers" / "toy" / "claims.yaml"
    path.write_text(path.read_text().replace("metric: slope", "metric: slop"))
    assert tables.main([]) == 3
    assert "T1.slope was not measured: no figure is called slop" in capsys.readouterr().out
    assert record.unmeasured("toy", recorded(toy_copy)) == ["T1.slope"]


def test_a_new_claim_on_a_recorded_figure_needs_no_run(toy_copy, at_once, capsys):
    assert tables.main([]) == 0
    path = toy_copy / "papers" / "toy" / "claims.yaml"
    path.write_text(path.read_text() + NEW_CLAIM)
    capsys.readouterr()
    assert tables.main([]) == 3
    assert "0 of 1" in capsys.readouterr().err
    path.write_text(path.read_text().replace("metric: data.mean", "metric: data.mode"))
    assert tables.main([]) == 3
    assert "a claim of it has no figure yet" in capsys.readouterr().err


NEW_CLAIM = """- id: T4.mean
  statement: the mean of the points is below nought by far
  source: test
  provenance: derived
  metric: data.mean
  op: "<"
  threshold: -9
"""


def test_slow_adds_the_other_experiments_and_a_failing_gate_is_said(toy_copy, at_once, tmp_path, capsys):
    assert tables.main(["--slow"]) == 3
    assert "T2.impossible does not hold" in capsys.readouterr().out
    assert set(recorded(toy_copy)["runs"]) == {"ci", "wrong"}
    assert "| **does not hold** |" in (tmp_path / "docs" / "results" / "toy.md").read_text()


def change(toy_copy, old="slope.value -= cfg.lr", new="slope.value -= 1.0 * cfg.lr"):
    path = toy_copy / "papers" / "toy" / "train.py"
    path.write_text(path.read_text().replace(old, new))
    closure.imported.cache_clear()


def test_a_declared_change_stands_until_all_is_measured_anew(toy_copy, at_once, capsys):
    """And what then has other figures fails, by name."""
    assert tables.main([]) == 0
    change(toy_copy)
    assert tables.main(["--adopt", " "]) == 2
    assert tables.main(["--adopt", "one times the rate is the rate"]) == 0
    (entry,) = fingerprints.declared("toy")
    assert entry["reason"] == "one times the rate is the rate"
    capsys.readouterr()
    assert tables.main([]) == 0
    assert "0 of 1" in capsys.readouterr().err
    assert tables.main(["--all"]) == 0
    assert "1 of 1" in capsys.readouterr().err
    assert fingerprints.declared("toy") == []
    change(toy_copy, new="slope.value -= 0.5 * cfg.lr", old="slope.value -= 1.0 * cfg.lr")
    assert tables.main(["--adopt", "wrongly"]) == 0
    assert tables.main(["--all"]) == 1
    assert "toy ci was declared to have the figures it had, and has not: T1.slope" in capsys.readouterr().err


def test_a_fingerprint_follows_what_computes(toy_copy):
    before = fingerprints.fingerprint("toy", "ci")
    assert fingerprints.fingerprint("toy", "smoke") != before
    exp = toy_copy / "configs" / "toy" / "exp" / "ci.yaml"
    exp.write_text(f"{exp.read_text()}# a comment\n")
    (toy_copy / "papers" / "toy" / "fit.py").write_text("# another verb\n")
    assert fingerprints.fingerprint("toy", "ci") == before
    exp.write_text(f"{exp.read_text()}lr: 0.31\n")
    assert fingerprints.fingerprint("toy", "ci") != before
    change(toy_copy)
    assert fingerprints.fingerprint("toy", "smoke") != before


def test_only_what_computes_is_in_a_fingerprint_of_a_paper():
    code = {path.relative_to(ROOT).as_posix() for path in fingerprints.code("quip_sharp", "train")}
    assert {"common/run.py", "common/rng.py", "papers/quip_sharp/ldlq.py"} <= code
    assert not code & {
        f"common/{name}.py" for name in ("progress", "loggers", "report", "sweep", "command", "cli", "claims")
    }
    assert "papers/quip_sharp/bench.py" not in code
    versions = fingerprints.versions(dict.fromkeys(fingerprints.code("quip_sharp", "train")))
    assert {"torch", "numpy", "transformers"} <= set(versions)
    assert not {"gymnasium", "wandb", "hydra-core"} & set(versions)


@pytest.mark.parametrize(
    ("used", "found", "why"),
    [
        ({"source": "real", "sha256": "a"}, "a", None),
        ({"source": "real", "sha256": "a"}, "b", "x has changed"),
        ({"source": "real", "sha256": "a"}, None, None),  # it is not here: what was measured elsewhere stands
        ({"source": "synthetic", "sha256": None}, "a", "x is here now, where made-up data stood in"),
        ({"source": "synthetic", "sha256": None}, None, None),
        ({"source": "artefact", "sha256": "a"}, None, None),
    ],
)
def test_a_result_stands_or_falls_with_the_data_that_it_names(monkeypatch, used, found, why):
    monkeypatch.setattr(fingerprints, "found_sum", lambda name: found)
    monkeypatch.setattr(fingerprints, "declared", lambda paper: [])
    run = {"data": {"x": used}, "kind": "real", "fingerprints": {"real": "old"}}
    assert fingerprints.why_stale("toy", "ci", run, "old") == why
    assert why or "has changed" in fingerprints.why_stale("toy", "ci", run, "new")


def test_without_its_real_data_a_run_is_made_once_and_with_them_again(monkeypatch):
    monkeypatch.setattr(fingerprints, "declared", lambda paper: [])
    run = {
        "data": {"x": {"source": "real", "sha256": "a"}},
        "kind": "real",
        "fingerprints": {"real": "old", "synthetic": "new"},
    }
    monkeypatch.setattr(fingerprints, "found_sum", lambda name: None)
    assert fingerprints.why_stale("toy", "ci", run, "new") is None
    monkeypatch.setattr(fingerprints, "found_sum", lambda name: "a")
    assert fingerprints.why_stale("toy", "ci", run, "new")


def test_declarations_chain(monkeypatch):
    steps = [{"experiment": "ci", "from": a, "to": b, "reason": "r", "date": "d"} for a, b in ("ab", "bc", "ca", "de")]
    monkeypatch.setattr(fingerprints, "declared", lambda paper: steps)
    assert fingerprints.same_as("toy", "ci", "a") == {"a", "b", "c"}
    assert fingerprints.same_as("toy", "smoke", "a") == {"a"}


def test_a_failing_run_does_not_stop_the_others_and_is_reported(toy_copy, tmp_path, capsys):
    path = toy_copy / "configs" / "toy" / "exp" / "ci.yaml"
    path.write_text(path.read_text() + "fail: bug\n")
    assert tables.main(["--slow"]) == 1
    assert "toy ci failed with 1" in capsys.readouterr().err
    assert set(recorded(toy_copy)["runs"]) == {"wrong"}


@pytest.mark.slow
def test_interrupted_tables_go_on_in_the_same_run_folder(toy_copy, tmp_path):
    path = toy_copy / "configs" / "toy" / "exp" / "ci.yaml"
    path.write_text(path.read_text() + "sleep: 0.2\n")
    code = (
        "import sys; from pathlib import Path; from scripts import pages, tables; from common import catalogue; "
        f"from tests.common import toy; toy.attach(); pages.ROOT = Path({str(tmp_path)!r}); "
        "tables.COMMAND = [sys.executable, '-m', 'tests.common.toy']; "
        "catalogue.papers = lambda: ['toy']; sys.exit(tables.main([]))"
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
    (toy_copy / "papers" / "toy" / "record" / "results.json").unlink()
    (tmp_path / "runs" / "tables.json").write_text(json.dumps({fingerprints.fingerprint("toy", "ci"): str(folder)}))
    assert tables.main([]) == 0
    assert list((tmp_path / "runs" / "toy" / "ci").glob("2*-*")) == [folder]
    assert recorded(toy_copy)["runs"]["ci"]["fingerprints"]


def test_committed_pages_are_what_the_papers_folders_say():
    wanted = pages.rendered()
    for path, text in wanted.items():
        assert path.read_text() == text, f"{path} was edited by hand: run `python -m scripts.pages`"
    assert pages.stale(wanted) == []


@pytest.mark.parametrize("paper", catalogue.papers())
def test_every_gate_of_a_recorded_experiment_has_a_figure(paper):
    assert record.unmeasured(paper, record.read(paper)) == []


@pytest.mark.parametrize("paper", catalogue.papers())
def test_a_record_names_what_it_ran_on_and_holds_its_figures(paper):
    folder, kept = record.folder(paper), record.read(paper)
    figures = [figure for run in kept["runs"].values() for figure in run["figures"]]
    assert all((folder / figure).is_file() for figure in figures)
    for run in kept["runs"].values():
        assert run["machine"]["cpu"]
        assert run["versions"]["python"]
        assert run["recorded_at"]


def record_after(folder, *runs, requires=("a_module_that_is_not_here",)):
    """The record after runs of the toy's first claim, each a (value, holds, source of its data)."""
    kept = {"schema": 1, "paper": "toy", "claims": [], "runs": {}}
    for value, holds, source in runs:
        claim = {**record.claims.read("toy")[0], "value": value, "holds": holds}
        if (value, holds) == (None, None):
            claim["requires"] = list(requires)
        run = {"data": {"x": {"source": source, "path": "/somewhere/x", "sha256": None}}, "git_commit": None, "seed": 0, "wall_s": 1.0,
               "peak_rss_mb": 1.0, "tables": {}, "figures": [], "notes": [f"from /home/me/{source}.csv"], "machine": {"cpu": source},
               "versions": {}, "metrics": {}, "claims": [claim]}  # fmt: skip
        record.add(kept, "ci", f"fingerprint of {source}", Result(folder, run))
    return kept


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
    paper = record_after(toy_copy, *runs)
    (claim,) = paper["claims"]
    assert (claim["value"], claim["holds"], claim["data"]) == kept
    assert paper["runs"]["ci"]["notes"] == ["from real.csv"]  # tables and figures of made-up data displace no real ones
    assert set(paper["runs"]["ci"]["fingerprints"]) == {source for _, _, source in runs}


def test_a_figure_that_is_no_longer_measured_opens_its_claim(toy_copy):
    paper = record_after(toy_copy, (3.0, True, "real"), (None, None, "real"), requires=())
    claim = record.current("toy", paper)[0]
    assert (claim["value"], claim["holds"], claim["unmeasured"]) == (None, None, True)
    assert record.unmeasured("toy", paper) == ["T1.slope"]


def test_a_figure_kept_from_another_machine_names_that_machine(toy_copy):
    kept = record_after(toy_copy, (3.0, True, "real"), (None, None, "package"), (None, None, "real"))
    assert kept["claims"][0]["machine"] == {"cpu": "real"}
    assert kept["claims"][0]["value"] == 3.0


def test_a_changed_threshold_judges_what_was_recorded(toy_copy):
    path = toy_copy / "papers" / "toy" / "claims.yaml"
    paper = record_after(toy_copy, (3.0, True, "real"))
    path.write_text(path.read_text().replace("[2.5, 3.5]", "[10, 20]"))
    assert record.current("toy", paper)[0]["holds"] is False


def test_two_at_once_are_refused(toy_copy, tmp_path, capsys):
    from filelock import FileLock

    with FileLock(tmp_path / "docs" / ".tables.lock"):
        assert tables.main([]) == 2
    assert "another process" in capsys.readouterr().err
