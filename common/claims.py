"""A paper's claims (papers/<name>/claims.yaml) and what a run says of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common.configs import folder_of, papers
from common.optional import installed

PROVENANCE = ("paper", "repo", "recalled", "inferred", "derived")
FIELDS = {
    "id",
    "statement",
    "source",
    "provenance",
    "paper_value",
    "metric",
    "op",
    "threshold",
    "gate",
    "experiments",
    "requires",
    "calibrated",
}
REQUIRED = ("id", "statement", "source", "provenance", "metric", "op")
COMPARE: dict[str, Callable[[Any, Any], bool]] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
                                                  "in": lambda value, bounds: bounds[0] <= value <= bounds[1]}  # fmt: skip


def read(paper: str) -> list[dict[str, Any]]:
    """The claims of a paper, defaults filled in; [] for what has no such file. Raises ValueError as `validate` does."""
    import yaml

    if paper not in papers():  # a script with runs of its own
        return []
    path = folder_of(f"papers.{paper}") / "claims.yaml"
    if not path.exists():
        return []
    return validate(yaml.safe_load(path.read_text()) or [], path)


def validate(entries: Any, path: Path) -> list[dict[str, Any]]:
    """Check and complete the entries of a claims file. Raises ValueError naming file, claim and what is wrong."""
    if not isinstance(entries, list):
        raise ValueError(f"{path}: a list of claims is expected")
    claims, seen = [], set()
    for entry in entries:
        label = entry.get("id", entry) if isinstance(entry, dict) else entry

        def wrong(what: str, label: Any = label) -> ValueError:
            return ValueError(f"{path}: claim {label}: {what}")

        if not isinstance(entry, dict) or any(not entry.get(name) for name in REQUIRED):
            raise wrong(f"needs {', '.join(REQUIRED)}")
        if unknown := set(entry) - FIELDS:
            raise wrong(f"unknown field {', '.join(sorted(unknown))}; the fields are {', '.join(sorted(FIELDS))}")
        claim = {
            "paper_value": None,
            "threshold": None,
            "gate": True,
            "experiments": ["ci"],
            "requires": [],
            "calibrated": None,
            **entry,
        }
        if claim["id"] in seen:
            raise wrong("the id is used twice")
        if claim["provenance"] not in PROVENANCE:
            raise wrong(f"provenance must be one of {', '.join(PROVENANCE)}")
        if claim["paper_value"] is not None and claim["provenance"] != "paper":
            raise wrong("paper_value is the paper's own figure: only with provenance paper")
        if claim["op"] not in (*COMPARE, "report"):
            raise wrong(f"op must be one of {', '.join(COMPARE)}, report")
        _check_threshold(claim, wrong)
        if claim["gate"] and claim["metric"].startswith("timings."):
            raise wrong("a time never gates: set gate: false")
        for name in ("experiments", "requires"):
            if not isinstance(claim[name], list) or not all(isinstance(item, str) for item in claim[name]):
                raise wrong(f"{name} is a list of names")
        if not isinstance(claim["gate"], bool):
            raise wrong("gate is true or false")
        seen.add(claim["id"])
        claims.append(claim)
    return claims


def _check_threshold(claim: dict[str, Any], wrong: Callable[[str], ValueError]) -> None:
    def number(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

    threshold = claim["threshold"]
    if claim["op"] == "report":
        if threshold is not None or claim["gate"]:
            raise wrong("a reported claim has threshold: null and gate: false")
    elif claim["op"] == "in":
        pair = isinstance(threshold, list) and len(threshold) == 2 and all(map(number, threshold))
        if not pair or threshold[0] > threshold[1]:
            raise wrong("op in takes threshold: [low, high]")
    elif not number(threshold):
        raise wrong("threshold must be a number")


def judge(claims: list[dict[str, Any]], experiment: str, metrics: Mapping[str, Any], timings: Mapping[str, Any],
          data: Mapping[str, Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:  # fmt: skip
    """The claims that this experiment judges, each with `value` and `holds` (True, False, or None: not measured here).

    data: the run's data records, for `requires`. Returns the claims and notes on what could not be judged. A figure that
    was measured and is NaN does not hold.
    """
    judged, notes, unmeasured = [], [], []
    elsewhere: dict[str, list[str]] = {}  # what is required and not here -> claims
    for claim in claims:
        if experiment not in claim["experiments"]:
            continue
        missing = [need for need in claim["requires"] if not available(need, data)]
        name = claim["metric"]
        source, key = (timings, name.removeprefix("timings.")) if name.startswith("timings.") else (metrics, name)
        value, holds = source.get(key), None
        if missing:
            absent = [f"that {name[1:]} is not used" if name.startswith("!") else name for name in missing]
            elsewhere.setdefault(", ".join(absent), []).append(claim["id"])
        elif key not in source:
            unmeasured.append(f"{claim['id']} ({name})")
        elif value is None or not math.isfinite(value):
            value, holds = None, False if claim["op"] != "report" else None
            notes.append(f"claim {claim['id']}: {name} is not a finite number")
        else:
            holds = verdict(claim, value)
        judged.append(claim | {"value": None if missing else value, "holds": holds})
    for need, ids in elsewhere.items():
        notes.append(f"not judged in this run, as it requires {need}: {', '.join(ids)}")
    if unmeasured:
        notes.append(f"not judged in this run, as it was not measured: {', '.join(unmeasured)}")
    return judged, notes


def verdict(claim: Mapping[str, Any], value: float) -> bool | None:
    """Whether a finite value meets the claim's threshold; None for a reported claim."""
    return None if claim["op"] == "report" else bool(COMPARE[claim["op"]](value, claim["threshold"]))


def available(need: str, data: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a `requires` entry is met.

    `name` by real data that the run used or an installed package or extra, `name@sha8` by data of that sum, `!name` where
    `name` is not met: a claim on what stands in for it.
    """
    if need.startswith("!"):
        return not available(need[1:], data)
    name, at, sha = need.partition("@")
    used = data.get(name)
    if at:
        return used is not None and str(used["sha256"]).startswith(sha)
    if used is not None:
        return used["source"] == "real"
    return installed(name)
