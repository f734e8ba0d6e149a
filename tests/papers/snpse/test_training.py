"""The loss, its weights and times, networks, standardisation; what stops training."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, LogNormal, Normal, Uniform

from common.rng import Rng
from papers.snpse import SNPSE, Posterior, corrections
from papers.snpse.networks import HEADS, ScoreModel, sinusoidal
from papers.snpse.sde import VE, VP
from papers.snpse.training import (
    denoising_loss,
    draw_times,
    fit,
    loss_weight,
    one_cycle,
    standardiser,
    training_options,
)

TINY = {
    "steps": 30,
    "width": 16,
    "batch_size": 32,
    "evaluate_every": 10,
    "n_hpr": 200,
    "sample_steps": 10,
    "density_steps": 5,
}


def pairs(n=200, d=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(n, d, generator=generator)
    return theta, theta + torch.randn(n, d, generator=generator)


class Exact(nn.Module):
    """The exact score of N(0, v) at any x, as a model."""

    def __init__(self, sde, v):
        super().__init__()
        self.sde, self.v = sde, v

    def residual(self, theta, x, t):
        m, s = (part[:, None] for part in self.sde.mean_std(t))
        return -s * theta / (m**2 * self.v + s**2)


@pytest.mark.parametrize("kind", [VE(0.01, 5.0), VP()], ids=["VE", "VP"])
def test_loss_of_the_exact_score_is_the_irreducible_one(kind):
    """Oracle 10: with weight s^2 each coordinate costs m^2 v / (m^2 v + s^2); v = 0.5 after standardising gaussian_linear."""
    v, n, generator = 0.5, 200_000, torch.Generator().manual_seed(0)
    for time in (0.1, 0.4, 0.8):
        t = torch.full((n,), time)
        theta, eps = v**0.5 * torch.randn(n, 1, generator=generator), torch.randn(n, 1, generator=generator)
        m, s = (float(part[0]) for part in kind.mean_std(t))
        found = float(denoising_loss(Exact(kind, v), theta, theta, t, eps).mean())
        assert found == pytest.approx(m**2 * v / (m**2 * v + s**2), rel=0.02, abs=1e-5)


def test_weights_are_what_they_are_called():
    model, t = ScoreModel(2, 2, VE(0.01, 5.0)), torch.tensor([0.2, 0.7])
    s = model.sde.mean_std(t)[1]
    assert torch.allclose(loss_weight("std2", model, t) * s**2, s**2)
    assert torch.allclose(loss_weight("one", model, t) * s**2, torch.ones(2))
    assert torch.allclose(loss_weight("g2", model, t) * s**2, model.sde.g(t) ** 2)


def test_stratified_times_fill_every_part():
    t = draw_times(100, True, torch.Generator().manual_seed(0), 0.0)
    assert sorted((t * 100).long().tolist()) == list(range(100))
    plain = draw_times(100, False, torch.Generator().manual_seed(0), 1e-3)
    assert len(set((plain * 100).long().tolist())) < 100
    assert float(plain.min()) >= 1e-3


def test_sinusoidal_embedding_has_no_factor_before_t():
    found = sinusoidal(torch.tensor([1.0]))
    assert found.shape == (1, 64)
    assert float(found[0, 0]) == pytest.approx(math.sin(1.0))
    assert float(found[0, 31]) == pytest.approx(math.sin(1e-4), rel=1e-3)
    assert float(found[0, 32]) == pytest.approx(math.cos(1.0))


@pytest.mark.parametrize(("name", "differs"), [("t", False), ("std", True), ("log_std", True)])
def test_the_embedding_gets_what_its_name_says(name, differs):
    """Two diffusions at the same t and another std: only a network that sees the std tells them apart."""
    a, b = (ScoreModel(1, 1, VE(0.01, high), head="score", time_input=name) for high in (5.0, 9.0))
    b.load_state_dict(a.state_dict())
    theta, x, t = torch.ones(1, 1), torch.ones(1, 1), torch.tensor([0.7])
    assert (float((a(theta, x, t) - b(theta, x, t)).detach().abs()) > 1e-6) is differs


def test_energy_scores_are_curl_free_and_others_are_not():
    theta, x, t = torch.randn(1, 3), torch.randn(1, 2), torch.tensor([0.5])
    for head in HEADS:
        torch.manual_seed(0)
        model = ScoreModel(3, 2, VE(0.01, 5.0), head=head, width=32)
        J = torch.autograd.functional.jacobian(lambda v: model(v, x, t)[0], theta)[:, 0]  # noqa: B023
        asymmetry = float((J - J.T).abs().max() / J.abs().max())
        assert (asymmetry < 1e-4) is (head == "energy")


def test_standardisation_keeps_constant_columns_finite():
    mean, std = standardiser(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    assert mean.tolist() == [2.0, 5.0]
    assert float(std[1]) == 1.0


def test_learning_rate_rises_and_ends_at_zero():
    assert one_cycle(0.0) == pytest.approx(0.04)
    assert one_cycle(0.1) == pytest.approx(1.0)
    assert one_cycle(1.0) == pytest.approx(0.0, abs=1e-9)


def test_density_has_the_jacobian_of_standardisation():
    """Trap: without - log std the density of parameters measured in other units is off by their logarithm."""
    theta, x = pairs(400)
    options = training_options({**TINY, "steps": 60, "validation": 0.0})
    scale = torch.tensor([10.0, 0.1])
    found = []
    for factor in (torch.ones(2), scale):
        prior = Independent(Normal(torch.zeros(2), factor), 1)
        state = {**fit(theta * factor, x, options, Rng(0, "fit")), "columns": np.arange(2), "p": 2}
        posterior = Posterior(state, prior, options, x[0])
        found.append(posterior.log_prob(theta[:5] * factor, inside=False))
    assert torch.allclose(found[0] - scale.log().sum(), found[1], atol=1e-3)


def test_density_integrates_to_one_on_a_grid():
    theta, x = pairs(500)
    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    posterior = (
        SNPSE(prior, **{**TINY, "steps": 200, "density_steps": 15})
        .append_simulations(theta, x)
        .train()
        .build_posterior()
    )
    axis = torch.linspace(-6, 6, 61)
    grid = torch.cartesian_prod(axis, axis)
    total = posterior.log_prob(grid, x=x[0], inside=False).exp().sum() * (axis[1] - axis[0]) ** 2
    assert float(total) == pytest.approx(1.0, abs=0.03)


def test_patience_is_in_steps_or_in_epochs():
    theta, x = pairs(64)
    ends = []
    for patience, unit in ((20, "steps"), (20, "epochs")):
        options = training_options(
            {
                **TINY,
                "steps": 400,
                "lr": 0.5,
                "schedule": "constant",
                "patience": patience,
                "patience_unit": unit,
                "ema": 0.0,
            }
        )
        ends.append(fit(theta, x, options, Rng(0, "fit"))["curve"][-1][0])
    assert ends[0] < ends[1]


def test_validation_noise_is_the_same_at_each_look():
    """With a learning rate of nothing every look sees the same loss."""
    theta, x = pairs(100)
    curve = fit(theta, x, training_options({**TINY, "lr": 1e-12}), Rng(0, "fit"))["curve"]
    assert len({round(row[2], 5) for row in curve}) == 1
    assert len({row[1] for row in curve}) == len(curve)  # the batches' losses move


def test_log_normal_priors_are_learned_in_their_logarithm():
    prior = Independent(LogNormal(torch.zeros(2), 2 * torch.ones(2)), 1)
    inference = SNPSE(
        prior, lambda theta, generator: theta.log() + torch.randn(theta.shape, generator=generator), **TINY
    )
    posterior = inference.infer(torch.zeros(2), 200)
    assert posterior.transform is not None
    draws = posterior.sample((100,), inside=False)
    assert bool((draws > 0).all())  # nothing can leak
    assert bool(torch.isfinite(posterior.log_prob(draws)).all())
    raw = (
        SNPSE(prior, transform="none", **TINY)
        .append_simulations(inference.theta, inference.x)
        .train()
        .build_posterior()
    )
    assert raw.transform is None


def test_box_priors_leak_and_say_so():
    prior = Independent(Uniform(-torch.ones(2), torch.ones(2)), 1)
    posterior = SNPSE(
        prior, lambda theta, generator: theta + torch.randn(theta.shape, generator=generator), **TINY
    ).infer(torch.ones(2), 200)
    raw = posterior.sample((500,), inside=False)
    assert not bool(posterior.prior.inside(raw).all())
    assert posterior.sample((500,)).shape == (500, 2)
    assert bool(posterior.prior.inside(posterior.sample((500,))).all())
    outside = torch.full((1, 2), 1.5)
    assert float(posterior.log_prob(outside)) == -math.inf
    assert math.isfinite(float(posterior.log_prob(outside, inside=False)))
    inner = torch.zeros(1, 2)
    gap = float(posterior.log_prob(inner) - posterior.log_prob(inner, inside=False))
    assert gap == pytest.approx(-math.log(1 - posterior.leakage()), abs=1e-5)
    assert gap > 0


def test_noised_priors_against_quadrature():
    low, high, m, s = torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 2.0]), 0.8, 0.3
    theta = torch.tensor([[0.9, 0.1], [-3.0, 5.0]], dtype=torch.float64)
    grid = torch.linspace(0, 1, 20_001, dtype=torch.float64)

    def log_density(value, j):
        u = m * (low[j] + (high[j] - low[j]) * grid)
        return torch.logsumexp(-0.5 * ((value - u) / s) ** 2, 0)

    found = corrections.noised_uniform_score(theta, low, high, torch.full((2, 1), m), torch.full((2, 1), s))
    for i in range(2):
        for j in range(2):
            h = 1e-4
            numeric = (log_density(theta[i, j] + h, j) - log_density(theta[i, j] - h, j)) / (2 * h)
            assert float(found[i, j]) == pytest.approx(float(numeric), rel=1e-3)
    far = corrections.noised_uniform_score(
        torch.tensor([[50.0, -50.0]]), low, high, torch.ones(1, 1), torch.full((1, 1), 0.01)
    )
    assert bool(torch.isfinite(far).all())
    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    point, mean = torch.tensor([[0.3, -0.2]]), torch.tensor([1.0, 0.0])
    score = corrections.noised_normal_score(point, mean, covariance, torch.full((1, 1), m), torch.full((1, 1), s))
    expected = -torch.linalg.solve(m**2 * covariance + s**2 * torch.eye(2), (point - m * mean)[0])
    assert torch.allclose(score[0], expected, atol=1e-5)


@pytest.mark.parametrize(("given", "message"), [
    ({"head": "flow"}, "head is 'flow'"), ({"steps": 0}, "steps is 0"), ({"nan": "keep"}, "nan"), ({"lamda": 1}, "unknown training option lamda"),
])  # fmt: skip
def test_training_options_are_checked(given, message):
    with pytest.raises(ValueError, match=message):
        training_options(given)
