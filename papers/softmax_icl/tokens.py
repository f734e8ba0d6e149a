"""Training on real prompts with Lightning: sample w, x and y, and differentiate through the transformer.

Batch i is drawn from a generator of (seed, name, i) alone, so the order of data does not depend on where a run was stopped.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from common.run import Run
from common.training import lightning_fit
from papers.softmax_icl.data import Prompts
from papers.softmax_icl.model import squared_loss


class History(NamedTuple):
    """losses: the batch loss before each step. seen: (step, what `watch` returned), before that step and after the last."""

    losses: list[float]
    seen: list[tuple[int, Any]]


class InContextRegression(pl.LightningModule):
    """A model with `predict(x, y, x_q)`, trained on the paper's loss; its history is part of its state, so it survives a kill."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        watch: Callable[[], Any] | None,
        watch_every: int,
        log_as: str = "train",
        log_every: int = 1,
    ):
        super().__init__()
        self.log_as, self.log_every = log_as, log_every
        self.model, self.make_optimizer, self.watch, self.watch_every = model, optimizer, watch, watch_every
        self.history = History([], [])

    def training_step(self, batch: tuple[Tensor, ...], index: int) -> Tensor:
        step = len(self.history.losses)
        if self.watch is not None and step % self.watch_every == 0:
            self.history.seen.append((step, self.watch()))
        x, y, x_q, y_q = batch
        loss = squared_loss(self.model.predict(x, y, x_q), y_q).mean()  # type: ignore[operator]
        self.history.losses.append(float(loss.detach()))
        if step % self.log_every == 0:
            self.log(f"{self.log_as}.loss", loss.detach())  # a curve
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.make_optimizer([p for p in self.model.parameters() if p.requires_grad])

    def get_extra_state(self) -> dict[str, Any]:
        return {"losses": self.history.losses, "seen": self.history.seen}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.history = History(state["losses"], state["seen"])


def fit(model: nn.Module, draw: Callable[[torch.Generator], Prompts], steps: int,
        optimizer: Callable[[Any], torch.optim.Optimizer], cfg: Any, run: Run, name: str, *, batches: str | None = None,
        watch: Callable[[], Any] | None = None, watch_every: int = 1) -> History:  # fmt: skip
    """Train `model` in place for `steps` batches, batch i being draw(generator of (seed, `batches`, i)).

    name: of this training, in checkpoints; batches: the name of its data where that is not `name`, so that models can share it.
    The batch loss is a curve, `<name>.loss`, of some 200 points.
    optimizer: parameters -> optimiser. cfg.trainer says on what device. watch() is called every `watch_every` steps and once at
    the end; it returns numbers, arrays or dicts of them. A killed run goes on from its last checkpoint to the same figures.
    """
    module = InContextRegression(model, optimizer, watch, watch_every, name, max(1, steps // 200))

    def batch(step: int) -> tuple[Tensor, ...]:
        prompts = draw(run.rng(batches or name, "batch", step).torch)
        return prompts.x, prompts.y, prompts.x_q, prompts.y_q

    precision = "64-true" if next(model.parameters()).dtype == torch.float64 else "32-true"
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "The 'train_dataloader' does not have many workers"
        )  # drawing a batch is cheaper than sending it
        lightning_fit(module, batch, steps, cfg, run, name=name, precision=precision)
    history = module.history
    return history._replace(seen=[*history.seen, (steps, watch())]) if watch is not None else history
