"""The acceptance model against closed forms: ridge, Sherman-Morrison, the alternation, the dual, and the traps around them."""

import numpy as np
import pytest
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

from papers.neg_ucb import baselines, features
from papers.neg_ucb.acceptance import NegUCB, confidence_radius, inverse
from papers.neg_ucb.kernel import CAP, ExactNegUCB
from papers.neg_ucb.negotiation import Optimistic


def answers(n=120, d=4, G=5, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, d))
    x /= np.maximum(1, np.linalg.norm(x, axis=1))[:, None]
    return x, generator.integers(G, size=n), generator.integers(2, size=n).astype(float)


def learn(model, n=120, **options):
    x, g, y = answers(n, **options)
    for row, who, answer in zip(x, g, y, strict=True):
        model.update(row, int(who), answer)
    return model, x, g, y


def rebuilt(model, x, g, y):
    """A, Theta from the raw history, in the order phi slow, hidden fast."""
    phi = model.phi(x)
    h = model.tilde(model.h)[[model.index[int(who)] for who in g]]
    Z = np.einsum("ni,nj->nij", phi, h).reshape(len(x), -1)
    A = model.lambda_theta * np.eye(Z.shape[1]) + Z.T @ Z
    return A, np.linalg.solve(A, Z.T @ y)


def test_without_hidden_states_it_is_textbook_linucb():
    model, x, _, y = learn(baselines.lin_ucb(features.Linear(4), alpha=0.7, lambda_theta=2.0))
    phi = model.phi(x)
    ridge = Ridge(alpha=2.0, fit_intercept=False).fit(phi, y)
    mean, bonus = model.ucb(x, 0)
    A = 2.0 * np.eye(5) + phi.T @ phi
    assert np.abs(mean - ridge.predict(phi)).max() < 1e-10
    assert np.abs(bonus - 0.7 * np.sqrt(np.einsum("ij,jk,ik->i", phi, np.linalg.inv(A), phi))).max() < 1e-10


def test_sherman_morrison_stays_at_the_inverse_for_a_thousand_updates():
    model = NegUCB(features.Linear(6), hidden=2, every=10**9)
    model, x, g, y = learn(model, 1000, d=6)
    A, Theta = rebuilt(model, x, g, y)
    assert np.abs(model.A_inv - np.linalg.inv(A)).max() < 1e-8
    assert np.abs(model.Theta.ravel() - Theta).max() < 1e-8
    assert model.log_det == pytest.approx(np.linalg.slogdet(A)[1], abs=1e-8)


def test_rebuild_from_statistics_equals_rebuild_from_history():
    model, x, g, y = learn(NegUCB(features.RandomFourier(4, 12, 1.0, np.random.default_rng(0)), hidden=3, every=10))
    A, Theta = rebuilt(model, x, g, y)
    assert np.abs(model.A_inv - np.linalg.inv(A)).max() < 1e-10
    assert np.abs(model.Theta.ravel() - Theta).max() < 1e-10


def test_stale_mode_keeps_rows_of_old_states_and_so_differs():
    exact, x, g, y = learn(NegUCB(features.Linear(4), hidden=2))
    stale, *_ = learn(NegUCB(features.Linear(4), hidden=2, rebuild="stale"))
    assert np.abs(stale.A_inv - np.linalg.inv(rebuilt(stale, x, g, y)[0])).max() > 1e-3
    assert np.abs(exact.ucb(x, 0)[0] - stale.ucb(x, 0)[0]).max() > 1e-3


@pytest.mark.parametrize("coupling", ["bilinear", "additive"])
def test_the_alternation_never_raises_its_objective(coupling):
    model, *_ = learn(NegUCB(features.Linear(4), hidden=2, coupling=coupling, every=10**9))
    model.rebuild()
    values = [model.objective()]
    for _ in range(20):
        model.h_step()
        values.append(model.objective())
        model.rebuild()
        values.append(model.objective())
    assert np.diff(values).max() <= 1e-12
    assert values[-1] < values[0] - 1e-3  # and it does lower it


def test_objective_from_statistics_equals_the_sum_over_rounds():
    model, x, g, y = learn(NegUCB(features.Linear(4), hidden=2))
    errors = [answer - model.ucb(row[None], int(who))[0][0] for row, who, answer in zip(x, g, y, strict=True)]
    penalties = 0.5 * (model.Theta**2).sum() + 0.25 * ((model.h - model.h0) ** 2).sum()
    assert model.objective() == pytest.approx(0.5 * np.square(errors).sum() + penalties, abs=1e-9)


def test_one_counterpart_without_hidden_state_is_solved_in_one_step():
    model, *_ = learn(NegUCB(features.Linear(4), hidden=0, every=10**9), G=1)
    model.rebuild()
    gradient = model.lambda_theta * model.Theta[:, 0] - (model.r[0] - model.S[0] @ model.Theta[:, 0])
    assert np.abs(gradient).max() < 1e-12


def test_rotating_the_hidden_space_changes_no_prediction():
    model, x, *_ = learn(NegUCB(features.Linear(4), hidden=3))
    mean, bonus = model.ucb(x, 1)
    R = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    model.Theta[:, 1:] = model.Theta[:, 1:] @ R
    model.h, model.h0 = model.h @ R, model.h0 @ R
    model.rebuild()
    turned_mean, turned_bonus = model.ucb(x, 1)
    assert np.abs(turned_mean - mean).max() < 1e-10
    assert np.abs(turned_bonus - bonus).max() < 1e-8


def test_hidden_states_that_start_at_zero_never_leave_it():
    stuck, x, *_ = learn(NegUCB(features.Linear(4), hidden=2, spread=0.0))
    free, *_ = learn(NegUCB(features.Linear(4), hidden=2))
    assert np.abs(stuck.Theta[:, 1:]).max() == 0
    assert np.abs(stuck.h).max() == 0
    assert np.abs(free.Theta[:, 1:]).max() > 1e-3
    assert np.abs(free.ucb(x, 0)[0] - free.ucb(x, 1)[0]).max() > 1e-3


@pytest.mark.parametrize(
    "make_map", [lambda: features.Linear(4), lambda: features.Polynomial(4)], ids=["linear", "polynomial"]
)
@pytest.mark.parametrize("hidden", [0, 2])
def test_kernel_form_equals_feature_form(make_map, hidden):
    phi = make_map()
    primal, x, *_ = learn(NegUCB(phi, hidden=hidden), 95)
    dual, *_ = learn(ExactNegUCB(phi.kernel, hidden=hidden), 95)
    for a, b in zip(primal.ucb(x, 2), dual.ucb(x, 2), strict=True):
        assert np.abs(a - b).max() < 1e-8


def test_kernel_form_equals_kernel_ridge_and_a_gaussian_process():
    lam, x, _, y = 0.5, *answers(60)
    model, *_ = learn(ExactNegUCB(lambda a, b: features.gaussian(a, b, 1.0), lambda_theta=lam, alpha_theta=1.0), 60)
    new = answers(30, seed=9)[0]
    mean, bonus = model.ucb(new, 0)
    ridge = KernelRidge(alpha=lam, kernel="rbf", gamma=0.5).fit(x, y)
    process = GaussianProcessRegressor(RBF(1.0, "fixed"), alpha=lam, optimizer=None).fit(x, y)
    assert np.abs(mean - ridge.predict(new)).max() < 1e-8
    assert np.abs(np.sqrt(lam) * bonus - process.predict(new, return_std=True)[1]).max() < 1e-8


def test_exact_kernel_refuses_more_rounds_than_memory():
    model = ExactNegUCB(features.Linear(2).kernel)
    model.y = np.zeros(CAP)
    with pytest.raises(ValueError, match="rff or nystrom"):
        model.update(np.zeros(2), 0, 1.0)


def test_elliptical_potential_is_bounded_by_the_determinant():
    model, total = NegUCB(features.Linear(4), hidden=0, alpha_theta=1.0), 0.0
    for row, _, y in zip(*answers(400), strict=True):
        total += min(1.0, model.ucb(row[None], 0)[1][0] ** 2)
        model.update(row, 0, y)
    assert total <= 2 * (model.log_det - 5 * np.log(model.lambda_theta))


def test_planted_low_rank_acceptance_is_recovered():
    generator, d, G = np.random.default_rng(0), 5, 12
    phi = features.Linear(d, bound=3.0)
    theta, W, h = generator.normal(size=d + 1), generator.normal(size=(d + 1, 2)), generator.normal(size=(G, 2))
    x, g = generator.uniform(-1, 1, (2000, d)), generator.integers(G, size=2000)
    weights = 0.1 * (theta + h @ W.T)
    y = 0.5 + (phi(x) * weights[g]).sum(1)
    model = NegUCB(phi, hidden=2, lambda_theta=1e-6, lambda_h=1e-6)
    model.fit(x, g.tolist(), y, sweeps=400)
    new = generator.uniform(-1, 1, (200, d))
    error = np.concatenate([model.ucb(new, who)[0] - 0.5 - phi(new) @ weights[who] for who in range(G)])
    assert np.sqrt(np.mean(error**2)) < 1e-2


def test_a_new_counterpart_leaves_the_shared_part_alone_and_needs_no_registration():
    model, x, *_ = learn(NegUCB(features.Linear(4), hidden=2))
    before = model.Theta.copy()
    mean, bonus = model.ucb(x, "someone never seen")
    assert np.array_equal(model.Theta, before)
    assert np.isfinite(mean).all()
    assert (bonus > 0).all()
    assert np.abs(mean - model.phi(x) @ before[:, 0]).max() < 1.0  # near what all share


def test_initial_states_do_not_depend_on_the_order_of_arrival():
    first, second = NegUCB(features.Linear(4)), NegUCB(features.Linear(4))
    for g in ("a", "b"):
        first.counterpart(g)
    for g in ("b", "a"):
        second.counterpart(g)
    assert np.array_equal(first.h[first.index["a"]], second.h[second.index["a"]])


def test_greedy_is_alpha_zero_and_a_huge_penalty_predicts_zero():
    greedy, x, *_ = learn(NegUCB(features.Linear(4), exploration="greedy"))
    zero, *_ = learn(NegUCB(features.Linear(4), alpha_theta=0.0, alpha_h=0.0))
    assert np.array_equal(greedy.ucb(x, 0)[0], zero.ucb(x, 0)[0])
    assert zero.ucb(x, 0)[1].max() == 0
    flat, *_ = learn(NegUCB(features.Linear(4), lambda_theta=1e12))
    assert np.abs(flat.ucb(x, 0)[0]).max() < 1e-8


def test_thompson_samples_have_the_posterior_covariance():
    model, x, *_ = learn(NegUCB(features.Linear(4), hidden=0, alpha_theta=0.5, exploration="thompson"))
    samples = []
    for model.draw in range(4000):
        samples.append(model.ucb(x[:3], 0)[1])
    phi = model.phi(x[:3])
    assert np.allclose(np.cov(np.array(samples).T), 0.25 * phi @ model.A_inv @ phi.T, atol=2e-3)
    assert np.array_equal(model.ucb(x, 0)[1], model.ucb(x, 0)[1])  # one sample a round, whatever is asked of it


def test_theory_interval_covers_the_truth_at_all_rounds():
    phi, delta, misses = features.Linear(3), 0.1, 0
    grid = phi(np.random.default_rng(5).uniform(-1, 1, (50, 3)) / np.sqrt(3))
    for seed in range(200):
        generator = np.random.default_rng(seed)
        theta = np.append(generator.uniform(-0.25, 0.25, 3), 0.5 / features.HALF)  # q = .5 +- in [0, 1]
        model = NegUCB(phi, hidden=0, delta=delta, bound=float(np.linalg.norm(theta)), every=10**9)
        missed = False
        for _ in range(60):
            x = generator.uniform(-1, 1, 3) / np.sqrt(3)
            model.update(x, 0, float(generator.random() < phi(x[None])[0] @ theta))
            radius = confidence_radius(model.log_det, 1.0, model.bound, delta)
            width = radius * np.sqrt(np.einsum("ij,jk,ik->i", grid, model.A_inv, grid))
            missed |= bool((np.abs(grid @ (model.Theta[:, 0] - theta)) > width).any())
        misses += missed
    assert misses <= delta * 200


def test_a_pseudo_observation_of_weight_one_half_counts_half():
    model = NegUCB(features.Linear(2), hidden=0)
    x = np.array([0.3, 0.4])
    model.update(x, 0, 1.0, weight=0.5)
    phi = model.phi(x[None])[0]
    assert np.allclose(model.A_inv, np.linalg.inv(np.eye(3) + 0.5 * np.outer(phi, phi)))
    assert np.allclose(model.Theta[:, 0], model.A_inv @ (0.5 * phi))


def test_state_survives_saving_with_its_features(tmp_path):
    from common import codec

    model, x, *_ = learn(NegUCB(features.RandomFourier(4, 8, 1.0, np.random.default_rng(0))))
    codec.save(tmp_path / "state", model.state_dict())
    other = NegUCB(features.RandomFourier(4, 8, 1.0, np.random.default_rng(7)))
    other.load_state_dict(codec.load(tmp_path / "state"))
    for who in (0, "new"):
        for a, b in zip(model.ucb(x, who), other.ucb(x, who), strict=True):
            assert np.array_equal(a, b)
    with pytest.raises(ValueError, match="does not fit"):
        NegUCB(features.Linear(4), hidden=1).load_state_dict(model.state_dict())


def test_warm_start_equals_learning_the_same_answers_then_alternating():
    x, g, y = answers()
    warm = NegUCB(features.Linear(4))
    warm.fit(x, g.tolist(), y, sweeps=0)
    cold, *_ = learn(NegUCB(features.Linear(4), every=10**9))
    cold.rebuild()
    assert np.allclose(warm.Theta, cold.Theta)
    assert np.allclose(warm.S, cold.S)


@pytest.mark.parametrize(
    ("x", "g", "y", "message"),
    [
        ([[np.nan, 0]], [0], [1], "not finite"),
        ([[0, 0]], [0], [2], "y is 2"),
        ([[0, 0], [0, 0]], [0, 0], [1, np.nan], "y is nan"),
        ([[0, 0]], [0, 1], [1], "1, 2 and 1 rows"),
    ],
)
def test_bad_logged_offers_are_refused_and_nothing_is_learnt(x, g, y, message):
    model = NegUCB(features.Linear(2))
    with pytest.raises(ValueError, match=message):
        model.fit(np.array(x, float), g, np.array(y))
    assert not model.rounds
    assert not model.S.any()


def test_a_saved_polynomial_map_brings_its_bound_along():
    x, g, y = answers()
    model = NegUCB(features.Polynomial(4, bound=3.0))
    model.fit(x, g.tolist(), y)
    other = NegUCB(features.Polynomial(4))
    other.load_state_dict(model.state_dict())
    assert np.array_equal(model.ucb(x, 0)[0], other.ucb(x, 0)[0])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [([np.nan, 0.0], 1, "not finite"), ([0.0, 0.0], 2, "y is 2"), ([0.0, 0.0], np.nan, "y is nan")],
)
def test_bad_answers_are_refused_by_name(x, y, message):
    for model in (NegUCB(features.Linear(2)), ExactNegUCB(features.Linear(2).kernel), baselines.CUCB(2)):
        with pytest.raises(ValueError, match=message):
            model.update(np.array(x), 0, y)


@pytest.mark.parametrize(
    "options",
    [
        {"coupling": "tensor"},
        {"rebuild": "never"},
        {"exploration": "hope"},
        {"lambda_theta": 0.0},
        {"discount": 0.0},
        {"alpha_theta": -1.0},
        {"alpha_h": -1.0},
        {"delta": 0.0},
    ],
)
def test_bad_settings_are_refused(options):
    with pytest.raises(ValueError):
        NegUCB(features.Linear(2), **options)


def test_inverse_and_log_determinant():
    B = np.random.default_rng(0).normal(size=(6, 6))
    A = B @ B.T + np.eye(6)
    inv, log_det = inverse(A)
    assert np.allclose(inv, np.linalg.inv(A))
    assert log_det == pytest.approx(np.linalg.slogdet(A)[1])
    with pytest.raises(np.linalg.LinAlgError):
        inverse(-np.eye(2))


# ---- feature maps ----------------------------------------------------------------------------------------------------


def test_random_features_approach_the_gaussian_kernel():
    x = np.random.default_rng(0).normal(size=(100, 3))
    phi = features.RandomFourier(3, 4096, 1.3, np.random.default_rng(1))(x)[:, :-1]
    assert np.abs(2 * phi @ phi.T - features.gaussian(x, x, 1.3)).max() < 0.1


@pytest.mark.parametrize("bound", [1.0, 3.0])
def test_linear_and_polynomial_maps_are_those_of_their_kernels(bound):
    generator = np.random.default_rng(0)
    x, z = generator.normal(size=(7, 3)), generator.normal(size=(5, 3))
    inner = (x @ z.T / bound**2 + 1) / 2
    for phi, kernel in ((features.Linear(3, bound), inner), (features.Polynomial(3, bound), inner**2)):
        assert phi(x).shape == (7, phi.dim)
        assert np.allclose(phi(x) @ phi(z).T, kernel, atol=1e-12)
        assert np.allclose(phi.kernel(x, z), kernel, atol=1e-12)
        at_the_bound = phi(bound * x / np.linalg.norm(x, axis=1)[:, None])
        assert np.allclose(np.linalg.norm(at_the_bound, axis=1), 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda generator: features.Linear(2, 0.0), "bound is 0"),
        (lambda generator: features.Polynomial(2, -1.0), "bound is -1"),
        (lambda generator: features.RandomFourier(2, 0, 1.0, generator), "m is 0"),
        (lambda generator: features.RandomFourier(2, 4, 0.0, generator), "length is 0"),
        (lambda generator: features.make("nystrom", 2, generator=generator, length=1.0), "candidates"),
        (lambda generator: features.make("rff", 2, generator=generator), "candidates"),
        (lambda generator: features.make("nystrom", 2, generator=generator, m=0, candidates=np.eye(2)), "m is 0"),
        (
            lambda generator: features.make("nystrom", 2, generator=generator, length=-1.0, candidates=np.eye(2)),
            "length is -1",
        ),
    ],
)
def test_bad_maps_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make(np.random.default_rng(0))


def test_nystrom_is_exact_at_its_landmarks_and_close_between():
    x = np.random.default_rng(0).normal(size=(80, 2))
    phi = features.Nystrom(x, 60, 1.0)
    gram = 2 * phi(x)[:, :-1] @ phi(x)[:, :-1].T
    assert np.abs(gram - features.gaussian(x, x, 1.0)).max() < 1e-3
    assert features.Nystrom(np.repeat(x[:3], 5, 0), 10, 1.0).dim == 4  # three distinct points span three features


@pytest.mark.parametrize("kind", ["linear", "rff", "nystrom"])
def test_maps_have_a_constant_and_norm_about_one(kind):
    x = np.random.default_rng(0).normal(size=(50, 4))
    phi = features.make(
        kind, 4, generator=np.random.default_rng(0), m=64, bound=float(np.linalg.norm(x, axis=1).max()), candidates=x
    )(x)
    assert np.allclose(phi[:, -1], np.sqrt(0.5))
    assert np.linalg.norm(phi, axis=1).max() < (1.15 if kind == "rff" else 1 + 1e-9)


def test_median_length_of_a_known_set_and_bad_names():
    assert features.median_length(np.array([[0.0], [1.0], [3.0]])) == 2.0
    assert features.median_length(np.zeros((4, 2))) == 1.0
    with pytest.raises(ValueError, match="linear, rff or nystrom"):
        features.make("wavelet", 2, generator=np.random.default_rng(0))


# ---- other models ----------------------------------------------------------------------------------------------------


def test_item_bonus_is_the_sum_over_the_items_of_the_bid():
    model, _x, *_ = learn(baselines.C2UCB(features.Linear(4), items=3, alpha=0.7))
    row = np.array([[0.5, 0.0, 0.2, -0.1]])
    singles = [np.array([[0.5, 0, 0, -0.1]]), np.array([[0, 0, 0.2, -0.1]])]
    plain, *_ = learn(baselines.lin_ucb(features.Linear(4), alpha=0.7))
    assert model.ucb(row, 0)[1][0] == pytest.approx(sum(plain.ucb(single, 0)[1][0] for single in singles))
    assert model.ucb(row, 0)[0][0] == pytest.approx(plain.ucb(row, 0)[0][0])  # the mean is the whole bid's
    many = np.array([[0.5, 0.0, 0.2, -0.1], [0.5, 0.3, 0.0, -0.1], [0.0, 0.0, 0.0, -0.1], [0.2, 0.3, 0.2, -0.1]])
    one_by_one = [model.ucb(bid[None], 0)[1][0] for bid in many]
    assert model.ucb(many, 0)[1] == pytest.approx(one_by_one)
    many[0, 3] = 0.4  # contexts that differ
    assert model.ucb(many, 0)[1][1:] == pytest.approx(one_by_one[1:])


def test_per_counterpart_shares_nothing():
    model = baselines.PerCounterpart(lambda: baselines.lin_ucb(features.Linear(2)))
    model.update(np.array([0.5, 0.5]), "a", 1.0)
    assert model.ucb(np.array([[0.5, 0.5]]), "a")[0][0] > 0.1
    assert model.ucb(np.array([[0.5, 0.5]]), "b")[0][0] == 0


def test_cucb_means_are_shares_of_yes():
    model = baselines.CUCB(2, alpha=0.0)
    for y in (1, 1, 0):
        model.update(np.array([1.0, 0.0]), 0, y)
    model.update(np.zeros(2), 0, 1)  # the empty bid is an item of its own
    assert model.ucb(np.array([[1.0, 0.0], [0.0, 0.0]]), 0)[0] == pytest.approx([2 / 3, 1.0])


def test_neural_bonus_equals_the_gradient_norm_of_autograd():
    import torch

    from papers.neg_ucb.neural import NeuralUCB

    model = NeuralUCB(3, 2, width=8, alpha=1.0)
    generator = np.random.default_rng(0)
    for t in range(25):
        model.update(generator.normal(size=3), t % 2, float(t % 3 == 0))
    x = generator.normal(size=(4, 3))
    mean, bonus = model.ucb(x, 1)
    for row, m, b in zip(model._inputs(x, 1), mean, bonus, strict=True):
        model.net.zero_grad()
        out = model.net(torch.from_numpy(row[None]))[0]
        out.backward()
        norm = sum((p.grad**2 / u).sum() for p, u in zip(model.net.parameters(), model.U, strict=True))
        assert m == pytest.approx(out.item(), abs=1e-6)
        assert b == pytest.approx(np.sqrt(norm.item() / 8), rel=1e-4)


def test_the_first_choice_among_ties_is_uniform():
    class Four:
        n_bids, counterpart = 4, 0

        def bids(self):
            return np.arange(4)[:, None]

        def features(self, bids):
            return bids.astype(float)

        def utility(self, bids):
            return np.ones(len(bids))

    counts = np.zeros(4, int)
    for seed in range(2000):
        model = NegUCB(features.Linear(1, 3.0), hidden=0, alpha_theta=50.0)  # U clipped to 1 everywhere
        counts[Optimistic(model, np.random.default_rng(seed)).propose(Four())[0]] += 1
    assert stats.chisquare(counts).pvalue > 1e-4
