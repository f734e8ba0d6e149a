"""What is recorded of the papers: papers/<name>/record/results.json, and the claims as they stand by it.

A record holds what was measured: of each experiment when, where and with what, and the figure of each claim. Statements,
thresholds and verdicts come from claims.yaml at the time of reading.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import catalogue, claims, files, result
from common.errors import UserError

SCHEMA = 1
KINDS = ("real", "package", "synthetic")
MEASURED = ("id", "experiment", "metric", "value", "holds", "recorded_at", "data")
IF_ANY = ("needs", "interval", "machine", "versions")


def folder(paper: str) -> Path:
    return catalogue.folder_of(f"papers.{paper}") / "record"


def read(paper: str) -> dict[str, Any]:
    """A paper's record, empty where nothing is recorded. Raises UserError where it is damaged."""
    path = folder(paper) / "results.json"
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {"schema": SCHEMA, "paper": paper, "claims": [], "runs": {}}
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): check it out again, or delete it and record anew") from None


def write(recorded: Mapping[str, Any]) -> None:
    files.write_json(folder(recorded["paper"]) / "results.json", recorded)


# ---- putting a run into the record -----------------------------------------------------------------------------------


def add(recorded: dict[str, Any], experiment: str, fingerprint: str, run: result.Result) -> None:
    """Put a run into a paper's record.

    A claim that requires what is not here keeps what was measured for it before, with the machine it was measured on; so
    do the tables and figures of real data, where this run had none.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    paper, previous = recorded["paper"], recorded["runs"].get(experiment)
    kind = kind_of_run(run.data)
    less_real = previous is not None and KINDS.index(previous["kind"]) < KINDS.index(kind)
    where = {"machine": run.machine, "versions": run.versions}
    for claim in run.claims:
        entry: dict[str, Any] = {"experiment": experiment, "recorded_at": now, "data": kind_of_data(claim, run.data)}
        entry = {key: (claim | entry)[key] for key in MEASURED}
        if claim.get("interval"):
            entry["interval"] = claim["interval"]
        if needs := claims.unmet(claim, run.data):
            entry["needs"] = needs
        if less_real:
            entry |= where  # the run's own entry names another machine
        old = find(recorded, claim["id"], experiment)
        if needs and old and old["value"] is not None:
            if not less_real and previous:
                old |= {key: old.get(key, previous[key]) for key in where}
            continue
        recorded["claims"] = [c for c in recorded["claims"] if c is not old] + [entry]
    seen = (previous["fingerprints"] if previous else {}) | {kind: fingerprint}
    if less_real and previous:
        recorded["runs"][experiment] = previous | {"fingerprints": seen}
    else:
        recorded["runs"][experiment] = {
            "recorded_at": now,
            **where,
            "kind": kind,
            "fingerprints": seen,
            **{name: getattr(run, name) for name in ("git_commit", "seed", "wall_s", "peak_rss_mb")},
            "data": clean(run.data),
            "notes": [without_paths(note) for note in run.notes],
            "figures": copy_figures(paper, experiment, run),
            "metrics": run.metrics,
            "tables": run.tables,
        }
    order = [claim["id"] for claim in claims.read(paper)]
    kept = [claim for claim in recorded["claims"] if claim["id"] in order]
    recorded["claims"] = sorted(kept, key=lambda claim: (order.index(claim["id"]), claim["experiment"]))


def find(recorded: Mapping[str, Any], id: str, experiment: str) -> dict[str, Any] | None:
    """What is recorded of a claim in an experiment."""
    return next((c for c in recorded["claims"] if (c["id"], c["experiment"]) == (id, experiment)), None)


def differences(before: Mapping[str, Any], after: Mapping[str, Any], experiment: str) -> list[str]:
    """The claims of an experiment whose figures are not those they were, to the last digit; "tables" where those differ."""
    values = [
        {
            c["id"]: c["value"]
            for c in of["claims"]
            if c["experiment"] == experiment and not c["metric"].startswith("timings.")
        }
        for of in (before, after)
    ]
    changed = [id for id in values[0] if id in values[1] and values[0][id] != values[1][id]]
    runs = [of["runs"].get(experiment, {}).get("tables") for of in (before, after)]
    return [*changed, "tables"] if runs[0] is not None and runs[0] != files.plain(runs[1]) else changed


def copy_figures(paper: str, experiment: str, run: result.Result) -> list[str]:
    """Copy a run's figures into the record, in 256 colours; returns their paths below it."""
    target = folder(paper) / "figures" / experiment
    shutil.rmtree(target, ignore_errors=True)
    copied = []
    for figure in run.figures:
        copy_picture(run.folder / figure, target / Path(figure).name)
        copied.append(f"figures/{experiment}/{Path(figure).name}")
    return copied


def copy_picture(source: Path, target: Path) -> None:
    """Copy a picture in 256 colours: a third of the bytes."""
    from PIL import Image

    with files.atomic_path(target) as scratch, Image.open(source) as picture:
        picture.convert("RGB").quantize(256).save(scratch, format="PNG", optimize=True)


def without_paths(note: str) -> str:
    """A note as it may be published: without the folders of the machine it was made on."""
    return re.sub(r"(?<![\w:/.])/(?:[\w.+=-]+/)+([\w.+=-]+)", r"\1", note)


def clean(data: Mapping[str, Any]) -> dict[str, Any]:
    """Data records without the paths of the machine they were used on."""
    return {name: {"source": used["source"], "sha256": used["sha256"]} for name, used in data.items()}


def kind_of_data(claim: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """real, package or synthetic: of the data the claim requires, else of the least real data in the run (a claim on real
    data requires them)."""
    required = {name: data[name] for need in claim["requires"] if (name := need.partition("@")[0]) in data}
    if required:
        return kind_of_run(required)
    return max((kind_of_run({"": used}) for used in data.values()), key=KINDS.index, default="synthetic")


def kind_of_run(data: Mapping[str, Any]) -> str:
    """The most real kind of data in a run."""
    sources = {used["source"] for used in data.values()}
    return "real" if "real" in sources else "package" if {"package", "artefact"} & sources else "synthetic"


# ---- the claims as they stand ----------------------------------------------------------------------------------------


def current(paper: str, recorded: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every claim of a paper in the order of its claims file, judged by its thresholds as they are now.

    One entry for each experiment it was measured in. A claim that was never measured has one, with value and holds None
    and `needs`, what a run of it needs; one whose experiment is recorded, whose needs were met and that has no figure
    has `unmeasured: True`.
    """
    found = []
    for claim in claims.read(paper):
        entries = [entry for name in claim["experiments"] if (entry := standing(claim, name, recorded))]
        measured = [entry for entry in entries if entry["value"] is not None or entry["holds"] is False]
        found += measured or entries[:1] or [claim | never(claim, recorded)]
    return found


def standing(claim: dict[str, Any], experiment: str, recorded: Mapping[str, Any]) -> dict[str, Any] | None:
    """A claim with what is recorded of it in an experiment; None where that experiment is not recorded."""
    run = recorded["runs"].get(experiment)
    entry = find(recorded, claim["id"], experiment)
    if entry and entry["metric"] == claim["metric"]:
        found = claim | {key: entry[key] for key in MEASURED if key != "metric"}
        found |= {key: entry[key] for key in IF_ANY if key in entry}
        if entry["value"] is not None:
            found["holds"] = claims.verdict(claim, entry["value"])
        elif entry["holds"] is None and "needs" not in entry:
            found["unmeasured"] = True
        return found
    if run is None:
        return None
    # the claim is new, or of another metric than it was: the run may have measured it all the same
    judged, _ = claims.judge(
        [claim | {"experiments": [experiment]}], experiment, run.get("metrics", {}), {}, run["data"]
    )
    found = judged[0] | {
        "experiments": claim["experiments"],
        "experiment": experiment,
        "recorded_at": run["recorded_at"],
    }
    found["data"] = kind_of_data(claim, run["data"])
    if needs := claims.unmet(claim, run["data"]):
        found["needs"] = needs
    return found


def never(claim: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a claim that no recorded run has measured: what it needs, if only that its experiment is run."""
    used = {name for run in recorded["runs"].values() for name, data in run["data"].items() if data["source"] == "real"}
    needs = [need for need in claim["requires"] if need.partition("@")[0] not in used]
    experiment = claim["experiments"][0]
    nothing = {"value": None, "holds": None, "recorded_at": None, "data": None}
    return nothing | {"experiment": experiment, "needs": needs or [f"+exp={experiment}"]}


def unmeasured(paper: str, recorded: Mapping[str, Any]) -> list[str]:
    """The gated claims of recorded experiments whose needs were met and that have no figure: a misspelt metric, say."""
    return [claim["id"] for claim in current(paper, recorded) if claim["gate"] and claim.get("unmeasured")]


def summary(recorded: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """docs/results/results.json: every paper's claims and runs in one file for machines, without tables and figures.

    `generated`, `machine` and `versions` are those of the latest run; each run has its own.
    """
    runs = [run for record in recorded.values() for run in record["runs"].values()]
    latest = max(
        runs, key=lambda run: run["recorded_at"], default={"recorded_at": None, "machine": None, "versions": None}
    )
    short = ("recorded_at", "kind", "git_commit", "seed", "wall_s", "peak_rss_mb", "machine", "versions", "data")
    return {
        "schema": SCHEMA,
        "generated": latest["recorded_at"],
        "machine": latest["machine"],
        "versions": latest["versions"],
        "papers": {
            paper: {
                "wall_s": sum(run["wall_s"] for run in record["runs"].values()),
                "peak_rss_mb": max((run["peak_rss_mb"] for run in record["runs"].values()), default=None),
                "claims": current(paper, record),
                "runs": {name: {key: run[key] for key in short} for name, run in record["runs"].items()},
            }
            for paper, record in sorted(recorded.items())
        },
    }
