"""Loss and gradient in feature coordinates, against printed values, finite differences and each other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.softmax_icl import closed_form, population
from papers.softmax_icl.population import attention_scores, population_gradient, population_loss

P = np.array([0.5, 0.3, 0.2])
N = 4
Q0 = np.zeros((3, 3))
Q1 = np.array([[1, 0, -0.5], [0.2, 0.5, 0], [0, -0.3, 2]])


def random_problem(seed, K=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(K, K)), rng.dirichlet(np.full(K, 3.0))


def test_exact_values_at_zero():
    loss, L_k = population_loss(Q0, P, N)
    assert loss == pytest.approx(0.3875, abs=1e-14)
    np.testing.assert_allclose(L_k, [0.2675, 0.4675, 0.5675], atol=1e-14)
    expected = [[0.0825, -0.0405, -0.0195], [-0.05175, 0.04995, -0.0072], [-0.03075, -0.00945, 0.0267]]
    np.testing.assert_allclose(-population_gradient(Q0, P, N), expected, atol=1e-14)


def test_exact_values_away_from_zero():
    loss, L_k = population_loss(Q1, P, N)
    assert loss == pytest.approx(0.260043246690946, abs=1e-15)
    np.testing.assert_allclose(L_k, [0.14916119, 0.38078796, 0.35613132], atol=5e-9)
    expected = [
        [0.05239005, -0.0394361, -0.00242271],
        [-0.03631714, 0.04435014, -0.00377894],
        [-0.01607291, -0.00491404, 0.00620165],
    ]
    np.testing.assert_allclose(-population_gradient(Q1, P, N), expected, atol=5e-9)


def test_transposed_scores_are_another_problem():
    """A_k cannot tell Q from Q', B_{k,n} can."""
    assert not np.allclose(population_loss(Q1.T, P, N)[1], population_loss(Q1, P, N)[1], atol=1e-3)
    assert not np.allclose(population_gradient(Q1.T, P, N), population_gradient(Q1, P, N).T, atol=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_gradient_is_the_finite_difference_of_the_loss(seed):
    Q, p = random_problem(seed)
    h = 1e-5
    numeric = np.zeros((3, 3))
    for i in range(3):
        for j in range(3):
            E = np.zeros((3, 3))
            E[i, j] = h
            numeric[i, j] = (population_loss(Q + E, p, 5)[0] - population_loss(Q - E, p, 5)[0]) / (2 * h)
    np.testing.assert_allclose(population_gradient(Q, p, 5), numeric, atol=1e-9)


@pytest.mark.parametrize("examples", [1, 4, 9])
def test_initial_loss_is_its_closed_form(examples):
    np.testing.assert_allclose(population_loss(Q0, P, examples)[1], closed_form.initial_loss(P, examples), atol=1e-14)


@pytest.mark.parametrize("K", [2, 5, 20])
def test_initial_velocity_is_its_closed_form(K):
    alpha = -population_gradient(np.zeros((K, K)), np.full(K, 1 / K), 1, "infinite_prompt").diagonal()
    np.testing.assert_allclose(alpha, (K - 1) / K**3, rtol=1e-12)
    p = np.random.default_rng(K).dirichlet(np.ones(K))
    alpha = -population_gradient(np.zeros((K, K)), p, 1, "infinite_prompt").diagonal()
    np.testing.assert_allclose(alpha, closed_form.initial_alpha(p), rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), scale=st.sampled_from([0.1, 1.0, 30.0, 500.0]), mode=st.sampled_from(population.MODES)
)
def test_columns_of_the_gradient_sum_to_zero_and_alpha_is_never_negative(seed, scale, mode):
    Q, p = random_problem(seed, K=4)
    options = {"samples": 1 + seed % 7, "generator": np.random.default_rng(seed)} if mode == "counts_mc" else {}
    direction = -population_gradient(scale * Q, p, 6, mode, **options)
    np.testing.assert_allclose(direction.sum(axis=0), 0, atol=1e-14)
    assert (direction.diagonal() >= 0).all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), counts=st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(any))
def test_both_formulas_agree_on_every_prompt(seed, counts):
    Q, p = random_problem(seed, K=4)
    c, w = np.array([counts], float), np.ones(1)
    fast = population._by_matrix_products(Q, p, c, w)
    slow = population._by_attention(population.attention(Q, c), p, w)
    np.testing.assert_allclose(fast[0], slow[0], atol=1e-14)
    np.testing.assert_allclose(fast[1], slow[1], atol=1e-14)


def test_descent_never_lowers_a_and_keeps_every_column_sum():
    """Any N, p and learning rate: A_k + sum_n B_{k,n} = 0 at each step, for a single count vector too."""
    Q, R, rng = np.zeros((3, 3)), np.zeros((3, 3)), np.random.default_rng(0)
    for _ in range(300):
        before = Q.diagonal().copy()
        Q = Q - 20.0 * population_gradient(Q, P, N)
        R = R - 20.0 * population_gradient(R, P, N, "counts_mc", 1, rng)
        assert (Q.diagonal() >= before).all()
    np.testing.assert_allclose(Q.sum(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(R.sum(axis=0), 0, atol=1e-12)
    assert Q.diagonal().min() > 1


@pytest.mark.parametrize(("examples", "absent"), [(900, 1.6e-7), (100, 0.18)])
def test_short_prompts_lack_a_rare_feature_which_looks_like_no_convergence(examples, absent):
    """K = 30, p_1 = 1/2: the model that has learned everything is left with the prompts without the query's feature."""
    p = np.array([0.5, *np.full(29, 0.5 / 29)])
    assert (1 - p[1]) ** examples == pytest.approx(absent, rel=0.06)
    assert closed_form.ols_floor(p, examples)[1] == pytest.approx(absent / 2, rel=0.06)
    L_k = population_loss(60 * np.eye(30), p, examples, "counts_mc", 4000, np.random.default_rng(0))[1][1:].mean()
    assert L_k == pytest.approx(closed_form.softmax_limit(p, examples)[1], rel=0.05, abs=1e-5)
    assert (L_k > 0.05) == (examples == 100)


def test_the_dominant_feature_is_unlearned_first():
    p = np.array([0.5, *np.full(9, 0.5 / 9)])
    assert (population_gradient(np.zeros((10, 10)), p, 1, "infinite_prompt")[0, 1:] > 0).all()  # beta_{k,1} < 0


def test_permuting_features_permutes_the_gradient():
    order = [2, 0, 1]
    np.testing.assert_allclose(
        population_gradient(Q1[np.ix_(order, order)], P[order], N),
        population_gradient(Q1, P, N)[np.ix_(order, order)],
        atol=1e-15,
    )


def test_a_constant_added_to_a_column_changes_nothing():
    shift = Q1 + np.array([5.0, -3.0, 100.0])
    np.testing.assert_allclose(population_gradient(shift, P, N), population_gradient(Q1, P, N), atol=1e-13)
    np.testing.assert_allclose(population_loss(shift, P, N)[1], population_loss(Q1, P, N)[1], atol=1e-13)


def test_monte_carlo_is_unbiased():
    rng = np.random.default_rng(0)
    draws = np.array([population_gradient(Q1, P, N, "counts_mc", 100, rng) for _ in range(400)])
    error = draws.mean(axis=0) - population_gradient(Q1, P, N)
    assert (np.abs(error) < 5 * draws.std(axis=0) / 20).all()


def test_long_prompts_tend_to_the_infinite_prompt():
    limit = population_gradient(Q1, P, 1, "infinite_prompt")
    gaps = [np.abs(population_gradient(Q1, P, n) - limit).max() for n in (25, 100, 400)]
    np.testing.assert_allclose(gaps[0] / gaps[1], 4, rtol=0.15)  # the correction is of order 1/N
    np.testing.assert_allclose(gaps[1] / gaps[2], 4, rtol=0.05)


def test_loss_never_goes_below_the_floor_and_tends_to_its_limit():
    floor, limit = closed_form.softmax_floor(P, N), closed_form.softmax_limit(P, N)
    for seed in range(20):
        assert (population_loss(5 * random_problem(seed)[0], P, N)[1] >= floor).all()
    hard = population_loss(60 * np.eye(3), P, N)[1]
    np.testing.assert_allclose(hard, limit, rtol=1e-9)
    assert (limit >= floor).all()


@pytest.mark.parametrize("beta", [299.0, 800.0, 1e5])
def test_huge_scores_neither_overflow_nor_lose_absent_features(beta):
    direction = population_gradient(beta * np.eye(3), P, N)
    assert np.isfinite(direction).all()
    np.testing.assert_allclose(population_loss(beta * np.eye(3), P, N)[1], closed_form.softmax_limit(P, N), rtol=1e-12)


def test_small_losses_keep_their_digits():
    """At 1 - Attn_k = 1e-12 the loss is about 1e-24: formed from 1 - a it would be rounding noise."""
    K, gap = 4, 1e-12
    score = np.log((1 - gap) * (K - 1) / gap)
    L_k = population_loss(score * np.eye(K), np.full(K, 1 / K), 1, "infinite_prompt")[1]
    np.testing.assert_allclose(L_k, K / (2 * (K - 1)) * gap**2, rtol=1e-9)


def test_attention_sums_to_one_and_grows_with_its_score():
    attn = attention_scores(Q1, P, N)
    np.testing.assert_allclose(attn.sum(axis=0), 1, atol=1e-14)
    raised = attention_scores(Q1 + np.diag([1.0, 1, 1]), P, N)
    assert (raised.diagonal() > attn.diagonal()).all()


def test_enumeration_is_the_multinomial_law():
    counts, weights = population.enumerate_counts(P, N)
    assert len(counts) == 15
    assert len(np.unique(counts, axis=0)) == 15
    assert (counts.sum(axis=1) == N).all()
    np.testing.assert_allclose(weights.sum(), 1, atol=1e-14)
    np.testing.assert_allclose(weights @ counts, N * P, atol=1e-13)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": [0.5, 0.3, 0.3]}, "sums to"), ({"p": [1.2, -0.1, -0.1]}, "positive"), ({"N": 0}, "N is 0"), ({"Qf": np.zeros((2, 2))}, "Qf has shape"),
        ({"mode": "tokens"}, "mode is"), ({"mode": "counts_mc"}, "samples"), ({"Qf": np.full((3, 3), np.nan)}, "learning rate"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(change, message):
    arguments = {"Qf": Q0, "p": P, "N": N} | change
    with pytest.raises(ValueError, match=message):
        population_gradient(**arguments)


FUNCTIONS = [closed_form.initial_loss, closed_form.linear_floor, closed_form.linear_optimum, closed_form.softmax_floor,
             closed_form.softmax_limit, closed_form.ols_floor, closed_form.no_mask_plateau]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_closed_forms_refuse_what_is_no_law_and_prompts_without_examples(function):
    assert function(np.float32([0.5, 0.3, 0.2]), 4).dtype == np.float64
    with pytest.raises(ValueError, match="p sums to"):
        function([0.5, 0.3, 0.3], 4)
    with pytest.raises(ValueError, match="N is 0"):
        function(P, 0)


def test_gradients_take_arrays_of_any_float_type():
    found = population_gradient(Q1.astype(np.float32), P.astype(np.float32), N)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, population_gradient(Q1, P, N), atol=1e-7)


def test_enumerating_too_much_says_what_to_use():
    with pytest.raises(ValueError, match="counts_mc"):
        population_loss(np.zeros((20, 20)), np.full(20, 0.05), 400)


def test_a_whole_number_may_be_a_float_and_other_arguments_are_named():
    np.testing.assert_array_equal(population_gradient(Q0, P, 4.0), population_gradient(Q0, P, 4))
    np.testing.assert_array_equal(population_gradient(Q0.astype(int), P, 4), population_gradient(Q0, P, 4))
    rng = np.random.default_rng(0)
    for arguments, message in [
        ((2.5,), "N is 2.5"), ((np.inf,), "N is inf"), ((4, "counts_mc", 2.5, rng), "samples is 2.5"), ((4, "counts_mc", 2, 0), "generator is 0"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            population_gradient(Q0, P, *arguments)


def test_the_plateau_without_a_mask_is_of_finite_prompts():
    with pytest.raises(ValueError, match="N is inf"):
        closed_form.no_mask_plateau(P, np.inf)
    np.testing.assert_array_equal(closed_form.no_mask_plateau(P, 4.0), closed_form.no_mask_plateau(P, 4))
