"""Second moments, streamed and merged, and the walk through the original layers (traps viii and ix)."""

import copy
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from papers.quip_sharp import hessians
from papers.quip_sharp.hessians import SecondMoment, collect_hessians, decoder_layers, groups_of, walk


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------------------------------------ second moments


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 60), max_size=5),
    split=st.integers(0, 5),
    shift=st.sampled_from([0.0, 1e3]),
    seed=st.integers(0, 99),
)
def test_moment_does_not_depend_on_how_the_tokens_are_divided(cuts, split, shift, seed):
    x = torch.randn(60, 5, generator=gen(seed), dtype=torch.float64) + shift
    edges = [0, *sorted(cuts), 60]
    parts = [x[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    left, right = SecondMoment(5), SecondMoment(5)
    for i, part in enumerate(parts):
        (left if i < split else right).update(part)
    left.merge(right)
    assert left.count == 60
    assert torch.allclose(left.matrix(), x.T @ x / 60, rtol=1e-10)


def test_moment_accumulates_in_float64():
    """Trap viii: 10^6 tokens with a large mean, in float32 and bfloat16, lose digits in any lesser accumulator."""
    for dtype in (torch.float32, torch.bfloat16):
        moment, exact = SecondMoment(3), torch.zeros(3, 3, dtype=torch.float64)
        for seed in range(200):
            x = (100 + torch.randn(5000, 3, generator=gen(seed))).to(dtype)
            moment.update(x)
            exact += x.double().T @ x.double()
        assert torch.allclose(moment.matrix(), exact / 1e6, rtol=1e-13, atol=0)


def test_a_few_tokens_after_very_many_still_count():
    """Trap viii again: after 2^26 tokens a float32 count or sum would swallow every single one that follows."""
    moment = SecondMoment(2)
    moment.update(torch.tensor([[1.0, 0.0]]))
    for _ in range(26):
        moment.merge(copy.deepcopy(moment))
    for _ in range(100):
        moment.update(torch.tensor([[0.0, 1e-2]]))
    assert moment.count == 2**26 + 100
    assert moment.matrix()[1, 1].item() == pytest.approx(100 * 1e-4 / (2**26 + 100), rel=1e-6)


def test_moment_can_be_stored_and_taken_up_again():
    x = torch.randn(40, 4, generator=gen())
    whole, half = SecondMoment(4), SecondMoment(4)
    whole.update(x)
    half.update(x[:20])
    state = half.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    again = SecondMoment.from_state_dict(state)
    again.update(x[20:])
    assert torch.allclose(again.matrix(), whole.matrix(), rtol=1e-12)
    assert half.count == 20


def test_unseen_inputs_have_no_moment():
    with pytest.raises(ValueError, match="no inputs"):
        SecondMoment(3).matrix()


# ---------------------------------------------------------------------------------------------------- the groups


def test_llama_groups_share_inputs_in_the_order_they_run(llama):
    name, layers = decoder_layers(llama())
    assert name == "model.layers"
    assert groups_of(layers[0]) == [
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ("self_attn.o_proj",),
        ("mlp.gate_proj", "mlp.up_proj"),
        ("mlp.down_proj",),
    ]


def test_unknown_names_stand_alone():
    layer = nn.ModuleDict({"a": nn.Linear(4, 4), "q_proj": nn.Linear(4, 4), "b": nn.Linear(4, 2)})
    assert groups_of(layer) == [("a",), ("q_proj",), ("b",)]


def test_siblings_with_unequal_inputs_are_not_fused():
    layer = nn.ModuleDict({"q_proj": nn.Linear(4, 4), "k_proj": nn.Linear(6, 4), "v_proj": nn.Linear(4, 4)})
    assert groups_of(layer) == [("q_proj",), ("k_proj",), ("v_proj",)]


# ------------------------------------------------------------------------------------------------------ the walk


def reference_hessians(model, tokens):
    """All linears hooked at once in one whole forward pass."""
    inputs = {}
    handles = [
        module.register_forward_pre_hook(lambda m, args, name=name: inputs.__setitem__(name, args[0]))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    with torch.no_grad():
        model(tokens)
    for handle in handles:
        handle.remove()
    flat = {name: x.double().flatten(0, -2) for name, x in inputs.items()}
    return {name: x.T @ x / len(x) for name, x in flat.items()}


def other_models():
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, GPTNeoXConfig, GPTNeoXForCausalLM

    small = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    gemma = Gemma3TextConfig(
        **small,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
        rope_theta=100.0,
        max_position_embeddings=32,
    )
    return {"gemma": lambda: Gemma3ForCausalLM(gemma), "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**small))}


@pytest.mark.parametrize("name", ["llama", "gemma", "neox"])
def test_walking_layer_by_layer_sees_what_the_whole_model_sees(name, llama, tokens):
    """Gemma gives each layer its own mask and rotary table, NeoX has biases and one fused qkv linear."""
    torch.manual_seed(0)
    model = llama() if name == "llama" else other_models()[name]().eval()
    expected = reference_hessians(model, tokens)
    found = collect_hessians(model, tokens, batch_size=5)  # 5 + 5 + 2: a last batch of another shape
    assert found
    for key, H in found.items():
        assert H.dtype == torch.float64
        assert torch.allclose(H, expected[key], rtol=1e-3, atol=1e-5), key


def test_walk_offers_inputs_outputs_and_a_call_for_any_batch_size(llama, tokens):
    model = llama()
    with torch.no_grad():
        states = model(tokens, output_hidden_states=True).hidden_states
    for index, visit in enumerate(walk(model, tokens, batch_size=4, keep=6)):
        assert torch.allclose(torch.cat(visit.inputs), states[index][:8], atol=1e-5)  # whole batches
        with torch.no_grad():
            for size in (1, 3, 4, 8):
                assert torch.allclose(visit.call(states[index][:size]), torch.cat(visit.outputs)[:size], atol=1e-5)
    assert index == 1


def test_walk_goes_on_with_original_outputs_after_a_layer_is_changed(llama, tokens):
    """Trap ix: Hessians of later layers must not see earlier layers' quantisation."""
    model = llama()
    expected = collect_hessians(llama(), tokens)
    found = {}
    for visit in walk(model, tokens):
        found.update({f"{visit.name}.{group[0]}": moment.matrix() for group, moment in visit.hessians.items()})
        for p in visit.layer.parameters():
            p.data.zero_()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


class Live(TorchDispatchMode):
    """While entered, `peak` is the most bytes of floating-point tensors, made since, that were alive at once."""

    def __init__(self):
        super().__init__()
        self.alive: list[tuple[StorageWeakRef, int]] = []
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        for made in out if isinstance(out, tuple | list) else [out]:
            if isinstance(made, torch.Tensor) and made.is_floating_point():
                storage = made.untyped_storage()
                if storage.data_ptr() not in given:  # or it is a view, or was written in place
                    self.alive.append((StorageWeakRef(storage), storage.nbytes()))
        self.alive = [(reference, size) for reference, size in self.alive if not reference.expired()]
        self.peak = max(self.peak, sum(size for _, size in self.alive))
        return out


@pytest.mark.parametrize("layers", [2, 5])
def test_more_text_takes_the_memory_of_one_layers_hidden_states(layers, llama, tokens):
    """Whatever the depth, and nothing of what is computed inside a layer."""
    model = llama(num_hidden_layers=layers)
    peaks = []
    for n in (4, 12):
        with Live() as live:
            collect_hessians(model, tokens[:n], batch_size=2)
        peaks.append(live.peak)
    assert peaks[1] - peaks[0] == pytest.approx(
        (12 - 4) * 16 * 32 * 4, rel=0.1
    )  # sequences of 16 tokens, 32 float32 each


def test_depth_takes_no_memory_but_what_the_visitor_keeps(llama, tokens):
    peaks = []
    for layers in (2, 5):
        model = llama(num_hidden_layers=layers)
        with Live() as live:
            for visit in walk(model, tokens, batch_size=2):
                assert visit.inputs == visit.outputs == []
                del visit
        peaks.append(live.peak)
    assert peaks[1] == peaks[0]


def test_walk_leaves_the_model_as_it_was(llama, tokens):
    model = llama().train()
    before = {name: p.clone() for name, p in model.named_parameters()}
    collect_hessians(model, tokens)
    assert model.training
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_models_without_decoder_layers_are_run_whole(tokens):
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.a, self.lm_head = nn.Embedding(64, 8), nn.Linear(8, 8), nn.Linear(8, 64)

        def forward(self, ids):
            return self.lm_head(self.a(self.embed(ids)).relu())

    model = Bag()
    found = collect_hessians(model, tokens, batch_size=5)
    assert set(found) == {"a"}
    x = model.embed(tokens).detach().double().flatten(0, 1)
    assert torch.allclose(found["a"], x.T @ x / len(x))


@pytest.mark.parametrize(
    "bad", [torch.zeros(3, 4), torch.zeros(4, dtype=torch.int64), torch.zeros(0, 4, dtype=torch.int64)]
)
def test_calibration_must_be_token_ids(bad, llama):
    with pytest.raises(ValueError, match="token ids"):
        collect_hessians(llama(), bad)


def test_siblings_that_read_different_inputs_cannot_share_a_hessian(tokens):
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(64, 8)
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, ids):
            x = self.embed(ids)
            return self.q_proj(x) + self.k_proj(x + 1) + self.v_proj(x)

    with pytest.raises(ValueError, match="k_proj does not read the same input as q_proj"):
        collect_hessians(Cross(), tokens)


def test_a_layers_accumulators_are_gone_when_the_next_ones_are_made(llama, tokens, monkeypatch):
    alive, most = weakref.WeakSet(), []

    class Counted(SecondMoment):
        def __init__(self, *args):
            super().__init__(*args)
            alive.add(self)
            most.append(len(alive))

    monkeypatch.setattr(hessians, "SecondMoment", Counted)
    for visit in walk(llama(num_hidden_layers=3), tokens):
        held = visit  # as a caller's loop variable does
    assert held.name == "model.layers.2"
    assert max(most) == 4  # the groups of one layer
