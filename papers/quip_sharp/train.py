"""QuIP#: 2-bit weights by incoherence and the E8 lattice (Tseng et al., ICML 2024). See README.md."""

from __future__ import annotations

from common.errors import UserError
from common.experiment import Run, main


def train(cfg, run: Run) -> None:
    from papers.quip_sharp import dry, scaling, settings, studies

    settings.check(cfg)
    if cfg.run.dry:
        return dry.estimate(cfg, run)
    for part in cfg.parts:
        if part == "incoherence":
            studies.study_incoherence(cfg.incoherence, run)  # E1, the paper's sec. 3
        elif part == "gaussian":
            studies.study_gaussian(cfg.gaussian, run)  # E2, sec. 4.2
        elif part == "layers":
            studies.study_layers(cfg.layers, run)  # E3, sec. 4.1
        elif part == "language":
            language_model(cfg, run)  # E4, sec. 5 and 6: the paper's tables of perplexities
        elif part == "scaling":
            scaling.study(cfg, run)  # E5, sec. 6: perplexity against the size of the model in bits
        else:
            raise UserError(f"unknown part {part!r}: choose from incoherence, gaussian, layers, language, scaling")


def language_model(cfg, run: Run) -> None:
    """A language model under every method and number of bits, and what fine-tuning brings back."""
    from common.metrics.language import perplexity
    from papers.quip_sharp import data, plots
    from papers.quip_sharp.pipeline import Quantizer, plan

    inputs = data.load(cfg, run)

    def measure(model) -> float:
        return perplexity(model, inputs.test, batch_size=cfg.batch_size)

    fp = run.stage("fp", lambda: measure(inputs.model))
    run.log({"lm.fp.perplexity": fp})
    context = cfg.data.context  # a perplexity belongs to one: at half of it the same model has a higher one
    rows = [
        {"method": "fp", "bits": None, "context": context, "bits_per_weight": 16.0, "perplexity": fp, "excess": 0.0}
    ]
    quantizer = Quantizer(cfg, run, inputs)  # sec. 3: Hessians from the original model, once for all methods

    for method, bits, tuned in run.progress(plan(cfg), "methods"):
        name = f"{method}{'_ft' if tuned else ''}"

        def job(method: str = method, bits: int = bits, tuned: bool = tuned) -> dict:
            model, history = quantizer.quantize(method, bits, tuned)
            return {**quantizer.summary(model), "perplexity": measure(model), "history": history}

        found = run.stage(f"{name}{bits}", job)
        history = found.pop("history")
        found["excess"] = found["perplexity"] / fp - 1  # what quantisation costs
        run.log({f"lm.{name}{bits}": found, f"lm.{name}{bits}.perplexity_at_{context}": found["perplexity"]})
        rows.append({"method": name, "bits": bits, "context": context, **found})
        if history:
            run.table(f"tuning{bits}", history)

    run.log(ratios(run.metrics))
    run.table("perplexity", rows)
    drawn = [row for row in rows if row["method"] not in cfg.ablations]
    run.figure("perplexity", plots.perplexity(drawn, context))
    tunings = {bits: run.tables[f"tuning{bits}"] for bits in (2, 3, 4) if f"tuning{bits}" in run.tables}
    if tunings:
        run.figure("tuning", plots.tuning(tunings))


def ratios(metrics: dict) -> dict[str, float]:
    """How much worse each method of the ladder RTN, GPTQ, QuIP, QuIP# is than the next, what QuIP# without one of its
    parts costs, and what fine-tuning closes."""
    ladder = ("rtn", "gptq", "quip", "quip_sharp")
    found = {}
    for bits in (2, 3, 4):
        for worse, better in zip(ladder, ladder[1:], strict=False):
            for figure in ("excess", "proxy_error"):
                a, b = metrics.get(f"lm.{worse}{bits}.{figure}"), metrics.get(f"lm.{better}{bits}.{figure}")
                if a is not None and b:
                    found[f"lm.{figure}{bits}.{worse}_over_{better}"] = a / b
        ours, theirs = (metrics.get(f"lm.{method}{bits}.proxy_error") for method in ("quip_sharp", "quip"))
        if ours is not None and theirs:
            found[f"lm.proxy_error{bits}.quip_sharp_over_quip"] = ours / theirs
        for part in ("no_rht", "no_ldlq", "no_e8", "d4"):
            a, b = metrics.get(f"lm.quip_sharp_{part}{bits}.excess"), metrics.get(f"lm.quip_sharp{bits}.excess")
            if a is not None and b:
                found[f"lm.excess{bits}.{part}_over_quip_sharp"] = a / b
        before, after = metrics.get(f"lm.quip_sharp{bits}.excess"), metrics.get(f"lm.quip_sharp_ft{bits}.excess")
        if before and after is not None:
            found[f"lm.gap_closed{bits}"] = 1 - after / before
    return found


if __name__ == "__main__":
    main(train)
