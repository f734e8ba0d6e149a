"""The commands: parts, dry runs, a user's own simulator, and one sentence for what a user can fix."""

import numpy as np
import pytest
import torch

from common.errors import UserError
from common.experiment import launch
from common.settings import compose
from papers.snpse import Posterior, settings
from papers.snpse.priors import from_spec

MODULE = """
import numpy as np

def batched(theta):
    return np.asarray(theta) + 0.1

def wrong(theta):
    return np.zeros((3, 3, 3))

def failing(theta):
    return np.asarray(theta) * np.nan
"""
TINY = ["budget=60", "training.steps=20", "training.width=16", "training.batch_size=32", "training.n_hpr=100", "report.draws=50",
        "report.predictive=20", "report.coverage=5", "threads=1"]  # fmt: skip


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "my_simulator_for_tests.py").write_text(MODULE)
    (tmp_path / "prior.yaml").write_text("kind: uniform\nlow: [-1.0, -1.0]\nhigh: [1.0, 1.0]\n")
    np.save(tmp_path / "x.npy", np.array([0.2, 0.3]))
    monkeypatch.chdir(tmp_path)
    return ["simulator=my_simulator_for_tests:batched", f"prior={tmp_path}/prior.yaml", f"x={tmp_path}/x.npy"]


def test_a_users_simulator_gives_a_posterior_that_loads(mine, tmp_path):
    result = launch("snpse", [*mine, *TINY, "rounds=2", f"out={tmp_path}/posterior.safetensors"], verb="infer")
    assert result.exit_code == 0
    assert {"rounds", "parameters", "predictive"} <= set(result.tables)
    prior = from_spec({"kind": "uniform", "low": [-1, -1], "high": [1, 1]})
    posterior = Posterior.load(tmp_path / "posterior.safetensors", prior)
    assert posterior.sample((10,)).shape == (10, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["simulator=my_simulator_for_tests:wrong"], r"shape \(3, 3, 3\)"),
        (["simulator=my_simulator_for_tests:failing"], "all 60 simulations of round 1 have NaN"),
        (["simulator=my_simulator_for_tests:nothing"], "has no function nothing"),
        (["simulator=no_such_module_here:f"], "cannot be imported"),
        (["simulator=plain"], "module:function"),
        (["rounds=61"], "budget is 60 and rounds is 61"),
        (["out=/no/such/folder/p.safetensors"], "no folder"),
    ],
)
def test_what_is_wrong_with_a_users_material_is_one_sentence(mine, changes, message):
    changed = {change.split("=")[0] for change in changes}
    kept = [given for given in [*mine, *TINY] if given.split("=")[0] not in changed]
    with pytest.raises(UserError, match=message) as error:
        launch("snpse", [*kept, *changes], verb="infer")
    assert "\n" not in str(error.value)


def test_an_observation_must_be_given():
    with pytest.raises(UserError, match="simulator must be given"):
        launch("snpse", TINY, verb="infer")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("parts=[moon]", "did you mean moons"), ("moons.observation=9", "moons.observation is 9"), ("training.head=flow", "choose score"),
        ("rounds.eps=1.0", r"rounds.eps is 1.0: give a number in \[0, 1\)"), ("training.lr=0.0", "training.lr is 0.0"),
        ("training.sigma_max=0.001", "they must rise"), ("training.beta_min=20.0", "they must rise"), ("moons.budgets=[50]", "needs two"),
        ("linear.budgets=[5]", "linear.budgets is"), ("benchmark.methods=[npe]", "benchmark.methods is"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_one_sentence(override, message):
    with pytest.raises(UserError, match=message):
        settings.check(compose("snpse", "train", [override]))


@pytest.mark.parametrize("part", ["rounds", "corrections", "valid", "pyloric"])
def test_a_round_needs_simulations(part):
    with pytest.raises(UserError, match=f"{part}.budget is 5"):
        settings.check(compose("snpse", "train", [f"parts=[{part}]", f"{part}.budget=5", f"{part}.rounds=3"]))


def test_the_papers_scale_is_estimated_without_running_it():
    result = launch("snpse", ["+exp=paper", "run.dry=true", "threads=1"])
    assert result.metrics["params"] > 250_000
    assert result.metrics["hours"] > 24


def test_the_chapters_library_example_runs(capsys):
    import re
    from pathlib import Path

    import papers.snpse

    chapter = (Path(papers.snpse.__file__).parent / "README.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", chapter, re.DOTALL):
        torch.manual_seed(0)
        exec(compile(block, "README.md", "exec"), {})
    assert "torch.Size([1000, 2])" in capsys.readouterr().out


def test_the_bench_runs_with_what_is_here(monkeypatch):
    from papers.snpse import bench

    monkeypatch.setattr("common.optional.installed", lambda name: False)
    rows = bench.bench(quick=True)
    assert rows["fit"][0]["contestant"] == "ours"
