"""What is known exactly: initial loss and gradient, floors, and the infinite-prompt solutions (README, "The mathematics").

Time t is always (learning rate) x (steps). K features, p (K,) their frequencies, N examples in a prompt.
ValueError throughout where p is no law, N < 1 or eps <= 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from papers.softmax_icl.laws import check_eps, check_frequencies, check_length, whole


def initial_loss(p: ArrayLike, N: float) -> NDArray:
    """L_k at Q = 0, where attention is uniform: 1/2 [1 - 2 p_k + sum_m (p_m^2 + p_m (1 - p_m) / N)]. (K,) -> (K,)."""
    p = _law(p, N)
    return 0.5 * (1 - 2 * p + (p**2 + p * (1 - p) / N).sum())


def initial_alpha(p: ArrayLike) -> NDArray:
    """alpha_k at Q = 0 for N = inf: p_k^2 (sum_{m != k} p_m^2 + (1 - p_k)^2); balanced, (K - 1) / K^3. (K,) -> (K,)."""
    p = check_frequencies(p)
    return p**2 * ((p**2).sum() - p**2 + (1 - p) ** 2)


# ---- balanced features, N = inf --------------------------------------------------------------------------------------


def balanced_attention(A: ArrayLike, K: int) -> NDArray:
    """a = Attn_k at bilinear weight A_k = A, balanced features: 1 / (1 + (K - 1) exp(-A K / (K - 1)))."""
    return 1 / (1 + (K - 1) * np.exp(-np.asarray(A, float) * K / (K - 1)))


def balanced_time(a: ArrayLike, K: int) -> NDArray:
    """Time at which balanced gradient flow has Attn_k = a: (K-1)^2/K [F(a) - F(1/K)], a in (0, 1)."""

    def F(a: NDArray) -> NDArray:
        return -1 / a + 3 * np.log(a / (1 - a)) + 2 / (1 - a) + 1 / (2 * (1 - a) ** 2)

    return (K - 1) ** 2 / K * (F(np.asarray(a, float)) - F(np.asarray(1 / K)))


def time_to_loss(K: int, eps: float) -> float:
    """Time balanced gradient flow takes to L_k = eps; 0 where the loss starts below. Leading terms K^2 + 3 K ln K + K/(4 eps).

    Raises ValueError for K < 2.
    """
    K = whole("K", K)
    if K < 2:
        raise ValueError(f"K is {K}: at least two features are needed")
    check_eps(eps)
    a = 1 - math.sqrt(2 * eps * (K - 1) / K)  # L_k = K / (2 (K - 1)) (1 - a)^2
    return float(balanced_time(a, K)) if a > 1 / K else 0.0


# ---- one dominant feature, N = inf, K large ---------------------------------------------------------------------------


class Switch(NamedTuple):
    """Where alpha_k overtakes |beta_{k,1}| for a rare query, to leading order in K."""

    t: float
    A: float
    B1: float
    t_log_K: float  # when A_k = ln K


def switch_asymptote(K: int, p1: float) -> Switch:
    """The switch of a rare query as K -> inf, the dominant feature having frequency p1 = Theta(1).

    Raises ValueError for K < 3 or p1 outside (0, 1).
    """
    K = whole("K", K)
    if K < 3:
        raise ValueError(f"K is {K}: a rare query needs at least three features")
    if not 0 < p1 < 1:
        raise ValueError(f"p1 is {p1}: it must lie strictly between 0 and 1")
    B1 = -0.5 * math.log(2 * (K - 1) / 3) + math.log((1 - p1) / p1)
    return Switch((K - 1) ** 2 / (3 * (1 - p1)), math.log(1.5), B1, (K - 1) ** 2 / (1 - p1))


def unlearning_threshold(K: int) -> float:
    """The frequency p1 above which rare queries un-learn the dominant feature first: exactly K^(-1/2), for infinite prompts.

    It is where |beta_{k,1}| = alpha_k at Q = 0. Below it a rare query goes straight for its own feature.
    """
    return K**-0.5


# ---- floors -----------------------------------------------------------------------------------------------------------


def softmax_floor(p: ArrayLike, N: float) -> NDArray:
    """A lower bound on L_k for every Q: 1/2 (1 - p_k)^N (1 + 1/(K - 1)), the price of prompts without v_k. (K,) -> (K,)."""
    p = _law(p, N)
    return 0.5 * (1 - p) ** N * (1 + 1 / (len(p) - 1))


def softmax_limit(p: ArrayLike, N: int) -> NDArray:
    """L_k of Q = beta V V' as beta -> inf: 1/2 E[1{c_k = 0} (1 + sum_m (c_m / N)^2)], (c) ~ Multinomial(N, p). (K,) -> (K,)."""
    p = _law(p, N)
    rest = p[None, :] / (1 - p)[:, None]  # (K, K): the law of the others given that k is absent
    np.fill_diagonal(rest, 0)
    squares = (rest**2 + rest * (1 - rest) / N).sum(axis=1)
    return 0.5 * (1 - p) ** N * (1 + squares)


def ols_floor(p: ArrayLike, N: float) -> NDArray:
    """Loss of minimum-norm least squares on the prompt: exact where v_k appears, else it predicts 0. (K,) -> (K,)."""
    return 0.5 * (1 - _law(p, N)) ** N


def linear_optimum(p: ArrayLike, N: float) -> NDArray:
    """u_k of the best linear attention, Q v_k = u_k v_k: N / (1 + (N - 1) p_k). (K,) -> (K,)."""
    return N / (1 + (N - 1) * _law(p, N))


def linear_floor(p: ArrayLike, N: float) -> NDArray:
    """L_k of the best linear attention: 1/2 (1 - p_k) / (N p_k + 1 - p_k). (K,) -> (K,)."""
    p = _law(p, N)
    return 0.5 * (1 - p) / (N * p + 1 - p)


def linear_time(p: ArrayLike, N: float, eps: float) -> NDArray:
    """Time gradient flow of linear attention takes from Q = 0 to L_k = floor + eps; 0 where it starts below. (K,) -> (K,).

    u_k contracts to its optimum at rate p_k (p_k^2 + p_k (1 - p_k) / N), and the excess loss at twice that rate.
    """
    p = _law(p, N)
    check_eps(eps)
    rate = p * (p**2 + p * (1 - p) / N)
    return np.maximum(np.log((0.5 - linear_floor(p, N)) / eps) / (2 * rate), 0.0)


def no_mask_plateau(p: ArrayLike, N: int) -> NDArray:
    """L_k that the model without the mask M tends to: 1/2 E[(c_k + 1)^-2], c_k ~ Binomial(N, p_k). (K,) -> (K,).

    The query attends to itself with its own score and an empty label, so c_k labels are averaged over c_k + 1 tokens.
    """
    from scipy.stats import binom

    p, N = _law(p, N), whole("N", N)
    c = np.arange(N + 1)
    return 0.5 * (binom.pmf(c[None, :], N, p[:, None]) / (c + 1) ** 2).sum(axis=1)


def _law(p: ArrayLike, N: float) -> NDArray:
    check_length(N)
    return check_frequencies(p)
