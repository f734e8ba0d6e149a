"""Races: a 2-bit matrix-vector product against torch, the encoder against full search, and QuIP# against other quantisers."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any


def bench(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Tables by name. quick: sizes for a test of the bench itself."""
    return {"quip_sharp_matvec": matvec(quick), "quip_sharp_encode": encode(quick), "quip_sharp_peers": peers(quick)}


def interleaved(jobs: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    """Seconds of each job, in order; the jobs take turns, and the first turn of each only warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(turns + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: sorted(found) for name, found in seconds.items()}


def matvec(quick: bool = False) -> list[dict[str, Any]]:
    """W x for one vector, as in generating one token: float32, bfloat16, and QuantLinear at 2, 3 and 4 bits.

    `bytes` is what has to be read from memory once. torch's product is bound by that reading. QuantLinear reads 8 to 16
    times less, but decodes every weight on its way (look-up, conversion to float32, multiply-add), and on a CPU this
    arithmetic is what bounds it: `weights_per_s` hardly changes with the size of the matrix.
    """
    import torch
    import torch.nn.functional as F

    from papers.quip_sharp.linear import QuantLinear

    rows = []
    for n in (256,) if quick else (1024, 4096):
        generator = torch.Generator().manual_seed(0)
        W, x = torch.randn(n, n, generator=generator), torch.randn(1, n, generator=generator)
        jobs: dict[str, Callable[[], Any]] = {"float32": partial(F.linear, x, W)}
        jobs["bfloat16"] = partial(F.linear, x.bfloat16(), W.bfloat16())
        size = {"float32": 4 * n * n, "bfloat16": 2 * n * n}
        for bits, codebook in ((2, "e8p"), (3, "e8p_rvq3"), (4, "e8p_rvq4")):
            layer = QuantLinear(n, n, codebook)
            layer.words.copy_(torch.randint(0, 256, layer.words.shape, generator=generator, dtype=torch.uint8))
            jobs[f"QuantLinear, {bits} bits"] = partial(layer, x)
            size[f"QuantLinear, {bits} bits"] = sum(b.numel() * b.element_size() for b in layer.buffers())
        with torch.inference_mode():
            found = interleaved(jobs, 3 if quick else 15)
        for name, seconds in found.items():
            ms = 1e3 * median(seconds)
            rows.append({"engine": name, "n": n, "ms": ms, "ms_low": 1e3 * seconds[0], "ms_high": 1e3 * seconds[-1],
                         "over_float32": ms / (1e3 * median(found["float32"])), "bytes": size[name],
                         "weights_per_s": n * n / (ms / 1e3)})  # fmt: skip
    return rows


def encode(quick: bool = False) -> list[dict[str, Any]]:
    """Nearest codewords of Gaussian weights: ours (lattice decoder, search only outside the ball) and full search."""
    import torch

    from papers.quip_sharp import codebooks, e8p

    x = torch.randn(1000 if quick else 1 << 17, 8, generator=torch.Generator().manual_seed(0)) * 1.03
    few = x[: 500 if quick else 1 << 14]
    jobs: dict[str, Callable[[], Any]] = {
        "2 bits": lambda: e8p.encode(x),
        "2 bits, search of 1,366 rows": lambda: _searched(few),
    }
    for bits in (3, 4):
        codebook = codebooks.get(f"e8p_rvq{bits}")
        jobs[f"{bits} bits"] = partial(codebook.encode, x)
    with torch.inference_mode():
        found = interleaved(jobs, 3 if quick else 7)
    weights = {name: (few if "search" in name else x).numel() for name in jobs}
    return [
        {"encoder": name, "million_weights_per_s": weights[name] / median(seconds) / 1e6,
         "low": weights[name] / seconds[-1] / 1e6, "high": weights[name] / seconds[0] / 1e6}
        for name, seconds in found.items()
    ]  # fmt: skip


def _searched(x: Any) -> Any:
    """Both cosets searched whole for every vector: the error of the nearest codeword, by the table of 1,366 rows."""
    import torch

    from papers.quip_sharp import e8p

    shifted = (x.T - e8p.SHIFT, x.T + e8p.SHIFT)
    return torch.minimum(*((s - e8p._search(s.contiguous())).square().sum(0) for s in shifted))


def peers(quick: bool = False) -> list[dict[str, Any]]:
    """One model, the same test chunks, every quantiser: perplexity, proxy error, seconds to quantise, bits and bytes.

    optimum-quanto and hqq use no calibration data; their group sizes are their defaults, and the scales of groups count.
    """
    import copy

    import torch

    from common.data import stdlib, text
    from common.metrics.language import perplexity
    from common.models import language
    from papers.quip_sharp import data
    from papers.quip_sharp.hessians import collect_hessians, decoder_layers, groups_of
    from papers.quip_sharp.ldlq import proxy_error
    from papers.quip_sharp.model import quantize_model, summary

    model, tokenizer = language.load("stdlib_lm")
    context = 64 if quick else 256
    calibration = data.sequences("stdlib", tokenizer, context, 4 if quick else 256)
    chunks = text.chunked(text.token_stream(stdlib.load().test.values(), tokenizer), context, 2 if quick else 64)
    start = time.perf_counter()
    hessians = collect_hessians(model, calibration)
    seconds_for_H = time.perf_counter() - start
    found = decoder_layers(model)
    assert found is not None
    prefix, layers = found
    members = {
        f"{prefix}.{i}.{m}": f"{prefix}.{i}.{g[0]}"
        for i, layer in enumerate(layers)
        for g in groups_of(layer)
        for m in g
    }
    rows = [{"quantiser": "none", "bits_per_weight": 32.0, "perplexity": perplexity(model, chunks)}]

    def row(name: str, quantized: Any, bits: float, error: float, seconds: float, note: str = "") -> None:
        megabytes = bits * sum(model.get_submodule(m).weight.numel() for m in members) / 8e6
        rows.append({"quantiser": name, "bits_per_weight": bits, "perplexity": perplexity(quantized, chunks),
                     "proxy_error": error, "seconds": seconds, "megabytes": megabytes, "note": note})  # fmt: skip

    for bits in (2,) if quick else (2, 3, 4):
        for method in ("gptq", "quip_sharp"):
            rho = {2: 0.9, 3: 0.98, 4: 1.03}[bits]  # as configs/quip_sharp/train.yaml; the baseline ignores it
            start = time.perf_counter()
            quantized = quantize_model(model, None, method, bits, 0, hessians=hessians, rho=rho)
            seconds = time.perf_counter() - start
            what = summary(quantized)
            note = f"and {seconds_for_H:.1f} s for the Hessians"
            row(f"{method} (here)", quantized, what["bits_per_weight"], what["proxy_error"], seconds, note)
    for name, quantize in (("optimum-quanto", _quanto), ("hqq", _hqq)):
        for bits in (2, 4):
            try:
                quantize(torch.ones(8, 128), bits)  # imports, and compiles what the peer compiles on first use
            except ImportError as error:
                rows.append({"quantiser": name, "note": f"not installed: {error}"})
                break
            dense, errors, stored, seconds = copy.deepcopy(model), [], 0.0, 0.0
            for member, first in members.items():
                linear = dense.get_submodule(member)
                start = time.perf_counter()
                W_hat, bits_stored = quantize(linear.weight.data, bits)
                seconds += time.perf_counter() - start
                errors.append(proxy_error(linear.weight.data, W_hat, hessians[first]))
                stored += bits_stored * W_hat.numel()
                linear.weight.data = W_hat
            weights = sum(model.get_submodule(m).weight.numel() for m in members)
            row(name, dense, stored / weights, sum(errors) / len(errors), seconds, "no calibration data")
    return rows


def _quanto(W: Any, bits: int) -> tuple[Any, float]:
    """optimum-quanto's weight (groups of 128) as a dense matrix, and its bits per weight, scale and shift in float16."""
    from optimum.quanto import MaxOptimizer, qint2, qint4, quantize_weight

    qtype = {2: qint2, 4: qint4}[bits]
    scale, shift = MaxOptimizer()(W, qtype, 0, 128)
    return quantize_weight(W, qtype, 0, scale, shift, 128).dequantize(), bits + 2 * 16 / 128


def _hqq(W: Any, bits: int) -> tuple[Any, float]:
    """hqq's weight (groups of 64) as a dense matrix, and its bits per weight, scale and zero point in float16."""
    from hqq.core.quantize import Quantizer

    words, meta = Quantizer.quantize(W, nbits=bits, group_size=64, axis=1, device="cpu", compute_dtype=W.dtype)
    return Quantizer.dequantize(words, meta).to(W.dtype).reshape(W.shape), bits + 2 * 16 / 64
