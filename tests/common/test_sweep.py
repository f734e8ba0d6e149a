"""Sweeps: what they refuse, what they run, and that a killed one is gone on with."""

import json
import os
import subprocess
import time

import pytest

from tests.common.test_experiment import COMMAND, ROOT, command


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_launchers_run_every_job_and_collect_the_same_sweep(tmp_path, launcher):
    """submitit's local executor takes the way of a SLURM job, without a cluster."""
    pytest.importorskip("submitit" if launcher == "submitit_local" else "hydra_plugins.hydra_joblib_launcher")
    (tmp_path / "sitecustomize.py").write_text(  # the workers are processes of the launcher's making
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.common.toy import attach; attach()"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    folder = tmp_path / "sweeps"
    process = command("-m", "+exp=smoke", "fail=no,user", "seed=0,1", f"launcher={launcher}", f"paths.runs={folder}",
                      env=environment)  # fmt: skip
    (sweep,) = (folder / "toy" / "smoke").glob("sweep-*")
    record = json.loads((sweep / "sweep.json").read_text())
    assert [job["exit_code"] for job in record["jobs"]] == [0, 0, 2, 2]
    assert process.returncode == 2
    assert process.stdout.splitlines()[-1] == f"result: {sweep / 'sweep.json'}"
    one_by_one = command("-m", "+exp=smoke", "fail=no", "seed=0,1", f"paths.runs={tmp_path}/serial")
    assert one_by_one.returncode == 0
    (serial,) = (tmp_path / "serial" / "toy" / "smoke").glob("sweep-*")
    means = lambda metrics: {name: [row["mean"] for row in rows] for name, rows in metrics.items()}  # noqa: E731
    assert means(record["metrics"]) == means(json.loads((serial / "sweep.json").read_text())["metrics"])


def toy_sweep(tmp_path, *words, **options):
    """Run a sweep of the toy paper; its process and its folder."""
    process = command("-m", *words, f"paths.runs={tmp_path}/sweeps", **options)
    (sweep,) = (tmp_path / "sweeps" / "toy").glob("*/sweep-*")
    return process, sweep


def test_a_killed_sweep_goes_on_with_what_is_missing(tmp_path):
    words = ["seed=0,1,2", "steps=30", "sleep=0.02", "threads=1"]
    _, whole = toy_sweep(tmp_path / "whole", *words)
    parent = tmp_path / "killed"
    process = subprocess.Popen([*COMMAND, "-m", *words, f"paths.runs={parent}"], cwd=ROOT, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(parent.glob("toy/default/sweep-*/1/steps.count")):
        time.sleep(0.02)
    process.kill()
    process.wait()
    (sweep,) = (parent / "toy" / "default").glob("sweep-*")
    record = json.loads((sweep / "sweep.json").read_text())
    assert record["status"] == "running"
    assert len(record["jobs"]) == 3
    first = (sweep / "0" / "result.json").read_bytes()
    again = command(f"resume={sweep}")
    assert again.returncode == 0, again.stderr
    assert (sweep / "0" / "result.json").read_bytes() == first
    resumed, undisturbed = (json.loads((f / "sweep.json").read_text()) for f in (sweep, whole))
    assert resumed["metrics"] == undisturbed["metrics"]
    assert [job["status"] for job in resumed["jobs"]] == ["done"] * 3


def test_a_sweep_stops_at_the_first_failure_where_it_is_told_to(tmp_path):
    process, sweep = toy_sweep(tmp_path, "+exp=smoke", "fail=no,user,no2", "stop_at_first_failure=true")
    assert process.returncode == 1  # a job is missing
    assert [job["status"] for job in json.loads((sweep / "sweep.json").read_text())["jobs"]] == [
        "done",
        "failed",
        "missing",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=range(0)"], "gives no value"),
        (["seed=interval(0,1)"], "optimiser"),
        (["seed=glob(*)"], "glob"),
        (["seed=1,1"], "twice"),
        (["seed=range(0,100000)"], "more than 10,000"),
        (["hydra.sweep.dir=x"], "paths.runs"),
        (["hydra.sweeper.params={seed:'0,1'}"], "seed=0,1,2"),
        (["launcher=slurm", "seed=0,1"], "sbatch"),
        (["hydra.launcher.n_jobs=1", "seed=0,1"], "launcher=joblib"),
        (["resume=x"], "leave out -m"),
        (["stepz=1,2"], "did you mean steps"),
    ],
)
def test_sweeps_that_cannot_run_are_refused_before_a_folder_is_made(toy_paper, capsys, tmp_path, words, message):
    from common import cli

    assert cli.main(["run", "toy", "-m", *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_trainer_of_several_processes_is_refused_in_a_sweep(toy_paper, capsys):
    from common import cli

    assert cli.main(["run", "toy", "fit", "-m", "trainer=ddp", "seed=0,1"]) == 2
    assert "without -m" in capsys.readouterr().err


def test_experiments_are_chosen_by_a_glob(toy_paper, capsys, tmp_path):
    from common import cli

    assert cli.main(["run", "toy", "-m", "exp=glob([c*,s*])", "threads=1"]) == 0
    (sweep,) = (tmp_path / "runs" / "toy").glob("*/sweep-*")
    record = json.loads((sweep / "sweep.json").read_text())
    assert [job["overrides"][0] for job in record["jobs"]] == ["+exp=ci", "+exp=smoke"]


def test_a_sweep_of_an_experiment_file_runs_all_its_jobs(toy_paper, capsys, tmp_path):
    from common import cli
    from common.catalogue import catalogue, folder_of

    path = folder_of("configs.toy") / "exp" / "zz_sweep.yaml"
    path.write_text(
        '# @package _global_\n# a sweep\nsteps: 3\nhydra:\n  sweeper:\n    params:\n      seed: "0,1"\n      fail: "no,user"\n'
    )
    catalogue.cache_clear()
    try:
        assert cli.main(["run", "toy", "-m", "+exp=zz_sweep", "threads=1"]) == 2
        (sweep,) = (tmp_path / "runs" / "toy" / "zz_sweep").glob("sweep-*")
        assert [job["exit_code"] for job in json.loads((sweep / "sweep.json").read_text())["jobs"]] == [0, 2, 0, 2]
    finally:
        path.unlink()


def test_two_sweeps_are_compared(toy_paper, capsys, tmp_path):
    from common import cli

    for name in ("a", "b"):
        assert cli.main(["run", "toy", "-m", "seed=0,1", "steps=3", f"paths.runs={tmp_path / name}"]) == 0
    folders = [str(next((tmp_path / name).glob("toy/default/sweep-*"))) for name in ("a", "b")]
    capsys.readouterr()
    assert cli.main(["compare", *folders]) == 0
    assert "slope" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_workers_end_with_a_sweep_that_is_killed(tmp_path, launcher):
    pytest.importorskip("submitit" if launcher == "submitit_local" else "hydra_plugins.hydra_joblib_launcher")
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.common.toy import attach; attach()"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    parent = tmp_path / "killed"
    process = subprocess.Popen([*COMMAND, "-m", "seed=0,1", "steps=2000", "sleep=0.05", f"launcher={launcher}", f"paths.runs={parent}"],
                               cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and len(list(parent.glob("toy/default/sweep-*/*/steps.count"))) < 2:
        time.sleep(0.1)
    workers = {
        int(line) for path in parent.glob("toy/default/sweep-*/*/steps.count") for line in path.read_text().split()
    }
    assert workers
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and any(map(alive, workers)):
        time.sleep(0.2)
    assert not any(map(alive, workers))


def alive(pid: int) -> bool:
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
