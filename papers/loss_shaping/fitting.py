"""One training: batches, validation after each epoch, the checkpoint to report, and profiles over every window."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from common.errors import user_errors
from common.rng import seeded
from papers.loss_shaping.constraints import DualVariables, Weighting
from papers.loss_shaping.data import Dataset, Windows
from papers.loss_shaping.forecasters import Shape, build_forecaster
from papers.loss_shaping.shaping import ConstrainedTraining, WindowLosses, predict

if TYPE_CHECKING:
    from common.run import Run

Fitted = dict[str, Any]  # see `fit`


def lr_factor(cfg: Any) -> Callable[[int], float]:
    """Epoch (from 0) -> factor of the learning rate. type1, the benchmark's: 1, 1, then halved at each epoch."""
    kinds: dict[str, Callable[[int], float]] = {
        "constant": lambda epoch: 1.0,
        "exponential": lambda epoch: cfg.decay**epoch,
        "type1": lambda epoch: 0.5 ** max(0, epoch - 1),
    }
    if cfg.schedule not in kinds:
        raise ValueError(f"schedule is {cfg.schedule!r}: use {', '.join(kinds)}")
    return kinds[cfg.schedule]


def make_forecaster(cfg: Any, data: Dataset, seed: int) -> nn.Module:
    """The forecaster of `cfg` (the config's `model`), its weights drawn by torch from this seed, as the paper's are."""
    windows = data.segments["train"]
    shape = Shape(data.channels, data.mark_width, windows.context, windows.label, windows.horizon)
    with seeded(seed), user_errors(f"model={cfg.name}"):
        return build_forecaster(cfg.name, shape, cfg)


def batch_stream(windows: Windows, size: int, run: Run, seed: int) -> tuple[Callable[[int], Any], int]:
    """step -> batch, shuffled anew each epoch and a function of (seed, step) alone; and the number of steps in an epoch.

    The windows left over at the end of an epoch wait for another epoch's order.
    """
    size = min(size, len(windows))
    steps = len(windows) // size

    @cache
    def order(epoch: int) -> torch.Tensor:
        return torch.randperm(len(windows), generator=run.rng("batches", seed, epoch).torch)

    def batch(step: int) -> dict[str, torch.Tensor]:
        epoch, place = divmod(step, steps)
        return windows.batch(order(epoch)[place * size : (place + 1) * size])

    return batch, steps


@torch.no_grad()
def evaluate(forecaster: nn.Module, windows: Windows, batch_size: int) -> dict[str, NDArray[np.float64]]:
    """Errors over all windows, each counted once. mse and mae (T, C); windows (N, T), squared, channels averaged.

    Masked gaps count nowhere: a step of a window of which nothing was seen is NaN in `windows`, a cell never seen NaN in mse.

    Informer and Reformer draw at random here too: always the same draws, and training's are left as they were.
    """
    with seeded(0):
        return _evaluate(forecaster, windows, batch_size)


def _evaluate(forecaster: nn.Module, windows: Windows, batch_size: int) -> dict[str, NDArray[np.float64]]:
    was_training, device = forecaster.training, next(forecaster.parameters()).device
    forecaster.eval()
    squared = absolute = count = torch.zeros((), dtype=torch.float64)
    each = []
    for batch in windows.batches(batch_size):
        moved = {key: value.to(device) for key, value in batch.items()}
        error = predict(forecaster, moved).float() - moved["y"]  # (B, T, C)
        if "seen" in moved:
            seen = moved["seen"]
            error = error * seen
            count = count + seen.sum(0, dtype=torch.float64).cpu()
            each.append((error.square().sum(2) / seen.sum(2)).cpu())  # 0 / 0: NaN
        else:
            each.append(error.square().mean(2).cpu())
        squared = squared + error.square().sum(0, dtype=torch.float64).cpu()
        absolute = absolute + error.abs().sum(0, dtype=torch.float64).cpu()
    forecaster.train(was_training)
    N: Any = len(windows) if windows.seen is None else count
    return {"mse": (squared / N).numpy(), "mae": (absolute / N).numpy(), "windows": torch.cat(each).numpy()}


def fit(cfg: Any, run: Run, data: Dataset, weighting: Weighting, name: str, seed: int) -> Fitted:
    """Train cfg.model on `data` under `weighting` for cfg.epochs epochs; kept as a stage of the run.

    Returns profiles {train, val, test: (T, C)}, test_mae (T, C), test_windows (N, T), the epoch (from 1) whose weights
    these are (cfg.report: last | best_val), parameters, and of duals the multipliers and slacks at the end and their path.
    Training always runs all epochs: stopping early would leave the prices on their way.
    """

    return run.stage(name, train_once, cfg, run, data, weighting, name, seed, key=[data.sha, seed])


def train_once(cfg: Any, run: Run, data: Dataset, weighting: Weighting, name: str, seed: int) -> Fitted:
    """What `fit` keeps: the training itself, and what is measured after it."""
    from common.training import lightning_fit

    batch, steps_per_epoch = batch_stream(data.segments["train"], cfg.batch_size, run, seed)
    forecaster = make_forecaster(cfg.model, data, seed)
    with user_errors("duals"):
        module = ConstrainedTraining(
            WindowLosses(forecaster, cells="grid" if cfg.groups else "steps"),
            weighting,
            lr=cfg.lr,
            beta2=cfg.beta2,
            steps_per_epoch=steps_per_epoch,
            lr_factor=lr_factor(cfg),
            dual_order=cfg.duals.order,
            dual_every=cfg.duals.every,
            optimiser_state=cfg.duals.optimiser_state,
            normalise=cfg.normalise_weights,
            sampling=cfg.sampling,
            log_as=name,
        )
    steps = steps_per_epoch * cfg.epochs
    snapshot = max(1, steps // 60)

    def after_step(step: int) -> None:
        if step % snapshot == 0 and isinstance(weighting, DualVariables):
            module.history.append({"step": step, "multipliers": weighting.multipliers.detach().cpu().clone()})
        if (step + 1) % steps_per_epoch == 0:
            val = float(evaluate(forecaster, data.segments["val"], cfg.eval_batch)["mse"].mean())
            module.consider(val, epoch=(step + 1) // steps_per_epoch)
            run.log({f"{name}.val_mse": val}, step=step)

    with run.time("fit_s"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You defined a `validation_step`")  # after_step validates, on all windows
        lightning_fit(module, batch, steps, cfg, run, name=name, after_step=after_step)
    if cfg.report == "best_val":
        module.restore_best()
    if cfg.save_models:
        _save(forecaster, run, name)
    return _measure(cfg, run, data, module, forecaster)


def _measure(cfg: Any, run: Run, data: Dataset, module: ConstrainedTraining, forecaster: nn.Module) -> Fitted:
    weighting = module.weighting
    with run.time("evaluate_s"):
        found = {segment: evaluate(forecaster, data.segments[segment], cfg.eval_batch) for segment in data.segments}
    fitted: Fitted = {segment: errors["mse"] for segment, errors in found.items()}
    fitted |= {"test_mae": found["test"]["mae"], "test_windows": found["test"]["windows"]}
    epoch = module.best["epoch"] if cfg.report == "best_val" else cfg.epochs
    fitted |= {"epoch": epoch, "parameters": sum(p.numel() for p in forecaster.parameters())}
    if isinstance(weighting, DualVariables):
        fitted |= {
            "multipliers": weighting.multipliers.cpu().numpy().copy(),
            "slack": weighting.slack.cpu().numpy().copy(),
            "path": np.stack([point["multipliers"].numpy() for point in module.history]),
            "path_steps": [point["step"] for point in module.history],
        }
    return fitted


def _save(forecaster: nn.Module, run: Run, name: str) -> None:
    from common import codec

    if run.is_main:
        codec.save(run.dir / "models" / f"{name}.safetensors", dict(forecaster.state_dict()))
