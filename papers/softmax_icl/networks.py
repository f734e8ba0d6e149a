"""Beyond the paper, on real prompts: transformers in which everything is trained, and tasks that repeat."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common.run import Run
from papers.softmax_icl import plots
from papers.softmax_icl.data import Prompts, draw_tasks
from papers.softmax_icl.model import SoftmaxICL, squared_loss
from papers.softmax_icl.real_prompts import sgd, token_task
from papers.softmax_icl.theorems import at_the_door, nan_if_none
from papers.softmax_icl.tokens import fit
from papers.softmax_icl.trajectory import crossing
from papers.softmax_icl.transformer import Transformer, effective_bilinear


def adam(lr: float) -> Callable[[Any], torch.optim.Optimizer]:
    """Adam, for `fit`."""
    return lambda parameters: torch.optim.Adam(parameters, lr=lr)


def transformers(cfg: Any, run: Run) -> None:
    """Does the signature of the theorem, B_{k,1} falling before A_k rises, survive in trained transformers?

    Every variant sees the same prompts. Reported: when dominant and rare queries are learned, and `lead`, the most by which the
    un-learning -B_{k,1} is ahead of A_k: positive where un-learning comes first.
    """
    part = cfg.transformers
    _, V, draw = token_task(cfg, part, run)
    with at_the_door():
        if part.frequencies.kind != "dominant":
            raise ValueError(
                "the transformers part compares one dominant feature with the others: frequencies.kind=dominant"
            )
    each = torch.arange(part.K).repeat_interleave(part.test_prompts // part.K)
    test = draw(run.rng("transformers", "test").torch, B=len(each), feat_q=each)

    def watch(model: nn.Module) -> dict[str, Any]:
        with torch.no_grad():
            device = next(model.parameters()).device
            prediction = model.predict(*(part.to(device) for part in test[:3])).cpu()  # type: ignore[operator]
            L_k = squared_loss(prediction, test.y_q).view(part.K, -1).mean(dim=1)
            if isinstance(model, Transformer):
                layers = [effective_bilinear(*model.heads(V.to(device), layer)) for layer in range(len(model.blocks))]
            else:
                layers = [model.bilinear(V.to(device))]  # type: ignore[operator]
        Qf = torch.stack(layers).cpu().double()
        Qf = Qf - Qf.mean(
            dim=1, keepdim=True
        )  # a column is defined up to a constant: let it sum to zero, as the theorem's does
        A = Qf.diagonal(dim1=1, dim2=2)[:, 1:].mean(dim=1)
        return {"loss": L_k.numpy(), "A": A.numpy(), "B1": Qf[:, 0, 1:].mean(dim=1).numpy()}

    rows, paths = [], {}
    for variant in part.variants:
        name = variant.name
        model: nn.Module
        if name.startswith("paper"):
            model = SoftmaxICL(part.d, part.K)
            optimizer = adam(part.lr) if name.endswith("adam") else sgd(part.sgd_lr)
        else:
            model = Transformer(
                part.d,
                variant.heads,
                variant.layers,
                variant.residual,
                variant.mlp,
                part.init,
                run.rng("init", name).torch,
            )
            optimizer = adam(part.lr)
        with run.time("transformers.fit"):
            history = fit(model, draw, part.steps, optimizer, cfg, run, f"transformers.{name}", batches="transformers",
                          watch=partial(watch, model), watch_every=part.watch_every)  # fmt: skip
        steps = np.array([step for step, _ in history.seen], float)
        path = {key: np.array([seen[key] for _, seen in history.seen]) for key in ("loss", "A", "B1")}
        layer = int(path["A"][-1].argmax())  # the layer that looks the feature up
        path["A"], path["B1"] = path["A"][:, layer], path["B1"][:, layer]
        found: dict[str, Any] = {"variant": name, "layer": layer + 1}
        for query, loss in (("dominant", path["loss"][:, 0]), ("rare", path["loss"][:, 1:].mean(axis=1))):
            found[f"steps_{query}"] = crossing(steps, math.log(part.eps) - np.log(loss))
            found[f"loss_{query}"] = float(loss[-1])
            path[query] = loss
        learned = found["steps_dominant"] and found["steps_rare"]
        found |= {"ratio": found["steps_rare"] / found["steps_dominant"] if learned else None, "lead": float((-path["B1"] - path["A"]).max()),
                  "min_B1": float(path["B1"].min()), "A_end": float(path["A"][-1])}  # fmt: skip
        rows.append(found)
        paths[name] = path | {"steps": steps}
        run.log({f"transformers.{name}": {key: nan_if_none(found[key]) for key in ("ratio", "lead")}})
    run.table("transformers", rows)
    run.figure("transformers", plots.transformers(paths, part.eps))


def finite_tasks(cfg: Any, run: Run) -> None:
    """Training on only M tasks w: is the loss on new tasks the loss on old ones (in-context learning) or not (memorising)?"""
    part = cfg.finite_tasks
    _, _, draw = token_task(cfg, part, run)

    def head(generator: torch.Generator) -> nn.Module:
        return SoftmaxICL(part.d, part.K)

    def two_layers(generator: torch.Generator) -> nn.Module:
        return Transformer(part.d, part.heads, 2, True, True, part.init, generator)

    rows = []
    kinds: list[tuple[str, Callable[..., nn.Module], int, Callable[..., torch.optim.Optimizer]]] = [
        ("softmax head", head, part.head_steps, sgd(part.head_lr)),
        ("two-layer transformer", two_layers, part.steps, adam(part.lr)),
    ]
    for name, make, steps, optimizer in kinds:
        for M in part.tasks:  # 0: a fresh task for every prompt
            key = f"tasks.{name.replace(' ', '_')}.{M}"
            tasks = draw_tasks(part.law, M, part.d, run.rng("tasks", M).torch) if M else None
            model = make(run.rng(key, "init").torch)
            with run.time("finite_tasks.fit"):
                fit(model, partial(draw, tasks=tasks), steps, optimizer, cfg, run, key)
            old = mean_loss(model, draw(run.rng("old", M).torch, B=part.test_prompts, tasks=tasks))
            new = mean_loss(model, draw(run.rng("new").torch, B=part.test_prompts))
            rows.append(
                {"model": name, "tasks": M or "fresh", "loss_old_tasks": old, "loss_new_tasks": new, "gap": new - old}
            )
            run.log({key: {"old": old, "new": new}})
    run.table("finite_tasks", rows)
    run.figure("finite_tasks", plots.finite_tasks(rows))


@torch.no_grad()
def mean_loss(model: nn.Module, prompts: Prompts) -> float:
    device = next(model.parameters()).device
    x, y, x_q, y_q = (part.to(device) for part in prompts[:4])
    prediction: Tensor = model.predict(x, y, x_q)  # type: ignore[operator]
    return float(squared_loss(prediction, y_q).mean())
