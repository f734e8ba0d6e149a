"""Priors: any torch distribution over parameter vectors, its support, and maps to unconstrained space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, biject_to, constraints
from torch.distributions.transforms import Transform


class Prior:
    """A prior over theta (d,): of batch shape (d,) (taken as independent) or event shape (d,), torch's own or alike.

    Raises ValueError for anything without `sample` and `log_prob`, and where samples leave the prior's own support or have
    no finite density.
    """

    def __init__(self, prior: Any):
        for name in ("sample", "log_prob"):
            if not callable(getattr(prior, name, None)):
                raise ValueError(
                    f"the prior has no {name}: give a torch distribution, Independent(Uniform(a, b), 1) say"
                )
        batch, event = tuple(getattr(prior, "batch_shape", ())), tuple(getattr(prior, "event_shape", ()))
        if isinstance(prior, Distribution) and not event and len(batch) == 1:
            prior, event, batch = Independent(prior, 1), batch, ()
        if batch or len(event) > 1 or (isinstance(prior, Distribution) and not event):
            raise ValueError(
                f"the prior has batch shape {batch} and event shape {event}: parameters are one vector (d,)"
            )
        self.law = prior
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            draws = torch.as_tensor(prior.sample((100,))).float()
        if draws.ndim != 2:
            raise ValueError(f"100 samples of the prior have shape {tuple(draws.shape)}: expected (100, d)")
        self.d = draws.shape[1]
        if not bool(self.inside(draws).all()):
            raise ValueError("samples of the prior lie outside its own support: give a prior whose samples it accepts")

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """(n, d) float. torch distributions take no generator: the global one is seeded from it, and put back."""
        seed = int(torch.randint(2**31, (1,), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return torch.as_tensor(self.law.sample((n,))).float()

    def inside(self, theta: Tensor) -> Tensor:
        """(n,) bool: whether theta (n, d) lies in the support."""
        try:
            support = getattr(self.law, "support", None)
        except NotImplementedError:
            support = None
        finite = torch.isfinite(theta).all(1)
        if support is not None:
            found = support.check(theta)
            found = found.all(1) if found.ndim == 2 else found
        else:
            found = torch.isfinite(self.law.log_prob(theta))
        return found & finite

    def log_prob(self, theta: Tensor) -> Tensor:
        """(n,): -inf outside the support."""
        inside = self.inside(theta)
        out = torch.full((len(theta),), -torch.inf)
        if inside.any():
            found = torch.as_tensor(self.law.log_prob(theta[inside])).float()
            out[inside] = found.sum(1) if found.ndim == 2 else found
        return out

    def box(self) -> Tensor | None:
        """(2, d) bounds of a uniform prior, else None."""
        base = self.law
        while isinstance(base, Independent):
            base = base.base_dist
        if isinstance(base, torch.distributions.Uniform):
            return torch.stack([base.low.expand(self.d), base.high.expand(self.d)]).float()
        return None

    def gaussian(self) -> tuple[Tensor, Tensor] | None:
        """(mean (d,), covariance (d, d)) of a normal prior, else None."""
        base = self.law
        if isinstance(base, torch.distributions.MultivariateNormal):
            return base.mean.float(), base.covariance_matrix.float()
        while isinstance(base, Independent):
            base = base.base_dist
        if isinstance(base, torch.distributions.Normal):
            return base.loc.expand(self.d).float(), base.scale.expand(self.d).square().diag().float()
        return None

    def transform(self, kind: str) -> Transform | None:
        """The map from unconstrained space to the support, or None where parameters are diffused as they are.

        kind: none; all (every constrained support); auto (half-lines alone: positive priors have tails that a standard
        deviation does not describe, while the edges of a box are well learned as they are).
        """
        if kind == "none":
            return None
        try:
            support = self.law.support
        except (AttributeError, NotImplementedError):
            return None
        base = support
        while isinstance(base, constraints.independent):
            base = base.base_constraint
        if base in (constraints.real, constraints.real_vector):
            return None
        half_line = base is constraints.positive or isinstance(base, (constraints.greater_than, constraints.less_than))
        if kind == "auto" and not half_line:
            return None
        return biject_to(support)


def unconstrained(transform: Transform | None, theta: Tensor) -> Tensor:
    """z (n, d) with transform(z) = theta."""
    return theta if transform is None else transform.inv(theta)


def log_volume(transform: Transform | None, z: Tensor, theta: Tensor) -> Tensor:
    """log |d theta / d z| (n,)."""
    if transform is None:
        return torch.zeros(len(z), dtype=z.dtype)
    found = transform.log_abs_det_jacobian(z, theta)
    return found.sum(1) if found.ndim == 2 else found


def from_spec(spec: Mapping[str, Any]) -> Independent | torch.distributions.MultivariateNormal:
    """The prior of a file: {kind: uniform, low, high} | {kind: normal | lognormal, mean, std}, lists of d numbers.

    Raises ValueError naming what is wrong.
    """
    needs = {"uniform": ("low", "high"), "normal": ("mean", "std"), "lognormal": ("mean", "std")}
    kind = spec.get("kind") if isinstance(spec, Mapping) else None
    if kind not in needs:
        raise ValueError(f"the prior's kind is {kind!r}: choose {', '.join(needs)}")
    if unknown := set(spec) - {"kind", "names", *needs[kind]}:
        raise ValueError(
            f"the prior has an unknown key {sorted(map(str, unknown))[0]}: {kind} takes {', '.join(needs[kind])}"
        )
    values = []
    for name in needs[kind]:
        try:
            values.append(torch.tensor([float(v) for v in spec[name]]))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{name} of the prior is {spec.get(name)!r}: give a list of numbers") from None
    a, b = values
    if len(a) != len(b) or not len(a) or not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        raise ValueError(f"{needs[kind][0]} and {needs[kind][1]} of the prior must be equally many finite numbers")
    if (kind == "uniform" and not (a < b).all()) or (kind != "uniform" and not (b > 0).all()):
        raise ValueError("low must be below high everywhere" if kind == "uniform" else "std must be above 0 everywhere")
    law = {
        "uniform": torch.distributions.Uniform,
        "normal": torch.distributions.Normal,
        "lognormal": torch.distributions.LogNormal,
    }
    return Independent(law[kind](a, b), 1)
