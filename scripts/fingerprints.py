"""What a recorded result depends on, and whether it still stands.

A fingerprint is a suspicion: it changes where code that computes, a package or a setting has changed. A change can be
declared as not touching any figure, in the paper's record/same_figures.yaml; a run of all tables measures such results anew.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from common import cards, catalogue, files, settings
from common.data import locate, registry
from scripts import closure

# of common/: what parses, orders, judges, fetches and prints; nothing in it enters a figure
FRAME = ("data/download", "cards", "catalogue", "claims", "cli", "command", "configs", "errors", "exits", "experiment", "lazy", "line", "loggers",
         "optional", "processes", "progress", "race", "report", "result", "settings", "signals", "sweep")  # fmt: skip


def fingerprint(paper: str, experiment: str) -> str:
    """Sixteen digits for what an experiment computes with: code, versions of its packages, settings."""
    verb = catalogue.verb_of(paper, experiment)
    paths = code(paper, verb)
    sums = sorted((os.path.relpath(path, place), files.sha256_of(path)) for path, place in paths.items())
    composed = settings.compose(paper, verb, [f"+exp={experiment}"])
    return files.digest([sums, versions(paths), settings_of(composed)])


def code(paper: str, verb: str) -> dict[Path, Path]:
    """The files that a verb computes with -> the folder they are named from."""
    own = catalogue.folder_of(f"papers.{paper}")
    frame = [files.ROOT / "common" / f"{name}.py" for name in FRAME]
    found = closure.closure([own / f"{verb}.py"], leave_out=frame)
    return {path: own.parent.parent if path.is_relative_to(own) else files.ROOT for path in found}


def settings_of(config: Any) -> dict[str, Any]:
    """A composed config without the keys that say where it runs."""
    return {key: value for key, value in files.plain(config).items() if key not in catalogue.WHERE_ONLY}


def versions(paths: Mapping[Path, Path]) -> dict[str, str]:
    """Of Python (its first two numbers) and of the distributions that these files import and that are installed."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for package in closure.packages(paths):
        for distribution in distributions().get(package, []):
            found[distribution.lower()] = importlib.metadata.version(distribution).partition("+")[0]
    return found


@cache
def distributions() -> Mapping[str, list[str]]:
    """Top-level package -> the distributions that bring it."""
    return importlib.metadata.packages_distributions()


# ---- does a result still stand? --------------------------------------------------------------------------------------


def why_stale(paper: str, experiment: str, run: Mapping[str, Any] | None, now: str) -> str | None:
    """Why a recorded run has to be made again, given its fingerprint now; None where it stands."""
    if run is None:
        return "it is not recorded"
    if why := changed_data(run["data"]):
        return why
    known = run["fingerprints"]
    # without its real data a run here would make another record, which must not be made at each call
    here = all(found_sum(name) for name, used in run["data"].items() if used["source"] == "real")
    candidates = [known[run["kind"]]] if here and run["kind"] in known else list(known.values())
    if any(now in same_as(paper, experiment, old) for old in candidates):
        return None
    return "its code, its settings or a package has changed"


def changed_data(data: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What of a run's data is here and differs from what it used."""
    for name, used in data.items():
        found = found_sum(name)
        if found is None:
            continue
        if used["source"] == "synthetic":
            return f"{name} is here now, where made-up data stood in"
        if used["sha256"] != found:
            return f"{name} has changed"
    return None


def found_sum(name: str) -> str | None:
    """The sum of a data set, of the standard library or of a model of ours as it is here; None for anything else."""
    if name == "stdlib":
        from common.data import stdlib

        return stdlib.load().sha256
    if name in registry.entries():
        state, where = locate.status(name)
        return locate.combined_sha(registry.entry(name), Path(where)) if state == "found" else None
    weights = sorted((files.ROOT / "data" / "models" / name).glob("*.safetensors"))
    return files.sha256_of(weights[0]) if len(weights) == 1 else None


# ---- changes that touch no figure ------------------------------------------------------------------------------------


def declared(paper: str) -> list[dict[str, Any]]:
    """The entries of a paper's same_figures.yaml: experiment, from, to, reason, date. ValueError where it is wrong."""
    path = file(paper)
    if not path.exists():
        return []
    entries = cards.read(path) or []
    fields = {"experiment", "from", "to", "reason", "date"}
    if not isinstance(entries, list) or not all(isinstance(e, dict) and set(e) == fields for e in entries):
        raise ValueError(f"{path}: a list of {{experiment, from, to, reason, date}} is expected")
    if any(not str(entry["reason"]).strip() for entry in entries):
        raise ValueError(f"{path}: say why the figures are the same (reason)")
    return entries


def file(paper: str) -> Path:
    return catalogue.folder_of(f"papers.{paper}") / "record" / "same_figures.yaml"


def same_as(paper: str, experiment: str, start: str) -> set[str]:
    """The fingerprints that are declared to give the figures of this one, itself included."""
    reached, waiting = set(), [start]
    while waiting:
        now = waiting.pop()
        reached.add(now)
        steps = [e["to"] for e in declared(paper) if (e["experiment"], e["from"]) == (experiment, now)]
        waiting += [step for step in steps if step not in reached]
    return reached


def declare(paper: str, experiment: str, run: Mapping[str, Any], now: str, reason: str) -> None:
    """Write down that a change from what is recorded to what is here touches no figure."""
    old = run["fingerprints"].get(run["kind"]) or next(iter(run["fingerprints"].values()))
    entry = {"experiment": experiment, "from": old, "to": now, "reason": reason, "date": date.today().isoformat()}
    write(paper, [*declared(paper), entry])


def forget(paper: str, experiment: str) -> None:
    """Drop what was declared of an experiment: it has been measured anew."""
    if any(entry["experiment"] == experiment for entry in declared(paper)):
        write(paper, [entry for entry in declared(paper) if entry["experiment"] != experiment])


def write(paper: str, entries: list[dict[str, Any]]) -> None:
    if not entries:
        file(paper).unlink(missing_ok=True)
        return
    head = "# Fingerprints that are declared to give the same figures; `python -m scripts.tables --all` measures these anew.\n"
    lines = "".join(f"- {files.to_json(entry, indent=None)}" for entry in entries)  # JSON is YAML
    files.write_atomic(file(paper), head + lines)
