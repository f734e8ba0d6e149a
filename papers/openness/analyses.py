"""What is counted and tested on a list of profiles: O1, O2, the trend, the licences, the risks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from papers.openness import data, licences, scales, stats
from papers.openness.profile import Profile, interval_count
from papers.openness.rating import Rights, rated
from papers.openness.taxonomy import BY_ID, IDS, PRETRAINING_CODE, PRETRAINING_DATA, WEIGHTS

Rows = list[dict[str, Any]]


def counts(profiles: Sequence[Profile]) -> dict[str, Counter[str]]:
    """component -> how often each of "1" to "5", "Unknown" and "N/A" stands there."""
    return {
        name: Counter(str(p.level(name) or {"na": "N/A"}.get(p.ratings[name].status, "Unknown")) for p in profiles)
        for name in IDS
    }  # fmt: skip


def counts_off(profiles: Sequence[Profile], sample: str) -> int:
    """How many of the 84 counts differ from those that another program computed."""
    found = counts(profiles)
    expected = [row for row in data.rows("oracle_components") if row["sample"] == sample]
    return sum(
        int(row[key]) != found[row["component"]][key]
        for row in expected
        for key in ("1", "2", "3", "4", "5", "Unknown", "N/A")
    )


def scores_off(profiles: Sequence[Profile], tolerance: float = 1e-6) -> int:
    """How many of the 45 scores, bounds and numbers of applicable components differ from those computed beforehand."""
    known = data.by("oracle_scores", "slug")
    wrong = 0
    for p in profiles:
        row, ends = known[p.name], p.bounds or (np.nan, np.nan)
        same = (
            abs((p.score or 0.0) - float(row["score"])),
            abs(ends[0] - float(row["low"])),
            abs(ends[1] - float(row["high"])),
        )
        wrong += max(same) > tolerance or p.n_applicable != int(row["applicable"])
    return wrong


def by_year(profiles: Sequence[Profile]) -> dict[str, list[float]]:
    """year -> the scores of the models released in it."""
    found: dict[str, list[float]] = {}
    for p in profiles:
        if p.score is not None and p.release:
            found.setdefault(p.release[:4], []).append(p.score)
    return found


# ---- O1 --------------------------------------------------------------------------------------------------------------


def gaps(profiles: Sequence[Profile]) -> Rows:
    """Weights against each other component, over models where both are rated: signs, exact test, Holm over the eleven."""
    rows: Rows = []
    for name in IDS:
        if name == WEIGHTS:
            continue
        pairs = [(p.level(WEIGHTS), p.level(name)) for p in profiles]
        differences = [a - b for a, b in pairs if a is not None and b is not None]
        test = stats.sign_test(differences)
        rows.append({"component": name, "n": len(differences), "mean_gap": float(np.mean(differences)) if differences else 0.0,
                     "more_open": test.plus, "less_open": test.minus, "p": test.p})  # fmt: skip
    for row, adjusted in zip(rows, stats.holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = adjusted
    return rows


def gaps_off(rows: Rows, sample: str) -> int:
    """How many of the rows differ from those computed beforehand."""
    expected = {row["component"]: row for row in data.rows("oracle_components") if row["sample"] == sample and row["n"]}
    wrong = 0
    for row in rows:
        known = expected[row["component"]]
        same = (row["n"], row["more_open"], row["less_open"]) == (
            int(known["n"]),
            int(known["more"]),
            int(known["less"]),
        )
        wrong += not same or abs(row["mean_gap"] - float(known["mean_gap"])) > 1e-6
    return wrong


def public(profiles: Sequence[Profile], name: str, at_least: int = 3) -> list[Profile]:
    """The models in which a component is surely at this level or above."""
    return [p for p in profiles if (p.level(name) or 0) >= at_least]


def headline(profiles: Sequence[Profile]) -> dict[str, int]:
    """O1 in numbers: public weights, and what stays closed behind them."""
    opened = public(profiles, WEIGHTS)
    safety = ("evaluation.code.safety", "evaluation.data.safety")
    return {
        "weights_public": len(opened),
        "weights_5": len(public(profiles, WEIGHTS, 5)),
        "weights_api": sum(p.level(WEIGHTS) == 2 for p in profiles),
        "weights_closed": sum(p.level(WEIGHTS) == 1 for p in profiles),
        "closed_data_behind": sum(p.level(PRETRAINING_DATA) == 1 for p in opened),
        "closed_code_behind": sum(p.level(PRETRAINING_CODE) == 1 for p in opened),
        "safety_code_public": len(public(profiles, safety[0], 2)),
        "safety_data_public": len(public(profiles, safety[1], 3)),
        "safety_data_rated": sum(p.level(safety[1]) is not None for p in profiles),
        "alignment_public": sum(len(public(profiles, f"training.{kind}.alignment", 2)) for kind in ("code", "data")),
        "fully_open": sum(p.label == "fully open" for p in profiles),
        "fully_closed": sum(p.label == "fully closed" for p in profiles),
    }


def by_mode(profile: Profile, mode: str) -> Profile:
    """The profile with each component whose licence is named rated anew under a licence mode."""
    for name, licence in list(profile.licences.items()):
        level = licences.level(licence, BY_ID[name].kind, mode)
        if level is not None:
            profile = profile.with_rating(name, rated(BY_ID[name].kind, level), licence)
    return profile


def na_as_closed(profile: Profile) -> Profile:
    """A wrong reading on purpose: what a model does not have counted as not released."""
    for name, rating in profile.ratings.items():
        if rating.status == "na":
            profile = profile.with_rating(name, rated(rating.kind, 1))
    return profile


def unknown_as_closed(profile: Profile) -> Profile:
    """A wrong reading on purpose: what could not be determined counted as not released."""
    for name, rating in profile.ratings.items():
        if rating.status == "unknown":
            profile = profile.with_rating(name, rated(rating.kind, 1))
    return profile


def sensitivity(make: Callable[..., list[Profile]]) -> Rows:
    """The headlines under other choices: corrections, licence mode, what N/A and Unknown mean, and without each developer."""
    base = make()
    variants: dict[str, list[Profile]] = {
        "as printed": base,
        "XGLM's cell moved": make(overlays=["xglm"]),
        "Grok's weights open": make(overlays=["grok"]),
        "licences by the criteria": [by_mode(p, "criteria") for p in base],
        "N/A read as closed (wrong)": [na_as_closed(p) for p in base],
        "Unknown read as closed": [unknown_as_closed(p) for p in base],
    }
    rows: Rows = []
    for name, profiles in variants.items():
        gap = {row["component"]: row for row in gaps(profiles)}
        rho = arena(profiles)["score"]
        month = [months(p) for p in profiles]
        rows.append({"variant": name, **{key: headline(profiles)[key] for key in ("weights_public", "closed_data_behind", "safety_data_public")},
                     "public_weights_span": "{}-{}".format(*interval_count(profiles, WEIGHTS, 3)),
                     "open_data_span": "{}-{}".format(*interval_count(profiles, PRETRAINING_DATA, 4)),
                     "p_holm_data": gap[PRETRAINING_DATA]["p_holm"], "rho_arena": rho.value,
                     "tau_month": stats.kendall(month, [p.score or 0.0 for p in profiles]).value})  # fmt: skip
    left_out = [
        [p for p in base if p.about["developer"] != who] for who in sorted({p.about["developer"] for p in base})
    ]
    rhos = [arena(profiles)["score"].value for profiles in left_out]
    holms = [next(r["p_holm"] for r in gaps(profiles) if r["component"] == PRETRAINING_DATA) for profiles in left_out]
    for name, pick in (("least, one developer left out", min), ("most, one developer left out", max)):
        rows.append({"variant": name, "p_holm_data": pick(holms), "rho_arena": pick(rhos)})
    return rows


# ---- O2 and the trend ------------------------------------------------------------------------------------------------


def months(profile: Profile) -> int:
    """12 x year + month of the release."""
    year, month = (profile.release or "0-0").split("-")
    return 12 * int(year) + int(month)


def rated_in_arena(profiles: Sequence[Profile], direct: bool = False) -> list[tuple[Profile, float]]:
    """Models with an Arena rating. direct: only those matched themselves, not through a derivative."""
    cross, rating = data.by("crosswalk", "slug"), data.by("arena", "model")
    found = []
    for p in profiles:
        row = cross.get(p.name)
        if row and row["arena"] and (not direct or row["arena_relation"] == "direct"):
            found.append((p, float(rating[row["arena"]]["rating"])))
    return found


def arena(
    profiles: Sequence[Profile], resamples: int = 0, generator: np.random.Generator | None = None
) -> dict[str, Any]:
    """O2: rank correlation of score, and of weights alone, with the Arena rating; means on both sides of public weights."""
    pairs = [(p, elo) for p, elo in rated_in_arena(profiles) if p.score is not None]
    direct = [(p, elo) for p, elo in rated_in_arena(profiles, direct=True) if p.score is not None]
    weights = [(p, elo) for p, elo in pairs if p.level(WEIGHTS) is not None]
    low = [elo for p, elo in weights if (p.level(WEIGHTS) or 0) <= 2]
    high = [elo for p, elo in weights if (p.level(WEIGHTS) or 0) >= 3]
    best = {
        level: max((elo, p.name) for p, elo in weights if p.level(WEIGHTS) == level)
        for level in sorted({p.level(WEIGHTS) or 0 for p, _ in weights})
    }
    return {
        "score": stats.spearman([p.score or 0.0 for p, _ in pairs], [elo for _, elo in pairs], resamples, generator),
        "direct": stats.spearman([p.score or 0.0 for p, _ in direct], [elo for _, elo in direct], resamples, generator),
        "weights": stats.spearman([p.level(WEIGHTS) or 0 for p, _ in weights], [elo for _, elo in weights], resamples, generator),
        "low": low,
        "high": high,
        "best": best,
        "pairs": [(p.name, p.score, p.level(WEIGHTS), elo) for p, elo in pairs],
    }  # fmt: skip


def trend(profiles: Sequence[Profile]) -> dict[str, stats.Correlation]:
    """Kendall's tau-b of the month of release with score and with the level of weights."""
    month = [months(p) for p in profiles]
    return {
        "score": stats.kendall(month, [p.score or 0.0 for p in profiles]),
        "weights": stats.kendall(month, [p.level(WEIGHTS) or 0 for p in profiles]),
    }


def trend_by_component(profiles: Sequence[Profile]) -> Rows:
    """Kendall's tau-b of month and level for each component that has two levels or more, with Holm over them."""
    rows: Rows = []
    for name in IDS:
        pairs = [(months(p), level) for p in profiles if (level := p.level(name)) is not None]
        if len({level for _, level in pairs}) > 1:
            found = stats.kendall([month for month, _ in pairs], [level for _, level in pairs])
            rows.append({"component": name, "n": found.n, "tau": found.value, "p": found.p})
    for row, adjusted in zip(rows, stats.holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = adjusted
    return rows


def levels_by_year(profiles: Sequence[Profile]) -> Rows:
    """Mean level of each component among the models of a year where it is rated."""
    years = sorted({(p.release or "")[:4] for p in profiles})
    rows: Rows = []
    for year in years:
        those = [p for p in profiles if (p.release or "").startswith(year)]
        row: dict[str, Any] = {"year": year, "n": len(those)}
        for name in IDS:
            levels = [level for p in those if (level := p.level(name)) is not None]
            row[name] = float(np.mean(levels)) if levels else None
        rows.append(row)
    return rows


# ---- licences --------------------------------------------------------------------------------------------------------


def licensed_cells(profiles: Sequence[Profile]) -> Rows:
    """Every cell with a licence label: the printed level beside those of the two modes."""
    rows: Rows = []
    for p in profiles:
        for name, label in p.licences.items():
            kind = BY_ID[name].kind
            known = licences.find(label)
            rows.append({"model": p.name, "component": name, "label": label, "licence": known.id if known else "",
                         "printed": p.level(name), "criteria": licences.level(label, kind), "published": licences.level(label, kind, "published")})  # fmt: skip
    return rows


def differing(rows: Rows) -> Rows:
    """The labels whose licence the criteria rate otherwise than the table prints, with the number of cells."""
    found = Counter(
        (r["label"], r["licence"], r["criteria"], r["printed"])
        for r in rows
        if r["criteria"] is not None and r["criteria"] != r["printed"]
    )
    keys = ("label", "licence", "criteria", "printed")
    return [
        dict(zip(keys, case, strict=True)) | {"cells": n, "rights": licences.table()[case[1]].rights.bits}
        for case, n in found.most_common()
    ]


def conditions(rights: Rights) -> str:
    """Commerce, modification and another licence for derivatives as "CML", a dash for each that is not given."""
    given = rights.commercial, rights.modify, rights.relicense_derivative
    return "".join(letter if bit else "-" for letter, bit in zip("CML", given, strict=True))


def fits_category(category: str, rights: Rights) -> bool:
    """Whether the points are those that a ScanCode category stands for."""
    points = {"Permissive": {5}, "Public Domain": {5}, "Copyleft": {4}, "Copyleft Limited": {4}}
    return rights.points in points.get(category, {0, 1, 2, 3, 4})


# ---- agreement -------------------------------------------------------------------------------------------------------

BINARY = {  # name -> our component, from which level, the MOF component
    "weights": (WEIGHTS, 5, "Model parameters (Final)"),
    "pretraining_data": (PRETRAINING_DATA, 4, "Datasets"),
    "training_code": (PRETRAINING_CODE, 5, "Training code"),
    "inference_code": ("deployment.code.inference", 5, "Inference code"),
    "evaluation_code": ("evaluation.code.general", 5, "Evaluation code"),
}


def against_mof(profiles: Sequence[Profile]) -> dict[str, Any]:
    """The models that the Model Openness Tool has too: rank correlation with progress to class I, kappa of five components."""
    tool = {m["file"]: scales.mof(m["licences"]) for m in scales.mof_models()}
    cross = data.by("crosswalk", "slug")
    pairs = [(p, tool[cross[p.name]["mof"]]) for p in profiles if cross[p.name]["mof"]]
    score = stats.spearman([p.score or 0.0 for p, _ in pairs], [t["progress"][1] for _, t in pairs])
    kappas: Rows = []
    for name, (ours, level, theirs) in BINARY.items():
        rated_ = [
            ((p.level(ours) or 0) >= level, t["components"][theirs] == "included")
            for p, t in pairs
            if p.level(ours) is not None
        ]
        a, b = [int(x) for x, _ in rated_], [int(y) for _, y in rated_]
        both = Counter(zip(a, b, strict=True))
        kappas.append({"component": name, "n": len(a), "neither": both[0, 0], "mof_only": both[0, 1], "ours_only": both[1, 0],
                       "both": both[1, 1], "kappa": stats.cohen_kappa(a, b), "alpha": stats.krippendorff_alpha([a, b], "nominal")})  # fmt: skip
    thirds = stats.terciles([p.score or 0.0 for p, _ in pairs]), stats.terciles([t["progress"][1] for _, t in pairs])
    return {"n": len(pairs), "score": score, "kappas": kappas, "kappa_thirds": stats.cohen_kappa(*thirds, weights="quadratic"),
            "alpha_thirds": stats.krippendorff_alpha(thirds, "ordinal"),
            "pairs": [(p.name, p.score, t["progress"][1], t["class"]) for p, t in pairs]}  # fmt: skip


def against_index(
    profiles: Sequence[Profile], permutations: int = 0, generator: np.random.Generator | None = None
) -> dict[str, Any]:
    """The models that the openness index of 2023 has, three through a derivative: rank correlation of the totals."""
    index, cross = data.by("index_2023", "file"), data.by("crosswalk", "slug")
    pairs = [(p, scales.eosai(index[cross[p.name]["index"]])["total"]) for p in profiles if cross[p.name]["index"]]
    a, b = [p.score or 0.0 for p, _ in pairs], [total for _, total in pairs]
    found = {"n": len(pairs), "score": stats.spearman(a, b), "pairs": [(p.name, p.score, total) for p, total in pairs],
             "kappa_thirds": stats.cohen_kappa(stats.terciles(a), stats.terciles(b), weights="quadratic")}  # fmt: skip
    if permutations:
        found["p_permutation"] = stats.spearman(a, b, permutations=permutations, generator=generator).p
    return found


def against_osaid(profiles: Sequence[Profile]) -> Rows:
    """The models on which OSI gave a verdict, beside the proxy's."""
    cross = data.by("crosswalk", "slug")
    return [
        {"model": p.name, "osi": cross[p.name]["osaid"], "proxy": (found := scales.osaid(p))["pass"],
         "agrees": found["pass"] == (cross[p.name]["osaid"] == "pass"), "why": "; ".join(found["why"])}
        for p in profiles if cross[p.name]["osaid"]
    ]  # fmt: skip


def baselines(profiles: Sequence[Profile]) -> Rows:
    """Simpler raters beside the score: how many models each calls open, and its rank correlation with the score."""
    known = [p for p in profiles if p.score is not None]
    raters: dict[str, Callable[[Profile], float | None]] = {
        "open weights (>= 3)": lambda p: _number(scales.open_weights(p)),
        "licence tag is OSI-approved": lambda p: _number(scales.licence_only(p)),
        "gradient of release": lambda p: None if (step := scales.solaiman(p)) is None else scales.GRADIENT.index(step),
        "OSAID proxy": lambda p: _number(scales.osaid(p)["pass"]),
        "MOF class I progress, from levels": lambda p: scales.mof(p)["progress"][1],
    }
    rows: Rows = []
    for name, rater in raters.items():
        pairs = [(p.score or 0.0, value) for p in known if (value := rater(p)) is not None]
        values = [value for _, value in pairs]
        agreement = stats.spearman([a for a, _ in pairs], values)
        top = max(values)
        rows.append({"rater": name, "n": len(pairs), "at_the_top": sum(value == top for value in values), "rho_with_score": agreement.value,
                     "gamma_with_score": stats.gamma([a for a, _ in pairs], values)})  # fmt: skip
    return rows


def _number(value: bool | None) -> float | None:
    return None if value is None else float(value)


# ---- risks -----------------------------------------------------------------------------------------------------------


def risk_matrix(claims: Sequence[Mapping[str, str]]) -> Rows:
    """area x side, with how many claims lean to open, closed or neither, and how many of them are unverified."""
    rows: Rows = []
    for area in dict.fromkeys(claim["area"] for claim in claims):
        for side in dict.fromkeys(claim["side"] for claim in claims):
            those = [claim for claim in claims if (claim["area"], claim["side"]) == (area, side)]
            if those:
                leans = Counter(claim["leans"] for claim in those)
                rows.append({"area": area, "side": side, **{key: leans[key] for key in ("open", "closed", "neutral")},
                             "unverified": sum(claim["evidence"] == "recalled_unverified" for claim in those)})  # fmt: skip
    return rows
