"""The command: every part in small, resuming, any CSV, and one sentence for what a user can fix."""

import csv
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from common.errors import Interrupted, UserError
from common.experiment import launch
from common.settings import compose
from papers.loss_shaping import fitting, methods, metrics, outcome, recommender, settings, tuning
from papers.loss_shaping.constraints import levels_from_profile

FAST = [
    "threads=1",
    "device=cpu",
    "context=24",
    "label=8",
    "horizon=12",
    "epochs=1",
    "data.rows=400",
    "data.channels=2",
]


def run(*overrides):
    return launch("loss_shaping", [*FAST, *overrides])


def test_smoke_has_every_part_and_method():
    done = launch("loss_shaping", ["+exp=smoke", "threads=1", "device=cpu"])
    assert {"compare", "details", "intervals", "profile", "shaping", "control", "convex"} <= set(done.tables)
    assert [row["method"] for row in done.tables["compare"]] == [
        "erm", "penalty", "reweight", "minimax", "hard", "resilient", "monotone", "smooth"]  # fmt: skip
    assert done.metrics["control.synthetic.official_rescaled.std_change"] < 1e-2
    assert done.metrics["control.synthetic.held.std_change"] < 1e-3
    assert len(done.record["figures"]) >= 4


def test_a_stopped_training_goes_on_to_the_same_figures(monkeypatch):
    """Dropout, prices, slacks, the best checkpoint and the path of the prices all survive."""
    line = ["methods=[erm,resilient]", "model=transformer", "model.d_model=8", "model.heads=2", "model.d_ff=16", "model.dropout=0.3",
            "epochs=2", "data.rows=900"]  # fmt: skip
    whole = run(*line)
    from common import training
    from papers.loss_shaping.shaping import ConstrainedTraining

    real_fit, real_consider, calls = training.lightning_fit, ConstrainedTraining.consider, []
    monkeypatch.setattr(training, "lightning_fit", lambda *a, **k: real_fit(*a, **k, save_seconds=0.0))

    def stopping(self, val_loss, epoch):
        calls.append(epoch)
        if len(calls) == 3:  # in the first epoch of the second training: the run stops when the step is safe
            signal.raise_signal(signal.SIGINT)
        real_consider(self, val_loss, epoch)

    monkeypatch.setattr(ConstrainedTraining, "consider", stopping)
    with pytest.raises(Interrupted):
        run(*line)
    folder = (whole.folder.parent / "latest").resolve()
    assert folder != whole.folder
    resumed = launch("loss_shaping", [f"resume={folder}"])
    assert (resumed.metrics, resumed.tables) == (whole.metrics, whole.tables)
    assert calls == [1, 2, 1, 2]


def test_any_csv_with_dates_is_enough(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"when": pd.date_range("2024-01-01", periods=300, freq="D"), "x": rng.normal(size=300).cumsum(), "name": "a"}
    )
    table.to_csv(tmp_path / "my.csv", index=False)
    done = run(
        f"data.path={tmp_path / 'my.csv'}", "data.date=when", "data.drop=[name]", "data.freq=d", "methods=[erm,hard]"
    )
    assert done.record["data"]["data.path"]["source"] == "real"
    assert done.metrics["compare.hard.mse"] > 0


def test_select_takes_what_validation_prefers_and_never_looks_at_test(monkeypatch):
    """Six trainings of which validation prefers the fourth, and test another."""
    val, test = iter([9, 5, 4, 3, 1, 2, 6]), iter([9, 1, 2, 3, 6, 5, 4])  # ERM first

    def fit(*args):
        return {"train": np.ones((12, 2)), "val": np.full((12, 2), next(val)), "test": np.full((12, 2), next(test))}

    monkeypatch.setattr(outcome.fitting, "fit", fit)
    monkeypatch.setattr(outcome.methods, "weighting", lambda *args: None)
    cfg = compose("loss_shaping", "train", ["horizon=12", "level=select"])
    notes = []
    chosen = outcome.train_methods(cfg, SimpleNamespace(note=notes.append), None, ["hard"], 2021, "x")[1]
    assert chosen.rule == "val_q25"
    assert "val_q25" in notes[0]


def test_the_reported_epoch_is_the_one_whose_weights_are_measured():
    """A learning rate that explodes makes the second epoch worse than the first."""
    line = ["methods=[erm]", "epochs=3", "lr=0.01", "decay=1000.0"]
    best, last = (run(*line, f"report={report}").tables["details"][0] for report in ("best_val", "last"))
    assert last["epoch"] == 3
    assert best["epoch"] < 3
    assert best["val_mse"] < last["val_mse"]


def test_the_benchmark_s_schedule_halves_from_the_third_epoch_on():
    cfg = compose("loss_shaping", "train", ["schedule=type1"])
    assert [fitting.lr_factor(cfg)(epoch) for epoch in range(5)] == [1.0, 1.0, 0.5, 0.25, 0.125]


def test_the_chapter_s_library_example_runs_as_printed(capsys):
    chapter = (Path(methods.__file__).parent / "README.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", chapter, re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("tensor([")


def test_each_step_s_error_level_and_price_are_in_a_table():
    done = run("methods=[erm,hard,monotone]")
    rows = done.tables["profile"]
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert {"erm", "hard", "monotone", "hard.level", "hard.price"} == set(rows[0]) - {"step"}
    assert np.mean([row["hard"] for row in rows]) == pytest.approx(done.metrics["compare.hard.mse"])


def test_groups_of_steps_and_channels_get_prices_of_their_own():
    done = run("methods=[erm,groups]", "groups=[{steps:[1,2],level:0.0},{channels:[v2],level:100.0}]")
    rows = {(row["group"], row["method"]): row for row in done.tables["groups"]}
    assert rows[1, "groups"]["price"] > 0
    assert rows[2, "groups"]["price"] == 0


def test_the_recommended_level_is_feasible_and_the_lowest_is_not_beaten():
    done = run("parts=[recommend]", "recommend.points=4", "recommend.steps=4000")
    rows = done.tables["frontier"]
    assert [row["mse"] for row in rows] == sorted(row["mse"] for row in rows)
    assert rows[-1]["max_step"] == pytest.approx(done.metrics["recommend.lowest_level"], rel=0.02)
    assert rows[0]["max_step"] == pytest.approx(rows[0]["level"])
    bound, lowest = done.metrics["recommend.bound"], done.metrics["recommend.lowest_level"]
    assert 0.97 * lowest < bound <= lowest


def test_levels_that_were_not_held_are_told():
    done = run("parts=[recommend]", "recommend.points=3", "recommend.steps=2", "recommend.cost=0.0")
    assert any(note.startswith("2 of 3 levels were not held after 2 steps") for note in done.record["notes"])


def test_the_stand_in_is_weighted_least_squares():
    rng = np.random.default_rng(0)
    X = np.c_[rng.normal(size=(200, 3)), np.ones(200)]
    Y = X @ rng.normal(size=(4, 5)) + rng.normal(size=(200, 5))
    model = recommender.SharedCurves(recommender.Moments(X.T @ X / 200, Y.T @ X / 200, Y.T @ Y / 200), width=2)
    w = rng.uniform(0.5, 2.0, 5)

    def loss(W):
        return ((Y - X @ W.T @ model.Phi.T) ** 2).mean(0)

    # brute force on vec(W): sqrt(w_i) (y_i - phi_i^T W x)
    design = np.concatenate(
        [np.sqrt(w[i]) * np.einsum("k,np->nkp", model.Phi[i], X).reshape(200, -1) for i in range(5)]
    )
    target = np.concatenate([np.sqrt(w[i]) * Y[:, i] for i in range(5)])
    W = np.linalg.lstsq(design, target, rcond=None)[0].reshape(2, 4)
    assert model.losses(w) == pytest.approx(loss(W), rel=1e-5)


def test_there_are_576_published_triples_in_order():
    with open(Path(methods.__file__).parent / "levels.csv") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert len(rows) == 576
    assert len({(r["data"], r["model"], r["horizon"], r["segment"]) for r in rows}) == 9 * 8 * 4 * 2
    assert all(float(r["q25"]) <= float(r["q50"]) <= float(r["q75"]) for r in rows)
    assert methods.published_level("etth1", "autoformer", 96, "val", 50) == 0.521
    assert methods.published_level("traffic", "film", 720, "train", 75) == 0.342


def test_level_rules_give_what_they_name():
    erm = {"train": np.arange(24.0).reshape(12, 2) / 10, "val": np.arange(24.0).reshape(12, 2)}  # no test in sight
    cfg = compose("loss_shaping", "train", ["horizon=12"])
    for rule, segment, q in (("train_q25", "train", 0.25), ("train_q75", "train", 0.75), ("val_q50", "val", 0.5)):
        assert methods.levels_of(cfg, rule, erm) == pytest.approx(levels_from_profile(erm[segment].mean(1), q, 3))
    own = OmegaConf.merge(cfg, {"levels": [0.3]})
    assert methods.levels_of(own, "train_q50", erm) == pytest.approx(np.full(12, 0.3))
    paper = compose(
        "loss_shaping", "train", ["+exp=paper", "data=weather", "model=film", "horizon=336", "variant=resilient"]
    )
    assert methods.levels_of(paper, paper.level, {})[0] == 0.685
    assert list(paper.methods) == ["erm", "resilient"]


SLOW = ("informer", "reformer", "pyraformer", "itransformer", "film", "patchtst")


@pytest.mark.parametrize(
    "model", ["autoformer", "nonstationary", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_every_forecaster_trains_by_the_command(model):
    small = ["model.d_model=8", "model.heads=2", "model.d_ff=16"]
    extra = ["model.hippo_order=8"] if model == "film" else ["model.patch=8"] if model == "patchtst" else []
    done = run("methods=[hard]", f"model={model}", *small, *extra, "data.rows=300", "batch_size=16")
    assert [row["method"] for row in done.tables["compare"]] == ["erm", "hard"]


def test_a_dry_run_of_the_paper_scale_counts_without_data():
    done = launch("loss_shaping", ["+exp=paper", "data=traffic", "model=itransformer", "horizon=720", "run.dry=true"])
    assert done.metrics["params"] > 6e6
    assert done.metrics["hours"] > 0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("levels=[0.1,0.2,0.3]", "levels has 3 entries: give one for all steps, or 12"),
        ("levels=[-0.1]", "must not be negative"),
        ("levels=[a]", "levels cannot be used"),
        ("level=median", "use train_q25"),
        ("level=published_val_q50", "there is no published level"),
        ("methods=[lagrange]", "methods is .*lagrange.*: choose erm"),
        ("methods=[erm,groups]", "needs groups"),
        ("seeds=[]", "seeds is empty"),
        ("schedule=cosine", "schedule"),
        ("report=first", "report"),
        ("sampling=true methods=[erm,monotone]", "sampling"),
        ("parts=[control] data.path=my.csv", r"parts=\[compare\]"),
        ("parts=[shaping] groups=[{steps:[1],level:0.1}]", r"parts=\[compare\]"),
        ("parts=[shaping] shaping.methods=[erm]", "must have erm and hard"),
        ("parts=[control] control.level=median", "control.level"),
        ("parts=[control] duals.lr=-1.0", "duals.lr"),
        ("duals.order=both", "duals.order"),
        ("duals.lr=-1.0", "lr"),
        ("epochs=0", "epochs"),
        ("data.stride.train=0", "stride"),
        ("horizon=1", "horizon is 1: give at least 2"),
        ("data.rows=0", "data.rows is 0"),
        ("data.channels=0", "data.channels is 0"),
        ("model.width=0", "model.width is 0"),
        ("model.dropout=-0.1", "model.dropout is -0.1"),
        ("model.dropout=1.0", r"model.dropout is 1.0: give a number in \[0, 1\)"),
        ("model.encoder_layers=-1", "model.encoder_layers is -1"),
        ("model=dlinear model.moving_average=24", "it must be odd"),
        ("model=reformer model.hashes=0", "model.hashes is 0"),
        ("convex.steps=1", "convex.steps is 1"),
        ("convex.d=0", "convex.d is 0"),
        ("convex.samples=3", "give at least convex.d = 4"),
        ("convex.noise=-1.0", "convex.noise is -1.0"),
        ("convex.dual_lr=0.0", "convex.dual_lr is 0.0: give a number above 0"),
        ("convex.slack_lr=-1.0", "convex.slack_lr is -1.0"),
        ("recommend.points=0", "recommend.points is 0"),
        ("recommend.cost=-1.0", "recommend.cost is -1.0"),
        ("control.official_duals.lr=-1.0", "control.official_duals.lr is -1.0"),
        ("control.data=eth1", "unknown control.data 'eth1': did you mean etth1"),
        ("shaping.sets=[]", "shaping.sets is empty"),
        ("shaping.sets=[etth1]", "write each entry as {data: etth1, epochs: 3}"),
        ("shaping.sets=[{epochs:1}]", "write data"),
        ("shaping.sets=[{data:synthetic,epochs:0}]", "at least one epoch"),
        ("shaping.sets=[{data:synthetic,epochs:1},{data:synthetic,epochs:2}]", "shaping.sets has synthetic twice"),
        ("seeds=[1,2,1]", "seeds has 1 twice"),
        ("methods=[]", "methods is empty"),
        ("methods=[erm,hard,hard]", "methods has hard twice"),
        ("level=linear family.slope=-0.1", "level=linear cannot be used .levels must not be negative"),
        ("level=exponential family.scale=-0.3", "lowest is -0.3.: change family"),
        ("decay=-0.5", "decay is -0.5"),
        ("penalty_rho=-1.0", "penalty_rho is -1.0"),
        ("reweight_power=-1.0", "reweight_power is -1.0"),
        ("tolerance=-1.0", "tolerance is -1.0"),
        ("variant=foo", "variant is 'foo': choose erm"),
        ("data.missing=drop", "data.missing is 'drop': choose error, mask, ffill"),
        ("data.irregular=drop", "data.irregular is 'drop': choose error, keep"),
        ("label=30", "label is 30, and the context has 24 rows"),
        ("label=-1", "label is -1: give at least 0"),
        ("minimax_share=1.5", "minimax_share is 1.5"),
        ("resilience.alpha=0.0", "resilience.alpha is 0.0: give a number above 0"),
        ("methods=[erm,groups] groups=[{step:[1],level:0.1}]", "unknown key of groups 'step': did you mean steps"),
        ("methods=[erm,groups] groups=[{steps:3,level:0.1}]", "steps of group 1 are 3: write a list"),
        ("methods=[erm,groups] groups=[{steps:[1,1],level:0.1}]", "steps of group 1 has 1 twice"),
        ("methods=[erm,groups] groups=[{steps:[1]}]", "group 1 has no level"),
        ("duals.averaged=1.0", r"duals.averaged is 1.0: give a number in \[0, 1\)"),
        ("duals.optimiser_state=fresh", "duals.optimiser_state is 'fresh': choose as_is, rescaled, exact"),
        ("tuned.methods=[]", "tuned.methods is empty"),
        ("tuned.methods=[{name:a,method:hard,grid:{lr:[0.1]}}]", "begins with ERM"),
        ("tuned.methods=[{name:erm,method:erm,grid:{lr:[0.1]}},{name:a,method:hard,grid:{lr:[0.1,0.2]}}]", "as many as the others"),
        ("tuned.methods=[{name:erm,method:erm,grid:{rate:[0.1]}}]", "rate is no setting"),
        ("tuned.judge=[100]", "tuned.judge has 100, which chose"),
        ("data.path=my.csv level=published_val_q50", "data.path is my.csv: use level=val_q50"),
    ],
)  # fmt: skip
def test_what_a_user_can_fix_is_one_sentence(override, message):
    with pytest.raises(UserError, match=message):
        settings.check(compose("loss_shaping", "train", [*FAST, *override.split()]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("parts=[nothing]", "choose compare, convex"),
        ("horizon=5000", "a window takes 24 \\+ 5000"),
        ("data.path=/nowhere.csv", "data.path: there is no /nowhere.csv"),
        ("data.path=/", "is a folder"),
        ("data=electricity", "is not here"),
        ("model=transformer model.heads=3", "heads"),
        ("parts=[recommend] recommend.points=3 recommend.steps=10 recommend.dual_lr=1e300", "a smaller one may do"),
    ],
)
def test_what_shows_only_in_a_run_is_one_sentence_too(override, message):
    with pytest.raises(UserError, match=message):
        run(*override.split())


# ---- equal tuning ----------------------------------------------------------------------------------------------------


def test_every_method_has_as_many_trials_and_is_judged_on_seeds_that_chose_nothing():
    done = run("parts=[tuned]", "tuned.seeds=[1]", "tuned.judge=[7,8]", "data.rows=600", "tuned.sets=[{data:synthetic,epochs:1}]",
               "tuned.methods=[{name:erm,method:erm,grid:{lr:[0.01,0.02]}},{name:as_is,method:hard_as_is,grid:{duals.lr:[0.1,1.0]}},"
               "{name:rescaled,method:hard_rescaled,grid:{duals.lr:[0.1,1.0]}}]")  # fmt: skip
    tried = [row["method"] for row in done.tables["tuned_trials"]]
    assert tried == ["erm", "erm", "as_is", "as_is", "rescaled", "rescaled"]
    assert [(row["method"], row["seed"]) for row in done.tables["tuned_seeds"]] == [
        (method, seed) for seed in (7, 8) for method in ("erm", "as_is", "rescaled")
    ]
    gap = done.metrics["tuned.synthetic.rescaled_minus_as_is.window_std_change"]
    rows = {(row["method"], row["seed"]): row["window_std_change"] for row in done.tables["tuned_seeds"]}
    assert gap == pytest.approx(np.mean([rows["rescaled", s] - rows["as_is", s] for s in (7, 8)]))
    assert done.metrics["tuned.synthetic.rescaled_minus_as_is.window_std_change.low"] <= gap


def test_the_flattest_of_the_affordable_trials_is_chosen():
    rows = [{"val_std_change": std, "val_mse_change": mse} for std, mse in ((-10, 1), (-30, 9), (-20, 5))]
    assert tuning.choice(rows, cost=6.0) == 2
    assert tuning.choice(rows, cost=0.5) == 0  # none: the cheapest
    grid = {"lr": [1, 2], "duals.lr": [3, 4]}
    assert tuning.trials(grid) == [{"lr": a, "duals.lr": b} for a in (1, 2) for b in (3, 4)]


def test_a_paired_interval_is_that_of_student():
    from scipy import stats

    d = np.random.default_rng(0).normal(size=20)
    assert metrics.paired_interval(d) == pytest.approx(stats.t.interval(0.95, 19, d.mean(), stats.sem(d)))


def test_a_series_with_gaps_trains_and_is_measured_on_what_was_seen(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "date": pd.date_range("2024-01-01", periods=400, freq="15min"),
            "a": rng.normal(size=400),
            "b": rng.normal(size=400),
        }
    )
    table.loc[rng.choice(400, 40, replace=False), "a"] = np.nan
    table.to_csv(tmp_path / "gaps.csv", index=False)
    done = run(
        f"data.path={tmp_path / 'gaps.csv'}",
        "data.missing=mask",
        "methods=[erm,hard,reweight]",
        "duals.optimiser_state=rescaled",
    )
    assert np.isfinite(done.metrics["compare.hard.mse"])
    assert any("40 missing values are hidden" in note for note in done.notes)
    assert any("data.freq=t" in note for note in done.notes)


def test_moments_that_would_not_fit_are_one_sentence(monkeypatch):
    monkeypatch.setattr("papers.loss_shaping.moments.MOST_NUMBERS", 1000)
    with pytest.raises(UserError, match=r"duals: optimiser_state exact keeps 12\^2 numbers .* use rescaled"):
        run("methods=[erm,hard]", "duals.optimiser_state=exact")
