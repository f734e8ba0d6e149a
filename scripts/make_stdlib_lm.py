"""Train the small language model under data/models/stdlib_lm on the standard library's own source.

    python -m scripts.make_stdlib_lm out=data/models/stdlib_lm

The model is a `LlamaForCausalLM` folder with its tokenizer, the embedded default of every language paper.
"""

from __future__ import annotations

from common.experiment import Run, main

PRETOKENS = r"\n+ *| ?[A-Za-z_]+| ?[0-9]| ?[^\sA-Za-z0-9_]+|\s+"  # a newline and its indentation are one token


def make_stdlib_lm(cfg, run: Run) -> None:
    import math
    import shutil
    from pathlib import Path

    import torch

    from common.data import stdlib, text
    from common.metrics.language import bits_per_byte, chunk_losses
    from common.training import resumable

    # absolute when the run begins, so that a resume from another folder means the same place
    where = run.stage(
        "paths", lambda: {k: cfg[k] and str(Path(cfg[k]).expanduser().absolute()) for k in ("library", "out")}
    )
    if where["out"]:
        Path(where["out"]).parent.mkdir(parents=True, exist_ok=True)  # fails now rather than after the training
    corpus = stdlib.load(where["library"], run=run)
    tokenizer_json = run.stage(
        "tokenizer", lambda: train_tokenizer(corpus.train, cfg.model.vocabulary), key=corpus.sha256
    )
    tokenizer = wrap(tokenizer_json, cfg.model.context)
    train = text.token_stream(corpus.train.values(), tokenizer)
    test = text.chunked(text.token_stream(corpus.test.values(), tokenizer), cfg.model.context)
    sizes = text.token_bytes(tokenizer)
    run.log({"train_tokens": len(train), "test_chunks": len(test)})

    model = build(cfg.model, run.rng("init"), tokenizer).to(run.device)
    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": cfg.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=cfg.lr,
        betas=tuple(cfg.betas),
        fused=True,
    )

    def lr_factor(step: int) -> float:
        return min(1.0, (step + 1) / cfg.warmup, (cfg.steps - step) / (cfg.decay * cfg.steps))

    for step in resumable(run, "train", cfg.steps, {"model": model, "optimizer": optimizer}, cfg.save_seconds):
        for group in optimizer.param_groups:
            group["lr"] = cfg.lr * lr_factor(step)
        starts = torch.randint(
            len(train) - cfg.model.context, (cfg.batch_size,), generator=run.rng("batch", step).torch
        )
        batch = train[starts[:, None] + torch.arange(cfg.model.context)].to(run.device)  # (batch, context)
        with torch.autocast(run.device, torch.bfloat16, enabled=cfg.bf16):
            loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 20 == 0:
            run.log({"train.loss": loss.item()}, step=step + 1)
        if (step + 1) % cfg.evaluate_every == 0:
            some = test[: cfg.evaluate_chunks]
            bpb = bits_per_byte(chunk_losses(model, some), some, sizes)
            run.log({"test.bits_per_byte_part": bpb}, step=step + 1)
            run.say(f"step {step + 1}: loss {loss.item():.3f}, held-out bits per byte {bpb:.4f}")

    model = model.to(torch.bfloat16)  # judged as it is stored
    losses = chunk_losses(model.float(), test)
    run.log({"test.bits_per_byte": bits_per_byte(losses, test, sizes), "test.perplexity": math.exp(losses.mean().item()),
             "parameters": model.num_parameters()})  # fmt: skip
    folder = run.dir / "stdlib_lm"
    if run.is_main:
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text(card(run, cfg, corpus))
        if where["out"]:
            scratch = Path(f"{where['out']}.new")
            shutil.copytree(folder, scratch, dirs_exist_ok=True)
            shutil.rmtree(where["out"], ignore_errors=True)
            scratch.rename(where["out"])
    run.say(f"model: {where['out'] or folder}")
    run.figure("loss", curve(run))


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


def build(cfg, rng, tokenizer):
    """The model with fresh weights drawn from `rng`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=cfg.hidden, intermediate_size=cfg.feed_forward, num_hidden_layers=cfg.blocks,
        num_attention_heads=cfg.heads, num_key_value_heads=cfg.kv_heads, max_position_embeddings=cfg.context,
        tie_word_embeddings=True, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.seed)
        return LlamaForCausalLM(config)


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
    versions = run.record("running")["versions"]
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
