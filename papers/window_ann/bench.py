"""Races of window search: queries a second against recall, builds and memory, ours against the libraries that are installed.

`bench(quick)` returns tables. Every contender gets the same queries, windows, exact truth and threads. Its settings are
swept once, from fast to slow; those worth keeping then run in rounds, one run of each a round, so that a busy moment hits
all alike. Figures are medians of the rounds. Compiling and building are not in them. A setting too slow to answer
all queries in BUDGET seconds is asked the first few of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from common.errors import UserError
from common.optional import need
from common.race import race
from common.result import available_cores
from papers.window_ann import metrics, synthetic, vamana
from papers.window_ann.contenders import Contender, K, Others, build_row, ours, seconds
from papers.window_ann.index import WindowIndex
from papers.window_ann.plans import OURS

PEERS = ("faiss-cpu", "hnswlib", "usearch")
LEVELS = (0.9, 0.95)
BUDGET = 0.06  # seconds one run of a contender may take
FEW = 10  # queries that even the slowest answers


def sweep(contender: Contender, truth: np.ndarray, level: float) -> list[dict[str, Any]]:
    """Each setting once: rows {contender, setting, queries, recall, distances, qps}, less those that a faster one of at least its recall beats clearly.

    Ends where recall passes 0.999, or where settings have become four times slower than the one that reached `level`.
    """
    rows: list[dict[str, Any]] = []
    best = 0.0
    for setting in contender.settings:
        contender.search(setting, 1)  # compiles
        few, _ = seconds(partial(contender.search, setting, FEW))
        count = int(min(len(truth), max(FEW, BUDGET / few * FEW)))
        took, (ids, distances) = seconds(partial(contender.search, setting, count))
        row = {"contender": contender.name, "setting": str(setting), "queries": count, "recall": metrics.recall(ids, truth[:count]),
               "distances": distances, "qps": count / took, "run": partial(contender.search, setting, count)}  # fmt: skip
        rows.append(row)
        if row["recall"] >= level:
            best = max(best, row["qps"])
        if row["recall"] > 0.999 or row["qps"] < best / 4:
            break
    return [row for row in rows if not any(o["recall"] >= row["recall"] and o["qps"] > 1.3 * row["qps"] for o in rows)]


def curves(field: Iterable[Contender], truth: np.ndarray, rounds: int, level: float) -> list[dict[str, Any]]:
    """The settings of all contenders in `rounds` rounds: rows as `sweep`'s with qps the median, low and high."""
    rows = [row for contender in field for row in sweep(contender, truth, level)]
    times = race({str(i): row.pop("run") for i, row in enumerate(rows)}, repeats=rounds)
    return [
        row | {"qps": row["queries"] / t["median_s"], "low": row["queries"] / t["max_s"], "high": row["queries"] / t["min_s"]}
        for row, t in zip(rows, times, strict=True)
    ]  # fmt: skip


def fastest(rows: Iterable[dict[str, Any]], level: float) -> dict[str, dict[str, Any]]:
    """contender -> its fastest row that reaches the level."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["recall"] >= level and row["qps"] > found.get(row["contender"], {"qps": 0.0})["qps"]:
            found[row["contender"]] = row
    return found


def family(contender: str) -> str:
    """prefilter | postfilter | faiss | hnswlib | usearch: whose fastest is compared with ours."""
    return "postfilter" if contender == "incremental postfilter" else contender.split(",")[0].split(" ")[0]


def summary(rows: Sequence[dict[str, Any]], level: float) -> dict[str, Any]:
    """S1 and the planner at one level: the best of the paper's methods over the best of all else, and over each family of it.

    The planner is measured against the best single method, whatever the paper's user would have chosen.
    """
    best = {name: row["qps"] for name, row in fastest(rows, level).items()}
    mine = max((m for m in OURS if m in best), key=best.__getitem__)
    others = {name: qps for name, qps in best.items() if name not in (*OURS, "planner")}
    theirs = max(others, key=others.__getitem__)
    single = max(best[m] for m in (*OURS, "prefilter", "postfilter") if m in best)
    row = {"recall": level, "best of ours": mine, "qps": best[mine], "best other": theirs, "its qps": best[theirs],
           "speedup": best[mine] / best[theirs], "planner / best single": best.get("planner", np.nan) / single}  # fmt: skip
    for name in ("prefilter", "postfilter", "faiss", "hnswlib", "usearch"):
        rivals = [qps for other, qps in others.items() if family(other) == name]
        row[f"over {name}"] = best[mine] / max(rivals) if rivals else np.nan
    return row


def lines(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each contender: its whole curve, and in `pareto` the points that no contender beats."""
    front = set(metrics.pareto([(row["recall"], row["qps"]) for row in rows]))
    found = []
    for name in dict.fromkeys(row["contender"] for row in rows):
        mine = sorted((row for row in rows if row["contender"] == name), key=lambda row: row["recall"])
        found.append(
            {
                "contender": name,
                "recall": [round(row["recall"], 3) for row in mine],
                "qps": [round(row["qps"]) for row in mine],
                "pareto": [(row["recall"], row["qps"]) in front for row in mine],
            }
        )
    return found


def windows(name: str, work: synthetic.Workload, options: dict[str, Any], powers: Iterable[int], threads: Sequence[int], rounds: int,
            rng: np.random.Generator) -> dict[str, list[dict]]:  # fmt: skip
    """S1: every method and peer at windows of 2^p of the points. Built once, searched with each number of threads."""
    cores, nq = available_cores(), len(work.queries)
    index = WindowIndex(threads=cores, **options)
    built, _ = seconds(lambda: index.fit(work.X, work.labels))
    segment = index.segments[0]
    size, n = segment.G.nbytes + segment.X.nbytes, len(segment.X)
    note = f"{segment.stored / n:.1f} graphs a point: {segment.G.nbytes / 1e6:.0f} MB of edges, {segment.X.nbytes / 1e6:.0f} MB of points"
    builds = [build_row("window index, all levels", built, cores, size, note)]
    others = Others(index, cores)
    speedups, chosen, whole = [], [], []
    for p in powers:
        lo, hi = synthetic.windows(work.labels, 2.0**p, nq, rng)
        truth = synthetic.truth(work.X, work.labels, work.queries, lo, hi, K)
        for number in threads:
            index.threads = number
            field = [*ours(index, work.queries, lo, hi), *others.at(work.queries, lo, hi, number)]
            rows = curves(field, truth, rounds, max(LEVELS))
            where = {"threads": number, "window": f"2^{p}"}
            speedups += [where | summary(rows, level) for level in LEVELS]
            best = fastest(rows, LEVELS[0])
            chosen += [where | row for row in sorted(best.values(), key=lambda row: -row["qps"])]
            whole += [where | line for line in lines(rows)]
    tables = {"speedup": speedups, "fastest_at_0.9": chosen, "curves": whole, "builds": builds + others.builds}
    return {f"{name}_{title}": rows for title, rows in tables.items()}


def graphs(X: np.ndarray, Q: np.ndarray, rounds: int) -> list[dict[str, Any]]:
    """Our Vamana against hnswlib's HNSW on the same points, no windows, one thread: queries a second at recall@10 >= 0.95."""
    truth = synthetic.truth(X, np.zeros(len(X)), Q, np.zeros(len(Q)), np.zeros(len(Q)), K)
    beams = tuple(range(10, 60, 2))
    field, build, note = [], {}, {}
    vamana.build(X[:50], 24, 128)  # compile

    for R, L, alpha in ((32, 64, 1.0), (24, 128, 1.05)):
        name = f"vamana R={R} L={L} alpha={alpha}"
        build[name], graph = seconds(partial(vamana.build, X, R, L, alpha))

        def ask(beam: int, count: int, graph: vamana.Graph = graph) -> tuple[np.ndarray, float]:
            ids, _, computed = vamana.search(graph, X, Q[:count], beam, K)
            return ids, float(computed.mean())

        field.append(Contender(name, beams, ask))
    for M, ef in ((16, 100), (24, 200)):
        name = f"hnswlib M={M} ef_construction={ef}"
        try:
            hnsw = need("hnswlib").Index("l2", X.shape[1])
        except UserError as error:
            note[field[0].name] = str(error)
            break
        hnsw.init_index(len(X), M=M, ef_construction=ef, random_seed=0)
        build[name], _ = seconds(partial(hnsw.add_items, X, np.arange(len(X)), num_threads=1))

        def ask_hnsw(beam: int, count: int, hnsw: Any = hnsw) -> tuple[np.ndarray, None]:
            hnsw.set_ef(beam)
            return hnsw.knn_query(Q[:count], K, num_threads=1)[0].astype(np.int64), None

        field.append(Contender(name, beams, ask_hnsw))
    best = fastest(curves(field, truth, rounds, 0.95), 0.95)
    first = max((row["qps"] for name, row in best.items() if name.startswith("hnswlib")), default=np.nan)
    return [row | {"build_s": build[name], "over best hnswlib": row["qps"] / first, "note": note.get(name, "")} for name, row in best.items()]  # fmt: skip


def bench(quick: bool = False) -> dict[str, list[dict]]:
    """All races: the graphs alone, windows over 200,000 points of the mixture and over real vectors. quick: to see that they run."""
    rng = np.random.default_rng(0)
    mixture = synthetic.mixture(rng, 2000 if quick else 200_000, 50 if quick else 500)
    options: dict[str, Any] = {"R": 24, "L": 48, "cutoff": 250 if quick else 1000}
    threads = sorted({1, min(2, available_cores())})
    rounds, powers = (1, (0, -2)) if quick else (7, (0, -1, -2, -3, -4, -5, -6, -7, -8, -10))
    real = deep(rng)
    alone = real or mixture
    few = slice(1000 if quick else 10_000)
    tables = {"graphs": graphs(alone.X[few], alone.queries, 1 if quick else 15)}
    tables |= windows("mixture", mixture, options, powers, threads, rounds, rng)
    if real is not None and not quick:
        tables |= windows("deep", real, {"R": 32, "L": 64, "cutoff": 250}, (0, -1, -2, -3, -4, -5), (1,), rounds, rng)
    return tables


def deep(rng: np.random.Generator) -> synthetic.Workload | None:
    """DEEP's 10,000 vectors and then its 10,000 queries less the last 500, which stay queries; labels U(0, 1). None where it is not here."""
    from common.data.registry import locate
    from papers.window_ann.data import read_vecs

    try:
        folder = locate("deep_10k")
    except UserError:
        return None
    X, Q = read_vecs(folder / "deep_10k.fvecs"), read_vecs(folder / "deep_query.fvecs")
    return synthetic.Workload(np.concatenate([X, Q[:-500]]), rng.random(len(X) + len(Q) - 500), Q[-500:])


def figures(tables: dict[str, list[dict]]) -> dict[str, Any]:
    """On one thread: the fastest of each kind at every window size, and the curves behind it at some of them."""
    from papers.window_ann import plots

    names = {"mixture": "mixture, 200,000", "deep": "DEEP, 19,500"}
    shown = {"mixture": ("2^0", "2^-2", "2^-4"), "deep": ("2^0", "2^-1", "2^-3")}

    def single(title: str) -> list[dict]:
        return [row for row in tables[title] if row["threads"] == 1]

    here = {short: name for short, name in names.items() if f"{short}_curves" in tables}
    return {
        "windows": plots.fastest({name: single(f"{short}_fastest_at_0.9") for short, name in here.items()}, LEVELS[0]),
        "curves": plots.raced({name: (single(f"{short}_curves"), shown[short]) for short, name in here.items()}),
    }
