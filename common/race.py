"""Fair timing: contestants take turns in one process, and the medians of their turns are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def race(contestants: Mapping[str, Callable[[], Any]], repeats: int = 7, warmup: int = 1) -> list[dict[str, Any]]:
    """Time each contestant `repeats` times, in turn (A B C A B C ...), so that a machine whose speed drifts treats all alike.

    Returns a row each: contestant, median_s, min_s, max_s, and ratio, its median over the first one's. The first warm-up
    turns are not counted. ValueError for no contestants or no repeats.
    """
    if not contestants or repeats < 1:
        raise ValueError("a race takes at least one contestant and one repeat")
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(-warmup, repeats):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    first = next(iter(medians.values()))
    return [
        {"contestant": name, "median_s": medians[name], "min_s": min(times), "max_s": max(times), "ratio": medians[name] / first}
        for name, times in seconds.items()
    ]  # fmt: skip
