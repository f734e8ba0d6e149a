"""The commands: settings that do not go together, estimates without weights, resume, and a person's own pair."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from common.errors import Interrupted, UserError
from common.experiment import launch
from common.settings import compose
from papers.kd_aux import benchmark, fit, metrics, networks, settings, worlds
from tests.papers.kd_aux.test_data import IMAGES, cifar

TINY = [
    "threads=1",
    "device=cpu",
    "study.train_per_class=5",
    "study.teacher_recipe.epochs=2",
    "study.student_recipe.epochs=2",
]


@pytest.mark.parametrize(("line", "message"), [
    (["methods=[ours]"], "unknown method of methods 'ours'"), (["method_settings.kd.T=-1"], "method_settings.kd.T is -1"),
    (["method_settings.kd.method=dk"], "did you mean"), (["parts=[transfer]"], "transfer needs images"),
    (["parts=[watch]", "watch.methods=[kd]"], "no auxiliary variable"), (["compare.joint_over_ce=[joint,none]"], "compare.joint_over_ce"),
    (["parts=[tune]", "tune.methods=[crd]"], "unknown tune.spaces entry"), (["parts=[variants]", "variants.run=[huge]"], "unknown variant"),
    (["method_settings.ce={method: ce, kd: -1.0}"], "give a number of at least 0"),
])  # fmt: skip
def test_settings_that_do_not_go_together_are_one_sentence(line, message):
    with pytest.raises(UserError, match=message) as told:
        settings.check(compose("kd_aux", "train", line))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(("line", "message"), [
    (["study.train_per_class=1"], "give at least 2"), (["tau_queue.tau=[0.0]"], "above 0"), (["data.name=cifar"], "choose mixture"),
    (["pair=resnet20_resnet56"], "choose wrn"), (["parts=[methods,methods]"], "name each once"), (["seeds=[]"], "give at least one"),
])  # fmt: skip
def test_values_out_of_range_are_refused_at_composition(line, message):
    with pytest.raises(UserError, match=message):
        compose("kd_aux", "train", line)


def test_too_few_rows_for_a_world_are_told():
    with pytest.raises(UserError, match="leave none to test on"):
        launch("kd_aux", [*TINY, "parts=[methods]", "methods=[ce]", "seeds=[0]", "study.validation=198"])


@pytest.mark.parametrize("pair", benchmark.PAIRS)
def test_every_pair_is_estimated_without_weights(pair):
    cfg = compose(
        "kd_aux", "train", [f"+exp={'imagenet' if pair in benchmark.IMAGENET else 'cifar100'}", f"pair={pair}"]
    )
    assert cfg.parts == ["benchmark"]


@pytest.mark.parametrize("line", [["+exp=cifar100", "pair=wrn_40_2_shufflev1"], ["+exp=imagenet"]])
def test_dry_runs_say_parameters_memory_and_hours(line):
    found = launch("kd_aux", [*line, "run.dry=true", "threads=1", "device=cpu"]).metrics
    assert found["params"] == {"+exp=cifar100": 949_258, "+exp=imagenet": 11_689_512}[line[0]]
    assert found["memory_gb"] > 0
    assert found["hours"] > 1
    with pytest.raises(UserError, match=r"benchmark\.data is not given"):
        launch("kd_aux", [*line, "threads=1", "device=cpu"])


def test_the_benchmark_runs_on_files_of_its_formats_and_goes_on_after_a_stop(tmp_path, monkeypatch):
    (tmp_path / "cifar").mkdir()
    for split in ("train", "test"):
        (tmp_path / "cifar" / split).write_bytes(cifar(IMAGES, range(6)))
    torch.save({"model": networks.make("vgg13", 100).state_dict()}, tmp_path / "vgg13.pth")
    line = ["+exp=cifar100", "pair=vgg13_vgg8", f"benchmark.data={tmp_path / 'cifar'}", f"benchmark.teacher={tmp_path / 'vgg13.pth'}", "benchmark.queue=8",
            "benchmark.recipe={epochs: 2, batch_size: 3, milestones: [1]}", "threads=1", "device=cpu"]  # fmt: skip
    whole = launch("kd_aux", line)
    calls, original = 0, benchmark.data.augmented

    def stopped(*args, **options):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Interrupted(130)
        return original(*args, **options)

    monkeypatch.setattr(benchmark.data, "augmented", stopped)
    with pytest.raises(Interrupted):
        launch("kd_aux", line)
    monkeypatch.setattr(benchmark.data, "augmented", original)
    folder = Path(os.environ["PAPERS_RUNS"]) / "kd_aux" / "cifar100" / "latest"
    assert launch("kd_aux", [f"resume={folder.resolve()}"]).metrics == whole.metrics
    with pytest.raises(UserError, match=r"vgg13\.pth lacks"):
        launch("kd_aux", [*line, "pair=resnet56_resnet20"])


def test_interrupted_study_goes_on_to_the_same_figures(monkeypatch):
    line = [*TINY, "parts=[methods]", "methods=[ce,kd,joint]", "seeds=[0,1]"]
    whole = launch("kd_aux", line)
    original = worlds.judged_all

    def stopped(*args):
        if args[3] == "aux_joint":
            raise Interrupted(130)
        return original(*args)

    monkeypatch.setattr(worlds, "judged_all", stopped)
    with pytest.raises(Interrupted):
        launch("kd_aux", line)
    monkeypatch.setattr(worlds, "judged_all", original)
    folder = Path(os.environ["PAPERS_RUNS"]) / "kd_aux" / "default" / "latest"
    resumed = launch("kd_aux", [f"resume={folder.resolve()}"])
    assert resumed.metrics == whole.metrics
    assert resumed.record["tables"] == whole.record["tables"]


def test_worlds_redraw_their_rows_and_never_touch_the_validation_rows():
    cfg = compose("kd_aux", "train")
    from papers.kd_aux import data

    found = data.mixture(np.random.default_rng(0))
    found = data.Set(found.name, found.x, found.y, 10)
    position = torch.arange(2000) % 200
    held = {tuple(row.tolist()) for row in found.x[position < 50]}
    run = None
    a, b = (worlds.split(data.Set("raw", found.x[:, None, None], found.y, 10), cfg.study, seed, run) for seed in (0, 1))
    for world in (a, b):
        assert not held & {tuple(row.flatten().tolist()) for row in torch.cat([world.x, world.test_x])}
        assert len(world.y) == 200
        assert torch.bincount(world.y).tolist() == [20] * 10
    assert not torch.equal(a.x, b.x)
    judged = worlds.split(data.Set("raw", found.x[:, None, None], found.y, 10), cfg.study, 0, run, "validation")
    assert {tuple(row.flatten().tolist()) for row in judged.test_x} == held


# ---- figures -----------------------------------------------------------------------------------------------------------


def test_calibration_error_by_hand():
    p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]])
    assert metrics.calibration_error(p, torch.tensor([0, 0, 0, 1]), bins=10) == pytest.approx(
        100 * (0.5 * 0.1 + 0.5 * 0.1)
    )


def test_paired_interval_is_students():
    from scipy.stats import ttest_rel

    a, b = np.random.default_rng(0).normal(size=(2, 9))
    found, theirs = metrics.paired(a, b), ttest_rel(a, b).confidence_interval(0.95)
    assert (found["low"], found["high"]) == pytest.approx((theirs.low, theirs.high))
    with pytest.raises(ValueError, match="the same seeds"):
        metrics.paired(a, b[:3])


def test_purity_is_the_mass_on_the_own_class():
    queue = torch.eye(3)
    assert metrics.purity(
        torch.eye(3), torch.tensor([0, 1, 2]), queue, torch.tensor([0, 1, 2]), tau=0.01
    ) == pytest.approx(1.0)
    assert metrics.purity(
        torch.eye(3), torch.tensor([0, 1, 2]), queue, torch.tensor([1, 2, 0]), tau=0.01
    ) == pytest.approx(0.0, abs=1e-6)


def test_rates_fall_as_the_recipe_says():
    steps = fit.Recipe(240, 64, 0.05, schedule="steps", milestones=(150, 180, 210))
    assert [round(steps.rate(epoch * 10, 10), 7) for epoch in (0, 149, 150, 180, 210, 239)] == [
        0.05,
        0.05,
        0.005,
        0.0005,
        0.00005,
        0.00005,
    ]
    assert fit.Recipe(10, 1, 1.0, schedule="cosine").rate(50, 10) == pytest.approx(0.5)


# ---- a person's own pair -----------------------------------------------------------------------------------------------

OWN = ["teacher.factory=papers.kd_aux.networks:mlp", "teacher.arguments={widths: [8,16,3]}", "student.factory=papers.kd_aux.networks:mlp",
       "student.arguments={widths: [8,4,3]}", "trials=2", "recipe.epochs=2", "threads=1", "device=cpu"]  # fmt: skip


@pytest.fixture
def own(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    np.savez(tmp_path / "own.npz", x=(rng.normal(size=(3, 8))[y] + rng.normal(size=(60, 8))).astype("f4"), y=y)
    save_file(networks.mlp([8, 16, 3]).state_dict(), tmp_path / "teacher.safetensors")
    return [
        *OWN,
        f"data.path={tmp_path / 'own.npz'}",
        f"teacher.path={tmp_path / 'teacher.safetensors'}",
        f"out={tmp_path / 'student'}",
    ]


def test_own_pair_is_distilled_tuned_and_written(own, tmp_path):
    found = launch("kd_aux", [*own, f"cache={tmp_path / 'words.safetensors'}"], "distil")
    assert {row["method"] for row in found.record["tables"]["report"]} == {"ce", "kd", "aux_joint"}
    assert [row["method"] for row in found.record["tables"]["trials"]] == ["kd"] * 2 + ["aux_joint"] * 2
    report = json.loads((tmp_path / "student" / "report.json").read_text())
    assert report["over_kd"]["low"] <= report["over_kd"]["mean"] <= report["over_kd"]["high"]
    card = json.loads((tmp_path / "student" / "model.json").read_text())
    networks.mlp(**card["arguments"]).load_state_dict(load_file(tmp_path / "student" / "model.safetensors"))
    with pytest.raises(UserError, match=r"words\.safetensors belongs to another teacher, other data"):
        launch("kd_aux", [*own, f"cache={tmp_path / 'words.safetensors'}", "seed=1"], "distil")


def test_own_transformers_pair_is_written_as_a_transformers_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    shape = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 20,
        "num_labels": 2,
    }
    transformers.BertForSequenceClassification(transformers.BertConfig(**shape)).save_pretrained(tmp_path / "teacher")
    student = transformers.BertForSequenceClassification(transformers.BertConfig(**shape | {"hidden_size": 4}))
    student.config.architectures = ["BertForSequenceClassification"]
    student.config.save_pretrained(tmp_path / "student")
    y = np.arange(30) % 2
    np.savez(
        tmp_path / "text.npz",
        input_ids=np.random.default_rng(0).integers(20, size=(30, 6)),
        attention_mask=np.ones((30, 6), int),
        y=y,
    )
    launch("kd_aux", [f"teacher.path={tmp_path / 'teacher'}", f"student.path={tmp_path / 'student'}", f"data.path={tmp_path / 'text.npz'}",
                      "trials=1", "recipe.epochs=1", f"out={tmp_path / 'out'}", "threads=1", "device=cpu"], "distil")  # fmt: skip
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert loaded.config.hidden_size == 4


@pytest.mark.parametrize(("line", "message"), [
    (["data.path=nowhere.npz"], "there is no nowhere.npz"), (["teacher.arguments={widths: [8,16,2]}"], "teacher.safetensors has"),
    (["student.factory=papers.kd_aux.networks:none"], "student.factory"), (["teacher.feature=layer7"], "no module 'layer7'"),
    (["student.arguments={widths: [5,4,3]}"], "the student cannot read data.path"), (["student.arguments={widths: [8,4,2]}"], "2 classes, data.path 3"),
    (["data.test=0.49", "data.validation=0.49"], "at least"),
])  # fmt: skip
def test_own_pairs_that_do_not_fit_are_one_sentence(own, line, message):
    with pytest.raises(UserError, match=message) as told:
        launch("kd_aux", [*own, *line], "distil")
    assert "\n" not in str(told.value)
