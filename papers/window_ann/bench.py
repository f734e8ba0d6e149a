"""Races of window search: queries a second at equal recall, builds and memory, ours against the libraries that are installed.

`bench(quick)` returns tables. Every contender gets the same queries, windows, exact truth and threads; its settings are
swept once, and the fastest that reaches the recall then runs in rounds, one run of each contender a round, so that a busy
moment hits all alike. Medians of the rounds are reported with their lowest and highest. Compiling and building are not in them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from common.errors import UserError
from papers.window_ann import baselines, datasets, evaluate, vamana
from papers.window_ann.index import WindowIndex
from papers.window_ann.segment import available_cores
from papers.window_ann.windows import rank_interval

OURS = ("tree", "optimized_postfilter", "three_split", "super_postfilter")
BEAMS = (10, 14, 20, 28, 40, 56, 80, 160, 320, 640, 1280)
WIDTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
TARGETS = (0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.99)
K = 10

Contender = Iterable[tuple[Any, Callable[[], np.ndarray]]]  # settings from fast to slow, each with the search it makes


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


def race(
    contenders: dict[str, Contender], truth: np.ndarray, level: float, rounds: int
) -> tuple[list[dict], list[dict]]:
    """(the whole curves, the race): rows {contender, setting, recall, qps} and {contender, setting, recall, qps, low, high}."""
    curves: list[dict] = []
    runners: dict[str, tuple[Any, Callable, float]] = {}
    nq = len(truth)
    for name, settings in contenders.items():
        best = 0.0
        for setting, call in settings:
            call()
            took, ids = seconds(call)
            found, qps = evaluate.recall(ids, truth), nq / took
            curves.append({"contender": name, "setting": str(setting), "recall": found, "qps": qps})
            if found >= level and qps > best:
                best, runners[name] = qps, (setting, call, found)
            if found > 0.999 or (best and qps < best / 4):
                break
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, (_, call, _) in runners.items():
            times[name].append(nq / seconds(call)[0])
    rows = [
        {
            "contender": name,
            "setting": str(setting),
            "recall": found,
            "qps": float(np.median(times[name])),
            "low": min(times[name]),
            "high": max(times[name]),
        }
        for name, (setting, _, found) in runners.items()
    ]
    return curves, sorted(rows, key=lambda row: -row["qps"])


def ours(index: WindowIndex, Q: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> dict[str, Contender]:
    def search(**how: Any) -> Callable[[], np.ndarray]:
        return lambda: index.search(Q, lo, hi, K, **how)[0]

    found: dict[str, Contender] = {"prefilter": [("", search(method="prefilter"))]}
    for method in ("postfilter", *OURS):
        found[method] = [(beam, search(method=method, beam=beam)) for beam in BEAMS]
    return found | {"planner": [(target, search(method="auto", recall=target)) for target in TARGETS]}


def peers(index: WindowIndex, threads: int, skipped: list[dict]) -> dict[str, Callable]:
    """name -> search(Q, S, E, k, setting), returning ranks; a library that is not installed becomes a row of `skipped`."""
    segment = index.segments[0]
    X = segment.X
    norms = (X**2).sum(1)
    scattered = np.empty_like(X)
    scattered[segment.ids] = X
    found: dict[str, Callable] = {
        "prefilter, BLAS": lambda Q, S, E, k, _: baselines.prefilter_blas(X, norms, Q, S, E, k),
        "prefilter, gathered and sorted": lambda Q, S, E, k, _: baselines.prefilter_scattered(
            scattered, segment.ids, Q, S, E, k
        ),
        "incremental postfilter": lambda Q, S, E, k, patience: baselines.incremental(segment, Q, S, E, k, patience)[0],
    }
    makers: dict[str, Callable] = {
        "faiss flat, range selector": lambda: baselines.faiss_range(X, "flat", threads),
        "faiss HNSW, range selector": lambda: baselines.faiss_range(X, "hnsw", threads),
        "faiss IVF, range selector": lambda: baselines.faiss_range(X, "ivf", threads),
        "hnswlib, filter": lambda: baselines.hnswlib_filter(X, threads),
        "usearch, postfilter": lambda: baselines.usearch_post(X, threads),
    }
    for name, make in makers.items():
        try:
            took, found[name] = seconds(make)
            skipped.append({"peer": name, "build_s": took, "note": ""})
        except UserError as error:
            skipped.append({"peer": name, "build_s": None, "note": str(error)})
    return found


def settings_of(name: str) -> tuple[Any, ...]:
    if name.startswith("prefilter") or "flat" in name:
        return (0,)
    if "IVF" in name:
        return (1, 2, 4, 8, 16, 32, 64, 128)
    return (8, 32, 128, 512) if name.startswith("incremental") else WIDTHS


def at_scale(
    n: int, fractions: Iterable[int], level: float, rounds: int, threads: int, nq: int = 500, seed: int = 0
) -> dict[str, list[dict]]:
    """S1: every method and peer on the mixture of n points, at each window size."""
    rng = np.random.default_rng(seed)
    work = datasets.mixture(rng, n, nq)
    index = WindowIndex(R=24, L=48, cutoff=1000 if n > 50_000 else 250, threads=threads, seed=seed)
    built, _ = seconds(lambda: index.fit(work.X, work.labels))
    segment = index.segments[0]
    calibrated, _ = seconds(lambda: segment.costs(K, level, index.graph_cost))
    note = f"{segment.stored / n:.1f} graphs a point, {segment.G.nbytes / 1e6:.0f} MB of edges"
    builds: list[dict] = [{"peer": "window index, all levels", "build_s": built, "note": note}]
    builds.append({"peer": "planner's calibration", "build_s": calibrated, "note": ""})
    others = peers(index, threads, builds)
    curves, best, ratios = [], [], []
    for p in fractions:
        lo, hi = datasets.windows(work.labels, 2.0**p, nq, rng)
        truth = datasets.truth(work.X, work.labels, work.queries, lo, hi, K)
        S, E = rank_interval(segment.labels, lo, hi)

        def in_ids(call: Callable, setting: Any, S: np.ndarray = S, E: np.ndarray = E) -> Callable[[], np.ndarray]:
            def search() -> np.ndarray:
                ranks = call(work.queries, S, E, K, setting)
                return np.where(ranks >= 0, segment.ids[ranks], -1)

            return search

        field = ours(index, work.queries, lo, hi) | {
            name: [(x, in_ids(call, x)) for x in settings_of(name)] for name, call in others.items()
        }
        curve, rows = race(field, truth, level, rounds)
        where = {"threads": threads, "window": f"2^{p}"}
        curves += [where | row for row in curve]
        best += [where | row for row in rows]
        qps = {row["contender"]: row["qps"] for row in rows}
        qps_of = {name: q for name, q in qps.items() if name not in (*OURS, "planner")}
        mine, theirs = max((m for m in OURS if m in qps), key=qps.__getitem__), max(qps_of, key=qps_of.__getitem__)
        single = max(qps[name] for name in (*OURS, "prefilter", "postfilter") if name in qps)
        ratios.append(
            {
                **where,
                "best of ours": mine,
                "qps": qps[mine],
                "best other": theirs,
                "its qps": qps[theirs],
                "speedup": qps[mine] / qps[theirs],
                "planner / best single": qps.get("planner", float("nan")) / single,
            }
        )
    return {
        f"speedup_{threads}t": ratios,
        f"race_{threads}t": best,
        f"curves_{threads}t": curves,
        f"builds_{threads}t": builds,
    }


def _vamana(graph: vamana.Graph, X: np.ndarray, Q: np.ndarray, beam: int) -> np.ndarray:
    return vamana.search(graph, X, Q, beam, K)[0]


def _hnsw(index: Any, Q: np.ndarray, ef: int) -> np.ndarray:
    index.set_ef(ef)
    return index.knn_query(Q, K, num_threads=1)[0].astype(np.int64)


def graphs(X: np.ndarray, Q: np.ndarray, rounds: int) -> list[dict]:
    """Our Vamana against hnswlib's HNSW on the same points, one thread: queries a second at recall@10 >= 0.95."""
    truth = datasets.truth(X, np.zeros(len(X)), Q, np.zeros(len(Q)), np.zeros(len(Q)), K)
    field: dict[str, Contender] = {}
    build: dict[str, float] = {}
    vamana.build(X[:50], 24, 128)  # compile
    for R, L, alpha in ((32, 64, 1.0), (24, 128, 1.05)):
        name = f"vamana R={R} L={L} alpha={alpha}"
        build[name], graph = seconds(partial(vamana.build, X, R, L, alpha))
        field[name] = [(b, partial(_vamana, graph, X, Q, b)) for b in range(10, 60, 2)]
    try:
        hnswlib = baselines.need("hnswlib", "hnswlib")
    except UserError as error:
        return [
            row | {"build_s": build[row["contender"]], "note": str(error)}
            for row in race(field, truth, 0.95, rounds)[1]
        ]
    for M, ef in ((16, 100), (24, 200)):
        name = f"hnswlib M={M} ef_construction={ef}"
        hnsw = hnswlib.Index("l2", X.shape[1])
        hnsw.init_index(len(X), M=M, ef_construction=ef, random_seed=0)
        build[name], _ = seconds(partial(hnsw.add_items, X, np.arange(len(X)), num_threads=1))
        field[name] = [(b, partial(_hnsw, hnsw, Q, b)) for b in range(10, 60, 2)]
    _, rows = race(field, truth, 0.95, rounds)
    first = max(row["qps"] for row in rows if row["contender"].startswith("hnswlib"))
    return [row | {"build_s": build[row["contender"]], "over best hnswlib": row["qps"] / first} for row in rows]


def bench(quick: bool = False) -> dict[str, list[dict]]:
    """All races. quick: a tenth of a minute of small sizes, to see that they run."""
    from common.data.registry import locate
    from papers.window_ann.data import read_vecs

    try:
        folder = locate("deep_10k")
        X, Q = read_vecs(folder / "deep_10k.fvecs"), read_vecs(folder / "deep_query.fvecs")[:500]
    except UserError:
        work = datasets.mixture(np.random.default_rng(0), 10_000, 500)
        X, Q = work.X, work.queries
    rounds = 1 if quick else 7
    tables = {"graphs": graphs(X[: 1000 if quick else None], Q[: 50 if quick else None], rounds)}
    for threads in (1,) if quick else sorted({1, min(2, available_cores())}):
        n, fractions = (2000, (0, -2)) if quick else (200_000, (0, -1, -2, -3, -4, -5, -6, -7, -8, -10))
        tables |= at_scale(n, fractions, 0.9, rounds, threads, nq=50 if quick else 500)
    return tables


if __name__ == "__main__":
    import sys

    from common.report import show

    for title, rows in bench("quick" in sys.argv[1:]).items():
        show(title, rows)
