"""Quantised folders: transformers loads them, every tensor is checked, and another process computes the same."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from papers.quip_sharp import transformers_io
from papers.quip_sharp.finetune import untie_head
from papers.quip_sharp.linear import QuantLinear
from papers.quip_sharp.quantize_llm import bits_per_weight, quantize_model, rows_of, summary


@pytest.fixture(scope="module")
def quantized(llama, tokens):
    return quantize_model(llama(), tokens, "quip_sharp", 2, 0)


@pytest.fixture(scope="module")
def folder(quantized, tmp_path_factory):
    path = tmp_path_factory.mktemp("quantized")
    transformers_io.save_pretrained(quantized, path)
    return path


def logits(model, tokens):
    with torch.inference_mode():
        return model(tokens).logits


def test_transformers_loads_the_folder_and_every_tensor_is_the_same(quantized, folder, tokens):
    again = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(logits(again, tokens), logits(quantized, tokens))
    before, after = quantized.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) and before[key].dtype == after[key].dtype for key in before)
    assert rows_of(again) == rows_of(quantized)
    assert again.lm_head.weight is again.model.embed_tokens.weight


@pytest.mark.parametrize(("method", "bits"), [("quip_sharp", 3), ("quip_sharp_rfft", 4), ("quip_sharp_no_e8", 2)])
def test_other_recipes_come_back_too(method, bits, llama, tokens, tmp_path):
    model = quantize_model(llama(), tokens, method, bits, 0)
    transformers_io.save_pretrained(model, tmp_path)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path), tokens), logits(model, tokens))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_biases_odd_sizes_and_an_untied_head_come_back(dtype, llama, tokens, tmp_path):
    model = llama(attention_bias=True, intermediate_size=37, tie_word_embeddings=False).to(dtype)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    quantized = quantize_model(model, tokens, "quip_sharp", 2, 0)
    transformers_io.save_pretrained(quantized, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    again.model.rotary_emb = quantized.model.rotary_emb  # no part of the state: transformers keeps it in float32
    assert torch.equal(logits(again, tokens), logits(quantized, tokens))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_loading_in_half_precision_keeps_words_signs_and_scales(dtype, quantized, folder, tokens):
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    assert again.lm_head.weight.dtype == dtype
    pairs = zip(quantized.modules(), again.modules(), strict=True)
    for a, b in ((a, b) for a, b in pairs if isinstance(a, QuantLinear)):
        assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(a.buffers(), b.buffers(), strict=True))
    error = (logits(again, tokens).float() - logits(quantized, tokens)).norm() / logits(quantized, tokens).norm()
    assert error < 0.05


def test_generate_works_and_agrees_with_the_dense_model(folder, llama, tokens):
    again = AutoModelForCausalLM.from_pretrained(folder)
    dense = llama()
    for name, module in again.named_modules():
        if isinstance(module, QuantLinear) and not name.endswith("fused"):
            dense.get_submodule(name).weight.data = module.dense_weight()
        elif name.endswith("fused"):
            parent = name.rpartition(".")[0].rpartition(".")[0]
            siblings = ("q_proj", "k_proj", "v_proj") if "attn" in parent else ("gate_proj", "up_proj")
            for sibling, weight in zip(siblings, module.dense_weight().split(module.splits), strict=True):
                dense.get_submodule(f"{parent}.{sibling}").weight.data = weight
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(again.generate(tokens[:2], **options), dense.generate(tokens[:2], **options))


def test_a_loaded_model_can_be_saved_again(folder, tokens, tmp_path):
    again = AutoModelForCausalLM.from_pretrained(folder)
    again.save_pretrained(tmp_path)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path), tokens), logits(again, tokens))


def test_the_models_own_save_pretrained_writes_what_it_is(llama, tokens, tmp_path):
    model = quantize_model(llama(), tokens, "quip_sharp", 2, 0)
    untie_head(model)  # as fine-tuning does, after the model was quantised
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(again, tokens), logits(model, tokens))
    assert again.lm_head.weight is not again.model.embed_tokens.weight


@pytest.mark.parametrize(
    ("kind", "options"),
    [("gpt_neox", {}), ("mixtral", {"num_local_experts": 4, "num_key_value_heads": 2})],
)
def test_architectures_with_old_names_on_disk_load_too(kind, options, tokens, tmp_path, caplog):
    config = AutoConfig.for_model(kind, vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                  num_attention_heads=4, max_position_embeddings=32, **options)  # fmt: skip
    model = quantize_model(AutoModelForCausalLM.from_config(config).eval(), tokens, "quip_sharp", 2, 0)
    assert ("not in an nn.Linear" in caplog.text) == (
        kind == "mixtral"
    )  # its experts are one tensor: said, not quantised
    transformers_io.save_pretrained(model, tmp_path)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path), tokens), logits(model, tokens))


def test_a_folder_is_written_whole_or_not_at_all(quantized, tmp_path):
    class Tokenizer:
        def save_pretrained(self, folder):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transformers_io.save_pretrained(quantized, tmp_path / "out", Tokenizer())
    assert not list((tmp_path / "out").iterdir())
    (tmp_path / "link").symlink_to(tmp_path / "out")
    transformers_io.save_pretrained(quantized, tmp_path / "link")
    assert {"config.json", "model.safetensors"} <= {path.name for path in (tmp_path / "out").iterdir()}
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        transformers_io.save_pretrained(quantized, tmp_path / "file")


def test_bits_per_weight_count_every_stored_bit(quantized, folder):
    stored = load_file(folder / "model.safetensors")
    own = {k: v for k, v in stored.items() if k.rpartition(".")[2] in ("words", "SU", "SV", "scale")}
    weights = sum(row["weights"] for row in (m.quantization for m in quantized.modules() if isinstance(m, QuantLinear)))
    assert bits_per_weight(quantized) == 8 * sum(t.numel() * t.element_size() for t in own.values()) / weights
    assert bits_per_weight(quantized) == pytest.approx(summary(quantized)["bits_per_weight"])


@pytest.mark.slow
def test_a_fresh_process_computes_the_same(llama, tokens, tmp_path):
    """Of every codebook: whoever has quantised in this process has all tables at hand, which hides what loading needs."""
    recipes = [("quip_sharp", 1), ("quip_sharp", 2), ("quip_sharp", 3), ("quip_sharp_d4", 2), ("quip_sharp_no_e8", 2)]
    models = {f"{method}{bits}": quantize_model(llama(), tokens, method, bits, 0) for method, bits in recipes}
    for name, model in models.items():
        transformers_io.save_pretrained(model, tmp_path / name)
    code = (
        "import sys, torch, papers.quip_sharp.transformers_io\n"
        "from transformers import AutoModelForCausalLM\n"
        "from safetensors.torch import load_file, save_file\n"
        "ids = load_file('ids.safetensors')['ids']\n"
        "names = sys.argv[1:]\n"
        "save_file({n: AutoModelForCausalLM.from_pretrained(n)(ids).logits.detach() for n in names}, 'out.safetensors')\n"
    )
    save_file({"ids": tokens}, tmp_path / "ids.safetensors")
    subprocess.run([sys.executable, "-c", code, *models], check=True, cwd=tmp_path, timeout=200)
    found = load_file(tmp_path / "out.safetensors")
    for name, model in models.items():
        # another process may use another number of threads, so sums may differ in their last bits
        assert torch.allclose(found[name], logits(model, tokens), atol=1e-5), name


# ------------------------------------------------------------------------------------------------- damaged folders


@pytest.fixture
def damaged(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "damaged")


def edit(folder, change):
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


WORDS = "model.layers.1.mlp.down_proj.words"


def test_a_missing_tensor_is_an_error_and_not_a_report(damaged):
    edit(damaged, lambda state: state.pop(WORDS))
    with pytest.raises(ValueError, match=rf"missing \({WORDS}\)"):
        AutoModelForCausalLM.from_pretrained(damaged)


def test_an_unexpected_tensor_is_an_error(damaged):
    edit(damaged, lambda state: state.update({"model.layers.9.mlp.down_proj.words": torch.zeros(2)}))
    with pytest.raises(ValueError, match="not of this model"):
        AutoModelForCausalLM.from_pretrained(damaged)


def test_a_tensor_of_another_shape_is_an_error(damaged):
    edit(damaged, lambda state: state.update({WORDS: state[WORDS][:-1].clone()}))
    with pytest.raises(ValueError, match="wrong shape"):
        AutoModelForCausalLM.from_pretrained(damaged)


@pytest.mark.parametrize("own", ["words", "SU", "scale"])
def test_tensors_of_another_type_are_an_error(own, damaged):
    name = WORDS.replace("words", own)
    edit(damaged, lambda state: state.update({name: state[name].double()}))
    with pytest.raises(ValueError, match="wrong type"):
        AutoModelForCausalLM.from_pretrained(damaged)


def test_a_head_beside_the_embedding_that_it_is_tied_to_is_an_error(damaged):
    edit(damaged, lambda state: state.update({"lm_head.weight": torch.zeros(64, 32)}))
    with pytest.raises(ValueError, match=r"not of this model \(lm_head.weight"):
        AutoModelForCausalLM.from_pretrained(damaged)


def test_a_missing_embedding_is_an_error(damaged):
    edit(damaged, lambda state: state.pop("model.embed_tokens.weight"))
    with pytest.raises(ValueError, match="missing"):
        AutoModelForCausalLM.from_pretrained(damaged)


@pytest.mark.parametrize(
    "change",
    [
        lambda q: q["linears"][WORDS.removesuffix(".words")].pop("sizes"),
        lambda q: next(iter(q["parts"].values())).update(index=9),
        lambda q: next(iter(q["parts"].values())).update(of="nobody"),
        lambda q: q["linears"].update({"model.layers.7.mlp.down_proj": q["linears"][WORDS.removesuffix(".words")]}),
    ],
)
def test_a_config_that_is_not_of_this_model_is_an_error(change, damaged):
    config = json.loads((damaged / "config.json").read_text())
    change(config["quantization_config"])
    (damaged / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config\.json does not describe"):
        AutoModelForCausalLM.from_pretrained(damaged)


def test_a_file_cut_short_is_an_error(damaged):
    content = (damaged / "model.safetensors").read_bytes()
    (damaged / "model.safetensors").write_bytes(content[:-100])
    with pytest.raises(ValueError, match="cut short"):
        AutoModelForCausalLM.from_pretrained(damaged)


def test_another_format_is_an_error(damaged):
    config = json.loads((damaged / "config.json").read_text())
    config["quantization_config"]["format"] = 99
    (damaged / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="format 99"):
        AutoModelForCausalLM.from_pretrained(damaged)


def test_a_model_that_is_not_quantised_or_in_tuning_is_not_saved(llama, tokens, tmp_path):
    dense = llama()
    with pytest.raises(ValueError, match="no QuantLinear"):
        transformers_io.save_pretrained(dense, tmp_path)
    dense.save_pretrained(tmp_path)  # which it can as before
    model = quantize_model(llama(), tokens, "quip_sharp", 2, 0)
    next(m for m in model.modules() if isinstance(m, QuantLinear)).set_tuning()
    with pytest.raises(ValueError, match="tuned"):
        transformers_io.save_pretrained(model, tmp_path)
