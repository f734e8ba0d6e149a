"""Language models by name, folders that are not one, text to tokens, small models trained; perplexity by its definition."""

import gzip
import hashlib
import json
import math
import os
import shutil

import pytest
import torch
import transformers

from common.data import stdlib, text
from common.errors import UserError
from common.files import cache_folder, sha256_of
from common.metrics.language import bits_per_byte, chunk_losses, perplexity
from common.models import language
from common.run import Run


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


def test_tail_is_dropped_and_the_limit_kept():
    assert text.chunked(torch.arange(11), 3).tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert text.chunked(torch.arange(11), 3, 2).tolist() == [[0, 1, 2], [3, 4, 5]]


# ---- text to tokens --------------------------------------------------------------------------------------------------


class Letters:
    """A tokenizer of single characters; 0 begins a document."""

    bos_token_id = 0

    def __call__(self, texts, **options):
        return {"input_ids": [[ord(c) for c in text] for text in texts]}


def test_documents_of_files_with_and_without_lines_of_json(tmp_path):
    plain, lines, packed = tmp_path / "a.txt", tmp_path / "b.jsonl", tmp_path / "c.jsonl.gz"
    plain.write_text("one\ntwo")
    content = '{"text": "one\u2028line"}\n\n{"text": "another\x85line", "url": 1}\n'
    lines.write_text(content, encoding="utf-8", newline="\n")
    packed.write_bytes(gzip.compress(content.encode()))
    assert text.documents(str(plain)) == ["one\ntwo"]
    for path in (lines, packed):  # strings may hold other separators of lines
        assert text.documents(str(path)) == ["one\u2028line", "another\x85line"]
        assert text.documents(str(path), characters=10) == ["one\u2028line", "an"]


@pytest.mark.parametrize(
    "content", [b"not json", b'{"no": 1}', b'{"text": 3}', b"[1]", b'{"text": null}', b"[" * 100_000, b"\xff\xfe\x00"]
)
def test_lines_of_something_else_are_refused_in_one_sentence(content, tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not JSON lines") as caught:
        text.documents(str(path))
    assert "\n" not in str(caught.value)


def test_damaged_archives_and_missing_files_are_refused(tmp_path):
    path = tmp_path / "text.txt.gz"
    for content in (gzip.compress(b"text" * 1000)[:40], b"no archive"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"text.txt.gz cannot be read"):
            text.documents(str(path))
    for missing in ("/nowhere.txt", str(tmp_path)):
        with pytest.raises(UserError, match="no text at"):
            text.documents(missing)
    with pytest.raises(ValueError, match="choose train or test"):
        text.documents("stdlib", "valid")


def test_the_splits_of_the_library_are_apart_and_recorded(tmp_path):
    run = Run(tmp_path, paper="quip_sharp")
    train, test = (text.documents("stdlib", split, run=run) for split in ("train", "test"))
    assert not set(train) & set(test) - {""}
    assert set(train) | set(test) == set(stdlib.load().files.values())
    assert run.data["stdlib"]["source"] == "package"
    (tmp_path / "own.txt").write_text("text")
    text.documents(str(tmp_path / "own.txt"), run=run)
    assert run.data["own.txt"]["source"] == "real"


def test_load_is_documents_then_stream_then_chunks(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "abcd"}\n{"text": "ef"}\n')
    expected = [0, *map(ord, "abcd"), 0, *map(ord, "ef")]
    assert text.stream(str(path), Letters()).tolist() == expected
    assert text.load(str(path), Letters(), 3).flatten().tolist() == expected[:6]
    assert text.load(str(path), Letters(), 3, limit=1).tolist() == [expected[:3]]
    with pytest.raises(UserError, match="has 3 tokens, fewer than one context of 4"):
        text.load(str(path), Letters(), 4, characters=2)
    assert text.token_stream([], Letters()).shape == (0,)


def test_windows_lie_anywhere_in_the_stream():
    generator = torch.Generator().manual_seed(0)
    found = text.windows(torch.arange(10), 4, 500, generator)
    assert {row[0].item() for row in found} == set(range(7))  # the last one included
    assert (found == found[:, :1] + torch.arange(4)).all()
    assert text.windows(torch.arange(4), 4, 2, generator).tolist() == [[0, 1, 2, 3]] * 2
    with pytest.raises(UserError, match="fewer than one context"):
        text.windows(torch.arange(3), 4, 1, generator)


def test_batches_depend_on_seed_name_and_step_alone(tmp_path):
    stream = torch.arange(100)
    batch = text.batches(stream, 8, 5, Run(tmp_path, paper="quip_sharp"), "batch")
    again = text.batches(stream, 8, 5, Run(tmp_path, paper="other"), "batch")
    assert batch(3).shape == (5, 8)
    assert torch.equal(batch(3), again(3))
    others = [text.batches(stream, 8, 5, Run(tmp_path, paper="x", seed=1), "batch")(3), batch(4),
              text.batches(stream, 8, 5, Run(tmp_path, paper="x"), "another")(3)]  # fmt: skip
    assert not any(torch.equal(batch(3), other) for other in others)
    starts = {row[0].item() for step in range(200) for row in batch(step)}
    assert starts == set(range(92))  # each window has a token after it
    with pytest.raises(UserError, match="fewer than one context of 9"):
        text.batches(torch.arange(8), 8, 1, Run(tmp_path, paper="x"), "batch")


def test_beginnings_are_those_of_long_documents_and_never_joined():
    documents = [chr(65 + i) * (5 + 3 * i) for i in range(8)]
    found = text.beginnings(documents, Letters(), 12, 5, torch.Generator().manual_seed(0))
    assert found.shape == (5, 12)
    assert (found[:, 0] == 0).all()
    assert all(len(set(row[1:].tolist())) == 1 for row in found)  # one document each
    with pytest.raises(UserError, match="only 6 of 7"):
        text.beginnings(documents, Letters(), 12, 7, torch.Generator().manual_seed(0))


# ---- weights are read once -------------------------------------------------------------------------------------------


def test_sums_of_weights_are_remembered_until_the_file_changes(broken, monkeypatch):
    path = broken / "model.safetensors"
    (first,) = language.weight_sums(broken)
    assert first == hashlib.sha256(path.read_bytes()).hexdigest()
    with monkeypatch.context() as patched:
        patched.setattr(language, "sha256_of", lambda file: pytest.fail("read again"))
        assert language.weight_sums(broken) == [first]
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the same size and time of change
    assert language.weight_sums(broken) == [hashlib.sha256(content).hexdigest()] != [first]
    assert language.weight_sums("a/hub_id") == []


def test_a_damaged_memory_of_sums_only_costs_time(broken):
    expected = language.weight_sums(broken)
    for content in ("{", "[]", '{"%s": 3}' % (broken / "model.safetensors"), "\x00"):
        (cache_folder() / "weights.json").write_text(content)
        assert language.weight_sums(broken) == expected


def test_a_run_reads_its_weights_once(tiny, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(language, "sha256_of", lambda file: read.append(file) or sha256_of(file))
    run = Run(tmp_path, paper="quip_sharp")
    language.load(str(tiny), run=run)
    language.find(str(tiny), run=run)
    assert len(read) == 1
    assert run.data["model"]["sha256"] == sha256_of(tiny / "model.safetensors")


# ---- small models ----------------------------------------------------------------------------------------------------


def small(seed: int = 0, **changes):
    return language.llama(
        **{"vocabulary": 40, "hidden": 16, "blocks": 1, "heads": 2, "context": 8, "seed": seed} | changes
    )


def test_weights_of_a_new_model_depend_on_its_seed_alone():
    before = torch.get_rng_state()
    a, b, c = small(), small(), small(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.lm_head.weight, c.lm_head.weight)
    assert a.lm_head.weight is a.model.embed_tokens.weight
    assert (a.config.intermediate_size, a.config.num_key_value_heads) == (40, 2)
    assert not small(tie_word_embeddings=False).config.tie_word_embeddings
    for wrong, words in (({"hidden": 18}, "multiple of 4"), ({"heads": 4, "kv_heads": 3}, "3 key/value heads")):
        with pytest.raises(UserError, match=words):
            small(**wrong)


def test_rate_rises_over_the_warm_up_and_falls_to_zero_at_the_end():
    how = language.Fit(steps=100, lr=2.0, warmup=10, decay=0.5)
    rates = [how.rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([2.0 * (i + 1) / 10 for i in range(10)])
    assert rates[10:51] == [2.0] * 41
    assert rates[50:] == pytest.approx([2.0 * (100 - i) / 50 for i in range(50, 100)])
    constant = language.Fit(steps=5, lr=1.0, warmup=0, decay=0.0)
    assert [constant.rate(step) for step in range(5)] == [1.0] * 5
    with pytest.raises(UserError, match="two numbers"):
        language.Fit(steps=1, lr=1.0, betas=(0.9,))


def test_a_model_learns_a_sequence_that_repeats(tmp_path):
    stream = torch.arange(12).repeat(30)
    run, model, seen = Run(tmp_path, paper="quip_sharp"), small(), []
    how = language.Fit(steps=60, lr=1e-2, warmup=5, log_every=30)
    language.fit(model, text.batches(stream, 8, 8, run, "batch"), how, run, after=lambda step, loss: seen.append(step))
    assert seen == list(range(1, 61))
    assert run.metrics["train.loss"] < 0.5 < math.log(12)
    model.eval()
    found = model(input_ids=torch.tensor([[3, 4, 5, 6]])).logits[0, -1].argmax()
    assert found == 7


@pytest.mark.parametrize("bf16", [False, True])
def test_a_fit_that_was_stopped_goes_on_to_the_same_weights(bf16, tmp_path):
    stream = torch.randint(40, (300,), generator=torch.Generator().manual_seed(0))
    how = language.Fit(steps=9, lr=1e-2, warmup=2, log_every=2, save_seconds=0.0, bf16=bf16)

    def train(folder, stop=None):
        run, model = Run(tmp_path / folder, paper="quip_sharp"), small()

        def after(step, loss):
            if step == stop:
                raise UserError("stopped")

        language.fit(model, text.batches(stream, 8, 4, run, "batch"), how, run, after=after)
        return model.state_dict(), run.metrics

    whole, metrics = train("whole")
    with pytest.raises(UserError, match="stopped"):
        train("stopped", stop=5)
    resumed, again = train("stopped")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert again == metrics


def test_batches_losses_and_optimisers_of_another_kind(tmp_path):
    """What papers on preferences or trajectories bring: batches of several tensors, a loss and an optimiser of their own."""
    run, model = Run(tmp_path, paper="quip_sharp"), small()
    before = model.lm_head.weight.detach().clone()
    tokens = torch.randint(40, (2, 8), generator=torch.Generator().manual_seed(0))

    def loss(model, batch):
        ids, weight = batch["ids"], batch["weight"]
        return weight * language.next_token(model, ids)

    language.fit(model, lambda step: {"ids": tokens, "weight": 0.0}, language.Fit(steps=2, lr=1.0), run, "first", loss=loss,
                 optimizer=torch.optim.SGD(model.parameters()))  # fmt: skip
    assert torch.equal(model.lm_head.weight, before)
    language.fit(model, lambda step: {"ids": tokens, "weight": 1.0}, language.Fit(steps=2, lr=1.0), run, "second", loss=loss,
                 optimizer=torch.optim.SGD(model.parameters()))  # fmt: skip
    assert not torch.equal(model.lm_head.weight, before)


def test_norms_are_not_decayed():
    model = small()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    language.adamw(model, language.Fit(steps=1, lr=0.1, weight_decay=0.5)).step()
    for name, p in model.named_parameters():
        assert torch.allclose(p, before[name] * (0.95 if p.ndim == 2 else 1.0)), name
