"""A run from its command line to its result: folders, record, exit codes, resume."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.errors import UserError
from common.experiment import launch, load_result, run_parts
from common.files import ROOT

COMMAND = [sys.executable, "-m", "tests.common.toy", "run", "toy"]


def command(*words, **options):
    """Run the toy paper's command line in a process of its own."""
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, cwd=options.pop("cwd", ROOT), timeout=120, **options
    )


def strip(result):
    """What must be the same between two runs of one seed."""
    return result.metrics, result.tables, [(c["id"], c["value"], c["holds"]) for c in result.claims]


def test_a_run_leaves_a_whole_record(toy_paper, tmp_path):
    result = launch("toy", ["+exp=smoke"])
    record = json.loads((result.folder / "result.json").read_text(), parse_constant=pytest.fail)
    names = (
        "schema paper verb experiment status seed overrides config git_commit git_dirty versions machine device threads started wall_s peak_rss_mb "
        "metrics timings tables figures data notes claims"
    )
    assert list(record) == names.split()
    assert record["status"] == "done"
    assert record["metrics"]["nothing"] is None
    assert record["experiment"] == "smoke"
    assert result.folder.parent == tmp_path / "runs" / "toy" / "smoke"
    assert (result.folder.parent / "latest").resolve() == result.folder
    assert [c["holds"] for c in result.claims] == [True]


def test_same_seed_gives_identical_metrics_and_tables(toy_paper):
    assert strip(launch("toy")) == strip(launch("toy"))
    assert strip(launch("toy", ["seed=1"])) != strip(launch("toy"))


def test_a_failing_gate_is_exit_code_3(toy_paper):
    result = launch("toy", ["+exp=wrong"])
    assert result.status == "done"
    assert result.exit_code == 3
    assert [c["holds"] for c in result.claims] == [False]


def test_exp_may_be_written_without_plus(toy_paper):
    assert launch("toy", ["exp=smoke"]).experiment == "smoke"


def test_a_bug_keeps_its_traceback_in_the_run_folder(toy_paper, tmp_path):
    with pytest.raises(KeyError):
        launch("toy", ["fail=bug"])
    result = load_result(tmp_path / "runs" / "toy" / "default" / "latest")
    assert (result.status, result.exit_code) == ("failed", 1)
    assert "a bug" in (result.folder / "traceback.txt").read_text()


@pytest.mark.parametrize("fail", ["user", "disk"])
def test_what_the_user_can_fix_is_exit_code_2_and_recorded(toy_paper, tmp_path, fail):
    with pytest.raises(UserError):
        launch("toy", [f"fail={fail}"])
    result = load_result(tmp_path / "runs" / "toy" / "default" / "latest")
    assert (result.status, result.exit_code) == ("failed", 2)


def test_command_prints_the_result_last_and_refuses_in_one_line(tmp_path):
    good = command("+exp=smoke")
    assert good.returncode == 0, good.stderr
    last = good.stdout.splitlines()[-1]
    assert last.startswith("result: /")
    assert last.endswith("/result.json")
    bad = command("+exp=nope")
    assert bad.returncode == 2
    assert bad.stderr.count("\n") == 1
    assert "smoke" in bad.stderr
    assert "Traceback" not in bad.stderr


def test_full_output_device_is_said_plainly(tmp_path):
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [*COMMAND, "+exp=smoke"], stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=120
        )
    assert process.returncode == 2
    assert "error:" in process.stderr
    assert "Traceback" not in process.stderr
    assert "Exception ignored" not in process.stderr


def test_a_closed_pipe_leaves_the_run_done(tmp_path):
    process = subprocess.Popen(
        [*COMMAND, "+exp=smoke", f"paths.runs={tmp_path / 'piped'}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(120) == 0, errors
    assert "Traceback" not in errors
    assert load_result(tmp_path / "piped" / "toy" / "smoke" / "latest").status == "done"


def test_a_job_that_exits_by_itself_has_failed(toy_paper, tmp_path):
    with pytest.raises(RuntimeError, match=r"sys\.exit"):
        launch("toy", ["fail=exit"])
    assert load_result(tmp_path / "runs" / "toy" / "default" / "latest").exit_code == 1


def test_parts_run_in_order_and_a_wrong_name_stops_them_all():
    done = []
    parts = {name: lambda cfg, run, name=name: done.append(name) for name in ("fit", "test")}
    run_parts(SimpleNamespace(parts=["test", "fit"]), None, parts)
    assert done == ["test", "fit"]
    with pytest.raises(UserError, match="did you mean test"):
        run_parts(SimpleNamespace(parts=["fit", "tets"]), None, parts)
    with pytest.raises(UserError, match="once"):
        run_parts(SimpleNamespace(parts=["fit", "fit"]), None, parts)
    with pytest.raises(UserError, match="empty"):
        run_parts(SimpleNamespace(parts=[]), None, parts)
    assert len(done) == 2


def test_dry_runs_are_refused_where_the_job_has_none(toy_paper):
    with pytest.raises(UserError, match="no dry run"):
        launch("toy", ["run.dry=true"])


def test_a_quoted_experiment_is_that_experiment(toy_paper):
    result = launch("toy", ["+exp='wrong'"])
    assert (result.experiment, result.exit_code) == ("wrong", 3)


def test_a_run_leaves_the_process_as_it_was(toy_paper, monkeypatch):
    import torch

    monkeypatch.delenv("PAPERS_RUN_FOLDER", raising=False)
    before = dict(os.environ)
    launch("toy", ["+exp=smoke", "threads=1"])
    assert dict(os.environ) == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_run_puts_threads_modes_and_generators_back(toy_paper):
    import random

    import numpy as np
    import torch
    from threadpoolctl import threadpool_info

    def state():
        pools = sorted((pool["filepath"], pool["num_threads"]) for pool in threadpool_info())
        return torch.get_num_threads(), torch.is_deterministic_algorithms_warn_only_enabled(), pools

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        launch("toy", ["+exp=smoke"])  # whatever it imports is imported
        before = state()
        random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
        expected = random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
        random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
        launch("toy", ["+exp=smoke", "threads=1"])
        assert state() == before
        assert torch.are_deterministic_algorithms_enabled()
        assert (random.random(), np.random.rand(), torch.rand(1)) == expected  # noqa: NPY002
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_setting_that_nothing_reads_is_said(toy_paper):
    result = launch("toy", ["+exp=smoke", "part.width=8", "flow={m:4}", "lr=0.2", "threads=1", "seed=1"])
    said = [note for note in result.notes if "changes nothing" in note]
    assert said == [f"{text} changes nothing: no part of this run reads it" for text in ("part.width=8", "flow={m:4}")]


def test_a_secret_of_the_environment_is_not_kept(toy_paper, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "s3cret-s3cret")
    result = launch("toy", ["+exp=smoke", "label=${oc.env:MY_API_KEY}"])
    assert "s3cret" not in (result.folder / "result.json").read_text()


@pytest.mark.parametrize(
    "change",
    [{"wall_s": "x"}, {"overrides": None}, {"config": None}, {"status": 3}, {"data": [1]}, {"tables": {"a": 1}}, {"metrics": {"a": "b"}},
     {"claims": [1]}, {"notes": [1]}, {"seed": True}],
)  # fmt: skip
def test_an_edited_record_is_damaged_and_says_so(toy_paper, change):
    result = launch("toy", ["+exp=smoke"])
    record = json.loads((result.folder / "result.json").read_text()) | {"status": "running"} | change
    (result.folder / "result.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="damaged"):
        launch("toy", [f"resume={result.folder}"])
    (result.folder / "result.json").unlink()
    os.mkfifo(result.folder / "result.json")
    with pytest.raises(UserError, match="regular file"):
        launch("toy", [f"resume={result.folder}"])


def test_run_folder_below_a_file_is_refused(toy_paper, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"paths\.runs"):
        launch("toy", [f"paths.runs={tmp_path / 'file' / 'runs'}"])


def start_and_kill(tmp_path, when, how=signal.SIGKILL, words=("steps=40", "sleep=0.05"), verb="train"):
    """Start the toy job, stop it when `when(folder)` is true, and return its folder."""
    process = subprocess.Popen(
        [*COMMAND, verb, *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PAPERS_RUNS": str(tmp_path / "killed")},
    )
    parent = tmp_path / "killed" / "toy" / "default"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        folders = [f for f in parent.glob("2*") if f.is_dir()] if parent.exists() else []
        if folders and when(folders[0]):
            break
        time.sleep(0.01)
    process.send_signal(how)
    process.wait(30)
    return folders[0], process.returncode


def steps_done(folder: Path) -> int:
    path = folder / "steps.count"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("at", [1, 17])
def test_killed_run_resumes_to_the_same_result(toy_paper, tmp_path, at):
    folder, _ = start_and_kill(tmp_path, lambda f: steps_done(f) >= at)
    assert load_result(folder).status == "running"
    done_before = steps_done(folder)
    resumed = launch("toy", [f"resume={folder}"])
    whole = launch("toy", ["steps=40"])
    assert resumed.folder == folder
    assert strip(resumed) == strip(whole)
    assert (folder / "metrics.csv").read_text() == (whole.folder / "metrics.csv").read_text()
    assert len((folder / "data.count").read_text().splitlines()) == 1  # the finished stage was not computed again
    assert steps_done(folder) - done_before <= 40 - done_before + 2  # at most the last interval was


def test_terminated_run_says_interrupted_and_resumes(toy_paper, tmp_path):
    folder, code = start_and_kill(tmp_path, lambda f: steps_done(f) >= 5, signal.SIGTERM)
    assert code == 143
    assert load_result(folder).status == "interrupted"
    assert load_result(folder).exit_code == 143
    assert strip(launch("toy", [f"resume={folder}"])) == strip(launch("toy", ["steps=40"]))


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_lightning_training_says_interrupted_and_resumes(toy_paper, tmp_path, how, code):
    def trains(folder):
        path = folder / "metrics.csv"
        return path.exists() and len(path.read_text().splitlines()) > 5

    folder, ended = start_and_kill(tmp_path, trains, how, verb="fit")
    assert ended == code
    assert load_result(folder).status == "interrupted"
    assert 0 < len((folder / "metrics.csv").read_text().splitlines()) < 40
    assert strip(launch("toy", [f"resume={folder}"], verb="fit")) == strip(launch("toy", ["steps=40"], verb="fit"))


def test_resuming_a_done_run_shows_it_and_changes_nothing(toy_paper, capsys):
    from common import cli

    result = launch("toy", ["+exp=wrong"])
    before = (result.folder / "result.json").read_bytes()
    assert cli.main(["run", "toy", f"resume={result.folder}"]) == 0  # although a gate fails: nothing was run
    assert (result.folder / "result.json").read_bytes() == before
    assert "negative" in capsys.readouterr().out


def test_resume_adds_up_wall_time_and_notes_another_commit(toy_paper):
    result = launch("toy")
    record = json.loads((result.folder / "result.json").read_text())
    record |= {"status": "interrupted", "wall_s": 1000.0, "git_commit": "0" * 40}
    (result.folder / "result.json").write_text(json.dumps(record))
    resumed = launch("toy", [f"resume={result.folder}"])
    assert resumed.wall_s > 1000
    assert any("0" * 40 in note for note in resumed.notes)


def test_resume_refuses_what_is_foreign(toy_paper, tmp_path):
    result = launch("toy")
    path = result.folder / "result.json"
    whole = path.read_text()
    for change, message in [
        ({"paper": "other"}, "other"),
        ({"schema": 99}, "schema"),
        ({"config": {"steps": 7}}, "config"),
    ]:
        path.write_text(json.dumps(json.loads(whole) | change))
        with pytest.raises(UserError, match=message):
            launch("toy", [f"resume={result.folder}"])
    path.write_text(whole[:100])
    with pytest.raises(UserError, match="damaged"):
        launch("toy", [f"resume={result.folder}"])
    with pytest.raises(UserError, match="not a run folder"):
        launch("toy", [f"resume={tmp_path}"])
    with pytest.raises(UserError, match="stands alone"):
        launch("toy", [f"resume={result.folder}", "steps=3"])


def test_two_runs_cannot_resume_one_folder(toy_paper, tmp_path):
    from filelock import FileLock

    result = launch("toy")
    with FileLock(result.folder / ".lock"), pytest.raises(UserError, match="in use"):
        launch("toy", [f"resume={result.folder}"])


def test_resume_may_change_where_but_not_what(toy_paper):
    result = launch("toy")
    record = json.loads((result.folder / "result.json").read_text()) | {"status": "interrupted"}
    (result.folder / "result.json").write_text(json.dumps(record))
    assert launch("toy", [f"resume={result.folder}", "threads=1", "device=cpu"]).threads == 1


def test_shared_stage_is_computed_once_and_logs_the_same(toy_paper):
    first, second = launch("toy", ["shared=true"]), launch("toy", ["shared=true"])
    assert strip(first) == strip(second)
    assert (first.folder / "data.count").exists()
    assert not (second.folder / "data.count").exists()
    assert second.data["data"]["source"] == "artefact"


def test_damaged_stage_is_computed_again(toy_paper):
    result = launch("toy")
    next((result.folder / "stages").glob("data-*")).write_bytes(b"half a file")
    record = json.loads((result.folder / "result.json").read_text()) | {"status": "interrupted"}
    (result.folder / "result.json").write_text(json.dumps(record))
    again = launch("toy", [f"resume={result.folder}"])
    assert strip(again) == strip(result)
    assert any("damaged" in note for note in again.notes)


def test_sweep_runs_every_job_and_ends_with_the_worst_code(tmp_path):
    process = command("-m", "+exp=smoke", "fail=no,user,no2", "seed=0,1", f"paths.runs={tmp_path}/sweeps")
    assert process.returncode == 2, process.stderr
    (sweep,) = (tmp_path / "sweeps" / "toy" / "smoke").glob("sweep-*")
    record = json.loads((sweep / "sweep.json").read_text())
    assert [job["status"] for job in record["jobs"]] == ["done", "done", "failed", "failed", "done", "done"]
    assert [(line["key"], line["n"]) for line in record["metrics"]["slope"]] == [("fail=no", 2), ("fail=no2", 2)]
    assert all(line["sd"] > 0 for line in record["metrics"]["slope"])
    assert process.stdout.splitlines()[-1] == f"result: {sweep / 'sweep.json'}"
    assert (sweep / "5" / "result.json").exists()


def test_a_wrong_value_fails_its_own_job_only(tmp_path):
    process = command("-m", "seed=0,abc,2", f"paths.runs={tmp_path}/sweeps")
    assert process.returncode == 2
    (sweep,) = (tmp_path / "sweeps" / "toy" / "default").glob("sweep-*")
    assert [job["exit_code"] for job in json.loads((sweep / "sweep.json").read_text())["jobs"]] == [0, 2, 0]
    assert "Traceback" not in process.stderr


def test_other_ranks_write_nothing(toy_paper, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("PAPERS_RUN_FOLDER", str(tmp_path / "rank0"))
    (tmp_path / "rank0").mkdir()
    launch("toy", ["+exp=smoke"])
    assert [p.name for p in (tmp_path / "rank0").iterdir() if not p.name.endswith(".count")] == []
    assert not (tmp_path / "runs").exists()
