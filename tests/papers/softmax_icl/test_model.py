"""The transformer against its formula, a library's attention, and the exact population gradient."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from papers.softmax_icl import SoftmaxICL, closed_form, population_gradient, population_loss
from papers.softmax_icl.baselines import LinearICL, least_squares, linear_descent, linear_loss, nadaraya_watson
from papers.softmax_icl.data import exact_tasks, make_features, sample_prompts
from papers.softmax_icl.model import attention_mass, embed, loss_by_feature, squared_loss
from papers.softmax_icl.transformer import Transformer, gain_shares

P = np.array([0.5, 0.3, 0.2])
Q1 = torch.tensor([[1, 0, -0.5], [0.2, 0.5, 0], [0, -0.3, 2]], dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def prompts(B=6, N=9, d=5, K=4, seed=0, **options):
    return sample_prompts(
        B,
        N,
        np.full(K, 1 / K),
        make_features(d, K, "random_orthogonal", generator(seed)),
        generator(seed + 1),
        **options,
    )


def trained(d=5, seed=3, **options):
    model = SoftmaxICL(d, **options)
    with torch.no_grad():
        model.Q.copy_(torch.randn(d, d, dtype=torch.float64, generator=generator(seed)))
    return model


def enumerated(V, N):
    """Every prompt of length N with every query and the exact-in-w tasks, and the probability of each."""
    d, K = V.shape
    rows = [(*feat, q, j) for feat in itertools.product(range(K), repeat=N) for q in range(K) for j in range(d)]
    index = torch.tensor(rows)
    feat, q, w = index[:, :N], index[:, N], exact_tasks(d)[index[:, N + 1]]
    p = torch.as_tensor(P)
    x, x_q = V.mT[feat], V.mT[q]
    return x, torch.einsum("bnd,bd->bn", x, w), x_q, torch.einsum("bd,bd->b", x_q, w), p[feat].prod(dim=1) * p[q] / d


@pytest.mark.parametrize("d", [3, 4])
def test_autograd_through_every_prompt_is_the_exact_population_gradient(d):
    V = make_features(d, 3, "random_orthogonal", generator())
    x, y, x_q, y_q, weight = enumerated(V, 4)
    model = SoftmaxICL(d, 3).set_bilinear(Q1, V)
    loss = (weight * squared_loss(model.predict(x, y, x_q), y_q)).sum()
    loss.backward()
    assert loss.item() == pytest.approx(population_loss(Q1.numpy(), P, 4)[0], abs=1e-13)
    exact = torch.as_tensor(population_gradient(Q1.numpy(), P, 4))
    torch.testing.assert_close(V.mT @ model.Q.grad @ V, exact, atol=1e-12, rtol=0)
    torch.testing.assert_close(
        model.Q.grad, V @ exact @ V.mT, atol=1e-12, rtol=0
    )  # the complement of the features does not move


def test_forward_is_the_formula_column_by_column():
    x, y, x_q, *_ = prompts()
    model = trained()
    E = embed(x, y, x_q)
    d, M = model.d, E[..., :-1]
    merged = torch.zeros(d + 1, d + 1, dtype=torch.float64)
    merged[:d, :d] = model.Q.detach()
    value = torch.zeros(d + 1, d + 1, dtype=torch.float64)
    value[d, d] = 1
    expected = value @ M @ torch.softmax(M.mT @ merged @ E, dim=1)
    torch.testing.assert_close(model(E), expected)
    torch.testing.assert_close(model.predict(x, y, x_q), expected[:, d, -1])


def test_attention_is_the_librarys_with_scale_one():
    x, y, x_q, *_ = prompts()
    model = trained()
    query = (x_q @ model.Q.mT)[:, None]
    expected = F.scaled_dot_product_attention(query, x, y[..., None], scale=1.0)[:, 0, 0]
    torch.testing.assert_close(model.predict(x, y, x_q), expected)
    wrong = F.scaled_dot_product_attention(query, x, y[..., None])[:, 0, 0]  # 1 / sqrt(d) is another model
    assert not torch.allclose(model.predict(x, y, x_q), wrong, atol=1e-3)


def test_scores_are_key_times_q_times_query_not_the_other_way():
    x, _, x_q, *_ = prompts()
    model = trained()
    scores = torch.stack([torch.stack([x_i @ model.Q @ q for x_i in row]) for row, q in zip(x, x_q, strict=True)])
    torch.testing.assert_close(model.attention(x, x_q), scores.softmax(dim=1))


def test_the_querys_label_slot_is_never_read():
    x, y, x_q, *_ = prompts()
    torch.testing.assert_close(
        trained().predict(x, y, x_q, slot=0.0), trained().predict(x, y, x_q, slot=123.0), atol=0, rtol=0
    )
    assert not torch.allclose(
        trained(mask=False).predict(x, y, x_q, slot=0.0), trained(mask=False).predict(x, y, x_q, slot=123.0)
    )


def test_without_the_mask_labels_shrink_and_the_loss_has_a_plateau():
    K, N = 3, 6
    V = make_features(K, K)
    batch = sample_prompts(40_000, N, P, V, generator())
    hard = SoftmaxICL(K, mask=False).set_bilinear(40 * torch.eye(K, dtype=torch.float64), V)
    own = (batch.feat == batch.feat_q[:, None]).sum(dim=1)
    torch.testing.assert_close(hard.predict(*batch[:3]), batch.y_q * own / (own + 1), atol=1e-9, rtol=1e-9)
    loss = squared_loss(hard.predict(*batch[:3]), batch.y_q)
    assert loss.mean().item() == pytest.approx(P @ closed_form.no_mask_plateau(P, N), abs=4 * loss.std().item() / 200)


def test_a_residual_changes_nothing_since_the_slot_is_empty():
    x, y, x_q, *_ = prompts()
    torch.testing.assert_close(trained(residual=True).predict(x, y, x_q), trained().predict(x, y, x_q), atol=0, rtol=0)
    torch.testing.assert_close(trained(residual=True).predict(x, y, x_q, slot=2.0), trained().predict(x, y, x_q) + 2.0)


def test_trained_nu_scales_the_prediction_and_is_trained():
    x, y, x_q, y_q, *_ = prompts()
    model = trained(trained_nu=True)
    squared_loss(model.predict(x, y, x_q), y_q).mean().backward()
    assert model.nu.grad is not None
    with torch.no_grad():
        before = model.predict(x, y, x_q)
        model.nu.fill_(2.0)
        torch.testing.assert_close(model.predict(x, y, x_q), 2 * before)
    assert not SoftmaxICL(2).nu.requires_grad


def test_rotating_features_and_q_together_changes_nothing():
    x, y, x_q, *_ = prompts()
    model, rotated = trained(), trained()
    R = make_features(5, 5, "random_orthogonal", generator(9))
    with torch.no_grad():
        rotated.Q.copy_(R @ model.Q @ R.mT)
    torch.testing.assert_close(rotated.predict(x @ R.mT, y, x_q @ R.mT), model.predict(x, y, x_q))


def test_predictions_are_linear_in_the_task():
    x, y, x_q, *_ = prompts()
    torch.testing.assert_close(trained().predict(x, 10 * y, x_q), 10 * trained().predict(x, y, x_q))


def test_bilinear_form_round_trips_and_reads_key_rows():
    V = make_features(5, 3, "random_orthogonal", generator())
    model = SoftmaxICL(5, 3).set_bilinear(Q1, V)
    torch.testing.assert_close(model.bilinear(V), Q1)
    assert (V[:, 2] @ model.Q @ V[:, 0]).item() == pytest.approx(Q1[2, 0].item(), abs=1e-14)


def test_attention_mass_sums_attention_by_feature():
    batch = prompts()
    mass = attention_mass(trained().attention(batch.x, batch.x_q), batch.feat, 4)
    torch.testing.assert_close(mass.sum(dim=1), torch.ones(6, dtype=torch.float64))
    assert (mass[~torch.zeros(6, 4).scatter_add(1, batch.feat, torch.ones(6, 9)).bool()] == 0).all()


def test_wrong_shapes_and_sizes_are_named():
    x, y, x_q, *_ = prompts()
    with pytest.raises(ValueError, match="K is 4 and d is 3"):
        SoftmaxICL(3, 4)
    with pytest.raises(ValueError, match="x has shape"):
        SoftmaxICL(4).predict(x, y, x_q)
    with pytest.raises(ValueError, match="N >= 1"):
        SoftmaxICL(5).predict(x[:, :0], y[:, :0], x_q)
    with pytest.raises(ValueError, match="y has shape"):
        SoftmaxICL(5).predict(x, y[:, 1:], x_q)
    with pytest.raises(ValueError, match="orthonormal"):
        SoftmaxICL(5).bilinear(make_features(5, 3, coherence=0.2))


# ---- baselines -------------------------------------------------------------------------------------------------------


def test_linear_floor_has_the_enumerated_values():
    np.testing.assert_allclose(closed_form.linear_floor(P, 4), [0.1, 0.1842105263, 0.25], atol=1e-10)
    np.testing.assert_allclose(
        linear_loss(closed_form.linear_optimum(P, 4), P, 4), closed_form.linear_floor(P, 4), atol=1e-15
    )


def test_linear_optimum_is_where_autograd_over_every_prompt_vanishes():
    V = make_features(3, 3, "random_orthogonal", generator())
    x, y, x_q, y_q, weight = enumerated(V, 4)
    model = LinearICL(3)
    with torch.no_grad():
        model.Q.copy_(V @ torch.diag(torch.as_tensor(closed_form.linear_optimum(P, 4))) @ V.mT)
    loss = (weight * squared_loss(model.predict(x, y, x_q), y_q)).sum()
    loss.backward()
    assert loss.item() == pytest.approx(P @ closed_form.linear_floor(P, 4), abs=1e-13)
    assert model.Q.grad.abs().max() < 1e-13


def test_linear_descent_contracts_at_its_rate():
    u = linear_descent(P, 4, 0.5, 3000)
    optimum, rate = closed_form.linear_optimum(P, 4), P * (P**2 + P * (1 - P) / 4)
    np.testing.assert_allclose(u[-1], optimum * (1 - (1 - 0.5 * rate) ** 3000), rtol=1e-12)
    t = closed_form.linear_time(P, 4, 1e-3)
    fine = linear_descent(P, 4, 0.01, int(t.max() / 0.01) + 1)
    for k in range(3):
        excess = linear_loss(fine[int(t[k] / 0.01)], P, 4)[k] - closed_form.linear_floor(P, 4)[k]
        assert excess == pytest.approx(1e-3, rel=5e-3)


def test_least_squares_is_exact_where_the_feature_appears_and_zero_elsewhere():
    batch = prompts(B=400, N=4)
    seen = (batch.feat == batch.feat_q[:, None]).any(dim=1)
    found = least_squares(*batch[:3])
    torch.testing.assert_close(found, torch.where(seen, batch.y_q, 0.0), atol=1e-10, rtol=0)
    assert 0 < seen.sum() < 400
    hard = SoftmaxICL(5)
    with torch.no_grad():
        hard.Q.copy_(60 * torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(
        hard.predict(*batch[:3])[seen], found[seen], atol=1e-10, rtol=0
    )  # beta -> inf closes the gap


def test_kernel_regression_is_the_model_at_a_multiple_of_the_identity():
    x, y, x_q, *_ = prompts()
    model = SoftmaxICL(5)
    with torch.no_grad():
        model.Q.copy_(3.0 * torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(model.predict(x, y, x_q), nadaraya_watson(x, y, x_q, 3.0))


# ---- the less idealised transformer ----------------------------------------------------------------------------------


def test_transformer_heads_are_the_papers_model_when_set_to_it():
    d = 5
    x, y, x_q, *_ = prompts()
    model, paper = Transformer(d, generator=generator()), trained(d)
    with torch.no_grad():
        block = model.blocks[0]
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            getattr(block, name).zero_()
        block.W_Q[0, :d, :d], block.W_K[0, :d, :d] = paper.Q.float(), torch.eye(d)
        block.W_V[0, d, d] = block.W_O[0, d, d] = 1
        model.readout.copy_(torch.eye(d + 1)[d])
    torch.testing.assert_close(model.predict(x, y, x_q), paper.predict(x, y, x_q).detach(), atol=1e-5, rtol=1e-5)
    V = make_features(d, d)
    Qf, gain = model.heads(V)
    torch.testing.assert_close(Qf[0], paper.bilinear(V).float())
    assert gain.tolist() == gain_shares(gain).tolist() == [1.0]


@pytest.mark.parametrize("layers", [1, 2])
def test_transformer_does_not_see_its_query_as_an_example(layers):
    x, y, x_q, *_ = prompts()
    model = Transformer(5, heads=2, layers=layers, residual=True, mlp=True, generator=generator())
    order = torch.randperm(9, generator=generator())
    torch.testing.assert_close(
        model.predict(x[:, order], y[:, order], x_q), model.predict(x, y, x_q), atol=1e-5, rtol=1e-5
    )
    doubled = model.predict(
        torch.cat([x, x], 1), torch.cat([y, y], 1), x_q
    )  # the same examples twice are the same prompt
    torch.testing.assert_close(doubled, model.predict(x, y, x_q), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_last_layer_computes_the_querys_token_alone(layers):
    x, y, x_q, *_ = prompts()
    model = Transformer(5, heads=2, layers=layers, residual=True, mlp=True, generator=generator())
    h = embed(x, y, x_q).mT.float()
    for block in model.blocks:
        h = block(h)  # every token in every layer
    torch.testing.assert_close(model.predict(x, y, x_q), (h[:, -1] @ model.readout).double(), atol=1e-5, rtol=1e-5)


# ---- what is handed in -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_the_model_takes_tensors_and_arrays_of_any_type(make, kind):
    x, y, x_q = (make(np.array(a, kind)) for a in ([[[1, 0], [0, 1]]], [[3, 5]], [[1, 0]]))
    model = SoftmaxICL(2, K=2).set_bilinear(make(np.eye(2).astype(kind)), make(np.eye(2, dtype="float32")))
    e = np.e
    found = model.predict(x=x, y=y, xq=x_q)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx((3 * e + 5) / (e + 1), rel=1e-12)
    assert model.attention(x, x_q).tolist() == [pytest.approx([e / (e + 1), 1 / (e + 1)], rel=1e-12)]
    assert model.bilinear(make(np.eye(2, dtype="float32"))).tolist() == [[1, 0], [0, 1]]


def test_rare_queries_vanish_in_a_mean_over_prompts_but_not_feature_by_feature():
    p, V = np.array([0.9, 0.05, 0.05]), make_features(3, 3)
    model = SoftmaxICL(3)
    with torch.no_grad():
        model.Q[0, 0] = 20.0  # the dominant query is learned, the others are not
    plain = sample_prompts(3000, 60, p, V, generator())
    each = sample_prompts(3000, 60, p, V, generator(), feat_q=torch.arange(3).repeat_interleave(1000))
    L_k = loss_by_feature(model.predict, each, 3)
    assert L_k[0] < 1e-3
    assert (L_k[1:] > 0.5).all()
    assert squared_loss(model.predict(*plain[:3]), plain.y_q).mean().item() == pytest.approx(p @ L_k, rel=0.15)
    assert p @ L_k < L_k.max() / 5


def test_sizes_and_shapes_that_do_not_fit_are_named():
    model, V = SoftmaxICL(3), make_features(3, 2)
    for call, message in [
        (lambda: SoftmaxICL(2.5), "d is 2.5"),
        (lambda: SoftmaxICL(3, 2.5), "K is 2.5"),
        (lambda: model.set_bilinear(np.eye(3), V), r"Qf has shape \(3, 3\) and V \(3, 2\)"),
        (lambda: model.set_bilinear(np.eye(2), np.eye(4, 2)), r"V has shape \(4, 2\), expected \(3, K\)"),
        (lambda: model.bilinear(np.ones(3)), r"V has shape \(3,\)"),
        (lambda: model.attention(np.ones((1, 2, 4)), np.ones((1, 4))), r"x has shape \(1, 2, 4\)"),
        (lambda: model.attention(np.ones((1, 2, 3)), np.ones((2, 3))), r"x_q \(2, 3\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_integers_are_converted():
    Qf = np.array([[2, -1], [-1, 2]])
    model = SoftmaxICL(3, 2).set_bilinear(Qf, np.eye(3, 2, dtype=int))
    np.testing.assert_array_equal(model.bilinear(np.eye(3, 2, dtype=int)), Qf)


@pytest.mark.parametrize("scale", [0.0, -5.0, 8.0])
def test_the_relative_error_is_the_same_under_every_law_and_scale_of_tasks_trained_or_not(scale):
    """Identities of a predictor that is linear in the labels: they hold at Q = 0 too, and so prove no training."""
    from types import SimpleNamespace

    from common.rng import Rng
    from papers.softmax_icl.real_prompts import unseen_tasks

    V, part = make_features(8, 8), SimpleNamespace(test_prompts=16384, d=8)
    model = SoftmaxICL(8, 8).set_bilinear(scale * torch.eye(8), V)
    run = SimpleNamespace(rng=lambda *name: Rng(0, *name))

    def draw(generator, B, **changes):
        return sample_prompts(B, 64, np.full(8, 1 / 8), V, generator, **changes)

    rows = unseen_tasks(model, draw, part, run, "x")
    errors = [row["relative_error"] for row in rows]
    assert errors == pytest.approx([errors[0]] * 3, rel=0.1 if scale < 8 else 1.0, abs=0.003)
    assert max(row["times_10_gap"] for row in rows) < 1e-10
    assert (rows[0]["z"] < 0) == (
        scale == 8.0
    )  # only where training has led is the error below a hundredth of the labels'
