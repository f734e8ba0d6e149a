"""The other scales, and simpler raters, beside the paper's: MOF, the openness index, OSAID, the gradient of release.

MOF: 17 components; a class needs all required ones included under a licence that the tool counts as open. Index: features
that are open (1), partial (1/2) or closed (0). OSAID: pass or fail; from twelve levels only a proxy can be had.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from papers.openness import data, documents, licences
from papers.openness.profile import Profile
from papers.openness.taxonomy import IDS, INFERENCE, PRETRAINING_CODE, PRETRAINING_DATA, WEIGHTS

RULES = ("current", "legacy")
REPORT, PAPER, LIBRARIES = "Technical report", "Research paper", "Supporting libraries and tools"
NOT_A_LICENCE = ("component component not included", "component not include", "component not include.")
VALUE = {"open": 1.0, "partial": 0.5, "closed": 0.0}
INDEX = {
    "2023": ("opencode", "llmdata", "llmweights", "rldata", "rlweights", "license", "code", "architecture", "preprint", "paper", "modelcard",
             "datasheet", "package", "api"),
    "2026": ("datasources_basemodel", "datasources_endmodel", "weights_basemodel", "weights_endmodel", "trainingcode", "code",
             "hardware_architecture", "preprint", "paper", "modelcard", "datasheet", "licenses"),
}  # fmt: skip


# ---- MOF -------------------------------------------------------------------------------------------------------------


@cache
def _spec() -> Mapping[str, data.Row]:
    return data.by("mof_components", "component")


@cache
def _open() -> frozenset[str]:
    return frozenset(row["licence"] for row in data.rows("mof_open") if row["open"] == "1")


def mof_open(licence: str) -> bool:
    """Whether the tool counts a licence as open, its known slip included: PDDL-1.0, CC-PDDC and C-UDA-1.0 are not.

    (Its list of open data licences spells the first ODC-PDDL-1.0, which is no SPDX id.)
    """
    return licence in _open()


def mof_licences(raw: Mapping[str, Any]) -> dict[str, str]:
    """The licence of each component that a MOF file lists: its own where the key is set, else of its type, else of all; or ""."""
    release = raw["release"]
    overall = release.get("license") if isinstance(release.get("license"), dict) else {}

    def shared(kind: str) -> str:
        for key in (kind, "distribution"):
            part = overall.get(key)
            if isinstance(part, dict) and isinstance(part.get("name"), str) and part["name"]:
                return part["name"]
        return ""

    found = {}
    for part in release["components"]:
        name = part.get("name") if isinstance(part, dict) else None
        if not isinstance(name, str) or name not in _spec():
            continue
        own = part.get("license")
        found[name] = (own if isinstance(own, str) else "") if "license" in part else shared(_spec()[name]["type"])
    return found


def mof(source: Any, rule: str = "current") -> dict[str, Any]:
    """The MOF class of a file of the Model Openness Tool, of a mapping component -> licence, or of a profile.

    Returns class (0 none, 3, 2 or 1), progress {3, 2, 1: per cent of what each class requires, not gated by the class
    below} and components {name: included | invalid | unlicensed | missing}. rule: "legacy" requires supporting libraries and
    grants no reduction of class I. A profile shows no documentation, so what it gives is a lower bound: see `unseen`.
    """
    if rule not in RULES:
        raise ValueError(f"rule is {rule!r}: choose {', '.join(RULES)}")
    unseen: list[str] = []
    if isinstance(source, Profile):
        listing = mof_of_profile(source)
        unseen = [
            name
            for name, row in _spec().items()
            if row["required"] == "1" and name not in {*MOF_FROM_PROFILE, *source.documents}
        ]
    elif isinstance(source, Mapping):
        listing = dict(source)
    else:
        document = documents.read_yaml(Path(source))
        release = document.value.get("release")
        if not isinstance(release, dict) or not isinstance(release.get("components"), list):
            raise ValueError(
                f"{Path(source).name} is no file of the Model Openness Tool: release.components is missing"
            )
        listing = mof_licences(document.value)
    status = {name: _status(listing.get(name)) if name in listing else "missing" for name in _spec()}
    return {"class": _mof_class(progress := _progress(status, rule)), "progress": progress, "components": status, "unseen": unseen}  # fmt: skip


def _status(licence: str | None) -> str:
    if not licence:
        return "unlicensed"
    return "included" if mof_open(licence) else "invalid"


def _progress(status: Mapping[str, str], rule: str) -> dict[int, float]:
    included = {name for name, found in status.items() if found == "included"}
    paper_for_report = REPORT not in included and PAPER in included
    found = {}
    for level in (3, 2, 1):
        required = {name for name, row in _spec().items() if int(row["class"]) >= level and _required(row, rule)}
        have, needed = len(included & required), len(required)
        if paper_for_report and level > 1:
            have += 1
        elif paper_for_report and rule == "current":
            needed -= 1
        found[level] = min(100.0, 100.0 * have / needed)
    return found


def _required(row: data.Row, rule: str) -> bool:
    return row["required"] == "1" or (rule == "legacy" and row["component"] == LIBRARIES)


def _mof_class(progress: Mapping[int, float]) -> int:
    reached = 0
    for level in (3, 2, 1):
        if progress[level] < 100.0 - 1e-9:
            break
        reached = level
    return reached


MOF_FROM_PROFILE = {
    "Model architecture": WEIGHTS, "Model parameters (Final)": WEIGHTS, "Inference code": INFERENCE, "Training code": PRETRAINING_CODE,
    "Data preprocessing code": PRETRAINING_CODE, "Datasets": PRETRAINING_DATA, "Evaluation code": "evaluation.code.general",
    "Evaluation data": "evaluation.data.utility",
}  # fmt: skip


def mof_of_profile(profile: Profile) -> dict[str, str]:
    """component -> licence id, of the MOF components that the twelve show; and of documents that are stated."""
    found = {name: licence for name, licence in profile.documents.items() if name in _spec()}
    for component, name in MOF_FROM_PROFILE.items():
        level = profile.level(name)
        if level is not None and level < 3 and not (level == 2 and name.split(".")[1] == "code"):
            continue
        licence = profile.licences.get(name)
        if licence is None:
            continue
        ids = licences.ids(licence)
        open_ids = [found_id for found_id in ids if mof_open(found_id)]
        found[component] = ids[0] if len(open_ids) == len(ids) else next(i for i in ids if i not in open_ids)
    return found


def mof_models() -> list[dict[str, Any]]:
    """The tool's 273 models: file, name, licences as resolved, and the printed progress and class to compare with."""
    names = {row["id"]: row["component"] for row in data.rows("mof_components")}
    found = []
    for row in data.rows("mof_models"):
        pairs = [part.partition("=") for part in row["licences"].split(";") if part]
        printed = {3: float(row["class3"]), 2: float(row["class2"]), 1: float(row["class1"])}
        found.append({"file": row["file"], "name": row["name"], "licences": {names[key]: value for key, _, value in pairs},
                      "printed": printed, "printed_class": int(row["class"])})  # fmt: skip
    return found


def as_printed(model: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether class and progress are those that the tool's own rules give."""
    near = all(abs(found["progress"][k] - model["printed"][k]) < 1e-3 for k in (1, 2, 3))
    return near and found["class"] == model["printed_class"]


# ---- the index -------------------------------------------------------------------------------------------------------


def features_of(raw: Any, depth: int = 4) -> dict[str, str]:
    """feature -> open | partial | closed, of an index file (nested or not) or a row of its table."""
    known = {*INDEX["2023"], *INDEX["2026"]}
    letters = {"o": "open", "p": "partial", "c": "closed"}
    found: dict[str, str] = {}
    if not isinstance(raw, Mapping) or depth == 0:
        return found
    for key, value in raw.items():
        inner = value.get("class") if isinstance(value, Mapping) else value
        inner = letters.get(inner, inner) if isinstance(inner, str) else None
        if key in known and inner in VALUE:
            found[key] = inner
        elif isinstance(value, Mapping):
            found |= features_of(value, depth - 1)
    return found


def eosai(source: Any) -> dict[str, Any]:
    """Total and features of an index file or row, 14 of 2023 or 12 of 2026, told from the features that are there."""
    if isinstance(source, (str, Path)):
        path = Path(source)
        raw: Any = documents.read_yaml(path).value
    else:
        raw, path = source, None
    found = features_of(raw)
    matching = [version for version, names in INDEX.items() if set(names) <= set(found)]
    if not matching:
        closest = max(INDEX, key=lambda version: len(set(INDEX[version]) & set(found)))
        missing = [name for name in INDEX[closest] if name not in found]
        raise ValueError(f"{path.name if path else 'this'} is no entry of the index: {', '.join(missing[:4])} missing")
    version = matching[0]
    features = {name: found[name] for name in INDEX[version]}
    return {
        "total": sum(VALUE[value] for value in features.values()),
        "features": features,
        "version": version,
        "of": len(features),
    }


# ---- OSAID and simpler raters ----------------------------------------------------------------------------------------


def osaid(profile: Profile) -> dict[str, Any]:
    """A proxy of OSI's definition on the twelve levels: weights, inference code and pre-training code all without restriction.

    Data information is not in the levels; share-alike, which OSI accepts, is level 4 by the criteria. So `proxy` is True.
    """
    why = [
        f"{name} is {profile.ratings[name].code}, not {profile.ratings[name].kind[0].upper()}5"
        for name in (WEIGHTS, INFERENCE, PRETRAINING_CODE)
        if profile.level(name) != 5
    ]
    return {"pass": not why, "why": why, "proxy": True}


def open_weights(profile: Profile) -> bool | None:
    """The one-bit rater: weights can be downloaded. None where that is unknown."""
    rating = profile.ratings[WEIGHTS]
    if rating.low is None or rating.high is None:
        return None
    return True if rating.low >= 3 else False if rating.high < 3 else None


def licence_only(profile: Profile) -> bool | None:
    """What a hub's licence tag says: the licence of the weights is OSI-approved. None where no licence is known."""
    licence = profile.licences.get(WEIGHTS)
    if licence is None:
        return False if open_weights(profile) is False else None
    osi = {row["licence"] for row in data.rows("mof_open") if row["osi"] == "1"}
    try:
        return all(name in osi for name in licences.ids(licence))
    except ValueError:
        return None


GRADIENT = ("closed", "hosted", "api", "downloadable", "fully open")


def solaiman(profile: Profile, hosted: bool = False) -> str | None:
    """The gradient of release: closed, hosted, api, downloadable, fully open (of what is rated, all at 5). None: unknown."""
    weights = profile.level(WEIGHTS)
    if weights is None:
        return None
    if weights == 1:
        return "hosted" if hosted else "closed"
    if weights == 2:
        return "api"
    return "fully open" if all(profile.level(name) in (5, None) for name in IDS) else "downloadable"


def every(profile: Profile) -> dict[str, Any]:
    """One row with what each scale says of a profile."""
    tool = mof(profile)
    return {
        "model": profile.name,
        "score": profile.score,
        "label": profile.label,
        "open_weights": open_weights(profile),
        "licence_only": licence_only(profile),
        "gradient": solaiman(profile),
        "osaid_proxy": osaid(profile)["pass"],
        "mof_class": tool["class"],
        "mof_progress_3": tool["progress"][3],
        "mof_progress_1": tool["progress"][1],
    }
