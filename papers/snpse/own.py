"""What a user brings to `infer`, and the report that it ends with."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.data.locate import own_file
from common.errors import UserError, shorten, user_errors
from common.run import Run
from papers.snpse import metrics, plots
from papers.snpse.estimator import SNPSE
from papers.snpse.posterior import Posterior, check_observation
from papers.snpse.priors import from_spec
from papers.snpse.simulators import simulate


def inputs(cfg: Any, run: Run) -> tuple[Callable, Any, Tensor]:
    """The simulator, the prior and the observation that the settings name. UserError in one sentence for any that is wrong."""
    for key, what in (("simulator", "module:function"), ("prior", "a .yaml"), ("x", "a .npy")):
        if not cfg[key]:
            raise UserError(f"{key} must be given: {key}={what}")
    x = read_observation(own_file(cfg.x, "x", run, folder=None))
    prior = read_prior(own_file(cfg.prior, "prior", run, folder=None))
    if cfg.budget < cfg.rounds:
        raise UserError(f"budget is {cfg.budget} and rounds is {cfg.rounds}: at least one simulation a round is needed")
    return load_simulator(cfg.simulator), prior, x


def _regular(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path} is no file: give one")


def read_observation(path: Path) -> Tensor:
    """x (p,) of an .npy file."""
    _regular(path)
    try:
        found = np.load(path, allow_pickle=False)
        if not isinstance(found, np.ndarray):
            raise ValueError("it is an archive of several arrays")
        if found.dtype.kind not in "fiu":
            raise ValueError(f"it holds {found.dtype}")
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, PermissionError):
            raise
        raise UserError(
            f"{path} cannot be read as .npy ({shorten(str(error), 120)}): save x_obs with numpy.save"
        ) from None
    except Exception as error:  # zipfile's own, and header errors
        raise UserError(f"{path} cannot be read as .npy ({type(error).__name__}): save x_obs with numpy.save") from None
    with user_errors(str(path)):
        return check_observation(found)


def read_prior(path: Path) -> Any:
    """The prior that a YAML file describes."""
    import yaml

    _regular(path)
    try:
        spec = yaml.safe_load(path.read_text())
    except (UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as YAML ({shorten(str(error), 120)}): write {{kind: uniform, low: [...], high: [...]}}"
        ) from None
    with user_errors(str(path)):
        return from_spec(spec)


def load_simulator(name: str) -> Callable:
    """The function of `module:function`; the current folder is searched too."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise UserError(f"simulator is {shorten(name)!r}: give module:function")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), function, None)
    except Exception as error:
        raise UserError(
            f"simulator: {shorten(module)} cannot be imported ({type(error).__name__}: {shorten(str(error))}): check the name"
        ) from None
    finally:
        sys.path.remove(here)
    if not callable(found):
        raise UserError(f"simulator: {module} has no function {shorten(function)}: check the name")
    return found


def estimator(cfg: Any, run: Run, simulator: Callable, prior: Any) -> SNPSE:
    """SNPSE with the settings' options."""
    options = {str(k): v for k, v in cfg.training.items()}
    return SNPSE(prior, simulator, sde=cfg.sde, head=cfg.head, eps=cfg.eps, seed=run.seed, nan=cfg.nan, transform=cfg.transform,
                 workers=cfg.workers, stop_kl=cfg.stop_kl, **options)  # fmt: skip


def out_of(cfg: Any, run: Run) -> Path:
    """Where the posterior goes."""
    path = Path(cfg.out).expanduser() if cfg.out else run.dir / "posterior.safetensors"
    if not path.absolute().parent.is_dir():
        raise UserError(f"out: there is no folder {path.absolute().parent}: make it first")
    return path


def report(cfg: Any, run: Run, inference: SNPSE, posterior: Posterior) -> None:
    """Tables and notes: rounds, parameters, leakage, predictive check, coverage; warnings of what the result may hide."""
    rows = [{k: v for k, v in r.items() if k != "box"} for r in posterior.diagnostics["rounds"]]
    run.table("rounds", rows)
    draws = posterior.sample((cfg.report.draws,))
    prior = posterior.prior.sample(2000, run.rng("report").torch)
    narrower = draws.std(0) / prior.std(0)
    quantiles = torch.quantile(draws, torch.tensor([0.05, 0.5, 0.95]), dim=0).T
    run.table("parameters", [
        {"parameter": j + 1, "mean": float(draws[:, j].mean()), "std": float(draws[:, j].std()), "q05": float(q[0]), "median": float(q[1]),
         "q95": float(q[2]), "std_over_prior": float(narrower[j])} for j, q in enumerate(quantiles)
    ])  # fmt: skip
    run.log({"leakage": posterior.diagnostics.get("leakage", 0.0), "simulations": len(inference.theta)})
    if loose := [j + 1 for j, v in enumerate(narrower.tolist()) if v > 0.9]:
        run.note(f"parameters {loose} are as wide as the prior: the observation does not identify them")
    for warning in posterior.diagnostics["warnings"]:
        run.note(warning)
    if cfg.report.predictive:
        assert inference.simulator is not None
        x = simulate(inference.simulator, draws[: cfg.report.predictive], run.rng("predictive").torch, cfg.workers)
        check = metrics.predictive_check(x, posterior.x_obs)  # type: ignore[arg-type]
        run.table("predictive", [{"statistic": j + 1, "quantile": q} for j, q in enumerate(check["quantiles"])])
        run.log(
            {
                "predictive.valid": float(torch.isfinite(x).all(1).float().mean()),
                "predictive.outside": len(check["outside"]),
            }
        )
        if check["outside"]:
            run.note(
                f"statistics {[j + 1 for j in check['outside']]} of x lie outside all simulations at posterior draws"
            )
    if cfg.report.coverage and cfg.rounds == 1:  # later rounds are trained for one observation, and cover there alone
        assert inference.x is not None
        whole = torch.isfinite(inference.x).all(1)
        theta, x = inference.theta[whole][: cfg.report.coverage], inference.x[whole][: cfg.report.coverage]
        cover = metrics.expected_coverage(posterior, theta, x, draws=100)
        run.log({"coverage.gap": max(abs(a - b) for a, b in zip(cover["level"], cover["coverage"], strict=True))})
        run.note("coverage is over simulations that were trained on: a gap here is a lower bound")
    run.figure("posterior", plots.pairs(draws, prior))
