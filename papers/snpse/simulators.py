"""Calling a user's simulator: numpy or torch, batched or one parameter vector at a time, in parallel, with NaN."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

Simulator = Callable[..., Any]


def _as_float(out: Any) -> np.ndarray:
    array = out.detach().cpu().numpy() if isinstance(out, Tensor) else np.asarray(out)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"the simulator returned values of type {array.dtype}: give real numbers")
    return array.astype(np.float64)


def simulate(simulator: Simulator, theta: Tensor, generator: torch.Generator, workers: int = 0) -> Tensor:
    """x (n, p) float32 for theta (n, d). The simulator is called with the batch, as torch, then as numpy; where that fails
    or gives another number of rows, with one vector (d,) at a time (`workers` threads share them).

    A second parameter named `generator` gets the torch generator; otherwise the global generators of torch and numpy are
    seeded from it. Raises ValueError naming the shape that came back.
    """
    takes = _takes_generator(simulator)
    seed = int(torch.randint(2**31, (1,), generator=generator))
    state = np.random.get_state()  # noqa: NPY002 (simulators of users draw from it)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            extra = {"generator": generator} if takes else {}
            out = _batched(simulator, theta, extra)
            if out is None:
                out = _one_by_one(simulator, theta, extra, workers)
        finally:
            np.random.set_state(state)  # noqa: NPY002
    return torch.as_tensor(out, dtype=torch.float32)


def _takes_generator(simulator: Simulator) -> bool:
    try:
        return "generator" in inspect.signature(simulator).parameters
    except (TypeError, ValueError):
        return False


def _batched(simulator: Simulator, theta: Tensor, extra: dict[str, Any]) -> np.ndarray | None:
    for form in (theta, theta.numpy()):
        try:
            out = _as_float(simulator(form, **extra))
        except ValueError as error:
            if "the simulator returned" in str(error):
                raise
            continue
        except Exception:  # a simulator that takes one vector may fail in any way on a batch
            continue
        if out.ndim == 2 and len(out) == len(theta):
            return out
        if out.ndim == 1 and len(out) == len(theta) and len(theta) != theta.shape[1]:
            return out[:, None]
    return None


def _one_by_one(simulator: Simulator, theta: Tensor, extra: dict[str, Any], workers: int) -> np.ndarray:
    form: Any = theta
    try:
        first = _as_float(simulator(theta[0], **extra))
    except ValueError:
        raise
    except Exception:
        form = theta.numpy()
        try:
            first = _as_float(simulator(form[0], **extra))
        except Exception as error:
            raise ValueError(
                f"the simulator fails on a batch {tuple(theta.shape)} and on one vector {tuple(theta[0].shape)} "
                f"({type(error).__name__}: {str(error)[:80]})"
            ) from None
    if first.ndim > 1:
        raise ValueError(
            f"the simulator returned shape {first.shape} for one theta {tuple(theta[0].shape)}: expected (p,), or (n, p) for (n, d)"
        )
    call = lambda row: np.atleast_1d(_as_float(simulator(row, **extra)))  # noqa: E731
    rows = list(form[1:])
    if workers > 1 and not extra:
        with ThreadPoolExecutor(workers) as pool:
            rest = list(pool.map(call, rows))
    else:
        rest = [call(row) for row in rows]
    outs = [np.atleast_1d(first), *rest]
    if odd := next((out.shape for out in outs if out.shape != outs[0].shape), None):
        raise ValueError(
            f"the simulator returned shape {odd} after {outs[0].shape}: the same for every theta is needed"
        )
    return np.stack(outs)
