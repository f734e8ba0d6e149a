"""The distillers of the literature, each a module from a batch's features and logits to one loss (sec. 4 of the benchmark).

A method sees `Views`: features of student and teacher by pairs, maps (B, C, H, W) or vectors (B, D), and both logits.
Formulas and weights follow the public benchmark code; where ours differs the docstring says so.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from papers.kd_aux.inference import unit
from papers.kd_aux.losses import kd
from papers.kd_aux.taps import pooled


class Views(NamedTuple):
    """What a method is given of a batch. The teacher's part carries no gradient. step: batches seen before."""

    s: list[Tensor]
    t: list[Tensor]
    logits_s: Tensor
    logits_t: Tensor
    y: Tensor
    step: int


class Method(nn.Module):
    """A distillation term. `needs` says of what: logits, features (the last pair is enough), maps, or stages (two pairs)."""

    needs = "features"

    def __init__(self, student: list[int | None], teacher: list[int | None], classes: int, **settings: float):
        super().__init__()
        self.prepare(student, teacher, classes, **settings)

    def prepare(self, student: list[int | None], teacher: list[int | None], classes: int) -> None:
        pass

    def forward(self, v: Views) -> Tensor:
        raise NotImplementedError


def linear(width_in: int | None, width_out: int | None, bias: bool = False) -> nn.Module:
    """A projection; of unknown input width it is made at the first batch. ValueError for an unknown output width."""
    if width_out is None:
        raise ValueError(
            "the teacher's feature has a width that its module does not say: give example=, a batch of inputs"
        )
    return nn.LazyLinear(width_out, bias) if width_in is None else nn.Linear(width_in, width_out, bias)


def regressor(width_in: int | None, width_out: int | None) -> nn.Module:
    """A 1 x 1 convolution; on vectors it is a linear map."""
    if width_out is None:
        raise ValueError(
            "the teacher's feature has a width that its module does not say: give example=, a batch of inputs"
        )
    return (
        nn.LazyConv2d(width_out, 1, bias=False) if width_in is None else nn.Conv2d(width_in, width_out, 1, bias=False)
    )


def as_map(feature: Tensor) -> Tensor:
    """A vector as a map of one pixel."""
    return feature[:, :, None, None] if feature.dim() == 2 else feature


def same_size(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Both maps at the smaller of their two sizes, by adaptive average pooling."""
    size = (min(s.shape[2], t.shape[2]), min(s.shape[3], t.shape[3]))
    return F.adaptive_avg_pool2d(s, size), F.adaptive_avg_pool2d(t, size)


# ---- logits ----------------------------------------------------------------------------------------------------------


def dkd_terms(logits_s: Tensor, logits_t: Tensor, y: Tensor, T: float = 4.0) -> tuple[Tensor, Tensor, Tensor]:
    """KD taken apart (Zhao et al. 2022): target-class term, non-target term, p_T(target), each (B,), without T^2.

    KL = TCKD + (1 - p_T(y)) NCKD. With two classes there is one non-target class, its distribution is certain and NCKD is 0.
    """
    log_s, log_t = F.log_softmax(logits_s / T, dim=1), F.log_softmax(logits_t.detach() / T, dim=1)
    target = F.one_hot(y.long(), logits_s.shape[1]).bool()

    def split(log_p: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rest = logits[~target].view(len(y), -1) / T  # (B, C - 1): the target is left out, not masked by a number
        log_rest = torch.logsumexp(rest, dim=1) - torch.logsumexp(logits / T, dim=1)
        return log_p[target], log_rest, F.log_softmax(rest, dim=1)

    s_target, s_rest, s_others = split(log_s, logits_s)
    t_target, t_rest, t_others = split(log_t, logits_t.detach())
    tckd = t_target.exp() * (t_target - s_target) + t_rest.exp() * (t_rest - s_rest)
    nckd = (t_others.exp() * (t_others - s_others)).sum(dim=1)
    return tckd, nckd, t_target.exp()


class DKD(Method):
    """Decoupled knowledge distillation: T^2 (alpha TCKD + beta NCKD), warmed up over `warmup` batches."""

    needs = "logits"

    def prepare(self, student, teacher, classes, T=4.0, target=1.0, others=8.0, warmup=0):
        self.T, self.target, self.others, self.warmup = T, target, others if classes > 2 else 0.0, warmup

    def forward(self, v: Views) -> Tensor:
        tckd, nckd, _ = dkd_terms(v.logits_s, v.logits_t, v.y, self.T)
        warm = min(1.0, (v.step + 1) / self.warmup) if self.warmup else 1.0
        return warm * self.T**2 * (self.target * tckd.mean() + self.others * nckd.mean())


class DIST(Method):
    """1 - Pearson correlation of probabilities over classes and over samples (Huang et al. 2022)."""

    needs = "logits"

    def prepare(self, student, teacher, classes, T=4.0, inter=2.0, intra=2.0):
        self.T, self.inter, self.intra = T, inter, intra

    def forward(self, v: Views) -> Tensor:
        p, q = F.softmax(v.logits_s / self.T, dim=1), F.softmax(v.logits_t / self.T, dim=1)
        return self.T**2 * (self.inter * (1 - pearson(p, q)).mean() + self.intra * (1 - pearson(p.mT, q.mT)).mean())


def pearson(a: Tensor, b: Tensor, eps: float = 1e-8) -> Tensor:
    """Correlation of each row of a with that row of b."""
    return F.cosine_similarity(a - a.mean(dim=1, keepdim=True), b - b.mean(dim=1, keepdim=True), dim=1, eps=eps)


# ---- features of one layer -------------------------------------------------------------------------------------------


class FitNet(Method):
    """Mean squared error of a regressed hint (Romero et al. 2015); on the last pair where one is named, else the middle one."""

    def prepare(self, student, teacher, classes):
        self.at = len(student) // 2 if len(student) > 1 else 0
        self.regress = regressor(student[self.at], teacher[self.at])

    def forward(self, v: Views) -> Tensor:
        s, t = same_size(self.regress(as_map(v.s[self.at])), as_map(v.t[self.at]))
        return F.mse_loss(s, t)


class SP(Method):
    """Similarity-preserving: row-normalised Gram matrices of the batch (Tung & Mori 2019)."""

    def forward(self, v: Views) -> Tensor:
        def gram(f: Tensor) -> Tensor:
            flat = f.flatten(1)
            return F.normalize(flat @ flat.mT, dim=1)

        return (gram(v.s[-1]) - gram(v.t[-1])).square().sum() / len(v.y) ** 2


class CC(Method):
    """Correlation congruence as the benchmark has it: both embedded in `dim`, products of neighbouring rows compared (Peng et al. 2019)."""

    def prepare(self, student, teacher, classes, dim=128):
        self.embed_s, self.embed_t = linear(student[-1], dim, True), linear(teacher[-1], dim, True)

    def forward(self, v: Views) -> Tensor:
        delta = (self.embed_s(pooled(v.s[-1])) - self.embed_t(pooled(v.t[-1]))).abs()
        return (delta[:-1] * delta[1:]).sum(dim=1).mean() if len(delta) > 1 else delta.sum() * 0


class VID(Method):
    """Variational information distillation: Gaussian log-likelihood of the teacher's feature, one variance a channel (Ahn et al. 2019)."""

    def prepare(self, student, teacher, classes, start=5.0, eps=1e-5):
        width = teacher[-1]
        self.mean = regressor(student[-1], width)
        self.eps = eps
        self.raw = nn.Parameter(torch.full((int(width or 1),), math.log(math.expm1(start - eps))))

    def forward(self, v: Views) -> Tensor:
        s, t = same_size(as_map(v.s[-1]), as_map(v.t[-1]))
        variance = (F.softplus(self.raw) + self.eps)[None, :, None, None]
        return 0.5 * ((self.mean(s) - t).square() / variance + variance.log()).mean()


class RKD(Method):
    """Relational: distances (25) and angles (50) between the rows of a batch (Park et al. 2019)."""

    def prepare(self, student, teacher, classes, distance=25.0, angle=50.0):
        self.distance, self.angle = distance, angle

    def forward(self, v: Views) -> Tensor:
        s, t = v.s[-1].flatten(1), v.t[-1].flatten(1)
        return self.distance * F.smooth_l1_loss(_distances(s), _distances(t)) + self.angle * F.smooth_l1_loss(
            _angles(s), _angles(t)
        )


def _distances(f: Tensor) -> Tensor:
    d = ((f[:, None] - f[None]).square().sum(dim=2) + 1e-12).sqrt() * (1 - torch.eye(len(f), device=f.device))
    positive = d[d > 1e-5]
    return d / (positive.mean() if len(positive) else 1.0)


def _angles(f: Tensor) -> Tensor:
    e = F.normalize(f[None] - f[:, None], dim=2)  # (B, B, D)
    return torch.bmm(e, e.mT).flatten()


class PKT(Method):
    """Probabilistic transfer: cosine similarities as distributions over the batch (Passalis & Tefas 2018)."""

    def forward(self, v: Views) -> Tensor:
        def shares(f: Tensor) -> Tensor:
            n, _ = unit(pooled(f))
            similarity = (n @ n.mT + 1) / 2
            return similarity / similarity.sum(dim=1, keepdim=True)

        p, q = shares(v.s[-1]), shares(v.t[-1])
        return (q * ((q + 1e-7) / (p + 1e-7)).log()).mean()


class NST(Method):
    """Neuron selectivity: maximum mean discrepancy of channel maps, kernel (a.b)^2 (Huang & Wang 2017)."""

    needs = "maps"

    def forward(self, v: Views) -> Tensor:
        total = v.logits_s.new_zeros(())
        for s, t in zip(v.s, v.t, strict=True):
            a, b = (F.normalize(f.flatten(2), dim=2) for f in same_size(s, t))  # (B, C, P)

            def mean_square(x: Tensor, z: Tensor) -> Tensor:
                return (x @ z.mT).square().mean(dim=(1, 2)).mean()

            total = total + mean_square(b, b) + mean_square(a, a) - 2 * mean_square(a, b)
        return total


class CRD(Method):
    """Contrastive representation distillation by noise-contrastive estimation, over queues instead of a table of the data set.

    The benchmark keeps a row for each index of the data set and draws negatives from it; ours keeps the newest embeddings
    of both sides in a queue, so any loader will do. Z is set from the first batch, as there (Tian et al. 2020).
    """

    def prepare(self, student, teacher, classes, dim=128, negatives=1024, tau=0.07):
        self.embed_s, self.embed_t = linear(student[-1], dim, True), linear(teacher[-1], dim, True)
        self.tau, self.negatives = tau, int(negatives)
        for side in ("s", "t"):
            self.register_buffer(f"memory_{side}", torch.zeros(self.negatives, dim))
        self.register_buffer("z", torch.full((2,), -1.0))
        self.register_buffer("counts", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("labels", torch.full((self.negatives,), -1))

    def forward(self, v: Views) -> Tensor:
        s = F.normalize(self.embed_s(pooled(v.s[-1])), dim=1)
        t = F.normalize(self.embed_t(pooled(v.t[-1])), dim=1)
        filled = int(self.counts[1])  # type: ignore[index]
        loss = s.sum() * 0
        if filled:
            for i, (anchor, other, memory) in enumerate(((s, t, self.memory_t), (t, s, self.memory_s))):
                old = memory[:filled].clone()  # type: ignore[index]  # it is overwritten before the backward pass
                positive = ((anchor * other.detach()).sum(dim=1, keepdim=True) / self.tau).exp()
                negative = (anchor @ old.mT / self.tau).exp()  # (B, K)
                negative = negative * (self.labels[:filled] != v.y[:, None])  # type: ignore[index]
                scores = torch.cat([positive, negative], dim=1)
                if float(self.z[i]) < 0:  # type: ignore[index]
                    self.z[i] = scores.detach().mean() * self.negatives  # type: ignore[operator]
                p, noise = scores / float(self.z[i]), filled / self.negatives  # type: ignore[index]
                inside = (p[:, 0] / (p[:, 0] + noise + 1e-7)).log()
                kept = negative > 0
                outside = torch.where(kept, (noise / (p[:, 1:] + noise + 1e-7)).log(), 0.0).sum(dim=1)
                loss = loss - (inside + outside).mean()
        self._remember(s.detach(), t.detach(), v.y)
        return loss

    @torch.no_grad()
    def _remember(self, s: Tensor, t: Tensor, y: Tensor) -> None:
        s, t, y = s[-self.negatives :], t[-self.negatives :], y[-self.negatives :]
        slots = (self.counts[0] + torch.arange(len(s), device=s.device)) % self.negatives  # type: ignore[index]
        self.memory_s[slots], self.memory_t[slots], self.labels[slots] = s, t, y  # type: ignore[operator]
        self.counts[0] = (self.counts[0] + len(s)) % self.negatives  # type: ignore[index, operator]
        self.counts[1] = torch.clamp(self.counts[1] + len(s), max=self.negatives)  # type: ignore[index, operator]


class AB(Method):
    """Activation boundaries: a margin on the teacher's signs (Heo et al. 2019). The benchmark pre-trains with it; ours adds it."""

    def prepare(self, student, teacher, classes, margin=1.0):
        self.margin = margin
        self.connect = nn.ModuleList(regressor(a, b) for a, b in zip(student, teacher, strict=True))

    def forward(self, v: Views) -> Tensor:
        total = v.logits_s.new_zeros(())
        for i, (connect, s, t) in enumerate(zip(self.connect, v.s, v.t, strict=True)):
            s, t = same_size(connect(as_map(s)), as_map(t))
            on = t > t.mean(dim=0, keepdim=True) if bool((t >= 0).all()) else t > 0  # after a ReLU every sign is +
            wrong = torch.where(on, F.relu(self.margin - s), F.relu(s + self.margin)).square()
            total = total + wrong.flatten(1).mean(dim=1).mean() / 2 ** (len(v.s) - 1 - i)
        return total


class FT(Method):
    """Factor transfer with a linear paraphraser (Kim et al. 2018): normalised factors of both sides, L1 apart.

    The paraphraser is trained beside the student by its own reconstruction error (the benchmark trains it beforehand).
    """

    def prepare(self, student, teacher, classes, rate=0.5):
        width = int(teacher[-1] or 0)
        k = max(1, int(width * rate))
        self.encode, self.decode = regressor(width, k), regressor(k, width)
        self.translate = regressor(student[-1], k)

    def forward(self, v: Views) -> Tensor:
        s, t = same_size(as_map(v.s[-1]), as_map(v.t[-1]))
        factor = self.encode(t)
        rebuilt = F.mse_loss(self.decode(factor), t)
        a, b = F.normalize(self.translate(s).flatten(1), dim=1), F.normalize(factor.detach().flatten(1), dim=1)
        return (a - b).abs().mean() + rebuilt / 200  # its weight is 200: the reconstruction counts once


# ---- maps and several layers -----------------------------------------------------------------------------------------


class AT(Method):
    """Attention transfer: normalised maps of squared activations (Zagoruyko & Komodakis 2017)."""

    needs = "maps"

    def forward(self, v: Views) -> Tensor:
        def attention(f: Tensor) -> Tensor:
            return F.normalize(f.square().mean(dim=1).flatten(1), dim=1)

        pairs = [same_size(s, t) for s, t in zip(v.s, v.t, strict=True)]
        return sum(((attention(s) - attention(t)).square().mean() for s, t in pairs), v.logits_s.new_zeros(()))


class FSP(Method):
    """Flow of the solution procedure: products of the maps of neighbouring layers (Yim et al. 2017), by a learnt 1 x 1 map."""

    needs = "stages"

    def prepare(self, student, teacher, classes):
        self.connect = nn.ModuleList(regressor(a, b) for a, b in zip(student, teacher, strict=True))

    def forward(self, v: Views) -> Tensor:
        def flow(a: Tensor, b: Tensor) -> Tensor:
            a, b = same_size(a, b)
            return a.flatten(2) @ b.flatten(2).mT / a[0, 0].numel()

        s = [connect(as_map(f)) for connect, f in zip(self.connect, v.s, strict=True)]
        t = [as_map(f) for f in v.t]
        pairs = [(flow(s[i], s[i + 1]) - flow(t[i], t[i + 1])).square().mean() for i in range(len(s) - 1)]
        return sum(pairs, v.logits_s.new_zeros(()))


class ReviewKD(Method):
    """Knowledge review: deep student features, fused upwards, teach themselves from shallow teacher features (Chen et al. 2021)."""

    needs = "stages"

    def prepare(self, student, teacher, classes, middle=32, warmup=0):
        self.warmup = warmup
        self.reduce = nn.ModuleList(regressor(a, middle) for a in student)
        self.expand = nn.ModuleList(regressor(middle, b) for b in teacher)
        self.attend = nn.ModuleList(nn.Conv2d(2 * middle, 2, 1) for _ in student[1:])

    def forward(self, v: Views) -> Tensor:
        warm = min(1.0, (v.step + 1) / self.warmup) if self.warmup else 1.0
        above: Tensor | None = None
        total = v.logits_s.new_zeros(())
        for i in reversed(range(len(v.s))):
            x = self.reduce[i](as_map(v.s[i]))
            if above is not None:
                up = F.interpolate(above, x.shape[2:], mode="nearest")
                z = torch.sigmoid(self.attend[i](torch.cat([x, up], dim=1)))
                x = x * z[:, :1] + up * z[:, 1:]
            above = x
            total = total + hierarchical_context(*same_size(self.expand[i](x), as_map(v.t[i])))
        return warm * total


def hierarchical_context(s: Tensor, t: Tensor) -> Tensor:
    """Squared error at full size and at 4, 2 and 1 cells a side, weights halving: the mean over levels."""
    loss, total, weight = F.mse_loss(s, t), 1.0, 1.0
    for cells in (4, 2, 1):
        if cells >= s.shape[2]:
            continue
        weight /= 2
        loss = loss + weight * F.mse_loss(F.adaptive_avg_pool2d(s, cells), F.adaptive_avg_pool2d(t, cells))
        total += weight
    return loss / total


__all__ = ["AB", "AT", "CC", "CRD", "DIST", "DKD", "FSP", "FT", "NST", "PKT", "RKD", "SP", "VID", "FitNet", "Method", "ReviewKD", "Views",
           "dkd_terms", "kd", "linear", "pearson"]  # fmt: skip
