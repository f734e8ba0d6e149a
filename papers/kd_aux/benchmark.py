"""Pairs of the benchmark at the paper's scale: CIFAR-100 and ImageNet, a checkpoint for the teacher, one method for the student."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.errors import UserError, user_errors
from common.run import Run
from common.training import resumable
from papers.kd_aux import data, metrics, networks
from papers.kd_aux.checkpoints import load_into, read_state
from papers.kd_aux.distillers import TABLE, Distiller
from papers.kd_aux.fit import Recipe, batches_of, init, predict, recipe

PAIRS = {  # name -> (teacher, student): seven of one kind, six of two, two on ImageNet
    "wrn_40_2_wrn_16_2": ("wrn_40_2", "wrn_16_2"), "wrn_40_2_wrn_40_1": ("wrn_40_2", "wrn_40_1"), "resnet56_resnet20": ("resnet56", "resnet20"),
    "resnet110_resnet20": ("resnet110", "resnet20"), "resnet110_resnet32": ("resnet110", "resnet32"), "resnet32x4_resnet8x4": ("resnet32x4", "resnet8x4"),
    "vgg13_vgg8": ("vgg13", "vgg8"), "vgg13_mobilenetv2": ("vgg13", "mobilenetv2"), "resnet50_mobilenetv2": ("resnet50_cifar", "mobilenetv2"),
    "resnet50_vgg8": ("resnet50_cifar", "vgg8"), "resnet32x4_shufflev1": ("resnet32x4", "shufflev1"), "resnet32x4_shufflev2": ("resnet32x4", "shufflev2"),
    "wrn_40_2_shufflev1": ("wrn_40_2", "shufflev1"), "resnet34_resnet18": ("resnet34", "resnet18"), "resnet50_mobilenetv1": ("resnet50", "mobilenetv1"),
}  # fmt: skip
IMAGENET = ("resnet34_resnet18", "resnet50_mobilenetv1")


def benchmark(cfg: Any, run: Run) -> None:
    """Train one student of `cfg.pair` and judge its last epoch on the test split (never its best epoch there)."""
    options, device = cfg.benchmark, run.device
    classes = 1000 if cfg.pair in IMAGENET else 100
    split = _imagenet(options, run) if cfg.pair in IMAGENET else _cifar100(options, run)
    if options.teacher is None:
        raise UserError(
            f"benchmark.teacher is not given: put a checkpoint of {PAIRS[cfg.pair][0]} there (.pth with its state under 'model', or .safetensors), "
            "or estimate with run.dry=true"
        )
    path = data.own_path(options.teacher, "benchmark.teacher", run)
    with user_errors("benchmark.teacher"):
        teacher = load_into(networks.make(PAIRS[cfg.pair][0], classes), read_state(path), path.name).to(device)
    distiller = build(cfg, teacher, classes, run).to(device)
    how = recipe(options.recipe)
    fit(distiller, split["train"], how, cfg, run, device)
    x, y = split["test"]
    logits = torch.cat([predict(distiller.student, rows.to(device)).cpu() for rows in x.split(500)])
    run.log(
        {
            "benchmark.accuracy": metrics.accuracy(logits, y),
            "benchmark.ece": metrics.calibration_error(logits.softmax(dim=1), y),
        }
    )
    run.table(
        "benchmark",
        [{"pair": cfg.pair, "method": options.method, "accuracy": metrics.accuracy(logits, y), "rows": len(y)}],
    )


def build(cfg: Any, teacher: torch.nn.Module, classes: int, run: Run) -> Distiller:
    """The student of a pair and its distiller, with the features that the method compares."""
    options = cfg.benchmark
    student = init(lambda: networks.make(PAIRS[cfg.pair][1], classes), run.rng("student"))
    make = TABLE[options.method].make
    named: list[Any] = [None, None]
    if make is not None and make.needs in ("maps", "stages"):
        named = [networks.stages(student)[-3:], networks.stages(teacher)[-3:]]
    settings = dict(options.settings)
    if options.method.startswith("aux"):
        settings |= {"queue": options.queue}
    with user_errors("benchmark.settings"):
        return init(lambda: Distiller(teacher, student, options.method, *named, **settings), run.rng("projections"))  # type: ignore[arg-type, return-value]


def fit(distiller: Distiller, train: tuple[Tensor, Tensor], how: Recipe, cfg: Any, run: Run, device: str) -> None:
    """Every step of the recipe, resumable: order and augmentation are functions of (seed, step)."""
    x, y = train
    per_epoch = -(-len(y) // how.batch_size)
    optimizer = how.make(distiller.parameters())
    distiller.student.train()
    rows: tuple[Tensor, ...] = ()
    at = -1
    for step in resumable(run, "benchmark", how.epochs * per_epoch, {"distiller": distiller, "optimizer": optimizer}):
        if step // per_epoch != at:
            at = step // per_epoch
            rows = batches_of(len(y), how.batch_size, at, run.rng("order"))
        batch = rows[step % per_epoch]
        for group in optimizer.param_groups:
            group["lr"] = how.rate(step, per_epoch)
        images = data.augmented(x[batch], run.rng("augment", step).torch).to(device)
        optimizer.zero_grad(set_to_none=True)
        loss, terms = distiller.loss(images, y[batch].to(device))
        loss.backward()
        optimizer.step()
        if step % per_epoch == 0:
            run.log({f"benchmark.train.{name}": value for name, value in terms.items()}, step=step)


def _cifar100(options: Any, run: Run) -> dict[str, tuple[Tensor, Tensor]]:
    if options.data is None:
        raise UserError(
            "benchmark.data is not given: name the folder cifar-100-python of CIFAR-100's archive, or estimate with run.dry=true"
        )
    found = data.cifar100(options.data, run)
    limit = options.limit
    return {
        split: (data.normalised(images[:limit]), torch.from_numpy(labels[:limit]))
        for split, (images, labels) in found.items()
    }


def _imagenet(options: Any, run: Run) -> dict[str, tuple[Tensor, Tensor]]:
    if options.data is None:
        raise UserError(
            "benchmark.data is not given: name a folder with train/ and val/, each with a folder for each class of ImageNet-1K, "
            "or estimate with run.dry=true"
        )
    root = data.own_path(options.data, "benchmark.data", run, folder=True)
    found = {}
    for split, folder in (("train", "train"), ("test", "val")):
        if not (Path(root) / folder).is_dir():
            raise UserError(f"benchmark.data: {root} has no folder {folder}: give ImageNet-1K's train and val")
        with user_errors(str(root / folder)):
            x, y, _ = data.image_folder(Path(root) / folder, 224)
        mean, std = torch.tensor(data.MEAN)[:, None, None], torch.tensor(data.STD)[:, None, None]
        found[split] = ((x - mean) / std, y)
    return found
