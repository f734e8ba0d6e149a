"""Adam's moments under weights that move: the memory of past gradients put on the scale of the weights of now.

Adam divides a mean of past gradients, m, by the root of a mean of their squares, v, and g = sum_i w_i g_i has the weights
of its step in it. Where a weight moves from w to w', the memory is of gradients that are no longer: the parameter is
slowed or quickened for some 1 / (1 - beta2) steps, wherever the minimum lies. Two remedies:

    rescaled  m <- m w'/w, v <- v (w'/w)^2. Exact for a parameter on which one loss alone depends, g = w_i g_i.
              One that several losses share takes the ratio of sum_i w_i sqrt(l_i): the size of its gradient where the
              gradients of the losses point one way, since that of a squared error grows as the error.
    exact     m = sum_i w_i m_i and v = sum_ij w_i w_j M_ij with the means m_i of g_i and M_ij of g_i g_j kept one by
              one: what Adam would hold had the weights never been others. Small models alone: n^2 numbers a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

STATES = ("as_is", "rescaled", "exact")
MOST_NUMBERS = 200_000_000  # of `exact`: 0.8 GB


def owners(losses: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """For each parameter (rows, ...) the one loss on which each of its rows depends, -1 where there are several. (rows,)

    losses: (n,), with a graph, which is kept. Losses are told apart by the binary digits of their numbers: doubling those
    whose digit is 1 doubles the gradient of a row, or leaves it, where one loss alone is behind it. A row without a
    gradient counts as shared.
    """
    number = torch.arange(len(losses), device=losses.device)
    plain = _by_rows(losses, torch.ones_like(losses), parameters)
    found = [torch.zeros(len(rows), dtype=torch.long, device=rows.device) for rows in plain]
    shared = [(rows == 0).all(1) for rows in plain]
    for digit in range((len(losses) - 1).bit_length()):
        doubled = _by_rows(losses, 1.0 + ((number >> digit) & 1).to(losses), parameters)
        for place, (before, after) in enumerate(zip(plain, doubled, strict=True)):
            slack = 1e-4 * before.abs()
            same, twice = (((after - k * before).abs() <= slack).all(1) for k in (1, 2))
            found[place] += twice.long() << digit
            shared[place] |= ~(same | twice)
    return [owner.masked_fill(several, -1) for owner, several in zip(found, shared, strict=True)]


def _by_rows(losses: Tensor, u: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of sum_i u_i l_i, as (rows, entries of a row)."""
    gradients = torch.autograd.grad(losses @ u, list(parameters), retain_graph=True, allow_unused=True)
    whole = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    return [g.reshape(len(g) if g.ndim else 1, -1) for g in whole]


def ratios(owner: Tensor, before: Tensor, now: Tensor, losses: Tensor) -> Tensor:
    """w'/w for the rows of a parameter, (rows,). before, now, losses: (n,).

    A weight that is zero (constraints on differences have such) counts as a millionth of 1/n: what is left of the memory
    comes back with it.
    """
    floor = 1e-6 / len(now)
    sign_before, sign_now = (torch.where(w < 0, -1.0, 1.0) for w in (before, now))
    before, now = sign_before * before.abs().clamp(min=floor), sign_now * now.abs().clamp(min=floor)
    size = losses.clamp(min=0).sqrt() + 1e-12
    of_all = (now.abs() @ size) / (before.abs() @ size)
    return torch.where(owner < 0, of_all, (now / before)[owner.clamp(min=0)])


def rescale(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], scales: Sequence[Tensor]) -> None:
    """Multiply what an optimiser remembers of gradients by the scales (rows,) of each parameter, and of squares by their squares."""
    for parameter, scale in zip(parameters, scales, strict=True):
        state = optimizer.state.get(parameter, {})
        rows = scale.reshape(-1, *[1] * (parameter.ndim - 1)) if parameter.ndim else scale.squeeze()
        for name, power in (("exp_avg", 1), ("momentum_buffer", 1), ("exp_avg_sq", 2), ("max_exp_avg_sq", 2)):
            if isinstance(state.get(name), Tensor):
                state[name].mul_((rows**power).to(state[name].real if state[name].is_complex() else state[name]))


class ExactMoments:
    """The moments of every loss's own gradient, from which Adam's are made anew under the weights of each step.

    Raises ValueError for a model whose products of gradients would not fit (n^2 numbers a parameter).
    """

    def __init__(self, n: int, parameters: Sequence[Tensor], betas: tuple[float, float]):
        self.parameters, self.betas = list(parameters), betas
        size = sum(p.numel() for p in self.parameters)
        if n * n * size > MOST_NUMBERS:
            raise ValueError(
                f"optimiser_state exact keeps {n}^2 numbers for each of {size} parameters: use rescaled for a model of this size"
            )
        self.first = torch.zeros(n, size, dtype=self.parameters[0].dtype)  # (1 - beta1) sum_s beta1^(t-s) g_i
        self.second = torch.zeros(n, n, size, dtype=self.parameters[0].dtype)
        self.gradients: Tensor | None = None  # (n, size) of this step

    def see(self, losses: Tensor) -> None:
        """Take the gradient of every loss (n,) of this step."""
        each = torch.eye(len(losses)).to(losses)
        rows = torch.autograd.grad(losses, self.parameters, each, retain_graph=True, is_grads_batched=True, allow_unused=True)  # fmt: skip
        whole = [
            torch.zeros(len(losses), *p.shape) if g is None else g for p, g in zip(self.parameters, rows, strict=True)
        ]
        self.gradients = torch.cat([g.reshape(len(losses), -1) for g in whole], dim=1)

    def put(self, optimizer: torch.optim.Optimizer, w: Tensor) -> None:
        """Give Adam the moments that the past has under weights w (n,); then add this step's gradients to the past."""
        w = w.to(self.first)
        first, second = w @ self.first, torch.einsum("i,ijp,j->p", w, self.second, w)
        place = 0
        for p in self.parameters:
            state, end = optimizer.state.get(p, {}), place + p.numel()
            if state:
                state["exp_avg"].copy_(first[place:end].view_as(p))
                state["exp_avg_sq"].copy_(second[place:end].clamp(min=0).view_as(p))
            place = end
        assert self.gradients is not None
        (beta1, beta2), g = self.betas, self.gradients
        self.first.mul_(beta1).add_(g, alpha=1 - beta1)
        self.second.mul_(beta2).addcmul_(g[:, None], g[None], value=1 - beta2)

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first, "second": self.second}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first, self.second = state["first"], state["second"]
