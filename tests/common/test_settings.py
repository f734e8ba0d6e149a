"""Command lines: what is read, what is refused, and that the refusal names what would be right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import settings
from common.command import help_text
from common.errors import UserError
from common.experiment import find_job
from common.line import parse_line


def refused(*overrides) -> str:
    with pytest.raises(UserError) as caught:
        settings.compose("toy", "train", list(overrides))
    message = str(caught.value)
    assert "\n" not in message
    return message


@given(st.permutations(["-p=part", "--cfg=job", "+exp=smoke", "seed=1", "-r"]))
def test_flags_may_stand_anywhere(words):
    line = parse_line(words)
    assert sorted(line.overrides) == ["+exp=smoke", "seed=1"]
    assert line.flags == {"package": "part", "cfg": "job", "resolve": ""}


@pytest.mark.parametrize(
    "words", [["-p", "model"], ["-r"], ["--cfg", "hydra"], ["--cfg", "job", "-m"], ["--version"], ["word"]]
)
def test_flags_that_would_do_nothing_are_refused(words):
    with pytest.raises(UserError):
        parse_line(words)


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"]), max_size=30))
def test_any_word_is_read_or_refused_with_a_reason(word):
    try:
        parse_line([word])
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
    cfg = settings.compose(
        "toy",
        "train",
        ["+exp=smoke", "lr=1", "label=abc", "count=3", "sizes=[5]", "part={width:8}", "logger=tensorboard"],
    )
    assert (cfg.lr, cfg.label, cfg.count, cfg.sizes, cfg.part.width, cfg.part.name) == (1, "abc", 3, [5], 8, "a")
    assert cfg.logger.name == "tensorboard"
    assert cfg.steps == 15
    assert settings.compose("toy", "train", ["+exp=smoke", "steps=4"]).steps == 4
    assert settings.compose("toy", "train", ["label=null"]).label is None


def test_unreadable_override_is_refused(toy_paper):
    assert "quote" in refused("label=a b]c{")


def test_hydra_keys_belong_to_sweeps(toy_paper):
    assert "-m" in refused("hydra.sweep.dir=x")


def test_help_lists_experiments_with_a_line_each(toy_paper):
    text = help_text(find_job("toy"))
    assert "  smoke  a second\n" in text
    assert "null    # str; any text" in text
    assert "logger=csv|tensorboard|wandb" in text
    assert "searchpath" not in text


def test_config_hash_ignores_where_a_run_logs():
    base = {"steps": 1, "logger": {"name": "csv"}, "device": "cpu"}
    assert settings.config_hash(base) == settings.config_hash(base | {"logger": {"name": "wandb"}, "device": "cuda"})
    assert settings.config_hash(base) != settings.config_hash(base | {"steps": 2})


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps=0", "steps is 0: give at least 1"),
        ("lr=0", "lr is 0: give a number above 0"),
        ("share=1", r"share is 1: give a number in [0, 1)"),
        ("share=.nan", "share"),
        ("count=-1", "count is -1: give at least 0"),
        ("sizes=[]", "sizes is empty: give at least one"),
        ("sizes=[1,0]", "sizes is [1, 0]: give at least 1"),
        ("sizes=[2,2]", "sizes has 2 twice: name each once"),
        ("kind=squre", "kind is 'squre': did you mean square? choose round, square"),
        ("part.width=3", "part.width is 3: give an even number"),
        ("flow.m=1", "flow.m is 1: give at least 2"),
        ("flow={m:1}", "flow.m is 1: give at least 2"),
        ("flow.deep.n=5", "flow.deep.n is 5: give a number in (0, 5)"),
        ("threads=2147483648", "threads is 2147483648: give a number in [1, 1024]"),
        ("device=tpu", "choose auto, cpu, cuda"),
        ("seed=${threads}", "seed takes an int"),  # what it names is null
        ("steps=${lr}", "steps takes an int"),
        ("threads=${oc.env:HOME}", "threads takes an int"),
        ("exp=glob(*)", "add -m"),
        ("+exp@_global_=ci", "without @"),
        ("seed=interval(0,1)", "add -m"),
    ],
)
def test_a_value_is_checked_by_the_comment_beside_it(toy_paper, text, message):
    assert message in refused(text)


def test_a_mapping_takes_new_keys_where_it_says_open(toy_paper):
    assert settings.compose("toy", "train", ["table={b:2}"]).table == {"a": 1, "b": 2}
    assert "unknown key 'part.b'" in refused("part={b:2}")


@pytest.fixture
def experiment_file(toy_paper):
    """Write an experiment of the toy paper, by name and content; removed after the test."""
    from common.catalogue import catalogue, folder_of

    written = []

    def write(name, text):
        path = folder_of("configs.toy") / "exp" / f"{name}.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        written.append(path)
        catalogue.cache_clear()

    yield write
    for path in written:
        path.unlink()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# @package _global_\n# x\nstpes: 3\n", "zz.yaml: unknown key 'stpes': did you mean steps"),
        ("# @package _global_\n# x\npart:\n  with: 3\n", "unknown key 'part.with': did you mean width"),
        ("# @package _global_\n# x\nseed: abc\n", "seed takes an int"),
        ("# @package _global_\n# x\nsteps: 0\n", "steps is 0: give at least 1"),
        ("# no package line\nsteps: 3\n", "needs the first line `# @package _global_`"),
        ("# @package _global_\n# x\nsteps: [\n", "is no YAML"),
        (b"\xff\xfe", "does not compose"),
        (
            "# @package _global_\n# x\nhydra:\n  sweeper:\n    params:\n      seed: 0,1\n",
            "is a sweep over seed: add -m",
        ),
    ],
)
def test_experiment_files_are_checked_as_the_command_line_is(experiment_file, text, message):
    experiment_file("zz", text)
    assert message in refused("+exp=zz")


def test_an_experiment_s_value_may_be_overridden(experiment_file):
    experiment_file("zz", "# @package _global_\n# x\nseed: abc\n")
    assert settings.compose("toy", "train", ["+exp=zz", "seed=0"]).seed == 0


def test_one_compose_and_one_walk_a_command(toy_paper, monkeypatch):
    import hydra

    from common.catalogue import Catalogue

    counts = {"composes": 0, "walks": 0}
    compose, files = hydra.compose, Catalogue.files.func

    def counted(*args, **kwargs):
        counts["composes"] += 1
        return compose(*args, **kwargs)

    def walked(self):
        counts["walks"] += 1
        return files(self)

    monkeypatch.setattr(hydra, "compose", counted)
    monkeypatch.setattr(Catalogue.files, "func", walked)
    settings.compose("toy", "train", ["+exp=smoke", "lr=1", "steps=3", "seed=2", "part.width=2"])
    assert counts == {"composes": 1, "walks": 1}


@pytest.mark.parametrize(
    ("comment", "rule"),
    [
        (">= 2; points", {"bounds": ((">=", 2.0),)}),
        ("int, >= 1, or null; pairs", {"kind": "int", "bounds": ((">=", 1.0),), "words": frozenset({"or null"})}),
        ("(0, 1); share", {"bounds": ((">", 0.0), ("<", 1.0)), "interval": "(0, 1)"}),
        ("a | b, once", {"choices": ("a", "b"), "words": frozenset({"once"})}),
        ("str: old spelling", {"kind": "str"}),
        ("plain words, with a comma; and more", {}),
        ("names of a | b c", {}),
    ],
)
def test_comments_are_read_as_rules(comment, rule):
    assert settings.read_rule(comment)[0] == settings.Rule(**rule)


@pytest.mark.parametrize("comment", [">= two; x", "[0, 1; x", ">= 1, whole; x", "once, (0 1)"])
def test_a_comment_that_begins_as_a_rule_and_is_none_is_an_error(comment):
    with pytest.raises(settings.BadRule):
        settings.read_rule(comment)
