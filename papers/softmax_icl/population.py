"""Population loss and gradient in feature coordinates: exact in w and in the query, a sum over count vectors.

Qf = V' Q V (K, K): rows key features, columns query features, A_k = Qf[k, k], B_{k,n} = Qf[n, k]. A prompt enters only by its
counts c ~ Multinomial(N, p), c_m = |V_m|, and column k of Qf alone drives query k:

    Attn_m = c_m e^{Qf[m,k]} / sum_j c_j e^{Qf[j,k]}
    L_k = 1/2 E_c[ sum_{m != k} Attn_m^2 + (1 - Attn_k)^2 ],   L = sum_k p_k L_k

Three laws of c, one code: `exact` enumerates all count vectors, `counts_mc` draws some, `infinite_prompt` is c/N = p.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from papers.softmax_icl.laws import check_frequencies, check_length, whole

MODES = ("exact", "counts_mc", "infinite_prompt")
MOST_COUNT_VECTORS = 1_000_000


def population_gradient(Qf: ArrayLike, p: ArrayLike, N: int, mode: str = "exact", samples: int | None = None,
                        generator: np.random.Generator | None = None) -> NDArray:  # fmt: skip
    """dL/dQf (K, K); -dL/dQf[k, k] is alpha_k and -dL/dQf[n, k] is beta_{k,n} of the paper.

    Qf (K, K), p (K,), N examples a prompt. mode: exact (small K and N) | counts_mc (`samples` draws from `generator`) |
    infinite_prompt (N ignored). Every column sums to zero. Raises ValueError for arguments that do not fit.
    """
    Qf, p, counts, weights = _prepared(Qf, p, N, mode, samples, generator)
    return -descent_direction(Qf, p, counts, weights)[0]


def population_loss(Qf: ArrayLike, p: ArrayLike, N: int, mode: str = "exact", samples: int | None = None,
                    generator: np.random.Generator | None = None) -> tuple[float, NDArray]:  # fmt: skip
    """(L, L_k): the loss and the loss of each query feature (K,). Arguments as for `population_gradient`."""
    Qf, p, counts, weights = _prepared(Qf, p, N, mode, samples, generator)
    L_k = descent_direction(Qf, p, counts, weights)[1]
    return float(p @ L_k), L_k


def attention_scores(Qf: ArrayLike, p: ArrayLike, N: int, mode: str = "exact", samples: int | None = None,
                     generator: np.random.Generator | None = None) -> NDArray:  # fmt: skip
    """E[Attn_n | x_q = v_k] as a (K, K) array: rows n, columns k, which sum to one. Arguments as for `population_gradient`."""
    Qf, p, counts, weights = _prepared(Qf, p, N, mode, samples, generator)
    return sum(np.einsum("c,cnk->nk", w, attention(Qf, c)) for c, w in _chunks(counts, weights, len(p)))


def _prepared(Qf, p, N, mode, samples, generator) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    p = check_frequencies(p)
    Qf = np.asarray(Qf, float)
    if Qf.shape != (len(p), len(p)):
        raise ValueError(f"Qf has shape {Qf.shape}, expected {(len(p), len(p))} to go with p")
    if not np.isfinite(Qf).all():
        raise ValueError("Qf is not finite: the learning rate is too large")
    return Qf, p, *count_law(p, N, mode, samples, generator)


# ---- the law of the counts -------------------------------------------------------------------------------------------


def count_law(
    p: NDArray, N: int, mode: str, samples: int | None = None, generator: np.random.Generator | None = None
) -> tuple[NDArray, NDArray]:
    """Count vectors (C, K) and their weights (C,), which sum to one."""
    if mode == "infinite_prompt":
        return p[None, :], np.ones(1)  # attention does not change when counts are scaled
    check_length(N)
    if math.isinf(N):
        raise ValueError(f"N is inf: mode {mode} needs a finite prompt, use mode infinite_prompt")
    N = int(N)
    if mode == "exact":
        return enumerate_counts(p, N)
    if mode == "counts_mc":
        if samples is None or generator is None or (samples := whole("samples", samples)) < 1:
            raise ValueError("mode counts_mc needs samples >= 1 and a generator: draw anew for every step")
        if not isinstance(generator, np.random.Generator):
            raise ValueError(f"generator is {generator!r}: give a generator, np.random.default_rng(0) say")
        return generator.multinomial(N, p, size=samples).astype(float), np.full(samples, 1 / samples)
    raise ValueError(f"mode is {mode!r}: use {', '.join(MODES)}")


def enumerate_counts(p: NDArray, N: int) -> tuple[NDArray, NDArray]:
    """All count vectors of Multinomial(N, p), (C, K), and their probabilities (C,). Raises ValueError where C is over a million."""
    from itertools import combinations

    from scipy.special import gammaln

    K = len(p)
    if (C := math.comb(N + K - 1, K - 1)) > MOST_COUNT_VECTORS:
        raise ValueError(f"mode exact has {C:.3g} count vectors at K = {K}, N = {N}: use mode counts_mc")
    bars = np.array(list(combinations(range(N + K - 1), K - 1)), dtype=np.int64).reshape(C, K - 1)  # stars and bars
    padded = np.concatenate([np.full((C, 1), -1), bars, np.full((C, 1), N + K - 1)], axis=1)
    counts = np.diff(padded, axis=1) - 1.0
    log_weights = gammaln(N + 1) - gammaln(counts + 1).sum(axis=1) + counts @ np.log(p)
    return counts, np.exp(log_weights)


# ---- loss and gradient given counts ----------------------------------------------------------------------------------


def descent_direction(Qf: NDArray, p: NDArray, counts: NDArray, weights: NDArray) -> tuple[NDArray, NDArray]:
    """(-dL/dQf (K, K), L_k (K,)) under a law of counts (C, K) with weights (C,).

    alpha_k     = p_k E[ Attn_k (S + (1 - Attn_k)^2) ],                S = sum_{m != k} Attn_m^2
    beta_{k,n}  = p_k E[ Attn_n (S - Attn_n - Attn_k (1 - Attn_k)) ]
    """
    if np.ptp(Qf, axis=0).max() < 300:  # no absent feature can push the present ones out of range
        return _by_matrix_products(Qf, p, counts, weights)
    direction, L_k = np.zeros_like(Qf), np.zeros(len(p))
    for c, w in _chunks(counts, weights, len(p)):
        part = _by_attention(attention(Qf, c), p, w)
        direction, L_k = direction + part[0], L_k + part[1]
    return direction, L_k


def _by_matrix_products(Qf: NDArray, p: NDArray, counts: NDArray, weights: NDArray) -> tuple[NDArray, NDArray]:
    """`descent_direction` without the (C, K, K) array of attention: four products of C x K by K x K."""
    e = np.exp(Qf - Qf.max(axis=0))  # (n, k)
    others = e - np.diag(
        e.diagonal()
    )  # 1 - Attn_k and S are summed over n != k: no digits are lost when Attn_k is near 1
    own, rest = counts * e.diagonal(), counts @ others  # (C, k)
    z = own + rest
    a, r = own / z, rest / z  # Attn_k and 1 - Attn_k
    S = (counts**2 @ others**2) / z**2
    alpha = p * (weights @ (a * (S + r**2)))
    beta = others * (counts.T @ (weights[:, None] * (S - a * r) / z)) - others**2 * (
        (counts**2).T @ (weights[:, None] / z**2)
    )
    direction = p * beta
    np.fill_diagonal(direction, alpha)
    return direction, 0.5 * (weights @ (S + r**2))


def attention(Qf: NDArray, counts: NDArray) -> NDArray:
    """Attn_n for query k given counts, stable for any Qf: (C, K) -> (C, n, k). Absent features get exactly 0."""
    with np.errstate(divide="ignore"):
        scores = np.log(counts)[:, :, None] + Qf  # log 0 = -inf masks what the prompt lacks
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _by_attention(attn: NDArray, p: NDArray, weights: NDArray) -> tuple[NDArray, NDArray]:
    """`descent_direction` from attention (C, n, k), in the paper's own terms."""
    k = np.arange(len(p))
    own = attn[:, k, k]  # Attn_k: (C, k)
    others = attn.copy()
    others[:, k, k] = 0
    S, r = (others**2).sum(axis=1), others.sum(axis=1)
    direction = p * np.einsum("c,cnk->nk", weights, others * ((S - own * r)[:, None, :] - others))
    direction[k, k] = p * (weights @ (own * (S + r**2)))
    return direction, 0.5 * (weights @ (S + r**2))


def _chunks(counts: NDArray, weights: NDArray, K: int) -> Iterator[tuple[NDArray, NDArray]]:
    """Slices of a law of counts whose (C, K, K) arrays stay small."""
    size = max(1, 4_000_000 // K**2)
    for start in range(0, len(counts), size):
        yield counts[start : start + size], weights[start : start + size]
