"""Quantise a language model with QuIP# and save a folder that transformers loads (after `import papers.quip_sharp.hf`)."""

from __future__ import annotations

import tempfile

from common.errors import UserError
from common.experiment import Run, main


def quantize(cfg, run: Run) -> None:
    from pathlib import Path

    import torch

    from common.metrics.language import perplexity
    from papers.quip_sharp import data, hf, settings
    from papers.quip_sharp.model import bits_per_weight, records
    from papers.quip_sharp.pipeline import Quantizer
    from papers.quip_sharp.quantizer import METHODS, RECIPES, widths

    settings.check(cfg)
    settings.check_methods((cfg.method,), METHODS)
    if cfg.method not in RECIPES:
        raise UserError(f"method={cfg.method} leaves no words to save: choose one of {', '.join(RECIPES)}")
    if cfg.bits not in widths(cfg.method) or not isinstance(cfg.bits, int):
        raise UserError(f"bits={cfg.bits}: {cfg.method} takes {', '.join(map(str, widths(cfg.method)))}")
    if cfg.save_dtype not in (None, "float32", "bfloat16", "float16"):
        raise UserError(f"save_dtype={cfg.save_dtype}: choose float32, bfloat16 or float16, or leave it out")
    if not cfg.out:
        raise UserError("name the folder to write: add out=FOLDER to the command")
    out = Path(cfg.out).expanduser().absolute()
    run.stage("out", lambda: make_empty(out))  # from now on it is this run's, resumed or not

    inputs = data.load(cfg, run)
    model, history = Quantizer(cfg, run, inputs).quantize(cfg.method, cfg.bits, cfg.finetune)
    run.table(
        "layers", [{key: row[key] for key in ("name", "bits_per_weight", "proxy_error")} for row in records(model)]
    )
    if history:
        run.table("tuning", history)
    found = {"bits_per_weight": bits_per_weight(model)}
    if cfg.evaluate:
        for name, measured in (("fp", inputs.model), ("quantized", model)):

            def value_of(measured=measured) -> float:
                return perplexity(measured, inputs.test, batch_size=cfg.batch_size)

            found[f"perplexity.{name}"] = run.stage(f"perplexity-{name}", value_of)
    if run.is_main:
        if cfg.save_dtype is not None:
            model.to(getattr(torch, cfg.save_dtype))  # words, signs and scales keep their own
        hf.save_pretrained(model, out, inputs.tokenizer)
        found["megabytes"] = sum(file.stat().st_size for file in out.glob("*.safetensors")) / 1e6
        run.say(f"quantised model: {out} ({found['megabytes']:.1f} MB of weights)")
    run.log(found)
    run.table("summary", [{**found, "context": cfg.data.context}])


def make_empty(folder) -> None:
    """The folder to write is made before the work, where it can be: UserError where it cannot, or holds something."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"{folder} is not empty: name a new folder with out=...")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"out={folder} cannot be written ({error.strerror}): name another folder") from None


if __name__ == "__main__":
    main(quantize)
