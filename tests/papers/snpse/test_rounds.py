"""Truncation, rounds, resuming; what a user's prior, simulator, observation and file may be."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, Uniform

from common.run import Run
from papers.snpse import HPR, SNPSE, Posterior, compose, corrections
from papers.snpse.priors import Prior, from_spec
from papers.snpse.simulators import simulate
from papers.snpse.truncation import AcceptanceError

TINY = {
    "steps": 30,
    "width": 16,
    "batch_size": 32,
    "evaluate_every": 10,
    "n_hpr": 200,
    "sample_steps": 8,
    "density_steps": 4,
}
BOX = Independent(Uniform(-torch.ones(2), torch.ones(2)), 1)


def noisy(theta, generator):
    return theta + 0.3 * torch.randn(theta.shape, generator=generator)


class Known:
    """A posterior in closed form: N(centre, std^2), leaking out of the box."""

    def __init__(self, prior=BOX, centre=0.0, std=0.2):
        self.prior, self.law = Prior(prior), Normal(torch.full((2,), float(centre)), std)

    def sample(self, shape, x=None, inside=True, seed=0):
        draws = self.law.mean + self.law.stddev * torch.randn(
            20 * shape[0], 2, generator=torch.Generator().manual_seed(seed)
        )
        return draws[self.prior.inside(draws)][: shape[0]] if inside else draws[: shape[0]]

    def log_prob(self, theta, x=None, inside=False):
        return self.law.log_prob(theta).sum(1)


# ---- the region ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.0, 5e-4, 0.01, 0.1])
def test_exactly_the_asked_share_of_draws_lies_below_the_threshold(eps):
    known = Known()
    draws = known.sample((5000,), seed=3)
    region = HPR(known, eps=eps, draws=draws)
    assert int((known.log_prob(draws) < region.threshold).sum()) == math.floor(eps * 5000)
    assert int((~region.accepts(draws)).sum()) == math.floor(eps * 5000)


def test_accepted_draws_satisfy_box_threshold_and_support():
    known = Known(centre=0.9)
    region = HPR(known, eps=0.01, n=5000)
    theta, acceptance = region.sample(2000, torch.Generator().manual_seed(0))
    assert theta.shape == (2000, 2)
    assert bool((known.log_prob(theta) >= region.threshold).all())
    assert bool(((theta >= region.box[0]) & (theta <= region.box[1])).all())
    assert bool(known.prior.inside(theta).all())
    pool = 2 * torch.rand(200_000, 2, generator=torch.Generator().manual_seed(1)) - 1
    assert acceptance == pytest.approx(float(region.accepts(pool).float().mean()), rel=0.05)


def test_the_threshold_comes_from_draws_inside_the_support():
    """Trap: a posterior that leaks has its lowest densities outside; with them nothing would be cut."""
    known = Known()
    inside = known.sample((4000,), seed=0)
    leaked = torch.full((100, 2), 2.5)
    region = HPR(known, eps=0.01, draws=torch.cat([inside, leaked]))
    naive = float(known.log_prob(torch.cat([inside, leaked])).sort().values[41])
    assert region.threshold == float(known.log_prob(inside).sort().values[40])
    edge = torch.tensor([[0.9, 0.9]])  # in the support, where the posterior has next to nothing
    assert float(known.log_prob(edge)) > naive
    assert float(known.log_prob(edge)) < region.threshold
    assert float(region.box[1].max()) < 2


def test_a_normal_prior_is_drawn_from_itself():
    """Trap: drawing uniformly in the box is right for uniform priors alone."""
    prior = MultivariateNormal(torch.tensor([1.0, 0.0]), torch.eye(2))
    region = HPR(Known(prior, std=0.5), eps=0.01, n=4000)
    theta, _ = region.sample(4000, torch.Generator().manual_seed(0))
    assert float(theta[:, 0].mean()) > 0.2  # uniform in the region: 0


def test_a_region_without_draws_ends_in_bounded_time_with_the_share():
    region = HPR(Known(), eps=0.0, n=100)
    region.threshold = 1e9
    with pytest.raises(AcceptanceError, match=r"0 of .* draws of the prior"):
        region.sample(10, torch.Generator().manual_seed(0))


def test_energies_order_candidates_as_the_posterior_says():
    posterior = SNPSE(BOX, noisy, head="energy", **TINY).infer(torch.zeros(2), 200)
    assert posterior.truncation_score is not None
    draws = posterior.sample((300,))
    region = HPR(posterior, eps=0.01, draws=draws)
    assert int((posterior.truncation_score(draws) < region.threshold).sum()) == 3
    assert SNPSE(BOX, noisy, **TINY).infer(torch.zeros(2), 100).truncation_score is None


# ---- rounds --------------------------------------------------------------------------------------------------------------


def test_rounds_report_what_they_did_and_return_exactly_n_draws():
    posterior = SNPSE(BOX, noisy, **TINY).infer(torch.zeros(2), 301, rounds=3)
    rounds = posterior.diagnostics["rounds"]
    assert [r["simulated"] for r in rounds] == [101, 100, 100]
    assert rounds[0]["acceptance"] == 1.0
    assert all(0 < r["acceptance"] <= 1 for r in rounds)
    assert posterior.diagnostics["pairs"] == 301
    for n in (0, 1, 77):
        assert posterior.sample((n,)).shape == (n, 2)
    assert posterior.sample_batched((5,), torch.zeros(3, 2)).shape == (5, 3, 2)
    assert posterior.map().shape == (2,)
    assert torch.equal(posterior.sample((5,), seed=3), posterior.sample((5,), seed=3))


def test_a_killed_run_goes_on_to_the_same_posterior(tmp_path):
    calls = []

    def dying(theta, generator):
        calls.append(len(theta))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return noisy(theta, generator)

    whole = SNPSE(BOX, noisy, **TINY).infer(torch.zeros(2), 200, rounds=2, run=Run(tmp_path / "whole", paper="snpse"))
    with pytest.raises(KeyboardInterrupt):
        SNPSE(BOX, dying, **TINY).infer(torch.zeros(2), 200, rounds=2, run=Run(tmp_path / "killed", paper="snpse"))
    resumed = SNPSE(BOX, dying, **TINY).infer(
        torch.zeros(2), 200, rounds=2, run=Run(tmp_path / "killed", paper="snpse")
    )
    plain = SNPSE(BOX, noisy, **TINY).infer(torch.zeros(2), 200, rounds=2)
    assert calls == [100, 100, 100]  # the first round is not simulated again
    for other in (resumed, plain):
        assert torch.equal(whole.sample((50,)), other.sample((50,)))


def test_rounds_stop_when_the_posterior_stops_moving():
    posterior = SNPSE(BOX, noisy, stop_kl=1e6, **TINY).infer(torch.zeros(2), 400, rounds=4)
    assert len(posterior.diagnostics["rounds"]) == 2
    assert any("stopped after round 2" in text for text in posterior.diagnostics["warnings"])


def test_an_observation_outside_the_simulated_range_is_a_warning():
    posterior = SNPSE(BOX, noisy, **TINY).infer(torch.tensor([9.0, 0.0]), 200)
    assert posterior.out_of_range() == [0]
    assert any("outside what was simulated" in text for text in posterior.diagnostics["warnings"])


# ---- what is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("x_obs", "budget", "rounds", "message"), [
    (torch.tensor([0.0, torch.nan]), 100, 1, "NaN"), (torch.zeros(3), 100, 1, "2 values and x_obs has 3"), (torch.zeros(2), 2, 3, "budget is 2"),
    (torch.zeros(2, 2), 100, 1, "shape"), (np.array(["a", "b"]), 100, 1, "x_obs"),
])  # fmt: skip
def test_wrong_observations_and_budgets_are_one_sentence(x_obs, budget, rounds, message):
    with pytest.raises(ValueError, match=message):
        SNPSE(BOX, noisy, **TINY).infer(x_obs, budget, rounds)


def test_nan_in_the_observation_is_refused_before_anything_is_simulated():
    def never(theta, generator):
        raise AssertionError

    with pytest.raises(ValueError, match="NaN"):
        SNPSE(BOX, never).infer(torch.tensor([torch.nan, 0.0]), 100)


def test_failed_and_constant_outputs():
    def half(theta, generator):
        x = torch.cat([noisy(theta, generator), torch.full((len(theta), 1), 4.0)], dim=1)
        return torch.where(theta[:, :1] > 0, x, torch.nan)

    posterior = SNPSE(BOX, half, **TINY).infer(torch.tensor([0.1, 0.1, 4.0]), 200)
    assert posterior.diagnostics["pairs"] < 150
    assert any("[2] of the simulator are constant" in text for text in posterior.diagnostics["warnings"])
    with pytest.raises(ValueError, match="all 50 simulations of round 1 have NaN"):
        SNPSE(BOX, lambda theta: theta * torch.nan, **TINY).infer(torch.zeros(2), 50)
    with pytest.raises(ValueError, match="constant"):
        SNPSE(BOX, lambda theta: torch.ones(len(theta), 2), **TINY).infer(torch.zeros(2), 50)
    imputed = SNPSE(BOX, half, nan="impute", **TINY).infer(torch.tensor([0.1, 0.1, 4.0]), 200)
    assert imputed.diagnostics["pairs"] == 200


def test_simulators_may_be_numpy_or_torch_batched_or_not():
    theta, generator = torch.rand(7, 2), torch.Generator().manual_seed(0)
    expected = theta.sum(1, keepdim=True)
    for simulator, workers in (
        (lambda v: v.sum(-1, keepdim=True), 0), (lambda v: np.asarray(v).sum(-1, keepdims=True), 0),
        (lambda v: float(v[0] + v[1]) if v.ndim == 1 else (_ for _ in ()).throw(TypeError()), 0), (lambda v: [float(v[0]) + float(v[1])], 3),
    ):  # fmt: skip
        assert torch.allclose(simulate(simulator, theta, generator, workers), expected, atol=1e-6)
    with pytest.raises(ValueError, match=r"shape \(3, 3\) for one theta"):
        simulate(lambda v: np.zeros((3, 3)), theta, generator)
    with pytest.raises(ValueError, match="type"):
        simulate(lambda v: np.array(["a"] * 7), theta, generator)


def test_priors_of_any_torch_form_and_none_other():
    for prior in (Uniform(-torch.ones(2), torch.ones(2)), BOX, MultivariateNormal(torch.zeros(2), torch.eye(2))):
        assert Prior(prior).d == 2

    class Leaves:
        def sample(self, shape):
            return torch.rand(*shape, 2)

        def log_prob(self, theta):
            return torch.where(theta[:, 0] < 0.5, 0.0, -torch.inf)

    with pytest.raises(ValueError, match="outside its own support"):
        Prior(Leaves())
    with pytest.raises(ValueError, match="no log_prob"):
        Prior(type("Half", (), {"sample": lambda self, shape: torch.zeros(*shape, 2)})())
    with pytest.raises(ValueError, match="batch shape"):
        Prior(Uniform(torch.zeros(2, 2), torch.ones(2, 2)))
    same, word = {"kind": "uniform", "low": [0], "high": [0]}, {"kind": "normal", "mean": ["a"], "std": [1]}
    for spec, message in (({"kind": "beta"}, "kind"), (same, "below"), (word, "mean"), ([], "kind")):
        with pytest.raises(ValueError, match=message):
            from_spec(spec)


def test_a_posterior_comes_back_from_its_file(tmp_path):
    posterior = SNPSE(BOX, noisy, **TINY).infer(torch.zeros(2), 100)
    posterior.save(tmp_path / "p.safetensors")
    again = Posterior.load(tmp_path / "p.safetensors", BOX)
    assert torch.equal(posterior.sample((20,)), again.sample((20,)))
    assert again.diagnostics["rounds"] == posterior.diagnostics["rounds"]
    with pytest.raises(ValueError, match="2 parameters and the prior 3"):
        Posterior.load(tmp_path / "p.safetensors", Independent(Uniform(torch.zeros(3), torch.ones(3)), 1))


# ---- corrections and composition ------------------------------------------------------------------------------------------


def test_importance_weights_undo_a_known_proposal():
    """Oracle 16: weights are prior / ((prior + proposals) / r); with equal shares their mean is one."""
    prior, law = Prior(BOX), Normal(torch.zeros(2), 0.3)
    generator = torch.Generator().manual_seed(0)
    mixed = torch.cat([prior.sample(4000, generator), 0.3 * torch.randn(4000, 2, generator=generator)])
    mixed = mixed[prior.inside(mixed)]
    weight, ess = corrections._importance(prior, mixed, [lambda theta: law.log_prob(theta).sum(1)], normalised=False)
    assert float(weight.mean()) == pytest.approx(1.0, abs=0.03)
    assert float((weight * mixed[:, 0] ** 2).mean()) == pytest.approx(1 / 3, abs=0.02)  # the prior's own moment
    assert 0 < ess < 1


@pytest.mark.parametrize("method", corrections.METHODS)
def test_every_correction_runs(method):
    found = corrections.sequential(method, BOX, noisy, torch.zeros(2), 120, 2, **TINY)
    assert found.sample((30,)).shape == (30, 2)


@pytest.mark.slow
def test_independent_observations_and_other_priors_by_adding_scores():
    prior = Independent(Normal(torch.zeros(1), torch.ones(1)), 1)
    simulator = lambda theta, generator: theta + torch.randn(theta.shape, generator=generator)  # noqa: E731
    posterior = SNPSE(prior, simulator, steps=1500).infer(torch.zeros(1), 5000)
    xs = torch.tensor([[0.5], [1.0], [0.3], [0.8]])
    draws = compose.sample_iid(posterior, 2000, xs)
    assert float(draws.mean()) == pytest.approx(float(xs.sum()) / 5, abs=0.1)
    assert float(draws.std()) == pytest.approx(5**-0.5, rel=0.15)
    narrow = Independent(Normal(torch.ones(1), 0.5 * torch.ones(1)), 1)
    draws = compose.sample_with_prior(posterior, 2000, narrow, torch.tensor([0.0]))
    assert float(draws.mean()) == pytest.approx(4 / 5, abs=0.1)  # precision 4 at 1, 1 at 0
    assert float(draws.std()) == pytest.approx(5**-0.5, rel=0.15)
