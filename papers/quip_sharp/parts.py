"""E1 to E4 as parts: incoherence, codebooks on a Gaussian, single layers, and a language model under every method."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from common.metrics.language import perplexity
from common.run import Run
from papers.quip_sharp import baselines, codebooks, data, incoherence, plots, synthetic
from papers.quip_sharp.ldlq import proxy_error
from papers.quip_sharp.quantize_llm import summary
from papers.quip_sharp.quantize_weight import quantize_linear, widths
from papers.quip_sharp.resumable import LanguageModelJob, plan

# ---- E1: incoherence (sec. 3) ----------------------------------------------------------------------------------------

KINDS = ("none", "rht", "rfft", "kron")


def incoherence_of_rotations(cfg: Any, run: Run) -> None:
    """mu_W and mu_H of synthetic layers before and after each rotation, against the lemma's bounds."""
    cfg = cfg.incoherence
    rows = run.stage("incoherence", _incoherence_rows, cfg, run)
    for kind in KINDS:
        label, worst = ("before", min) if kind == "none" else (kind, max)
        for mu in ("mu_W", "mu_H"):
            value = worst(row[mu] for row in rows if row["rotation"] == kind)
            bound = rows[0][f"bound_{mu[-1]}"]
            run.log({f"incoherence.{mu}.{label}": value, f"incoherence.{mu}.{label}_over_bound": value / bound})
    run.table("incoherence", rows)
    (W, H), (W_tilde, H_tilde) = (_rotated_layer(cfg, run, cfg.seeds[0], kind) for kind in ("none", "rht"))
    run.figure("incoherence", plots.incoherence(W, H, W_tilde, H_tilde))


def _incoherence_rows(cfg: Any, run: Run) -> list[dict]:
    bounds = {
        "bound_W": incoherence.mu_weight_bound(cfg.m, cfg.n, cfg.delta),
        "bound_H": incoherence.mu_hessian_bound(cfg.n, cfg.delta),
    }
    rows = []
    for seed, kind in product(cfg.seeds, KINDS):
        W, H = _rotated_layer(cfg, run, seed, kind)
        found = {"mu_W": incoherence.mu_weight(W), "mu_H": incoherence.mu_hessian(H)}
        rows.append({"seed": seed, "rotation": kind, **found, **bounds})
    return rows


def _rotated_layer(cfg: Any, run: Run, seed: int, kind: str) -> tuple[Tensor, Tensor]:
    """W (m, n) and H (n, n), float64, of a synthetic layer under a rotation: two streams, of layer and of signs."""
    W, H = synthetic.layer(cfg.m, cfg.n, run.rng("layer", seed).torch)
    generator = run.rng("signs", seed).torch
    U, V = incoherence.draw(kind, cfg.m, generator), incoherence.draw(kind, cfg.n, generator)
    return incoherence.rotate_weight(W.double(), U, V), incoherence.rotate_hessian(H, V)


# ---- E2: codebooks on N(0, 1) (sec. 4.2) -----------------------------------------------------------------------------

CODEBOOKS = ("scalar2", "d4", "e8p", "scalar3", "e8p_rvq3", "scalar4", "e8p_rvq4")


def error_of_codebooks(cfg: Any, run: Run) -> None:
    """Mean squared error per weight of every codebook on N(0, 1) at its scale, and at half to twice that."""
    cfg = cfg.gaussian
    x = torch.randn(cfg.samples, 8, generator=run.rng("gaussian").torch)
    errors = run.stage("gaussian", _errors, x)
    optimum = {bits: codebooks.lloyd_max(bits)[1] for bits in (2, 3, 4)}
    rows = [
        {"codebook": n, "bits": codebooks.get(n).bits, "scale": codebooks.get(n).scale, "mse": errors[n]}
        for n in CODEBOOKS
    ]
    for bits in (2, 3, 4):
        rows.append({"codebook": "Lloyd-Max", "bits": bits, "scale": None, "mse": optimum[bits]})
        rows.append({"codebook": "rate-distortion limit", "bits": bits, "scale": None, "mse": 4.0**-bits})
    run.log({"gaussian": errors, "gaussian.e8p_over_lloyd_max": errors["e8p"] / optimum[2],
             "gaussian.e8p_over_d4": errors["e8p"] / errors["d4"]})  # fmt: skip
    run.table("gaussian", rows)
    curve = run.stage("gaussian-scales", _errors_by_scale, x[: cfg.samples // 10], list(cfg.factors))
    run.figure("codebooks", plots.codebooks(curve, optimum[2]))


def gaussian_error(name: str, x: Tensor, factor: float = 1.0) -> float:
    """Mean squared error per weight of a codebook on x (n, 8), at `factor` times its scale."""
    codebook = codebooks.get(name)
    scale = codebook.scale * factor
    x = x.reshape(-1, codebook.block)
    return (codebook.quantize(x * scale)[0] / scale - x).double().square().mean().item()


def _errors(x: Tensor) -> dict[str, float]:
    return {name: gaussian_error(name, x) for name in CODEBOOKS}


def _errors_by_scale(x: Tensor, factors: list[float]) -> list[dict]:
    pairs = product(("scalar2", "d4", "e8p"), factors)
    return [{"codebook": n, "scale": codebooks.get(n).scale * f, "mse": gaussian_error(n, x, f)} for n, f in pairs]


# ---- E3: single layers (sec. 4.1) ------------------------------------------------------------------------------------


def error_of_layers(cfg: Any, run: Run) -> None:
    """Relative proxy error of every method, ablations included, on synthetic layers; means over seeds."""
    cfg = cfg.layers
    plan = [
        (method, method, bits, None)
        for method in cfg.methods
        for bits in cfg.bits
        if bits in widths(method) and (bits == 2 or method not in cfg.two_bits_only)
    ]
    if "quip_sharp_no_e8" in cfg.methods and 2 in cfg.bits:
        plan.append(("quip_sharp_no_e8_wide", "quip_sharp_no_e8", 2, cfg.wide))
    layers = {seed: synthetic.layer(cfg.m, cfg.n, run.rng("layer", seed).torch) for seed in cfg.seeds}
    rows: list[dict] = []
    for name, method, bits, rho in run.progress(plan, "layers"):
        found = run.stage(f"layers-{name}{bits}", _layer_errors, layers, run, method, bits, rho)
        each = {f"seed {seed}": value for seed, value in zip(cfg.seeds, found, strict=True)}
        rows.append({"method": name, "bits": bits, "proxy_error": mean(found), **each})
        run.log({f"layers.{name}{bits}": mean(found)})
    if "quip" in cfg.methods and 2 in cfg.bits:
        by_width = run.stage("layers-quip-widths", _quip_by_width, layers, run, list(cfg.quip_rms))
        run.table("quip_widths", by_width)
        rows.append({"method": "quip_best", "bits": 2, "proxy_error": min(r["proxy_error"] for r in by_width)})
    run.table("layers", rows)
    run.log(layer_ratios({(row["method"], row["bits"]): row["proxy_error"] for row in rows}))


Layers = Mapping[int, tuple[Tensor, Tensor]]  # seed -> W, H


def _layer_errors(layers: Layers, run: Run, method: str, bits: int, rho: float | None) -> list[float]:
    """The error on each layer. All methods see the same ones, and draw from a stream of its own for each."""
    return [
        quantize_linear(W, H, method, bits, run.rng("signs", seed), rho=rho).proxy_error
        for seed, (W, H) in layers.items()
    ]


def _quip_by_width(layers: Layers, run: Run, grids: list[float]) -> list[dict[str, float]]:
    """QuIP's mean error at 2 bits by the width of its grid, in rms: its authors' 2.4 is not its best here."""
    rows = []
    for width in grids:
        errors = []
        for seed, (W, H) in layers.items():
            W_hat = baselines.quip(W, H, 2, run.rng("signs", seed).torch, range_rms=width)
            errors.append(proxy_error(W, W_hat, H))
        rows.append({"grid_rms": width, "proxy_error": mean(errors)})
    return rows


def layer_ratios(error: Mapping[tuple[str, int], float]) -> dict[str, float]:
    """The ratios that E3 claims, where both of their parts were measured. error: by (method, bits)."""
    found = {}
    for bits in (2, 3, 4):
        ours = error.get(("quip_sharp", bits))
        for (method, width), value in error.items():
            if ours is None or width != bits or method == "quip_sharp":
                continue
            if method.startswith("quip_sharp_"):
                found[f"layers.ratio.{method.removeprefix('quip_sharp_')}{bits}"] = value / ours
            else:
                found[f"layers.ratio.over_{method}{bits}"] = ours / value
    if "layers.ratio.rfft2" in found:
        found["layers.rfft_distance"] = max(abs(v - 1) for k, v in found.items() if k.startswith("layers.ratio.rfft"))
    return found


# ---- E4: a language model (sec. 5 and 6) -----------------------------------------------------------------------------


def perplexity_of_models(cfg: Any, run: Run) -> None:
    """A language model under every method and number of bits, and what fine-tuning brings back."""
    inputs = data.load(cfg, run)
    fp = run.stage("fp", perplexity, inputs.model, inputs.test, cfg.batch_size)
    run.log({"lm.fp.perplexity": fp})
    context = cfg.data.context  # a perplexity belongs to one: at half of it the same model has a higher one
    rows = [
        {"method": "fp", "bits": None, "context": context, "bits_per_weight": 16.0, "perplexity": fp, "excess": 0.0}
    ]
    job = LanguageModelJob(cfg, run, inputs)  # sec. 3: Hessians from the original model, once for all methods
    for method, bits, tuned in run.progress(plan(cfg), "methods"):
        name = f"{method}{'_ft' if tuned else ''}"
        found = run.stage(f"{name}{bits}", _measured, job, method, bits, tuned)
        history = found.pop("history")
        found["excess"] = found["perplexity"] / fp - 1  # what quantisation costs
        run.log({f"lm.{name}{bits}": found, f"lm.{name}{bits}.perplexity_at_{context}": found["perplexity"]})
        rows.append({"method": name, "bits": bits, "context": context, **found})
        if history:
            run.table(f"tuning{bits}", history)

    run.log(model_ratios(run.metrics))
    run.table("perplexity", rows)
    drawn = [row for row in rows if row["method"] not in cfg.ablations]
    run.figure("perplexity", plots.perplexity(drawn, context))
    tunings = {bits: run.tables[f"tuning{bits}"] for bits in (2, 3, 4) if f"tuning{bits}" in run.tables}
    if tunings:
        run.figure("tuning", plots.tuning(tunings))


def _measured(job: LanguageModelJob, method: str, bits: int, tuned: bool) -> dict:
    model, history = job.quantize(method, bits, tuned)
    value = perplexity(model, job.inputs.test, job.cfg.batch_size)
    return {**summary(model), "perplexity": value, "history": history}


def model_ratios(metrics: Mapping[str, Any]) -> dict[str, float]:
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
