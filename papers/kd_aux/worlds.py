"""Worlds: training rows, test rows, a trained teacher and a fresh student, all functions of a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common.errors import UserError
from common.rng import Rng
from common.run import Run
from papers.kd_aux import data, networks
from papers.kd_aux.distillers import Distiller, Taught
from papers.kd_aux.fit import Recipe, distil, init, judge, recipe, teach_all, train_plain


@dataclass(frozen=True)
class World:
    """One draw of the rows. rest: rows that are neither trained on nor judged, given without labels."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    rest: Tensor
    classes: int
    see: tuple[int, int] | None
    seed: int


def split(found: data.Set, options: Mapping[str, Any], seed: int, run: Run, judged: str = "test") -> World:
    """`train_per_class` rows of each class at random; judged on the others (test), or on the first `validation` rows of each
    class, which no world trains on or tests on (validation). Tables are standardised by their training rows."""
    generator = Rng(0, "rows", found.name, seed).numpy  # of the world's own seed, which a run's seed has moved
    train, rest, held = [], [], []
    for c in range(found.classes):
        rows = (found.y == c).nonzero()[:, 0].numpy()
        if len(rows) < options["validation"] + options["train_per_class"] + 1:
            raise UserError(
                f"{found.name} has {len(rows)} rows of class {c}: train_per_class {options['train_per_class']} and "
                f"validation {options['validation']} leave none to test on"
            )
        held.append(rows[: options["validation"]])
        order = generator.permutation(rows[options["validation"] :])
        train.append(order[: options["train_per_class"]])
        rest.append(order[options["train_per_class"] :])
    i, j, k = (torch.from_numpy(np.concatenate(part)) for part in (train, rest, held))
    x = found.x
    if x.dim() == 2:
        mean, sd = x[i].mean(dim=0), x[i].std(dim=0)
        x = (x - mean) / torch.where(sd > 0, sd, torch.ones_like(sd))
    judge_on, unlabelled = (j, k) if judged == "test" else (k, j)
    return World(x[i], found.y[i], x[judge_on], found.y[judge_on], x[unlabelled], found.classes, found.see, seed)


@dataclass(frozen=True)
class Pair:
    """What is trained: makers of a teacher and a student, how each is trained, and which features are compared."""

    teacher: Callable[[], nn.Module]
    student: Callable[[], nn.Module]
    teacher_recipe: Recipe
    student_recipe: Recipe
    stages: bool = False  # whether both have convolutional stages


def pair(options: Mapping[str, Any], world: World) -> Pair:
    """The pair of a study: MLPs on tables (the student sees fewer columns), small CNNs or CIFAR ResNets on images."""
    image = world.x.dim() == 4
    wide, narrow = list(options["teacher"]), list(options["student"])
    classes = world.classes

    def make(widths: list[int], see: tuple[int, int] | None) -> nn.Module:
        if image:
            return networks.SmallCNN(widths, classes, world.x.shape[1])
        inputs = world.x.shape[1] if see is None else see[1] - see[0]
        return networks.mlp([inputs, *widths, classes], see)

    return Pair(lambda: make(wide, None), lambda: make(narrow, world.see), recipe(options["teacher_recipe"]),
                recipe(options["student_recipe"]), image)  # fmt: skip


def teacher_of(pair: Pair, world: World, run: Run) -> nn.Module:
    """The teacher of a world, trained."""
    rng = Rng(0, "teacher", world.seed)
    return train_plain(
        init(pair.teacher, rng), world.x, world.y, pair.teacher_recipe, Rng(0, "teacher order", world.seed)
    )


def distiller_of(pair: Pair, world: World, teacher: nn.Module, method: str, settings: Mapping[str, Any]) -> Distiller:
    """A fresh student and its distiller. Methods that compare maps or layers are given every stage, others the last feature."""
    from papers.kd_aux.distillers import TABLE

    student = init(pair.student, Rng(0, "student", world.seed))
    make = TABLE[method].make
    named: list[Any] = [None, None]
    if (
        pair.stages
        and make is not None
        and (make.needs in ("maps", "stages") or method in ("fitnet", "ab", "vid", "ft"))
    ):
        named = [networks.stages(student), networks.stages(teacher)]
    own = dict(settings)
    if method.startswith("aux"):
        own.setdefault("queue", len(world.y))
        own["queue"] = max(int(own["queue"]), pair.student_recipe.batch_size)
    rng = Rng(0, "projections", world.seed)
    return init(lambda: Distiller(teacher, student, method, *named, **own), rng)  # type: ignore[arg-type, return-value]


def student_of(pair: Pair, world: World, teacher: nn.Module, method: str, settings: Mapping[str, Any], extra_rows: int = 0,
               taught: dict[tuple[str, ...], Taught] | None = None) -> tuple[Distiller, dict[str, float]]:  # fmt: skip
    """Distil a student in a world and judge it: the distiller, and its figures on the rows that the world judges on.

    taught: kept between methods of one world, the teacher's words by the features they read.
    """
    distiller = distiller_of(pair, world, teacher, method, settings)
    key = tuple(distiller.teacher_names)
    kept = {} if taught is None else taught
    if key not in kept and method != "ce":
        kept[key] = teach_all(distiller, world.x)
    said = kept.get(key)
    extra = (world.rest, teach_all(distiller, world.rest)) if extra_rows and len(world.rest) else None
    distil(distiller, world.x, world.y, pair.student_recipe, Rng(0, "student order", world.seed), taught=said,
           extra=extra, extra_rows=extra_rows)  # fmt: skip
    aux = method.startswith("aux") and said is not None
    return distiller, judge(distiller, world.test_x, world.test_y, (said, world.y) if aux else None)  # type: ignore[arg-type]


def judged_all(found: data.Set, options: Mapping[str, Any], seeds: list[int], method: str, settings: Mapping[str, Any],
               teachers: list[dict[str, Tensor]], run: Run, judged: str = "test", extra_rows: int = 0) -> list[dict[str, float]]:  # fmt: skip
    """A row a seed: a method's figures in each world, with the teachers that were trained there."""
    rows = []
    for seed, state in zip(seeds, teachers, strict=True):
        world = split(found, options, seed, run, judged)
        both = pair(options, world)
        teacher = both.teacher()
        teacher.load_state_dict(state)
        rows.append(student_of(both, world, teacher.eval(), method, settings, extra_rows)[1])
    return rows


def train_teachers(found: data.Set, options: Mapping[str, Any], seeds: list[int], run: Run) -> list[dict[str, Tensor]]:
    """The teachers of each world's training rows, as states."""
    states = []
    for seed in seeds:
        world = split(found, options, seed, run)
        states.append(teacher_of(pair(options, world), world, run).state_dict())
    return states


def teacher_accuracy(
    found: data.Set, options: Mapping[str, Any], seeds: list[int], teachers: list[dict[str, Tensor]], run: Run
) -> list[float]:
    """The teachers' own accuracy on each world's test rows."""
    from papers.kd_aux import metrics
    from papers.kd_aux.fit import predict

    rows = []
    for seed, state in zip(seeds, teachers, strict=True):
        world = split(found, options, seed, run)
        teacher = pair(options, world).teacher()
        teacher.load_state_dict(state)
        rows.append(metrics.accuracy(predict(teacher.eval(), world.test_x), world.test_y))
    return rows
