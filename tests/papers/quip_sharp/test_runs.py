"""The jobs as commands: same seed same result, a kill loses nothing, wrong input gets one sentence."""

import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from common import claims, training
from common.data.text import chunked, token_stream
from common.errors import Interrupted, UserError
from common.experiment import launch, load_result
from common.metrics.language import perplexity
from common.models import language
from common.models.language import STDLIB_LM
from common.run import Run
from common.settings import compose
from papers.quip_sharp import data, quantize_llm, resumable, scaling, transformers_io
from papers.quip_sharp.hessian_store import StoredHessians, from_lower_triangle, lower_triangle
from papers.quip_sharp.hessians import collect_hessians, walk
from papers.quip_sharp.hidden_states import HiddenStates
from papers.quip_sharp.quantize_llm import quantize_model, rows_of
from papers.quip_sharp.quantize_weight import BASELINES, METHODS, widths
from papers.quip_sharp.scaling import compare, interpolate

SMALL = ["data.context=32", "data.calibration_sequences=4", "data.test_chunks=2"]


def outcome(result):
    record = result.record
    return record["metrics"], record["tables"]


def small_model(tmp_path, llama, name="model", **changes):
    """A folder with a tiny model and the tokenizer of the small one."""
    folder = tmp_path / name
    llama(vocab_size=3072, initializer_range=0.05, **changes).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(STDLIB_LM / file, folder / file)
    return folder


def small_job(tmp_path, llama, **changes) -> list[str]:
    """The line of a job on a tiny model and a short text."""
    text = tmp_path / "text.txt"
    text.write_text(inspect.getsource(textwrap))
    folder = small_model(tmp_path, llama, max_position_embeddings=64, **changes)
    return [f"model.path={folder}", f"data.calibration={text}", f"data.test={text}", "threads=1"]


DIES = """
import os, signal, sys
from common import codec, experiment
save = codec.save
def save_and_die(path, value):
    save(path, value)
    if path.name.startswith("quip_sharp2-tuned-model.layers.0-"):
        os.kill(os.getpid(), signal.SIGKILL)
codec.save = save_and_die
experiment.launch("quip_sharp", sys.argv[1:])
"""


@pytest.mark.slow
def test_smoke_killed_in_the_middle_and_resumed_ends_as_the_uninterrupted_one(tmp_path, llama):
    """Layer 0 of the model that is tuned is on disk, its other layer and the tuning end to end are still to come."""
    line = ["+exp=smoke", *small_job(tmp_path, llama)]
    whole = launch("quip_sharp", line)
    assert whole.exit_code == 0
    environment = {**os.environ, "PAPERS_RUNS": str(tmp_path / "killed"), "PAPERS_CACHE": str(tmp_path / "cache2")}
    process = subprocess.run(
        [sys.executable, "-c", DIES, *line], env=environment, cwd=tmp_path, timeout=200, check=False
    )
    assert process.returncode == -signal.SIGKILL
    (folder,) = (tmp_path / "killed" / "quip_sharp" / "smoke").glob("2*")
    assert load_result(folder).status == "running"
    resumed = launch("quip_sharp", [f"resume={folder}"])
    assert resumed.status == "done"
    assert outcome(resumed) == outcome(whole)


def test_two_runs_with_one_seed_are_identical_and_another_seed_is_not(tmp_path, llama):
    line = [*small_job(tmp_path, llama), *SMALL, "parts=[language]", "methods=[quip_sharp]"]
    first, again, other = (outcome(launch("quip_sharp", [*line, *seed])) for seed in ([], [], ["seed=1"]))
    assert first == again
    assert first[0] != other[0]


def test_a_perplexity_is_logged_with_the_context_it_was_measured_at(tmp_path, llama):
    """Trap xi: what was measured at 32 must not be judged as a claim on 4096."""
    line = [*small_job(tmp_path, llama), "data.context=32", "data.calibration_sequences=2", "data.test_chunks=3"]
    result = launch("quip_sharp", [*line, "parts=[language]", "methods=[rtn]"])
    named = {name: value for name, value in result.metrics.items() if "perplexity_at" in name}
    assert named == {"lm.rtn2.perplexity_at_32": result.metrics["lm.rtn2.perplexity"]}
    assert [row["context"] for row in result.record["tables"]["perplexity"]] == [32, 32]
    model, tokenizer = language.load(str(tmp_path / "model"))
    chunks = chunked(token_stream([(tmp_path / "text.txt").read_text()], tokenizer), 32, 3)
    assert result.metrics["lm.fp.perplexity"] == pytest.approx(perplexity(model, chunks), rel=1e-6)


CLAIMED = {  # the experiments that claims name, and what makes them small
    "default": ["incoherence.m=16", "incoherence.n=32", "gaussian.samples=100"],
    "ci": [
        "incoherence.m=16",
        "incoherence.n=32",
        "gaussian.samples=100",
        "layers.m=16",
        "layers.n=32",
        "layers.seeds=[0]",
    ],
    "finetune": [],
    "scaling": ["scaling.widths=[16,24]", "scaling.steps=1"],
}


@pytest.mark.parametrize("experiment", CLAIMED)
def test_every_claim_is_on_a_figure_that_its_experiment_finds(experiment, tmp_path, llama):
    small = ["data.context=16", "data.calibration_sequences=4", "data.test_chunks=2", "tuning.valid=2",
             "tuning.end_to_end.sequences=4"]  # fmt: skip
    line = [] if experiment == "default" else [f"+exp={experiment}"]
    result = launch("quip_sharp", [*line, *small_job(tmp_path, llama), *small, *CLAIMED[experiment]])
    wanted = {claim["metric"] for claim in claims.read("quip_sharp") if experiment in claim["experiments"]}
    assert wanted
    assert wanted <= result.metrics.keys()


def test_no_experiment_with_claims_is_left_out_of_that():
    named = {experiment for claim in claims.read("quip_sharp") for experiment in claim["experiments"]}
    assert named == {*CLAIMED, "llama7b"}


@pytest.mark.parametrize(
    ("experiment", "params"), [("llama7b", 6.74e9), ("llama13b", 1.302e10), ("llama70b", 6.898e10)]
)
def test_dry_run_of_the_papers_models_needs_no_weights(experiment, params):
    result = launch("quip_sharp", [f"+exp={experiment}", "run.dry=true", "bits=[4]", "device=cpu"])
    assert result.metrics["params"] == pytest.approx(params, rel=0.001)
    assert result.metrics["memory_gb"] > 2 * params / 1e9
    assert result.metrics["hours"] > 0
    assert any("Estimated" in note for note in result.record["notes"])


def test_papers_scale_without_weights_says_what_to_get_and_where_to_put_it():
    with pytest.raises(UserError, match=r"licence.*weights/llama2-7b"):
        launch("quip_sharp", ["+exp=llama7b", "bits=[3]", "finetune=false"])


def test_paper_scale_settings_run_end_to_end_on_a_small_model(tmp_path, llama):
    """The llama7b experiment with nothing changed but the model, the text and the sizes."""
    folder, text = small_model(tmp_path, llama), tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": "def f(x):\n    return x\n" * (20 + i)}) + "\n" for i in range(24)))
    line = [f"model.path={folder}", f"data.calibration={text}", f"data.test={text}", "data.context=16", "data.test_chunks=2",
            "data.calibration_sequences=8", "tuning.valid=2", "tuning.block.batch_size=2", "tuning.block.sequences=4", "tuning.block.epochs=1",
            "tuning.end_to_end.sequences=4", "tuning.end_to_end.epochs=1", f"offload={tmp_path / 'hidden'}", "threads=1"]  # fmt: skip
    result = launch("quip_sharp", ["+exp=llama7b", *line])
    assert {"lm.quip_sharp2.perplexity", "lm.quip_sharp_ft2.perplexity"} <= result.metrics.keys()
    wanted = {claim["metric"] for claim in claims.read("quip_sharp") if "llama7b" in claim["experiments"]}
    assert {metric.replace("_at_4096", "_at_16") for metric in wanted} <= result.metrics.keys()
    assert not list((tmp_path / "hidden").iterdir())


# ---------------------------------------------------------------------------------------------- quantize and evaluate


def test_quantize_then_evaluate_agree_and_the_size_is_exact(tmp_path, llama):
    out = tmp_path / "quantised"
    small = [*small_job(tmp_path, llama), *SMALL]
    made = launch("quip_sharp", [*small, f"out={out}"], verb="quantize")
    line = [
        f"model.path={out}",
        small[2],
        "data.context=32",
        "data.test_chunks=2",
        "threads=1",
        "prompt=def",
        "new_tokens=4",
    ]
    found = launch("quip_sharp", line, verb="evaluate")
    assert found.metrics["perplexity"] == made.metrics["perplexity.quantized"]
    assert made.record["claims"] == found.record["claims"] == []  # they are on the paper's own experiments
    assert found.metrics["bits_per_weight"] == made.metrics["bits_per_weight"]
    assert found.record["tables"]["generated"][0]["text"].startswith("def")
    with pytest.raises(UserError, match="not empty"):
        launch("quip_sharp", [*small, f"out={out}"], verb="quantize")
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
        (["out=/proc/nope"], "out=/proc/nope cannot be written"),
        (["out=x", "data.context=4096"], "more than the model's 64"),
        (["out=x", "data.characters=30"], "tokens"),
        (["out=x", "data.sampling=documents"], "only 1 of 4 documents"),
        (["out=x", "data.calibration=/nowhere.txt"], "nowhere"),
    ],
)
def test_what_only_the_machine_can_refuse_gets_one_sentence(line, words, tmp_path, llama, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words) as caught:
        launch("quip_sharp", [*small_job(tmp_path, llama), *SMALL, *line], verb="quantize")
    assert "\n" not in str(caught.value)


def test_plan_has_each_tuned_model_after_the_one_it_begins_with_and_ablations_at_two_bits():
    line = ["methods=[rtn,quip_sharp]", "bits=[2,3]", "ablations=[quip_sharp_d4]", "finetune=true", "tuning.bits=[2,4]"]
    plan = resumable.plan(compose("quip_sharp", "train", line))
    assert plan == [("rtn", 2, False), ("quip_sharp", 2, False), ("quip_sharp", 2, True), ("quip_sharp_d4", 2, False),
                    ("rtn", 3, False), ("quip_sharp", 3, False), ("quip_sharp", 4, True)]  # fmt: skip


def test_a_model_to_be_tuned_is_quantised_once_and_tuning_resumes_after_a_kill(monkeypatch, tmp_path, llama):
    """The words of the untuned model are the tuned one's; and a run that stops after a saved step ends as one that did not."""
    line = [*small_job(tmp_path, llama), *SMALL, "parts=[language]", "methods=[quip_sharp]", "finetune=true", "tuning.valid=2", "tuning.save_seconds=0",
            "tuning.end_to_end.sequences=4", "tuning.end_to_end.batch_size=2"]  # fmt: skip
    calls = []
    monkeypatch.setattr(resumable, "quantize_model", lambda *a, **k: calls.append(1) or quantize_model(*a, **k))
    whole = launch("quip_sharp", line)
    assert len(calls) == 1
    assert whole.metrics["lm.quip_sharp_ft2.bits_per_weight"] == whole.metrics["lm.quip_sharp2.bits_per_weight"]
    done = []

    def dies(run, name, steps, state, save_seconds):
        for step in training.resumable(run, name, steps, state, save_seconds):
            done.append(step)
            yield step
            if step == 2:
                raise UserError("stopped")  # after the third step, before it is saved

    monkeypatch.setattr(resumable, "resumable", dies)
    with pytest.raises(UserError, match="stopped"):
        launch("quip_sharp", [*line, f"paths.runs={tmp_path / 'killed'}"])
    (folder,) = (tmp_path / "killed").glob("quip_sharp/default/2*")
    monkeypatch.setattr(resumable, "resumable", lambda *a: (done.append(s) or s for s in training.resumable(*a)))
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
        launch("quip_sharp", [*SMALL, f"model.path={folder}", "parts=[language]", "threads=1"])


def test_a_model_that_overflows_is_refused_in_words(tmp_path, llama):
    """Its Hessians have NaN: the message names the cause, exit code 2."""
    folder = small_model(tmp_path, llama)
    state = load_file(folder / "model.safetensors")
    state["model.layers.0.mlp.up_proj.weight"].fill_(float("inf"))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="NaN or infinite"):
        launch("quip_sharp", [*SMALL, f"model.path={folder}", "parts=[language]", "threads=1"])


# --------------------------------------------------------------------------------------------------- what they stand on


def test_stored_hessians_are_those_of_the_model_and_are_found_again(llama, tokens, tmp_path):
    model = llama()
    expected = collect_hessians(model, tokens, 4)
    stored = StoredHessians(Run(tmp_path, paper="quip_sharp"), model, tokens, 4, ["key"])
    assert list(stored) == list(expected)
    assert all(torch.equal(stored[name], from_lower_triangle(lower_triangle(expected[name]))) for name in expected)
    assert all(torch.allclose(stored[name], expected[name], rtol=1e-6) for name in expected)
    for parameter in model.parameters():
        parameter.data.zero_()  # found on disk, so the model is not run
    again = StoredHessians(Run(tmp_path / "other", paper="quip_sharp"), model, tokens, 4, ["key"])
    assert all(torch.equal(stored[name], again[name]) for name in expected)
    other = StoredHessians(Run(tmp_path / "other", paper="quip_sharp"), model, tokens, 4, ["another model"])
    assert not any(torch.equal(stored[name], other[name]) for name in list(expected)[1:])


def test_stored_hessians_belong_to_one_text_one_dtype_one_config_and_one_set_of_weights(tmp_path, llama):
    line = [*small_job(tmp_path, llama), "data.context=16", "data.calibration_sequences=2", "data.test_chunks=1"]

    def collect(*changes):
        """The Hessians of such a job, and of how many layers they were not on disk before."""
        cfg = compose("quip_sharp", "train", [*line, *changes])
        before = len(list((tmp_path / "cache").glob("stages/quip_sharp/hessians-*.stage")))
        run = Run(tmp_path / "run", paper="quip_sharp", seed=cfg.seed, threads=1)
        found = dict(resumable.LanguageModelJob(cfg, run, data.load(cfg, run)).hessians)
        return found, len(list((tmp_path / "cache").glob("stages/quip_sharp/hessians-*.stage"))) - before

    first, new = collect()
    assert new == 2
    again, new = collect("methods=[rtn]", "bits=[3]", "quantize.sigma=0.1", "data.test_chunks=2")
    assert new == 0
    assert all(torch.equal(again[name], H) for name, H in first.items())
    shutil.copytree(tmp_path / "model", tmp_path / "copy")
    assert collect(f"model.path={tmp_path / 'copy'}")[1] == 0
    (tmp_path / "other.txt").write_text(inspect.getsource(shutil))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    wide = shutil.copytree(tmp_path / "model", tmp_path / "wide")
    (wide / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.1}))
    for change in (
        [f"data.calibration={tmp_path / 'other.txt'}"],
        ["seed=1"],
        ["model.dtype=bfloat16"],
        [f"model.path={wide}"],
        [],
    ):
        if not change:
            small_model(tmp_path, llama, max_position_embeddings=64, seed=1)  # other weights, the same folder
        other, new = collect(*change)
        assert new == 2, change
        assert not any(torch.equal(other[name], H) for name, H in first.items()), change


def test_rho_goes_to_e8p_by_bits_and_to_codebooks_in_its_place_by_name():
    rho = "quantize.rho={bits2: 0.7, bits3: 0.8, bits4: 0.6, d4: 1.3, scalar2: 0.5}"
    cfg = compose("quip_sharp", "train", [rho, "quantize.tune=3", "quantize.sigma=0.2"])
    quantizer = resumable.LanguageModelJob(cfg, None, None)
    of_e8p = {1: None, 2: 0.7, 3: 0.8, 4: 0.6}  # one bit is the ball of E8 alone, at the scale that suits it
    expected = {
        "quip_sharp": of_e8p,
        "quip_sharp_rfft": of_e8p,
        "quip_sharp_no_rht": of_e8p,
        "quip_sharp_no_ldlq": of_e8p,
        "quip_sharp_no_e8": {2: 0.5, 3: None, 4: None},
        "quip_sharp_d4": {2: 1.3},
    }
    for method in METHODS:
        found = {bits: quantizer.options(method, bits) for bits in widths(method)}
        if method in BASELINES:
            assert not any(found.values())
        else:
            assert {bits: options["rho"] for bits, options in found.items()} == expected[method], method
            assert all((options["tune"], options["sigma"]) == (3, 0.2) for options in found.values())


def test_the_options_reach_the_quantiser(llama, tokens, tmp_path):
    line = ["quantize.rho={bits2: 0.7, bits3: 0.8, bits4: 0.6, d4: 1.3, scalar2: 0.5}", "quantize.sigma=0.2"]
    inputs = data.Inputs(llama(), None, tokens, None, tokens, ["key"])
    quantizer = resumable.LanguageModelJob(
        compose("quip_sharp", "train", line), Run(tmp_path, paper="quip_sharp"), inputs
    )
    for method, bits, rho in (("quip_sharp", 3, 0.8), ("quip_sharp_d4", 2, 1.3)):
        rows = rows_of(quantizer.quantize(method, bits)[0])
        assert len(rows) == 8
        assert {(row["method"], row["rho"], row["sigma"]) for row in rows} == {(method, rho, 0.2)}


def test_a_pass_that_was_killed_goes_on_with_the_layers_that_are_missing(llama, tokens, tmp_path, monkeypatch):
    whole = StoredHessians(Run(tmp_path, paper="quip_sharp"), llama(), tokens, 4, ["key"])
    (lost,) = (tmp_path / "cache").glob("stages/quip_sharp/hessians-model.layers.1-*.stage")
    lost.unlink()
    again = StoredHessians(Run(tmp_path, paper="quip_sharp"), llama(), tokens, 4, ["key"])
    assert all(torch.equal(whole[name], again[name]) for name in whole)


@pytest.mark.parametrize("tuned", [False, True])
def test_layers_that_were_kept_are_not_quantised_again(tuned, llama, tokens, monkeypatch):
    from papers.quip_sharp.finetune import Tuning

    tuning = Tuning(train=4, valid=2, epochs=1, batch_size=2, lr_signs=5e-3, lr_others=1e-3) if tuned else None
    stages: dict = {}

    def keep(name, fn, *args):
        if name not in stages:
            stages[name] = fn(*args)
        return stages[name]

    whole = quantize_model(llama(), tokens, "quip_sharp", 2, 0, tuning=tuning, keep=keep)
    del stages["model.layers.1"]
    calls = []
    original = quantize_llm.quantize_linear
    monkeypatch.setattr(quantize_llm, "quantize_linear", lambda *a, **k: calls.append(1) or original(*a, **k))
    again = quantize_model(llama(), tokens, "quip_sharp", 2, 0, tuning=tuning, keep=keep)
    assert len(calls) == 4  # the groups of one layer
    with torch.inference_mode():
        assert torch.equal(again(tokens).logits, whole(tokens).logits)
    before, after = whole.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_hidden_states_that_a_killed_run_left_are_cleared(tmp_path):
    run = SimpleNamespace(dir=tmp_path / "runs" / "0")
    cfg = SimpleNamespace(offload=str(tmp_path / "hidden"))
    own = Path(resumable.LanguageModelJob(cfg, run, None).offload)
    (own / "hidden-states-xyz").mkdir(parents=True)
    (own.parent / "of-another-run").mkdir()
    assert Path(resumable.LanguageModelJob(cfg, run, None).offload) == own
    assert [path.name for path in own.parent.iterdir()] == ["of-another-run"]
    assert resumable.LanguageModelJob(cfg, SimpleNamespace(dir=tmp_path / "other" / "0"), None).offload != str(own)


def test_a_quantize_job_that_dies_after_saving_goes_on(tmp_path, llama, monkeypatch):
    save = transformers_io.save_pretrained

    def dies(*args):
        save(*args)
        raise KeyboardInterrupt

    line = [*small_job(tmp_path, llama), *SMALL, "out=quantised", f"paths.runs={tmp_path}/runs"]
    begun, elsewhere = tmp_path / "begun", tmp_path / "elsewhere"
    begun.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(begun)
    with monkeypatch.context() as patched:
        patched.setattr(transformers_io, "save_pretrained", dies)
        with pytest.raises(Interrupted):
            launch("quip_sharp", line, verb="quantize")
    monkeypatch.chdir(elsewhere)  # `out` means what it meant where the run began
    folder = tmp_path / "runs" / "quip_sharp" / "default" / "latest"
    assert launch("quip_sharp", [f"resume={folder}"], verb="quantize").metrics["megabytes"] > 0
    assert (begun / "quantised" / "model.safetensors").exists()
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("verb", ["quantize", "evaluate"])
def test_a_tokenizer_of_another_model_is_an_error(verb, tmp_path, llama):
    line = [*small_job(tmp_path, llama), *SMALL]
    llama(vocab_size=100).save_pretrained(tmp_path / "model")
    line = [*line, f"out={tmp_path / 'out'}"] if verb == "quantize" else [line[0], *line[2:4], "data.context=16"]
    with pytest.raises(UserError, match="its model knows 100"):
        launch("quip_sharp", line, verb=verb)


def test_evaluation_of_damaged_weights_is_an_error(tmp_path, llama):
    folder = small_model(tmp_path, llama)
    state = load_file(folder / "model.safetensors")
    state["model.norm.weight"][0] = torch.nan
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="not finite"):
        launch(
            "quip_sharp",
            [f"model.path={folder}", "data.context=16", "data.test_chunks=2", "threads=1"],
            verb="evaluate",
        )


def test_a_prompt_has_words_and_room_for_what_follows(tmp_path, llama):
    line = [f"model.path={small_model(tmp_path, llama)}", "data.context=16", "data.test_chunks=2", "threads=1"]
    with pytest.raises(UserError, match="prompt is empty"):
        launch("quip_sharp", [*line, "prompt="], verb="evaluate")
    with pytest.raises(UserError, match="more than the model's 32"):
        launch("quip_sharp", [*line, "prompt=import", "new_tokens=40"], verb="evaluate")


def test_hidden_states_in_files_change_nothing_and_leave_nothing(llama, tokens, tmp_path):
    def moments(offload):
        visits = walk(llama(), tokens, 4, keep=4, offload=offload)
        return [(v.inputs[0].clone(), v.outputs[0].clone(), *(m.matrix() for m in v.hessians.values())) for v in visits]

    for a, b in zip(moments(None), moments(str(tmp_path / "hidden")), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not (tmp_path / "hidden").exists()


def test_who_holds_a_batch_keeps_its_values_when_it_is_replaced(tmp_path):
    states = HiddenStates(tmp_path)
    states.append(torch.ones(2, 3))
    held = states[0]
    states[0] = torch.zeros(2, 3)
    assert (held == 1).all()
    assert (states[0] == 0).all()


@pytest.mark.parametrize(("three", "four", "wins"), [(12.0, 12.0, 3), (12.0, 11.0, 0)])
def test_scaling_counts_the_sizes_at_which_three_bits_are_as_good_as_four(
    three, four, wins, tmp_path, llama, monkeypatch
):
    """With perplexities that depend on the codebook alone, each model's is where it belongs."""
    known = {None: 9.0, "e8p": 20.0, "e8p_rvq3": three, "e8p_rvq4": four}
    monkeypatch.setattr(
        scaling, "perplexity", lambda model, *_, **__: known[(rows_of(model) or [{}])[0].get("codebook")]
    )
    line = ["+exp=scaling", *small_job(tmp_path, llama), "data.context=16", "data.calibration_sequences=1", "data.test_chunks=1",
            *CLAIMED["scaling"]]  # fmt: skip
    result = launch("quip_sharp", line)
    tables = result.record["tables"]
    assert (result.metrics["scaling.three_bits_win"], result.metrics["scaling.budgets"]) == (wins, 3)
    assert all((row["3 bits"], row["4 bits"]) == pytest.approx((three, four)) for row in tables["budgets"])
    for width in (16, 24):
        sizes = {row["bits"]: row["kilobytes"] for row in tables["scaling"] if row["width"] == width}
        assert sizes[2] < sizes[3] < sizes[4] < sizes[16] == 4 * (4 * width**2 + 3 * width * 5 * width // 2) * 2 / 1000
        for bits, perplexity_of in ((16, 9.0), (2, 20.0), (3, three), (4, four)):
            assert result.metrics[f"scaling.{width}.{bits}bit.perplexity"] == perplexity_of


def test_curves_are_compared_where_both_have_points():
    rows = [{"bits": 3, "kilobytes": k, "perplexity": 100 / k} for k in (3, 6.75, 12)]
    rows += [{"bits": 4, "kilobytes": k, "perplexity": 110 / k} for k in (4, 9, 16)]
    budgets = compare(rows, 3, 4)
    assert [b["kilobytes"] for b in budgets] == pytest.approx([4, 48**0.5, 12])
    assert [b["4 bits"] / b["3 bits"] for b in budgets] == pytest.approx([1.1] * 3)
    assert interpolate([(0, 0), (1, 2), (2, 2)], 0.5) == 1


def test_hessians_are_packed_by_their_lower_triangle():
    H = torch.arange(16.0, dtype=torch.float64).reshape(4, 4)
    H = H + H.T
    assert lower_triangle(H).tolist() == [H[i, j].item() for i in range(4) for j in range(i + 1)]
    assert torch.equal(from_lower_triangle(lower_triangle(H)), H)


def test_another_seed_of_the_run_draws_other_layers():
    line = [
        "parts=[layers]",
        "layers.m=16",
        "layers.n=32",
        "layers.bits=[2]",
        "layers.methods=[rtn]",
        "layers.seeds=[0]",
        "threads=1",
    ]
    found = [launch("quip_sharp", [*line, f"seed={seed}"]).metrics["layers.rtn2"] for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
