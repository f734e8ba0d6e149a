"""Training: a teacher by cross-entropy, a student by a distiller, and what a student is worth afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.rng import Rng, seeded
from papers.kd_aux import metrics, taps
from papers.kd_aux.distillers import AuxKD, Distiller, Taught
from papers.kd_aux.inference import knn_classifier, prototype_classifier, unit


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. schedule: constant, cosine, or steps (x 0.1 at the `milestones`, in epochs)."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float = 0.0
    optimiser: str = "adam"
    schedule: str = "constant"
    milestones: tuple[int, ...] = ()
    momentum: float = 0.9

    def make(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        if self.optimiser == "adam":
            return torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True)
        return torch.optim.SGD(parameters, lr=self.lr, weight_decay=self.weight_decay, momentum=self.momentum)

    def rate(self, step: int, per_epoch: int) -> float:
        """The learning rate of a step."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + float(np.cos(np.pi * step / (self.epochs * per_epoch))))
        if self.schedule == "steps":
            return self.lr * 0.1 ** sum(step // per_epoch >= m for m in self.milestones)
        return self.lr


def recipe(settings: Mapping[str, Any]) -> Recipe:
    """A recipe of a config's mapping."""
    found: dict[str, Any] = dict(settings)
    if "milestones" in found:
        found["milestones"] = tuple(found["milestones"])
    return Recipe(**found)


def batches_of(n: int, batch_size: int, epoch: int, rng: Rng) -> tuple[Tensor, ...]:
    """The rows of each batch of an epoch: a permutation that depends on (seed, name, epoch) alone."""
    order = torch.from_numpy(Rng(rng.root, *rng.name, epoch).numpy.permutation(n))
    return order.split(batch_size)


def descend(loss_of: Callable[[Tensor, int], Tensor], optimizer: torch.optim.Optimizer, n: int, how: Recipe, rng: Rng,
            steps: Iterable[int] | None = None) -> None:  # fmt: skip
    """Take the recipe's steps on loss_of(rows, step). A batch of one row is left out: batch norms cannot use it."""
    per_epoch = -(-n // how.batch_size)
    rows: tuple[Tensor, ...] = ()
    at = -1
    for step in range(how.epochs * per_epoch) if steps is None else steps:
        if step // per_epoch != at:
            at = step // per_epoch
            rows = batches_of(n, how.batch_size, at, rng)
        if len(rows[step % per_epoch]) < 2:
            continue
        for group in optimizer.param_groups:
            group["lr"] = how.rate(step, per_epoch)
        optimizer.zero_grad(set_to_none=True)
        loss_of(rows[step % per_epoch], step).backward()
        optimizer.step()


def train_plain(model: nn.Module, x: Tensor, y: Tensor, how: Recipe, rng: Rng, smoothing: float = 0.0) -> nn.Module:
    """Fit by cross-entropy alone, as teachers are."""
    model.train()
    descend(lambda rows, _: F.cross_entropy(model(x[rows]), y[rows], label_smoothing=smoothing), how.make(model.parameters()),
            len(y), how, rng)  # fmt: skip
    return model.eval()


def init(make: Callable[[], nn.Module], rng: Rng) -> nn.Module:
    """A model with initial weights that depend on the generator's name alone."""
    with seeded(rng.seed):
        return make()


def teach_all(distiller: Distiller, x: Any, batch: int = 500) -> Taught:
    """What the teacher says of every row: kept, where the inputs of a row never change."""
    parts = [distiller.teach(rows) for rows in taps.pieces(x, batch)]
    return Taught(
        [torch.cat(f) for f in zip(*(p.features for p in parts), strict=True)], torch.cat([p.logits for p in parts])
    )


def distil(distiller: Distiller, x: Any, y: Tensor, how: Recipe, rng: Rng, *, taught: Taught | None = None,
           extra: tuple[Tensor, Taught] | None = None, extra_rows: int = 0, steps: Iterable[int] | None = None,
           optimizer: torch.optim.Optimizer | None = None, watch: Callable[[int], None] | None = None) -> Distiller:  # fmt: skip
    """Train the distiller's student.

    taught: the teacher's words on every row of x, kept. extra: unlabelled rows and the teacher's words on them; `extra_rows`
    of these are enqueued as instances at each step (their labels are the teacher's guesses). watch(step) before each step.
    """
    distiller.student.train()
    if taught is None and distiller.method != "ce":
        taught = teach_all(distiller, x)

    def loss_of(rows: Tensor, step: int) -> Tensor:
        if watch is not None:
            watch(step)
        if extra is not None and extra_rows and isinstance(distiller.term, AuxKD):
            drawn = torch.from_numpy(
                Rng(rng.root, *rng.name, "extra", step).numpy.integers(len(extra[0]), size=extra_rows)
            )
            logits = extra[1].logits[drawn]
            distiller.term.queue.enqueue(
                unit(taps.pooled(extra[1].features[-1][drawn]))[0], logits, logits.argmax(dim=1)
            )
        said = None if taught is None else Taught([f[rows] for f in taught.features], taught.logits[rows])
        return distiller.loss(taps.take(x, rows), y[rows], said)[0]

    descend(loss_of, optimizer or how.make(distiller.parameters()), len(y), how, rng, steps)
    distiller.student.eval()
    return distiller


@torch.no_grad()
def predict(model: nn.Module, x: Any, batch: int = 500) -> Tensor:
    """Logits of every row, in evaluation mode."""
    was = model.training
    model.eval()
    parts = [taps.as_logits(taps.call(model, rows)) for rows in taps.pieces(x, batch)]
    model.train(was)
    return torch.cat(parts)


@torch.no_grad()
def features(model: nn.Module, names: list[str], x: Any, batch: int = 500) -> Tensor:
    """The last named feature of every row, pooled: (N, D)."""
    was = model.training
    model.eval()
    found = torch.cat([taps.pooled(taps.run(model, rows, names)[0][-1]) for rows in taps.pieces(x, batch)])
    model.train(was)
    return found


@torch.no_grad()
def judge(distiller: Distiller, x: Any, y: Tensor, train: tuple[Taught, Tensor] | None = None) -> dict[str, float]:
    """Accuracy and calibration error of the linear head; of prototypes and neighbours too where there is an embedding.

    train: the teacher's words on the training rows and their labels: what prototypes and neighbours are made of.
    """
    logits = predict(distiller.student, x)
    found = {
        "linear": metrics.accuracy(logits, y),
        "linear_ece": metrics.calibration_error(F.softmax(logits, dim=1), y),
    }
    term = distiller.term
    if not isinstance(term, AuxKD) or train is None:
        return found
    taught, labels = train
    t = unit(taps.pooled(taught.features[-1]))[0]
    s = term.embed(features(distiller.student, distiller.student_names, x))
    by_prototype = prototype_classifier(t, labels, logits.shape[1], 1 / term.tau)(s)
    found |= {
        "prototype": metrics.accuracy(by_prototype, y),
        "prototype_ece": metrics.calibration_error(F.softmax(by_prototype, dim=1), y),
    }
    alive = s.abs().amax(dim=1) > 0
    by_neighbours = torch.zeros_like(by_prototype)
    by_neighbours[alive] = knn_classifier(t, taught.logits, term.tau, term.alpha)(s[alive])
    found |= {
        "knn": metrics.accuracy(by_neighbours, y),
        "knn_ece": metrics.calibration_error(F.softmax(by_neighbours, dim=1), y),
    }
    return found
