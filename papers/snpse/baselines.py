"""What sbi has, on the same arrays and seeds: NPSE, NPE, SNPE-C, TSNPE, FMPE. Needs the extra `sbi`."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from common.errors import choose
from common.optional import need
from common.rng import Rng, seeded

METHODS = ("sbi_npse", "sbi_npe", "sbi_fmpe", "sbi_snpe_c", "sbi_tsnpe")
SEQUENTIAL = ("sbi_snpe_c", "sbi_tsnpe")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


class SbiPosterior:
    """A posterior of sbi with this package's `sample` and `log_prob`."""

    def __init__(self, posterior: Any, x_obs: Tensor, raw: dict[str, Any]):
        self.posterior, self.x_obs, self.raw = posterior, x_obs, raw

    def sample(self, shape: tuple[int, ...], x: Any = None, inside: bool = True, seed: int = 0) -> Tensor:
        with _quiet(), seeded(seed):
            extra = {} if inside else self.raw
            return self.posterior.sample(
                shape, x=self.x_obs if x is None else x, show_progress_bars=False, **extra
            ).detach()

    def log_prob(self, theta: Tensor, x: Any = None, inside: bool = True) -> Tensor:
        with _quiet():
            return self.posterior.log_prob(theta, x=self.x_obs if x is None else x).detach()


def _train(method: str, prior: Any, theta: Tensor, x: Tensor, seed: int, options: dict[str, Any]) -> Any:
    inference = need("sbi.inference")
    kinds = {"sbi_npse": ("NPSE", {"sde_type": "ve"}), "sbi_npe": ("NPE", {"density_estimator": "nsf"}), "sbi_fmpe": ("FMPE", {}),
             "sbi_snpe_c": ("NPE_C", {"density_estimator": "nsf"}), "sbi_tsnpe": ("NPE", {"density_estimator": "nsf"})}  # fmt: skip
    name, extra = kinds[method]
    trainer = getattr(inference, name)(prior, show_progress_bars=False, **extra)
    trainer.append_simulations(theta, x)
    trainer.train(**options)
    return trainer


def fit(
    method: str, prior: Any, theta: Tensor, x: Tensor, x_obs: Tensor, seed: int = 0, **options: Any
) -> SbiPosterior:
    """A single-round method of sbi on given pairs, with its defaults or `options` of its train()."""
    choose("method", method, [m for m in METHODS if m not in SEQUENTIAL])
    with _quiet(), seeded(seed):
        trainer = _train(method, prior, theta, x, seed, options)
        posterior = trainer.build_posterior()
    raw = {"reject_outside_prior": False} if method in ("sbi_npse", "sbi_fmpe") else {}
    return SbiPosterior(posterior, x_obs, raw)


def fit_rounds(method: str, prior: Any, simulator: Callable[[Tensor, torch.Generator], Tensor], x_obs: Tensor, budget: int,
               rounds: int, seed: int = 0, quantile: float = 1e-4, **options: Any) -> SbiPosterior:  # fmt: skip
    """SNPE-C (proposals from the posterior, atomic loss) or TSNPE (truncated prior) as sbi's documentation does them."""
    choose("method", method, SEQUENTIAL)
    inference = need("sbi.inference")
    generator = Rng(seed, "sbi").torch
    with _quiet(), seeded(seed):
        name = "NPE_C" if method == "sbi_snpe_c" else "NPE"
        trainer = getattr(inference, name)(prior, density_estimator="nsf", show_progress_bars=False)
        proposal, posterior = prior, None
        for r in range(rounds):
            theta = proposal.sample((budget // rounds,)).detach()
            x = simulator(theta, generator)
            if method == "sbi_snpe_c":
                trainer.append_simulations(theta, x, proposal=proposal if r else None)
                trainer.train(**options)
            else:
                trainer.append_simulations(theta, x)
                trainer.train(force_first_round_loss=True, **options)
            posterior = trainer.build_posterior().set_default_x(x_obs)
            if method == "sbi_snpe_c":
                proposal = posterior
            else:
                utils = need("sbi.utils")
                accept = utils.get_density_thresholder(
                    posterior, quantile=quantile, num_samples_to_estimate_support=20_000
                )
                proposal = utils.RestrictedPrior(prior, accept, sample_with="rejection")
    return SbiPosterior(posterior, x_obs, {})
