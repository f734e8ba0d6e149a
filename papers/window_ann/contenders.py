"""Who races: every method of ours, the paper's baselines and the libraries that are installed, each with the settings to sweep."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from common.errors import UserError
from papers.window_ann import baselines, peers
from papers.window_ann.index import WindowIndex
from papers.window_ann.plans import OURS
from papers.window_ann.windows import rank_interval

BEAMS = (10, 14, 17, 20, 24, 28, 34, 40, 56, 80, 160, 320, 640, 1280)
WIDTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
TARGETS = (0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.99)
K = 10


class Contender(NamedTuple):
    """settings: from fast to slow; search(setting, count) answers the first `count` queries: (ids, mean distances or None)."""

    name: str
    settings: tuple[Any, ...]
    search: Callable[[Any, int], tuple[np.ndarray, float | None]]


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


def ours(index: WindowIndex, Q: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> list[Contender]:
    """The paper's methods, its two baselines on the same points and graphs, and the planner; all with the index's threads."""

    def contender(name: str, method: str, option: str | None, settings: tuple[Any, ...]) -> Contender:
        def search(setting: Any, count: int) -> tuple[np.ndarray, float]:
            how = {option: setting} if option else {}
            ids, _, counts = index.search_counted(Q[:count], lo[:count], hi[:count], K, method=method, **how)
            return ids, float(counts.distances.mean())

        return Contender(name, settings, search)

    beamed = [contender(method, method, "beam", BEAMS) for method in ("postfilter", *OURS)]
    return [contender("prefilter", "prefilter", None, ("",)), *beamed, contender("planner", "auto", "recall", TARGETS)]


class Others:
    """Further baselines and libraries over the points of an index. builds: a row each, a note where one is not installed."""

    def __init__(self, index: WindowIndex, threads: int):
        segment = self.segment = index.segments[0]
        X, self.builds = segment.X, list[dict[str, Any]]()
        norms = (X**2).sum(1)
        scattered = np.empty_like(X)
        scattered[segment.ids] = X

        def gathered(Q, S, E, k, _):
            return baselines.prefilter_scattered(scattered, segment.ids, Q, S, E, k)

        def incremental(Q, S, E, k, patience, _):
            return baselines.incremental(segment, Q, S, E, k, patience)[0]

        def blas(Q, S, E, k, _, threads):
            from threadpoolctl import threadpool_limits

            with threadpool_limits(threads, "blas"):
                return baselines.prefilter_blas(X, norms, Q, S, E, k)

        self.find: dict[str, tuple[tuple[Any, ...], Callable[..., np.ndarray]]] = {
            "prefilter, BLAS": (("",), blas),
            "prefilter, gathered and sorted": (("",), peers.in_parts(gathered)),
            "incremental postfilter": ((8, 32, 128, 512), incremental),
        }
        makers: dict[str, tuple[tuple[Any, ...], Callable[[], peers.Peer]]] = {
            "faiss flat, range selector": (("",), lambda: peers.faiss_range(X, "flat", threads)),
            "faiss HNSW, range selector": (WIDTHS, lambda: peers.faiss_range(X, "hnsw", threads)),
            "faiss IVF, range selector": ((1, 2, 4, 8, 16, 32, 64, 128), lambda: peers.faiss_range(X, "ivf", threads)),
            "hnswlib, filter": (WIDTHS, lambda: peers.hnswlib_filter(X, threads)),
            "hnswlib, postfilter": (WIDTHS, lambda: peers.hnswlib_post(X, threads)),
            "usearch, postfilter": (WIDTHS, lambda: peers.usearch_post(X, threads)),
        }
        for name, (settings, make) in makers.items():
            try:
                took, peer = seconds(make)
            except UserError as error:
                self.builds.append(build_row(name, None, None, None, str(error)))
                continue
            self.find[name] = (settings, peer.find)
            self.builds.append(build_row(name, took, threads, peer.bytes, ""))

    def at(self, Q: np.ndarray, lo: np.ndarray, hi: np.ndarray, threads: int) -> list[Contender]:
        """The contenders for these queries and windows."""
        S, E = rank_interval(self.segment.labels, lo, hi)

        def contender(name: str) -> Contender:
            settings, find = self.find[name]

            def search(setting: Any, count: int) -> tuple[np.ndarray, None]:
                ranks = find(Q[:count], S[:count], E[:count], K, setting, threads)
                return np.where(ranks >= 0, self.segment.ids[ranks], -1), None

            return Contender(name, settings, search)

        return [contender(name) for name in self.find]


def build_row(name: str, took: float | None, threads: int | None, size: int | None, note: str) -> dict[str, Any]:
    """size: bytes of the index, points included; the peak is of the whole process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3  # MB; kB on Linux
    return {"index": name, "build_s": took, "threads": threads, "mb": size and size / 1e6, "peak_rss_mb": peak, "note": note}  # fmt: skip
