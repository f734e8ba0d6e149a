"""What several runs or points say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any


def spread(values: Sequence[float]) -> dict[str, Any]:
    """{"n", "mean", "sd"} of the same figure over seeds: sd is the sample's (n - 1), None for a single value.

    ValueError for no values.
    """
    if not values:
        raise ValueError("values is empty: a mean needs at least one")
    return {
        "n": len(values),
        "mean": statistics.fmean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else None,
    }


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least-squares slope of ln y against ln x: the exponent of a power law. ValueError unless all are positive."""
    if len(x) != len(y) or len(x) < 2 or min(*x, *y) <= 0:
        raise ValueError("log_slope takes at least two pairs of positive numbers")
    a, b = [math.log(value) for value in x], [math.log(value) for value in y]
    return statistics.linear_regression(a, b).slope
