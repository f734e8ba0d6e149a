"""Perplexity, bits per byte and exact size of a model: a folder that `quantize` wrote, or any other."""

from __future__ import annotations

from common.errors import UserError
from common.experiment import Run, main


def evaluate(cfg, run: Run) -> None:
    import math
    from functools import partial

    import torch

    import papers.quip_sharp.transformers_io  # noqa: F401  (so that quantised folders load)
    from common.data import text
    from common.metrics.language import bits_per_byte, chunk_losses
    from common.models import language
    from common.optional import installed
    from papers.quip_sharp import data, settings
    from papers.quip_sharp.linear import QuantLinear
    from papers.quip_sharp.quantize_llm import bits_per_weight

    settings.check(cfg)
    model, tokenizer = language.load(cfg.model.path, run=run, dtype=cfg.model.dtype, device=run.device)
    data.check_context(model, cfg.data.context)
    ids = None
    if cfg.prompt is not None:
        ids = tokenizer(cfg.prompt, return_tensors="pt").input_ids.to(run.device)
        if not ids.numel():
            raise UserError("prompt is empty: give some text, or leave it out")
        data.check_context(model, ids.shape[1] + cfg.new_tokens, "prompt and new_tokens together take")
        if run.device == "cpu" and not installed("numba"):
            run.note("numba is not installed: writing takes two to three times as long (pip install -e '.[compiled]')")
    chunks = text.load(cfg.data.test, tokenizer, cfg.data.context, characters=cfg.data.characters,
                       limit=cfg.data.test_chunks, run=run)  # fmt: skip
    data.check_ids(model, cfg.model.path, chunks, *([] if ids is None else [ids]))
    track = partial(run.progress, description="evaluate")
    losses = run.stage("losses", chunk_losses, model, chunks, cfg.batch_size, track)
    if not torch.isfinite(losses).all():
        raise UserError(
            f"{cfg.model.path} gives losses that are not finite: its weights are damaged, "
            f"or overflow in {cfg.model.dtype}"
        )
    found = {"perplexity": math.exp(losses.mean().item()), "context": cfg.data.context, "chunks": len(chunks)}
    try:
        found["bits_per_byte"] = bits_per_byte(losses, chunks, text.token_bytes(tokenizer))
    except ValueError as error:
        run.note(f"no bits per byte: {error}")
    if any(isinstance(module, QuantLinear) for module in model.modules()):
        found["bits_per_weight"] = bits_per_weight(model)
    run.log(found)
    run.table("summary", [found])
    if ids is not None:
        written = model.generate(ids, max_new_tokens=cfg.new_tokens, do_sample=False)
        run.table("generated", [{"text": tokenizer.decode(written[0])}])


if __name__ == "__main__":
    main(evaluate)
