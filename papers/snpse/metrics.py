"""How good a posterior is: C2ST, MMD, simulation-based calibration, coverage, TARP, posterior predictive checks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDS, BATCH, LR, ALPHA, TOLERANCE, PATIENCE = 5, 200, 1e-3, 1e-4, 1e-4, 10  # of scikit-learn's MLPClassifier


def c2st(X: Tensor, Y: Tensor, seed: int = 1, max_epochs: int = 1000, z_score: bool = True) -> float:
    """Accuracy of a classifier that tells X (n, d) from Y (n, d), five-fold: 0.5 for equal laws, 1 for disjoint ones.

    The benchmark's definition: both z-scored by X's mean and std, a ReLU network of two layers of 10 d, Adam 1e-3 in
    batches of 200, L2 1e-4, each fold until its training loss has not fallen by 1e-4 for ten epochs. The five folds are
    trained at once here. Raises ValueError for samples of different widths, NaN, or fewer than 10 rows.
    """
    X, Y = (torch.as_tensor(part).double() for part in (X, Y))
    if X.ndim != 2 or Y.ndim != 2 or X.shape[1] != Y.shape[1]:
        raise ValueError(f"X has shape {tuple(X.shape)} and Y {tuple(Y.shape)}: expected (n, d) and (m, d)")
    if min(len(X), len(Y)) < 10:
        raise ValueError("X and Y need at least 10 rows each")
    if not bool(torch.isfinite(X).all() and torch.isfinite(Y).all()):
        raise ValueError("X or Y has entries that are NaN or infinite")
    if z_score:
        mean, std = X.mean(0), X.std(0)
        std = torch.where(std > 0, std, torch.ones_like(std))
        X, Y = (X - mean) / std, (Y - mean) / std
    data = torch.cat([X, Y]).float()
    label = torch.cat([torch.zeros(len(X)), torch.ones(len(Y))])
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data), generator=generator)
    tests = [order[i::FOLDS] for i in range(FOLDS)]
    least = min(len(data) - len(test) for test in tests)
    trains = torch.stack([torch.cat([tests[j] for j in range(FOLDS) if j != i])[:least] for i in range(FOLDS)])
    weights = _fit_folds(data[trains], label[trains], max_epochs, generator)
    hits = []
    for i, test in enumerate(tests):
        h = data[test]
        for layer, (W, b) in enumerate(weights):
            h = h @ W[i] + b[i]
            h = h.relu() if layer < 2 else h
        hits.append(float(((h[:, 0] > 0).float() == label[test]).float().mean()))
    return float(np.mean(hits))


def _fit_folds(x: Tensor, y: Tensor, max_epochs: int, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Networks of all folds, x (k, n, d), y (k, n): [(W (k, in, out), b (k, 1, out))] of three layers."""
    k, n, d = x.shape
    sizes = [d, 10 * d, 10 * d, 1]
    weights = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        bound = math.sqrt(6 / (a + b))
        weights.append((torch.rand(k, a, b, generator=generator) * 2 - 1) * bound)
        weights.append((torch.rand(k, 1, b, generator=generator) * 2 - 1) * bound)
    final = [w.clone() for w in weights]
    first, second = [torch.zeros_like(w) for w in weights], [torch.zeros_like(w) for w in weights]
    best, stale, alive = torch.full((k,), math.inf), torch.zeros(k), torch.arange(k)
    batch, step = min(BATCH, n), 0
    for _ in range(max_epochs):
        order = torch.stack([torch.randperm(n, generator=generator) for _ in range(k)])[alive]
        xs, ys = x[alive[:, None], order], y[alive[:, None], order]
        total = torch.zeros(len(alive))
        for start in range(0, n, batch):
            xb, yb = xs[:, start : start + batch], ys[:, start : start + batch, None]
            step += 1
            losses, gradients = _gradients(weights, xb, yb)
            total += losses * xb.shape[1]
            rate = LR * math.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            torch._foreach_lerp_(first, gradients, 0.1)
            torch._foreach_mul_(second, 0.999)
            torch._foreach_addcmul_(second, gradients, gradients, 0.001)
            scale = torch._foreach_sqrt(second)
            torch._foreach_add_(scale, 1e-8)
            torch._foreach_addcdiv_(weights, first, scale, -rate)
        loss = total / n
        stale = torch.where(loss > best - TOLERANCE, stale + 1, torch.zeros_like(stale))
        best = torch.minimum(best, loss)
        stopped = stale > PATIENCE
        if stopped.any():
            for w, out in zip(weights, final, strict=True):
                out[alive[stopped]] = w[stopped]
            go = ~stopped
            alive, best, stale = alive[go], best[go], stale[go]
            weights, first, second = ([w[go] for w in part] for part in (weights, first, second))
            if not len(alive):
                break
    for w, out in zip(weights, final, strict=True):
        out[alive] = w
    return list(zip(final[::2], final[1::2], strict=True))


def _gradients(weights: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(loss (k,), gradients of cross-entropy + alpha / 2n |W|^2) of the three layers."""
    n = x.shape[1]
    W1, b1, W2, b2, W3, b3 = weights
    a1 = torch.baddbmm(b1, x, W1).relu_()
    a2 = torch.baddbmm(b2, a1, W2).relu_()
    out = torch.baddbmm(b3, a2, W3)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(out, y, reduction="none").mean((1, 2))
    loss = loss + ALPHA / (2 * n) * sum(w.square().sum((1, 2)) for w in (W1, W2, W3))
    g3 = (out.sigmoid() - y) / n
    g2 = (g3 @ W3.mT) * (a2 > 0)
    g1 = (g2 @ W2.mT) * (a1 > 0)
    decay = ALPHA / n
    return loss, [x.mT @ g1 + decay * W1, g1.sum(1, keepdim=True), a1.mT @ g2 + decay * W2, g2.sum(1, keepdim=True),
                  a2.mT @ g3 + decay * W3, g3.sum(1, keepdim=True)]  # fmt: skip


def mmd(X: Tensor, Y: Tensor, most: int = 2000) -> float:
    """Squared maximum mean discrepancy (unbiased) with a Gaussian kernel of X's median distance, of the first `most` rows."""
    X, Y = (torch.as_tensor(part)[:most].double() for part in (X, Y))
    width = torch.pdist(X).median()
    k = lambda a, b: torch.exp(-torch.cdist(a, b).square() / (2 * width**2))  # noqa: E731
    n, m = len(X), len(Y)
    return float((k(X, X).sum() - n) / (n * (n - 1)) + (k(Y, Y).sum() - m) / (m * (m - 1)) - 2 * k(X, Y).mean())


def sbc_ranks(posterior: Any, theta: Tensor, x: Tensor, draws: int = 100, seed: int = 0) -> Tensor:
    """Simulation-based calibration: ranks (n, d) in 0 .. draws of theta (n, d) among posterior draws at x (n, p).

    Uniform for a calibrated posterior. posterior: `sample((draws,), x=..., seed=...)`.
    """
    return torch.stack([
        (posterior.sample((draws,), x=row, seed=seed + i) < true).sum(0) for i, (true, row) in enumerate(zip(theta, x, strict=True))
    ])  # fmt: skip


def rank_p_values(ranks: Tensor, draws: int) -> list[float]:
    """Kolmogorov-Smirnov p-value of each parameter's ranks against uniform (jittered, since ranks are whole)."""
    from scipy.stats import kstest

    jitter = np.random.default_rng(0).random(tuple(ranks.shape))
    values = (ranks.numpy() + jitter) / (draws + 1)
    return [float(kstest(values[:, j], "uniform").pvalue) for j in range(values.shape[1])]


def expected_coverage(
    posterior: Any, theta: Tensor, x: Tensor, levels: Any = None, draws: int = 200, seed: int = 0
) -> dict[str, list[float]]:
    """Share of true theta (n, d) inside the highest-density region of each level: {"level": [...], "coverage": [...]}.

    The region of level a holds the share a of the posterior's mass with the highest density; a calibrated posterior covers a.
    posterior: `sample` and `log_prob(theta, x=..., inside=False)`.
    """
    levels = np.linspace(0.05, 0.95, 19) if levels is None else np.asarray(levels, dtype=float)
    mass = []
    for i, (true, row) in enumerate(zip(theta, x, strict=True)):
        sample = posterior.sample((draws,), x=row, seed=seed + i)
        dense = posterior.log_prob(torch.cat([true[None].to(sample.dtype), sample]), x=row, inside=False)
        mass.append(float((dense[1:] > dense[0]).float().mean()))
    found = np.asarray(mass)
    return {"level": levels.tolist(), "coverage": [float((found <= level).mean()) for level in levels]}


def tarp(posterior: Any, theta: Tensor, x: Tensor, draws: int = 200, seed: int = 0) -> dict[str, list[float]]:
    """Coverage of balls around random reference points (TARP): {"level", "coverage"}; the diagonal for an exact posterior."""
    generator = torch.Generator().manual_seed(seed)
    low, high = theta.amin(0), theta.amax(0)
    share = []
    for i, (true, row) in enumerate(zip(theta, x, strict=True)):
        point = low + (high - low) * torch.rand(theta.shape[1], generator=generator)
        scale = (high - low).clamp_min(1e-12)
        sample = posterior.sample((draws,), x=row, seed=seed + i)
        near = ((sample - point) / scale).norm(dim=1) < ((true - point) / scale).norm()
        share.append(float(near.float().mean()))
    levels = np.linspace(0.05, 0.95, 19)
    return {"level": levels.tolist(), "coverage": [float((np.asarray(share) <= level).mean()) for level in levels]}


def predictive_check(simulated: Tensor, x_obs: Tensor) -> dict[str, Any]:
    """Where x_obs (p,) stands among simulations at posterior draws (n, p): {"quantiles": (p,), "outside": entries beyond all}."""
    whole = simulated[torch.isfinite(simulated).all(1)]
    if not len(whole):
        return {"quantiles": [], "outside": []}
    quantiles = (whole < x_obs).double().mean(0)
    outside = ((x_obs < whole.amin(0)) | (x_obs > whole.amax(0))).nonzero()[:, 0].tolist()
    return {"quantiles": quantiles.tolist(), "outside": outside}


def effective_sample_size(log_weights: Tensor) -> float:
    """(sum w)^2 / sum w^2."""
    w = (log_weights - log_weights.max()).double().exp()
    return float(w.sum() ** 2 / w.square().sum())
