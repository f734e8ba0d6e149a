"""Quantise a language model with QuIP# and save a folder that transformers loads (`transformers_io`)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from common.errors import UserError
from common.experiment import Run, main
from common.files import write_atomic


def quantize(cfg, run: Run) -> None:
    import torch

    from common.metrics.language import perplexity
    from papers.quip_sharp import data, settings, transformers_io
    from papers.quip_sharp.quantize_llm import bits_per_weight, rows_of
    from papers.quip_sharp.quantize_weight import widths
    from papers.quip_sharp.resumable import LanguageModelJob

    settings.check(cfg)
    if cfg.bits not in widths(cfg.method):
        raise UserError(f"bits={cfg.bits}: {cfg.method} takes {', '.join(map(str, widths(cfg.method)))}")
    if not cfg.out:
        raise UserError("name the folder to write: add out=FOLDER to the command")
    out = own_folder(cfg.out, run)

    inputs = data.load(cfg, run)
    model, history = LanguageModelJob(cfg, run, inputs).quantize(cfg.method, cfg.bits, cfg.finetune)
    shown = ("name", "bits_per_weight", "proxy_error")
    run.table("layers", [{key: row[key] for key in shown} for row in rows_of(model)])
    if history:
        run.table("tuning", history)
    found = {"bits_per_weight": bits_per_weight(model)}
    if cfg.evaluate:
        for name, measured in (("fp", inputs.model), ("quantized", model)):
            value = run.stage(f"perplexity-{name}", perplexity, measured, inputs.test, cfg.batch_size)
            found[f"perplexity.{name}"] = value
    if run.is_main:
        if cfg.save_dtype is not None:
            model.to(getattr(torch, cfg.save_dtype))  # words, signs and scales keep their own
        transformers_io.save_pretrained(model, out, inputs.tokenizer)
        found["megabytes"] = sum(file.stat().st_size for file in out.glob("*.safetensors")) / 1e6
        run.say(f"quantised model: {out} ({found['megabytes']:.1f} MB of weights)")
    run.log(found)
    run.table("summary", [{**found, "context": cfg.data.context}])


def own_folder(path: str, run: Run) -> Path:
    """The folder to write, made before the work: UserError where that cannot be, or where it holds something.

    A run that is resumed, from whatever folder, goes on with the one that it had made.
    """
    kept = run.dir / "out_folder"
    if kept.exists():
        return Path(kept.read_text())
    folder = Path(path).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"{folder} is not empty: name a new folder with out=...")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"out={folder} cannot be written ({error.strerror}): name another folder") from None
    if run.is_main:
        write_atomic(kept, str(folder))
    return folder


if __name__ == "__main__":
    main(quantize)
