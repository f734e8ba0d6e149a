"""Every gate has been seen to fail: the figure of a named wrong variant, measured here, misses the threshold."""

from statistics import mean

import pytest
import torch

from common import claims
from common.data import text
from common.experiment import launch
from common.metrics.language import perplexity
from common.models import language
from common.rng import Rng
from papers.quip_sharp import synthetic
from papers.quip_sharp.hessians import decoder_layers, groups_of
from papers.quip_sharp.quantize_llm import quantize_model
from papers.quip_sharp.quantize_weight import quantize_linear

CLAIMS = {claim["id"]: claim for claim in claims.read("quip_sharp")}


def of_layers(over: str, below: str):
    return lambda m: m[f"layers.{over}"] / m[f"layers.{below}"]


def of_models(figure: str, over: str, below: str):
    return lambda m: m[f"lm.{over}.{figure}"] / m[f"lm.{below}.{figure}"]


# what of a run of `ci`, its ablations at all numbers of bits, is the wrong variant's figure
SYNTHETIC = {
    "E1.mu_W": lambda m: m["incoherence.mu_W.before"],
    "E1.mu_H": lambda m: m["incoherence.mu_H.before"],
    "E1.bound_H": lambda m: m["incoherence.mu_H.before_over_bound"],
    "E2.e8p": lambda m: m["gaussian.d4"],
    "E2.rvq3": lambda m: m["gaussian.scalar3"],
    "E2.rvq4": lambda m: m["gaussian.scalar4"],
    "E2.d4": lambda m: m["gaussian.scalar2"] / m["gaussian.d4"],
    "E3.quip2": of_layers("quip_sharp_no_e82", "quip2"),
    "E3.quip3": of_layers("quip_sharp_no_e83", "quip3"),
    "E3.quip4": of_layers("quip_sharp_no_ldlq4", "quip4"),
    "E3.no_e8": lambda m: m["layers.ratio.d42"],
    "E3.no_e8_wide": lambda m: m["layers.ratio.no_e82"],
    "E3.rfft": lambda m: m["layers.ratio.no_rht2"] - 1,
}
LANGUAGE = {
    "E4.order_quip": of_models("excess", "quip2", "quip_sharp_no_ldlq2"),
    "E4.excess2": lambda m: m["lm.quip_sharp_no_e82.excess"],
    "E4.excess3": lambda m: m["lm.quip3.excess"],
    "E4.excess4": lambda m: m["lm.quip4.excess"],
    "E4.proxy2": of_models("proxy_error", "quip_sharp_no_ldlq2", "quip2"),
    "E4.proxy3": of_models("proxy_error", "gptq3", "quip3"),
    "E4.proxy4": of_models("proxy_error", "gptq4", "quip4"),
}
TUNED = {"E4.finetune64": "default", "E4.finetune192": "finetune"}  # at the paper's learning rates
RATES = ["finetune=true", "methods=[quip_sharp]", "tuning.end_to_end.lr_signs=1e-4", "tuning.end_to_end.lr_others=1e-5"]
ALONE = {"E3.no_rht", "E3.no_ldlq", "E4.order_gptq", "E4.order_rtn"}  # a test of its own, below


def check(name: str, value: float) -> None:
    """The figure is the one that the claim carries, to what another machine's arithmetic may change, and misses."""
    claim = CLAIMS[name]
    assert value == pytest.approx(claim["refuted_by"]["value"], rel=0.05), name
    assert claims.verdict(claim, value) is False, f"{name}: {claim['refuted_by']['what']} passes the gate with {value}"


def test_every_gated_claim_names_what_misses_it_and_is_measured_below():
    gated = {name for name, claim in CLAIMS.items() if claim["gate"]}
    assert gated == {name for name, claim in CLAIMS.items() if claim["refuted_by"]}
    assert gated == {*SYNTHETIC, *LANGUAGE, *TUNED, *ALONE}


def test_what_nobody_has_seen_fail_does_not_gate():
    """The bound on mu_W holds without any rotation; the figures of Llama-2 have not been measured, right or wrong."""
    assert {name for name, claim in CLAIMS.items() if not claim["gate"] and claim["op"] != "report"} == {
        "E1.bound_W", "E4.pilot2", "E4.pilot3", "E5.three_bits", "C3.llama7b", "C4.llama7b",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_wrong_variants_on_synthetic_layers():
    line = ["+exp=ci", "parts=[incoherence,gaussian,layers]", "layers.two_bits_only=[]", "threads=1"]
    metrics = launch("quip_sharp", line).metrics
    for name, figure in SYNTHETIC.items():
        check(name, figure(metrics))


@pytest.mark.parametrize(("name", "kind"), [("E3.no_rht", "no_rht"), ("E3.no_ldlq", "no_ldlq")])
def test_ablations_cost_nothing_where_there_is_nothing_to_gain(name, kind):
    """White inputs leave nothing to feed back, and Gaussian weights with them nothing to even out."""
    errors: dict[str, list[float]] = {"quip_sharp": [], f"quip_sharp_{kind}": []}
    for seed in range(3):
        W, _ = synthetic.layer(256, 512, Rng(0, "layer", seed).torch)
        if kind == "no_rht":
            W = torch.randn(256, 512, generator=Rng(0, "gaussian layer", seed).torch)
        for method, found in errors.items():
            found.append(quantize_linear(W, torch.eye(512), method, 2, Rng(0, "signs", seed)).proxy_error)
    ours, without = map(mean, errors.values())
    check(name, without / ours)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_wrong_variants_on_the_language_model():
    line = ["+exp=ci", "parts=[language]", "finetune=false", "threads=1"]
    metrics = launch("quip_sharp", line).metrics
    for name, figure in LANGUAGE.items():
        check(name, figure(metrics))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_methods_that_ignore_their_hessians():
    """GPTQ is then rounding to nearest, exactly, and QuIP hardly better than GPTQ as it should be."""
    model, tokenizer = language.load("stdlib_lm")
    chunks = text.load("stdlib", tokenizer, 256, limit=128)
    layers = decoder_layers(model)
    assert layers is not None
    white = {
        f"{layers[0]}.{i}.{group[0]}": torch.eye(layer.get_submodule(group[0]).in_features)
        for i, layer in enumerate(layers[1])
        for group in groups_of(layer)
    }
    fp = perplexity(model, chunks)
    excess = {
        method: perplexity(quantize_model(model, None, method, 2, Rng(0, "signs"), hessians=white), chunks) / fp - 1
        for method in ("rtn", "gptq", "quip")
    }
    check("E4.order_rtn", excess["rtn"] / excess["gptq"])
    proper = launch("quip_sharp", ["parts=[language]", "methods=[gptq]", "threads=1"]).metrics["lm.gptq2.excess"]
    check("E4.order_gptq", proper / excess["quip"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TUNED)
def test_fine_tuning_at_learning_rates_of_large_models(name):
    line = ["parts=[language]"] if TUNED[name] == "default" else [f"+exp={TUNED[name]}"]
    check(name, launch("quip_sharp", [*line, *RATES, "threads=1"]).metrics["lm.gap_closed2"])
