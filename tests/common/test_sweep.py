"""Sweeps through launchers whose jobs run in other processes."""

import json
import os

import pytest

from tests.common.test_experiment import ROOT, command


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
