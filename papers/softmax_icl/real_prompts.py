"""Training the transformer itself on real prompts, testing it on unseen task laws, and its baselines on the same prompts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import UserError, user_errors
from common.run import Run
from papers.softmax_icl import closed_form, plots
from papers.softmax_icl.baselines import LinearICL, least_squares, nadaraya_watson
from papers.softmax_icl.data import (
    TASK_LAWS,
    Prompts,
    draw_tasks,
    load_prompts,
    make_features,
    sample_prompts,
)
from papers.softmax_icl.descent import Descent, descend
from papers.softmax_icl.laws import frequencies
from papers.softmax_icl.model import SoftmaxICL, attention_mass, loss_by_feature, squared_loss
from papers.softmax_icl.theorems import furthest, note_absence
from papers.softmax_icl.tokens import fit

LEARNED = 0.01  # of the labels' mean square: what a trained model's error is held against


def token_task(cfg: Any, part: Any, run: Run) -> tuple[NDArray, Tensor, Callable[..., Prompts]]:
    """p (K,), V (d, K) and draw(generator, B=..., **changes) -> Prompts. Raises UserError where the settings do not fit."""
    with user_errors():
        p = frequencies(K=part.K, **part.frequencies)
        V = make_features(part.d, part.K, cfg.features.kind, run.rng("features").torch, cfg.features.coherence)

        def draw(generator: torch.Generator, B: int = part.batch_size, **changes: Any) -> Prompts:
            switches = {
                "law": part.law,
                "label_noise": part.label_noise,
                "feature_noise": part.feature_noise,
                "gaussian_x": part.gaussian_x,
            }
            return sample_prompts(B, part.N, p, V, generator, **switches | changes)

        draw(run.rng("trial").torch, B=1)
    return p, V, draw


def finite_features(cfg: Any, part: Any) -> bool:
    """Whether x is drawn from orthonormal features, so that A_k, B_{k,n} and L_k are defined."""
    return not part.gaussian_x and not cfg.features.coherence


def papers_prompts(cfg: Any, part: Any) -> bool:
    """Whether prompts are the paper's in everything, so that closed forms hold."""
    return finite_features(cfg, part) and not part.label_noise and not part.feature_noise


def stratified(draw: Callable[..., Prompts], generator: torch.Generator, K: int, B: int) -> Prompts:
    """About B prompts whose queries have each feature equally often: in a plain mean, rare queries vanish."""
    feat_q = torch.arange(K).repeat_interleave(max(1, B // K))
    return draw(generator, B=len(feat_q), feat_q=feat_q)


def tokens(cfg: Any, run: Run) -> None:
    """The (d+1) x (N+1) transformer trained by SGD on fresh prompts, then tested feature by feature and on task laws it has not seen."""
    part = cfg.tokens
    p, V, draw = token_task(cfg, part, run)
    own = own_prompts(part)
    finite, exact = finite_features(cfg, part), papers_prompts(cfg, part)
    if finite:
        note_absence(run, p, part.N, 0.01)
    else:
        run.note("x is not drawn from orthonormal features: A_k, B_{k,n} and L_k are not defined and not reported")
    rows, by_feature, laws, curves = [], [], [], []
    for seed in run.seeds(cfg.seeds):
        name = f"tokens{seed}"
        model = SoftmaxICL(part.d, part.K)
        with run.time("tokens.fit"):
            history = fit(model, draw, part.steps, sgd(part.lr), cfg, run, name)
        curves.append(history.losses)
        with torch.no_grad():
            last = draw(run.rng(name, "batch", part.steps).torch)  # the batch that would come next
            row = {"seed": seed, "loss_start": history.losses[0], "loss_end": float(squared_loss(model.predict(*last[:3]), last.y_q).mean())}  # fmt: skip
            if finite:
                Qf = model.bilinear(V)
                row |= {"A": float(Qf.diagonal().mean()), "column_sum": float(Qf.sum(dim=0).abs().max())}
                test = draw(run.rng(name, "attention").torch, B=part.test_prompts)
                mass = attention_mass(model.attention(test.x, test.x_q), test.feat, part.K)
                row["attn_end"] = float(mass.gather(1, test.feat_q[:, None]).mean())
                each = stratified(draw, run.rng(name, "features").torch, part.K, part.test_prompts)
                L_k = loss_by_feature(model.predict, each, part.K)
                row |= {"loss": float(p @ L_k), "loss_worst_feature": float(L_k.max())}
                by_feature += [{"seed": seed, "feature": k + 1, "p": p[k], "loss": L_k[k]} for k in range(part.K)]
            if own is not None:
                row["own_loss"] = float(squared_loss(model.predict(*own[:3]), own.y_q).mean())
        rows.append(row)
        laws += [{"seed": seed, **found} for found in unseen_tasks(model, draw, part, run, name)]
    run.table("tokens", rows)
    run.table("tokens_by_feature", by_feature)
    run.table("unseen_tasks", laws)
    found = {"law_error": max(row["relative_error"] for row in laws)}
    worst = {"loss_end": max, "loss_worst_feature": max, "own_loss": max, "column_sum": max, "A": min, "attn_end": min}
    found |= {name: pick(row[name] for row in rows) for name, pick in worst.items() if name in rows[0]}
    population, floors = None, {}
    if exact:
        theory = float(p @ closed_form.initial_loss(p, part.N))
        found |= {"loss_start": furthest((row["loss_start"] for row in rows), theory), "loss_start_theory": theory}
        population = population_curve(run, p, part)
        found["over_population"] = float(np.mean(curves) / population.mean())
        floors = {
            "linear": p @ closed_form.linear_floor(p, part.N),
            "softmax": p @ closed_form.softmax_floor(p, part.N),
        }
    run.log({"tokens": found})
    run.figure("tokens", plots.token_losses(curves, population, floors))


def population_curve(run: Run, p: NDArray, part: Any) -> NDArray:
    """The loss L before each step of gradient descent on the population loss with the same learning rate: no prompt is drawn. (steps,)."""
    descent = descend(run, "tokens_population", Descent(p, part.N, part.lr, "counts_mc", part.samples), part.steps)
    return np.array(descent.watched["loss"]) @ p


def sgd(lr: float) -> Callable[[Any], torch.optim.Optimizer]:
    """Plain stochastic gradient descent, for `fit`."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr)


def own_prompts(part: Any) -> Prompts | None:
    """The user's own prompts, where a file is named. Raises UserError where it cannot be used."""
    if part.prompts is None:
        return None
    with user_errors():
        prompts = load_prompts(part.prompts)
        if prompts.x.shape[2] != part.d:
            raise ValueError(
                f"{part.prompts} has x of dimension {prompts.x.shape[2]}, the model d = {part.d}: set tokens.d to it"
            )
        return prompts


@torch.no_grad()
def unseen_tasks(
    model: SoftmaxICL, draw: Callable[..., Prompts], part: Any, run: Run, name: str
) -> list[dict[str, Any]]:
    """The relative squared error under each law of w, on the same x; and how far it moves when w is scaled by 10.

    The prediction is linear in w, so that the error's mean is the same for every law with E[w w'] = I and scales with w: this
    holds of an untrained model too, and says nothing. What training must bring is an error that is small. z: by how many
    standard errors the squared error is above LEARNED of the labels' (negative: below).
    """
    test = draw(run.rng(name, "unseen").torch, B=part.test_prompts, label_noise=0.0)
    rows = []
    for law in TASK_LAWS:
        w = draw_tasks(law, part.test_prompts, part.d, run.rng(name, "w", law).torch)

        once, error, square = _errors(model, test, w)
        tenfold, _, _ = _errors(model, test, 10.0 * w)
        excess = error - LEARNED * square
        rows.append({"law": law, "relative_error": once, "times_10_gap": abs(tenfold / once - 1),
                     "z": float(excess.mean() / (excess.std() / len(excess) ** 0.5))})  # fmt: skip
    return rows


def _errors(model: SoftmaxICL, test: Prompts, w: Tensor) -> tuple[float, Tensor, Tensor]:
    """Relative squared error over prompts whose tasks are w (B, d), the squared errors (B,), the squared labels (B,)."""
    y, y_q = torch.einsum("bnd,bd->bn", test.x, w), torch.einsum("bd,bd->b", test.x_q, w)
    error, square = (model.predict(test.x, y, test.x_q) - y_q).square(), y_q.square()
    return float(error.sum() / square.sum()), error, square


# ---- baselines and ablations on the same prompts ----------------------------------------------------------------------


def ablations(cfg: Any, run: Run) -> None:
    """The paper's model, its ablations and its baselines on the same prompts, batch for batch; tested feature by feature."""
    part = cfg.tokens
    p, _, draw = token_task(cfg, part, run)
    if not finite_features(cfg, part):
        raise UserError(
            "the ablations are tested feature by feature: leave features.coherence and tokens.gaussian_x alone"
        )
    models: dict[str, Any] = {
        "softmax": SoftmaxICL(part.d, part.K),
        "softmax_trained_nu": SoftmaxICL(part.d, part.K, trained_nu=True),
        "softmax_residual": SoftmaxICL(part.d, part.K, residual=True),
        "softmax_no_mask": SoftmaxICL(part.d, part.K, mask=False),
        "linear": LinearICL(part.d),
    }
    theory = {"softmax": closed_form.softmax_floor, "softmax_no_mask": closed_form.no_mask_plateau,
              "linear": closed_form.linear_floor, "least_squares": closed_form.ols_floor}  # fmt: skip
    predictors: dict[str, Callable[..., Tensor]] = {}
    curves = {}
    for name, model in models.items():
        optimizer = sgd(cfg.ablations.linear_lr if name == "linear" else part.lr)
        if name == "softmax_trained_nu":  # nu's own curvature is about 1: it needs a step of its own
            optimizer = partial(_two_rates, model, part.lr, cfg.ablations.nu_lr)
        with run.time("ablations.fit"):
            history = fit(
                model, draw, cfg.ablations.steps, optimizer, cfg, run, f"ablations.{name}", batches="ablations"
            )
        curves[name], predictors[name] = history.losses, model.predict
    predictors["least_squares"] = least_squares
    for beta in cfg.ablations.beta:
        predictors[f"kernel_{beta:g}"] = partial(nadaraya_watson, beta=beta)

    test = stratified(draw, run.rng("ablations", "test").torch, part.K, part.test_prompts)
    rows = []
    for name, predict in predictors.items():
        L_k = loss_by_feature(predict, test, part.K)
        known = theory.get(name) if papers_prompts(cfg, part) else None
        rows.append({"predictor": name, "loss": float(p @ L_k), "worst_feature": float(L_k.max()),
                     "theory": float(p @ known(p, part.N)) if known else None})  # fmt: skip
    run.table("ablations", rows)
    run.log({f"ablations.{row['predictor']}": row["loss"] for row in rows})
    run.figure("ablations", plots.losses(curves, "Ablations on the same prompts"))


def _two_rates(model: SoftmaxICL, lr: float, nu_lr: float, parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [model.Q], "lr": lr}, {"params": [model.nu], "lr": nu_lr}])
