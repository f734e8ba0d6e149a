"""Classifiers on the sphere: von Mises-Fisher densities, class prototypes, and soft neighbours (secs. 3.2 and 3.5)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from papers.kd_aux.losses import check_labels, predictive

Classifier = Callable[[Tensor], Tensor]


def vmf_log_normaliser(D: int, kappa: float) -> float:
    """log C_D(kappa), C_D = kappa^(D/2-1) / ((2 pi)^(D/2) I_{D/2-1}(kappa)): the density on the sphere in R^D is C exp(kappa mu.x).

    kappa 0 is the uniform density. ValueError for D < 2 or kappa < 0.
    """
    from scipy.special import gammaln, ive

    if D < 2 or int(D) != D:
        raise ValueError(f"D is {D}: a sphere needs a whole number of at least 2 dimensions")
    if not kappa >= 0 or not math.isfinite(kappa):
        raise ValueError(f"kappa is {kappa}: give a number of at least 0")
    if kappa == 0:
        return float(gammaln(D / 2) - math.log(2) - D / 2 * math.log(math.pi))
    order = D / 2 - 1
    scaled = float(ive(order, kappa))
    if scaled > 1e-290 and math.isfinite(scaled):
        log_bessel = math.log(scaled) + kappa
    else:  # I_v(k) = (k/2)^v sum_m (k^2/4)^m / (m! Gamma(v + m + 1)): all terms positive, summed in logs
        m = np.arange(int(4 * kappa) + 60)
        terms = 2 * m * math.log(kappa / 2) - gammaln(m + 1) - gammaln(order + m + 1)
        log_bessel = float(order * math.log(kappa / 2) + np.logaddexp.reduce(terms))
    return float(order * math.log(kappa) - D / 2 * math.log(2 * math.pi) - log_bessel)


def prototypes(t: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mean directions mu_c (C, D), and which classes have one (C,) bool. t (N, D) unit rows, y (N,)."""
    check_labels(y, classes)
    if t.dim() != 2 or len(t) != len(y) or not len(t):
        raise ValueError(f"t has shape {tuple(t.shape)} for {len(y)} labels: give a row for each, at least one")
    t = t if t.dtype in (torch.float32, torch.float64) else t.float()
    sums = torch.zeros(classes, t.shape[1], dtype=t.dtype, device=t.device).index_add(0, y.long(), t)
    norm = sums.norm(dim=1, keepdim=True)
    return torch.where(norm > 0, sums / norm.clamp_min(1e-30), 0.0), (norm > 0)[:, 0]


def prototype_classifier(
    t: Tensor, y: Tensor, classes: int, kappa: float, log_prior: Tensor | None = None
) -> Classifier:
    """Bayes' rule with one vMF density of concentration kappa for each class: s (B, D) -> logits (B, C) = kappa mu_c.s + log pi_c.

    log_prior: (C,), None for a uniform one. A class without rows is put last and noted (UserWarning).
    ValueError for kappa <= 0, labels outside the classes, shapes that do not fit.
    """
    if not kappa > 0 or not math.isfinite(kappa):
        raise ValueError(f"kappa is {kappa}: give a number above 0")
    mu, present = prototypes(t, y, classes)
    if log_prior is not None and tuple(log_prior.shape) != (classes,):
        raise ValueError(f"log_prior has shape {tuple(log_prior.shape)}: give one number for each of {classes} classes")
    if not bool(present.all()):
        absent = (~present).nonzero()[:, 0].tolist()
        warnings.warn(f"no row has class {', '.join(map(str, absent))}: never predicted by prototypes", stacklevel=2)
    offset = torch.zeros(classes, dtype=mu.dtype, device=mu.device) if log_prior is None else log_prior.to(mu)
    offset = torch.where(present, offset, offset.min() - 2 * kappa - 20.0)

    def classify(s: Tensor) -> Tensor:
        s = s if s.dtype == torch.float64 else s.float()
        if s.dim() != 2 or s.shape[1] != mu.shape[1]:
            raise ValueError(f"s has shape {tuple(s.shape)}: prototypes have width {mu.shape[1]}")
        return kappa * (s @ mu.to(s.dtype).mT) + offset.to(s.dtype)

    return classify


def knn_classifier(t: Tensor, logits: Tensor, tau: float, alpha: float = 1.0, mask: Tensor | None = None) -> Classifier:
    """Eq. (2) over stored instances as a classifier: s (B, D) -> log-probabilities (B, C); one nearest neighbour as tau goes to 0."""

    def classify(s: Tensor) -> Tensor:
        return predictive(s, t, logits, tau, alpha, mask)

    return classify


def unit(features: Tensor) -> tuple[Tensor, Tensor]:
    """Rows on the unit sphere (float32 or wider), and which rows have a direction at all (bool)."""
    features = features if features.dtype == torch.float64 else features.float()
    alive = features.detach().abs().amax(dim=1) > 0
    return F.normalize(torch.where(alive[:, None], features, 0.0), dim=1), alive
