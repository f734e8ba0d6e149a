"""What a job may do with its run."""

import math
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from common import processes
from common.errors import UserError
from common.rng import Rng
from common.run import Run


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path, paper="toy")


def test_generators_depend_on_seed_and_name_alone():
    first = Rng(0, "a", 1).numpy.normal(size=3)
    Rng(0, "b").numpy.normal()
    assert np.array_equal(first, Rng(0, "a", 1).numpy.normal(size=3))
    others = [Rng(1, "a", 1), Rng(0, "a", 2), Rng(0, "a1"), Rng(0, "a", "1"), Rng(0, "a")]
    assert len({rng.seed for rng in [Rng(0, "a", 1), *others]}) == 6
    assert torch.equal(torch.rand(2, generator=Rng(0, "t").torch), torch.rand(2, generator=Rng(0, "t").torch))


def test_metrics_are_numbers_with_dotted_names(run):
    run.log({"a": {"b": np.float32(0.5), "c": torch.tensor(2)}, "d": True})
    assert run.metrics == {"a.b": 0.5, "a.c": 2, "d": 1}
    assert all(type(v) in (int, float) for v in run.metrics.values())
    with pytest.raises(TypeError, match="not a number"):
        run.log({"name": "text"})


def test_record_is_strict_json_with_null_for_nan(run):
    run.log({"bad": math.nan, "huge": math.inf})
    run.save("done")
    text = (run.dir / "result.json").read_text()
    assert '"bad": null' in text
    assert '"huge": null' in text


def test_figures_are_saved_and_closed(run):
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots()
    axis.plot([1, 2])
    path = run.figure("curve", figure)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert run.figures == ["figures/curve.png"]
    assert not plt.fignum_exists(figure.number)


@pytest.mark.parametrize("name", ["../up", "", "a/b", ".hidden", "sp ace"])
def test_names_become_files_only_where_they_can(run, name):
    with pytest.raises(ValueError, match="cannot name a file"):
        run.stage(name, lambda: 1)


def test_stage_key_decides_what_is_reused(run):
    calls = []

    def count() -> int:
        calls.append(1)
        return len(calls)

    def again() -> Run:
        return Run(run.dir, paper="toy")

    assert [again().stage("s", count, key=k) for k in ("a", "a", "b", "a")] == [1, 1, 2, 1]
    run.stage("s", count, key="a")
    with pytest.raises(ValueError, match="used before"):
        run.stage("s", count, key="a")


def test_a_stage_file_cannot_call_anything_but_the_record(run):
    from common import codec

    run.stage("s", lambda: 1)
    (path,) = run.dir.rglob("*.stage")
    codec.save(path, {"value": 2, "events": [("spawn", "evil", ["touch", str(run.dir / "evil")])]})
    fresh = Run(run.dir, paper="toy")
    assert fresh.stage("s", lambda: 3) == 3
    assert any("damaged" in note for note in fresh.notes)
    assert not (run.dir / "evil").exists()


def test_what_follows_a_stage_draws_the_same_whether_it_was_computed_or_found(run):
    def draws(run: Run) -> tuple[float, float]:
        run.stage("s", lambda: torch.rand(3))
        return torch.rand(1).item(), np.random.rand()  # noqa: NPY002

    assert draws(run) == draws(Run(run.dir, paper="toy"))


def test_full_disk_is_an_os_error_whatever_the_library_says(tmp_path):
    import resource

    from common import codec

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError):
            codec.save(tmp_path / "x", np.zeros(10**6))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 0),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, 3),
        ({"SLURM_PROCID": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, 1),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "3"}, 2),
        ({"RANK": "", "WORLD_SIZE": "2"}, 0),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1", "WORLD_SIZE": "2"}, 1),
        ({"RANK": "1"}, 0),  # left behind by a pod or a shell: nobody else would compute
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "1"}, 0),
        ({"SLURM_PROCID": "1"}, 0),
    ],
)
def test_rank_is_read_from_whoever_started_this_process(monkeypatch, environment, expected):
    from common.machine import rank

    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert rank() == expected


def test_shared_stage_needs_a_key(run):
    with pytest.raises(ValueError, match="give a key"):
        run.stage("s", lambda: 1, shared=True)


def test_stage_that_fails_leaves_nothing(run):
    def fail() -> int:
        run.log({"half": 1})
        raise KeyError

    with pytest.raises(KeyError):
        run.stage("s", fail)
    assert not list(run.dir.rglob("*.stage"))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot forget a peak")
def test_peak_memory_counts_from_where_it_was_forgotten():
    block = bytearray(b"x") * (200 * 2**20)
    before = processes.peak_rss_mb()
    del block
    processes.forget_peak_rss()
    assert processes.peak_rss_mb() < before - 150


def test_seeds_of_a_study_move_with_the_seed_of_the_run_and_do_not_overlap(tmp_path):
    assert Run(tmp_path, paper="toy").seeds([0, 1, 2]) == [0, 1, 2]
    assert Run(tmp_path, paper="toy", seed=1).seeds([0, 1]) == [1000, 1001]
    with pytest.raises(UserError, match="seeds is empty"):
        Run(tmp_path, paper="toy").seeds([])


def test_a_resumed_run_refuses_other_data_than_it_began_with(tmp_path):
    before = {"deep": {"source": "real", "path": "/there/deep", "sha256": "abc"}}
    run = Run(tmp_path, paper="toy", data_before=before)
    run.use_data("deep", "real", "/elsewhere/deep", "abc")
    for source, sha256 in (("synthetic", None), ("real", "def")):
        with pytest.raises(UserError, match="PAPERS_DATA"):
            run.use_data("deep", source, "x", sha256)


def test_a_shared_stage_read_twice_is_hashed_once(run, monkeypatch):
    sums = []
    monkeypatch.setattr("common.stages.sha256_of", lambda path: sums.append(path) or "abc")
    for _ in range(3):
        run.stage("s", lambda: 1, key=1, shared=True)
    assert len(sums) == 1
    assert run.data["s"]["sha256"] == "abc"


def test_services_log_to_the_run_and_die_with_it(run):
    service = run.spawn("sleeper", [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"])
    deadline = time.monotonic() + 30
    while not (run.dir / "sleeper.log").read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert service.peak_rss_mb > 1
    assert run.to_json("running")["peak_rss_mb"] > service.peak_rss_mb
    run.close()
    assert service.process.poll() is not None


def test_what_a_service_has_started_dies_with_it(run):
    from common.processes import descendants

    service = run.spawn("family", ["sh", "-c", "sleep 600 & wait"])
    deadline = time.monotonic() + 30
    while not (family := descendants(service.process.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    run.close()
    commands = [Path(f"/proc/{pid}/cmdline") for pid in family]

    def alive() -> list[Path]:
        return [path for path in commands if path.exists() and path.read_bytes()]  # (a zombie's is empty)

    deadline = time.monotonic() + 30
    while alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive()


def test_progress_yields_everything_with_and_without_a_terminal(run, capsys):
    assert list(run.progress(range(3), "x")) == [0, 1, 2]
    assert list(run.progress((i for i in range(3)), "x", total=3)) == [0, 1, 2]


def test_atomic_write_leaves_the_old_file_when_it_fails(tmp_path):
    from common import files

    files.write_atomic(tmp_path / "x", "old")
    with pytest.raises(RuntimeError), files.atomic_path(tmp_path / "x") as scratch:
        scratch.write_text("new")
        raise RuntimeError
    assert (tmp_path / "x").read_text() == "old"
    assert os.listdir(tmp_path) == ["x"]
