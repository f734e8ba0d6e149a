"""Beyond the paper, on real prompts: transformers in which everything is trained, and tasks that repeat."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common.errors import UserError, choose
from common.run import Run
from papers.softmax_icl import plots
from papers.softmax_icl.data import Prompts, draw_tasks
from papers.softmax_icl.model import SoftmaxICL, loss_by_feature, squared_loss
from papers.softmax_icl.real_prompts import finite_features, sgd, stratified, token_task
from papers.softmax_icl.theorems import worst
from papers.softmax_icl.tokens import fit
from papers.softmax_icl.trajectory import time_to
from papers.softmax_icl.transformer import Transformer, gain_shares


def adam(lr: float) -> Callable[[Any], torch.optim.Optimizer]:
    """Adam, for `fit`."""
    return lambda parameters: torch.optim.Adam(parameters, lr=lr)


# ---- transformers in which every matrix is trained --------------------------------------------------------------------


def transformers(cfg: Any, run: Run) -> None:
    """Does the signature of the theorem, B_{k,1} falling before A_k rises, survive in trained transformers?

    Within a seed every variant sees the same prompts. Reported: when dominant and rare queries are learned, and `lead`, the most
    by which the un-learning -B_{k,1} is ahead of A_k: positive where un-learning comes first. Also head by head.
    """
    part = cfg.transformers
    _, V, draw = token_task(cfg, part, run)
    if part.frequencies.kind != "dominant":
        raise UserError(
            "the transformers part compares one dominant feature with the others: frequencies.kind=dominant"
        )
    if not finite_features(cfg, part):
        raise UserError(
            "the transformers part reads scores of orthonormal features: leave features.coherence and gaussian_x alone"
        )
    test = stratified(draw, run.rng("transformers", "test").torch, part.K, part.test_prompts)

    rows, heads, paths = [], [], {}
    for variant in part.variants:
        for seed in run.seeds(cfg.seeds):
            name = f"{variant.name}{seed}"
            model = _variant(variant, part, run.rng("init", variant.name, seed).torch)
            with run.time("transformers.fit"):
                history = fit(model, draw, part.steps, {"adam": adam(part.lr), "sgd": sgd(part.sgd_lr)}[variant.optimizer], cfg, run,
                              f"transformers.{name}", batches=f"transformers{seed}", watch_every=part.watch_every,
                              watch=partial(_scores, model, V, test))  # fmt: skip
            path = _path(history.seen)
            found, own_heads = _judge(path, part.eps)
            rows.append({"variant": variant.name, "seed": seed, **found})
            heads += [{"variant": variant.name, "seed": seed, **head} for head in own_heads]
            paths[variant.name, seed] = path
        own = [row for row in rows if row["variant"] == variant.name]
        for key in ("lead", "ratio"):
            for suffix, pick in (("", median), ("_min", min), ("_max", max)):
                run.log({f"transformers.{variant.name}.{key}{suffix}": worst((row[key] for row in own), pick)})
    run.table("transformers", rows)
    run.table("heads", heads)
    run.figure("transformers", plots.transformers(paths, part.eps))


def _variant(variant: Any, part: Any, generator: torch.Generator) -> nn.Module:
    """The model of a variant: `paper`, or a `transformer` with its heads, layers, residual and mlp. Raises UserError for others."""
    choose(f"optimizer of {variant.name}", variant.optimizer, ("sgd", "adam"))
    if choose(f"model of {variant.name}", variant.model, ("paper", "transformer")) == "paper":
        return SoftmaxICL(part.d, part.K)
    return Transformer(part.d, variant.heads, variant.layers, variant.residual, variant.mlp, part.init, generator)


@torch.no_grad()
def _scores(model: nn.Module, V: Tensor, test: Prompts) -> dict[str, Any]:
    """L_k (K,), and of every head of every layer (L, H): A_k and B_{k,1} meaned over rare k, and its share in the prediction.

    A column of Qf is defined up to a constant: it is made to sum to zero, as the theorem's does.
    """
    if isinstance(model, Transformer):
        read = [model.heads(V, layer) for layer in range(len(model.blocks))]
        Qf, share = torch.stack([Qf for Qf, _ in read]), torch.stack([gain_shares(gain) for _, gain in read])
    else:
        Qf, share = model.bilinear(V)[None, None], torch.ones(1, 1)  # type: ignore[operator]
    Qf = (Qf - Qf.mean(dim=2, keepdim=True)).cpu().double()  # (L, H, K, K)
    A, B1 = Qf.diagonal(dim1=2, dim2=3)[..., 1:].mean(dim=2), Qf[:, :, 0, 1:].mean(dim=2)
    loss = loss_by_feature(model.predict, test, V.shape[1])  # type: ignore[arg-type]
    return {"loss": loss, "A": A.numpy(), "B1": B1.numpy(), "share": share.cpu().double().numpy()}


def _path(seen: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Histories (T, ...): steps, losses of dominant and rare queries, and the effective A, B1 of the layer that looks features up."""
    steps = np.array([step for step, _ in seen], float)
    loss, A, B1, share = (np.array([scores[name] for _, scores in seen]) for name in ("loss", "A", "B1", "share"))
    layer = int((share * A).sum(axis=2)[-1].argmax())
    heads = {name: values[:, layer] for name, values in (("A", A), ("B1", B1), ("share", share))}  # (T, H)
    return {"steps": steps, "dominant": loss[:, 0], "rare": loss[:, 1:].mean(axis=1), "layer": layer + 1, "heads": heads,
            **{name: (heads["share"] * heads[name]).sum(axis=1) for name in ("A", "B1")}}  # fmt: skip


def _judge(path: dict[str, Any], eps: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a variant did, as a row, and a row for each head of its layer."""
    times = {query: time_to(path["steps"], path[query], eps) for query in ("dominant", "rare")}
    learned = times["dominant"] and times["rare"]
    row = {
        "layer": path["layer"], **{f"steps_{query}": t for query, t in times.items()},
        **{f"loss_{query}": float(path[query][-1]) for query in times},
        "ratio": times["rare"] / times["dominant"] if learned else None,  # type: ignore[operator]
        **_signature(path["A"], path["B1"]),
    }  # fmt: skip
    heads = path["heads"]
    return row, [
        {"head": h + 1, "share": float(heads["share"][-1, h]), **_signature(heads["A"][:, h], heads["B1"][:, h])}
        for h in range(heads["A"].shape[1])
    ]


def _signature(A: np.ndarray, B1: np.ndarray) -> dict[str, float]:
    return {"lead": float((-B1 - A).max()), "min_B1": float(B1.min()), "A_end": float(A[-1])}


# ---- tasks that repeat -------------------------------------------------------------------------------------------------


def finite_tasks(cfg: Any, run: Run) -> None:
    """Training on only M tasks w: is the loss on new tasks the loss on old ones (in-context learning) or not (memorising)?"""
    part = cfg.finite_tasks
    _, _, draw = token_task(cfg, part, run)
    kinds: dict[str, tuple[Callable[[torch.Generator], nn.Module], int, Callable[[Any], torch.optim.Optimizer]]] = {
        "softmax head": (lambda _: SoftmaxICL(part.d, part.K), part.head_steps, sgd(part.head_lr)),
        "two-layer transformer": (lambda generator: Transformer(part.d, part.heads, 2, True, True, part.init, generator), part.steps, adam(part.lr)),
    }  # fmt: skip
    rows = []
    for kind, (make, steps, optimizer) in kinds.items():
        for M in part.tasks:  # 0: a fresh task for every prompt
            name, own = f"tasks.{kind.replace(' ', '_')}.{M}", []
            for seed in run.seeds(cfg.seeds):
                tasks = draw_tasks(part.law, M, part.d, run.rng("tasks", M, seed).torch) if M else None
                old = partial(draw, tasks=tasks)
                model = make(run.rng(name, "init", seed).torch)
                with run.time("finite_tasks.fit"):
                    fit(model, old, steps, optimizer, cfg, run, f"{name}.{seed}")
                test = {
                    key: mean_loss(model, source, part.test_prompts, run.rng("tests").torch)
                    for key, source in (("old", old), ("new", draw))
                }
                own.append({"model": kind, "tasks": M or "fresh", "seed": seed, "loss_old_tasks": test["old"], "loss_new_tasks": test["new"],
                            "gap": test["new"] - test["old"]})  # fmt: skip
            rows += own
            run.log(
                {f"{name}.{key}": median([float(row[f"loss_{key}_tasks"]) for row in own]) for key in ("old", "new")}
            )
    run.table("finite_tasks", rows)
    run.figure("finite_tasks", plots.finite_tasks(rows))


@torch.no_grad()
def mean_loss(model: nn.Module, draw: Callable[..., Prompts], prompts: int, generator: torch.Generator) -> float:
    """The mean loss over prompts from `draw`, a few at a time."""
    total, at_once = 0.0, 2048
    for first in range(0, prompts, at_once):
        test = draw(generator, B=min(at_once, prompts - first))
        total += float(squared_loss(model.predict(*test[:3]).to(test.y_q), test.y_q).sum())  # type: ignore[operator]
    return total / prompts
