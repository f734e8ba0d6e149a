"""Replay of human offers, predicted before each is learnt; log-loss, AUC and base rates of the predictions."""

from __future__ import annotations

from typing import Any

import numpy as np

from papers.neg_ucb.acceptance import AcceptanceModel
from papers.neg_ucb.environments.casino import CasinoReplay

CLIP = 0.02  # predictions stay within [CLIP, 1 - CLIP] where their logarithm is taken


def predict_then_update(env: CasinoReplay, model: AcceptanceModel) -> dict[str, np.ndarray]:
    """Predicted q and answer of every offer, in order: {"q": (n,), "y": (n,)}. The model never sees an answer before it predicts it."""
    q, y = np.zeros(len(env.offers)), np.zeros(len(env.offers))
    for t in range(len(env.offers)):
        x, g = env.features(env.bids()), env.people[t]
        q[t] = model.ucb(x, g)[0][0]
        y[t] = env.respond(env.bids()[0])
        model.update(x[0], g, y[t])
        env.arrive()
    return {"q": q, "y": y}


def log_loss(q: np.ndarray | float, y: np.ndarray) -> float:
    """Mean negative log-likelihood in nats."""
    q = np.clip(q, CLIP, 1 - CLIP)
    return float(-np.mean(y * np.log(q) + (1 - y) * np.log(1 - q)))


def auc(q: np.ndarray, y: np.ndarray) -> float:
    """Probability that a yes was predicted above a no (ties count half)."""
    from scipy.stats import rankdata

    yes = y > 0.5
    n, m = yes.sum(), (~yes).sum()
    return float((rankdata(q)[yes].sum() - n * (n + 1) / 2) / (n * m)) if n and m else float("nan")


def running_base_rate(y: np.ndarray) -> np.ndarray:
    """The share of yes before each offer, from one yes and one no: what a model without features can know in time."""
    before = np.concatenate([[0], np.cumsum(y)[:-1]])
    return (before + 1) / (np.arange(len(y)) + 2)


def scores(q: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Log-loss of the last half beside the base rates: `constant` knows the whole file's rate, `running` only the past."""
    half = len(y) // 2
    late = slice(half, None)
    constant, running = log_loss(float(y.mean()), y[late]), log_loss(running_base_rate(y)[late], y[late])
    own = log_loss(q[late], y[late])
    return {
        "log_loss": own,
        "constant": constant,
        "running": running,
        "gain": constant - own,
        "gain_running": running - own,
        "auc": auc(q[late], y[late]),
    }
