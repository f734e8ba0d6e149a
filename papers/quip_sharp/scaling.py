"""E5: perplexity against size in bits over several widths; do 3-bit models scale better than 4-bit ones? (sec. 6)"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from common.data import text
from common.metrics.language import perplexity
from common.models import language
from common.run import Run
from papers.quip_sharp import plots
from papers.quip_sharp.hessians import collect_hessians, decoder_layers
from papers.quip_sharp.quantize_llm import quantize_model, summary


def perplexity_by_size(cfg: Any, run: Run) -> None:
    """Train models of cfg.scaling.widths, quantise each at 2, 3 and 4 bits, and compare 3 with 4 at equal size."""
    _, tokenizer = language.load(cfg.model.path, run=run)
    context, limit = cfg.data.context, cfg.data.characters
    stream = text.stream(cfg.data.calibration, tokenizer, characters=limit, run=run)
    generator = run.rng("calibration").torch
    calibration = text.windows(stream, context, cfg.data.calibration_sequences, generator)
    test = text.load(cfg.data.test, tokenizer, context, characters=limit, limit=cfg.data.test_chunks, run=run)
    rows: list[dict] = []
    for width in cfg.scaling.widths:
        model = train(width, len(tokenizer), stream, cfg, run)
        rows += run.stage(f"width{width}", _measured, model, width, calibration, test, cfg, run)
    for row in rows:
        run.log({f"scaling.{row['width']}.{row['bits']}bit.perplexity": row["perplexity"]})
    budgets = compare(rows, 3, 4)
    run.table("scaling", rows)
    run.table("budgets", budgets)
    run.log(
        {"scaling.three_bits_win": sum(b["3 bits"] <= b["4 bits"] for b in budgets), "scaling.budgets": len(budgets)}
    )
    run.figure("scaling", plots.scaling(rows))


def train(width: int, vocabulary: int, stream: Tensor, cfg: Any, run: Run) -> nn.Module:
    """A Llama of this width, trained from scratch on random windows of the stream; resumable."""
    settings, context = cfg.scaling, cfg.data.context
    model = language.llama(vocabulary, hidden=width, blocks=settings.blocks, heads=settings.heads, context=context,
                           seed=run.rng("init", width).seed).to(run.device)  # fmt: skip
    how = language.Fit(steps=settings.steps, lr=settings.lr, warmup=settings.warmup, decay=0.5, log_every=100,
                       weight_decay=settings.weight_decay, save_seconds=settings.save_seconds)  # fmt: skip
    # norms are decayed too, unlike `language.adamw` has it: the recorded figures were measured so
    optimizer = torch.optim.AdamW(model.parameters(), lr=how.lr, betas=how.betas, weight_decay=how.weight_decay)
    name = f"width{width}"
    batches = text.batches(stream, context, settings.batch_size, run, name, "batch")
    with run.time(f"train.{width}"):
        language.fit(model, batches, how, run, name, optimizer=optimizer)
    return model.eval()


def _measured(model: nn.Module, width: int, calibration: Tensor, test: Tensor, cfg: Any, run: Run) -> list[dict]:
    """Size and perplexity of one model in 16, 2, 3 and 4 bits."""
    hessians = collect_hessians(model, calibration, cfg.batch_size)
    layers = decoder_layers(model)
    assert layers is not None
    weights = sum(m.weight.numel() for m in layers[1].modules() if isinstance(m, nn.Linear))
    options = {name: cfg.quantize[name] for name in ("tune", "sigma", "rescale_rows")}
    rows = []
    for bits in (16, 2, 3, 4):
        quantized, stored = model, 16.0
        if bits < 16:
            rho, signs = cfg.quantize.rho[f"bits{bits}"], run.rng("signs", width)
            quantized = quantize_model(model, None, "quip_sharp", bits, signs, hessians=hessians, rho=rho, **options)
            stored = summary(quantized)["bits_per_weight"]
        ppl = perplexity(quantized, test, cfg.batch_size)
        rows.append({"width": width, "bits": bits, "kilobytes": weights * stored / 8000, "perplexity": ppl})
    return rows


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
