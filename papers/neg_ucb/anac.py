"""Negotiation domains in the Genius XML format of the ANAC competitions: issues, and the utility profiles of two sides.

    domain = anac.load("anac/y2011/Laptop")
    domain.n_bids, domain.utility(0, domain.bid("HP", "60 Gb", "19'' LCD"))        # 27, 1.0

A bid is a vector of option numbers, one an issue, counted from 0. Utilities are in [0, 1]:

    linear additive    u(b) = sum_i w_i e_i(b_i) / max_v e_i(v), weights normalised to sum 1
    hyper-rectangles   u(b) = sum of the utilities of the boxes that hold b, over `maxutility` (ANAC 2014)
"""

from __future__ import annotations

import itertools
import math
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

MAX_BYTES = 16 * 2**20  # the largest profile of the competitions has a few dozen kilobytes
WEIGHT_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Issue:
    """One thing to agree on. values: the options, as text."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class LinearAdditive:
    """table[i, v] = w_i e_i(v) / max e_i: (issues, most options), unused cells 0."""

    table: np.ndarray
    kind: str = "linear"

    def __call__(self, bids: np.ndarray) -> np.ndarray:
        return np.clip(self.table[np.arange(bids.shape[1]), bids].sum(1), 0, 1)


@dataclass(frozen=True)
class HyperRectangles:
    """Boxes low <= b <= high, (boxes, issues) each, worth `worth` (boxes,); the sum over `most`."""

    low: np.ndarray
    high: np.ndarray
    worth: np.ndarray
    most: float
    kind: str = "hyper-rectangles"

    def __call__(self, bids: np.ndarray) -> np.ndarray:
        inside = np.ones((len(bids), len(self.worth)), bool)
        for i in range(bids.shape[1]):  # one issue at a time: (n, boxes) stays small where (n, boxes, issues) would not
            value = bids[:, i, None]
            inside &= (self.low[:, i] <= value) & (value <= self.high[:, i])
        return np.clip(inside @ self.worth / self.most, 0, 1)


@dataclass(frozen=True)
class Profile:
    """What one side thinks of the bids. reservation: utility of no agreement; discount: per unit of time (1: none)."""

    name: str
    worth: LinearAdditive | HyperRectangles
    reservation: float = 0.0
    discount: float = 1.0


@dataclass
class Domain:
    """Issues and profiles; `notes` says what was mended on reading, `pareto` is the competition's frontier where it ships one."""

    name: str
    issues: tuple[Issue, ...]
    profiles: tuple[Profile, ...]
    notes: list[str] = field(default_factory=list)
    pareto: np.ndarray | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(issue.values) for issue in self.issues)

    @property
    def n_bids(self) -> int:
        """Number of bids, exact (a Python int: the 2014 domains have up to 1e40)."""
        return math.prod(self.sizes)

    def bid(self, *values: str) -> tuple[int, ...]:
        """The bid with these options, one an issue. Raises ValueError naming an unknown option."""
        if len(values) != len(self.issues):
            raise ValueError(f"values: {self.name} has {len(self.issues)} issues, not {len(values)}")
        for issue, value in zip(self.issues, values, strict=True):
            if value not in issue.values:
                raise ValueError(
                    f"issue {issue.name!r} has no option {value!r}: its options are {', '.join(issue.values)}"
                )
        return tuple(issue.values.index(value) for issue, value in zip(self.issues, values, strict=True))

    def utility(self, profile: Profile | int | str, bid: Sequence[int] | np.ndarray) -> float | np.ndarray:
        """Utility in [0, 1] of one bid (k,) -> float, or of many (n, k) -> (n,). profile: one of `profiles`, its number or name."""
        names = [p.name for p in self.profiles]
        if isinstance(profile, str) and profile not in names:
            raise ValueError(f"profile {profile!r} is not in {self.name}: choose {', '.join(names)}")
        bids = np.asarray(bid)
        many = np.atleast_2d(bids)
        if many.shape[1] != len(self.issues) or (many < 0).any() or (many >= np.array(self.sizes)).any():
            raise ValueError(f"bid: one option number an issue is expected, below {self.sizes}")
        if isinstance(profile, str):
            profile = names.index(profile)
        values = (profile if isinstance(profile, Profile) else self.profiles[profile]).worth(many)
        return float(values[0]) if bids.ndim == 1 else values

    def bids(self) -> Iterator[tuple[int, ...]]:
        """All bids, the last issue running fastest."""
        return itertools.product(*(range(n) for n in self.sizes))

    def block(self, start: int, stop: int) -> np.ndarray:
        """Bids number start to stop-1 in the order of `bids()`: (stop - start, issues). For domains of at most 2^63 bids."""
        return np.stack(np.unravel_index(np.arange(start, min(stop, self.n_bids)), self.sizes), 1)


def load(folder: str | os.PathLike) -> Domain:
    """Read a folder with one domain file and its profiles (in the order of their file names).

    Raises FileNotFoundError where there is no folder, ValueError naming the file and what is wrong with it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder with a domain and its profiles in Genius XML")
    domains: list[tuple[Path, ET.Element]] = []
    profiles: list[tuple[Path, ET.Element]] = []
    pareto = None
    for path in sorted(folder.glob("*.xml"), key=lambda path: path.name):
        if path.name == "pareto.xml":
            pareto = _pareto(path)
            continue
        root = parse(path)
        if root.tag not in ("negotiation_template", "utility_space"):
            raise ValueError(f"{path}: the root is <{root.tag}>, not <negotiation_template> or <utility_space>")
        (domains if root.tag == "negotiation_template" else profiles).append((path, root))
    if len(domains) != 1 or not profiles:
        raise ValueError(f"{folder}: one domain file (<negotiation_template>) and at least one profile (<utility_space>) are needed, "
                         f"found {len(domains)} and {len(profiles)}")  # fmt: skip
    issues = tuple(issue for issue, _ in _issues(*domains[0]))
    notes: list[str] = []
    return Domain(
        folder.name, issues, tuple(_profile(path, root, issues, notes) for path, root in profiles), notes, pareto
    )


def parse(path: Path) -> ET.Element:
    """The root of an XML file, safely: a DOCTYPE or an entity declaration is refused before any parsing."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path}: more than {MAX_BYTES // 2**20} MiB is no negotiation profile")
    raw = path.read_bytes()
    try:
        text = raw.decode(
            "utf-8-sig"
        )  # decoded here, so that no declared encoding can hide a declaration from the check below
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    if "\0" in text or re.search(r"<!\s*(DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise ValueError(
            f"{path}: document type and entity declarations (or text that is not UTF-8) are refused: remove them"
        )
    try:
        return ET.fromstring(text.strip())
    except ET.ParseError as error:
        raise ValueError(f"{path}: not well-formed XML ({error})") from None


def _issues(path: Path, root: ET.Element) -> list[tuple[Issue, ET.Element]]:
    """Issues with their elements, in the order of their index (which counts from 1)."""
    found = []
    for element in root.iter("issue"):
        name = element.get("name") or f"issue {element.get('index')}"
        index = int(_number(path, element, "index"))
        if element.get("lowerbound") is not None or element.get("etype", element.get("type")) == "integer":
            low, high = int(_number(path, element, "lowerbound")), int(_number(path, element, "upperbound"))
            if high - low >= 10_000:
                raise ValueError(f"{path}: issue {name!r} has {high - low + 1} values: at most 10,000 are read")
            values = [str(value) for value in range(low, high + 1)]
        else:
            values = [
                item.get("value", "") for item in element.findall("item")
            ]  # direct children: similarity functions hold items too
        if not values:
            raise ValueError(f"{path}: issue {name!r} has no values")
        if len(set(values)) < len(values):
            raise ValueError(f"{path}: issue {name!r} lists an option twice")
        found.append((index, Issue(name, tuple(values)), element))
    if not found:
        raise ValueError(f"{path}: there is no <issue>")
    if sorted(index for index, _, _ in found) != list(range(1, len(found) + 1)):
        raise ValueError(
            f"{path}: issues are numbered {sorted(index for index, _, _ in found)}, expected 1 to {len(found)}"
        )
    return [(issue, element) for _, issue, element in sorted(found, key=lambda entry: entry[0])]


def _profile(path: Path, root: ET.Element, issues: tuple[Issue, ...], notes: list[str]) -> Profile:
    elements = _issues(path, root)
    if [len(issue.values) for issue, _ in elements] != [len(issue.values) for issue in issues]:
        raise ValueError(f"{path}: its issues and options are not those of the domain file")
    boxes = root.find(".//utility")
    worth = _linear(path, root, issues, elements, notes) if boxes is None else _boxes(path, boxes, issues)
    return Profile(
        path.stem, worth, _setting(path, root, "reservation", 0.0), _setting(path, root, "discount_factor", 1.0)
    )


def _linear(
    path: Path, root: ET.Element, issues: tuple[Issue, ...], elements: list[tuple[Issue, ET.Element]], notes: list[str]
) -> LinearAdditive:
    weights = {int(_number(path, element, "index")): _number(path, element, "value") for element in root.iter("weight")}
    if set(weights) != set(range(1, len(issues) + 1)) or min(weights.values()) < 0:
        raise ValueError(f"{path}: a weight of at least 0 for each of the issues 1 to {len(issues)} is needed")
    total = sum(weights.values())
    if abs(total - 1) > WEIGHT_TOLERANCE:
        raise ValueError(
            f"{path}: weights sum to {total:.6g}: mend them (up to {WEIGHT_TOLERANCE} from 1 is renormalised)"
        )
    if abs(total - 1) > 1e-9:
        notes.append(f"{path.name}: weights sum to {total:.6g}, renormalised")
    table = np.zeros((len(issues), max(len(issue.values) for issue in issues)))
    for i, (issue, (own, element)) in enumerate(zip(issues, elements, strict=True)):
        scores = {item.get("value", ""): _number(path, item, "evaluation") for item in element.findall("item")}
        if not scores:  # an integer issue of a linear profile: its value is its evaluation, from the lower bound
            scores = {value: float(value) for value in own.values}
        if set(scores) != set(issue.values) or min(scores.values()) < 0:
            raise ValueError(f"{path}: issue {issue.name!r} needs an evaluation of at least 0 for each of its options")
        most = max(scores.values())
        table[i, : len(issue.values)] = [
            weights[i + 1] / total * scores[value] / most if most > 0 else 0.0 for value in issue.values
        ]
    return LinearAdditive(table)


def _boxes(path: Path, utility: ET.Element, issues: tuple[Issue, ...]) -> HyperRectangles:
    most = _number(path, utility, "maxutility")
    if most <= 0:
        raise ValueError(f"{path}: maxutility is {most:g}, it must be positive")
    lows, highs, worth = [], [], []
    starts = np.array([int(issue.values[0]) if re.fullmatch(r"-?\d+", issue.values[0]) else 0 for issue in issues])
    for ufun in utility.findall("ufun"):
        if ufun.get("aggregation", "sum") != "sum":
            raise ValueError(f"{path}: aggregation {ufun.get('aggregation')!r} is not read, only sum")
        for box in ufun.findall("hyperRectangle"):
            low, high = np.zeros(len(issues), int), np.array([len(issue.values) - 1 for issue in issues])
            for part in box.findall("INCLUDES"):
                i = int(_number(path, part, "index")) - 1  # counted from 1
                if not 0 <= i < len(issues):
                    raise ValueError(f"{path}: a hyper-rectangle names issue {i + 1} of {len(issues)}")
                low[i], high[i] = _number(path, part, "min") - starts[i], _number(path, part, "max") - starts[i]
            lows.append(low)
            highs.append(high)
            worth.append(_number(path, box, "utility") * float(ufun.get("weight", 1)))
    if not worth:
        raise ValueError(f"{path}: a nonlinear profile without a hyperRectangle")
    return HyperRectangles(np.array(lows), np.array(highs), np.array(worth), most)


def _number(path: Path, element: ET.Element, attribute: str) -> float:
    text = element.get(attribute)
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(
            f"{path}: <{element.tag} {attribute}={text!r}> of {element.get('name') or element.get('value')!r} is not a number"
        )
    return value


def _setting(path: Path, root: ET.Element, tag: str, default: float) -> float:
    element = root.find(tag)
    return default if element is None else _number(path, element, "value")


def _pareto(path: Path) -> np.ndarray:
    """The frontier that the 2014 domains ship: lines `u1, u2`, in spite of the file's name."""
    rows = [line.split(",") for line in path.read_text().splitlines() if line.strip()]
    try:
        return np.array([[float(cell) for cell in row] for row in rows])
    except ValueError:
        raise ValueError(f"{path}: a line is not two numbers") from None


def generate(sizes: Sequence[int], generator: np.random.Generator, name: str = "generated") -> Domain:
    """A linear-additive domain of our own: Dirichlet weights, two sides whose evaluations of an option tend to oppose."""
    issues = tuple(Issue(f"issue {i + 1}", tuple(f"option {v + 1}" for v in range(n))) for i, n in enumerate(sizes))
    tables = [np.zeros((len(sizes), max(sizes))) for _ in range(2)]
    weights = generator.dirichlet(np.full(len(sizes), 3.0), 2)
    for i, n in enumerate(sizes):
        own = generator.permutation(np.linspace(0.1, 1, n))
        other = 0.7 * (1.1 - own) + 0.3 * generator.uniform(0.1, 1, n)
        for table, weight, scores in zip(tables, weights, (own, other), strict=True):
            table[i, :n] = weight[i] * scores / scores.max()
    return Domain(
        name, issues, tuple(Profile(f"side {s + 1}", LinearAdditive(table)) for s, table in enumerate(tables))
    )
