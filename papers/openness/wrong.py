"""Wrong readings on purpose: for each gated claim a variant that misses it, and the figure that the same count has there."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from papers.openness import analyses, baselines, data, folders, licences, scales, stats, synthetic
from papers.openness.analyses import headline, na_as_closed, unknown_as_closed
from papers.openness.profile import Profile, interval_count
from papers.openness.published import page, table
from papers.openness.rating import rated
from papers.openness.taxonomy import IDS, PRETRAINING_CODE, PRETRAINING_DATA, WEIGHTS


def api_as_closed(profile: Profile) -> Profile:
    """API access read as closed."""
    return profile.with_rating(WEIGHTS, rated("data", 1)) if profile.level(WEIGHTS) == 2 else profile


def figures() -> dict[str, float]:
    """claim id -> the figure of its wrong variant, on the shipped tables."""
    return {**_counted(), **_tested(), **_licences(), **_scales()}


def _counted() -> dict[str, float]:
    found: dict[str, float] = {}
    for sample, n in (("all45", "45"), ("icml40", "40")):
        profiles = table(sample)
        closed = [na_as_closed(p) for p in profiles]
        found |= {
            f"T.counts_{n}": analyses.counts_off(closed, sample),
            f"T.scores_{n}": analyses.scores_off(closed),
            f"T.rated_{n}": sum(p.n_rated for p in closed),
            f"T1.weights_{n}": len(analyses.public(profiles, WEIGHTS, 2)),
            f"T1.data_{n}": headline([unknown_as_closed(p) for p in profiles])["closed_data_behind"],
            f"T1.code_{n}": sum(p.level(PRETRAINING_CODE) == 1 for p in analyses.public(profiles, WEIGHTS, 2)),
            f"T2.signs_{n}": analyses.gaps_off(
                analyses.gaps([na_as_closed(unknown_as_closed(p)) for p in profiles]), sample
            ),
            f"T2.significant_{n}": sum(
                row["p_holm"] < 0.05 for row in analyses.gaps([na_as_closed(p) for p in profiles])
            ),
        }
    profiles = table()
    hints = [replace(p, hints={}) for p in profiles]
    safety = ("evaluation.code.safety", "evaluation.data.safety")
    return found | {
        "T.fully_open": headline([na_as_closed(p) for p in profiles])["fully_open"],
        "T.fully_closed": headline([api_as_closed(p) for p in profiles])["fully_closed"],
        "T.history": 0,
        "T.round_trips": sum(page(a) != page(b) for a, b in zip(hints, profiles, strict=True)),
        "T2.data_45": _holm(table("icml40"), PRETRAINING_DATA),
        "T2.code_40": _holm(profiles, PRETRAINING_CODE),
        "T3.safety_code": interval_count(profiles, safety[0], 2)[1],
        "T3.safety_data": len(analyses.public(table(overlays=["xglm"]), safety[1])),
        "T3.alignment": sum(interval_count(profiles, f"training.{kind}.alignment", 2)[1] for kind in ("code", "data")),
    }


def _holm(profiles: list[Profile], name: str) -> float:
    return next(row["p_holm"] for row in analyses.gaps(profiles) if row["component"] == name)


def _tested() -> dict[str, float]:
    profiles = table()
    pairs = analyses.rated_in_arena(profiles)
    arena = analyses.arena(profiles, 2000, np.random.default_rng(0))
    dates = [p.release or "" for p in profiles]
    order = {
        i: place for place, i in enumerate(sorted(range(len(dates)), key=lambda i: f"{dates[i][5:]}-{dates[i][:4]}"))
    }
    score = [p.score or 0.0 for p in profiles]
    found = {
        "T4.rho": analyses.arena([na_as_closed(p) for p in profiles])["score"].value,
        "T4.interval": arena["weights"].high,
        "T4.direct": arena["score"].value,
        "T4.closed": float(np.mean([elo for p, elo in pairs if (p.level(WEIGHTS) or 0) <= 3])),
        "T4.public": float(np.mean([elo for p, elo in pairs if p.level(WEIGHTS) == 5])),
        "T5.score": stats.kendall([order[i] for i in range(len(dates))], score).value,
        "T5.p": analyses.trend(analyses.public(profiles, WEIGHTS))["score"].p,
        "T5.weights": analyses.trend(table("icml40"))["weights"].value,
    }
    for key, name in (("data", PRETRAINING_DATA), ("code", PRETRAINING_CODE), ("weights", WEIGHTS)):
        for year in ("2022", "2023", "2024"):
            levels = [p.level(name) for p in profiles if (p.release or "")[:4] <= year and p.level(name) is not None]
            found[f"T5.{key}_{year}"] = float(np.mean(levels))  # type: ignore[arg-type]
    return found


def _licences() -> dict[str, float]:
    rows = analyses.licensed_cells(table())
    known = licences.table()
    naive = [licences.rights(row["licence"]) if row["licence"] else None for row in rows]
    return {
        "L.cells": sum(bool(row["licence"]) for row in rows),
        "L.published": sum(row["criteria"] == row["printed"] for row in rows),
        "L.criteria": sum(r is not None and (5 if r.points == 5 else 3) == row["printed"] for r, row in zip(naive, rows, strict=True)),
        "L.differ": sum(row["criteria"] != row["printed"] for row in rows),
        "L.conditions": sum(
            row["choosealicense"] == analyses.conditions(known[row["licence"]].in_mode("published")) for row in data.rows("licences")
        ),
        "L.scancode": sum(not analyses.fits_category(e.scancode, e.in_mode("published")) for e in known.values() if e.scancode),
    }  # fmt: skip


def _scales() -> dict[str, float]:
    profiles = table()
    by_criteria = [analyses.by_mode(p, "criteria") for p in profiles]
    models = scales.mof_models()
    listed = [scales.mof(_report_for_paper(m["licences"])) for m in models]
    any_licence = [scales.mof(dict.fromkeys(m["licences"], "MIT"))["class"] for m in models]
    cross = data.by("crosswalk", "slug")
    tool = {m["file"]: m["licences"] for m in models}
    found: dict[str, float] = {}
    for name, (ours, level, theirs) in analyses.BINARY.items():
        pairs = [
            ((p.level(ours) or 0) >= level, theirs in tool[cross[p.name]["mof"]])
            for p in profiles
            if cross[p.name]["mof"] and p.level(ours) is not None
        ]
        found[f"A.kappa_{name}"] = stats.cohen_kappa([int(a) for a, _ in pairs], [int(b) for _, b in pairs])
    osaid = [(scales.open_weights(p), cross[p.name]["osaid"] == "pass") for p in profiles if cross[p.name]["osaid"]]
    index = {year: data.rows(f"index_{year}") for year in ("2023", "2026")}
    return found | {
        "A.mof": analyses.against_mof(by_criteria)["score"].value,
        "A.index": analyses.against_index([na_as_closed(p) for p in profiles])["score"].value,
        "A.osaid": sum(bool(a) == b for a, b in osaid),
        "A.osaid_pass": sum(scales.osaid(p)["pass"] for p in by_criteria),
        **{
            f"A.index_{year}": sum(
                sum(row[key] == "o" for key in scales.INDEX[year]) == float(row["total"]) for row in rows
            )
            for year, rows in index.items()
        },
        "M.models": sum(scales.as_printed(m, f) for m, f in zip(models, listed, strict=True)),
        **{f"M.class_{name}": any_licence.count(k) for name, k in (("1", 1), ("2", 2), ("3", 3), ("none", 0))},
        "R.evidence": 0,
    }


def _report_for_paper(listing: Mapping[str, str]) -> dict[str, str]:
    """A paper that is listed, under whatever licence, taken for a report."""
    stands_in = scales.PAPER in listing and scales.REPORT not in listing
    return {**listing, **({scales.REPORT: "CC-BY-4.0"} if stands_in else {})}


def read_folders(models: int, draw: np.random.Generator, write: np.random.Generator) -> Mapping[str, float]:
    """The claims on made-up folders, by readers that a hurried person would write."""
    made = synthetic.draw(models, draw)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        synthetic.write(made, folder, write)
        one_table = bases = bounds = 0
        for one in made:
            clone = folder / "clones" / one.name
            one_table += (
                baselines.one_table(folders.classify(clone, manifest=folder / "manifests" / f"{one.name}.yaml"))
                == one.ratings
            )
            left_out, card = baselines.without_bases(clone), baselines.card_for_all(clone)
            for key in IDS:
                truth = one.ratings[key]
                bases += left_out[key].status == "rated" and left_out[key].level != truth.level
                low, high = truth.low, truth.high
                bounds += (
                    low is not None
                    and high is not None
                    and not ((card[key].low or 0) <= low and high <= (card[key].high or 0))
                )
    return {"K.exact": one_table, "K.contradicted": bases, "K.bounds": bounds}
