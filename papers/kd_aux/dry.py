"""What a pair of the benchmark would need, without weights, data or memory: networks on the meta device."""

from __future__ import annotations

from typing import Any

import torch

from common.run import Run
from papers.kd_aux import networks
from papers.kd_aux.benchmark import IMAGENET, PAIRS

FLOPS = {"cpu": 3e10, "cuda": 2e13}  # float32 convolutions, one core and one large GPU, a second: assumed, not measured
ROWS = {True: (1_281_167, 224), False: (50_000, 32)}


def estimate(cfg: Any, run: Run) -> None:
    """Parameters, memory and hours of a pair. Multiplications are counted by a forward pass on the meta device."""
    large = cfg.pair in IMAGENET
    rows, side = ROWS[large]
    classes = 1000 if large else 100
    how, found, work = cfg.benchmark.recipe, {}, 0.0
    with torch.device("meta"):
        for who, name in zip(("teacher", "student"), PAIRS[cfg.pair], strict=True):
            model = networks.make(name, classes)
            flops, activations = count(model, side)
            found[who] = {
                "params": networks.parameters(model),
                "gflops": flops / 1e9,
                "activations_mb": activations * 4 / 1e6,
            }
            work += flops * (3 if who == "student" else 1)
            if who == "teacher":
                width = dict(model.named_modules())[
                    [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)][-1]
                ].in_features
    assert isinstance(width, int)
    queue_gb = cfg.benchmark.queue * (width + classes) * 2 / 1e9
    batch_gb = how.batch_size * (found["student"]["activations_mb"] + found["teacher"]["activations_mb"] / 4) / 1e3
    weights_gb = (found["teacher"]["params"] + 3 * found["student"]["params"]) * 4 / 1e9
    product = 2 * 3 * cfg.benchmark.queue * width  # of the queue, a row: student and teacher, and backward
    hours = (work + product) * rows * how.epochs / FLOPS["cuda" if run.device == "cuda" else "cpu"] / 3600
    run.table("dry", [{"pair": cfg.pair, "model": who, **row} for who, row in found.items()])
    run.log({"params": found["student"]["params"], "params_teacher": found["teacher"]["params"], "queue_gb": queue_gb,
             "memory_gb": weights_gb + queue_gb + batch_gb, "hours": hours})  # fmt: skip
    run.note(
        f"hours assume {FLOPS['cpu']:.0e} (a core) or {FLOPS['cuda']:.0e} (a GPU) operations a second: not measured, right to a factor of a few"
    )
    run.use_data("none", "synthetic", "papers.kd_aux.dry", None)


def count(model: torch.nn.Module, side: int) -> tuple[float, int]:
    """Operations (two a multiplication) of convolutions and linear layers, and numbers in all feature maps, for one image."""
    total, numbers, hooks = 0.0, 0, []

    def hook(module: Any, args: Any, out: torch.Tensor) -> None:
        nonlocal total, numbers
        total += 2 * module.weight.numel() * (out[0, 0].numel() if out.dim() == 4 else 1)
        numbers += 2 * out[0].numel()  # with its batch norm

    for module in model.modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            hooks.append(module.register_forward_hook(hook))
    model.eval()(torch.empty(2, 3, side, side, device="meta"))
    for handle in hooks:
        handle.remove()
    return total, numbers
