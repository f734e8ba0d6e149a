"""Command lines: what is read, what is refused, and that the refusal names what would be right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from common import configs
from common.command import help_text
from common.errors import UserError
from common.experiment import find_job


def refused(*overrides) -> str:
    with pytest.raises(UserError) as caught:
        configs.compose("toy", "train", list(overrides))
    message = str(caught.value)
    assert "\n" not in message
    return message


@given(st.permutations(["-p=part", "--cfg=job", "+exp=smoke", "seed=1", "-r"]))
def test_flags_may_stand_anywhere(words):
    line = configs.parse_line(words)
    assert sorted(line.overrides) == ["+exp=smoke", "seed=1"]
    assert line.flags == {"package": "part", "cfg": "job", "resolve": ""}


@pytest.mark.parametrize(
    "words", [["-p", "model"], ["-r"], ["--cfg", "hydra"], ["--cfg", "job", "-m"], ["--version"], ["word"]]
)
def test_flags_that_would_do_nothing_are_refused(words):
    with pytest.raises(UserError):
        configs.parse_line(words)


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"]), max_size=30))
def test_any_word_is_read_or_refused_with_a_reason(word):
    try:
        configs.parse_line([word])
    except UserError as error:
        assert str(error)


def test_unknown_names_are_answered_with_the_valid_ones(toy_paper):
    assert "did you mean smoke" in refused("+exp=smok")
    assert "ci, smoke, wrong" in refused("+exp=nothing")
    assert "did you mean steps" in refused("stepps=3")
    assert "part.width" in refused("part.widht=3")
    assert "csv, tensorboard, wandb" in refused("logger=print")
    assert "device=cuda" in refused("trainer=gpu")


def test_keys_are_neither_added_nor_removed(toy_paper):
    for text in ("+new=1", "++steps=1", "~steps", "++exp=smoke"):
        assert "+exp" in refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "steps=many", "steps=1.5", "steps=true", "steps=null", "lr=fast", "shared=1", "label=3", "count=x", "sizes=3", "sizes=[1,b]",
        "part=3", "part={width:x}", "part={hight:1}", "seed=[1,2]", "seed=1,2",
    ],
)  # fmt: skip
def test_values_of_the_wrong_type_are_refused_by_name(toy_paper, text):
    assert text.partition("=")[0] in refused(text)


def test_right_types_compose(toy_paper):
    cfg = configs.compose(
        "toy",
        "train",
        ["+exp=smoke", "lr=1", "label=abc", "count=3", "sizes=[5]", "part={width:9}", "logger=tensorboard"],
    )
    assert (cfg.lr, cfg.label, cfg.count, cfg.sizes, cfg.part.width, cfg.part.name) == (1, "abc", 3, [5], 9, "a")
    assert cfg.logger.name == "tensorboard"
    assert cfg.steps == 15
    assert configs.compose("toy", "train", ["+exp=smoke", "steps=4"]).steps == 4
    assert configs.compose("toy", "train", ["label=null"]).label is None


def test_unreadable_override_is_refused(toy_paper):
    assert "quote" in refused("label=a b]c{")


def test_hydra_keys_belong_to_sweeps(toy_paper):
    assert "-m" in refused("hydra.sweep.dir=x")


def test_null_types_are_read_from_comments(tmp_path):
    (tmp_path / "a.yaml").write_text("a: null  # str: text\nb:\n  c: null # int\n  d: null\ne: 1  # null\n")
    assert list(configs.null_types(tmp_path / "a.yaml")) == [("a", "str"), ("b.c", "int"), ("b.d", "")]


def test_help_lists_experiments_with_a_line_each(toy_paper):
    text = help_text(find_job("toy"))
    assert "  smoke  a second\n" in text
    assert "null    # str: any text" in text
    assert "logger=csv|tensorboard|wandb" in text
    assert "searchpath" not in text


def test_config_hash_ignores_where_a_run_logs():
    base = {"steps": 1, "logger": {"name": "csv"}, "device": "cpu"}
    assert configs.config_hash(base) == configs.config_hash(base | {"logger": {"name": "wandb"}, "device": "cuda"})
    assert configs.config_hash(base) != configs.config_hash(base | {"steps": 2})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=3", "+exp=smok"], "did you mean smoke"),  # choices are looked at first, wherever they stand
        (["+exp=smoke,wrong"], "add -m"),
        (["+exp=smoke", "+exp=wrong"], "two experiments"),
    ],
)
def test_choices_of_experiments_are_refused_in_our_words(toy_paper, words, message):
    assert message in refused(*words)


def test_bounds_hold_for_numbers_and_lists():
    cfg = OmegaConf.create({"a": {"n": 0}, "b": [1, 0], "c": [], "d": None, "e": "x"})
    configs.at_least(cfg, {"a.n": 0, "b": 0, "d": 3})
    for key, least in (("a.n", 1), ("b", 1), ("c", 0), ("e", 0)):
        with pytest.raises(UserError, match=key):
            configs.at_least(cfg, {key: least})
