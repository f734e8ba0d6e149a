"""The command: resume, bad input, data that are not here, and playing without a terminal."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from common.errors import Interrupted, UserError
from common.experiment import launch
from common.settings import compose
from papers.neg_ucb import anac, environments, features, play, plots, replay, settings, worlds
from papers.neg_ucb.acceptance import NegUCB
from papers.neg_ucb.negotiation import Optimistic
from tests.papers.neg_ucb.genius import DOMAIN, PROFILE, write

TINY = ["rounds=15", "seeds=[0]", "threads=1", "device=cpu"]


def test_interrupted_run_goes_on_to_the_same_figures(monkeypatch):
    line = [*TINY, "methods=[neg_ucb,neural_ucb]", "tasks=[trading]"]
    whole = launch("neg_ucb", line)
    calls = 0
    original = worlds.one_round

    def stopped(*args):
        nonlocal calls
        calls += 1
        if calls == 20:
            raise Interrupted(130)
        original(*args)

    monkeypatch.setattr(worlds, "one_round", stopped)
    with pytest.raises(Interrupted):
        launch("neg_ucb", line)
    folder = Path(os.environ["PAPERS_RUNS"]) / "neg_ucb" / "default" / "latest"
    monkeypatch.setattr(worlds, "one_round", original)
    resumed = launch("neg_ucb", [f"resume={folder.resolve()}"])
    assert resumed.metrics == whole.metrics
    assert resumed.tables == whole.tables


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("parts=[regrets]", "did you mean regret"),
        ("parts=[]", "parts is empty"),
        ("parts=[tune,tune]", "tune twice"),
        ("tasks=[alocation_linear]", "did you mean allocation_linear"),
        ("methods=[neg_ubc]", "did you mean neg_ucb"),
        ("seeds=[]", "seeds is empty"),
        ("counterparts=0", "counterparts is 0"),
        ("task_settings.allocation_linear.m=0", "allocation_linear.m is 0"),
        ("task_settings.allocation_linear.search={method: guess}", "choose enumerate, local, sample"),
        ("task_settings.allocation_linear.hidden=-1", "allocation_linear.hidden is -1"),
        ("task_settings.allocation_linear.length=-1", "allocation_linear.length is -1"),
        ("task_settings.allocation_linear.tuned={neg_ucb: {alpha: -1}}", "alpha must be at least 0"),
        ("method_settings.eps_greedy.epsilon=2", r"epsilon is 2: give a number in \[0, 1\]"),
        ("cardinality.items=[0]", "cardinality.items is .0.: give at least 2"),
        ("cardinality.items=[]", "cardinality.items is empty"),
        ("casino.m=0", "casino.m is 0"),
        ("casino.models.kernel.hidden=-1", "kernel.hidden is -1"),
        ("clusters.counterparts=1", "clusters.counterparts is 1"),
        ("warm_start.logged=[-1]", "warm_start.logged is"),
        ("tune.space.alpha=[]", "tune.space.alpha is empty"),
    ],
)
def test_bad_settings_are_one_sentence(override, message):
    line = [] if override.startswith("methods") else ["methods=[random,eps_greedy,neg_ucb]"]
    with pytest.raises(UserError, match=message):
        settings.check(compose("neg_ucb", "train", [*line, override]))


def test_an_unknown_kind_of_method_is_one_sentence():
    with pytest.raises(UserError, match="choose random, oracle"):
        launch("neg_ucb", [*TINY, "methods=[random]", "method_settings.random.kind=psychic"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["methods=[random,exact_kernel]", "rounds=3001"], "holds at most 3,000 rounds"),
        (["methods=[random,neg_ubc]"], "did you mean neg_ucb"),
        (["methods=[random]", "parts=[tune]"], "nothing to tune"),
        (["methods=[random]", "tasks=[allocation_linear,energie]"], "did you mean energy"),
        (["methods=[neg_ucb]", "parts=[tune]", "tune.settings.neg_ucb=[alfa]"], "did you mean alpha"),
        (["methods=[neg_ucb]", "parts=[tune]", "tune.final_seeds=[101]"], "share 101"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_before_the_first_round(line, message):
    with pytest.raises(UserError, match=message):
        settings.check(compose("neg_ucb", "train", line))


def test_a_large_domain_can_be_searched_as_the_refusal_advises():
    large = [
        "task_settings.multi_issue.sizes=[20,20,20,20,20]",
        "tasks=[multi_issue]",
        "methods=[random,neg_ucb]",
        "rounds=3",
        "seeds=[0]",
        "threads=1",
    ]
    with pytest.raises(UserError, match="too many to enumerate"):
        launch("neg_ucb", large)
    launch("neg_ucb", [*large, "task_settings.multi_issue.search={method: local, restarts: 2, steps: 3}"])


def test_bad_domain_of_ones_own_is_one_sentence(tmp_path):
    write(tmp_path, DOMAIN, PROFILE.replace('value="0.75"', 'value="0.7"'), PROFILE)
    line = [*TINY, "tasks=[multi_issue]", "methods=[random]", f"task_settings.multi_issue.domain='{tmp_path}'"]
    with pytest.raises(UserError, match=r"weights sum to 0\.95"):
        launch("neg_ucb", line)
    write(tmp_path, DOMAIN, PROFILE.replace('value="0.75"', 'value="0.751"'), PROFILE)
    result = launch("neg_ucb", line)
    assert any("renormalised" in note for note in result.notes)


def test_a_domain_of_ones_own_is_recorded_with_its_sum_and_must_be_a_folder(tmp_path):
    write(tmp_path, DOMAIN, PROFILE, PROFILE)
    line = [*TINY, "tasks=[multi_issue]", "methods=[random]"]
    result = launch("neg_ucb", [*line, f"task_settings.multi_issue.domain='{tmp_path}'"])
    recorded = result.data["task_settings.multi_issue.domain"]
    assert recorded["source"] == "real"
    assert len(recorded["sha256"]) == 64
    with pytest.raises(UserError, match="is a file: give a folder"):
        launch("neg_ucb", [*line, f"task_settings.multi_issue.domain='{tmp_path / 'domain.xml'}'"])
    with pytest.raises(UserError, match="check the path"):
        launch("neg_ucb", [*line, f"task_settings.multi_issue.domain='{tmp_path / 'none'}'"])


@pytest.mark.realdata
def test_a_name_that_the_collection_does_not_have_is_one_sentence():
    with pytest.raises(UserError, match=r"did you mean y2011/Laptop"):
        launch(
            "neg_ucb",
            [*TINY, "tasks=[multi_issue]", "methods=[random]", "task_settings.multi_issue.domain=y2011/Laptp"],
        )


def test_play_without_a_terminal_is_refused(monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(UserError, match="terminal"):
        launch("neg_ucb", ["+exp=play", "threads=1", "device=cpu"])


def test_a_person_who_plays_is_heard():
    env = environments.make("multi_issue", domain=anac.generate([2, 2], np.random.default_rng(0)))
    policy = Optimistic(NegUCB(features.Linear(env.dim), hidden=2), np.random.default_rng(0))
    replies, said = iter(["y", "what?", "n", "q"]), []
    rows = play.converse(env, policy, 10, lambda prompt: next(replies), said.append)
    assert [row["answer"] for row in rows] == [1, 0]
    assert len(said) == 4
    assert policy.model.rounds == 2
    assert "issue 1: option" in said[1]


def test_dry_run_estimates_and_runs_nothing():
    result = launch("neg_ucb", ["+exp=full", "run.dry=true", "threads=1", "device=cpu"])
    assert result.metrics["params"] == 257 * 6
    assert result.metrics["memory_gb"] < 1
    assert result.metrics["hours"] > 1


def test_generated_data_are_said_to_be():
    result = launch("neg_ucb", [*TINY, "methods=[random]"])
    assert result.data["dealornodeal_val"]["source"] == "synthetic"
    assert any("not here" in note for note in result.notes)
    with pytest.raises(UserError, match="not here"):
        launch("neg_ucb", [*TINY, "methods=[random]", "data.fallback=false"])


# ---- replay ----------------------------------------------------------------------------------------------------------


def test_scores_of_known_predictions():
    y = np.array([1, 0, 1, 1, 0, 1.0])
    assert replay.log_loss(0.5, y) == pytest.approx(np.log(2))
    assert replay.auc(y, y) == 1
    assert replay.auc(-y, y) == 0
    assert replay.auc(np.zeros(6), y) == 0.5
    assert replay.running_base_rate(np.array([1.0, 1.0])) == pytest.approx([1 / 2, 2 / 3])
    assert replay.scores(np.full(6, y.mean()), y)["gain"] == pytest.approx(0)


def test_replay_predicts_before_it_learns():
    env = environments.make("casino_replay")
    seen = []

    class Spy(NegUCB):
        def ucb(self, x, g):
            seen.append(("predict", self.rounds))
            return super().ucb(x, g)

    kept = replay.predict_then_update(env, Spy(features.Linear(env.dim, env.bound), hidden=0))
    assert [n for _, n in seen] == list(range(len(kept["y"])))
    assert len(kept["y"]) == len(env.offers)
    assert kept["y"].tolist() == [float(offer.accepted) for offer in env.offers]


def test_figures_are_drawn():
    import matplotlib.pyplot as plt

    plt.close("all")  # other tests may have left theirs
    generator = np.random.default_rng(0)
    plots.regret(
        {"random": generator.random((3, 50)).cumsum(1), "neg_ucb": generator.random((3, 50)).cumsum(1)}, "a_task"
    )
    plots.clusters(generator.normal(size=(6, 2)), np.array([0, 1, 0, 1, 0, 1]))
    plots.casino({"model": {"q": generator.random(40), "y": (generator.random(40) < 0.7).astype(float)}})
    assert len(plt.get_fignums()) == 3
    plt.close("all")
