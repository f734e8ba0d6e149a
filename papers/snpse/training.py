"""Denoising posterior score matching: the loss, its optimiser, and when to stop.

The loss of one pair (theta_0, x) at time t is lambda(t) |score(theta_t, x, t) + eps / s|^2 with theta_t = m theta_0 + s eps,
a mean over coordinates. Its minimiser is the score of the noised posterior (section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common.rng import Rng, seeded
from papers.snpse.networks import HEADS, TIME_INPUTS, ScoreModel, options_of
from papers.snpse.sde import KINDS, make, to_dict

Shift = Callable[
    [Tensor, Tensor, Tensor], Tensor
]  # (theta_t, m (n, 1), s (n, 1)) -> (n, d), added to the score in the loss
WEIGHTS = ("std2", "g2", "one")
DEFAULTS: dict[str, Any] = {
    "sde": "ve", "head": "edm", "net": "concat", "width": 128, "depth": 3, "time_input": "log_std",
    "sigma_min": 0.005, "sigma_max": None, "beta_min": 0.1, "beta_max": 11.0,  # sigma_max None: the largest distance
    "weight": "std2", "stratified": True, "steps": 5000, "batch_size": 256, "lr": 2e-3, "schedule": "one_cycle",
    "weight_decay": 0.0, "ema": 0.999, "validation": 0.1, "evaluate_every": 250, "patience": None,
    "patience_unit": "steps", "warm_start": False, "transform": "auto", "standardise": "each", "nan": "drop", "sample_steps": 40, "sampler": "heun",
    "density_steps": 15, "n_hpr": 20_000, "pad": 0.05, "workers": 0, "stop_kl": None, "energy_shortcut": True,
}  # fmt: skip
PAPER = {"head": "score", "net": "paper", "width": 256, "time_input": "t", "lr": 1e-4, "schedule": "constant", "ema": 0.0, "stratified": False,
         "validation": 0.15, "sampler": "rk45"}  # fmt: skip


def training_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """DEFAULTS with what is given. Raises ValueError for an unknown name or a value out of range."""
    if unknown := set(given) - set(DEFAULTS):
        raise ValueError(f"unknown training option {sorted(unknown)[0]}: choose from {', '.join(DEFAULTS)}")
    options = DEFAULTS | dict(given)
    choices = {"head": HEADS, "weight": WEIGHTS, "sde": tuple(KINDS), "time_input": TIME_INPUTS, "net": ("concat", "paper"),
               "schedule": ("one_cycle", "constant"), "patience_unit": ("steps", "epochs"), "transform": ("auto", "none", "all"),
               "nan": ("drop", "impute"), "standardise": ("each", "common")}  # fmt: skip
    for name, valid in choices.items():
        if options[name] not in valid:
            raise ValueError(f"{name} is {options[name]!r}: choose {', '.join(valid)}")
    for name in ("width", "depth", "steps", "batch_size", "evaluate_every", "sample_steps", "density_steps", "n_hpr"):
        if options[name] < 1:
            raise ValueError(f"{name} is {options[name]}: give at least 1")
    if not options["lr"] > 0 or not 0 <= options["ema"] < 1 or not 0 <= options["validation"] < 1:
        raise ValueError("lr must be above 0, ema and validation in [0, 1)")
    return options


def loss_weight(kind: str, model: ScoreModel, t: Tensor) -> Tensor:
    """lambda(t) / s(t)^2 (n,): the loss is this times |s score + eps|^2."""
    if kind == "std2":
        return torch.ones_like(t)
    s = model.sde.mean_std(t)[1]
    return s**-2 if kind == "one" else (model.sde.g(t) / s) ** 2


def denoising_loss(model: ScoreModel, theta: Tensor, x: Tensor, t: Tensor, eps: Tensor, *, weight: str = "std2",
                   shift: Shift | None = None) -> Tensor:  # fmt: skip
    """Loss of each pair (n,). theta, eps (n, d), x (n, p) as `model.embed` gives it, t (n,).

    shift: added to the model's score before it is compared (SNPSE-C, NLSE).
    """
    m, s = (part[:, None] for part in model.sde.mean_std(t))
    noised = m * theta + s * eps
    residual = model.residual(noised, x, t) + eps
    if shift is not None:
        residual = residual + s * shift(noised, m, s)
    return loss_weight(weight, model, t) * residual.square().mean(1)


def draw_times(n: int, stratified: bool, generator: torch.Generator, t_min: float) -> Tensor:
    """n times on [t_min, 1], uniform; stratified: one in each of n equal parts, t_i = (u + i) / n with one u."""
    if stratified:
        u = (torch.rand(1, generator=generator) + torch.arange(n)) / n
    else:
        u = torch.rand(n, generator=generator)
    return t_min + (1 - t_min) * u


def largest_distance(theta: Tensor, most: int = 1000) -> float:
    """Largest distance between two rows, of the first `most` (the paper's sigma_max, in the units that are diffused)."""
    return float(torch.pdist(theta[:most]).max()) if len(theta) > 1 else 1.0


def standardiser(values: Tensor) -> tuple[Tensor, Tensor]:
    """(mean, std) of each column of (n, k); a constant column has std 1."""
    mean, std = values.double().mean(0), values.double().std(0)
    flat = ~(std > 1e-12 * values.double().abs().amax(0).clamp_min(1e-300))
    return mean, torch.where(flat, torch.ones_like(std), std)


def fit(theta: Tensor, x: Tensor, options: Mapping[str, Any], rng: Rng, *, weights: Tensor | None = None,
        shift: Callable[[Tensor, Tensor], Shift] | None = None, embedding: nn.Module | None = None,
        start: Mapping[str, Any] | None = None) -> dict[str, Any]:  # fmt: skip
    """Train a score model on pairs. theta (n, d), x (n, p), finite; weights (n,): of each pair's loss, mean one.

    shift: given (mean, std) of theta, the function that is added to the score in the loss. start: a state to go on from.
    Returns the state that `restore` reads: numbers, text, and arrays alone. Raises ValueError for fewer than two pairs.
    """
    if len(theta) < 2:
        raise ValueError(f"{len(theta)} simulations to train on: give at least 2")
    theta_mean, theta_std = standardiser(theta)
    if options["standardise"] == "common":  # one scale for all parameters, as some libraries have it
        theta_std = theta_std.max().expand_as(theta_std).clone()
    x_mean, x_std = standardiser(x)
    a, b = ((theta.double() - theta_mean) / theta_std).float(), ((x.double() - x_mean) / x_std).float()
    given = dict(options)
    if given["sigma_max"] is None:
        given["sigma_max"] = max(largest_distance(a), 2.0)
    sde = make(given["sde"], given)
    d, p = a.shape[1], b.shape[1]
    with seeded(Rng(rng.root, *rng.name, "weights").seed):
        model = ScoreModel(d, p, sde, embedding=embedding, **options_of(given))
    if start is not None:
        model.load_state_dict({name: torch.as_tensor(np.array(value)) for name, value in start["weights"].items()})
    generator = Rng(rng.root, *rng.name, "batches").torch
    order = torch.randperm(len(a), generator=generator)
    held = int(given["validation"] * len(a))
    valid, train = order[:held], order[held:]
    shift_ = shift(theta_mean.float(), theta_std.float()) if shift else None
    best, curve = _optimise(model, a, b, train, valid, given, generator, weights, shift_)
    m, s = (float(v) for v in sde.mean_std(torch.ones(1)))
    return {
        "weights": {name: value.numpy().copy() for name, value in best.items()},
        "theta_mean": theta_mean.numpy(), "theta_std": theta_std.numpy(), "x_mean": x_mean.numpy(), "x_std": x_std.numpy(),
        "x_low": x.amin(0).double().numpy(), "x_high": x.amax(0).double().numpy(),
        "sde": to_dict(sde), "net": options_of(given), "curve": curve, "pairs": len(a), "end": [m, s],
    }  # fmt: skip


def one_cycle(share: float, warm: float = 0.1) -> float:
    """Factor of the learning rate after a share of the steps: a cosine up from 1/25 in the first tenth, then one down to zero."""
    if share < warm:
        return 0.04 + 0.96 * (1 - math.cos(math.pi * share / warm)) / 2
    return (1 + math.cos(math.pi * (share - warm) / (1 - warm))) / 2


def _optimise(model: ScoreModel, a: Tensor, b: Tensor, train: Tensor, valid: Tensor, given: Mapping[str, Any],
              generator: torch.Generator, weights: Tensor | None, shift: Shift | None) -> tuple[dict[str, Tensor], list]:  # fmt: skip
    steps, batch = int(given["steps"]), min(int(given["batch_size"]), len(train))
    parameters = list(model.parameters())
    optimiser = torch.optim.AdamW(parameters, lr=given["lr"], weight_decay=given["weight_decay"], fused=True)
    scheduler = None
    if given["schedule"] == "one_cycle":
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: one_cycle(step / steps))
    ema = [p.detach().clone() for p in parameters]
    t_min = max(model.sde.t_min, 0.0)
    copies = max(1, 2000 // max(1, len(valid)))  # the fixed bank of noise: at least 2,000 terms, the same at each look
    bank_t = draw_times(copies * len(valid), True, generator, t_min)[
        torch.randperm(copies * len(valid), generator=generator)
    ]
    bank_eps = torch.randn(copies * len(valid), a.shape[1], generator=generator)
    bank = valid.repeat(copies)
    best: dict[str, Tensor] = {}
    best_loss, best_step, curve = math.inf, 0, []
    per_epoch = max(1, math.ceil(len(train) / batch))
    patience = given["patience"]
    patience = None if patience is None else patience * (per_epoch if given["patience_unit"] == "epochs" else 1)
    order, place = train[torch.randperm(len(train), generator=generator)], 0
    for step in range(1, steps + 1):
        if place + batch > len(order):  # a new pass, in a new order
            order, place = train[torch.randperm(len(train), generator=generator)], 0
        rows = order[place : place + batch]
        place += batch
        theta, t = a[rows], draw_times(batch, given["stratified"], generator, t_min)
        eps = torch.randn(theta.shape, generator=generator)
        losses = denoising_loss(model, theta, model.embed(b[rows]), t, eps, weight=given["weight"], shift=shift)
        loss = losses.mean() if weights is None else (losses * weights[rows]).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 10.0)
        optimiser.step()
        if scheduler is not None:
            scheduler.step()
        decay = min(given["ema"], step / (step + 10)) if given["ema"] else 0.0
        torch._foreach_lerp_(ema, [p.detach() for p in parameters], 1 - decay)
        if step % given["evaluate_every"] == 0 or step == steps:
            with torch.no_grad(), _swapped(parameters, ema):
                found = (
                    float(_bank_loss(model, a, b, bank, bank_t, bank_eps, given, weights, shift)) if len(valid) else 0.0
                )
                curve.append([step, float(loss.detach()), found])
                if not len(valid) or found < best_loss:
                    best_loss, best_step = found, step
                    best = {name: value.detach().clone() for name, value in model.state_dict().items()}
            if not math.isfinite(found):
                raise ValueError("training diverged: the validation loss is not finite, lower lr")
            if patience is not None and step - best_step >= patience:
                break
    return best, curve


def _bank_loss(model: ScoreModel, a: Tensor, b: Tensor, bank: Tensor, t: Tensor, eps: Tensor, given: Mapping[str, Any],
               weights: Tensor | None, shift: Shift | None) -> Tensor:  # fmt: skip
    losses = denoising_loss(model, a[bank], model.embed(b[bank]), t, eps, weight=given["weight"], shift=shift)
    return losses.mean() if weights is None else (losses * weights[bank]).mean()


class _swapped:
    """Inside, the parameters hold other values (their moving average)."""

    def __init__(self, parameters: list[nn.Parameter], values: list[Tensor]):
        self.pairs = list(zip(parameters, values, strict=True))

    def __enter__(self) -> None:
        self.kept = [p.data for p, _ in self.pairs]
        for parameter, value in self.pairs:
            parameter.data = value

    def __exit__(self, *exception: object) -> None:
        for (parameter, _), value in zip(self.pairs, self.kept, strict=True):
            parameter.data = value


def restore(state: Mapping[str, Any], embedding: nn.Module | None = None) -> ScoreModel:
    """The model of a state that `fit` returned. ValueError where its arrays do not fit its description."""
    options = dict(state["sde"])
    sde = make(options.pop("kind"), options)
    d, p = len(state["theta_mean"]), len(state["x_mean"])
    with seeded(0):
        model = ScoreModel(d, p, sde, embedding=embedding, **state["net"])
    try:
        model.load_state_dict({name: torch.as_tensor(np.array(value)) for name, value in state["weights"].items()})
    except (RuntimeError, KeyError) as error:
        raise ValueError(f"the weights do not fit the network ({str(error).splitlines()[0][:100]})") from None
    return model.eval().requires_grad_(False)
