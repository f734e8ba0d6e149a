"""Constrained training: one optimiser step on the weighted loss, one ascent step on the prices (sec. 3.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.data import extract_batch_size
from torch import Tensor, nn

from papers.loss_shaping import moments
from papers.loss_shaping.constraints import DualVariables, Weighting

ELEMENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": lambda prediction, target: (prediction - target).square(),
    "mae": lambda prediction, target: (prediction - target).abs(),
    "huber": lambda prediction, target: nn.functional.huber_loss(prediction, target, reduction="none"),
}


def predict(forecaster: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """f(x, m_x, dec_in, m_y): (B, T_p, C). dec_in holds the last T_l known rows, then zeros: no target is seen."""
    x, y = batch["x"], batch["y"]
    known = batch["y_mark"].shape[1] - y.shape[1]  # T_l
    decoder_input = torch.cat([x[:, x.shape[1] - known :], torch.zeros_like(y)], dim=1)  # (B, T_l + T_p, C)
    return forecaster(x, batch["x_mark"], decoder_input, batch["y_mark"])


class WindowLosses(nn.Module):
    """A forecaster as a module that maps a batch to its losses, l_i = 1/(B C) sum_{b,c} (f(x)_{i,c} - y_{i,c})^2.

    Where the batch has `seen` (B, T, C), the mean is over what was seen; a cell that the batch lacks altogether has loss 0.

    cells: "steps" keeps one loss a step (T,); "grid" one a step and channel (T C,), for constraints on channels.
    """

    def __init__(self, forecaster: nn.Module, element: str = "mse", cells: str = "steps"):
        super().__init__()
        if element not in ELEMENTS or cells not in ("steps", "grid"):
            raise ValueError(f"element must be one of {', '.join(ELEMENTS)}, and cells steps or grid")
        self.forecaster, self.element, self.cells = forecaster, element, cells

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        error = ELEMENTS[self.element](predict(self.forecaster, batch).float(), batch["y"].float())  # (B, T, C)
        if "seen" in batch:
            seen = batch["seen"].to(error)
            over = (0, 2) if self.cells == "steps" else (0,)
            return ((error * seen).sum(over) / seen.sum(over).clamp(min=1)).flatten()
        return error.mean((0, 2)) if self.cells == "steps" else error.mean(0).flatten()


class Fixed(Weighting):
    """Weights that training does not move: 1/n each is ERM, others are a fixed re-weighting. weights: (n,)"""

    def __init__(self, weights: Tensor):
        super().__init__()
        self.w: Tensor
        self.register_buffer("w", torch.as_tensor(weights, dtype=torch.float32))

    def weights(self, losses: Tensor) -> Tensor:
        return self.w

    def step(self, losses: Tensor) -> None:
        """Nothing moves."""


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def mean_over_processes(losses: Tensor) -> Tensor:
    """losses (n,) without graph, meaned over the shares of the batch that several processes have."""
    losses = losses.detach()
    if not _distributed():
        return losses
    losses = losses.clone()
    torch.distributed.all_reduce(losses)
    return losses / torch.distributed.get_world_size()


class ConstrainedTraining(pl.LightningModule):
    """Lightning module that trains `losses` under `weighting`, and keeps the state with the lowest mean validation loss.

    losses: any module that maps a batch to a vector of losses (n,), `WindowLosses` for a forecaster.
    weighting: `weights(losses) -> (n,)` and `step(losses)`: DualVariables, or one of the baselines.
    beta2: of Adam; about 1 / (1 - beta2) steps after a price has moved, the scale of gradients is forgotten.
    lr_factor: epoch (from 0) -> factor of lr; steps_per_epoch says what an epoch is, for it and for dual_every=epoch.
    dual_order: before_primal (the released code: the model's step uses the prices from before this batch, the prices
        move on the losses from before the model's step) or after_primal (prices move on the losses after it).
    dual_every: batch, or epoch (then on the mean losses of the epoch).
    normalise: divide the weights by their sum, so that prices do not scale the gradient.
    sampling: instead of the weighted sum, the mean of n losses drawn with probability proportional to their weights.
    optimiser_state: what becomes of Adam's memory where prices move: as_is, rescaled or exact (see `moments`). Lightning
        calls the hook; in a loop of your own call `follow(optimizer)` between backward() and step().
    """

    def __init__(self, losses: nn.Module, weighting: Weighting, *, lr: float, beta2: float = 0.999, steps_per_epoch: int | None = None,
                 lr_factor: Callable[[int], float] | None = None, dual_order: str = "before_primal", dual_every: str = "batch",
                 normalise: bool = False, sampling: bool = False, optimiser_state: str = "as_is", log_as: str = "train", log_every: int = 10):  # fmt: skip
        super().__init__()
        if dual_order not in ("before_primal", "after_primal"):
            raise ValueError(f"dual_order is {dual_order!r}: use before_primal or after_primal")
        if dual_every not in ("batch", "epoch"):
            raise ValueError(f"dual_every is {dual_every!r}: use batch or epoch")
        if optimiser_state not in moments.STATES:
            raise ValueError(f"optimiser_state is {optimiser_state!r}: use {', '.join(moments.STATES)}")
        if steps_per_epoch is None and (dual_every == "epoch" or lr_factor is not None):
            raise ValueError(
                "steps_per_epoch is needed by dual_every='epoch' and by lr_factor: give the batches of an epoch"
            )
        self.losses, self.weighting = losses, weighting
        self.lr, self.beta2 = lr, beta2
        self.steps_per_epoch, self.lr_factor = steps_per_epoch or 1, lr_factor or (lambda epoch: 1.0)
        self.dual_order, self.dual_every = dual_order, dual_every
        self.normalise, self.sampling = normalise, sampling
        # weights that no price moves leave Adam alone: those of the baselines that change do so with every batch
        self.optimiser_state = optimiser_state if isinstance(weighting, DualVariables) else "as_is"
        self.used: Tensor | None = None  # weights (n,) of this step
        self.remembered: Tensor | None = None  # weights that Adam's moments are on the scale of
        self.at: Tensor | None = None  # losses (n,) of this step
        self.owners: list[Tensor] | None = None
        n = getattr(weighting, "n_losses", 0)
        exact = self.optimiser_state == "exact"
        self.exact = moments.ExactMoments(n, self.trained, (0.9, beta2)) if exact else None
        self.log_as, self.log_every = log_as, log_every
        self.summed: Tensor | None = None  # losses of the epoch so far, for dual_every=epoch
        self.seen = 0
        self.steps_done = 0  # also across a resume, where Lightning counts anew
        self.best: dict[str, Any] = {}  # the state of `losses` with the lowest validation loss so far
        self.history: list[dict[str, Any]] = []  # for whoever drives the training to write the path of the prices in
        self.validated: list[tuple[float, int]] = []  # mean loss and size of this validation's batches

    def configure_optimizers(self) -> Any:
        # no weight decay, and the prices are not in it
        adam = torch.optim.Adam(self.losses.parameters(), lr=self.lr, betas=(0.9, self.beta2))
        schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: self.lr_factor(step // self.steps_per_epoch))
        return {"optimizer": adam, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def training_step(self, batch: Any, index: int) -> Tensor:
        losses = self.losses(batch)  # (n,), with the graph
        loss = self.lagrangian(losses)
        self.look_at(losses)
        if self.dual_order == "before_primal":
            self.dual_update(losses)
        if self.steps_done % self.log_every == 0:
            self.log(f"{self.log_as}.loss", losses.detach().mean())
            if isinstance(self.weighting, DualVariables):
                self.log(f"{self.log_as}.sum_prices", self.weighting.multipliers.sum())
                self.log(f"{self.log_as}.max_price", self.weighting.multipliers.max())
        self.steps_done += 1
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        if self.dual_order == "after_primal":
            with torch.no_grad():
                self.dual_update(self.losses(batch))

    def lagrangian(self, losses: Tensor) -> Tensor:
        """sum_i w_i l_i, the part of the Lagrangian that depends on the model. losses: (n,).

        Raises ValueError for sampling where a weight is negative (monotone and smooth constraints can have such).
        """
        w = self.weighting.weights(losses.detach())
        self.used = (w / w.sum() if self.normalise or self.sampling else w).detach().clone()
        if self.sampling:
            if (w < 0).any():
                raise ValueError(
                    "sampling draws steps by their weights, and one is negative: train on the weighted sum"
                )
            return losses[torch.multinomial(w, len(w), replacement=True)].mean()
        return (w / w.sum() if self.normalise else w) @ losses

    # ---- Adam's memory -----------------------------------------------------------------------------------------------

    @property
    def trained(self) -> list[Tensor]:
        return [p for p in self.losses.parameters() if p.requires_grad]

    def look_at(self, losses: Tensor) -> None:
        """Before backward(): what `follow` needs of the graph of the losses (n,)."""
        if self.optimiser_state == "as_is":
            return
        self.at = mean_over_processes(losses)
        if self.exact is not None:
            self.exact.see(losses)
            assert self.exact.gradients is not None
            self.exact.gradients = mean_over_processes(self.exact.gradients)
        elif self.owners is None:
            self.owners = moments.owners(losses, self.trained)
            for owner in self.owners:  # a row may have no gradient in one process's share
                if _distributed():
                    torch.distributed.all_reduce(owner, torch.distributed.ReduceOp.MAX)

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the optimiser's memory on the scale of this step's weights: between backward() and step()."""
        if self.optimiser_state == "as_is" or self.used is None or self.at is None:
            return
        if self.exact is not None:
            self.exact.put(optimizer, self.used)
        elif self.owners is not None and self.remembered is not None and not torch.equal(self.used, self.remembered):
            before, now, at = (part.to(self.owners[0].device) for part in (self.remembered, self.used, self.at))
            scales = [moments.ratios(owner, before, now, at) for owner in self.owners]
            moments.rescale(optimizer, self.trained, scales)
        self.remembered = self.used

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.follow(optimizer)

    def dual_update(self, losses: Tensor) -> None:
        """Move the prices, on the losses of all processes' shares of the batch."""
        losses = mean_over_processes(losses)
        if self.dual_every == "batch":
            self.weighting.step(losses)
            return
        self.summed = losses if self.summed is None else self.summed.to(losses) + losses
        self.seen += 1
        if self.seen == self.steps_per_epoch:
            self.weighting.step(self.summed / self.seen)
            self.summed, self.seen = None, 0

    # ---- the checkpoint on validation --------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        self.validated = []

    def validation_step(self, batch: Any, index: int) -> None:
        losses = self.losses(batch)
        self.validated.append((losses.mean().item(), extract_batch_size(batch)))

    def on_validation_epoch_end(self) -> None:
        """The mean over windows, not over batches: the last batch may be short."""
        val_loss = sum(loss * size for loss, size in self.validated) / sum(size for _, size in self.validated)
        self.log("val.loss", val_loss)
        if not self.trainer.sanity_checking:
            self.consider(val_loss, epoch=self.current_epoch + 1)

    def consider(self, val_loss: float, epoch: int) -> None:
        """Keep this state where its mean validation loss is the lowest yet."""
        if not self.best or val_loss < self.best["val_loss"]:
            state = {key: value.detach().cpu().clone() for key, value in self.losses.state_dict().items()}
            self.best = {"val_loss": val_loss, "epoch": epoch, "state": state}

    def restore_best(self) -> None:
        self.losses.load_state_dict(self.best["state"])

    # ---- what a resumed run needs besides the weights and the prices -------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        return {"best": self.best, "history": self.history, "summed": self.summed, "seen": self.seen,
                "steps_done": self.steps_done, "remembered": self.remembered, "owners": self.owners,
                "exact": self.exact.state_dict() if self.exact else None}  # fmt: skip

    def set_extra_state(self, state: dict[str, Any]) -> None:
        for key, value in state.items():
            if key != "exact":
                setattr(self, key, value)
        if self.exact is not None:
            self.exact.load_state_dict(state["exact"])
