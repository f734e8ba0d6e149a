"""QuIP#: 2-bit weights by incoherence and the E8 lattice (Tseng et al., ICML 2024). See README.md."""

from __future__ import annotations

from common.experiment import Run, experiment


@experiment("quip_sharp")
def train(cfg, run: Run) -> None:
    from itertools import product

    from common.metrics.language import perplexity
    from papers.quip_sharp import data, plots
    from papers.quip_sharp.hessians import collect_hessians
    from papers.quip_sharp.model import quantize_model, summary

    inputs = data.load(cfg, run)

    def measure(model) -> float:
        return perplexity(model, inputs.test, batch_size=cfg.batch_size)

    with run.time("hessians"):  # sec. 3.4: second moments of each linear's inputs, from the original model
        hessians = run.stage("hessians", lambda: collect_hessians(inputs.model, inputs.calibration, cfg.batch_size))
    fp = run.stage("fp", lambda: measure(inputs.model))
    run.log({"lm.fp.perplexity": fp})
    rows = [{"method": "fp", "bits": None, "bits_per_weight": 16.0, "perplexity": fp, "excess": 0.0, "proxy_error": 0.0}]

    for bits, method in run.progress(list(product(cfg.bits, cfg.methods)), "methods"):

        def quantize(method: str = method, bits: int = bits) -> dict:
            options = cfg.quantize if method.startswith("quip_sharp") else {}
            with run.time(f"quantize.{method}{bits}"):
                quantized = quantize_model(inputs.model, None, method, bits, run.rng("signs"), hessians=hessians, **options)
            found = summary(quantized)
            return {"bits_per_weight": found["bits_per_weight"], "perplexity": measure(quantized), "proxy_error": found["proxy_error"]}

        found = run.stage(f"{method}{bits}", quantize)
        found["excess"] = found["perplexity"] / fp - 1  # what quantisation costs
        run.log({f"lm.{method}{bits}": found})
        rows.append({"method": method, "bits": bits, **found})

    run.log(ratios(run.metrics))
    run.table("perplexity", rows)
    run.figure("perplexity", plots.perplexity(rows))


def ratios(metrics: dict) -> dict[str, float]:
    """How much worse each method of the ladder RTN, GPTQ, QuIP, QuIP# is than the next, where both were run."""
    ladder = ("rtn", "gptq", "quip", "quip_sharp")
    found = {}
    for bits in (2, 3, 4):
        for worse, better in zip(ladder, ladder[1:], strict=False):
            for figure in ("excess", "proxy_error"):
                a, b = metrics.get(f"lm.{worse}{bits}.{figure}"), metrics.get(f"lm.{better}{bits}.{figure}")
                if a is not None and b:
                    found[f"lm.{figure}{bits}.{worse}_over_{better}"] = a / b
    return found


if __name__ == "__main__":
    train()
