"""The experiments of the paper as parts: each takes the config and the run, and hands the run what it found."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from common.errors import user_errors
from common.run import Run
from papers.window_ann import baselines, data, metrics, plots, structure, synthetic
from papers.window_ann.index import WindowIndex
from papers.window_ann.plans import OURS
from papers.window_ann.synthetic import Workload
from papers.window_ann.windows import content_hash, rank_interval

BASELINES = ("prefilter", "postfilter")
ONE_GRAPH = "one graph, same budget"
NO_BUDGET = "one graph, no budget"
SHORT = 0.01  # of the recall that was asked for may be missing


def make_index(cfg: Any, run: Run, work: Workload, metric: str, seed: int, **changed: Any) -> WindowIndex:
    """The index of a workload, with every graph; they are kept as a stage that all runs with the same data and options share."""
    options = {**cfg.index, **changed}
    key = {"options": options, "metric": metric, "seed": seed, "data": content_hash(work.X, np.asarray(work.labels))}  # fmt: skip
    with user_errors():
        index = WindowIndex("auto", metric, seed=seed, threads=run.threads, graph_cost=cfg.search.graph_cost, **options)
        state = run.stage("index_auto", _build, run, index, work, key=key, shared=True)
        return WindowIndex.from_state(state, threads=run.threads)


def _build(run: Run, index: WindowIndex, work: Workload) -> dict[str, Any]:
    with run.time("build"):
        index.fit(work.X, work.labels, progress=run.progress)
    return index.state()


# ---- recall against distances (sec. 6; E1, E2) -----------------------------------------------------------------------


def curves(cfg: Any, run: Run) -> None:
    """Every method at every setting and window size: distances computed for each query against recall@k."""
    rows: list[dict[str, Any]] = []
    name = ""
    for seed in run.seeds(cfg.seeds):
        with user_errors():
            loaded = data.load(cfg, run, seed)
        index, name = make_index(cfg, run, loaded.work, loaded.metric, seed), loaded.name
        rows += run.stage(f"sweep_{seed}", sweep_windows, cfg, run, index, loaded, seed, key=index.built_for)
    _report(cfg, run, rows, name)


def windows_of(run: Run, loaded: data.Loaded, seed: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows of 2^p of the points: those that come with the data, or drawn."""
    if p in loaded.given:
        return loaded.given[p]
    rng = run.rng("windows", seed, p).numpy
    return synthetic.windows(loaded.work.labels, 2.0**p, len(loaded.work.queries), rng)


def sweep_windows(cfg: Any, run: Run, index: WindowIndex, loaded: data.Loaded, seed: int) -> list[dict]:
    rows = []
    X, labels, Q, *_ = loaded.unit
    for p in run.progress(list(cfg.search.fractions), f"windows, seed {seed}"):
        lo, hi = windows_of(run, loaded, seed, p)
        truth = synthetic.truth(X, labels, Q, lo, hi, cfg.search.k)
        with user_errors(), run.time("sweep"):
            rows += [{"seed": seed, "p": p, **row} for row in sweep(cfg, index, loaded.work.queries, lo, hi, truth)]
    return rows


def sweep(cfg: Any, index: WindowIndex, Q: np.ndarray, lo: np.ndarray, hi: np.ndarray, truth: np.ndarray) -> list[dict]:
    """One window size: rows {method, beam, multiply, recall, distances}. All methods have the same settings to choose from.

    A beam's multiplies end where recall passes 0.999 or stops rising, a method's beams where a query costs more than a
    scan of its window (both as in the paper's scripts, with distances in place of seconds).
    """
    rows: list[dict] = []

    def measure(method: str, **options: Any) -> tuple[float, float]:
        ids, _, counts = index.search_counted(Q, lo, hi, cfg.search.k, method=method, **options)
        found, cost = metrics.recall(ids, truth), float(counts.distances.mean())
        setting = {"beam": None, "multiply": None, "target": None} | options
        rows.append({"method": method, **setting, "recall": found, "distances": cost})
        return found, cost

    _, scan = measure("prefilter")
    for method in ("postfilter", *OURS):
        for beam in cfg.search.beams:
            before = -1.0
            for multiply in cfg.search.multiplies if method != "tree" else [1]:
                found, cost = measure(method, beam=beam, multiply=multiply)
                if found > 0.999 or found <= before or cost > scan:
                    break
                before = found
            if rows[-1]["recall"] > 0.999 or rows[-1]["distances"] > 2 * scan:
                break
    for target in cfg.search.targets:
        if measure("auto", recall=target)[0] > 0.999:
            break
    return rows


def _report(cfg: Any, run: Run, rows: list[dict], name: str) -> None:
    """From all settings to figures of the claims: the least cost that reaches the level, for each method and window size."""
    level, seeds = cfg.search.level, run.seeds(cfg.seeds)
    best = cheapest(rows, level)
    for row in rows:  # the planner is asked for the level, and judged by what it then does
        if row["method"] == "auto" and row["target"] == level:
            kept = row["recall"] >= level - SHORT
            best[row["seed"], row["p"], "auto"] = row["distances"] if kept else float("nan")
    table, per_seed = [], []
    for p in cfg.search.fractions:
        line: dict[str, Any] = {"window": f"2^{p}"}
        for method in (*BASELINES, *OURS, "auto"):
            line[method] = float(np.mean([best[seed, p, method] for seed in seeds]))
        ratios = []
        for seed in seeds:
            cost = {method: best[seed, p, method] for method in (*BASELINES, *OURS, "auto")}
            ours, theirs = np.nanmin([cost[m] for m in OURS]), np.nanmin([cost[m] for m in BASELINES])
            single = np.nanmin([ours, theirs])
            ratio = {"speedup": theirs / ours, "planner": cost["auto"] / single}
            control = {"one_graph": theirs / cost["postfilter"], "scan": cost["prefilter"] / single}
            ratios.append({"seed": seed, "p": p, **ratio, **control})
        line["speedup"] = float(np.mean([r["speedup"] for r in ratios]))
        line["auto / best"] = float(np.mean([r["planner"] for r in ratios]))
        per_seed += ratios
        table.append(line)
    by_seed = [[r["speedup"] for r in per_seed if r["seed"] == seed and -7 <= r["p"] <= -1] for seed in seeds]
    run.log(
        {name: {"speedup_max": min(max(x) for x in by_seed), "planner_worst": _worst([r["planner"] for r in per_seed])}}
    )
    # what the same figures are for an index without its tree, and for a planner that always scans
    widths = [r for r in per_seed if -7 <= r["p"] <= -1]
    run.log(
        {
            f"{name}.control": {
                "one_graph": np.nanmax([r["one_graph"] for r in widths]),
                "scan": max(r["scan"] for r in per_seed),
            }
        }
    )
    mid = [[r["speedup"] for r in per_seed if r["seed"] == seed and -7 <= r["p"] <= -3] for seed in seeds]
    if all(mid):
        run.log({f"{name}.speedup_mid": min(max(x) for x in mid)})
    full = [r["speedup"] for r in per_seed if r["p"] == 0]
    if full:
        run.log({f"{name}.speedup_full_low": min(full), f"{name}.speedup_full_high": max(full)})
    for line in table:
        run.log({f"{name}.speedup.{_key(line['window'])}": line["speedup"]})
    run.table("distances_at_recall", table)
    plots.write_rows(run, "curves", rows)
    run.figure("distances_by_window", plots.by_window(table, level))
    run.figure("recall_against_distances", plots.curves([r for r in rows if r["seed"] == seeds[0]]))


def _key(window: str) -> str:
    """2^-3 as a part of a metric's name: 2_minus_3."""
    return window.replace("^-", "_minus_").replace("^", "_")


def _worst(ratios: list[float]) -> float:
    """The largest; NaN (the planner never reached the level) is worst of all."""
    return float("nan") if np.isnan(ratios).any() else max(ratios)


def cheapest(rows: list[dict], level: float) -> dict[tuple, float]:
    """(seed, p, method) -> least distances with recall >= level, NaN where no setting reaches it."""
    points: dict[tuple, list] = {}
    for row in rows:
        points.setdefault((row["seed"], row["p"], row["method"]), []).append((row["recall"], row["distances"]))
    return {key: metrics.cost_at(some, level) for key, some in points.items()}


# ---- adversarial windows (sec. 6; E3) --------------------------------------------------------------------------------


def adversarial(cfg: Any, run: Run) -> None:
    """Queries whose windows hold only points of another cluster: tree and super against one graph of the same budget.

    The first alpha is measured over all seeds and judged; the others once, for the comparison.
    """
    (first, *others), seeds = cfg.adversarial.alphas, run.seeds(cfg.seeds)
    rows = [row for seed in seeds for row in _adversarial_of(cfg, run, seed, first)]
    rows += [row for alpha in others for row in _adversarial_of(cfg, run, seeds[0], alpha)]
    recall = {(r["alpha"], r["seed"], r["method"]): r["recall"] for r in rows}
    run.log(
        {
            "adversarial.recall": {
                method: min(recall[first, seed, method] for seed in seeds) for method in (*OURS, "auto")
            }
        }
    )
    share = [
        recall[first, seed, ONE_GRAPH] / min(recall[first, seed, "tree"], recall[first, seed, "super_postfilter"])
        for seed in seeds
    ]
    free = [
        recall[first, seed, NO_BUDGET] / min(recall[first, seed, m] for m in ("tree", "super_postfilter"))
        for seed in seeds
    ]
    run.log({"adversarial.one_graph_share": max(share), "adversarial.control.no_budget_share": min(free)})
    run.log({"adversarial.control.one_graph_recall": max(recall[first, seed, ONE_GRAPH] for seed in seeds)})
    for alpha in others:
        run.log({f"adversarial.alpha_{alpha:g}.recall": {method: recall[alpha, seeds[0], method] for method in OURS}})
    table = []
    for alpha, method in dict.fromkeys((r["alpha"], r["method"]) for r in rows):
        mine = [r for r in rows if r["method"] == method and r["alpha"] == alpha]
        mean = {name: float(np.mean([r[name] for r in mine])) for name in ("recall", "distances")}
        table.append({"alpha": alpha, "method": method, **mean})
    run.table("adversarial", table)
    run.figure("adversarial", plots.adversarial([row for row in table if row["alpha"] == first]))


def _adversarial_of(cfg: Any, run: Run, seed: int, alpha: float) -> list[dict]:
    o = cfg.adversarial
    work = synthetic.adversarial(run.rng("adversarial", seed).numpy, o.clusters, o.size, o.d, o.variance, o.queries)
    run.use_data("adversarial", "synthetic", "papers.window_ann.synthetic.adversarial", None)
    index = make_index(cfg, run, work, "euclidean", seed, alpha=alpha)
    rows = run.stage(f"adversarial_{seed}_{alpha:g}", _adversarial, cfg, index, work, seed, key=index.built_for)
    return [{"alpha": alpha, **row} for row in rows]


def _adversarial(cfg: Any, index: WindowIndex, work: Workload, seed: int) -> list[dict]:
    k = cfg.search.k
    rows: list[dict[str, Any]] = []
    assert work.lo is not None
    assert work.hi is not None
    truth = synthetic.truth(work.X, work.labels, work.queries, work.lo, work.hi, k)
    for method in (*OURS, "auto", "postfilter", "prefilter"):
        ids, _, counts = index.search_counted(
            work.queries, work.lo, work.hi, k, method=method, beam=cfg.adversarial.beam
        )
        cost = float(counts.distances.mean())
        rows.append({"seed": seed, "method": method, "recall": metrics.recall(ids, truth), "distances": cost})
    budget = max(r["distances"] for r in rows if r["method"] in ("tree", "super_postfilter"))
    segment = index.segments[0]
    S, E = rank_interval(segment.labels, work.lo, work.hi)
    ranks, spent = baselines.postfilter_within(segment, work.queries, S, E, k, budget)
    ids = np.where(ranks >= 0, segment.ids[ranks], -1)
    rows.append({"seed": seed, "method": ONE_GRAPH, "recall": metrics.recall(ids, truth), "distances": spent})
    ranks, spent = baselines.postfilter_within(segment, work.queries, S, E, k, float(len(work.X)))
    ids = np.where(ranks >= 0, segment.ids[ranks], -1)
    rows.append({"seed": seed, "method": NO_BUDGET, "recall": metrics.recall(ids, truth), "distances": spent})
    return rows


# ---- the planner's promise (ours; E7) --------------------------------------------------------------------------------


def planner(cfg: Any, run: Run) -> None:
    """The planner at the recall that is asked for, where labels are independent of the vectors, drift with them and recur, with equal rows and without."""
    rows = []
    for seed in run.seeds(cfg.seeds):
        for labels in cfg.planner.labels:
            for share in cfg.planner.copies:
                rows += run.stage(f"planner_{labels}_{share:g}_{seed}", _promise, cfg, run, labels, share, seed)
    run.use_data("labels", "synthetic", "papers.window_ann.synthetic.LABELS", None)
    worst = {name: max(row[name] for row in rows) for name in ("short", "over_best", "over_scan")}
    run.log({"planner": worst})
    control = {
        "ten_short": "ten short",
        "scan_over_best": "scan over best",
        "no_ceiling_over_scan": "no ceiling over scan",
    }
    run.log({"planner.control": {name: max(row[column] for row in rows) for name, column in control.items()}})
    run.table("planner", rows)


def _promise(cfg: Any, run: Run, labels: str, share: float, seed: int) -> list[dict[str, Any]]:
    """A row for each window size; the last three columns are what the same figures are for something simpler."""
    o, k, level = cfg.planner, cfg.search.k, cfg.search.level
    rng = run.rng("planner", labels, int(1000 * share), seed).numpy
    work = synthetic.LABELS[labels](rng, o.n, o.queries, o.d)
    X, Q = synthetic.with_copies(rng, work.X, share), work.queries
    index = WindowIndex(
        seed=seed,
        threads=run.threads,
        recall=level,
        graph_cost=cfg.search.graph_cost,
        **{**cfg.index, "cutoff": o.cutoff},
    )
    index.fit(X, work.labels)
    rows = []
    for p in o.fractions:
        lo, hi = synthetic.windows_around(rng, work.labels, work.own, 2.0**p)
        ids = synthetic.truth(X, work.labels, Q, lo, hi, k)
        true = np.where(ids >= 0, np.linalg.norm(X[ids] - Q[:, None], axis=2), np.inf)
        scan = max(1, round(o.n * 2.0**p))
        _, found, counts = index.search_counted(Q, lo, hi, k)
        best = float(scan)
        for method in ("postfilter", *OURS):
            for beam in o.beams:
                _, distances, cost = index.search_counted(Q, lo, hi, k, method=method, beam=beam)
                if metrics.recall_by_distance(distances, true) >= level - SHORT or cost.distances.mean() > scan:
                    best = min(best, float(cost.distances.mean()))
                    break
        _, ten, _ = index.search_counted(Q, lo, hi, k, method="super_postfilter", beam=k)
        segment = index.segments[0]
        _, free = baselines.incremental(segment, Q, *rank_interval(segment.labels, lo, hi), k, 128)
        recall = metrics.recall_by_distance(found, true)
        rows.append({"labels": labels, "copies": share, "seed": seed, "window": f"2^{p}", "recall": recall, "distances": float(counts.distances.mean()),
                     "best single": best, "short": level - recall, "over_best": float(counts.distances.mean()) / best,
                     "over_scan": float(counts.distances.max()) / scan, "ten short": level - metrics.recall_by_distance(ten, true),
                     "scan over best": scan / best, "no ceiling over scan": float(free.max()) / scan})  # fmt: skip
    return rows


# ---- structure alone (sec. 3 and 5; E4) ------------------------------------------------------------------------------


def structures(cfg: Any, run: Run) -> None:
    """Every window of a small index: coverage, blowup, size of decompositions; what is stored; the memory trade-off."""
    found = run.stage("structure", partial(structure.survey, **cfg.structure))
    run.log({"structure": {key: value for key, value in found.items() if not isinstance(value, list)}})
    run.table("structure", found["rows"])
    run.figure("blowup", plots.blowup(found["blowup_by_width"], found["bound"], cfg.structure.n, found["sure_width"]))
    run.figure("methods", plots.methods(cfg.structure.picture_n))


# ---- branching factor (sec. 6; E5) -----------------------------------------------------------------------------------


def branching(cfg: Any, run: Run) -> None:
    """The tree with other branching factors: what is stored, and what a query costs at the level."""
    table = []
    seed = run.seeds(cfg.seeds)[0]
    with user_errors():
        loaded = data.load(cfg, run, seed)
    name, key = loaded.name, content_hash(loaded.work.X, np.asarray(loaded.work.labels))
    for beta in run.progress(list(cfg.branching.betas), "branching factors"):
        table.append(run.stage(f"beta_{beta}", _tree_of, cfg, run, loaded, seed, beta, key=key))
    edges, cost = [row["edges"] for row in table], [row["distances"] for row in table]
    seconds = [run.timings[f"build.beta{beta}"] for beta in cfg.branching.betas]
    run.log(
        {
            f"{name}.beta": {
                "edges_fall": float(np.all(np.diff(edges) < 0)),
                "edges_ratio": edges[0] / edges[-1],
                "cost_ratio": cost[-1] / cost[0],
            }
        }
    )
    if len(seconds) > 1:  # above 1: they fall from each branching factor to the next
        run.measure("build.least_fall", min(a / b for a, b in zip(seconds, seconds[1:], strict=False)))
    run.table("branching", table)
    run.figure("branching", plots.branching(table))


def _tree_of(cfg: Any, run: Run, loaded: data.Loaded, seed: int, beta: int) -> dict[str, Any]:
    """One branching factor: what the tree stores, and the mean over windows of the least distances at the level."""
    options = {**cfg.index, "beta": beta}
    with user_errors(), run.time(f"build.beta{beta}"):
        index = WindowIndex("tree", loaded.metric, seed=seed, threads=run.threads, **options)
        index.fit(loaded.work.X, loaded.work.labels)
    segment, costs = index.segments[0], []
    X, labels, Q, *_ = loaded.unit
    for p in cfg.branching.fractions:
        rng = run.rng("windows", seed, p).numpy
        lo, hi = synthetic.windows(labels, 2.0**p, len(Q), rng)
        truth = synthetic.truth(X, labels, Q, lo, hi, cfg.search.k)
        points = []
        for beam in cfg.search.beams:
            ids, _, counts = index.search_counted(loaded.work.queries, lo, hi, cfg.search.k, beam=beam)
            points.append((metrics.recall(ids, truth), float(counts.distances.mean())))
            if points[-1][0] >= cfg.search.level:
                break
        costs.append(metrics.cost_at(points, cfg.search.level))
    edges = int((segment.G >= 0).sum())
    return {"beta": beta, "rows": segment.tree.rows, "points stored": segment.stored, "edges": edges, "distances": float(np.mean(costs))}  # fmt: skip
