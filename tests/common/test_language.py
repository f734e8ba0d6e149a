"""Language models by name, and what is said of folders that are not one; perplexity against its definition."""

import json
import math
import shutil

import pytest
import torch
import transformers

from common.data import text
from common.errors import UserError
from common.metrics.language import bits_per_byte, chunk_losses, perplexity
from common.models import language


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a Llama of a few thousand weights and a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(
        models.BPE({c: i for i, c in enumerate(["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|end|>", eos_token="<|end|>"
    ).save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=257,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def broken(tiny, tmp_path):
    """A copy of the folder, to be spoiled."""
    return shutil.copytree(tiny, tmp_path / "model")


def test_a_folder_loads_with_its_tokenizer(tiny):
    model, tokenizer = language.load(str(tiny))
    assert not model.training
    assert tokenizer("é")["input_ids"] != []
    assert text.token_bytes(tokenizer)[tokenizer("é")["input_ids"]].sum() == 2


def refused(path) -> str:
    with pytest.raises(UserError) as caught:
        language.load(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_not_there_is_said(tmp_path):
    assert "no model at" in refused("no_such_model")
    assert "no model at" in refused(tmp_path / "nowhere")
    assert "not a model that can be loaded" in refused(tmp_path)
    assert "data.download=true" in refused("nobody/nothing")


def test_a_classifier_is_not_a_causal_model(broken):
    config = json.loads((broken / "config.json").read_text()) | {"architectures": ["LlamaForSequenceClassification"]}
    (broken / "config.json").write_text(json.dumps(config))
    assert "not a causal language model" in refused(broken)
    transformers.ViTConfig(architectures=["ViTModel"]).save_pretrained(broken)
    assert "not a causal language model" in refused(broken)


def test_truncated_weights_are_refused(broken):
    path = broken / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "whole" in refused(broken)


def test_missing_tensors_are_refused_not_drawn_at_random(broken):
    from safetensors.torch import load_file, save_file

    tensors = load_file(broken / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    assert "model.norm.weight" in refused(broken)


def test_weights_of_another_shape_are_refused(broken):
    config = json.loads((broken / "config.json").read_text()) | {"intermediate_size": 40}
    (broken / "config.json").write_text(json.dumps(config))
    assert "fit its config" in refused(broken) or "cannot load" in refused(broken)


def test_pickled_weights_are_not_read(broken):
    (broken / "model.safetensors").unlink()
    torch.save({}, broken / "pytorch_model.bin")
    assert "safetensors" in refused(broken)


def test_meta_model_has_the_parameters_of_llama_2_7b():
    dims = {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    }
    model = language.on_meta(dims)
    assert model.num_parameters() == 6_738_415_616  # as the weights' own index says
    assert next(model.parameters()).is_meta


@pytest.mark.realdata
def test_stories260k_speaks_as_its_card_says():
    model, tokenizer = language.load("stories260k")
    ids = tokenizer("Once upon a time", return_tensors="pt")["input_ids"]
    told = tokenizer.decode(model.generate(ids, max_new_tokens=12, do_sample=False)[0], skip_special_tokens=True)
    assert told.startswith("Once upon a time, there was a little girl named Lily")


# ---- perplexity ------------------------------------------------------------------------------------------------------


def test_perplexity_is_the_exponential_of_the_mean_chunk_loss(tiny):
    model, _ = language.load(str(tiny))
    chunks = torch.randint(257, (5, 12), generator=torch.Generator().manual_seed(0))
    by_hand = [model(input_ids=c[None], labels=c[None]).loss.item() for c in chunks]
    assert chunk_losses(model, chunks, batch_size=2).tolist() == pytest.approx(by_hand, rel=1e-5)
    assert perplexity(model, chunks, batch_size=3) == pytest.approx(math.exp(sum(by_hand) / 5), rel=1e-5)


def test_uniform_model_has_the_vocabulary_as_perplexity(tiny):
    model, _ = language.load(str(tiny))
    for parameter in model.parameters():
        parameter.data.zero_()
    chunks = torch.randint(1, 257, (3, 9))
    assert perplexity(model, chunks) == pytest.approx(257, rel=1e-5)
    sizes = torch.ones(257, dtype=torch.int64)
    assert bits_per_byte(chunk_losses(model, chunks), chunks, sizes) == pytest.approx(math.log2(257), rel=1e-5)


def test_start_token_once_per_document_and_tail_dropped(tiny):
    _, tokenizer = language.load(str(tiny))
    stream = text.token_stream(["abc", "de"], tokenizer)
    assert (stream == tokenizer.bos_token_id).nonzero().flatten().tolist() == [0, 4]
    assert text.chunked(stream, 3).shape == (2, 3)
    with pytest.raises(UserError, match="fewer than one context"):
        text.chunked(stream, 100)
