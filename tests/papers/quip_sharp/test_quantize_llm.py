"""quantize_model: what is replaced, what is kept, what is reported."""

import json
import pickle

import pytest
import torch
from torch import nn

from papers.quip_sharp import quantize_llm, quantize_model
from papers.quip_sharp.finetune import Tuning
from papers.quip_sharp.hessians import collect_hessians
from papers.quip_sharp.linear import FusedPart, QuantLinear
from papers.quip_sharp.quantize_llm import rows_of, summary
from papers.quip_sharp.quantize_weight import METHODS, widths


@pytest.fixture(scope="module")
def hessians(llama, tokens):
    return collect_hessians(llama(), tokens)


def logits(model, tokens):
    with torch.no_grad():
        return model(tokens).logits


@pytest.mark.parametrize("method", [m for m in METHODS if 4 in widths(m)])
def test_more_bits_bring_the_logits_closer(method, llama, tokens, hessians):
    model = llama()
    reference = logits(model, tokens)
    errors = []
    for bits in (2, 4):
        quantized = quantize_model(model, None, method, bits, 0, hessians=hessians)
        errors.append((logits(quantized, tokens) - reference).square().mean().item())
        assert bits < summary(quantized)["bits_per_weight"] < bits + 4  # tiny layers: the overhead is large
    assert errors[1] < 0.5 * errors[0]


def test_original_model_is_untouched_unless_inplace(llama, tokens, hessians):
    model = llama()
    reference = logits(model, tokens)
    quantized = quantize_model(model, None, hessians=hessians)
    assert quantized is not model
    assert torch.equal(logits(model, tokens), reference)
    assert quantize_model(model, None, hessians=hessians, inplace=True) is model
    assert torch.equal(logits(model, tokens), logits(quantized, tokens))


def test_linears_are_replaced_and_embeddings_head_and_norms_kept(llama, hessians):
    model = llama()
    quantized = quantize_model(model, None, hessians=hessians)
    layer = quantized.model.layers[0]
    assert isinstance(layer.self_attn.q_proj, FusedPart)
    assert layer.self_attn.k_proj._shared[0] is layer.self_attn.q_proj.fused
    assert layer.self_attn.q_proj.fused.splits == (32, 16, 16)  # grouped queries: fewer rows for k and v
    assert isinstance(layer.mlp.down_proj, QuantLinear)
    assert [m for m in quantized.modules() if isinstance(m, nn.Linear)] == [quantized.lm_head]
    assert quantized.lm_head.weight is quantized.model.embed_tokens.weight
    assert torch.equal(quantized.lm_head.weight, model.lm_head.weight)
    assert torch.equal(quantized.model.norm.weight, model.model.norm.weight)


def test_every_weight_computes_what_its_dense_reconstruction_does(llama, tokens, hessians):
    quantized = quantize_model(llama(), None, hessians=hessians)
    dense = llama()
    for name, module in quantized.named_modules():
        if isinstance(module, FusedPart):
            rows = module._shared[0].dense_weight().split(module._shared[0].splits)
            dense.get_submodule(name).weight.data = rows[module.index]
        elif isinstance(module, QuantLinear) and not name.endswith("fused"):
            dense.get_submodule(name).weight.data = module.dense_weight()
    assert torch.allclose(logits(quantized, tokens), logits(dense, tokens), atol=1e-3)


def test_calibrating_on_the_way_equals_collecting_first(llama, tokens, hessians):
    """Trap ix: both see the original model's activations, or the second layer's words would differ."""
    a = quantize_model(llama(), tokens)
    b = quantize_model(llama(), None, hessians=hessians)
    for (name, x), (_, y) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        assert torch.equal(x, y), name


def test_signs_depend_on_the_seed_and_the_name_alone(llama, hessians):
    a, b, c = (quantize_model(llama(), None, rng=seed, hessians=hessians).state_dict() for seed in (1, 1, 2))
    name = "model.layers.1.mlp.down_proj.words"
    assert torch.equal(a[name], b[name])
    assert not torch.equal(a[name], c[name])
    unfused = quantize_model(llama(), None, rng=1, hessians=hessians, fuse=False).state_dict()  # other draws before it
    assert torch.equal(unfused[name], a[name])


def test_without_fusing_every_linear_is_its_own(llama, tokens, hessians):
    quantized = quantize_model(llama(), None, hessians=hessians, fuse=False)
    assert len(rows_of(quantized)) == 14
    assert not any(isinstance(m, FusedPart) for m in quantized.modules())


def test_rows_and_summary(llama, hessians):
    rows = []
    quantized = quantize_model(llama(), None, bits=3, hessians=hessians, on_group=rows.append, rho=0.9)
    assert rows == rows_of(quantized)
    assert [row["name"] for row in rows[:4]] == [
        f"model.layers.0.{name}" for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
    ]
    assert rows[0]["weights_fused"] == 3
    assert rows[0]["rho"] == 0.9
    json.dumps(rows)
    total = summary(quantized)
    stored = sum(
        8 * t.numel() * t.element_size() for m in quantized.modules() if isinstance(m, QuantLinear) for t in m.buffers()
    )
    assert total["bits_per_weight"] == pytest.approx(stored / sum(row["weights"] for row in rows))
    with pytest.raises(ValueError, match="no quantised"):
        summary(llama())


def test_biases_odd_sizes_and_bfloat16(llama, tokens):
    model = llama(
        hidden_size=36, num_attention_heads=6, num_key_value_heads=3, intermediate_size=45, attention_bias=True
    )
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(p)
    reference = logits(model, tokens)
    quantized = quantize_model(model, tokens, "quip_sharp", 4)
    assert (logits(quantized, tokens) - reference).norm() < 0.3 * reference.norm()
    half = quantize_model(llama().to(torch.bfloat16), tokens, "quip_sharp", 4)
    assert logits(half, tokens).dtype == torch.bfloat16
    assert torch.isfinite(logits(half, tokens)).all()


def test_any_architecture_falls_back_to_one_linear_at_a_time(tokens):
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.a, self.lm_head = nn.Embedding(64, 16), nn.Linear(16, 16), nn.Linear(16, 64)

        def forward(self, ids):
            return self.lm_head(self.a(self.embed(ids)).relu())

    torch.manual_seed(0)
    quantized = quantize_model(Bag(), tokens)
    assert isinstance(quantized.a, QuantLinear)
    assert isinstance(quantized.lm_head, nn.Linear)
    assert torch.isfinite(quantized(tokens)).all()


def test_missing_inputs_are_value_errors(llama, tokens, hessians):
    with pytest.raises(ValueError, match="calibration"):
        quantize_model(llama(), None)
    fewer = {k: v for k, v in hessians.items() if "down_proj" not in k}
    with pytest.raises(ValueError, match="down_proj"):
        quantize_model(llama(), None, hessians=fewer)
    with pytest.raises(ValueError, match="token ids"):
        quantize_model(llama(), tokens.float())
    with pytest.raises(ValueError, match="quantised already"):
        quantize_model(quantize_model(llama(), None, hessians=hessians), tokens)


def test_baselines_are_not_tuned_within_blocks(llama, tokens):
    tuning = Tuning(train=4, valid=2, epochs=1, lr_signs=1e-3, lr_others=1e-3)
    with pytest.raises(ValueError, match="off their grid"):
        quantize_model(llama(), tokens, "rtn", 2, tuning=tuning)


def test_tuning_with_hessians_at_hand_runs_only_the_sequences_that_it_needs(llama, tokens, monkeypatch):
    hessians = collect_hessians(llama(), tokens)
    seen = []
    original = quantize_llm.walk
    monkeypatch.setattr(
        quantize_llm,
        "walk",
        lambda model, calibration, *a, **k: seen.append(len(calibration)) or original(model, calibration, *a, **k),
    )
    tuning = Tuning(train=4, valid=2, epochs=1, lr_signs=1e-3, lr_others=1e-3, batch_size=2)
    quantize_model(llama(), tokens, "quip_sharp", 2, hessians=hessians, tuning=tuning)
    assert seen == [6]


@pytest.mark.parametrize(
    "method", [("quip_sharp", 2), ("quip_sharp", 3), ("quip_sharp", 4), ("quip_sharp_d4", 2), ("quip_sharp_no_e8", 2)]
)
def test_quantised_models_can_be_pickled(method, llama, tokens):
    model = quantize_model(llama(), tokens, *method, 0)
    again = pickle.loads(pickle.dumps(model))
    with torch.inference_mode():
        assert torch.equal(again(tokens).logits, model(tokens).logits)
