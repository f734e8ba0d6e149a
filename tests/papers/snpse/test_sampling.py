"""Diffusions, solvers and densities against closed forms; no training."""

import math

import pytest
import torch
from torch.distributions import Normal

from papers.snpse import sampling, sde

KINDS = [sde.VE(0.005, 100.0), sde.VP(0.1, 11.0), sde.SubVP(0.1, 11.0)]
MEAN, VARIANCE = 0.3, 0.05


def exact_score(kind):
    """Score of the noised posterior N(0.3, 0.05) of gaussian_linear (oracle 2)."""

    def score(theta, t):
        m, s = (part[:, None] for part in kind.mean_std(t))
        return -(theta - m * MEAN) / (VARIANCE * m**2 + s**2)

    return score


def start_of(kind):
    return kind.mean_std(torch.tensor([kind.t_min], dtype=torch.float64))


def test_ends_of_the_diffusions():
    m, s = sde.VP(0.1, 11.0).mean_std(torch.tensor([1.0]))
    assert float(m) == pytest.approx(math.exp(-0.25 * 10.9 - 0.05), rel=1e-6)
    assert float(m) == pytest.approx(0.0623, abs=1e-4)
    assert float(s) == pytest.approx(math.sqrt(1 - float(m) ** 2))
    _, s = sde.VE(0.01, 7.0).mean_std(torch.tensor([0.0, 1.0]))
    assert s.tolist() == pytest.approx([0.01, 7.0])
    assert sde.VE(0.01, 7.0).prior_std == 7.0
    assert sde.VP().prior_std == 1.0


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: type(k).__name__)
def test_mean_and_std_solve_the_sde_that_drift_and_g_define(kind):
    """dm/dt = f / theta, d(s^2)/dt = 2 (f / theta) s^2 + g^2, by central differences."""
    t, h = torch.linspace(0.05, 0.95, 7, dtype=torch.float64), 1e-5
    m, s = kind.mean_std(t)
    (ma, sa), (mb, sb) = kind.mean_std(t - h), kind.mean_std(t + h)
    rate = kind.drift(torch.ones(7, 1, dtype=torch.float64), t)[:, 0]
    assert torch.allclose((mb - ma) / (2 * h), rate * m, rtol=1e-5, atol=1e-8)
    assert torch.allclose((sb**2 - sa**2) / (2 * h), 2 * rate * s**2 + kind.g(t) ** 2, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: type(k).__name__)
def test_time_of_inverts_the_noise_level(kind):
    t = torch.linspace(0.01, 1, 9, dtype=torch.float64)
    m, s = kind.mean_std(t)
    assert torch.allclose(kind.time_of(s / m), t, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("method", sampling.METHODS)
def test_the_exact_score_gives_the_exact_posterior(kind, method):
    draws = sampling.ode(exact_score(kind), kind, (4000, 3), method=method, steps=60)
    m, s = (float(v) for v in start_of(kind))
    std = math.sqrt(VARIANCE * m**2 + s**2)
    # of N(0, prior_std) in place of the noised posterior there remains the share std / s(1) of its mean
    assert float(draws.mean()) == pytest.approx(MEAN, abs=0.012)
    assert float(draws.std()) == pytest.approx(std, rel=0.02)


@pytest.mark.parametrize("corrector", [0, 2])
def test_the_reverse_sde_gives_the_exact_posterior(corrector):
    kind = KINDS[0]
    draws = sampling.sde_sample(exact_score(kind), kind, (4000, 3), corrector=corrector)
    assert float(draws.mean()) == pytest.approx(MEAN, abs=0.01)
    assert float(draws.std()) == pytest.approx(VARIANCE**0.5, rel=0.035)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: type(k).__name__)
def test_log_density_is_exact_to_1e_4(kind):
    """The flow carries theta affinely; where it ends, the reference's density is what counts, not the noised posterior's."""
    theta = MEAN + VARIANCE**0.5 * torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    m0, s0 = start_of(kind)
    m1, s1 = kind.mean_std(torch.ones(1, dtype=torch.float64))
    ratio = torch.sqrt((VARIANCE * m1**2 + s1**2) / (VARIANCE * m0**2 + s0**2))
    end = m1 * MEAN + ratio * (theta - m0 * MEAN)
    expected = Normal(0.0, kind.prior_std).log_prob(end).sum(1) + 3 * ratio.log()
    found = sampling.ode_log_prob(exact_score(kind), kind, theta, steps=100)
    assert float((found - expected).abs().max()) < 1e-4


def test_log_density_of_a_wide_diffusion_is_the_posteriors_own():
    kind = sde.VE(1e-4, 1e4)
    theta = MEAN + VARIANCE**0.5 * torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = sampling.ode_log_prob(exact_score(kind), kind, theta, steps=200)
    exact = Normal(MEAN, VARIANCE**0.5).log_prob(theta).sum(1)
    assert float((found - exact).abs().max()) < 2e-4


def test_hutchinson_is_unbiased_and_exact_for_isotropic_fields():
    kind = KINDS[0]
    theta = torch.full((5, 4), 0.2, dtype=torch.float64)
    exact = sampling.ode_log_prob(exact_score(kind), kind, theta, steps=40)
    probe = sampling.ode_log_prob(exact_score(kind), kind, theta, steps=40, trace="hutchinson")
    assert torch.allclose(exact, probe, atol=1e-8)  # the Jacobian is a multiple of I
    A = torch.tensor([[1.0, 2.0], [0.0, 3.0]])
    _, trace = sampling.divergence(lambda y: y @ A.T, torch.ones(3, 2))
    assert trace.tolist() == [4.0, 4.0, 4.0]
    probes = torch.randint(0, 2, (20_000, 2), generator=torch.Generator().manual_seed(0)).float() * 2 - 1
    _, estimate = sampling.divergence(lambda y: y @ A.T, torch.ones(20_000, 2), probes)
    assert float(estimate.mean()) == pytest.approx(4.0, abs=0.06)


def test_adaptive_steps_refuse_a_field_that_diverges():
    with pytest.raises(ValueError, match="not finite"):
        sampling.ode(lambda theta, t: theta * torch.nan, KINDS[0], (3, 2), method="rk45")


@pytest.mark.parametrize("call", [{"method": "euler"}, {"steps": 0}])
def test_arguments_out_of_range_are_refused(call):
    with pytest.raises(ValueError, match=r"method|steps"):
        sampling.ode(exact_score(KINDS[0]), KINDS[0], (3, 2), **call)


def test_sigma_must_rise():
    with pytest.raises(ValueError, match="sigma_min"):
        sde.VE(1.0, 0.5)
