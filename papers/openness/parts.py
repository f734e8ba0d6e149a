"""The parts of the job, each an experiment on the table of the 45 models or on made-up folders: `part(cfg, run)`."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from common.data.locate import locate
from common.errors import MissingData
from common.experiment import Run
from papers.openness import analyses, baselines, data, plots, report, scales, schema, stats, synthetic
from papers.openness.analyses import headline
from papers.openness.documents import Document
from papers.openness.folders import classify as classify_folder
from papers.openness.profile import Profile
from papers.openness.published import from_long, from_wide, long, page, read_cell, wide
from papers.openness.published import table as published_table
from papers.openness.rating import Rating
from papers.openness.taxonomy import IDS, INFERENCE, PRETRAINING_CODE, PRETRAINING_DATA, WEIGHTS


def tables(run: Run) -> None:
    """Say that the shipped tables are used."""
    run.use_data("papers.openness.tables", "real", "papers/openness/tables", data.fingerprint())


def _table(cfg: Any, sample: str) -> list[Profile]:
    return published_table(sample, overlays=list(cfg.overlays))


def table(cfg: Any, run: Run) -> None:
    """The table itself: counts, scores, labels, revisions, its forms and their round trips."""
    tables(run)
    rows = []
    for sample in ("all45", "icml40"):
        profiles = _table(cfg, sample)
        run.log({f"table.{sample}": {"counts_off": analyses.counts_off(profiles, sample), "scores_off": analyses.scores_off(profiles),
                                     "models": len(profiles), **{status: _cells(profiles, status) for status in ("rated", "na", "unknown")}}})  # fmt: skip
        for name, counted in analyses.counts(profiles).items():
            rows.append(
                {
                    "sample": sample,
                    "component": name,
                    **{key: counted[key] for key in ("1", "2", "3", "4", "5", "Unknown", "N/A")},
                }
            )
    run.table("counts", rows)
    profiles = _table(cfg, "all45")
    run.log({"table": {key: headline(profiles)[key] for key in ("fully_open", "fully_closed")}})
    run.log({"table.round_trips_off": _round_trips(profiles, cfg, run)})
    run.log(
        {
            "table.history": {
                "cells": len(data.rows("history")),
                "replayed": _replayed(),
                "wrong_last_revision": _replayed(replay=False),
            }
        }
    )
    run.table("history", [dict(row) for row in data.rows("history")])
    run.table("models", wide(profiles))
    for name, make in (
        ("openness.md", report.markdown),
        ("openness.html", report.html),
        ("openness.csv", report.table_csv),
        ("openness_long.csv", report.long_csv),
    ):
        (run.dir / name).write_text(make(profiles), encoding="utf-8")
    run.figure("table", plots.strips(profiles))


def _cells(profiles: list[Profile], status: str) -> int:
    return sum(rating.status == status for p in profiles for rating in p.ratings.values())


def _round_trips(profiles: list[Profile], cfg: Any, run: Run) -> int:
    """How many cells come back otherwise from the page, the long and wide tables and JSON."""
    wrong = 0
    by_long = from_long(long(profiles))
    by_wide = from_wide([dict(row.items()) for row in wide(profiles)])
    with tempfile.TemporaryDirectory() as folder:
        for p in profiles:
            path = Path(folder) / f"{p.name}.md"
            path.write_text(page(p), encoding="utf-8")
            back = [
                classify_folder(path).ratings,
                by_long[p.name],
                by_wide[p.name],
                Profile.from_dict(json.loads(report.as_json([p]))).ratings,
            ]
            wrong += sum(found[name] != p.ratings[name] for found in back for name in IDS)
            wrong += page(classify_folder(path)) != page(p)
    return wrong


def _replayed(replay: bool = True) -> int:
    """How many of the cells that an earlier revision had otherwise are so when the table is read as of that revision."""
    right = 0
    for row in data.rows("history"):
        then = published_table(as_of=row["date"] if replay else None)
        profile = next(p for p in then if p.name == row["slug"])
        seen = profile.ratings[row["component"]], profile.evidence[row["component"]][0].source
        text = re.sub(r"^[cd](?=[1-5]$)", "", row["then"]).replace("~", " ")
        right += seen[0] == read_cell(seen[0].kind, text)[0] and row["revision"] in seen[1]
    return right


def o1(cfg: Any, run: Run) -> None:
    """T1-T3: weights are public where training and safety evaluation are not."""
    tables(run)
    found = {}
    for sample in ("all45", "icml40"):
        profiles = _table(cfg, sample)
        rows = found[sample] = analyses.gaps(profiles)
        run.table(f"gaps_{sample}", rows)
        run.log({f"o1.{sample}": {**headline(profiles), "gaps_off": analyses.gaps_off(rows, sample),
                                  "significant": sum(row["p_holm"] < cfg.alpha for row in rows)}})  # fmt: skip
        run.log({f"o1.{sample}.p_holm.{row['component'].replace('.', '_')}": row["p_holm"] for row in rows})
    run.table("sensitivity", analyses.sensitivity(published_table))
    run.figure("gaps", plots.gaps(found))


def o2(cfg: Any, run: Run) -> None:
    """T4 and its limits: the more open models had lower Arena ratings; weights alone do not show it."""
    tables(run)
    profiles = _table(cfg, "all45")
    found = analyses.arena(profiles, cfg.bootstrap, run.rng("arena").numpy)
    for name in ("score", "direct", "weights"):
        value = found[name]
        run.log(
            {
                f"o2.{name}": {"rho": value.value, "p": value.p, "n": value.n},
                f"o2.{name}.rho.low": value.low,
                f"o2.{name}.rho.high": value.high,
            }
        )
    best = max(elo for elo, _ in found["best"].values())
    top = max(float(row["rating"]) for row in data.rows("arena"))
    run.log({"o2": {"mean_closed": float(np.mean(found["low"])), "mean_public": float(np.mean(found["high"])), "n_closed": len(found["low"]),
                    "n_public": len(found["high"]), "best_matched": best, "best_of_all": top,
                    "best_matched_is_public": int((_level(profiles, max(found["best"].values())[1]) or 0) >= 3)}})  # fmt: skip
    rated = analyses.rated_in_arena(profiles)
    elo, month, score = (
        [e for _, e in rated],
        [analyses.months(p) for p, _ in rated],
        [p.score or 0.0 for p, _ in rated],
    )
    upper = sorted(zip(elo, score, strict=True))[3:]
    run.log(
        {
            "o2.month.rho": stats.spearman(month, elo).value,
            "o2.given_month.rho": stats.partial_spearman(score, elo, month),
        }
    )
    rest = stats.spearman([e for e, _ in upper], [s for _, s in upper])
    run.log({"o2.without_lowest_three": {"rho": rest.value, "p": rest.p}})
    run.log({"o2.p_mann_whitney": _mann_whitney(found["low"], found["high"])})
    run.table(
        "arena", [dict(zip(("model", "score", "weights", "rating"), pair, strict=True)) for pair in found["pairs"]]
    )
    run.table(
        "best", [{"weights": level, "rating": elo, "model": name} for level, (elo, name) in found["best"].items()]
    )
    run.figure("arena", plots.arena(found["pairs"]))


def _level(profiles: list[Profile], name: str) -> int | None:
    return next(p.level(WEIGHTS) for p in profiles if p.name == name)


def _mann_whitney(a: list[float], b: list[float]) -> float:
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(a, b).pvalue)


def trend(cfg: Any, run: Run) -> None:
    """T5: no monotone trend in time; what falls after 2022 are training data and code."""
    tables(run)
    for sample in ("all45", "icml40"):
        for name, value in analyses.trend(_table(cfg, sample)).items():
            run.log({f"trend.{sample}.{name}": {"tau": value.value, "p": value.p}})
    profiles = _table(cfg, "all45")
    behind = analyses.trend(analyses.public(profiles, WEIGHTS))["score"]
    run.log({"trend.public_weights": {"tau": behind.value, "p": behind.p, "n": behind.n}})
    run.table("by_component", analyses.trend_by_component(profiles))
    rows = analyses.levels_by_year(profiles)
    years = []
    for year, scores in sorted(analyses.by_year(profiles).items()):
        low, high = stats.mean_interval(scores, cfg.bootstrap, run.rng("year", year).numpy)
        years.append({"year": year, "n": len(scores), "score": float(np.mean(scores)), "low": low, "high": high})
        run.log({f"trend.score_{year}": float(np.mean(scores))})
    for name, key in (
        (PRETRAINING_DATA, "data"),
        (PRETRAINING_CODE, "code"),
        (WEIGHTS, "weights"),
        (INFERENCE, "inference"),
    ):
        run.log({f"trend.{key}_{row['year']}": row[name] for row in rows if row[name] is not None})
    run.table("years", years)
    run.table("levels_by_year", rows)
    run.table("organisations", _organisations(profiles))
    run.figure("trend", plots.trend(rows))


def _organisations(profiles: list[Profile]) -> list[dict[str, Any]]:
    kinds = sorted({p.about["org_type"] for p in profiles})
    return [
        {"type": kind, "models": len(those), "score": float(np.mean([p.score for p in those if p.score is not None])),
         "public_weights": len(analyses.public(those, WEIGHTS)), "open_data": len(analyses.public(those, PRETRAINING_DATA, 4))}
        for kind in kinds if (those := [p for p in profiles if p.about["org_type"] == kind])
    ]  # fmt: skip


def licences(cfg: Any, run: Run) -> None:
    """L: the 116 cells with a licence, by the stated criteria and as printed; the 14 that differ."""
    from papers.openness import licences as known

    tables(run)
    rows = analyses.licensed_cells(_table(cfg, "all45"))
    differing = analyses.differing(rows)
    table_ = known.table()
    conditions = [(row["choosealicense"], table_[row["licence"]].rights) for row in data.rows("licences")]
    category = [entry for entry in table_.values() if entry.scancode]
    found = {
        "cells": len(rows),
        "criteria": sum(row["criteria"] == row["printed"] for row in rows),
        "published": sum(row["published"] == row["printed"] for row in rows),
        "no_licence": sum(not row["licence"] for row in rows),
        "differing": sum(row["cells"] for row in differing),
        "differing_licences": len(differing),
        "conditions": sum(bool(text) for text, _ in conditions),
        "conditions_equal": sum(text == analyses.conditions(rights) for text, rights in conditions),
        "scancode": len(category),
        "scancode_exceptions": sum(not analyses.fits_category(e.scancode, e.rights) for e in category),
    }
    run.log({"licences": found})
    run.table("licensed_cells", rows)
    run.table("differing", differing)
    run.table("licences", [{"licence": e.id, "rights": e.rights.bits, "points": e.rights.points, "C": known.level(e.id, "code"), "D": known.level(e.id, "data"),
                            "printed": e.published, "confidence": e.confidence, "basis": e.basis} for e in table_.values()])  # fmt: skip
    run.figure("licences", plots.licences(differing))


def agreement(cfg: Any, run: Run) -> None:
    """A and M: the scale beside MOF, the openness index, OSAID and simpler raters."""
    tables(run)
    profiles = _table(cfg, "all45")
    mof = analyses.against_mof(profiles)
    index = analyses.against_index(profiles, cfg.permutations, run.rng("index").numpy)
    osaid = analyses.against_osaid(profiles)
    for name, found in (("mof", mof), ("index", index)):
        run.log(
            {
                f"agreement.{name}": {
                    "rho": found["score"].value,
                    "p": found["score"].p,
                    "n": found["n"],
                    "kappa_thirds": found["kappa_thirds"],
                }
            }
        )
    run.log(
        {"agreement.index.p_permutation": index["p_permutation"], "agreement.mof.alpha_thirds": mof["alpha_thirds"]}
    )
    run.log({f"agreement.kappa.{row['component']}": row["kappa"] for row in mof["kappas"]})
    by_criteria = [analyses.by_mode(p, "criteria") for p in profiles]
    run.log(
        {
            "agreement.osaid.agree": sum(row["agrees"] for row in osaid),
            "agreement.osaid.of": len(osaid),
            "agreement.osaid.pass": sum(scales.osaid(p)["pass"] for p in profiles),
            "agreement.osaid.pass_criteria": sum(scales.osaid(p)["pass"] for p in by_criteria),
        }
    )
    _mof_models(run)
    for year in (2023, 2026):
        systems = data.rows(f"index_{year}")
        run.log(
            {f"agreement.index_{year}_equal": sum(scales.eosai(row)["total"] == float(row["total"]) for row in systems)}
        )
    steps = [scales.solaiman(p) for p in profiles]
    run.log({f"agreement.gradient.{step.replace(' ', '_')}": steps.count(step) for step in scales.GRADIENT})
    run.table("kappas", mof["kappas"])
    run.table("osaid", osaid)
    run.table("raters", analyses.baselines(profiles))
    run.table("scales", [scales.every(p) for p in profiles])
    _mof_cases(run)
    run.figure("agreement", plots.agreement(mof["pairs"], index["pairs"]))


def _mof_models(run: Run) -> None:
    """The Model Openness Tool's 273 models, recomputed from the licences it resolves."""
    models = scales.mof_models()
    found = [scales.mof(m["licences"]) for m in models]
    equal = sum(scales.as_printed(m, f) for m, f in zip(models, found, strict=True))
    classes = [f["class"] for f in found]
    named = {f"class_{name}": classes.count(k) for name, k in (("1", 1), ("2", 2), ("3", 3), ("none", 0))}
    run.log({"mof": {"models": len(models), "equal": equal, **named}})


def _mof_cases(run: Run) -> None:
    """The tool's own test files, whose names say the percentages: 11 under the current rule, 21 under the older one."""
    try:
        folder = locate("mof_test_cases", run=run)
    except MissingData:
        run.note(
            "the test files of the Model Openness Tool are not here: M.cases is not judged (`python -m scripts.data list` says how to get them)"
        )
        return
    rows = []
    for path in sorted(folder.glob("*.yml")):
        printed = [int(number) for number in re.findall(r"C[123]_(\d+)%", path.name)]
        found = {rule: scales.mof(path, rule) for rule in scales.RULES}
        shown = {rule: [int(f["progress"][k] + 0.5) for k in (1, 2, 3)] for rule, f in found.items()}
        rows.append({"file": path.name.partition("_C1")[0], "printed": str(printed), **{rule: str(value) for rule, value in shown.items()},
                     **{f"{rule}_equal": value == printed for rule, value in shown.items()}, "class": found["current"]["class"]})  # fmt: skip
    run.log(
        {
            "mof.cases": {
                "files": len(rows),
                "current": sum(r["current_equal"] for r in rows),
                "legacy": sum(r["legacy_equal"] for r in rows),
            }
        }
    )
    run.table("mof_cases", rows)


def classify(cfg: Any, run: Run) -> None:
    """K: made-up hub folders with known truth: exact with manifests; without, no level contradicted and bounds that hold."""
    run.use_data("synthetic_folders", "synthetic", "papers.openness.synthetic", None)
    made = synthetic.draw(cfg.classify.models, run.rng("draw").numpy)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with run.time("write"):
            synthetic.write(made, folder, run.rng("write").numpy)
        rows, exact, one_table = [], 0, 0
        for one in run.progress(made, "manifests"):
            profile = classify_folder(folder / "clones" / one.name, manifest=folder / "manifests" / f"{one.name}.yaml")
            exact += dict(profile.ratings) == one.ratings
            one_table += baselines.one_table(profile) == one.ratings
        readers = {
            "ours": lambda path: dict(classify_folder(path).ratings), "ours, bases left out": baselines.without_bases,
            "ours, absent means closed": baselines.absent_is_closed, "the card's licence for all": baselines.card_for_all,
        }  # fmt: skip
        for reader, read in readers.items():
            with run.time(reader.split(",")[0].replace("'", "")):
                found = [(one.ratings, read(folder / "clones" / one.name)) for one in run.progress(made, reader)]
            rows.append({"reader": reader, **_judged(found)})
    ours = rows[0]
    run.log({"classify": {"models": len(made), "exact": exact, "one_table_exact": one_table, "levels": ours["levels"], "contradicted": ours["contradicted"],
                          "bounds_broken": ours["bounds_broken"], "exact_without": ours["exact"], "abstained": ours["abstained"],
                          "fine_tunes": sum(one.base is not None for one in made)}})  # fmt: skip
    run.table("readers", rows)
    run.figure("readers", plots.confusion(rows))


def _judged(found: list[tuple[dict[str, Rating], dict[str, Rating]]]) -> dict[str, int]:
    """Levels stated, those that the truth contradicts, bounds that leave the truth out, abstentions, models read exactly."""
    pairs = [(truth[name], read[name]) for truth, read in found for name in IDS]
    stated = [(t, r) for t, r in pairs if r.status == "rated"]
    spans = [(t, r) for t, r in pairs if t.status != "na" and r.low is not None and r.high is not None]
    return {
        "levels": len(stated),
        "contradicted": sum(t.level != r.level for t, r in stated),
        "bounds_broken": sum(
            t.low is not None and t.high is not None and not ((r.low or 0) <= t.low and t.high <= (r.high or 0))
            for t, r in spans
        ),
        "abstained": len(pairs) - len(stated),
        "exact": sum(truth == read for truth, read in found),
    }


def risks(cfg: Any, run: Run) -> None:
    """The paper's claims as data: each with its evidence, and an area by side table that scores nothing."""
    tables(run)
    claims = [dict(claim) for claim in data.risks()["claims"]]
    if cfg.risks.path is not None:
        from common.data.locate import own_file
        from common.errors import user_errors
        from papers.openness.documents import read_yaml

        path = own_file(cfg.risks.path, "risks.path", run)
        with user_errors():
            document = read_yaml(path)
            if problems := schema.check_claims(document, path.name):
                raise ValueError(problems[0])
        claims += document.value["claims"]
    rows = analyses.risk_matrix(claims)
    bare = [{key: value for key, value in claim.items() if key != "evidence"} for claim in claims]
    refused = sum(bool(schema.check_claims(Document({"claims": [claim]}, {}), "claim")) for claim in bare)
    by_evidence = {name: sum(claim["evidence"] == name for claim in claims) for name in schema.EVIDENCE_OF_CLAIMS}
    run.log({"risks": {"claims": len(claims), "without_evidence_refused": refused, **by_evidence}})
    run.table(
        "claims",
        [
            {
                "id": c["id"],
                "area": c["area"],
                "side": c["side"],
                "leans": c["leans"],
                "evidence": c["evidence"],
                "claim": c["claim"],
            }
            for c in claims
        ],
    )
    run.table("risk_matrix", rows)
    run.figure("risks", plots.risks(rows))
