"""Loops that a kill does not spoil."""

import csv
import subprocess
import sys
from typing import NamedTuple

import pytest
import pytorch_lightning as pl
import torch
from omegaconf import OmegaConf

from common.errors import UserError
from common.files import ROOT
from common.run import Run
from common.training import _share, lightning_fit, resumable

CFG = OmegaConf.create({"trainer": {"accelerator": "cpu", "devices": 1, "strategy": "auto", "precision": "32-true"}})


class Prompts(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Killed(Exception):
    pass


class Net(pl.LightningModule):
    """A network whose step is random through dropout and whose optimiser has a memory."""

    def __init__(self, kill_at=None):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.kill_at, self.done = kill_at, 0

    def training_step(self, batch, index):
        self.done += 1
        if self.done == self.kill_at:
            raise Killed
        loss = (self.layers(batch["x"]) - batch["y"]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [
            {"scheduler": torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20), "interval": "step"}
        ]


def make_run(folder) -> Run:
    folder.mkdir(exist_ok=True)
    return Run(folder, paper="toy")


def fit(run, net, steps=12, **options):
    def batch(step):
        x = torch.randn(4, 3, generator=run.rng("batch", step).torch)
        return {"x": x, "y": x.sum(1, keepdim=True)}

    lightning_fit(net, batch, steps, CFG, run, save_seconds=0.0, **options)
    return {name: value.clone() for name, value in net.state_dict().items()}


def test_lightning_run_that_dies_goes_on_to_the_same_weights_and_curve(tmp_path):
    whole_run = make_run(tmp_path / "whole")
    with whole_run.recording() as whole_curve:
        whole = fit(whole_run, Net())
    with pytest.raises(Killed):
        fit(make_run(tmp_path / "killed"), Net(kill_at=7))
    resumed_run = make_run(tmp_path / "killed")
    with resumed_run.recording() as curve:
        net = Net()
        resumed = fit(resumed_run, net)
    assert net.done == 6
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert curve == whole_curve


def test_finished_lightning_run_is_not_trained_again(tmp_path):
    whole = fit(make_run(tmp_path / "a"), Net())
    net = Net()
    again = fit(make_run(tmp_path / "a"), net)
    assert net.done == 0
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_after_step_sees_every_step_once(tmp_path):
    seen = []
    fit(make_run(tmp_path / "a"), Net(), after_step=seen.append)
    assert seen == list(range(12))


def test_shares_of_a_batch_make_the_whole():
    batch = {"x": torch.arange(6), "y": (torch.arange(6) * 2,)}
    parts = [_share(batch, part, 2) for part in range(2)]
    assert sorted(torch.cat([p["x"] for p in parts]).tolist()) == list(range(6))
    assert torch.equal(parts[1]["y"][0], parts[1]["x"] * 2)
    with pytest.raises(ValueError, match="does not divide"):
        _share(torch.arange(5), 0, 2)


def test_a_share_of_a_named_tuple_is_one():
    batch = Prompts(torch.arange(4), torch.arange(8).reshape(4, 2))
    share = _share(batch, 1, 2)
    assert type(share) is Prompts
    assert share.x.tolist() == [1, 3]
    assert share.y.tolist() == [[2, 3], [6, 7]]


def test_loop_that_dies_goes_on_with_its_state_and_its_curve(tmp_path):
    class Sum:
        value = 0.0

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state):
            self.value = state["value"]

    def loop(run, kill_at=None):
        total = Sum()
        for step in resumable(run, "sum", 10, {"total": total}, save_seconds=0.0):
            if step == kill_at:
                raise Killed
            total.value += run.rng("draw", step).numpy.normal()
            run.log({"total": total.value}, step=step)
        return total.value, run.metrics

    whole = loop(make_run(tmp_path / "whole"))
    with pytest.raises(Killed):
        loop(make_run(tmp_path / "killed"), kill_at=6)
    assert loop(make_run(tmp_path / "killed")) == whole


def test_two_processes_give_the_loss_curve_of_one(tmp_path):
    curves = {}
    for trainer in ("cpu", "ddp"):
        command = [
            sys.executable,
            "-m",
            "tests.common.toy",
            "run",
            "toy",
            "fit",
            f"trainer={trainer}",
            f"paths.runs={tmp_path / trainer}",
        ]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
        assert process.returncode == 0, process.stderr[-2000:]
        (folder,) = (tmp_path / trainer / "toy" / "default").glob("2*")  # the other rank wrote nothing
        with open(folder / "metrics.csv", newline="") as file:
            curves[trainer] = [float(row["value"]) for row in csv.DictReader(file)]
    assert len(curves["cpu"]) == 12 + 3
    assert curves["ddp"] == pytest.approx(curves["cpu"], rel=1e-5)


def test_devices_that_are_not_there_are_said(tmp_path):
    cfg = OmegaConf.create({"trainer": {**CFG.trainer, "accelerator": "gpu"}})
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(UserError, match="trainer=cpu"):
        lightning_fit(Net(), lambda step: torch.zeros(1), 1, cfg, make_run(tmp_path / "a"))
