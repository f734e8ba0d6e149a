"""The identities of the probability model, as figures that must be zero: eqs. (1) to (8) and their limits, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from papers.kd_aux import losses
from papers.kd_aux.baselines import dkd_terms
from papers.kd_aux.inference import prototype_classifier, vmf_log_normaliser


class Draw:
    """Random unit rows and logits: s, t (B, D), queue_t (L, D), queue_logits (L, C), logits (B, C), y (B,), all float64."""

    def __init__(self, generator: np.random.Generator, B: int = 6, L: int = 15, C: int = 4, D: int = 5):
        def rows(n: int, d: int) -> Tensor:
            return torch.from_numpy(generator.normal(size=(n, d)))

        self.s, self.t, self.queue_t = (F.normalize(rows(n, D), dim=1) for n in (B, B, L))
        self.queue_logits, self.logits_s, self.logits_t = rows(L, C) * 2, rows(B, C) * 2, rows(B, C) * 2
        self.y = torch.from_numpy(generator.integers(C, size=B))


def errors(generator: np.random.Generator, predictive: Callable[..., Tensor] = losses.predictive) -> dict[str, float]:
    """The largest deviation of each identity on one draw. predictive: eq. (2), to be replaced by wrong ones."""
    d = Draw(generator)
    tau, beta, alpha, T = 0.3, 0.4, 1.5, 4.0
    log_p = predictive(d.s, d.queue_t, d.queue_logits, tau, alpha)
    log_z = losses.instance_posterior(d.s, d.queue_t, tau)
    log_c = F.log_softmax(alpha * d.queue_logits, dim=1)
    posterior = losses.label_posterior(d.s, d.queue_t, d.queue_logits, tau, alpha)  # (B, C, L)
    found = {"total_probability": _gap(log_p.exp().sum(dim=1), torch.ones(len(d.s)).double())}
    bayes = (
        log_c.mT[None] + log_z[:, None] - posterior
    )  # log p(y|z) + log p(z|x) - log p(z|x, y) is log p(y|x), whatever z
    found["bayes"] = _gap(bayes, log_p[:, :, None].expand_as(bayes))
    found |= _prototypes(d, predictive) | _objectives(d, log_p, log_z, log_c, posterior, tau, beta, alpha, T)
    found |= _gradients(d, tau, beta, alpha, T) | _logits(d, T)
    kappa = 3.7
    found["vmf_circle"] = abs(vmf_log_normaliser(2, kappa) + math.log(2 * math.pi * float(np.i0(kappa))))
    found["vmf_sphere"] = abs(vmf_log_normaliser(3, kappa) - math.log(kappa / (4 * math.pi * math.sinh(kappa))))
    return found


def _prototypes(d: Draw, predictive: Callable[..., Tensor]) -> dict[str, float]:
    """L = C with p(y|z) = I is the cosine softmax; classes of equal directions and unequal sizes are one with a prior."""
    mu, kappa = d.queue_t[:4], 5.0
    certain = 400.0 * torch.eye(4, dtype=torch.float64)
    cosine = F.log_softmax(kappa * d.s @ mu.mT, dim=1)
    sizes = torch.tensor([1, 2, 3, 4])
    owner = torch.arange(4).repeat_interleave(sizes)
    classify = prototype_classifier(mu[owner], owner, 4, kappa, (sizes.double() / sizes.sum()).log())
    collapsed = predictive(d.s, mu[owner], certain[owner], 1 / kappa)
    return {
        "cosine_softmax": _gap(predictive(d.s, mu, certain, 1 / kappa), cosine),
        "prototype_collapse": _gap(F.log_softmax(classify(d.s), dim=1), collapsed),
    }


def _objectives(d: Draw, log_p: Tensor, log_z: Tensor, log_c: Tensor, posterior: Tensor, tau: float, beta: float, alpha: float,
                T: float) -> dict[str, float]:  # fmt: skip
    """Chain rule, data processing, the bound and its gap, InfoNCE, and zero where both sides are equal."""
    log_qz = losses.instance_posterior(d.t, d.queue_t, beta)
    log_qy, log_py = F.log_softmax(d.logits_t / T, dim=1), F.log_softmax(d.logits_s / T, dim=1)
    both_q, both_p = log_qz[:, :, None] + log_qy[:, None], log_z[:, :, None] + log_py[:, None]
    chain = (both_q.exp() * (both_q - both_p)).sum(dim=(1, 2)).mean()
    joint = losses.joint(d.s, d.t, d.logits_s, d.logits_t, d.queue_t, tau, beta, T)
    teacher_mix = losses.predictive(d.t, d.queue_t, d.queue_logits, beta, alpha)
    through = (teacher_mix.exp() * (teacher_mix - log_p)).sum(dim=1)  # KL of the y-marginals
    whole = (log_qz.exp() * (log_qz - log_z)).sum(dim=1)  # KL of the joints with one p(y|z)
    q = F.log_softmax(log_c.mT[None] + log_qz[:, None], dim=2)  # (B, C, L)
    bound = (q.exp() * (log_c.mT[None] + log_z[:, None] - q)).sum(dim=2)
    gap = (q.exp() * (q - posterior)).sum(dim=2)
    elbo = losses.elbo(d.s, d.t, d.queue_t, d.queue_logits, d.logits_t, tau, beta, alpha, T)
    by_hand = (log_qy.exp() * (q.exp() * (q - log_z[:, None])).sum(dim=2)).sum(dim=1).mean()
    same = losses.marginal(d.s, d.queue_t, d.queue_logits, log_p * T, tau, alpha, T)
    return {
        "chain_rule": abs(float(joint - chain)),
        "data_processing": max(0.0, float((through - whole).max())),
        "elbo_gap": _gap(log_p - bound, gap),
        "elbo_below": max(0.0, float((bound - log_p).max())),
        "elbo_sum": abs(float(elbo - by_hand)),
        "marginal_zero": abs(float(same)),
        "info_nce": abs(float(losses.feature(d.s, d.t, d.t, tau, 1e-4) - losses.info_nce(d.s, d.t, tau))),
    }


def _gradients(d: Draw, tau: float, beta: float, alpha: float, T: float) -> dict[str, float]:
    """The closed forms of sec. 3.3 against automatic differentiation."""

    def of(loss: Callable[[Tensor], Tensor]) -> Tensor:
        s = d.s.clone().requires_grad_()
        return torch.autograd.grad(loss(s), s)[0]

    marginal = of(lambda s: losses.marginal(s, d.queue_t, d.queue_logits, d.logits_t, tau, alpha, T))
    elbo = of(lambda s: losses.elbo(s, d.t, d.queue_t, d.queue_logits, d.logits_t, tau, beta, alpha, T))
    joint = of(lambda s: losses.joint(s, d.t, d.logits_s, d.logits_t, d.queue_t, tau, beta, T))
    return {
        "gradient_marginal": _gap(
            marginal, losses.marginal_gradient(d.s, d.queue_t, d.queue_logits, d.logits_t, tau, alpha, T)
        ),
        "gradient_elbo": _gap(
            elbo, losses.elbo_gradient(d.s, d.t, d.queue_t, d.queue_logits, d.logits_t, tau, beta, alpha, T)
        ),
        "gradient_joint": _gap(joint, losses.joint_gradient(d.s, d.t, d.queue_t, tau, beta)),
    }


def _logits(d: Draw, T: float) -> dict[str, float]:
    """KD is torch's kl_div, and DKD takes it apart exactly."""
    kd = losses.kd(d.logits_s, d.logits_t, T)
    reference = (
        F.kl_div(F.log_softmax(d.logits_s / T, dim=1), F.softmax(d.logits_t / T, dim=1), reduction="batchmean") * T**2
    )
    tckd, nckd, target = dkd_terms(d.logits_s, d.logits_t, d.y, T)
    return {"kd": abs(float(kd - reference)), "dkd": abs(float((tckd + (1 - target) * nckd).mean() * T**2 - kd))}


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def mutual_information(
    generator: np.random.Generator, n: int = 512, dim: int = 4, rho: float = 0.6, tau: float = 0.2
) -> dict[str, float]:
    """log L - InfoNCE between correlated Gaussian views projected on the sphere, against -(D/2) log(1 - rho^2): never above it.

    The bound holds for any critic; this one, a cosine over tau, is far from the best. `limit` is log L.
    """
    a = torch.from_numpy(generator.normal(size=(n, dim)))
    b = rho * a + (1 - rho**2) ** 0.5 * torch.from_numpy(generator.normal(size=(n, dim)))
    loss = losses.info_nce(F.normalize(a, dim=1), F.normalize(b, dim=1), tau)
    return {"estimate": math.log(n) - float(loss), "truth": -dim / 2 * math.log(1 - rho**2), "limit": math.log(n)}


def log_of_means_swapped(
    s: Tensor, queue_t: Tensor, queue_logits: Tensor, tau: float = 0.1, alpha: float = 1.0
) -> Tensor:
    """A wrong eq. (2): the mean of log p(y|z) in place of the log of the mean. What the identities must catch."""
    return losses.instance_posterior(s, queue_t, tau).exp() @ F.log_softmax(alpha * queue_logits, dim=1)
