"""Races: gradients from counts against autograd through real prompts, and the flow's solver against plain steps. See README.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common.race import race


def bench(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Tables by name. quick: sizes for a test of the bench itself."""
    return {"gradient": gradient(quick), "flow": flow(quick)}


def gradient(quick: bool = False) -> list[dict[str, Any]]:
    """One gradient at K = 100, N = 2000: `counts_mc` (w, query and token order integrated out) against autograd on prompts.

    Both are means of independent unbiased draws, so their squared error falls as 1/samples, and their time grows with samples at
    best in proportion. `ratio` is time for time; `ratio_at_equal_error` is what the engine would take at the error of counts_mc:
    ratio x (its error / that error)^2.
    """
    import numpy as np
    import torch

    from papers.softmax_icl import SoftmaxICL, frequencies, make_features, population_gradient, sample_prompts
    from papers.softmax_icl.model import squared_loss

    K, N, samples, batch = (10, 50, 16, 16) if quick else (100, 2000, 32, 16)
    p, V = frequencies("balanced", K), make_features(K, K)
    Qf = np.random.default_rng(0).normal(size=(K, K)) * 0.3 + 2 * np.eye(K)
    exact = population_gradient(Qf, p, N, "counts_mc", 256 if quick else 20_000, np.random.default_rng(1))
    model = SoftmaxICL(K, K).set_bilinear(Qf, V)
    counts, tokens = np.random.default_rng(2), torch.Generator().manual_seed(2)

    def by_counts() -> Any:
        return population_gradient(Qf, p, N, "counts_mc", samples, counts)

    def by_tokens() -> Any:
        prompts = sample_prompts(batch, N, p, V, tokens)
        model.zero_grad()
        squared_loss(model.predict(prompts.x, prompts.y, prompts.x_q), prompts.y_q).mean().backward()
        assert model.Q.grad is not None
        return (V.mT @ model.Q.grad @ V).numpy()

    engines: dict[str, Callable[[], Any]] = {"counts_mc": by_counts, "tokens": by_tokens}
    repeats = 3 if quick else 15
    error = {
        name: np.mean([((engine() - exact) ** 2).mean() for _ in range(repeats)]) ** 0.5
        for name, engine in engines.items()
    }
    rows = race(engines, repeats)
    for row, drawn in zip(rows, (samples, batch), strict=True):
        rms = float(error[row["contestant"]])
        row |= {"K": K, "N": N, "samples": drawn, "rms_error": rms, "ratio_at_equal_error": row["ratio"] * (rms / float(error["counts_mc"])) ** 2}  # fmt: skip
    return rows


def flow(quick: bool = False) -> list[dict[str, Any]]:
    """Time to a balanced loss of 0.001: closed form, LSODA in two unknowns, gradient descent in K x K; all must agree."""
    import numpy as np

    from papers.softmax_icl import closed_form, integrate_flow
    from papers.softmax_icl.population import count_law, descent_direction

    K, lr = (5, 5.0) if quick else (20, 1.0)
    p = np.full(K, 1 / K)
    law = count_law(p, 1, "infinite_prompt")

    def descent() -> float:
        Qf, steps = np.zeros((K, K)), 0
        while (step := descent_direction(Qf, p, *law))[1][0] > 1e-3:
            Qf, steps = Qf + lr * step[0], steps + 1
        return lr * steps

    ways: dict[str, Callable[[], float]] = {
        "closed form": lambda: closed_form.time_to_loss(K, 1e-3),
        "LSODA": lambda: float(integrate_flow(K, None, 1e-3).t[-1]),
        "gradient descent": descent,
    }
    return [row | {"K": K, "t": ways[row["contestant"]]()} for row in race(ways, 3 if quick else 7)]
