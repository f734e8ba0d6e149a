"""Distillation losses through an auxiliary variable z, the stored instance that an input is like: eqs. (1) to (8).

Shapes everywhere: s, t (B, D) unit rows of student and teacher; queue_t (L, D) unit rows, the instances; logits (B, C) and
queue_logits (L, C); mask (L,) bool, True where a slot is filled. Sums are taken in float32 or wider, whatever comes in.
tau, beta and T are temperatures; alpha is a concentration: p(c|n) = softmax(alpha * queue_logits). No gradient reaches
what is the teacher's. Every loss is a mean over the batch, and none carries a factor T^2 but `kd`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

TINY = {torch.float32: 1e-30, torch.float64: 1e-250}  # below these a product of probabilities is summed in logs instead
CLAMP = 1e-8  # the probability that a one-hot p(y|z) leaves to every other class

__all__ = ["elbo", "elbo_gradient", "feature", "info_nce", "instance_posterior", "joint", "joint_gradient", "kd", "label_posterior",
           "marginal", "marginal_gradient", "one_hot_logits", "predictive"]  # fmt: skip


# ---- p(z|x), p(y|z), p(y|x): eqs. (1) to (5) -------------------------------------------------------------------------


def instance_posterior(s: Tensor, queue_t: Tensor, tau: float = 0.1, mask: Tensor | None = None) -> Tensor:
    """log p(z = n | x) of eq. (1), or of eq. (4) with t and beta: (B, L), -inf where the slot is empty."""
    s, queue_t = _wide(s), _wide(queue_t)
    _check_rows("s", s, queue_t)
    _check_positive(tau=tau)
    scores = s @ queue_t.to(s.dtype).mT / tau  # (B, L)
    if mask is not None:
        scores = scores.masked_fill(~_check_mask(mask, queue_t), -math.inf)
    return F.log_softmax(scores, dim=1)


def predictive(
    s: Tensor, queue_t: Tensor, queue_logits: Tensor, tau: float = 0.1, alpha: float = 1.0, mask: Tensor | None = None
) -> Tensor:
    """Log-probabilities of the student's prediction through its instances, eq. (2): (B, C).

    log sum_n p(c|n) p(n|x). ValueError for shapes that do not fit, temperatures that are not positive, an empty mask.
    """
    queue_t, queue_logits = _filled(queue_t, queue_logits, mask)
    log_z = instance_posterior(s, queue_t, tau)
    return _log_mix(log_z, _class_given_instance(queue_logits, alpha, log_z.dtype))


def label_posterior(s: Tensor, queue_t: Tensor, queue_logits: Tensor, tau: float = 0.1, alpha: float = 1.0) -> Tensor:
    """log p(z = n | x, y = c) of eq. (5): (B, C, L)."""
    log_z = instance_posterior(s, queue_t, tau)
    both = log_z[:, None] + _class_given_instance(queue_logits, alpha, log_z.dtype).mT  # (B, C, L)
    return F.log_softmax(both, dim=2)


def one_hot_logits(y: Tensor, classes: int, eps: float = CLAMP) -> Tensor:
    """log p(c|n) of instances that are known by their labels alone, clamped: log(1 - (C - 1) eps) and log eps. (L, C).

    With it a class that no instance has is improbable, not impossible: no -inf in a loss. ValueError for labels outside.
    """
    check_labels(y, classes)
    hot = F.one_hot(y.long(), classes).bool()
    inside = math.log1p(-(classes - 1) * eps)
    return torch.where(hot, inside, math.log(eps)).to(torch.float32)


# ---- the three objectives: eqs. (6), (7), (8) ------------------------------------------------------------------------


def marginal(s: Tensor, queue_t: Tensor, queue_logits: Tensor, logits_t: Tensor, tau: float = 0.1, alpha: float = 1.0,
             T: float = 4.0, mask: Tensor | None = None) -> Tensor:  # fmt: skip
    """KL(p_T(y|x) || sum_n p(y|z=n) p_S(z=n|x)), eq. (6): only the student's distribution goes through z."""
    _check_positive(T=T)
    log_p = predictive(s, queue_t, queue_logits, tau, alpha, mask)
    log_t = _teacher(logits_t, T, log_p, log_p.shape[1])
    return (log_t.exp() * (log_t - log_p)).sum(dim=1).mean()


def elbo(s: Tensor, t: Tensor, queue_t: Tensor, queue_logits: Tensor, logits_t: Tensor, tau: float = 0.1, beta: float = 0.1,
         alpha: float = 1.0, T: float = 4.0, mask: Tensor | None = None) -> Tensor:  # fmt: skip
    """sum_c p_T(c|x) KL(q(z|x,c) || p_S(z|x)) with the teacher's q(z|x,c) ~ p(c|z) p_T(z|x), eq. (7) without its constant."""
    _check_positive(T=T, beta=beta)
    queue_t, queue_logits = _filled(queue_t, queue_logits, mask)
    log_p = instance_posterior(s, queue_t, tau)  # (B, L)
    w, negative_entropy = _elbo_targets(t, queue_t, queue_logits, logits_t, beta, alpha, T, log_p.dtype)
    return (negative_entropy - (w * log_p).sum(dim=1)).mean()


def joint(s: Tensor, t: Tensor, logits_s: Tensor, logits_t: Tensor, queue_t: Tensor, tau: float = 0.1, beta: float = 0.1,
          T: float = 4.0, mask: Tensor | None = None) -> Tensor:  # fmt: skip
    """KL of the joint over (z, y), eq. (8): KL(p_T(z|x) || p_S(z|x)) + KL(p_T(y|x) || p_S(y|x)), both of weight 1."""
    return feature(s, t, queue_t, tau, beta, mask) + kd(logits_s, logits_t, T) / T**2


def feature(
    s: Tensor, t: Tensor, queue_t: Tensor, tau: float = 0.1, beta: float = 0.1, mask: Tensor | None = None
) -> Tensor:
    """KL(p_T(z|x) || p_S(z|x)), the first term of eq. (8): who is near whom. InfoNCE as beta goes to 0."""
    _check_positive(beta=beta)
    queue_t, _ = _filled(queue_t, None, mask)
    log_p = instance_posterior(s, queue_t, tau)
    with torch.no_grad():
        log_q = instance_posterior(t, queue_t, beta).to(log_p.dtype)
    return (log_q.exp() * (log_q - log_p)).sum(dim=1).mean()


def kd(logits_s: Tensor, logits_t: Tensor, T: float = 4.0) -> Tensor:
    """T^2 KL(softmax(l_T / T) || softmax(l_S / T)), mean over the batch (Hinton et al.). ValueError where class counts differ."""
    _check_positive(T=T)
    log_p = F.log_softmax(_logits("logits_s", logits_s) / T, dim=1)
    log_t = _teacher(logits_t, T, log_p, log_p.shape[1])
    return T**2 * (log_t.exp() * (log_t - log_p)).sum(dim=1).mean()


def info_nce(s: Tensor, t: Tensor, tau: float = 0.1) -> Tensor:
    """-log of the share of the own row of t among all rows: what `feature` is as beta goes to 0 with t as the queue."""
    _check_positive(tau=tau)
    s, t = _wide(s), _wide(t)
    return F.cross_entropy(s @ t.mT / tau, torch.arange(len(s), device=s.device))


# ---- gradients in closed form: sec. 3.3 ------------------------------------------------------------------------------


def marginal_gradient(s: Tensor, queue_t: Tensor, queue_logits: Tensor, logits_t: Tensor, tau: float = 0.1,
                      alpha: float = 1.0, T: float = 4.0) -> Tensor:  # fmt: skip
    """d marginal / d s = (1 / tau B) sum_n [p_S(n|x) - E_{c ~ p_T} p_S(n|x,c)] t_n: (B, D).

    An instance that explains the teacher's class is pulled by its posterior, the others are pushed by their similarity:
    near ones of another class most.
    """
    log_z = instance_posterior(s, queue_t, tau)
    pull = torch.einsum("bc,bcn->bn", _teacher(logits_t, T, log_z).exp(),
                        label_posterior(s, queue_t, queue_logits, tau, alpha).exp())  # fmt: skip
    return (log_z.exp() - pull) @ _wide(queue_t) / (tau * len(s))


def elbo_gradient(s: Tensor, t: Tensor, queue_t: Tensor, queue_logits: Tensor, logits_t: Tensor, tau: float = 0.1,
                  beta: float = 0.1, alpha: float = 1.0, T: float = 4.0) -> Tensor:  # fmt: skip
    """d elbo / d s = (1 / tau B) sum_n [p_S(n|x) - sum_c p_T(c|x) q(n|x,c)] t_n: (B, D)."""
    log_z = instance_posterior(s, queue_t, tau)
    w, _ = _elbo_targets(t, queue_t, queue_logits, logits_t, beta, alpha, T, log_z.dtype)
    return (log_z.exp() - w) @ _wide(queue_t) / (tau * len(s))


def joint_gradient(s: Tensor, t: Tensor, queue_t: Tensor, tau: float = 0.1, beta: float = 0.1) -> Tensor:
    """d joint / d s = (1 / tau B) sum_n [p_S(n|x) - p_T(n|x)] t_n: (B, D). The logit term does not depend on s."""
    difference = instance_posterior(s, queue_t, tau).exp() - instance_posterior(t, queue_t, beta).exp()
    return difference @ _wide(queue_t) / (tau * len(s))


# ---- what they are made of -------------------------------------------------------------------------------------------


def check_labels(y: Tensor, classes: int) -> None:
    """Raise ValueError for labels that are not 0 .. classes - 1."""
    if y.is_floating_point() or y.dim() != 1:
        raise ValueError(f"labels are {y.dtype} of shape {tuple(y.shape)}: give whole numbers, one for each row")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise ValueError(f"labels go from {int(y.min())} to {int(y.max())}: there are {classes} classes, from 0")


def _log_mix(log_z: Tensor, log_c: Tensor) -> Tensor:
    """log sum_n exp(log_z[b, n] + log_c[n, c]): (B, L), (L, C) -> (B, C), as a product of matrices where that is exact.

    Each class is shifted by its largest log p(c|n), each row by its largest log p(n|x). Rows in which a class still
    underflows are summed in logs.
    """
    top, most = log_c.amax(dim=0).clamp_min(-1e30), log_z.detach().amax(dim=1, keepdim=True)  # (C,), (B, 1)
    p = (log_z - most).exp() @ (log_c - top).exp()
    tiny = TINY[p.dtype]
    mixed = p.clamp_min(tiny).log() + top + most
    rows = (p.detach() < tiny).any(dim=1).nonzero()[:, 0]
    if not len(rows):
        return mixed
    step = max(1, 2**24 // log_c.numel())
    exact = [torch.logsumexp(log_z[part, :, None] + log_c, dim=1) for part in rows.split(step)]
    return mixed.index_copy(0, rows, torch.cat(exact))


@torch.no_grad()
def _elbo_targets(t: Tensor, queue_t: Tensor, queue_logits: Tensor, logits_t: Tensor, beta: float, alpha: float, T: float,
                  dtype: torch.dtype) -> tuple[Tensor, Tensor]:  # fmt: skip
    """w (B, L) = sum_c p_T(c|x) q(n|x,c), and sum_c p_T(c|x) sum_n q log q (B,): all that eq. (7) asks of the teacher."""
    log_z = instance_posterior(t, queue_t, beta).to(dtype)
    log_c = _class_given_instance(queue_logits, alpha, dtype)
    p_t = _teacher(logits_t, T, log_z, log_c.shape[1]).exp()  # (B, C)
    z, c = log_z.exp(), log_c.exp()
    mass = z @ c  # (B, C): Z_c
    safe = mass.clamp_min(TINY[dtype])
    share = p_t / safe
    w = z * (share @ c.mT)
    # sum_n q log q = [sum_n z c (log c + log z)] / Z - log Z
    inner = z @ -torch.special.entr(c) + -torch.special.entr(z) @ c
    negative_entropy = (share * inner - p_t * safe.log()).sum(dim=1)
    for row in (
        (mass < TINY[dtype] * 1e6).any(dim=1).nonzero()[:, 0].tolist()
    ):  # a class that hardly any near instance has
        log_q = F.log_softmax(log_z[row] + log_c.mT, dim=1)  # (C, L)
        w[row] = p_t[row] @ log_q.exp()
        negative_entropy[row] = -(p_t[row] @ torch.special.entr(log_q.exp()).sum(dim=1))
    return w, negative_entropy


def _class_given_instance(queue_logits: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    """log p(c|n), eq. (3): (L, C)."""
    _check_positive(alpha=alpha)
    return F.log_softmax(alpha * _logits("queue_logits", queue_logits).detach().to(dtype), dim=1)


def _teacher(logits_t: Tensor, T: float, like: Tensor, classes: int | None = None) -> Tensor:
    """log p_T(c|x): (B, C), in the type of `like`, a row for each of its rows. ValueError where the classes differ."""
    logits_t = _logits("logits_t", logits_t)
    if len(logits_t) != len(like):
        raise ValueError(f"logits_t has {len(logits_t)} rows, the student {len(like)}: give the same batch")
    if classes is not None and classes != logits_t.shape[1]:
        raise ValueError(
            f"the teacher has {logits_t.shape[1]} classes, the student {classes}: a logit term needs the same"
        )
    return F.log_softmax(logits_t.detach().to(like.dtype) / T, dim=1)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _logits(name: str, logits: Tensor) -> Tensor:
    """Logits in float32 or wider. ValueError where they are no table of finite numbers."""
    if logits.dim() != 2:
        raise ValueError(f"{name} has shape {tuple(logits.shape)}: give a row for each sample, a column for each class")
    if not bool(torch.isfinite(logits).all()):
        raise ValueError(f"{name} is not finite ({logits.dtype}): half precision ends at 65,504, compute it in float32")
    return _wide(logits)


def _filled(queue_t: Tensor, queue_logits: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The filled rows of a queue, without a gradient."""
    logits = queue_t if queue_logits is None else queue_logits
    if len(logits) != len(queue_t):
        raise ValueError(f"queue_logits has {len(logits)} rows, queue_t {len(queue_t)}: they must be the same")
    if mask is None:
        return queue_t.detach(), logits.detach()
    mask = _check_mask(mask, queue_t)
    return queue_t.detach()[mask], logits.detach()[mask]


def _check_mask(mask: Tensor, queue_t: Tensor) -> Tensor:
    if mask.dtype != torch.bool or mask.shape != queue_t.shape[:1]:
        raise ValueError(
            f"mask is {mask.dtype} of shape {tuple(mask.shape)}: give a bool for each of {len(queue_t)} slots"
        )
    if not bool(mask.any()):
        raise ValueError("mask is False everywhere: the queue is empty, enqueue a batch first")
    return mask


def _check_rows(name: str, rows: Tensor, queue_t: Tensor) -> None:
    if rows.dim() != 2 or queue_t.dim() != 2 or rows.shape[1] != queue_t.shape[1]:
        raise ValueError(
            f"{name} has shape {tuple(rows.shape)}, queue_t {tuple(queue_t.shape)}: both need one width, a row for each sample"
        )
    if not len(queue_t):
        raise ValueError("queue_t is empty: enqueue a batch first")
    if bool((rows.detach().abs().amax(dim=1) == 0).any()):
        raise ValueError(f"a row of {name} has norm zero: it has no direction, leave it out")


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0 or not math.isfinite(value):
            raise ValueError(f"{name} is {value}: give a number above 0")
