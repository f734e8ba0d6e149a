"""After training: several observations of one theta, and another prior, by adding scores.

log p(theta | x_1 .. x_k) = sum log p(theta | x_i) - (k - 1) log p(theta), and a new prior p' adds log p' - log p. Noising
does not commute with products, so at t > 0 the sums are not the scores of a diffusion: Langevin steps at each noise level
repair what the predictor gets wrong.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from common.rng import Rng
from papers.snpse import sampling
from papers.snpse.corrections import noised_prior_score
from papers.snpse.posterior import Posterior
from papers.snpse.priors import Prior


def sample_iid(
    posterior: Posterior, n: int, xs: Any, *, steps: int = 150, corrector: int = 3, snr: float = 0.15, seed: int = 0
) -> Tensor:
    """n draws of theta given independent observations xs (k, p) of it, from a posterior for single ones.

    The prior must be uniform on a box or normal. Draws outside the support are drawn again, ten times at most.
    """
    rows = torch.as_tensor(xs).float()
    if rows.ndim != 2 or not len(rows):
        raise ValueError(f"xs has shape {tuple(rows.shape)}, expected (k, p)")
    scores = [posterior.score(row) for row in rows]
    prior = noised_prior_score(posterior.prior, posterior.mean, posterior.std)
    k = len(rows)

    def score(theta: Tensor, t: Tensor) -> Tensor:
        m, s = (part[:, None] for part in posterior.sde.mean_std(t))
        total = torch.stack([one(theta, t) for one in scores]).sum(0) - (k - 1) * prior(theta, m, s)
        return total

    # k scores are k times as steep: Langevin steps have to be as much smaller
    return _drawn(posterior, score, n, steps, corrector, snr / k**0.5, seed)


def sample_with_prior(posterior: Posterior, n: int, prior: Any, x: Any = None, *, steps: int = 150, corrector: int = 3,
                      snr: float = 0.15, seed: int = 0) -> Tensor:  # fmt: skip
    """n draws of the posterior that another prior would have given. Both priors must be uniform on boxes or normal."""
    new = noised_prior_score(prior if isinstance(prior, Prior) else Prior(prior), posterior.mean, posterior.std)
    old, own = noised_prior_score(posterior.prior, posterior.mean, posterior.std), posterior.score(x)

    def score(theta: Tensor, t: Tensor) -> Tensor:
        m, s = (part[:, None] for part in posterior.sde.mean_std(t))
        return own(theta, t) + new(theta, m, s) - old(theta, m, s)

    return _drawn(posterior, score, n, steps, corrector, snr, seed)


def _drawn(
    posterior: Posterior, score: sampling.Score, n: int, steps: int, corrector: int, snr: float, seed: int
) -> Tensor:
    if posterior.transform is not None:
        raise ValueError("scores are added in the parameters' own space: train with transform=none")
    generator, kept = Rng(seed, "compose").torch, []
    for _ in range(10):
        with torch.no_grad():
            z = sampling.sde_sample(
                score, posterior.sde, (n, posterior.prior.d), steps=steps, corrector=corrector, snr=snr, seed=generator
            )
        theta = z * posterior.std + posterior.mean
        kept.append(theta[posterior.prior.inside(theta)])
        if sum(map(len, kept)) >= n:
            return torch.cat(kept)[:n]
    raise ValueError("most draws fall outside the prior's support: give more steps")
