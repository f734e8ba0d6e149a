"""The command: every part at toy size, resuming, and one sentence for what a user can fix."""

import subprocess
import sys

import numpy as np
import pytest

from common.catalogue import experiments
from common.errors import Interrupted, UserError
from common.experiment import launch
from common.settings import compose
from papers.softmax_icl import population, settings
from papers.softmax_icl.data import make_features, sample_prompts, save_prompts

SMOKE = ["+exp=smoke", "threads=1", "device=cpu"]
TINY = ["+exp=smoke", "threads=1", "device=cpu", "parts=[imbalanced]"]


def test_smoke_goes_through_every_theorem_and_judges_nothing():
    result = launch("softmax_icl", SMOKE)
    assert result.claims == []
    assert {"balanced.loss_end", "imbalanced.min_B1", "scaling.slope_switch"} <= set(result.metrics)
    assert result.metrics["tokens.column_sum"] < 1e-12
    assert len(result.figures) == 5


def test_a_stopped_descent_goes_on_to_the_same_figures(monkeypatch):
    whole = launch("softmax_icl", TINY)
    law, calls = population.count_law, []

    def stopping(*args):
        calls.append(args)
        if len(calls) == 25:
            raise KeyboardInterrupt
        return law(*args)

    monkeypatch.setattr("papers.softmax_icl.descent.resumable", lambda *args: resumable_each_step(*args))
    monkeypatch.setattr("papers.softmax_icl.descent.count_law", stopping)
    with pytest.raises(Interrupted):
        launch("softmax_icl", TINY)
    folder = (whole.folder.parent / "latest").resolve()
    assert folder != whole.folder
    resumed = launch("softmax_icl", [f"resume={folder}"])
    assert (resumed.metrics, resumed.tables) == (whole.metrics, whole.tables)
    assert len(calls) == 2 + 60 + 1  # each start checks its arguments; what was done before the stop is not done again


def resumable_each_step(run, name, steps, state):
    from common.training import resumable

    return resumable(run, name, steps, state, save_seconds=0.0)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tokens.N=0", "tokens.N is 0: give at least 1"),
        ("imbalanced.N=0", "imbalanced.N is 0"),
        ("imbalanced.eps=[0.1,0.0]", "imbalanced.eps is .*: give a number above 0"),
        ("scaling.eps=-1.0", "scaling.eps is -1.0: give a number above 0"),
        ("balanced.flow_eps=0.0", "balanced.flow_eps is 0.0"),
        ("imbalanced.mode=exactly", "imbalanced.mode is 'exactly': did you mean exact. choose counts_mc"),
        ("tokens.steps=0", "tokens.steps is 0"),
        ("tokens.lr=0.0", "tokens.lr is 0.0: give a number above 0"),
        ("imbalanced.watch_every=0", "watch_every is 0"),
        ("balanced.K=1", "balanced.K is 1"),
        ("spectrum.eps=0.0", "spectrum.eps is 0.0"),
        ("spectrum.N=0", "spectrum.N is 0"),
        ("phase_diagram.eps=0.0", "phase_diagram.eps is 0.0"),
        ("phase_diagram.K_min=2", "K_min is 2"),
        ("finite_n.N=[100,0]", "finite_n.N is"),
        ("race.eps=[]", "race.eps is empty"),
        ("imbalanced.snapshots=0", "imbalanced.snapshots is 0: give at least 1"),
        ("imbalanced.snapshots=-1", "imbalanced.snapshots is -1"),
        ("imbalanced.watch_first=-1", "imbalanced.watch_first is -1"),
        ("phase_diagram.points=1", "phase_diagram.points is 1: give at least 2"),
        ("race.K=[5]", "race.K is .5.: a slope needs two"),
        ("race.eps=[5.0]", "race.eps is .5.0.: at K = 5 the loss starts at 0.4"),
        ("spectrum.K=2", "spectrum.K is 2"),
        ("tokens.label_noise=-0.1", "tokens.label_noise is -0.1"),
        ("tokens.feature_noise=-0.1", "tokens.feature_noise is -0.1"),
        ("transformers.eps=0.0", "transformers.eps is 0.0"),
        ("seeds=[]", "seeds is empty"),
        ("parts=[balance]", "did you mean balanced"),
        ("features.coherence=1.0", r"features.coherence is 1.0: give a number in \[0, 1\)"),
        ("tokens.frequencies.kind=even", "tokens.frequencies.kind is 'even': did you mean given. choose balanced"),
        ("tokens.frequencies.p1=1.0", r"p1 is 1.0: give a number in \(0, 1\)"),
        ("seeds=[1,1]", "seeds has 1 twice"),
        ("phase_diagram.p1_min=0.95", "they must rise"),
        ("phase_diagram.K_max=5", "they must rise"),
        ("race.K=[5,5]", "race.K has 5 twice"),
    ],
)
def test_settings_that_cannot_be_are_one_sentence(override, message):
    part = override.split(".")[0] if "." in override.split("=")[0] else "imbalanced"
    parts = [] if override.startswith("parts") else [f"parts=[{part if part != 'features' else 'imbalanced'}]"]
    with pytest.raises(UserError, match=message):
        settings.check(compose("softmax_icl", "train", ["+exp=smoke", *parts, override]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tokens.frequencies={kind:given,p:[0.5,0.3,0.1,0.1,0.1,0.1,0.1,0.1]}", "sums to 1.4"),
        ("tokens.K=9", "K is 9 and d is 8"),
        ("balanced.K=21", "K is 21 and d is 6"),
        ("features.coherence=0.5", "orthonormal"),
        ("imbalanced.frequencies.kind=zipf", "frequencies.kind=dominant"),
        ("balanced.flow_eps=5.0", r"balanced.flow_eps is 5.0: the loss starts at 0.4"),
        ("imbalanced.eps=[5.0]", "imbalanced.eps is"),
        ("scaling.eps=5.0", "scaling.eps is 5.0"),
        ("scaling.dominant_eps=5.0", "scaling.dominant_eps is 5.0"),
        ("phase_diagram.eps=5.0", "phase_diagram.eps is 5.0"),
        ("spectrum.eps=5.0", "spectrum.eps is 5.0"),
        ("spectrum.s=[2000.0]", "spectrum.s: s is 2000"),
        ("transformers.gaussian_x=true", "orthonormal features"),
        ("transformers.variants=[{name:a,model:tree,optimizer:sgd}]", "unknown model of a 'tree'"),
        ("finite_tasks.K=9", "K is 9 and d is 8"),
        ("tokens.prompts=/nowhere.npz", "cannot be read"),
    ],
)
def test_what_shows_only_in_a_run_is_one_sentence_too(override, message):
    part = override.split(".")[0] if "." in override.split("=")[0] else "imbalanced"  # the part that reads the setting
    parts = [] if override.startswith("parts") else [f"parts=[{part if part != 'features' else 'imbalanced'}]"]
    with pytest.raises(UserError, match=message):
        launch("softmax_icl", ["+exp=smoke", "threads=1", "device=cpu", *parts, override])


def test_a_users_own_prompts_are_tested(tmp_path):
    import torch

    batch = sample_prompts(20, 30, np.full(8, 1 / 8), make_features(8, 8), torch.Generator().manual_seed(0))
    save_prompts(tmp_path / "own.npz", batch)
    result = launch(
        "softmax_icl", ["+exp=smoke", "threads=1", "parts=[tokens]", f"tokens.prompts={tmp_path / 'own.npz'}"]
    )
    assert 0 < result.metrics["tokens.own_loss"] < 1
    with pytest.raises(UserError, match="dimension 8"):
        launch(
            "softmax_icl",
            ["+exp=smoke", "threads=1", "parts=[tokens]", "tokens.d=9", f"tokens.prompts={tmp_path / 'own.npz'}"],
        )


@pytest.mark.parametrize(
    "switch", ["features.coherence=0.2", "tokens.gaussian_x=true", "tokens.label_noise=0.5", "tokens.feature_noise=0.1"]
)
def test_real_prompts_may_leave_the_papers_model(switch):
    result = launch("softmax_icl", ["+exp=smoke", "threads=1", "parts=[tokens]", "tokens.steps=3", switch])
    assert ("tokens.A" in result.metrics) == ("noise" in switch)
    assert "tokens.loss_start_theory" not in result.metrics  # the closed forms are of the paper's model
    assert result.metrics["tokens.law_error"] > 0


def test_real_prompts_follow_the_population_curve_and_are_drawn_anew(monkeypatch):
    from papers.softmax_icl import plots

    curves, figure = [], plots.token_losses
    monkeypatch.setattr(plots, "token_losses", lambda losses, *rest: curves.extend(losses) or figure(losses, *rest))
    tokens = ["+exp=smoke", "threads=1", "parts=[tokens]"]
    still = launch("softmax_icl", [*tokens, "tokens.lr=1e-9", "tokens.steps=40"])
    assert len({round(loss, 6) for loss in curves[0]}) == 40  # nothing is learned, so that only the prompts change
    assert still.metrics["tokens.over_population"] == pytest.approx(1, abs=0.1)
    moving = launch("softmax_icl", [*tokens, "tokens.steps=60", "tokens.batch_size=512"])
    assert moving.metrics["tokens.over_population"] == pytest.approx(1, abs=0.05)


def test_rare_queries_are_reported_beside_the_plain_mean():
    law = "tokens.frequencies={kind:dominant,p1:0.9}"
    result = launch("softmax_icl", ["+exp=smoke", "threads=1", "parts=[tokens]", "tokens.steps=20", law])
    assert len(result.tables["tokens_by_feature"]) == 8
    assert result.metrics["tokens.loss_worst_feature"] > 5 * result.tables["tokens"][0]["loss"]


def test_prompts_too_short_for_the_loss_asked_for_are_noted():
    notes = launch("softmax_icl", ["+exp=smoke", "threads=1", "parts=[tokens]", "tokens.steps=2", "tokens.N=8"]).notes
    assert any("lack feature 1 with probability 0.34" in note for note in notes)


@pytest.mark.parametrize("name", [e.name for e in experiments("softmax_icl")])
def test_every_experiment_composes(name):
    cfg = compose("softmax_icl", "train", [f"+exp={name}"])
    assert cfg.parts


BEYOND = {
    "ablations": ["ablations.steps=3", "tokens.test_prompts=64", "tokens.batch_size=8"],
    "phase_diagram": ["phase_diagram.points=3"],
    "finite_n": ["finite_n.K=5", "finite_n.N=[20]", "finite_n.steps=60"],
    "linear_race": ["race.K=[4,5]", "race.floor_N=[10,20]", "race.floor_samples=100", "race.eps=[0.1,0.05]"],
    "optimisers": ["optimisers.K=5", "optimisers.steps=40", "optimisers.adam_lr=[0.1]", "optimisers.sgd_lr=[1.0]"],
    "spectrum": ["spectrum.K=6", "spectrum.s=[0.5]", "spectrum.finite_s=[0.5]", "spectrum.N=60"],
    "real_transformer": [
        "seeds=[0,1]",
        "transformers.steps=3",
        "transformers.batch_size=4",
        "transformers.test_prompts=16",
        "transformers.watch_every=2",
    ],
    "finite_tasks": [
        "seeds=[0,1]",
        "finite_tasks.steps=3",
        "finite_tasks.test_prompts=64",
        "finite_tasks.head_steps=3",
        "finite_tasks.tasks=[1,0]",
        "finite_tasks.batch_size=4",
    ],
}


@pytest.mark.parametrize("name", BEYOND)
def test_every_further_experiment_runs_whole_at_toy_size(name):
    result = launch("softmax_icl", [f"+exp={name}", "threads=1", "device=cpu", *BEYOND[name]])
    assert result.exit_code == 0
    assert result.figures
    assert result.tables
    if name in ("real_transformer", "finite_tasks"):
        assert {row["seed"] for row in result.tables["transformers" if name == "real_transformer" else name]} == {0, 1}


def test_models_of_the_ablations_share_their_prompts():
    """With the same batches a residual, which changes nothing, changes nothing."""
    metrics = launch("softmax_icl", ["+exp=ablations", "threads=1", *BEYOND["ablations"]]).metrics
    assert metrics["ablations.softmax"] == metrics["ablations.softmax_residual"]
    assert metrics["ablations.softmax"] != metrics["ablations.softmax_no_mask"]


def test_the_bench_runs_and_its_ways_agree():
    from papers.softmax_icl.bench import bench

    tables = bench(quick=True)
    times = [row["t"] for row in tables["flow"]]
    assert times == pytest.approx([times[0]] * 3, rel=0.02)
    counts, tokens = tables["gradient"]
    assert (counts["contestant"], counts["ratio_at_equal_error"]) == ("counts_mc", 1)
    assert tokens["rms_error"] > 3 * counts["rms_error"]


def test_the_chapters_library_example_does_what_it_says(capsys):
    import re
    from pathlib import Path

    import papers.softmax_icl

    chapter = (Path(papers.softmax_icl.__file__).parent / "README.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", chapter, re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "tensor([5." in printed
    assert "40858.485" in printed
    assert "decrease of the dominant feature" in printed


@pytest.mark.parametrize("module", ["closed_form", "flow", "population", "trajectory", "laws"])
def test_the_theory_does_not_need_torch(module):
    code = f"import sys, papers.softmax_icl.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_phase_that_is_not_there_is_not_drawn_and_one_without_end_joins_the_next():
    from papers.softmax_icl.plots import phase_spans
    from papers.softmax_icl.trajectory import Phase

    def labels(*times):
        return [label for label, *_ in phase_spans([Phase("", start, end, "", None) for start, end in times])]

    assert labels((0, 1), (1, 2), (2, 3), (3, 4)) == ["I", "II", "III", "IV"]
    assert labels((0, 1), (1, None), (1, 3), (3, 4)) == ["I", "II+III", "IV"]
    assert labels((0, 0), (0, 2), (2, 3), (3, None)) == ["II", "III"]


def test_no_unlearning_is_a_switch_at_time_zero():
    metrics = launch("softmax_icl", [*TINY, "imbalanced.frequencies.p1=0.3"]).metrics  # below 5^(-1/2) = 0.447
    assert metrics["imbalanced.switch"] == metrics["imbalanced.switch_theory"] == 0


def test_counts_are_drawn_anew_in_every_step(tmp_path):
    """Counts that come back in every step would be a finite training set, not the population."""
    from common.run import Run
    from papers.softmax_icl.descent import Descent, descend

    run = Run(tmp_path, paper="softmax_icl")
    descent = descend(
        run, "still", Descent(np.full(4, 0.25), 20, 0.0, "counts_mc", 3), 6
    )  # with lr = 0 only the counts change
    assert len({tuple(losses) for losses in descent.watched["loss"]}) == 6


def test_a_time_that_lies_within_one_interval_is_noted_and_the_first_steps_can_all_be_watched(tmp_path):
    from common.run import Run
    from papers.softmax_icl.descent import Descent, descend

    coarse = launch("softmax_icl", [*TINY, "imbalanced.watch_every=20"]).notes
    assert any("dominant queries to a loss of 0.1 lies between samples 24 apart" in note for note in coarse)
    descent = Descent(np.full(4, 0.25), 20, 1.0, "infinite_prompt")
    descend(Run(tmp_path, paper="softmax_icl"), "first", descent, 12, watch_every=5, watch_first=3)
    assert descent.times == [0, 1, 2, 5, 10]
    assert descent.trajectory(0, "dominant").gap(7.0) == 5
    cfg = compose("softmax_icl", "train", ["+exp=imbalanced_full"])
    assert cfg.imbalanced.watch_first * cfg.imbalanced.lr > 2 * 78.3  # the flow's time of the dominant query
