"""What can be measured without a language model: incoherence (E1), codebooks on a Gaussian (E2), single layers (E3)."""

from __future__ import annotations

from itertools import product
from statistics import mean
from typing import Any

import torch

from common.run import Run
from papers.quip_sharp import baselines, codebooks, incoherence, plots, settings, synthetic
from papers.quip_sharp.ldlq import proxy_error
from papers.quip_sharp.quantizer import METHODS, quantize_linear, widths


def study_incoherence(cfg: Any, run: Run) -> None:
    """E1: mu_W and mu_H of the synthetic layer before and after each rotation, against the lemma's bounds (sec. 3)."""
    m, n, delta = cfg.m, cfg.n, cfg.delta
    seeds = run.seeds(cfg.seeds)
    bound_W, bound_H = incoherence.mu_weight_bound(m, n, delta), incoherence.mu_hessian_bound(n, delta)

    def measure(seed: int, kind: str) -> dict:
        W, H = synthetic.layer(m, n, seed)
        generator = torch.Generator().manual_seed(seed)
        U, V = incoherence.draw(kind, m, generator), incoherence.draw(kind, n, generator)
        W, H = incoherence.rotate_weight(W.double(), U, V), incoherence.rotate_hessian(H, V)
        found = {"mu_W": incoherence.mu_weight(W), "mu_H": incoherence.mu_hessian(H)}
        return {"seed": seed, "rotation": kind, **found, "bound_W": bound_W, "bound_H": bound_H}

    kinds = ("none", "rht", "rfft", "kron")
    rows = run.stage("incoherence", lambda: [measure(seed, kind) for seed in seeds for kind in kinds])
    for kind, worst in (("none", min), ("rht", max), ("rfft", max), ("kron", max)):
        label = "before" if kind == "none" else kind
        for mu, bound in (("mu_W", bound_W), ("mu_H", bound_H)):
            value = worst(row[mu] for row in rows if row["rotation"] == kind)
            run.log({f"incoherence.{mu}.{label}": value, f"incoherence.{mu}.{label}_over_bound": value / bound})
    run.table("incoherence", rows)
    run.figure("incoherence", plots.incoherence(*_before_and_after(m, n, seeds[0])))


def _before_and_after(m: int, n: int, seed: int) -> tuple:
    W, H = synthetic.layer(m, n, seed)
    generator = torch.Generator().manual_seed(seed)
    U, V = incoherence.draw("rht", m, generator), incoherence.draw("rht", n, generator)
    return W, H, incoherence.rotate_weight(W, U, V), incoherence.rotate_hessian(H, V)


def study_gaussian(cfg: Any, run: Run) -> None:
    """E2: mean squared error per weight of every codebook on N(0, 1) at its scale, and at half to twice that (sec. 4)."""
    x = torch.randn(cfg.samples, 8, generator=run.rng("gaussian").torch)
    names = ("scalar2", "d4", "e8p", "scalar3", "e8p_rvq3", "scalar4", "e8p_rvq4")

    def error(name: str, factor: float = 1.0, samples: int = cfg.samples) -> float:
        codebook = codebooks.get(name)
        scale = codebook.scale * factor
        part = x[:samples].reshape(-1, codebook.block)
        return (codebook.quantize(part * scale)[0] / scale - part).double().square().mean().item()

    errors = run.stage("gaussian", lambda: {name: error(name) for name in names})
    rows = [
        {"codebook": n, "bits": codebooks.get(n).bits, "scale": codebooks.get(n).scale, "mse": errors[n]} for n in names
    ]
    for bits in (2, 3, 4):
        rows.append({"codebook": "Lloyd-Max", "bits": bits, "scale": None, "mse": codebooks.lloyd_max(bits)[1]})
        rows.append({"codebook": "rate-distortion limit", "bits": bits, "scale": None, "mse": 4.0**-bits})
    run.log({"gaussian": errors, "gaussian.e8p_over_lloyd_max": errors["e8p"] / codebooks.lloyd_max(2)[1],
             "gaussian.e8p_over_d4": errors["e8p"] / errors["d4"]})  # fmt: skip
    run.table("gaussian", rows)

    def curve() -> list[dict]:
        few = cfg.samples // 10
        found = product(("scalar2", "d4", "e8p"), cfg.factors)
        return [{"codebook": n, "scale": codebooks.get(n).scale * f, "mse": error(n, f, few)} for n, f in found]

    run.figure("codebooks", plots.codebooks(run.stage("gaussian-scales", curve), codebooks.lloyd_max(2)[1]))


def study_layers(cfg: Any, run: Run) -> None:
    """E3: relative proxy error of every method, ablations included, on the synthetic layer; means over seeds."""
    settings.check_methods((*cfg.methods, *cfg.two_bits_only), METHODS)
    seeds = run.seeds(cfg.seeds)
    plan = [
        (method, method, bits, None)
        for method in cfg.methods
        for bits in cfg.bits
        if bits in widths(method) and (bits == 2 or method not in cfg.two_bits_only)
    ]
    if "quip_sharp_no_e8" in cfg.methods and 2 in cfg.bits:
        plan.append(("quip_sharp_no_e8_wide", "quip_sharp_no_e8", 2, cfg.wide))
    rows: list[dict] = []
    for name, method, bits, rho in run.progress(plan, "layers"):

        def errors(method: str = method, bits: int = bits, rho: float | None = rho) -> list[float]:
            layers = [synthetic.layer(cfg.m, cfg.n, seed) for seed in seeds]
            return [
                quantize_linear(W, H, method, bits, seed, rho=rho).proxy_error
                for seed, (W, H) in zip(seeds, layers, strict=True)
            ]

        found = run.stage(f"layers-{name}{bits}", errors)
        each = {f"seed {seed}": value for seed, value in zip(seeds, found, strict=True)}
        rows.append({"method": name, "bits": bits, "proxy_error": mean(found), **each})
        run.log({f"layers.{name}{bits}": mean(found)})
    if "quip" in cfg.methods and 2 in cfg.bits:
        widths_of_quip = run.stage("layers-quip-widths", lambda: quip_by_width(cfg, seeds))
        run.table("quip_widths", widths_of_quip)
        rows.append({"method": "quip_best", "bits": 2, "proxy_error": min(r["proxy_error"] for r in widths_of_quip)})
    run.table("layers", rows)
    run.log(layer_ratios({(row["method"], row["bits"]): row["proxy_error"] for row in rows}))


def quip_by_width(cfg: Any, seeds: list[int]) -> list[dict[str, float]]:
    """QuIP's mean error at 2 bits by the width of its grid, in rms: its authors' 2.4 is not its best here."""

    def error(seed: int, width: float) -> float:
        W, H = synthetic.layer(cfg.m, cfg.n, seed)
        return proxy_error(W, baselines.quip(W, H, 2, torch.Generator().manual_seed(seed), range_rms=width), H)

    return [{"grid_rms": w, "proxy_error": mean(error(seed, w) for seed in seeds)} for w in cfg.quip_rms]


def layer_ratios(error: dict[tuple[str, int], float]) -> dict[str, float]:
    """The ratios that E3 claims, where both of their parts were measured."""
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
