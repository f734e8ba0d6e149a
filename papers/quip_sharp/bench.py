"""Races against torch, full search and other quantisers: products, text written, encoding, perplexity at equal bits."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

PEERS = ("optimum-quanto", "hqq", "gptqmodel")


def bench(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Tables by name. quick: sizes for a test of the bench itself."""
    return {"matvec": matvec(quick), "generate": generate(quick), "encode": encode(quick), "peers": peers(quick)}


def matvec(quick: bool = False) -> list[dict[str, Any]]:
    """Product W x with one vector, as in writing one token: float32, bfloat16, QuantLinear at 2, 3 and 4 bits.

    `bytes` is what has to be read from memory once. torch's products are bound by that reading where a matrix is too
    large for the caches (4096 x 4096, not 1024 x 1024). QuantLinear reads 8 to 16 times less than float32, and is
    bound by its look-ups, one for eight weights and stage. "decoded": without numba, panels of rows are decoded to
    float32 first.
    """
    import torch
    import torch.nn.functional as F

    from common.race import race
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
            names = [f"QuantLinear, {bits} bits"] + ([f"QuantLinear, {bits} bits, decoded"] if bits == 2 else [])
            jobs |= dict(zip(names, (partial(layer, x), partial(_decoded, partial(layer, x))), strict=False))
            size |= dict.fromkeys(names, sum(b.numel() * b.element_size() for b in layer.buffers()))
        with torch.inference_mode():
            found = race(jobs, 3 if quick else 31)
        for row in found:
            rows.append({"engine": row["contestant"], "n": n, "ms": 1e3 * row["median_s"], "ms_low": 1e3 * row["min_s"],
                         "ms_high": 1e3 * row["max_s"], "over_float32": row["ratio"], "bytes": size[row["contestant"]],
                         "weights_per_s": n * n / row["median_s"]})  # fmt: skip
    return rows


def _decoded(job: Callable[[], Any]) -> Any:
    """job() without the compiled product."""
    from papers.quip_sharp.linear import KERNELS

    kernel = KERNELS.pop("cpu")
    try:
        return job()
    finally:
        KERNELS["cpu"] = kernel


def generate(quick: bool = False) -> list[dict[str, Any]]:
    """Tokens a second of whole models, batch 1, greedy: the small model, which fits the caches, and SmolLM2-135M."""
    import copy

    import torch

    from common.errors import UserError
    from common.models import language
    from common.race import race
    from papers.quip_sharp.quantize_llm import quantize_model, summary

    rows = []
    for name in ("stdlib_lm",) if quick else ("stdlib_lm", "smollm2_135m"):
        try:
            model, _ = language.load(name)
        except UserError as error:  # its package is not installed
            rows.append({"model": name, "engine": f"not run: {error}"})
            continue
        generator = torch.Generator().manual_seed(0)
        vocabulary = int(model.config.vocab_size)
        calibration = torch.randint(vocabulary, (4, 64), generator=generator)  # speed does not depend on the text
        prompt, new = torch.randint(vocabulary, (1, 8), generator=generator), 4 if quick else 32
        quantized = quantize_model(model, calibration, "quip_sharp", 2, 0)
        weights = sum(p.numel() for p in model.parameters())
        linears = sum(m.weight.numel() for m in model.model.layers.modules() if isinstance(m, torch.nn.Linear))
        stored = 4 * (weights - linears) + summary(quantized)["bits_per_weight"] * linears / 8

        def write(model: Any, prompt: Any = prompt, new: int = new) -> Any:
            return model.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False)

        jobs = {"float32": partial(write, model), "bfloat16": partial(write, copy.deepcopy(model).bfloat16()),
                "QuIP#, 2 bits": partial(write, quantized),
                "QuIP#, 2 bits, decoded": partial(_decoded, partial(write, quantized))}  # fmt: skip
        size = {"float32": 4 * weights, "bfloat16": 2 * weights}
        with torch.inference_mode():
            for row in race(jobs, 3 if quick else 7):
                rows.append({"model": name, "engine": row["contestant"], "tokens_per_s": new / row["median_s"],
                             "low": new / row["max_s"], "high": new / row["min_s"], "time_over_float32": row["ratio"],
                             "megabytes": size.get(row["contestant"], stored) / 1e6})  # fmt: skip
    return rows


def encode(quick: bool = False) -> list[dict[str, Any]]:
    """Nearest codewords of Gaussian weights: ours (lattice decoder, search only outside the ball) and full search."""
    import torch

    from common.race import race
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
        found = race(jobs, 3 if quick else 7)
    rows = []
    for row in found:
        millions = (few if "search" in row["contestant"] else x).numel() / 1e6
        rows.append({"encoder": row["contestant"], "million_weights_per_s": millions / row["median_s"],
                     "low": millions / row["max_s"], "high": millions / row["min_s"]})  # fmt: skip
    return rows


def _searched(x: Any) -> Any:
    """Both cosets searched whole for every vector: the error of the nearest codeword, by the table of 1,366 rows."""
    import torch

    from papers.quip_sharp import e8p

    shifted = (x.T - e8p.SHIFT, x.T + e8p.SHIFT)
    return torch.minimum(*((s - e8p._search(s.contiguous())).square().sum(0) for s in shifted))


def peers(quick: bool = False) -> list[dict[str, Any]]:
    """One model, the same test chunks, every quantiser: perplexity, proxy error, seconds to quantise, bits and bytes.

    gptqmodel gets the Hessians that QuIP# gets; optimum-quanto and hqq use no calibration data. Group sizes are their
    defaults, and the scales of groups count as bits. A peer that is not installed is a row that says so.
    """
    import copy

    import torch

    from common import settings
    from common.data import text
    from common.metrics.language import perplexity
    from common.models import language
    from papers.quip_sharp import data
    from papers.quip_sharp.hessians import collect_hessians, decoder_layers, groups_of
    from papers.quip_sharp.quantize_llm import quantize_model, summary

    model, tokenizer = language.load("stdlib_lm")
    context = 64 if quick else 256
    calibration = data.sequences("stdlib", tokenizer, context, 4 if quick else 256)
    chunks = text.load("stdlib", tokenizer, context, limit=2 if quick else 64)
    start = time.perf_counter()
    hessians = collect_hessians(model, calibration)
    note = f"and {time.perf_counter() - start:.1f} s for the Hessians"
    found = decoder_layers(model)
    assert found is not None
    prefix, layers = found
    groups = [
        [f"{prefix}.{i}.{member}" for member in group] for i, layer in enumerate(layers) for group in groups_of(layer)
    ]
    weights = sum(model.get_submodule(member).weight.numel() for group in groups for member in group)
    rows: list[dict[str, Any]] = [
        {"quantiser": "none", "bits_per_weight": 32.0, "perplexity": perplexity(model, chunks)}
    ]

    def row(name: str, quantized: Any, bits: float, error: float, seconds: float, note: str = "") -> None:
        rows.append({"quantiser": name, "bits_per_weight": bits, "perplexity": perplexity(quantized, chunks),
                     "proxy_error": error, "seconds": seconds, "megabytes": bits * weights / 8e6, "note": note})  # fmt: skip

    rho = settings.compose("quip_sharp", "train").quantize.rho
    for bits in (2,) if quick else (2, 3, 4):
        for method in ("gptq", "quip_sharp"):
            start = time.perf_counter()
            quantized = quantize_model(model, None, method, bits, 0, hessians=hessians, rho=rho[f"bits{bits}"])
            seconds = time.perf_counter() - start
            what = summary(quantized)
            row(f"{method} (here)", quantized, what["bits_per_weight"], what["proxy_error"], seconds, note)
    for name, quantize in (("gptqmodel", _gptqmodel), ("optimum-quanto", _quanto), ("hqq", _hqq)):
        for bits in (2, 4):
            try:
                quantize(torch.randn(8, 128), torch.eye(128), bits)  # imports, and compiles what it compiles once
            except ImportError as error:
                rows.append({"quantiser": name, "note": f"not installed: {error}"})
                break
            told = note if quantize is _gptqmodel else "no calibration data"
            row(name, *_by_peer(quantize, copy.deepcopy(model), groups, hessians, bits), told)
    return rows


def _by_peer(
    quantize: Callable[..., tuple[Any, float]], model: Any, groups: list[list[str]], hessians: Any, bits: int
) -> tuple[Any, float, float, float]:
    """The model with each linear quantised by a peer; bits per weight, mean proxy error of the groups, and seconds."""
    import torch

    from papers.quip_sharp.ldlq import proxy_error

    errors, stored, weights, seconds = [], 0.0, 0, 0.0
    for group in groups:
        H, originals, rounded = hessians[group[0]], [], []
        for linear in map(model.get_submodule, group):
            W = linear.weight.data
            start = time.perf_counter()
            linear.weight.data, bits_per_weight = quantize(W, H, bits)
            seconds += time.perf_counter() - start
            originals.append(W)
            rounded.append(linear.weight.data)
            stored += bits_per_weight * W.numel()
            weights += W.numel()
        errors.append(proxy_error(torch.cat(originals), torch.cat(rounded), H))
    return model, stored / weights, sum(errors) / len(errors), seconds


# Each peer on one weight: (W (m, n), H (n, n), bits) -> W_hat as a dense matrix, and its bits per weight.


def _gptqmodel(W: Any, H: Any, bits: int) -> tuple[Any, float]:
    """gptqmodel's GPTQ with asymmetric groups of 128 and its default order of columns; a float16 scale and a zero of
    `bits` bits for each group, and a 32-bit group index for each column."""
    import torch
    from gptqmodel.quantization import GPTQ, QuantizeConfig

    linear = torch.nn.Linear(W.shape[1], W.shape[0], bias=False)
    linear.weight.data = W.clone()
    task = GPTQ(linear, QuantizeConfig(bits=bits, group_size=128, sym=False, offload_to_disk=False))
    task.quantizer.configure(perchannel=True)
    # It takes activations, of which it keeps X^T X: the root of H is a batch with the second moment of them all.
    root = torch.linalg.cholesky(H.double() + 1e-6 * H.diagonal().mean() * torch.eye(len(H))).T
    task.add_batch(root.float()[None], None)
    return task.quantize()[0].to(W.dtype), bits + (16 + bits) / 128 + 32 / len(W)


def _quanto(W: Any, H: Any, bits: int) -> tuple[Any, float]:
    """optimum-quanto's weight (groups of 128), scale and shift in float16."""
    from optimum.quanto import MaxOptimizer, qint2, qint4, quantize_weight

    qtype = {2: qint2, 4: qint4}[bits]
    scale, shift = MaxOptimizer()(W, qtype, 0, 128)
    return quantize_weight(W, qtype, 0, scale, shift, 128).dequantize(), bits + 2 * 16 / 128


def _hqq(W: Any, H: Any, bits: int) -> tuple[Any, float]:
    """hqq's weight (groups of 64), scale and zero point in float16."""
    from hqq.core.quantize import Quantizer

    words, meta = Quantizer.quantize(W, nbits=bits, group_size=64, axis=1, device="cpu", compute_dtype=W.dtype)
    return Quantizer.dequantize(words, meta).to(W.dtype).reshape(W.shape), bits + 2 * 16 / 64
