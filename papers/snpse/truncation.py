"""Truncated priors: the highest-probability region of a posterior, and draws of the prior inside it (Algorithm 1).

HPR_eps holds all but a share eps of the posterior's mass: {log p(theta | x) >= kappa}, kappa the eps-quantile of the
log-density over draws of the posterior itself. Only draws inside the prior's support count: those that have leaked out have
the lowest densities of all, and with them kappa cuts away nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from papers.snpse.priors import Prior

CHUNK = 4096
LEAST = 1e-5  # acceptance below which the search for draws is given up
TRIES = 2_000_000  # candidates after which it is looked at


class AcceptanceError(ValueError):
    """Too few of the prior's draws lie in the region for sampling by rejection."""


class HPR:
    """The region {box and log-density >= threshold}. posterior: has `.prior`, `.sample`, `.log_prob` (as `Posterior`).

    x: the observation, None for the posterior's own. pad: the box of the draws is widened by this share of its width on
    each side, since an undertrained posterior is too narrow. draws: (n, d) to use in place of new ones.
    Raises ValueError for eps outside [0, 1).
    """

    def __init__(self, posterior: Any, x: Tensor | None = None, eps: float = 5e-4, n: int = 20_000, seed: int = 0, *,
                 pad: float = 0.05, draws: Tensor | None = None):  # fmt: skip
        if not 0 <= eps < 1 or n < 2:
            raise ValueError(f"eps is {eps} and n is {n}: eps in [0, 1) and at least 2 draws are needed")
        self.posterior, self.x, self.eps = posterior, x, eps
        self.prior = posterior.prior if isinstance(posterior.prior, Prior) else Prior(posterior.prior)
        if draws is None:
            draws = posterior.sample((n,), x=x, inside=True, seed=seed)
        draws = draws[self.prior.inside(draws)]
        low, high = draws.amin(0), draws.amax(0)
        self.box = torch.stack([low - pad * (high - low), high + pad * (high - low)])
        ranked = self.density(draws).sort().values
        self.threshold = float(ranked[int(eps * len(draws))])  # exactly floor(eps n) draws lie below

    def density(self, theta: Tensor) -> Tensor:
        """What is compared with the threshold (n,): the log-density, or the energy where the posterior has one."""
        fast = getattr(self.posterior, "truncation_score", None)
        parts = [
            fast(part, x=self.x) if fast else self.posterior.log_prob(part, x=self.x, inside=False)
            for part in theta.split(CHUNK)
        ]
        return torch.cat(parts) if parts else torch.zeros(0)

    def accepts(self, theta: Tensor) -> Tensor:
        """(n,) bool. The box is looked at first; the density only of what lies in it and in the prior's support."""
        found = ((theta >= self.box[0]) & (theta <= self.box[1])).all(1) & self.prior.inside(theta)
        if found.any():
            found[found.clone()] = self.density(theta[found]) >= self.threshold
        return found

    def sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, float]:
        """(theta (n, d) of the prior within the region, share of the prior's draws that lie in it).

        A uniform prior is drawn in the box's intersection with its own. Raises AcceptanceError where the share is below
        1e-5 after two million candidates.
        """
        bounds, share = self.prior.box(), 1.0
        if bounds is not None:
            low, high = torch.maximum(bounds[0], self.box[0]), torch.minimum(bounds[1], self.box[1])
            share = float(((high - low).clamp_min(0).double() / (bounds[1] - bounds[0]).double()).prod())
        kept: list[Tensor] = []
        tried = found = 0
        size = max(2 * n, 256)
        while found < n:
            if bounds is not None:
                theta = low + (high - low) * torch.rand(size, self.prior.d, generator=generator)
            else:
                theta = self.prior.sample(size, generator)
            theta = theta[self.accepts(theta)]
            kept.append(theta)
            tried, found = tried + size, found + len(theta)
            if tried >= TRIES and found < LEAST * tried:
                raise AcceptanceError(
                    f"{found} of {tried:,} draws of the prior lie in the truncated region, a share below {LEAST}: raise eps, "
                    "give fewer rounds, or a prior nearer to the observation (what was simulated so far is kept)"
                )
            rate = max(found / tried, 0.5 / tried)
            size = int(min(max(1.2 * (n - found) / rate, 256), 4 * max(n, 5000), 200_000))
        return torch.cat(kept)[:n], share * found / tried
