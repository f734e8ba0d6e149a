"""Loggers: metrics.csv always, others when asked, and a plain word where they cannot work."""

import csv

import pytest

from common import loggers
from common.errors import UserError
from common.experiment import launch


def test_metrics_csv_has_a_line_a_value(toy_paper):
    result = launch("toy", ["+exp=smoke"])
    with open(result.folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    curve = [row for row in rows if row["name"] == "fit.error"]
    assert [int(row["step"]) for row in curve] == list(range(15))
    assert float(curve[-1]["value"]) == result.metrics["fit.error"]


def test_tensorboard_writes_event_files(toy_paper):
    result = launch("toy", ["+exp=smoke", "logger=tensorboard"])
    assert list((result.folder / "tensorboard").glob("events*"))
    assert (result.folder / "metrics.csv").exists()


def test_wandb_without_a_key_names_both_ways_out(toy_paper, monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"wandb login.*WANDB_MODE=offline"):
        launch("toy", ["+exp=smoke", "logger=wandb"])


def test_wandb_key_in_netrc_is_enough(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    loggers.check({"name": "wandb"})


def test_wandb_works_offline_without_key_or_network(toy_paper, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    result = launch("toy", ["+exp=smoke", "logger=wandb"])
    assert list((result.folder / "wandb").glob("offline-run-*"))
