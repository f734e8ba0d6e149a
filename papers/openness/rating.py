"""Rights of a licence and the level they give: the rule of the scale, one component at a time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

AVAILABILITY = ("none", "api", "public", "na", "unknown")


class Rights(NamedTuple):
    """The five freedoms a licence gives, 0 or 1 each. `&` is what is left where two licences hold at once."""

    research: int
    commercial: int
    modify: int
    copyright_derivative: int
    relicense_derivative: int

    @property
    def points(self) -> int:
        """0 to 5: how many of the freedoms there are."""
        return sum(self)

    @property
    def bits(self) -> str:
        """ "11110": the freedoms in the order research, commerce, modification, copyright, other licence."""
        return "".join(map(str, self))

    def __and__(self, other: Rights) -> Rights:
        return Rights(*map(min, self, other))

    @classmethod
    def of(cls, bits: str) -> Rights:
        """The rights that a text of five 0 and 1 says. ValueError for another text."""
        if len(bits) != 5 or set(bits) - set("01"):
            raise ValueError(f"rights are five digits 0 or 1, not {bits!r}")
        return cls(*map(int, bits))


NO_RIGHTS, ALL_RIGHTS = Rights(0, 0, 0, 0, 0), Rights(1, 1, 1, 1, 1)
EVERY_RIGHTS = tuple(Rights(*bits) for bits in product((0, 1), repeat=5))


def level_of(kind: str, rights: Rights) -> int:
    """The level of a public component under a licence with these rights.

    Code: 0-1 points 2, 2-3 points 3, 4 points 4, 5 points 5. Data: at most 3 points 3, for 2 says "API only".
    """
    points = rights.points
    _kind(kind)
    if points >= 4:
        return points
    return 3 if kind == "data" or points >= 2 else 2


@dataclass(frozen=True)
class Rating:
    """What is said of one component: a level, not applicable, or unknown within bounds."""

    kind: str  # code | data
    status: str  # rated | na | unknown
    level: int | None = None
    low: int | None = None
    high: int | None = None

    @property
    def code(self) -> str:
        """ "C5", "D2", "N/A" or "Unknown": what is printed in a cell."""
        if self.status == "rated":
            return f"{self.kind[0].upper()}{self.level}"
        return "N/A" if self.status == "na" else "Unknown"

    @property
    def span(self) -> str:
        """As `code`, an unknown with its bounds: "D3-D5?"."""
        letter = self.kind[0].upper()
        return f"{letter}{self.low}-{letter}{self.high}?" if self.status == "unknown" else self.code


def rated(kind: str, level: int) -> Rating:
    """A known level. ValueError unless it is 1 to 5."""
    if _kind(kind) and (isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= 5):
        raise ValueError(f"a level is a whole number from 1 to 5, not {level!r}")
    return Rating(kind, "rated", level, level, level)


def unknown(kind: str, low: int = 1, high: int = 5) -> Rating:
    """A component that is there while its level is not known: somewhere in [low, high]."""
    if _kind(kind) and not 1 <= low <= high <= 5:
        raise ValueError(f"bounds are 1 <= low <= high <= 5, not [{low}, {high}]")
    return Rating(kind, "unknown", None, low, high)


def not_applicable(kind: str) -> Rating:
    """A component that the model does not have by design: neither closed nor unknown."""
    return Rating(_kind(kind), "na")


def rate(kind: str, availability: str, rights: Rights | None = None) -> Rating:
    """The rating of one component.

    kind: "code" or "data". availability: "none" | "api" | "public" | "na" | "unknown". rights: of its licence; None where
    the licence is not known, `NO_RIGHTS` where it is known that there is none. Raises ValueError for other words.
    """
    _kind(kind)
    if availability not in AVAILABILITY:
        raise ValueError(f"availability is {availability!r}: choose {', '.join(AVAILABILITY)}")
    if availability == "na":
        return not_applicable(kind)
    if availability == "unknown":
        return unknown(kind)
    if availability == "none":
        return rated(kind, 1)
    if availability == "api":
        return rated(kind, 2 if kind == "data" else 1)
    if rights is None:
        return unknown(kind, level_of(kind, NO_RIGHTS), 5)
    return rated(kind, level_of(kind, rights))


def between(kind: str, low: Rights, high: Rights) -> Rating:
    """The rating of a public component whose rights lie between two: a level where both give the same."""
    ends = level_of(kind, low), level_of(kind, high)
    return rated(kind, ends[0]) if ends[0] == ends[1] else unknown(kind, *ends)


def _kind(kind: str) -> str:
    if kind not in ("code", "data"):
        raise ValueError(f"kind is {kind!r}: choose code, data")
    return kind
