"""Auxiliary variables: what z may be. Each makes anchors of a queue: directions, log p(y|z), and which of them count."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from papers.kd_aux.inference import prototypes
from papers.kd_aux.losses import one_hot_logits
from papers.kd_aux.queue import FeatureQueue


class Anchors(NamedTuple):
    """The values of z: t (L, D) unit rows, logits (L, C) with p(y|z) = softmax(alpha * logits), mask (L,) bool."""

    t: Tensor
    logits: Tensor
    mask: Tensor


class AuxVariable(Protocol):
    """Anything that makes anchors of a queue."""

    def anchors(self, queue: FeatureQueue) -> Anchors: ...


class Instance:
    """z = which stored instance (the paper's). p(y|z) from the teacher's logits, or from labels (clamped one-hot)."""

    def __init__(self, source: str = "teacher"):
        if source not in ("teacher", "label"):
            raise ValueError(f"source is {source!r}: choose teacher or label")
        self.source = source

    def anchors(self, queue: FeatureQueue) -> Anchors:
        if self.source == "teacher":
            return Anchors(queue.t, queue.logits, queue.mask)
        return Anchors(queue.t, one_hot_logits(queue.y.clamp_min(0), queue.classes).to(queue.y.device), queue.mask)


class ClassPrototype:
    """z = which class: mean directions of the queue's labels, p(y|z) one-hot. The cosine softmax is this case."""

    def anchors(self, queue: FeatureQueue) -> Anchors:
        filled = queue.mask
        mu, present = prototypes(queue.t[filled].float(), queue.y[filled], queue.classes)
        own = one_hot_logits(torch.arange(queue.classes, device=mu.device), queue.classes).to(mu.device)
        return Anchors(mu, own, present)


class Cluster:
    """z = which of k clusters of the queue (spherical k-means, warm-started), p(y|z) the members' mean teacher probability."""

    def __init__(self, k: int, every: int = 10, sweeps: int = 4):
        if k < 1 or every < 1 or sweeps < 1:
            raise ValueError(f"k, every and sweeps are {k}, {every}, {sweeps}: each is at least 1")
        self.k, self.every, self.sweeps = k, every, sweeps
        self.calls = 0
        self.kept: Anchors | None = None

    def anchors(self, queue: FeatureQueue) -> Anchors:
        if self.kept is None or self.calls % self.every == 0 or len(self.kept.t) < min(self.k, queue.filled):
            self.kept = self._fit(queue)
        self.calls += 1
        return self.kept

    @torch.no_grad()
    def _fit(self, queue: FeatureQueue) -> Anchors:
        t = queue.t[queue.mask].float()
        k = min(self.k, len(t))
        centres = t[torch.linspace(0, len(t) - 1, k, device=t.device).long()]
        for _ in range(self.sweeps):
            member = (t @ centres.mT).argmax(dim=1)
            mu, present = prototypes(t, member, k)
            centres = torch.where(present[:, None], mu, centres)  # an empty cluster stays where it is
        member = (t @ centres.mT).argmax(dim=1)
        probability = F.softmax(queue.logits[queue.mask].float(), dim=1)
        count = torch.bincount(member, minlength=k)
        mean = torch.zeros(k, queue.classes, device=t.device).index_add(0, member, probability)
        mean = mean / count.clamp_min(1)[:, None]
        return Anchors(centres, mean.clamp_min(1e-8).log(), count > 0)


class Augmentation:
    """z = which augmentation of which class: mean directions of (label, group), where `enqueue` was given groups."""

    def __init__(self, groups: int):
        if groups < 1:
            raise ValueError(f"groups is {groups}: give at least 1")
        self.groups = groups

    def anchors(self, queue: FeatureQueue) -> Anchors:
        filled = queue.mask
        group = queue.group[filled]
        if int(group.min()) < 0 or int(group.max()) >= self.groups:
            raise ValueError(
                f"the queue's groups go from {int(group.min())} to {int(group.max())}: give 0 to {self.groups - 1}"
            )
        z = queue.y[filled] * self.groups + group
        mu, present = prototypes(queue.t[filled].float(), z, queue.classes * self.groups)
        owner = torch.arange(queue.classes, device=mu.device).repeat_interleave(self.groups)
        return Anchors(mu, one_hot_logits(owner, queue.classes).to(mu.device), present)


def make(name: str, k: int = 50, groups: int = 2) -> AuxVariable:
    """An auxiliary variable by name: instance, instance_label, prototype, cluster, augmentation."""
    if name == "instance":
        return Instance()
    if name == "instance_label":
        return Instance("label")
    if name == "prototype":
        return ClassPrototype()
    if name == "cluster":
        return Cluster(k)
    if name == "augmentation":
        return Augmentation(groups)
    raise ValueError(f"variable is {name!r}: choose instance, instance_label, prototype, cluster or augmentation")
