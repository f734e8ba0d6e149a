"""E5: do 3-bit models scale better than 4-bit ones? Perplexity against the size in bits, over several widths (sec. 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from common.data import text
from common.metrics.language import perplexity
from common.models import language
from common.rng import seeded
from common.run import Run
from common.training import resumable
from papers.quip_sharp import data, plots
from papers.quip_sharp.hessians import collect_hessians, decoder_layers
from papers.quip_sharp.model import quantize_model, summary


def study(cfg: Any, run: Run) -> None:
    """Train cfg.scaling.widths from scratch, quantise each at 2, 3 and 4 bits, and compare 3 with 4 bits at equal size."""
    _, tokenizer = language.load(cfg.model.path, run=run)
    context = cfg.data.context
    documents = data.limited(data.texts(cfg.data.calibration, "train", run), cfg.data.characters)
    stream = text.token_stream(documents, tokenizer)
    calibration = data.random_windows(
        documents, tokenizer, context, cfg.data.calibration_sequences, run.rng("calibration").torch
    )
    test = text.chunked(
        text.token_stream(data.limited(data.texts(cfg.data.test, "test", run), cfg.data.characters), tokenizer),
        context,
        cfg.data.test_chunks,
    )
    options = {name: cfg.quantize[name] for name in ("tune", "sigma", "rescale_rows")}
    rows: list[dict] = []
    for width in cfg.scaling.widths:
        model = build(width, len(tokenizer), context, cfg.scaling, run.rng("init", width).seed).to(run.device)
        with run.time(f"train.{width}"):
            fit(model, stream, context, cfg.scaling, run, f"width{width}")

        def measure(model: nn.Module = model, width: int = width) -> list[dict]:
            model.eval()
            hessians = collect_hessians(model, calibration, cfg.batch_size)
            layers = decoder_layers(model)
            assert layers is not None
            weights = sum(m.weight.numel() for m in layers[1].modules() if isinstance(m, nn.Linear))
            found = []
            for bits in (16, 2, 3, 4):
                quantized, stored = model, 16.0
                if bits < 16:
                    rho = cfg.quantize.rho[f"bits{bits}"]
                    quantized = quantize_model(
                        model, None, "quip_sharp", bits, run.rng("signs", width), hessians=hessians, rho=rho, **options
                    )
                    stored = summary(quantized)["bits_per_weight"]
                ppl = perplexity(quantized, test, batch_size=cfg.batch_size)
                found.append({"width": width, "bits": bits, "kilobytes": weights * stored / 8000, "perplexity": ppl})
            return found

        rows += run.stage(f"width{width}", measure)
    for row in rows:
        run.log({f"scaling.{row['width']}.{row['bits']}bit.perplexity": row["perplexity"]})
    budgets = compare(rows, 3, 4)
    run.table("scaling", rows)
    run.table("budgets", budgets)
    run.log(
        {"scaling.three_bits_win": sum(b["3 bits"] <= b["4 bits"] for b in budgets), "scaling.budgets": len(budgets)}
    )
    run.figure("scaling", plots.scaling(rows))


def build(width: int, vocabulary: int, context: int, cfg: Any, seed: int) -> nn.Module:
    """A Llama of this width, its feed-forward 2.5 times as wide, with fresh weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=5 * width // 2, num_hidden_layers=cfg.blocks,
        num_attention_heads=cfg.heads, num_key_value_heads=cfg.heads, max_position_embeddings=context,
        tie_word_embeddings=True,
    )  # fmt: skip
    with seeded(seed):
        return LlamaForCausalLM(config)


def fit(model: nn.Module, stream: Tensor, context: int, cfg: Any, run: Run, name: str) -> None:
    """Train on random windows of the stream; resumable."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95), weight_decay=cfg.weight_decay)
    model.train()
    for step in resumable(run, name, cfg.steps, {"model": model, "optimizer": optimizer}, cfg.save_seconds):
        for group in optimizer.param_groups:
            group["lr"] = cfg.lr * min(1.0, (step + 1) / cfg.warmup, 2 * (cfg.steps - step) / cfg.steps)
        starts = torch.randint(len(stream) - context, (cfg.batch_size,), generator=run.rng(name, "batch", step).torch)
        batch = stream[starts[:, None] + torch.arange(context)].to(run.device)  # (batch, context)
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 100 == 0:
            run.log({f"{name}.loss": loss.item()}, step=step + 1)


def compare(rows: Sequence[dict], a: int, b: int, budgets: int = 3) -> list[dict]:
    """Perplexity of a-bit and b-bit models at `budgets` sizes that both curves cover, interpolated in log-log."""

    def curve(bits: int) -> list[tuple[float, float]]:
        return sorted((math.log(r["kilobytes"]), math.log(r["perplexity"])) for r in rows if r["bits"] == bits)

    curves = {bits: curve(bits) for bits in (a, b)}
    low, high = max(c[0][0] for c in curves.values()), min(c[-1][0] for c in curves.values())
    if low > high:
        return []
    at = [low + (high - low) * i / max(1, budgets - 1) for i in range(budgets)]
    return [
        {"kilobytes": math.exp(x), **{f"{bits} bits": math.exp(interpolate(c, x)) for bits, c in curves.items()}}
        for x in at
    ]


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Value at x of the line through sorted points."""
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        if x <= x1 or (x1, y1) == points[-1]:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[0][1]
