"""Negotiation domains in the Genius XML format of the ANAC competitions: issues, and the utility profiles of two sides.

    domain = anac.load("anac/y2011/Laptop")
    domain.n_bids, domain.utility(0, domain.bid("HP", "60 Gb", "19'' LCD"))        # 27, 1.0

A bid is a vector of option numbers, one an issue, counted from 0. Utilities are in [0, 1]:

    linear additive    u(b) = sum_i w_i e_i(b_i) / max_v e_i(v), weights normalised to sum 1; where an issue of numbers has
                       an <evaluator>, its function of the value stands for e / max e (see `evaluators`)
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
from xml.sax.saxutils import quoteattr

import numpy as np

from papers.neg_ucb.evaluators import Reading, base_of, evaluate, fits, is_open

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


def load(folder: str | os.PathLike, *, reading: Reading | None = None, points: int = 11) -> Domain:
    """Read a folder with one domain file and its profiles (in the order of their file names).

    reading: how linear evaluators of integer issues count, see `evaluators`; decided by what fits where None.
    points: options that stand for a real issue, evenly spaced over its range.
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
    if points < 2:
        raise ValueError(f"points is {points}: a real issue needs at least 2")
    found = _issues(*domains[0], points)
    issues = tuple(issue for issue, _ in found)
    notes = [f"real issue {issue.name!r} is read as {points} values" for issue, e in found if _kind(e) == "real"]
    elements = [_profile_issues(path, root, issues, points) for path, root in profiles]
    reading = reading or _reading(folder, issues, elements, notes)
    sides = tuple(
        _profile(path, root, issues, own, notes, reading) for (path, root), own in zip(profiles, elements, strict=True)
    )
    return Domain(folder.name, issues, sides, notes, pareto)


def _reading(folder: Path, issues: tuple[Issue, ...], profiles: list[list[ET.Element]], notes: list[str]) -> Reading:
    """How the linear evaluators of a folder count: the one reading that keeps them all in [0, 1], Genius' where both do."""
    undecided = []
    for elements in profiles:
        for issue, element in zip(issues, elements, strict=bool(elements)):
            evaluator = element.find("evaluator")
            if evaluator is None or _kind(element) == "real" or evaluator.get("ftype", "linear").lower() != "linear":
                continue
            try:
                values = np.array([float(value) for value in issue.values])
                if is_open(evaluator, values):
                    undecided.append((evaluator, values))
            except ValueError:
                continue  # said of the profile that has it
    if not undecided:
        return "genius"
    for reading, start in (("genius", "the lower bound, as in Genius"), ("negmas", "0, as in negmas")):
        if all(fits(evaluator, values, reading) for evaluator, values in undecided):  # type: ignore[arg-type]
            notes.append(f"linear evaluators of integer issues count values from {start}")
            return reading  # type: ignore[return-value]
    raise ValueError(
        f"{folder}: its linear evaluators leave [0, 1] whether they count from an issue's lower bound (Genius) "
        "or from 0 (negmas): mend them, or say reading="
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


def _kind(element: ET.Element) -> str:
    """discrete | integer | real."""
    kind = element.get("etype") or element.get("type") or ("integer" if element.get("lowerbound") else "discrete")
    return kind.lower()


def _ranged(element: ET.Element) -> bool:
    return element.get("lowerbound") is not None or element.find("range") is not None


def _bounds(path: Path, element: ET.Element) -> tuple[float, float]:
    """The range of an issue of numbers: its own attributes, or those of a <range> inside."""
    where = element if element.get("lowerbound") is not None else element.find("range")
    if where is None:
        raise ValueError(f"{path}: issue {element.get('name')!r} has no lowerbound and upperbound")
    return _number(path, where, "lowerbound"), _number(path, where, "upperbound")


def _issues(path: Path, root: ET.Element, points: int, of: tuple[Issue, ...] = ()) -> list[tuple[Issue, ET.Element]]:
    """Issues with their elements, in the order of their index (which counts from 1).

    of: the domain's issues, whose values stand where a profile gives an issue of numbers no range of its own.
    """
    found = []
    for element in root.iter("issue"):
        name = element.get("name") or f"issue {element.get('index')}"
        index = int(_number(path, element, "index"))
        kind, known = _kind(element), of[index - 1] if 0 < index <= len(of) else None
        if kind != "discrete" and known and not _ranged(element) and element.find("item") is None:
            found.append((index, Issue(name, known.values), element))
            continue
        if kind not in ("discrete", "integer", "real"):
            raise ValueError(f"{path}: issue {name!r} is of type {kind!r}: discrete, integer and real are read")
        if kind == "real":
            low, high = _bounds(path, element)
            if not low < high:
                raise ValueError(f"{path}: issue {name!r} goes from {low:g} to {high:g}: nothing lies between")
            values = [repr(float(value)) for value in np.linspace(low, high, points)]
        elif kind == "integer" and element.find("item") is None:
            low, high = map(int, _bounds(path, element))
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


def _profile(path: Path, root: ET.Element, issues: tuple[Issue, ...], elements: list[ET.Element], notes: list[str],
             reading: Reading) -> Profile:  # fmt: skip
    boxes = root.find(".//utility")
    if boxes is not None:
        worth: LinearAdditive | HyperRectangles = _boxes(path, boxes, issues)
    else:
        worth = _linear(path, root, issues, elements, notes, reading)
    return Profile(
        path.stem, worth, _setting(path, root, "reservation", 0.0), _setting(path, root, "discount_factor", 1.0)
    )


def _profile_issues(path: Path, root: ET.Element, issues: tuple[Issue, ...], points: int) -> list[ET.Element]:
    """A profile's issue elements in the domain's order. Raises ValueError where names or numbers of options differ."""
    if root.find(".//issue") is None and root.find(".//utility") is not None:
        return []
    found = _issues(path, root, points, of=issues)
    if len(found) != len(issues):
        raise ValueError(f"{path}: it has {len(found)} issues, the domain file has {len(issues)}")
    for (own, _), issue in zip(found, issues, strict=True):
        if own.name != issue.name:
            raise ValueError(f"{path}: an issue is called {own.name!r} where the domain file says {issue.name!r}")
        if len(own.values) != len(issue.values):
            raise ValueError(
                f"{path}: issue {own.name!r} has {len(own.values)} options, the domain file gives it {len(issue.values)}"
            )
    return [element for _, element in found]


def _weights(path: Path, root: ET.Element, n: int, notes: list[str]) -> np.ndarray:
    """Weights of issues 1 to n, normalised: (n,)."""
    weights: dict[int, float] = {}
    for element in root.iter("weight"):
        index = int(_number(path, element, "index"))
        if index in weights:
            raise ValueError(f"{path}: issue {index} has two weights: keep one")
        weights[index] = _number(path, element, "value")
    if set(weights) != set(range(1, n + 1)) or min(weights.values()) < 0:
        raise ValueError(f"{path}: a weight of at least 0 for each of the issues 1 to {n} is needed")
    total = sum(weights.values())
    if abs(total - 1) > WEIGHT_TOLERANCE:
        raise ValueError(
            f"{path}: weights sum to {total:.6g}: mend them (up to {WEIGHT_TOLERANCE} from 1 is renormalised)"
        )
    if abs(total - 1) > 1e-9:
        notes.append(f"{path.name}: weights sum to {total:.6g}, renormalised")
    return np.array([weights[i + 1] for i in range(n)]) / total


def _linear(path: Path, root: ET.Element, issues: tuple[Issue, ...], elements: list[ET.Element], notes: list[str],
            reading: Reading) -> LinearAdditive:  # fmt: skip
    weights = _weights(path, root, len(issues), notes)
    table = np.zeros((len(issues), max(len(issue.values) for issue in issues)))
    for row, weight, issue, element in zip(table, weights, issues, elements, strict=True):
        row[: len(issue.values)] = weight * _worths(path, issue, element, notes, reading)
    return LinearAdditive(table)


def _worths(path: Path, issue: Issue, element: ET.Element, notes: list[str], reading: Reading) -> np.ndarray:
    """What each option of an issue is worth in [0, 1], before its weight: by <item evaluation> or by <evaluator>."""
    evaluators, items = element.findall("evaluator"), element.findall("item")
    scored = [item for item in items if item.get("evaluation") is not None]
    if len(evaluators) > 1 or (evaluators and scored):
        what = "two evaluators" if len(evaluators) > 1 else "an evaluator and evaluations of its options"
        raise ValueError(f"{path}: issue {issue.name!r} has {what}: keep one")
    if evaluators:
        try:
            values = np.array([float(value) for value in issue.values])
        except ValueError:
            raise ValueError(f"{path}: issue {issue.name!r} has an evaluator, but its options are no numbers") from None
        try:
            worth, note = evaluate(evaluators[0], values, base_of(values, _kind(element) != "real", reading))
        except ValueError as error:
            raise ValueError(f"{path}: issue {issue.name!r}: {error}") from None
        if note:
            notes.append(f"{path.name}, issue {issue.name!r}: {note}")
        return worth
    if not items:
        raise ValueError(f"{path}: issue {issue.name!r} has neither an evaluator nor evaluations of its options")
    scores = {item.get("value", ""): _number(path, item, "evaluation") for item in items}
    if set(scores) != set(issue.values) or min(scores.values()) < 0:
        raise ValueError(f"{path}: issue {issue.name!r} needs an evaluation of at least 0 for each of its options")
    most = max(scores.values())
    return np.array([scores[value] / most if most > 0 else 0.0 for value in issue.values])


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


# ---- writing ---------------------------------------------------------------------------------------------------------


def save(domain: Domain, folder: str | os.PathLike) -> None:
    """Write a domain and its profiles as Genius XML: `domain.xml`, and `<profile name>.xml` for each profile.

    Options become discrete items. Raises ValueError for a linear profile whose best bid is worth less than 1: the format
    counts an issue's evaluations relative to their largest, so it cannot say so.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    whole = all(re.fullmatch(r"-?\d+", value) for issue in domain.issues for value in issue.values)
    boxed = any(isinstance(profile.worth, HyperRectangles) for profile in domain.profiles)
    if boxed and not whole:
        raise ValueError(f"{domain.name}: hyper-rectangles are written for issues of whole numbers only")
    plain = [_issue_xml(i, issue, None, boxed) for i, issue in enumerate(domain.issues, 1)]
    head = f'<utility_space number_of_issues="{len(domain.issues)}"><objective index="0" name="root" etype="objective" type="objective">'
    text = "\n".join(
        ["<negotiation_template>", head, *plain, "</objective></utility_space>", "</negotiation_template>", ""]
    )
    (folder / "domain.xml").write_text(text, encoding="utf-8")
    for profile in domain.profiles:
        worth = profile.worth
        if isinstance(worth, HyperRectangles):
            kind, body = ' type="nonlinear"', [*plain, _boxes_xml(worth, domain.issues)]
        else:
            kind, body = "", _linear_xml(profile.name, worth, domain.issues)
        text = "\n".join(
            [
                f"<utility_space{kind}>",
                f'<reservation value="{profile.reservation!r}"/><discount_factor value="{profile.discount!r}"/>',
                '<objective index="0" name="root" etype="objective" type="objective">',
                *body,
                "</objective></utility_space>",
                "",
            ]
        )
        (folder / f"{profile.name}.xml").write_text(text, encoding="utf-8")


def _issue_xml(index: int, issue: Issue, scores: np.ndarray | None, whole: bool = False) -> str:
    if whole:
        return (
            f'<issue index="{index}" name={quoteattr(issue.name)} etype="integer" type="integer" vtype="integer" '
            f'lowerbound="{issue.values[0]}" upperbound="{issue.values[-1]}"/>'
        )
    items = "".join(
        f'<item index="{v + 1}" value={quoteattr(value)}'
        + ("/>" if scores is None else f' evaluation="{scores[v]!r}"/>')
        for v, value in enumerate(issue.values)
    )
    return f'<issue index="{index}" name={quoteattr(issue.name)} etype="discrete" type="discrete" vtype="discrete">{items}</issue>'


def _linear_xml(name: str, worth: LinearAdditive, issues: tuple[Issue, ...]) -> list[str]:
    weights = worth.table.max(1)
    if abs(weights.sum() - 1) > 1e-9:
        raise ValueError(f"profile {name}: its best bid is worth {weights.sum():g}, which the format cannot say")
    scores = (worth.table / np.where(weights > 0, weights, 1)[:, None]).tolist()
    return [
        *(_issue_xml(i, issue, row) for i, (issue, row) in enumerate(zip(issues, scores, strict=True), 1)),
        *(f'<weight index="{i}" value="{float(weight)!r}"/>' for i, weight in enumerate(weights, 1)),
    ]


def _boxes_xml(worth: HyperRectangles, issues: tuple[Issue, ...]) -> str:
    first = np.array([int(issue.values[0]) for issue in issues])
    boxes = []
    for low, high, value in zip(worth.low, worth.high, worth.worth, strict=True):
        parts = "".join(
            f'<INCLUDES index="{i + 1}" min="{low[i] + first[i]}" max="{high[i] + first[i]}"/>'
            for i, issue in enumerate(issues)
            if low[i] > 0 or high[i] < len(issue.values) - 1
        )
        boxes.append(f'<hyperRectangle utility="{float(value)!r}">{parts}</hyperRectangle>')
    return f'<utility maxutility="{worth.most!r}"><ufun type="PlainUfun" weight="1" aggregation="sum">{"".join(boxes)}</ufun></utility>'
