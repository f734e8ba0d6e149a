"""Evaluators of Genius profiles: functions of a number that say what a value of an integer or real issue is worth.

    <evaluator ftype="linear" offset="1.2" slope="-0.2"/>       also parameter0 and parameter1 in their place
    <evaluator ftype="constant" parameter0="0.5"/>
    <evaluator ftype="quadratic" parameter0=".." parameter1=".." parameter2=".."/>     p0 + p1 v + p2 v^2, as negmas has it
    <evaluator ftype="triangular" parameter0="low" parameter1="high" parameter2="top"/>  0 at low and high, 1 at top

The two programs that write these files read a linear evaluator of an integer issue differently: Genius counts v from the
issue's lower bound, negmas from 0. `Reading` says which; by itself the one that stays in [0, 1] is taken, Genius' where both do.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from typing import Literal

import numpy as np

Reading = Literal["genius", "negmas"]
NAMES = {  # ftype -> names of each of its parameters, the first found is taken
    "linear": (("offset", "parameter0"), ("slope", "parameter1")),
    "constant": (("parameter0", "offset"),),
    "quadratic": (("parameter0", "offset"), ("parameter1", "a1"), ("parameter2", "a2")),
    "triangular": (("parameter0", "start"), ("parameter1", "end"), ("parameter2", "middle")),
}
SLACK = 1e-6  # rounding of written slopes


def evaluate(element: ET.Element, values: np.ndarray, base: float = 0.0) -> tuple[np.ndarray, str | None]:
    """Worth in [0, 1] of each of an issue's values (n,), and a note where something was decided.

    base: what a linear evaluator counts values from, see `base_of`. Raises ValueError for an unknown ftype, a parameter
    that is missing or no number, and negative worth.
    """
    worth, note = np.round(_raw(element, values, base), 12), None  # 1.2 - .2 v is written in decimals
    if worth.min() < -SLACK:
        raise ValueError(f"its evaluator makes a value worth {worth.min():g}: at least 0 is expected")
    if worth.max() > 1 + SLACK:
        note = f"evaluations up to {worth.max():g} are divided by that (Genius would cut them off at 1)"
        worth = worth / worth.max()
    return np.clip(worth, 0, 1), note


def base_of(values: np.ndarray, whole: bool, reading: Reading) -> float:
    """What a linear evaluator counts an issue's values from. whole: an integer issue."""
    return float(values[0]) if whole and reading == "genius" else 0.0


def fits(element: ET.Element, values: np.ndarray, reading: Reading) -> bool:
    """Whether a linear evaluator of an integer issue stays in [0, 1] when it is read so."""
    worth = _raw(element, values, base_of(values, True, reading))
    return bool(worth.min() >= -SLACK and worth.max() <= 1 + SLACK)


def is_open(element: ET.Element, values: np.ndarray) -> bool:
    """Whether the two readings differ for this evaluator of an integer issue."""
    return element.get("ftype", "linear").lower() == "linear" and values[0] != 0 and _numbers(element)[1] != 0


def _raw(element: ET.Element, values: np.ndarray, base: float) -> np.ndarray:
    ftype, numbers = element.get("ftype", "linear").lower(), _numbers(element)
    if ftype == "constant":
        return np.full(len(values), numbers[0])
    if ftype == "quadratic":
        return numbers[0] + numbers[1] * values + numbers[2] * values**2
    if ftype == "linear":
        return numbers[0] + numbers[1] * (values - base)
    low, high, top = numbers
    if not low <= top <= high or low == high:
        raise ValueError(f"its evaluator is a triangle from {low:g} to {high:g} with its top at {top:g}")
    worth = np.interp(values, [low, top, high], [0.0, 1.0, 0.0], left=0.0, right=0.0)
    worth[values == top] = 1.0  # also where the top is an end
    return worth


def _numbers(element: ET.Element) -> list[float]:
    ftype = element.get("ftype", "linear")
    if ftype.lower() not in NAMES:
        raise ValueError(f"evaluator ftype {ftype!r} is not read: {', '.join(NAMES)} are")
    return [_parameter(element, names) for names in NAMES[ftype.lower()]]


def _parameter(element: ET.Element, names: tuple[str, ...]) -> float:
    for name in names:
        if (text := element.get(name)) is not None:
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise ValueError(f"its evaluator has {name}={text!r}, which is not a number")
            return value
    raise ValueError(f"its evaluator of ftype {element.get('ftype')!r} has no {' or '.join(names)}")
