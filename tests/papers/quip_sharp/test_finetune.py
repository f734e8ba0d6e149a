"""Fine-tuning: words stay frozen, the best epoch is kept, zero rates change nothing (oracle 11)."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from papers.quip_sharp import quantize_model, transformers_io
from papers.quip_sharp.finetune import Tuning, finetune_model, fit, untie_head
from papers.quip_sharp.hessians import collect_hessians
from papers.quip_sharp.linear import QuantLinear
from papers.quip_sharp.quantize_llm import rows_of

TUNING = Tuning(train=8, valid=4, epochs=3, batch_size=4, lr_signs=5e-3, lr_others=1e-3)


@pytest.fixture(scope="module")
def hessians(llama, tokens):
    return collect_hessians(llama(), tokens)


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def words(model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items() if name.endswith("words")}


def state(model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


# ---------------------------------------------------------------------------------------------- (a) within blocks


def test_block_tuning_lowers_the_blocks_error_and_keeps_the_best_epoch(llama, tokens):
    plain = quantize_model(llama(), tokens)
    tuned = quantize_model(llama(), tokens, tuning=TUNING)
    x = torch.randn(4, 16, 32, generator=torch.Generator().manual_seed(0))
    position = torch.arange(16)[None]
    with torch.no_grad():
        rope = plain.model.rotary_emb(x, position)
        target, a, b = (m.model.layers[0](x, position_embeddings=rope) for m in (llama(), plain, tuned))
    assert (b - target).square().mean() < (a - target).square().mean()
    for row in rows_of(tuned):
        history = row["tuning"]
        assert bool(history) == ("down_proj" not in row["name"])  # no stage after the last linear
        if history:
            best = [h["valid_loss"] for h in history if h["best"]]
            assert best == [min(h["valid_loss"] for h in history)]
            assert best[0] <= history[0]["valid_loss"]


def blocks(model, tokens) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What enters and what leaves each decoder layer."""
    found = []
    handles = [
        layer.register_forward_hook(lambda _, args, out: found.append((args[0], out))) for layer in model.model.layers
    ]
    with torch.no_grad():
        model(tokens)
    for handle in handles:
        handle.remove()
    return found


@torch.no_grad()
def block_error(layer, model, x, target) -> float:
    """Mean squared distance of the layer's outputs from the target, for inputs x (n_seq, ctx, d)."""
    rope = model.model.rotary_emb(x, torch.arange(x.shape[1])[None])
    return (layer(x, position_embeddings=rope) - target).square().mean().item()


def test_block_tuning_begins_with_the_distance_from_the_original_layers_outputs(llama, tokens):
    """On the validation sequences, for the original's inputs, with the first group quantised and nothing tuned yet."""
    original, plain = llama(), quantize_model(llama(), tokens)
    history = {row["name"]: row["tuning"] for row in rows_of(quantize_model(llama(), tokens, tuning=TUNING))}
    for i, (x, target) in enumerate(blocks(original, tokens)):
        layer = copy.deepcopy(original.model.layers[i])
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(layer.self_attn, name, getattr(plain.model.layers[i].self_attn, name))
        expected = block_error(layer, original, x[8:12], target[8:12])  # after the 8 that are trained on
        assert expected > 0
        found = history[f"model.layers.{i}.self_attn.q_proj"][0]["valid_loss"]
        assert found == pytest.approx(expected, rel=1e-4)


def test_tuned_blocks_are_nearer_to_the_original_on_text_they_have_not_seen(llama):
    seen, held_out = torch.randint(0, 64, (2, 40, 16), generator=torch.Generator().manual_seed(1))
    original, plain = llama(), quantize_model(llama(), seen)
    tuned = quantize_model(llama(), seen, tuning=replace(TUNING, train=36))
    for i, (x, target) in enumerate(blocks(original, held_out)):
        before, after = (block_error(m.model.layers[i], original, x, target) for m in (plain, tuned))
        assert after < 0.97 * before  # measured: 0.86 and 0.93


def test_block_tuning_changes_no_word_that_is_set(llama, tokens):
    """The first group of a layer is quantised before anything is trained, so its words are those of the plain run."""
    plain, tuned = words(quantize_model(llama(), tokens)), words(quantize_model(llama(), tokens, tuning=TUNING))
    name = "model.layers.0.self_attn.q_proj.fused.words"
    assert torch.equal(plain[name], tuned[name])
    name = "model.layers.0.mlp.down_proj.words"  # quantised after its weight was trained
    assert not torch.equal(plain[name], tuned[name])


def test_block_tuning_leaves_layers_ready_to_use(llama, tokens):
    tuned = quantize_model(llama(), tokens, tuning=TUNING)
    layers = [m for m in tuned.modules() if isinstance(m, QuantLinear)]
    assert all(m.SU.dtype == torch.float16 and not isinstance(m.SU, nn.Parameter) for m in layers)
    assert all(m._dense is None for m in layers)
    signs = tuned.model.layers[0].self_attn.q_proj.fused.SU
    assert (signs.abs() != 1).any()
    assert ((signs.abs() - 1).abs() < 0.2).all()  # relative factors near +-1


@pytest.mark.parametrize("change", [{"lr_signs": 0.0, "lr_others": 0.0}, {"epochs": 0}])
def test_block_tuning_with_nothing_to_do_is_no_tuning(change, llama, tokens):
    plain = state(quantize_model(llama(), tokens))
    tuned = state(quantize_model(llama(), tokens, tuning=replace(TUNING, **change)))
    assert all(torch.equal(plain[name], tuned[name]) for name in plain)


def test_block_tuning_needs_its_sequences_and_float32(llama, tokens):
    with pytest.raises(ValueError, match="200 calibration"):
        quantize_model(llama(), tokens, tuning=replace(TUNING, train=160, valid=40))
    with pytest.raises(ValueError, match="float32"):
        quantize_model(llama().to(torch.bfloat16), tokens, tuning=TUNING)
    with pytest.raises(ValueError, match="calibration"):
        quantize_model(llama(), None, hessians={}, tuning=TUNING)


# -------------------------------------------------------------------------------------------------- (b) end to end


def tune(model, teacher, tokens, recompute=False, loop=None, **changes):
    return finetune_model(model, teacher, tokens, replace(TUNING, **changes), gen(), recompute=recompute, loop=loop)


def test_end_to_end_tuning_lowers_the_loss_and_keeps_every_word(llama, tokens, hessians):
    teacher = llama()
    model = quantize_model(teacher, None, hessians=hessians)
    before = state(model)
    history = tune(model, teacher, tokens)
    best = next(row for row in history if row["best"])
    assert best["epoch"] > 0
    assert best["valid_loss"] < history[0]["valid_loss"]
    after = state(model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {n for n in before if n.endswith((".SU", ".SV")) or "norm" in n or n == "lm_head.weight"}
    assert all(p.requires_grad for p in model.parameters())
    assert not teacher.training


def test_end_to_end_tuning_at_rate_zero_changes_nothing(llama, tokens, hessians):
    model = quantize_model(llama(), None, hessians=hessians)
    before = state(model)
    history = tune(model, llama(), tokens, lr_signs=0.0, lr_others=0.0)
    after = state(model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [row["best"] for row in history] == [True] + [False] * (len(history) - 1)


def test_a_rate_that_is_too_high_falls_back_to_the_start(llama, tokens, hessians):
    model = quantize_model(llama(), None, hessians=hessians)
    before = state(model)
    history = tune(model, llama(), tokens, lr_signs=3.0, lr_others=3.0)
    assert history[0]["best"]
    assert all(torch.equal(value, before[name]) for name, value in state(model).items())


def test_tuning_is_reproducible(llama, tokens, hessians):
    results = []
    for _ in range(2):
        model = quantize_model(llama(), None, hessians=hessians)
        tune(model, llama(), tokens)
        results.append(state(model))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_memory_savers_change_nothing_but_the_order_of_sums(llama, tokens, hessians):
    """A batch in parts, and layers run again in the backward pass, are the same steps."""
    results = []
    for change in ({}, {"micro_batch": 1}, {"recompute": True}):
        model = quantize_model(llama(), None, hessians=hessians)
        history = tune(model, llama(), tokens, **change)
        results.append((history, state(model)))
        assert "forward" not in vars(model.model.layers[0])
    (history, expected), *others = results
    for other, found in others:
        for a, b in zip(history, other, strict=True):
            assert b["valid_loss"] == pytest.approx(a["valid_loss"], rel=1e-4)
            assert a["train_loss"] is None or b["train_loss"] == pytest.approx(a["train_loss"], rel=1e-4)
        for name, value in expected.items():
            assert torch.allclose(found[name].float(), value.float(), atol=5e-3), name
    recomputed = results[2][1]
    assert all(torch.equal(recomputed[name], expected[name]) for name in expected)


@pytest.mark.parametrize("stop", [0, 1, 3, 5])
def test_tuning_that_was_interrupted_ends_as_if_it_had_not_been(stop, llama, tokens, hessians):
    """The loop is killed after a step; a new process restores what was kept and does the rest. 6 steps, 3 epochs."""
    whole = quantize_model(llama(), None, hessians=hessians)
    expected = tune(whole, llama(), tokens)
    kept: dict = {}

    def killed(steps, parts):
        for step in range(steps):
            yield step
            if step == stop:
                kept.update({name: copy.deepcopy(part.state_dict()) for name, part in parts.items()})
                raise KeyboardInterrupt

    def resumed(steps, parts):
        for name, part in parts.items():
            part.load_state_dict(kept[name])
        yield from range(stop + 1, steps)

    with pytest.raises(KeyboardInterrupt):
        tune(quantize_model(llama(), None, hessians=hessians), llama(), tokens, loop=killed)
    again = quantize_model(llama(), None, hessians=hessians)
    assert tune(again, llama(), tokens, loop=resumed) == expected
    assert all(torch.equal(value, state(again)[name]) for name, value in state(whole).items())


def test_tied_head_is_untied_and_the_embedding_kept(llama, tokens, hessians, tmp_path):
    teacher = llama()
    model = quantize_model(teacher, None, hessians=hessians)
    tune(model, teacher, tokens)
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert torch.equal(model.model.embed_tokens.weight, teacher.model.embed_tokens.weight)
    assert not untie_head(model)
    transformers_io.save_pretrained(model, tmp_path)  # the untied head must survive the way to disk and back
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_bad_arguments_are_value_errors(llama, tokens, hessians):
    with pytest.raises(ValueError, match="no QuantLinear"):
        tune(llama(), llama(), tokens)
    model = quantize_model(llama(), None, hessians=hessians)
    for valid in (0, 12):
        with pytest.raises(ValueError, match="validation"):
            tune(model, llama(), tokens, valid=valid)


def test_loss_is_the_cross_entropy_against_the_teacher_at_all_positions_but_the_last(llama, tokens, hessians):
    teacher = llama()
    model = quantize_model(teacher, None, hessians=hessians)
    with torch.no_grad():
        p = teacher(tokens[8:12]).logits[:, :-1].softmax(-1)
        log_q = model(tokens[8:12]).logits[:, :-1].log_softmax(-1)
    history = tune(model, teacher, tokens, epochs=0)
    assert [row["valid_loss"] for row in history] == [pytest.approx(-(p * log_q).sum(-1).mean().item(), rel=1e-5)]


def test_rates_fall_linearly_to_zero_each_group_its_own():
    """Adam's step is the rate where the gradient is constant: 4 steps at 1, 3/4, 2/4, 1/4 of it."""
    sign, other = (nn.Parameter(torch.zeros((), dtype=torch.float64)) for _ in range(2))
    tuning = Tuning(train=2, valid=1, epochs=2, batch_size=1, lr_signs=0.1, lr_others=0.01)
    fit(lambda index: sign + other, [sign], [other], tuning, gen())
    assert [sign.item(), other.item()] == pytest.approx([-0.25, -0.025], rel=1e-5)


def test_fit_stops_after_patience_worse_epochs():
    p = nn.Parameter(torch.zeros(()))
    losses = iter([1.0, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0, 0.0])  # validate, train, validate, ...

    def loss(index):
        return p * 0 + next(losses)

    tuning = Tuning(train=1, valid=1, epochs=10, batch_size=1, lr_signs=0.1, lr_others=0.1, patience=2)
    history = fit(loss, [p], [], tuning, gen())
    assert [row["epoch"] for row in history] == [0, 1, 2]
    assert [row["best"] for row in history] == [True, False, False]
