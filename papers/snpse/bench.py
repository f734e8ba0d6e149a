"""Races against sbi and lampe: seconds and C2ST on the same arrays, one thread each. See README.md."""

from __future__ import annotations

import time
from typing import Any

PEERS = ("sbi", "lampe", "torch")


def bench(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Tables by name. quick: sizes for a test of the bench itself; contestants whose package is not here are left out."""
    return {"fit": fits(quick), "fit_3000": default_fit(quick)}


def _lampe(theta: Any, x: Any, x_obs: Any, steps: int, seed: int) -> Any:
    """lampe's NSE (a VP score estimator), trained as its documentation does: AdamW 1e-3 and batches of 256."""
    import torch

    from common.optional import need
    from common.rng import seeded

    inference = need("lampe.inference")
    with seeded(seed):
        theta_mean, theta_std, x_mean, x_std = theta.mean(0), theta.std(0), x.mean(0), x.std(0)
        a, b = (theta - theta_mean) / theta_std, (x - x_mean) / x_std
        estimator = inference.NSE(theta.shape[1], x.shape[1], hidden_features=[128] * 3)
        loss, optimiser = inference.NSELoss(estimator), torch.optim.AdamW(estimator.parameters(), 1e-3)
        for _ in range(steps):
            rows = torch.randint(len(a), (256,))
            optimiser.zero_grad()
            loss(a[rows], b[rows]).backward()
            optimiser.step()

    class Drawn:
        def sample(self, shape: tuple[int, ...], inside: bool = True) -> Any:
            with torch.no_grad(), seeded(seed):
                return estimator.flow((x_obs - x_mean) / x_std).sample(shape) * theta_std + theta_mean

        def log_prob(self, values: Any) -> Any:
            with torch.no_grad():
                return (
                    estimator.flow((x_obs - x_mean) / x_std).log_prob((values - theta_mean) / theta_std)
                    - theta_std.log().sum()
                )

    return Drawn()


def fits(quick: bool = False) -> list[dict[str, Any]]:
    """Training, 10,000 draws, 1,000 log-densities and C2ST (2,000 draws) of ours, sbi's NPSE and lampe's NSE at 10,000 pairs."""
    import torch

    from common.optional import installed
    from papers.snpse import SNPSE, baselines, metrics, tasks

    budget, steps, draws, dense = (100, 20, 50, 10) if quick else (10_000, 20_000, 10_000, 1000)
    rows = []
    for name in ("two_moons",) if quick else ("two_moons", "slcp", "gaussian_mixture"):
        task = tasks.get(name)
        x_obs, reference, generator = task.observation(1), task.reference(1), torch.Generator().manual_seed(0)
        theta = SNPSE(task.prior).prior.sample(budget, generator)
        x = task.simulate(theta, generator)
        ours = {"steps": steps, **({"width": 16} if quick else {})}
        contestants: dict[str, Any] = {
            "ours": lambda theta=theta, x=x, task=task, ours=ours: (
                SNPSE(task.prior, **ours).append_simulations(theta, x).train().build_posterior()
            ),
        }
        if installed("sbi") and not quick:
            contestants["sbi NPSE"] = lambda theta=theta, x=x, task=task, x_obs=x_obs: baselines.fit(
                "sbi_npse", task.prior, theta, x, x_obs
            )
        if installed("lampe"):
            contestants["lampe NSE"] = lambda theta=theta, x=x, x_obs=x_obs: _lampe(theta, x, x_obs, steps, 0)
        for who, train in contestants.items():
            start = time.perf_counter()
            posterior = train()
            trained = time.perf_counter()
            if who == "ours":
                posterior.x_obs = x_obs
            found = posterior.sample((draws,), inside=False)
            drawn = time.perf_counter()
            posterior.log_prob(found[:dense])
            measured = time.perf_counter()
            value = metrics.c2st(reference[:2000], found[:2000])
            rows.append({"task": name, "contestant": who, "c2st": value, "train_s": trained - start, "sample_s": drawn - trained,
                         "log_prob_s": measured - drawn})  # fmt: skip
    return rows


def default_fit(quick: bool = False) -> list[dict[str, Any]]:
    """Seconds of a default fit to 3,000 simulations of two moons."""
    import torch

    from common.race import race
    from papers.snpse import SNPSE, tasks

    task, generator = tasks.get("two_moons"), torch.Generator().manual_seed(0)
    theta = SNPSE(task.prior).prior.sample(3000, generator)
    x = task.simulate(theta, generator)
    options = {"steps": 10, "width": 16} if quick else {}
    return race(
        {"ours": lambda: SNPSE(task.prior, **options).append_simulations(theta, x).train()}, 1 if quick else 3, 0
    )
