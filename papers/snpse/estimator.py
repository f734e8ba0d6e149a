"""NPSE and TSNPSE: from a prior, a simulator and an observation to a posterior (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common.rng import Rng
from papers.snpse.posterior import Posterior, check_observation
from papers.snpse.priors import Prior, unconstrained
from papers.snpse.simulators import Simulator, simulate
from papers.snpse.training import fit, training_options
from papers.snpse.truncation import HPR


class SNPSE:
    """Neural posterior score estimation, in one round or in several with truncated priors.

    prior: a torch distribution over (d,). simulator: theta -> x, see `simulators.simulate`; None where the pairs come from
    `append_simulations`. sde: ve, vp, subvp. head: edm, score, eps, energy. eps: the mass that each truncation may cut off.
    training: `training.DEFAULTS` says which options there are. embedding: a module (n, p) -> (n, q), trained with the score.

    >>> from torch.distributions import Independent, Uniform
    >>> prior = Independent(Uniform(-torch.ones(2), torch.ones(2)), 1)
    >>> posterior = SNPSE(prior, simulator).infer(x_obs, budget=2000, rounds=4)        # doctest: +SKIP
    >>> posterior.sample((1000,))                                                       # doctest: +SKIP
    """

    def __init__(self, prior: Any, simulator: Simulator | None = None, sde: str = "ve", head: str = "edm", eps: float = 5e-4,
                 seed: int = 0, *, embedding: nn.Module | None = None, **training: Any):  # fmt: skip
        self.prior = Prior(prior)
        self.simulator, self.eps, self.seed, self.embedding = simulator, eps, int(seed), embedding
        if not 0 <= eps < 1:
            raise ValueError(f"eps is {eps}: it must lie in [0, 1)")
        self.options = training_options({"sde": sde, "head": head, **training})
        self.theta = torch.zeros(0, self.prior.d)
        self.x: Tensor | None = None
        self.notes: list[str] = []
        self.x_obs: Tensor | None = None
        self._state: dict[str, Any] | None = None
        self._fits = 0

    # ---- the pieces ----------------------------------------------------------------------------------------------------

    def append_simulations(self, theta: Any, x: Any) -> SNPSE:
        """Add pairs theta (n, d), x (n, p). Pairs with NaN are left out when training (`nan`). Returns self."""
        try:
            theta, x = (torch.as_tensor(np.asarray(v) if not isinstance(v, Tensor) else v) for v in (theta, x))
        except (TypeError, ValueError):
            raise ValueError("theta and x must be arrays of numbers: (n, d) and (n, p)") from None
        if theta.ndim != 2 or theta.shape[1] != self.prior.d:
            raise ValueError(f"theta has shape {tuple(theta.shape)}, expected (n, {self.prior.d})")
        if x.ndim != 2 or len(x) != len(theta):
            raise ValueError(f"x has shape {tuple(x.shape)}, expected ({len(theta)}, p): a row for each theta")
        if self.x is not None and x.shape[1] != self.x.shape[1]:
            raise ValueError(
                f"x has {x.shape[1]} columns after {self.x.shape[1]}: the same for all simulations is needed"
            )
        if theta.is_complex() or x.is_complex():
            raise ValueError("theta and x must be real numbers")
        if not bool(torch.isfinite(theta).all()):
            raise ValueError("theta has entries that are NaN or infinite: leave them out")
        self.theta = torch.cat([self.theta, theta.float()])
        self.x = x.float() if self.x is None else torch.cat([self.x, x.float()])
        return self

    def train(self, **training: Any) -> SNPSE:
        """Fit the score to all pairs so far; options given here hold from now on. Returns self."""
        self.options = training_options(self.options | training)
        self._state = self._fit(Rng(self.seed, "fit", self._fits))
        self._fits += 1
        return self

    def build_posterior(self) -> Posterior:
        """The posterior of the last training."""
        if self._state is None:
            raise ValueError("nothing is trained: call train() first")
        return self._posterior(self._state)

    def _posterior(self, state: Mapping[str, Any]) -> Posterior:
        found = Posterior(state, self.prior, self.options, self.x_obs, embedding=self.embedding, seed=self.seed)
        found.diagnostics["warnings"] += self.notes
        return found

    def prepared(self) -> tuple[Tensor, Tensor, Tensor]:
        """(z (n, d), x (n, q), columns (q,)): what is trained on. Pairs with NaN and constant columns are gone.

        nan=impute: a missing statistic becomes its mean minus two standard deviations (the paper's treatment of pyloric).
        Raises ValueError where nothing is left.
        """
        if self.x is None:
            raise ValueError("there are no simulations: call append_simulations or infer")
        theta, x = self.theta, self.x
        whole = torch.isfinite(x)
        if self.options["nan"] == "impute":
            held = torch.where(whole, x, torch.nan).double()
            mean = held.nanmean(0)
            std = (held - mean).square().nanmean(0).sqrt()
            x = torch.where(whole, x, (mean - 2 * std).float())
            keep = torch.isfinite(x).all(1)
        else:
            keep = whole.all(1)
        if not bool(keep.any()):
            raise ValueError(
                f"all {len(x)} simulations have NaN or infinite entries: check the simulator, or set nan=impute"
            )
        theta, x = theta[keep], x[keep]
        columns = (x.amax(0) > x.amin(0)).nonzero()[:, 0]
        if not len(columns):
            raise ValueError("every output of the simulator is constant: there is nothing to learn from")
        if len(columns) < x.shape[1]:
            constant = sorted(set(range(x.shape[1])) - set(columns.tolist()))
            self._note(f"outputs {constant} of the simulator are constant and left out")
        transform = self.prior.transform(self.options["transform"])
        inside = self.prior.inside(theta)
        if transform is not None and not bool(inside.all()):
            raise ValueError(f"{int((~inside).sum())} rows of theta lie outside the prior's support: leave them out")
        return unconstrained(transform, theta), x[:, columns], columns

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _fit(self, rng: Rng) -> dict[str, Any]:
        z, x, columns = self.prepared()
        start = (
            self._state
            if self.options["warm_start"] and self._state and list(self._state["columns"]) == columns.tolist()
            else None
        )
        state = fit(z, x, self.options, rng, embedding=self.embedding, start=start)
        assert self.x is not None
        return {**state, "columns": columns.numpy(), "p": self.x.shape[1]}

    # ---- Algorithm 1 ---------------------------------------------------------------------------------------------------

    def infer(self, x_obs: Any, budget: int, rounds: int = 1, run: Any = None) -> Posterior:
        """The posterior at x_obs (p,) from `budget` simulations in `rounds` rounds: NPSE for one, TSNPSE for more.

        run: a Run whose stages keep simulations and fits, so that a killed run goes on. stop_kl (training option): stop when
        KL(last posterior, this one) falls below it. Raises ValueError for NaN in x_obs, budget < rounds, and as the parts do.
        """
        x_obs = check_observation(x_obs)
        if self.simulator is None:
            raise ValueError("infer needs a simulator: give one, or call append_simulations and train")
        if not 1 <= rounds <= budget:
            raise ValueError(f"budget is {budget} and rounds is {rounds}: at least one simulation a round is needed")
        self.x_obs, region, done, before = x_obs, None, [], None
        sizes = [budget // rounds + (r < budget % rounds) for r in range(rounds)]
        for r, size in enumerate(sizes):
            drawn = _keep(run, f"round.{r + 1}.simulations", self._simulate, r, size, region)
            theta, x = torch.as_tensor(np.array(drawn["theta"])), torch.as_tensor(np.array(drawn["x"]))
            if x.shape[1] != len(x_obs):
                raise ValueError(
                    f"the simulator returns {x.shape[1]} values and x_obs has {len(x_obs)}: they must be alike"
                )
            if not bool(torch.isfinite(x).all(1).any()) and self.options["nan"] == "drop":
                raise ValueError(
                    f"all {size} simulations of round {r + 1} have NaN or infinite entries: give more, or another prior"
                )
            self.append_simulations(theta, x)
            self._state = _keep(run, f"round.{r + 1}.fit", self._fit, Rng(self.seed, "round", r, "fit"))
            posterior = self._posterior(self._state)
            report: dict[str, Any] = {"round": r + 1, "simulated": size, "valid": float(torch.isfinite(x).all(1).float().mean()),
                      "acceptance": float(drawn["acceptance"])}  # fmt: skip
            if before is not None and self.options["stop_kl"] is not None:
                report["kl"] = divergence_between(before, posterior)
            before, stop = posterior, report.get("kl", np.inf) < (self.options["stop_kl"] or -np.inf)
            if r + 1 < rounds and not stop:
                found = _keep(run, f"round.{r + 1}.draws", self._region_draws, posterior, r)
                draws = torch.as_tensor(np.array(found["draws"]))
                report["leakage"] = float(found["leakage"])
                region = HPR(posterior, eps=self.eps, pad=self.options["pad"], draws=draws)
                report |= {"threshold": region.threshold, "box": region.box.tolist()}
            done.append(report)
            if stop:
                self._note(f"stopped after round {r + 1}: the posterior moved by a KL of {report['kl']:.3g}")
                break
        posterior.diagnostics["rounds"] = done
        if outside := posterior.out_of_range():
            self._note(
                f"x_obs lies outside what was simulated in entries {outside}: the posterior there is extrapolated"
            )
        posterior.diagnostics["warnings"] = list(self.notes)
        return posterior

    def _simulate(self, r: int, size: int, region: HPR | None) -> dict[str, Any]:
        assert self.simulator is not None
        generator = Rng(self.seed, "round", r, "proposal").torch
        theta, acceptance = (
            (self.prior.sample(size, generator), 1.0) if region is None else region.sample(size, generator)
        )
        x = simulate(self.simulator, theta, Rng(self.seed, "round", r, "simulator").torch, self.options["workers"])
        return {"theta": theta.numpy(), "x": x.numpy(), "acceptance": acceptance}

    def _region_draws(self, posterior: Posterior, r: int) -> dict[str, Any]:
        draws = posterior.sample((self.options["n_hpr"],), seed=Rng(self.seed, "round", r, "region").seed % 2**31)
        return {"draws": draws.numpy(), "leakage": posterior.diagnostics["leakage"]}


def divergence_between(first: Posterior, second: Posterior, n: int = 500) -> float:
    """KL(first, second) over n draws of the first, with densities renormalised inside the support."""
    theta = first.sample((n,), seed=1)
    return float((first.log_prob(theta) - second.log_prob(theta)).mean())


def _keep(run: Any, name: str, fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args) if run is None else run.stage(name, fn, *args)
