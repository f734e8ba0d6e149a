"""A trained posterior: draws, densities, the mode, and its file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common.rng import Rng
from papers.snpse import sampling
from papers.snpse.priors import Prior, log_volume, unconstrained
from papers.snpse.training import restore

ARRAYS = ("theta_mean", "theta_std", "x_mean", "x_std", "x_low", "x_high", "columns")
LEAST_INSIDE = 1e-5
CHUNK = 20_000


class Posterior:
    """p(theta | x) by a score model. `state`: what `training.fit` returned, with `columns`, the entries of x that are used.

    Scores live in standardised (and, with a transform, unconstrained) space; samples and densities are of theta itself.
    shift: (theta_t, m, s) -> (n, d), added to the model's score (NLSE, another prior).
    """

    def __init__(self, state: Mapping[str, Any], prior: Any, options: Mapping[str, Any], x_obs: Tensor | None = None, *,
                 embedding: nn.Module | None = None, seed: int = 0, shift: Callable | None = None):  # fmt: skip
        self.prior = prior if isinstance(prior, Prior) else Prior(prior)
        self.state, self.options, self.seed, self.shift = state, dict(options), seed, shift
        self.model = restore(state, embedding)
        self.sde = self.model.sde
        self.transform = self.prior.transform(self.options["transform"])
        tensors = {name: torch.as_tensor(np.array(state[name])) for name in ARRAYS}
        self.mean, self.std = tensors["theta_mean"].float(), tensors["theta_std"].float()
        self._x_mean, self._x_std, self.columns = tensors["x_mean"], tensors["x_std"], tensors["columns"].long()
        self._x_low, self._x_high = tensors["x_low"], tensors["x_high"]
        if len(self.mean) != self.prior.d:
            raise ValueError(
                f"the posterior has {len(self.mean)} parameters and the prior {self.prior.d}: give its own prior"
            )
        self.x_obs = None if x_obs is None else self._whole(x_obs)
        self.diagnostics: dict[str, Any] = {"pairs": int(state["pairs"]), "rounds": [], "warnings": []}
        self._leakage: dict[tuple[float, ...], float] = {}

    # ---- the observation ---------------------------------------------------------------------------------------------

    @property
    def p(self) -> int:
        """Entries of an observation, constant ones included."""
        return int(self.state["p"])

    def _whole(self, x: Any) -> Tensor:
        return check_observation(x, self.p)

    def _x(self, x: Any) -> Tensor:
        if x is None:
            if self.x_obs is None:
                raise ValueError("x is not given and the posterior has no observation of its own: give x (p,)")
            return self.x_obs
        return self._whole(x)

    def standardised(self, x: Any) -> Tensor:
        """What the network sees of x (p,): its varying columns, standardised."""
        return ((self._x(x).double()[self.columns] - self._x_mean) / self._x_std).float()

    def score(self, x: Any = None) -> sampling.Score:
        """(theta_t, t) -> score in the standardised space at observation x."""
        own = self.model.at(self.standardised(x))
        if self.shift is None:
            return own
        shift = self.shift

        def shifted(theta: Tensor, t: Tensor) -> Tensor:
            m, s = (part[:, None] for part in self.sde.mean_std(t))
            return own(theta, t) + shift(theta, m, s)

        return shifted

    def out_of_range(self, x: Any = None) -> list[int]:
        """Entries of the observation outside what was simulated."""
        values = self._x(x).double()[self.columns]
        return self.columns[(values < self._x_low) | (values > self._x_high)].tolist()

    # ---- draws ---------------------------------------------------------------------------------------------------------

    def _raw(self, n: int, x: Any, steps: int | None, generator: torch.Generator) -> Tensor:
        parts = []
        with torch.no_grad():
            for start in range(0, n, CHUNK):
                shape = (min(CHUNK, n - start), len(self.mean))
                z = sampling.ode(self.score(x), self.sde, shape, steps=steps or self.options["sample_steps"],
                                 method=self.options["sampler"], seed=generator)  # fmt: skip
                z = z * self.std + self.mean
                parts.append(z if self.transform is None else self.transform(z))
        return torch.cat(parts) if parts else torch.zeros(0, len(self.mean))

    def sample(self, shape: tuple[int, ...], x: Any = None, steps: int | None = None, inside: bool = True,
               seed: int | None = None) -> Tensor:  # fmt: skip
        """shape (n,) -> exactly (n, d). inside: draws outside the prior's support are drawn again; False: the raw flow.

        seed: None for the posterior's own. Raises ValueError where fewer than one draw in 100,000 falls inside.
        """
        if len(shape) != 1 or shape[0] < 0:
            raise ValueError(f"shape is {tuple(shape)}: give (n,)")
        n, generator = int(shape[0]), Rng(self.seed if seed is None else seed, "posterior").torch
        if not inside:
            return self._raw(n, x, steps, generator)
        kept: list[Tensor] = []
        have = tried = 0
        while have < n:
            rate = have / tried if have else 1.0
            size = int(min(max(math.ceil(1.05 * (n - have) / rate), 64), 4 * max(n, 2500)))
            theta = self._raw(n if not tried else size, x, steps, generator)
            good = theta[self.prior.inside(theta)]
            kept.append(good)
            tried, have = tried + len(theta), have + len(good)
            if have < n and tried >= min(20 * n + 10_000, 500_000) and have < max(LEAST_INSIDE, 1e-3) * tried:
                raise ValueError(
                    f"{have} of {tried:,} draws of the posterior lie inside the prior's support: the fit has failed there, "
                    "simulate more or ask for inside=False"
                )
        if tried:
            self._leakage.setdefault(self._key(x), 1 - have / tried)
            self.diagnostics["leakage"] = 1 - have / tried
        return torch.cat(kept)[:n] if kept else torch.zeros(0, len(self.mean))

    def sample_batched(self, shape: tuple[int, ...], x: Any) -> Tensor:
        """Draws for several observations at once: shape (n,), x (b, p) -> (n, b, d), inside the support."""
        return torch.stack(
            [self.sample(shape, x=row, seed=self.seed + i) for i, row in enumerate(torch.as_tensor(x))], 1
        )

    def _key(self, x: Any) -> tuple[float, ...]:
        return tuple(self._x(x).tolist())

    def leakage(self, x: Any = None) -> float:
        """Share of the raw flow outside the prior's support, over 4,000 draws (or those of an earlier `sample`)."""
        key = self._key(x)
        if key not in self._leakage:
            raw = self._raw(4000, x, None, Rng(self.seed, "leakage").torch)
            self._leakage[key] = 1 - float(self.prior.inside(raw).float().mean())
        return self._leakage[key]

    # ---- densities -------------------------------------------------------------------------------------------------------

    def log_prob(
        self, theta: Any, x: Any = None, inside: bool = True, steps: int | None = None, trace: str = "exact"
    ) -> Tensor:
        """log p(theta | x) (n,) of theta (n, d). inside: -inf outside the prior's support, divided by what lies inside it;
        False: the raw flow's. trace: exact or hutchinson."""
        theta = torch.as_tensor(theta).float()
        if theta.ndim != 2 or theta.shape[1] != len(self.mean):
            raise ValueError(f"theta has shape {tuple(theta.shape)}, expected (n, {len(self.mean)})")
        out = torch.full((len(theta),), -torch.inf)
        whole = torch.isfinite(theta).all(1)
        where = whole & self.prior.inside(theta) if inside or self.transform is not None else whole
        if where.any():
            z = unconstrained(self.transform, theta[where])
            parts = []
            for part in ((z - self.mean) / self.std).split(CHUNK):
                parts.append(sampling.ode_log_prob(self.score(x), self.sde, part, steps=steps or self.options["density_steps"],
                                                   trace=trace, seed=self.seed))  # fmt: skip
            found = torch.cat(parts) - self.std.log().sum() - log_volume(self.transform, z, theta[where])
            if inside and self.transform is None:
                found = found - math.log(max(1 - self.leakage(x), 1e-9))
            out[where] = found.detach()
        return out

    @property
    def truncation_score(self) -> Callable[..., Tensor] | None:
        """The energy at t_min, one forward pass a candidate, where the head is an energy; None otherwise.

        It is the log-density in the space that is diffused: with a transform the Jacobian is added.
        """
        if self.model.head != "energy" or not self.options["energy_shortcut"] or self.shift is not None:
            return None

        def energy(theta: Tensor, x: Any = None) -> Tensor:
            z = unconstrained(self.transform, theta)
            t = torch.full((len(z),), max(self.sde.t_min, 1e-3))
            code = self.model.embed(self.standardised(x)[None]).expand(len(z), -1)
            with torch.no_grad():
                found = self.model.energy((z - self.mean) / self.std, code, t)
            return found - log_volume(self.transform, z, theta)

        return energy

    def map(self, x: Any = None, draws: int = 1000, climbs: int = 100) -> Tensor:
        """The mode (d,): the best of `draws` by density, then climbed along the score at the lowest noise level."""
        theta = self.sample((draws,), x=x, seed=self.seed)
        dense = self.log_prob(theta, x=x, inside=False)
        best, best_value = theta[dense.argmax()], float(dense.max())
        score = self.score(x)
        z = (unconstrained(self.transform, theta[dense.topk(min(20, draws)).indices]) - self.mean) / self.std
        step = 0.1 * z.std(0).square().clamp_min(1e-8)
        with torch.no_grad():
            for _ in range(climbs):
                z = z + (step * score(z, torch.full((len(z),), max(self.sde.t_min, 1e-3)))).clamp(-0.05, 0.05)
        z = z * self.std + self.mean
        climbed = z if self.transform is None else self.transform(z)
        climbed = climbed[self.prior.inside(climbed)]
        if len(climbed):
            found = self.log_prob(climbed, x=x, inside=False)
            if float(found.max()) > best_value:
                best = climbed[found.argmax()]
        return best

    # ---- its file --------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write as safetensors: arrays as tensors, the rest as JSON in its metadata. A learned embedding's code is not in it."""
        from safetensors.numpy import save_file

        from common.files import atomic_path

        tensors = {f"weights.{name}": np.ascontiguousarray(value) for name, value in self.state["weights"].items()}
        tensors |= {name: np.ascontiguousarray(self.state[name]) for name in ARRAYS}
        if self.x_obs is not None:
            tensors["x_obs"] = self.x_obs.numpy()
        about = {"sde": dict(self.state["sde"]), "net": dict(self.state["net"]), "pairs": int(self.state["pairs"]), "p": self.p,
                 "options": self.options, "seed": self.seed, "diagnostics": self.diagnostics}  # fmt: skip
        with atomic_path(Path(path)) as scratch:
            save_file(tensors, scratch, metadata={"snpse": json.dumps(about, default=float)})

    @classmethod
    def load(cls, path: str | Path, prior: Any, embedding: nn.Module | None = None) -> Posterior:
        """What `save` wrote, with its prior. Raises ValueError for a file that is not one, whole."""
        from safetensors import SafetensorError, safe_open

        wrong = f"{path} is no saved posterior"
        if not Path(path).is_file():
            raise ValueError(f"{wrong}: there is no such file")
        try:
            with safe_open(str(path), framework="numpy") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                about = json.loads((file.metadata() or {})["snpse"])
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise ValueError(
                f"{wrong}, or not whole ({' '.join(str(error).split())[:80]}): give what Posterior.save wrote"
            ) from None
        try:
            for name, value in tensors.items():
                if value.dtype.kind == "f" and not np.isfinite(value).all():
                    raise ValueError(f"{name} is not finite")
            weights = {
                name.removeprefix("weights."): value for name, value in tensors.items() if name.startswith("weights.")
            }
            state = {
                "weights": weights,
                **{name: tensors[name] for name in ARRAYS},
                **{name: about[name] for name in ("sde", "net", "pairs", "p")},
            }
            x_obs = torch.as_tensor(tensors["x_obs"]) if "x_obs" in tensors else None
            found = cls(state, prior, about["options"], x_obs, embedding=embedding, seed=about["seed"])
            found.diagnostics = about["diagnostics"]
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
            raise ValueError(f"{path} cannot be used as a posterior: {' '.join(str(error).split())[:160]}") from None
        return found


def check_observation(x: Any, p: int | None = None) -> Tensor:
    """x_obs as (p,) float. Raises ValueError for NaN, another shape or another type."""
    try:
        found = torch.as_tensor(np.asarray(x) if not isinstance(x, Tensor) else x)
    except (TypeError, ValueError):
        raise ValueError("x_obs is no array of numbers: give (p,)") from None
    if found.is_complex() or found.dtype == torch.bool:
        raise ValueError(f"x_obs is of type {found.dtype}: give real numbers")
    if found.ndim == 2 and len(found) == 1:
        found = found[0]
    if found.ndim == 0:
        found = found[None]
    if found.ndim != 1 or (p is not None and len(found) != p):
        raise ValueError(f"x_obs has shape {tuple(found.shape)}, expected ({'p' if p is None else p},)")
    if not bool(torch.isfinite(found).all()):
        raise ValueError(
            f"x_obs has {int((~torch.isfinite(found)).sum())} entries that are NaN or infinite: leave them out of x, or fill them"
        )
    return found.float()
