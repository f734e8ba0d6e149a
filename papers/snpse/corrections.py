"""Other ways to be sequential: SNPSE-A, -B, -C correct for proposals that are no truncated priors; NLSE learns the likelihood's score.

Each takes rounds of simulations at draws of the last posterior, and repairs what that does to the target: A resamples
afterwards, B weights the loss, C shifts the score. The truncated proposals of TSNPSE need no repair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from common.rng import Rng
from papers.snpse.estimator import SNPSE
from papers.snpse.metrics import effective_sample_size
from papers.snpse.posterior import Posterior, check_observation
from papers.snpse.priors import Prior
from papers.snpse.simulators import simulate
from papers.snpse.training import Shift, fit, training_options

METHODS = ("a", "b", "c")


# ---- noised priors in closed form (section 3.11) -------------------------------------------------------------------------


def noised_normal_score(theta: Tensor, mean: Tensor, covariance: Tensor, m: Tensor, s: Tensor) -> Tensor:
    """Score of N(m mean, m^2 S + s^2 I) at theta (n, d); m, s (n, 1)."""
    values, vectors = torch.linalg.eigh(covariance)
    centred = (theta - m * mean) @ vectors
    return -(centred / (m**2 * values + s**2)) @ vectors.T


def noised_uniform_score(theta: Tensor, low: Tensor, high: Tensor, m: Tensor, s: Tensor) -> Tensor:
    """Score of a uniform box [low, high] scaled by m and noised by s, coordinate by coordinate; theta (n, d), m, s (n, 1).

    (phi(a) - phi(b)) / (s (Phi(b) - Phi(a))) with a, b the standardised distances to the edges. The difference of the two
    distribution functions is formed in logarithms on the side where both are small.
    """
    a, b = ((m * low - theta) / s).double(), ((m * high - theta) / s).double()
    swap = a + b > 0  # mirror so that the interval lies left of the centre: no difference of numbers near one
    a, b = torch.where(swap, -b, a), torch.where(swap, -a, b)
    log_b, log_a = torch.special.log_ndtr(b), torch.special.log_ndtr(a)
    log_mass = log_b + torch.log(-torch.expm1((log_a - log_b).clamp_max(-1e-300)))
    log_phi = lambda v: -0.5 * v**2 - 0.5 * math.log(2 * math.pi)  # noqa: E731
    found = (log_phi(a) - log_mass).exp() - (log_phi(b) - log_mass).exp()
    return (torch.where(swap, -found, found) / s.double()).to(theta.dtype)


def noised_prior_score(prior: Prior, mean: Tensor, std: Tensor) -> Shift:
    """(theta_t, m, s) -> score of the noised prior in coordinates standardised by mean and std (d,).

    Raises ValueError for a prior that is neither uniform on a box nor normal: it has no closed form here.
    """
    if (box := prior.box()) is not None:
        low, high = (box[0] - mean) / std, (box[1] - mean) / std
        return lambda theta, m, s: noised_uniform_score(theta, low, high, m, s)
    if (normal := prior.gaussian()) is not None:
        centre, covariance = (normal[0] - mean) / std, normal[1] / std[:, None] / std[None, :]
        return lambda theta, m, s: noised_normal_score(theta, centre, covariance, m, s)
    raise ValueError("the noised prior has a closed form for uniform boxes and normals alone: give one of these")


# ---- SNPSE-A, -B, -C -----------------------------------------------------------------------------------------------------


@dataclass
class Corrected:
    """A posterior of SNPSE-A, -B or -C: the network's own, and the prior and proposals that correct its draws (A)."""

    posterior: Posterior
    method: str
    log_proposal: Callable[[Tensor], Tensor] | None = None
    diagnostics: dict[str, Any] = field(default_factory=dict)

    @property
    def prior(self) -> Prior:
        return self.posterior.prior

    def sample(self, shape: tuple[int, ...], x: Any = None, inside: bool = True, seed: int | None = None) -> Tensor:
        """(n, d); of SNPSE-A, ten times as many draws resampled with weights prior / proposal."""
        if self.log_proposal is None:
            return self.posterior.sample(shape, x=x, inside=inside, seed=seed)
        draws = self.posterior.sample((10 * shape[0],), x=x, inside=True, seed=seed)
        weight = self.prior.log_prob(draws) - self.log_proposal(draws)
        self.diagnostics["ess"] = effective_sample_size(weight) / len(draws)
        generator = Rng(self.posterior.seed if seed is None else seed, "resample").torch
        return draws[torch.multinomial((weight - weight.max()).exp(), shape[0], replacement=True, generator=generator)]


def sequential(method: str, prior: Any, simulator: Any, x_obs: Any, budget: int, rounds: int, seed: int = 0, *,
               normalised: bool = True, **training: Any) -> Corrected:  # fmt: skip
    """SNPSE-A, -B or -C at x_obs (p,): `budget` simulations, from the second round on at draws of the last posterior.

    a: no correction when training; draws are resampled. Exact for two rounds; after more, the proposal's density is that of
    the last round's network alone, unnormalised. b: each pair's loss is weighted by prior / mean of the proposals,
    normalised to mean one (`normalised`); diagnostics hold the effective sample size. c: the loss is that of
    score + (noised proposal's score, by a network of its own) - (noised prior's score, closed form).
    Raises ValueError for another method, and as `SNPSE.infer` does.
    """
    if method not in METHODS:
        raise ValueError(f"method is {method!r}: choose {', '.join(METHODS)}")
    x_obs = check_observation(x_obs)
    if not 1 <= rounds <= budget:
        raise ValueError(f"budget is {budget} and rounds is {rounds}: at least one simulation a round is needed")
    inference = SNPSE(prior, simulator, seed=seed, **{k: v for k, v in training.items() if k not in ("sde", "head")},
                      sde=training.get("sde", "ve"), head=training.get("head", "edm"))  # fmt: skip
    inference.x_obs = x_obs
    held, report = inference.prior, []
    proposals: list[Callable[[Tensor], Tensor]] = []
    sizes = [budget // rounds + (r < budget % rounds) for r in range(rounds)]
    state: dict[str, Any] = {}
    found: Corrected | None = None
    for r, size in enumerate(sizes):
        theta = (
            held.sample(size, Rng(seed, "round", 0, "proposal").torch)
            if found is None
            else _inside(found, size, seed + r)
        )
        inference.append_simulations(theta, simulate(simulator, theta, Rng(seed, "round", r, "simulator").torch))
        weights = shift = None
        if proposals and method == "b":
            weights, ess = _importance(held, inference.theta, proposals, normalised)
            report.append({"round": r + 1, "ess": ess})
        if proposals and method == "c":
            shift = _proposal_shift(held, inference, Rng(seed, "round", r, "proposal score"))
        z, x, columns = inference.prepared()
        state = fit(z, x, inference.options, Rng(seed, "round", r, "fit"), weights=weights, shift=shift)
        state = {**state, "columns": columns.numpy(), "p": len(x_obs)}
        posterior = Posterior(state, held, inference.options, x_obs, seed=seed)
        correct = proposals[-1] if method == "a" and proposals else None
        found = Corrected(posterior, method, correct, {"rounds": report})
        proposals.append(_density(posterior))
    assert found is not None
    return found


def _inside(found: Corrected, size: int, seed: int) -> Tensor:
    return found.sample((size,), seed=seed)


def _density(posterior: Posterior) -> Callable[[Tensor], Tensor]:
    return lambda theta: posterior.log_prob(theta, inside=False)


def _importance(prior: Prior, theta: Tensor, proposals: list, normalised: bool) -> tuple[Tensor, float]:
    """Weights prior / ((prior + the posteriors so far) / r) of all pairs, and their effective share."""
    log_prior = prior.log_prob(theta)
    mixture = torch.logsumexp(torch.stack([log_prior, *(p(theta) for p in proposals)]), dim=0) - math.log(
        len(proposals) + 1
    )
    log_weight = log_prior - mixture
    ess = effective_sample_size(log_weight) / len(theta)
    weight = log_weight.exp()
    return (weight / weight.mean() if normalised else weight), ess


def _proposal_shift(prior: Prior, inference: SNPSE, rng: Rng) -> Callable[[Tensor, Tensor], Shift]:
    """Given (mean, std): the noised proposal's score minus the noised prior's."""
    from papers.snpse.training import restore

    z, _, _ = inference.prepared()
    blank = torch.randn(len(z), 1, generator=Rng(rng.root, *rng.name, "blank").torch)  # a condition that says nothing
    state = fit(z, blank, inference.options, rng)
    model = restore(state)

    def shift(mean: Tensor, std: Tensor) -> Shift:
        of_prior = noised_prior_score(prior, mean, std)

        def added(theta: Tensor, m: Tensor, s: Tensor) -> Tensor:
            t = inference_time(model, m, s)
            with torch.no_grad():
                return model(theta, torch.zeros(len(theta), 1), t) - of_prior(theta, m, s)

        return added

    return shift


def inference_time(model: Any, m: Tensor, s: Tensor) -> Tensor:
    """The model's time of a relative noise s / m."""
    return model.sde.time_of((s / m)[:, 0]).clamp(0.0, 1.0)


# ---- NLSE ------------------------------------------------------------------------------------------------------------------


def nlse(prior: Any, theta: Tensor, x: Tensor, x_obs: Any, seed: int = 0, **training: Any) -> Posterior:
    """Neural likelihood score estimation: the network learns grad log p_t(x | theta_t), the noised prior's score is added.

    Equal to NPSE at the optimum where that score is known, which is for uniform and normal priors.
    """
    held = Prior(prior)
    options: Mapping[str, Any] = training_options(training)
    state = fit(
        theta.float(),
        x.float(),
        options,
        Rng(seed, "fit", 0),
        shift=lambda mean, std: noised_prior_score(held, mean, std),
    )
    state = {**state, "columns": torch.arange(x.shape[1]).numpy(), "p": x.shape[1]}
    mean, std = (torch.as_tensor(state[name]).float() for name in ("theta_mean", "theta_std"))
    return Posterior(
        state, held, options, check_observation(x_obs), seed=seed, shift=noised_prior_score(held, mean, std)
    )
