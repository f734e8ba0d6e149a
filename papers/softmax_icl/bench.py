"""Races: gradients from counts against autograd through real prompts, and the flow's solver against plain steps. See README.md."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any


def bench(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Tables by name. quick: sizes for a test of the bench itself."""
    return {"softmax_icl_gradient": gradient(quick), "softmax_icl_flow": flow(quick)}


def gradient(quick: bool = False) -> list[dict[str, Any]]:
    """One gradient at K = 100, N = 2000: `counts_mc` (w, query and token order integrated out) against autograd on prompts.

    Both are unbiased for the same gradient, with a variance that falls as 1/samples. `at_equal_error` is the time the other would
    take at the error of counts_mc: its own time x (its error / that error)^2.
    """
    import numpy as np
    import torch

    from papers.softmax_icl import SoftmaxICL, population_gradient
    from papers.softmax_icl.data import frequencies, make_features, sample_prompts
    from papers.softmax_icl.model import squared_loss

    K, N, samples, batch = (10, 50, 16, 16) if quick else (100, 2000, 32, 16)
    p, V = frequencies("balanced", K), make_features(K, K)
    Qf = np.random.default_rng(0).normal(size=(K, K)) * 0.3 + 2 * np.eye(K)
    exact = population_gradient(Qf, p, N, "counts_mc", 256 if quick else 20_000, np.random.default_rng(1))
    model = SoftmaxICL(K, K).set_bilinear(torch.as_tensor(Qf), V)
    rng, generator = np.random.default_rng(2), torch.Generator().manual_seed(2)

    def by_counts() -> Any:
        return population_gradient(Qf, p, N, "counts_mc", samples, rng)

    def by_tokens() -> Any:
        prompts = sample_prompts(batch, N, p, V, generator)
        model.zero_grad()
        squared_loss(model.predict(prompts.x, prompts.y, prompts.x_q), prompts.y_q).mean().backward()
        assert model.Q.grad is not None
        return (V.mT @ model.Q.grad @ V).numpy()

    runs = 3 if quick else 15
    found: dict[str, list[tuple[float, float]]] = {"counts_mc": [], "tokens": []}
    for _ in range(runs + 1):  # interleaved; the first round warms up
        for name, make in (("counts_mc", by_counts), ("tokens", by_tokens)):
            took, value = _timed(make)
            found[name].append((took, float(((value - exact) ** 2).mean())))
    rows = []
    errors = {name: (sum(mse for _, mse in results[1:]) / runs) ** 0.5 for name, results in found.items()}
    for name, results in found.items():
        seconds = sorted(s for s, _ in results[1:])
        rows.append({
            "engine": name, "K": K, "N": N, "samples": samples if name == "counts_mc" else batch, "ms": 1e3 * median(seconds),
            "ms_low": 1e3 * seconds[0], "ms_high": 1e3 * seconds[-1], "rms_error": errors[name],
            "ms_at_equal_error": 1e3 * median(seconds) * (errors[name] / errors["counts_mc"]) ** 2,
        })  # fmt: skip
    for row in rows:
        row["times_counts_mc"] = row["ms"] / rows[0]["ms"]
        row["times_at_equal_error"] = row["ms_at_equal_error"] / rows[0]["ms"]
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
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(3 if quick else 8):
        for name, way in ways.items():
            found[name].append(_timed(way))
    return [
        {"way": name, "K": K, "t": results[-1][1], "ms": 1e3 * median(s for s, _ in results[1:]), "ms_low": 1e3 * min(s for s, _ in results[1:]),
         "ms_high": 1e3 * max(s for s, _ in results[1:])}
        for name, results in found.items()
    ]  # fmt: skip


def _timed(make: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = make()
    return time.perf_counter() - start, value
