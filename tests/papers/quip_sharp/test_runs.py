"""The jobs as commands: same seed same result, a kill loses nothing, wrong input gets one sentence."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from common import configs
from common.errors import UserError
from common.experiment import launch, load_result
from common.models.language import STDLIB_LM
from common.run import Run
from common.training import resumable
from papers.quip_sharp import data, pipeline
from papers.quip_sharp.hessian_store import StoredHessians, pack, unpack
from papers.quip_sharp.hessians import collect_hessians, walk
from papers.quip_sharp.hidden_states import HiddenStates
from papers.quip_sharp.model import quantize_model
from papers.quip_sharp.pipeline import Quantizer
from papers.quip_sharp.scaling import compare, interpolate

SMALL = ["data.context=32", "data.characters=20000", "data.calibration_sequences=4", "data.test_chunks=2", "threads=1"]


def outcome(result):
    record = result.record
    return record["metrics"], record["tables"]


def test_smoke_killed_in_the_middle_and_resumed_ends_as_the_uninterrupted_one(tmp_path):
    whole = launch("quip_sharp", ["+exp=smoke", "threads=1"])
    assert whole.exit_code == 0
    argv = [sys.executable, "-m", "papers.quip_sharp.train", "+exp=smoke", "threads=1"]
    environment = {**os.environ, "PAPERS_RUNS": str(tmp_path / "killed"), "PAPERS_CACHE": str(tmp_path / "cache2")}
    process = subprocess.Popen(argv, env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL)
    # layer 1 of the 2-bit model is on disk: layers 2 and 3, the tuned model and its training are still to come
    pattern, deadline = "quip_sharp/smoke/*/stages/quip_sharp2-model.layers.1-*.stage", time.monotonic() + 200
    while not (found := list((tmp_path / "killed").glob(pattern))) and time.monotonic() < deadline:
        assert process.poll() is None, "the job ended before it could be killed"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    folder = found[0].parent.parent
    assert load_result(folder).status == "running"
    resumed = launch("quip_sharp", [f"resume={folder}"])
    assert resumed.status == "done"
    assert outcome(resumed) == outcome(whole)


def test_two_runs_with_one_seed_are_identical_and_another_seed_is_not():
    line = [*SMALL, "parts=[language]", "methods=[quip_sharp]"]
    first, again, other = (outcome(launch("quip_sharp", [*line, *seed])) for seed in ([], [], ["seed=1"]))
    assert first == again
    assert first[0] != other[0]


@pytest.mark.parametrize(
    ("experiment", "params"), [("llama7b", 6.74e9), ("llama13b", 1.302e10), ("llama70b", 6.898e10)]
)
def test_dry_run_of_the_papers_models_needs_no_weights(experiment, params):
    result = launch("quip_sharp", [f"+exp={experiment}", "run.dry=true", "bits=4", "device=cpu"])
    assert result.metrics["params"] == pytest.approx(params, rel=0.001)
    assert result.metrics["memory_gb"] > 2 * params / 1e9
    assert result.metrics["hours"] > 0
    assert any("Estimated" in note for note in result.record["notes"])


def test_papers_scale_without_weights_says_what_to_get_and_where_to_put_it():
    with pytest.raises(UserError, match=r"licence.*weights/llama2-7b"):
        launch("quip_sharp", ["+exp=llama7b", "bits=3", "finetune=false"])


def test_paper_scale_settings_run_end_to_end_on_a_small_model(tmp_path, llama):
    """The llama7b experiment with nothing changed but the model, the text and the sizes."""
    folder, text = small_model(tmp_path, llama), tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": "def f(x):\n    return x\n" * (20 + i)}) + "\n" for i in range(24)))
    line = [f"model.path={folder}", f"data.calibration={text}", f"data.test={text}", "data.context=16", "data.test_chunks=2",
            "data.calibration_sequences=8", "tuning.valid=2", "tuning.block.batch_size=2", "tuning.block.sequences=4", "tuning.block.epochs=1",
            "tuning.end_to_end.sequences=4", "tuning.end_to_end.epochs=1", f"offload={tmp_path / 'hidden'}", "threads=1"]  # fmt: skip
    result = launch("quip_sharp", ["+exp=llama7b", *line])
    assert {"lm.quip_sharp2.perplexity", "lm.quip_sharp_ft2.perplexity"} <= result.metrics.keys()
    assert not list((tmp_path / "hidden").iterdir())


# ---------------------------------------------------------------------------------------------- quantize and evaluate


def small_model(tmp_path, llama, name="model", **changes):
    """A folder with a tiny model and the tokenizer of the small one."""
    folder = tmp_path / name
    llama(vocab_size=3072, initializer_range=0.05, **changes).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(STDLIB_LM / file, folder / file)
    return folder


def test_quantize_then_evaluate_agree_and_the_size_is_exact(tmp_path):
    out = tmp_path / "quantised"
    made = launch("quip_sharp", [*SMALL, f"out={out}"], verb="quantize")
    found = launch("quip_sharp", [*SMALL[:2], "data.test_chunks=2", "threads=1", f"model.path={out}", "prompt=def", "new_tokens=4"],
                   verb="evaluate")  # fmt: skip
    assert found.metrics["perplexity"] == made.metrics["perplexity.quantized"]
    assert found.metrics["bits_per_weight"] == made.metrics["bits_per_weight"]
    assert found.record["tables"]["generated"][0]["text"].startswith("def")
    with pytest.raises(UserError, match="not empty"):
        launch("quip_sharp", [*SMALL, f"out={out}"], verb="quantize")
    state = load_file(out / "model.safetensors")
    state.pop("model.layers.0.mlp.down_proj.words")
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"missing \(model.layers.0.mlp.down_proj.words\)"):
        launch("quip_sharp", [f"model.path={out}"], verb="evaluate")
    content = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="cut short"):
        launch("quip_sharp", [f"model.path={out}"], verb="evaluate")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], "out=FOLDER"),
        (["method=gptq", "out=x"], "no words"),
        (["bits=5", "out=x"], "bits=5"),
        (["out=x", "save_dtype=int8"], "save_dtype"),
        (["out=x", "data.context=4096"], "256"),
        (["out=x", "data.sampling=guess"], "windows or documents"),
        (["out=x", "finetune=true", "model.dtype=bfloat16"], "float32"),
        (["out=x", "data.characters=30"], "tokens"),
        (["out=x", "data.sampling=documents", "data.characters=2000"], "of 256 calibration documents"),
        (["out=x", "data.calibration=/nowhere.txt"], "nowhere"),
    ],
)
def test_bad_settings_get_one_sentence(line, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words) as caught:
        launch("quip_sharp", [*line, "evaluate=false"], verb="quantize")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["parts=[languages]"], "unknown part 'languages'"),
        (["parts=[]"], "parts is empty"),
        (["bits=[]"], "bits is empty"),
        (["bits=[2,2]"], "name each once"),
        (["layers.bits=[5]"], "layers.bits=5"),
        (["gaussian.factors=[0.0]"], "not a scale"),
        (["incoherence.delta=0.0"], "probability"),
        (["incoherence.m=1"], "at least 2"),
        (["parts=[layers]", "layers.methods=[foo]"], "unknown method 'foo': choose from rtn, gptq"),
        (["parts=[layers]", "layers.seeds=[]"], "layers.seeds is empty"),
        (["quantize.rho.bits2=0.0"], "rho.bits2=0.0.*positive"),
        (["quantize.sigma=-1.0"], "sigma is -1.0: give at least 0"),
        (["batch_size=0"], "batch_size is 0: give at least 1"),
        (["data.context=1"], "data.context is 1: give at least 2"),
        (["data.test_chunks=0"], "data.test_chunks is 0"),
        (["tuning.micro_batch=-1"], "tuning.micro_batch is -1"),
        (["scaling.widths=[30]"], "30 is not a multiple of 8"),
        (["finetune=true", "tuning.block.sequences=240"], "needs 272 calibration sequences"),
    ],
)
def test_settings_out_of_range_are_refused_at_the_door(line, words, monkeypatch):
    monkeypatch.setattr(data, "load", lambda *_: pytest.fail("work was begun"))
    with pytest.raises(UserError, match=words) as caught:
        launch("quip_sharp", [*line, "threads=1"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["methods=[foo]"], "unknown method 'foo'"),
        (["ablations=[foo]"], "unknown method 'foo'"),
        (["bits=[5]"], "bits=5: choose from 1, 2, 3, 4"),
    ],
)
def test_unknown_methods_and_widths_are_refused(line, words):
    with pytest.raises(UserError, match=words):
        launch("quip_sharp", [*SMALL, "parts=[language]", *line])


def test_plan_has_each_tuned_model_after_the_one_it_begins_with_and_ablations_at_two_bits():
    line = ["methods=[rtn,quip_sharp]", "bits=[2,3]", "ablations=[quip_sharp_d4]", "finetune=true", "tuning.bits=[2,4]"]
    plan = pipeline.plan(configs.compose("quip_sharp", "train", line))
    assert plan == [("rtn", 2, False), ("quip_sharp", 2, False), ("quip_sharp", 2, True), ("quip_sharp_d4", 2, False),
                    ("rtn", 3, False), ("quip_sharp", 3, False), ("quip_sharp", 4, True)]  # fmt: skip


def test_a_model_to_be_tuned_is_quantised_once_and_tuning_resumes_after_a_kill(monkeypatch, tmp_path):
    """The words of the untuned model are the tuned one's; and a run that stops after a saved step ends as one that did not."""
    line = [*SMALL, "parts=[language]", "methods=[quip_sharp]", "finetune=true", "tuning.valid=2", "tuning.save_seconds=0",
            "tuning.end_to_end.sequences=4", "tuning.end_to_end.batch_size=2"]  # fmt: skip
    calls = []
    monkeypatch.setattr(pipeline, "quantize_model", lambda *a, **k: calls.append(1) or quantize_model(*a, **k))
    whole = launch("quip_sharp", line)
    assert len(calls) == 1
    assert whole.metrics["lm.quip_sharp_ft2.bits_per_weight"] == whole.metrics["lm.quip_sharp2.bits_per_weight"]
    done = []

    def dies(run, name, steps, state, save_seconds):
        for step in resumable(run, name, steps, state, save_seconds):
            done.append(step)
            yield step
            if step == 2:
                raise UserError("stopped")  # after the third step, before it is saved

    monkeypatch.setattr(pipeline, "resumable", dies)
    with pytest.raises(UserError, match="stopped"):
        launch("quip_sharp", [*line, f"paths.runs={tmp_path / 'killed'}"])
    (folder,) = (tmp_path / "killed").glob("quip_sharp/default/2*")
    monkeypatch.setattr(pipeline, "resumable", lambda *a: (done.append(s) or s for s in resumable(*a)))
    resumed = launch("quip_sharp", [f"resume={folder}"])
    assert done == [0, 1, 2, 2, 3]
    assert outcome(resumed) == outcome(whole)


def test_a_model_without_linears_is_refused(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path / "gpt2"  # its layers are Conv1D
    GPT2LMHeadModel(GPT2Config(vocab_size=3072, n_embd=16, n_layer=1, n_head=2, n_positions=64)).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(STDLIB_LM / file, folder / file)
    with pytest.raises(UserError, match=r"no nn\.Linear"):
        launch("quip_sharp", [*SMALL, f"model.path={folder}", "parts=[language]"])


def test_a_model_that_overflows_is_refused_in_words(tmp_path, llama):
    """Its Hessians have NaN: the message names the cause, exit code 2."""
    folder = small_model(tmp_path, llama)
    state = load_file(folder / "model.safetensors")
    state["model.layers.0.mlp.up_proj.weight"].fill_(float("inf"))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="NaN or infinite"):
        launch("quip_sharp", [*SMALL, f"model.path={folder}", "parts=[language]"])


# --------------------------------------------------------------------------------------------------- what they stand on


def test_random_documents_are_beginnings_of_long_ones_and_never_joined():
    class Tokenizer:
        bos_token_id = 0

        def __call__(self, texts, **options):
            return {"input_ids": [[ord(c) for c in text] for text in texts]}

    documents = [chr(65 + i) * (5 + 3 * i) for i in range(8)]
    found = data.random_documents(documents, Tokenizer(), 12, 5, torch.Generator().manual_seed(0))
    assert found.shape == (5, 12)
    assert (found[:, 0] == 0).all()
    assert all(len(set(row[1:].tolist())) == 1 for row in found)  # one document each
    with pytest.raises(UserError, match="only 6 of 7"):
        data.random_documents(documents, Tokenizer(), 12, 7, torch.Generator().manual_seed(0))


def test_stored_hessians_are_those_of_the_model_and_are_found_again(llama, tokens, tmp_path):
    model = llama()
    expected = collect_hessians(model, tokens, 4)
    stored = StoredHessians(Run(tmp_path, paper="quip_sharp"), model, tokens, 4, ["key"])
    assert list(stored) == list(expected)
    assert all(torch.equal(stored[name], unpack(pack(expected[name]))) for name in expected)
    assert all(torch.allclose(stored[name], expected[name], rtol=1e-6) for name in expected)
    for parameter in model.parameters():
        parameter.data.zero_()  # found on disk, so the model is not run
    again = StoredHessians(Run(tmp_path / "other", paper="quip_sharp"), model, tokens, 4, ["key"])
    assert all(torch.equal(stored[name], again[name]) for name in expected)
    other = StoredHessians(Run(tmp_path / "other", paper="quip_sharp"), model, tokens, 4, ["another model"])
    assert not any(torch.equal(stored[name], other[name]) for name in list(expected)[1:])


def test_a_pass_that_was_killed_goes_on_with_the_layers_that_are_missing(llama, tokens, tmp_path, monkeypatch):
    whole = StoredHessians(Run(tmp_path, paper="quip_sharp"), llama(), tokens, 4, ["key"])
    (lost,) = (tmp_path / "cache").glob("stages/quip_sharp/hessians-model.layers.1-*.stage")
    lost.unlink()
    again = StoredHessians(Run(tmp_path, paper="quip_sharp"), llama(), tokens, 4, ["key"])
    assert all(torch.equal(whole[name], again[name]) for name in whole)


@pytest.mark.parametrize("tuned", [False, True])
def test_layers_that_were_kept_are_not_quantised_again(tuned, llama, tokens, monkeypatch):
    from papers.quip_sharp import model as module
    from papers.quip_sharp.finetune import Tuning

    tuning = Tuning(train=4, valid=2, epochs=1, batch_size=2, lr_signs=5e-3, lr_others=1e-3) if tuned else None
    stages: dict = {}

    def keep(name, fn):
        if name not in stages:
            stages[name] = fn()
        return stages[name]

    whole = quantize_model(llama(), tokens, "quip_sharp", 2, 0, tuning=tuning, keep=keep)
    del stages["model.layers.1"]
    calls = []
    original = module.quantize_linear
    monkeypatch.setattr(module, "quantize_linear", lambda *a, **k: calls.append(1) or original(*a, **k))
    again = quantize_model(llama(), tokens, "quip_sharp", 2, 0, tuning=tuning, keep=keep)
    assert len(calls) == 4  # the groups of one layer
    with torch.inference_mode():
        assert torch.equal(again(tokens).logits, whole(tokens).logits)
    before, after = whole.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_hidden_states_in_files_change_nothing_and_leave_nothing(llama, tokens, tmp_path):
    def moments(offload):
        visits = walk(llama(), tokens, 4, keep=4, offload=offload)
        return [(v.inputs[0].clone(), v.outputs[0].clone(), *(m.matrix() for m in v.hessians.values())) for v in visits]

    for a, b in zip(moments(None), moments(str(tmp_path / "hidden")), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not list((tmp_path / "hidden").iterdir())


def test_who_holds_a_batch_keeps_its_values_when_it_is_replaced(tmp_path):
    states = HiddenStates(tmp_path)
    states.append(torch.ones(2, 3))
    held = states[0]
    states[0] = torch.zeros(2, 3)
    assert (held == 1).all()
    assert (states[0] == 0).all()


def test_curves_are_compared_where_both_have_points():
    rows = [{"bits": 3, "kilobytes": k, "perplexity": 100 / k} for k in (3, 6.75, 12)]
    rows += [{"bits": 4, "kilobytes": k, "perplexity": 110 / k} for k in (4, 9, 16)]
    budgets = compare(rows, 3, 4)
    assert [b["kilobytes"] for b in budgets] == pytest.approx([4, 48**0.5, 12])
    assert [b["4 bits"] / b["3 bits"] for b in budgets] == pytest.approx([1.1] * 3)
    assert interpolate([(0, 0), (1, 2), (2, 2)], 0.5) == 1
