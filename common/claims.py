"""Claims of a paper (papers/<name>/claims.yaml): reading them, judging a run by them, which of them fail it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from common.catalogue import folder_of, papers
from common.optional import installed

PROVENANCE = ("paper", "repo", "recalled", "inferred", "derived")
REQUIRED = ("id", "statement", "source", "provenance", "metric", "op")
DEFAULTS: dict[str, Any] = {"paper_value": None, "threshold": None, "gate": True, "experiments": ["ci"], "requires": [],
                            "calibrated": None, "refuted_by": None, "tuned": None}  # fmt: skip
FIELDS = {*REQUIRED, *DEFAULTS}
# what may be overridden in an experiment whose claims still count
AS_IT_STANDS = ("exp", "seed", "device", "threads", "logger", "paths", "launcher", "resume", "hydra")
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
        claim = DEFAULTS | entry
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
        _check_refutation(claim, wrong)
        _check_tuning(claim, wrong)
        seen.add(claim["id"])
        claims.append(claim)
    return claims


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_threshold(claim: dict[str, Any], wrong: Callable[[str], ValueError]) -> None:
    threshold = claim["threshold"]
    if claim["op"] == "report":
        if threshold is not None or claim["gate"]:
            raise wrong("a reported claim has threshold: null and gate: false")
    elif claim["op"] == "in":
        pair = isinstance(threshold, list) and len(threshold) == 2 and all(map(_number, threshold))
        if not pair or threshold[0] > threshold[1]:
            raise wrong("op in takes threshold: [low, high]")
    elif not _number(threshold):
        raise wrong("threshold must be a number")


def _check_refutation(claim: dict[str, Any], wrong: Callable[[str], ValueError]) -> None:
    """A gate has been seen to fail: the figure of a named wrong variant misses the threshold."""
    refuted = claim["refuted_by"]
    if refuted is None:
        return
    if not isinstance(refuted, dict) or set(refuted) != {"what", "value"} or not isinstance(refuted["what"], str):
        raise wrong("refuted_by is {what: the wrong variant, value: its figure}")
    if not refuted["what"].strip() or not _number(refuted["value"]):
        raise wrong("refuted_by names a variant (what) and its figure, a number (value)")
    if claim["op"] == "report":
        raise wrong("a reported claim has no threshold that refuted_by could miss")
    if claim["gate"] and verdict(claim, refuted["value"]):
        raise wrong(f"refuted_by refutes nothing: {refuted['value']} meets the threshold")


def _check_tuning(claim: dict[str, Any], wrong: Callable[[str], ValueError]) -> None:
    """Contestants are tuned alike: by as many trials, on the same data. A method without settings has 0 trials."""
    if claim["tuned"] is None:
        return
    if not isinstance(claim["tuned"], dict) or not claim["tuned"]:
        raise wrong("tuned is {method: {trials, on, chosen}}")
    for method, entry in claim["tuned"].items():
        if not isinstance(entry, dict) or set(entry) != {"trials", "on", "chosen"}:
            raise wrong(f"tuned.{method} is {{trials, on, chosen}}")
        trials, chosen = entry["trials"], entry["chosen"]
        if not isinstance(trials, int) or isinstance(trials, bool) or trials < 0 or not isinstance(chosen, dict):
            raise wrong(f"tuned.{method}: trials is a whole number, chosen a mapping of settings")
        if trials and not (isinstance(entry["on"], str) and entry["on"].strip()):
            raise wrong(f"tuned.{method}: on names the worlds or data it was tuned on")
        if not trials and chosen:
            raise wrong(f"tuned.{method}: 0 trials are for a method without settings; it has {', '.join(chosen)}")
    searched = [(entry["trials"], entry["on"]) for entry in claim["tuned"].values() if entry["trials"]]
    if len(set(searched)) > 1:
        raise wrong("tuned: every method takes as many trials as the others, on the same data")


def judge(claims: list[dict[str, Any]], experiment: str, metrics: Mapping[str, Any], timings: Mapping[str, Any],
          data: Mapping[str, Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:  # fmt: skip
    """The claims that this experiment judges, each with `value` and `holds` (True, False, or None: not measured here).

    data: the run's data records, for `requires`. Returns the claims and notes on what could not be judged. A figure that
    was measured and is NaN does not hold. A claim whose needs are met and that nothing measured has `unmeasured: True`:
    it fails the run where it gates, see `failing`. One whose metric `m` has `m.low` and `m.high` beside it carries them
    as its `interval`.
    """
    judged, notes, unmeasured = [], [], []
    elsewhere: dict[str, list[str]] = {}  # what is required and not here -> claims
    for claim in claims:
        if experiment not in claim["experiments"]:
            continue
        missing = unmet(claim, data)
        name = claim["metric"]
        source, key = (timings, name.removeprefix("timings.")) if name.startswith("timings.") else (metrics, name)
        found: dict[str, Any] = {"value": None, "holds": None}
        if missing:
            absent = [f"that {need[1:]} is not used" if need.startswith("!") else need for need in missing]
            elsewhere.setdefault(", ".join(absent), []).append(claim["id"])
        elif key not in source:
            unmeasured.append(f"{claim['id']} ({name})")
            found["unmeasured"] = True
        elif not _finite(source[key]):
            found["holds"] = False if claim["op"] != "report" else None
            notes.append(f"claim {claim['id']}: {name} is not a finite number")
        else:
            found |= {"value": source[key], "holds": verdict(claim, source[key])}
            ends = [source.get(f"{key}.{end}") for end in ("low", "high")]
            if all(map(_finite, ends)):
                found["interval"] = ends
        judged.append(claim | found)
    for need, ids in elsewhere.items():
        notes.append(f"not judged in this run, as it requires {need}: {', '.join(ids)}")
    if unmeasured:
        notes.append(f"not judged in this run, as it was not measured: {', '.join(unmeasured)}")
    return judged, notes


def _finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def changed(overrides: Iterable[str]) -> list[str]:
    """The overrides that make an experiment another one: its claims are then shown for information, and fail nothing."""
    names = [(text, text.lstrip("+~").partition("=")[0]) for text in overrides]
    return [text for text, name in names if name.split(".")[0].split("/")[0] not in AS_IT_STANDS]


def failing(record: Mapping[str, Any]) -> list[str]:
    """The ids of the claims that fail a run, given what its result.json holds: exit code 3 where there are any.

    Gated claims that do not hold, and gated claims whose needs are met and that nothing measured; none of them where the
    experiment was changed (see `changed`).
    """
    if changed(record.get("overrides", ())):
        return []
    gated = (claim for claim in record["claims"] if claim["gate"])
    return [claim["id"] for claim in gated if claim["holds"] is False or claim.get("unmeasured")]


def verdict(claim: Mapping[str, Any], value: float) -> bool | None:
    """Whether a finite value meets the claim's threshold; None for a reported claim."""
    return None if claim["op"] == "report" else bool(COMPARE[claim["op"]](value, claim["threshold"]))


def unmet(claim: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a claim requires and these data records do not give."""
    return [need for need in claim["requires"] if not available(need, data)]


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
