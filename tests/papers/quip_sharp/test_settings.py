"""Settings that no step could work with are refused when the config is composed, each in one sentence."""

import pytest

from common.errors import UserError
from common.settings import compose
from papers.quip_sharp import resumable, settings
from papers.quip_sharp.quantize import quantize
from papers.quip_sharp.quantize_weight import METHODS, RECIPES


def refusal(line: list[str], verb: str = "train") -> str:
    with pytest.raises(UserError) as caught:
        cfg = compose("quip_sharp", verb, line)
        settings.check(cfg)
        if verb == "quantize":
            quantize(cfg, None)  # what it refuses before it asks anything of a run
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["parts=[languages]"], "did you mean language?"),
        (["parts=[]"], "parts is empty"),
        (["parts=[layers,layers]"], "parts has layers twice"),
        (["bits=[]"], "bits is empty"),
        (["bits=[2,2]"], "bits has 2 twice: name each once"),
        (["bits=[5]"], "choose 1, 2, 3, 4"),
        (["layers.bits=[5]"], "choose 1, 2, 3, 4"),
        (["methods=[foo]"], "choose rtn, gptq, quip"),
        (["methods=[]"], "methods is empty"),
        (["methods=[rtn,rtn]"], "methods has rtn twice"),
        (["ablations=[foo]"], "choose rtn, gptq, quip"),
        (["ablations=[quip_sharp]"], "in methods and in ablations"),
        (["gaussian.factors=[0.0]"], "above 0"),
        (["gaussian.factors=[]"], "gaussian.factors is empty"),
        (["gaussian.samples=9"], "at least 10"),
        (["incoherence.delta=0.0"], "a number in (0, 1)"),
        (["incoherence.m=1"], "at least 2"),
        (["incoherence.seeds=[]"], "incoherence.seeds is empty"),
        (["layers.methods=[foo]"], "choose rtn, gptq"),
        (["layers.two_bits_only=[foo]"], "choose"),
        (["layers.seeds=[]"], "layers.seeds is empty"),
        (["layers.quip_rms=[0.01]"], "at least 0.1"),
        (["layers.wide=0.0"], "above 0"),
        (["quantize.rho.bits2=0.0"], "quantize.rho.bits2 is 0.0: give a number above 0"),
        (["quantize.rho.d4=-1.0"], "above 0"),
        (["quantize.sigma=-1.0"], "sigma is -1.0: give at least 0"),
        (["quantize.tune=-1"], "at least 0"),
        (["batch_size=0"], "batch_size is 0: give at least 1"),
        (["model.dtype=float33"], "did you mean float32"),
        (["data.context=1"], "data.context is 1: give at least 2"),
        (["data.test_chunks=0"], "data.test_chunks is 0"),
        (["data.characters=0"], "data.characters is 0"),
        (["data.calibration_sequences=0"], "at least 1"),
        (["data.sampling=guess"], "choose windows, documents"),
        (["tuning.micro_batch=-1"], "tuning.micro_batch is -1"),
        (["tuning.valid=0"], "at least 1"),
        (["tuning.save_seconds=-1"], "at least 0"),
        (["tuning.block.sequences=-1"], "at least 0"),
        (["tuning.end_to_end.sequences=0"], "at least 1"),
        (["tuning.end_to_end.lr_others=-1.0"], "lr_others is -1.0"),
        (["tuning.bits=[]"], "tuning.bits is empty"),
        (["tuning.bits=[5]"], "choose 1, 2, 3, 4"),
        (["tuning.bits=[2,2]"], "tuning.bits has 2 twice"),
        (["scaling.widths=[30]"], "30 is not a multiple of 8"),
        (["scaling.steps=0"], "at least 1"),
        (["scaling.lr=0.0"], "above 0"),
        (["finetune=true", "tuning.block.sequences=240"], "needs 272 calibration sequences"),
        (["finetune=true", "model.dtype=bfloat16"], "float32"),
    ],
)
def test_settings_of_train_out_of_range(line, words):
    assert words in refusal(line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], "out=FOLDER"),
        (["out="], "out=FOLDER"),
        (["method=gptq", "out=x"], "choose quip_sharp"),
        (["method=quipsharp", "out=x"], "did you mean quip_sharp"),
        (["model.dtype=float33", "out=x"], "did you mean float32"),
        (["bits=5", "out=x"], "choose 1, 2, 3, 4"),
        (["bits=3", "method=quip_sharp_d4", "out=x"], "quip_sharp_d4 takes 2"),
        (["out=x", "save_dtype=int8"], "choose float32, bfloat16, float16"),
        (["out=x", "data.sampling=guess"], "choose windows, documents"),
        (["out=x", "finetune=true", "model.dtype=bfloat16"], "float32"),
    ],
)
def test_settings_of_quantize_out_of_range(line, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert words in refusal(line, "quantize")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", [["new_tokens=0"], ["batch_size=0"], ["data.context=1"], ["data.test_chunks=-1"]])
def test_settings_of_evaluate_out_of_range(line):
    assert "give at least" in refusal(line, "evaluate")


def test_the_methods_that_the_configs_name_are_those_there_are():
    from common.catalogue import catalogue
    from common.settings import declarations

    train, verb = (declarations(catalogue("quip_sharp", name).files[name]) for name in ("train", "quantize"))
    for key in ("methods", "ablations", "layers.methods", "layers.two_bits_only"):
        assert set(train[key].rule.choices) == set(METHODS), key
    assert set(verb["method"].rule.choices) == set(RECIPES)


def test_what_verbs_have_in_common_has_the_same_rules():
    from common.catalogue import catalogue
    from common.settings import declarations

    train = declarations(catalogue("quip_sharp", "train").files["train"])
    for verb in ("quantize", "evaluate"):
        for key, entry in declarations(catalogue("quip_sharp", verb).files[verb]).items():
            if key in train and key != "bits":
                assert (entry.rule, entry.default) == (train[key].rule, train[key].default), key


def test_a_dry_run_may_ask_for_what_it_then_estimates_in_float32():
    settings.check(compose("quip_sharp", "train", ["finetune=true", "model.dtype=bfloat16", "run.dry=true"]))


def test_a_plan_without_a_model_is_refused():
    with pytest.raises(UserError, match=r"none of the methods \['quip_sharp_d4'\] comes in bits=\[3\]"):
        resumable.plan(compose("quip_sharp", "train", ["methods=[quip_sharp_d4]", "bits=[3]"]))
