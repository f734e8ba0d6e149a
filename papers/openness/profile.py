"""A profile: the ratings of one model's twelve components with their evidence, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from papers.openness.rating import Rating
from papers.openness.taxonomy import BY_ID, IDS, PRETRAINING_DATA, WEIGHTS


@dataclass(frozen=True)
class Evidence:
    """Why a component is rated as it is: where it was seen and by which rule."""

    rule: str
    source: str  # a file, a table
    line: int | None = None
    key: str | None = None
    licence: str | None = None
    note: str = ""
    as_of: str | None = None

    def __str__(self) -> str:
        where = f"{self.source}:{self.line}" if self.line else self.source
        parts = [
            where,
            f"key {self.key}" if self.key else "",
            self.licence or "",
            self.note,
            f"as of {self.as_of}" if self.as_of else "",
        ]
        return f"{self.rule} ({', '.join(part for part in parts if part)})"


@dataclass(frozen=True)
class Profile:
    """One model under the taxonomy. `ratings` has every component, in the taxonomy's order."""

    name: str
    ratings: Mapping[str, Rating]
    evidence: Mapping[str, list[Evidence]] = field(default_factory=dict)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    licences: Mapping[str, str] = field(default_factory=dict)  # of public components, as named
    title: str = ""
    mode: str = "criteria"
    release: str | None = None  # "2022-12"
    about: Mapping[str, str] = field(default_factory=dict)  # developer, link, ...
    hints: Mapping[str, str] = field(default_factory=dict)  # what is guessed of an unknown component
    documents: Mapping[str, str] = field(default_factory=dict)  # MOF's further components and their licences, if stated

    def __post_init__(self) -> None:
        if tuple(self.ratings) != IDS:
            raise ValueError("a profile has a rating for each of the twelve components, in order")
        for name, rating in self.ratings.items():
            if rating.kind != BY_ID[name].kind:
                raise ValueError(f"{name} is {BY_ID[name].kind}, its rating is of {rating.kind}")

    # ---- numbers -----------------------------------------------------------------------------------------------------

    def level(self, name: str) -> int | None:
        """The level of a component; None where it is unknown or not applicable."""
        return self.ratings[name].level

    @property
    def n_rated(self) -> int:
        return sum(rating.status == "rated" for rating in self.ratings.values())

    @property
    def n_applicable(self) -> int:
        return sum(rating.status != "na" for rating in self.ratings.values())

    @property
    def score(self) -> float | None:
        """Mean of (level - 1) / 4 over the rated components; None where none is rated."""
        return self.score_of(lambda name: True)

    def score_of(self, chosen: Callable[[str], bool]) -> float | None:
        """The score over some of the components: a stage, a kind."""
        levels = [r.level for name, r in self.ratings.items() if r.level is not None and chosen(name)]
        return sum((level - 1) / 4 for level in levels) / len(levels) if levels else None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The least and the most the score could be over all applicable components, were the unknown ones known.

        The score itself is over fewer components, and may lie outside.
        """
        known = [r for r in self.ratings.values() if r.status != "na"]
        if not known:
            return None
        low, high = (
            sum(((end or 1) - 1) / 4 for end in ends) / len(known)
            for ends in ([r.low for r in known], [r.high for r in known])
        )
        return low, high

    @property
    def label(self) -> str:
        """ "fully open" (no unknown, all 5), "fully closed" (no unknown, all 1), or "semi-open"."""
        found = {r.level for r in self.ratings.values() if r.status != "na"}
        if found == {5}:
            return "fully open"
        return "fully closed" if found == {1} else "semi-open"

    @property
    def tags(self) -> list[str]:
        """Patterns by name: weights-only, api-only, open-data, and what the files say (adapter, quantised, gated)."""
        weights, data = self.level(WEIGHTS), self.level(PRETRAINING_DATA)
        tags = []
        if weights is not None and weights >= 3 and data == 1:
            tags.append("weights-only")
        if weights == 2:
            tags.append("api-only")
        if data is not None and data >= 4:
            tags.append("open-data")
        return tags + [tag for tag in self.about.get("tags", "").split() if tag]

    # ---- forms -------------------------------------------------------------------------------------------------------

    @property
    def codes(self) -> list[str]:
        """ "C5", "D1", "N/A" or "Unknown", in the taxonomy's order."""
        return [rating.code for rating in self.ratings.values()]

    def with_rating(
        self, name: str, rating: Rating, licence: str | None = None, why: Evidence | None = None
    ) -> Profile:
        """A copy in which one component is rated otherwise."""
        from dataclasses import replace

        ratings = dict(self.ratings) | {name: rating}
        licences = {key: value for key, value in self.licences.items() if key != name} | (
            {name: licence} if licence else {}
        )
        evidence = dict(self.evidence) | ({name: [why]} if why else {})
        hints = {key: value for key, value in self.hints.items() if key != name}
        return replace(self, ratings=ratings, licences=licences, evidence=evidence, hints=hints)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it; `from_dict` gives the profile back."""
        return {
            "schema": "openness-profile-1",
            "name": self.name,
            "title": self.title,
            "release": self.release,
            "mode": self.mode,
            "about": dict(self.about),
            "documents": dict(self.documents),
            "score": self.score,
            "bounds": list(self.bounds) if self.bounds else None,
            "n_rated": self.n_rated,
            "n_applicable": self.n_applicable,
            "label": self.label,
            "tags": self.tags,
            "components": {
                name: {
                    "code": rating.code,
                    "status": rating.status,
                    "level": rating.level,
                    "low": rating.low,
                    "high": rating.high,
                    **({"licence": self.licences[name]} if name in self.licences else {}),
                    **({"hint": self.hints[name]} if name in self.hints else {}),
                    "evidence": [
                        {key: value for key, value in asdict(item).items() if value not in (None, "")}
                        for item in self.evidence.get(name, [])
                    ],
                }
                for name, rating in self.ratings.items()
            },
            "warnings": [list(warning) for warning in self.warnings],
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Profile:
        """The profile that `to_dict` wrote. ValueError naming what is missing or wrong."""
        from papers.openness.schema import check_profile

        if problems := check_profile(raw):
            raise ValueError(problems[0])
        parts = raw["components"]
        return cls(
            name=raw["name"],
            ratings={
                name: Rating(BY_ID[name].kind, *(parts[name][key] for key in ("status", "level", "low", "high")))
                for name in IDS
            },
            evidence={
                name: [Evidence(**item) for item in parts[name]["evidence"]] for name in IDS if parts[name]["evidence"]
            },
            warnings=[(code, text) for code, text in raw.get("warnings", [])],
            licences={name: parts[name]["licence"] for name in IDS if "licence" in parts[name]},
            hints={name: parts[name]["hint"] for name in IDS if "hint" in parts[name]},
            title=raw.get("title", ""),
            mode=raw.get("mode", "criteria"),
            release=raw.get("release"),
            about=raw.get("about", {}),
            documents=raw.get("documents", {}),
        )


def interval_count(profiles: Iterable[Profile], name: str, at_least: int) -> tuple[int, int]:
    """How many of the models have a component at this level or above: surely, and at most."""
    ratings = [profile.ratings[name] for profile in profiles]
    return (
        sum(rating.low is not None and rating.low >= at_least for rating in ratings),
        sum(rating.high is not None and rating.high >= at_least for rating in ratings),
    )
