"""Train the small language model under data/models/stdlib_lm on the standard library's own source.

    python -m scripts.make_stdlib_lm out=data/models/stdlib_lm

The model is a `LlamaForCausalLM` folder with its tokenizer, the embedded default of every language paper.
"""

from __future__ import annotations

from pathlib import Path

from common.errors import UserError
from common.experiment import Run, main
from common.files import write_atomic

PRETOKENS = r"\n+ *| ?[A-Za-z_]+| ?[0-9]| ?[^\sA-Za-z0-9_]+|\s+"  # a newline and its indentation are one token


def make_stdlib_lm(cfg, run: Run) -> None:
    import math
    import shutil

    import torch

    from common.data import stdlib, text
    from common.metrics.language import bits_per_byte, chunk_losses
    from common.models import language

    if cfg.out:
        place(run, cfg.out).parent.mkdir(parents=True, exist_ok=True)  # fails now rather than after the training
    corpus = stdlib.load(place(run, cfg.library) if cfg.library else None, run=run)
    if not corpus.train or not corpus.test:
        raise UserError(f"{cfg.library} has no file to train on, or none to hold out: give more of a library")
    tokenizer_json = run.stage("tokenizer", train_tokenizer, corpus.train, cfg.model.vocabulary, key=corpus.sha256)
    tokenizer = wrap(tokenizer_json, cfg.model.context)
    train = text.token_stream(corpus.train.values(), tokenizer)
    test = text.chunked(text.token_stream(corpus.test.values(), tokenizer), cfg.model.context)
    sizes = text.token_bytes(tokenizer)
    run.log({"train_tokens": len(train), "test_chunks": len(test)})

    def evaluate(step: int, loss: torch.Tensor) -> None:
        if step % cfg.evaluate_every == 0:
            some = test[: cfg.evaluate_chunks]
            bpb = bits_per_byte(chunk_losses(model, some), some, sizes)
            run.log({"test.bits_per_byte_part": bpb}, step=step)
            run.say(f"step {step}: loss {loss.item():.3f}, held-out bits per byte {bpb:.4f}")

    model = build(cfg.model, tokenizer, run.rng("init").seed).to(run.device)
    how = language.Fit(steps=cfg.steps, lr=cfg.lr, warmup=cfg.warmup, decay=cfg.decay, weight_decay=cfg.weight_decay, clip=cfg.clip,
                       betas=tuple(cfg.betas), bf16=cfg.bf16, save_seconds=cfg.save_seconds)  # fmt: skip
    language.fit(model, text.batches(train, cfg.model.context, cfg.batch_size, run, "batch"), how, run, after=evaluate)

    model = model.to(torch.bfloat16)  # judged as it is stored
    losses = chunk_losses(model.float(), test)
    run.log({"test.bits_per_byte": bits_per_byte(losses, test, sizes), "test.perplexity": math.exp(losses.mean().item()),
             "parameters": model.num_parameters()})  # fmt: skip
    folder = run.dir / "stdlib_lm"
    if run.is_main:
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text(card(run, cfg, corpus))
        if cfg.out:
            out = place(run, cfg.out)
            scratch = Path(f"{out}.new")
            shutil.copytree(folder, scratch, dirs_exist_ok=True)
            shutil.rmtree(out, ignore_errors=True)
            scratch.rename(out)
            folder = out
    run.say(f"model: {folder}")
    run.figure("loss", curve(run))


def place(run: Run, path: str) -> Path:
    """A path as the user meant it where the run began: a resume from another folder means the same place."""
    began = run.dir / "working_folder"
    if run.is_main and not began.exists():
        write_atomic(began, str(Path.cwd()))
    return (Path(began.read_text()) if began.exists() else Path.cwd()) / Path(path).expanduser()


def train_tokenizer(files: dict[str, str], vocabulary: int) -> str:
    """A byte-level BPE tokenizer as the text of its tokenizer.json. files: path -> source text."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(files.values(), trainer)
    return tokenizer.to_str()


def wrap(tokenizer_json: str, context: int):
    """The tokenizer as transformers has it; end-of-text is also the beginning of text."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer_json),
        bos_token=end,
        eos_token=end,
        pad_token=end,
        model_max_length=context,
    )


def build(shape, tokenizer, seed: int):
    """The model with fresh weights that `seed` decides; shape: cfg.model."""
    from common.models import language

    return language.llama(
        len(tokenizer), hidden=shape.hidden, feed_forward=shape.feed_forward, blocks=shape.blocks, heads=shape.heads,
        kv_heads=shape.kv_heads, context=shape.context, seed=seed,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip


def card(run: Run, cfg, corpus) -> str:
    """The model card: what it was made of, how, and how well it does."""
    m, shape = run.metrics, cfg.model
    return f"""# stdlib_lm: a small language model of Python's standard library

A `LlamaForCausalLM` of {m["parameters"]:,} parameters, stored as bf16 safetensors: {shape.blocks} blocks, hidden
{shape.hidden}, feed-forward {shape.feed_forward}, {shape.heads} heads and {shape.kv_heads} key/value heads, context
{shape.context}, tied embeddings, byte-level BPE of {shape.vocabulary} tokens. It is the embedded default of the language
papers here: large enough that quantisation, decoding and alignment show their effects, small enough to run anywhere.
It writes the syntax and the manner of the standard library, not useful code.

| | |
|---|---|
| data | {corpus.name}, {len(corpus.files)} files (rule: `common/data/stdlib.py`), {m["train_tokens"]:,} training tokens |
| data sha256 | `{corpus.sha256}` |
| held out | {len(corpus.test)} files, sha256 of the relative path mod 20 = 0 |
| steps | {cfg.steps} of {cfg.batch_size} x {shape.context} tokens, AdamW, lr {cfg.lr}, seed {run.seed} |
| held-out bits per byte | {m["test.bits_per_byte"]:.4f} (non-overlapping chunks of {shape.context}, first token of each unscored) |
| held-out perplexity | {m["test.perplexity"]:.3f} per token |
| command | `python -m scripts.make_stdlib_lm {" ".join(run.overrides)}` |
| made with | {", ".join(f"{k} {v}" for k, v in result_versions(run).items())} |

Licence: the weights are this project's (see LICENSE); the text they were trained on is Python's own source (PSF-2.0).
"""


def result_versions(run: Run) -> dict[str, str]:
    versions = run.to_json("running")["versions"]
    return {name: versions[name] for name in ("python", "torch", "transformers", "tokenizers")}


def curve(run: Run):
    """Training loss and held-out bits per byte over the steps."""
    import csv

    import matplotlib.pyplot as plt

    with open(run.dir / "metrics.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["step"]]
    figure, axis = plt.subplots(figsize=(6, 3.5))
    for name, label in (
        ("train.loss", "training loss (nats per token)"),
        ("test.bits_per_byte_part", "held-out bits per byte"),
    ):
        points = [(int(row["step"]), float(row["value"])) for row in rows if row["name"] == name]
        axis.plot(*zip(*points, strict=True), label=label)
    axis.set_xlabel("step")
    axis.set_ylim(0, 5)
    axis.legend()
    return figure


if __name__ == "__main__":
    main(make_stdlib_lm)
