"""WindowIndex: the method of the paper as a library. Input is checked here, once; everything below works on ranks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.result import available_cores
from papers.window_ann import storage
from papers.window_ann.compiled import aligned
from papers.window_ann.executor import Asked
from papers.window_ann.planner import Planner
from papers.window_ann.plans import ADAPT, METHODS, SCAN, Costs, Options
from papers.window_ann.segment import NEEDS, Segment, Shape
from papers.window_ann.vamana import check_options
from papers.window_ann.windows import (
    Bounds,
    as_labels,
    bounds,
    content_hash,
    disjoint,
    in_type,
    rank_interval,
    reversed_windows,
)

NAMES = np.array(METHODS)
METRICS = ("euclidean", "angular", "inner")
UNLIKE = 0.5  # of a batch's queries farther from the data than nearly all that were measured: the user is told
SOME = 16  # queries a batch must have for that
SMALL = 2.0**-30  # values all below are scaled up: their squares would vanish in float32


class Counts(NamedTuple):
    """What a search did: distances computed for each query (nq,), and the method that answered it (nq,) of text."""

    distances: np.ndarray
    methods: np.ndarray


class WindowIndex:
    """Nearest neighbours among the points whose label lies in a window (Engels et al., ICML 2024).

    method: auto, or one of the paper's: prefilter | postfilter | tree | optimized_postfilter | three_split |
    super_postfilter; it decides which graphs `fit` builds. metric: euclidean | angular | inner
    (the largest inner product is nearest). recall: what auto aims at;
    graph_cost: how many scanned distances one distance of a graph search is worth to it (they are slower: memory is read
    at random). threads: all cores if None. shape: which nodes there are and how their graphs are built, see
    `segment.Shape`: beta, cutoff, shift, overlap, R, L, alpha, start, seed.

    >>> index = WindowIndex().fit(X, years)                                                       # doctest: +SKIP
    >>> ids, distances = index.search(Q, 1990, 1999, k=10)
    """

    def __init__(
        self,
        method: str = "auto",
        metric: str = "euclidean",
        *,
        recall: float = 0.95,
        graph_cost: float = 4.0,
        threads: int | None = None,
        **shape: Any,
    ):
        _choice("method", method, METHODS)
        _choice("metric", metric, METRICS)
        if unknown := set(shape) - set(Shape._fields):
            raise ValueError(f"unknown option {', '.join(sorted(unknown))}: choose of {', '.join(Shape._fields)}")
        if not 0 < recall < 1:
            raise ValueError(f"recall is {recall}: give the part of the true neighbours to aim at, between 0 and 1")
        if not graph_cost > 0:
            raise ValueError(f"graph_cost is {graph_cost}: give more than 0")
        self.shape = Shape(**shape)
        if not isinstance(self.shape.seed, int | np.integer) or self.shape.seed < 0:
            raise ValueError(f"seed is {self.shape.seed!r}: give a whole number of at least 0")
        check_options(self.shape.R, self.shape.L, self.shape.alpha, self.shape.start)
        self.planners: list[Planner] = []  # one a segment
        self.scale, self.longest, self._looked = 1.0, 0.0, 0  # longest: the largest norm, of inner products
        self.threads = threads
        self.method, self.metric, self.recall, self.graph_cost = method, metric, recall, graph_cost
        self.next_id, self.d, self.built_for, self.label_type = 0, 0, "", np.dtype(np.float64)

    @property
    def threads(self) -> int:
        """How many threads build and search; may be set at any time, to None for all cores. Answers do not depend on it."""
        return self._threads

    @threads.setter
    def threads(self, threads: int | None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}: give at least 1, or None for all cores")
        self._threads = threads or available_cores()
        for segment in self.segments:
            segment.threads = self._threads

    # ---- building ----------------------------------------------------------------------------------------------------

    def fit(
        self, X: Any, labels: Any, progress: Callable[[Iterable, str], Iterable] | None = None, queries: Any = None
    ) -> WindowIndex:
        """Index the rows of X (n, d) float under labels (n,); ids are row numbers. progress: `run.progress`, or the like.

        queries: (m, d), a hundred or more of the kind that will be asked, where they are not like the rows of X (text asked of
        pictures, say): the recall of auto is then promised for those. Raises ValueError for shapes that do not agree, NaN or
        infinite vectors, NaN labels, an empty X, a zero vector under the angular metric.
        """
        labels, before = as_labels(labels), (self.scale, self.longest)
        self.scale, self.longest = self._scale_for(X), 0.0
        try:
            X = self._points(X, d=0)
            _same_length(X, labels)
            Q = None if queries is None else self._points(queries, "queries", X.shape[1] - (self.metric == "inner"))
            planner = self._segment(X, labels, np.arange(len(X)), progress)
            if Q is not None:
                planner.calibrate(Q)
        except BaseException:
            self.scale, self.longest = before  # nothing of self has changed
            raise
        self.built_for = content_hash(X, labels)
        self.d, self.next_id, self.label_type = X.shape[1] - (self.metric == "inner"), len(X), labels.dtype
        self.planners, self._looked = [planner], 0
        return self

    def calibrate(self, queries: Any) -> WindowIndex:
        """Measure how wide searches must be for queries of this kind, (m, d); otherwise it is known for queries like the data.

        An insert that merges segments measures with points of the data again.
        """
        self._fitted()
        Q = self._points(queries, "queries")
        for planner in self.planners:
            if planner.curves is not None and len(Q):
                planner.calibrate(Q)
        return self

    def _scale_for(self, X: Any) -> float:
        X = np.asarray(X)
        if self.metric == "angular" or X.dtype.kind != "f" or not X.size:
            return 1.0
        most = float(np.abs(X).max())
        return 2.0 ** -np.floor(np.log2(most)) if 0 < most < SMALL else 1.0

    @property
    def segments(self) -> list[Segment]:
        """What inserts make of an index: the first is the largest, and all there is before the first insert."""
        return [planner.segment for planner in self.planners]

    def _points(self, X: Any, name: str = "X", d: int | None = None) -> np.ndarray:
        """float32, checked, and of length one under the angular metric. d: columns wanted, 0 for any; the index's if None."""
        d = self.d if d is None else d
        X = np.asarray(X)
        if X.dtype.kind not in "biuf":
            raise ValueError(f"{name} is {X.dtype}: give real numbers")
        if X.ndim != 2 or X.shape[1] == 0 or (len(X) == 0 and name == "X"):
            raise ValueError(f"{name} has shape {X.shape}: give one row a vector, (n, d)")
        if d and X.shape[1] != d:
            raise ValueError(f"{name} has {X.shape[1]} columns and the index {d}")
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
            X = np.ascontiguousarray(X if self.scale == 1.0 else X * self.scale, np.float32)
        if not np.isfinite(X.sum(dtype=np.float64)) and not (finite := np.isfinite(X).all(axis=1)).all():
            raise ValueError(f"{name} has NaN or infinite values, first in row {int(np.argmin(finite))}")
        if self.metric == "angular":
            norm = np.linalg.norm(X.astype(np.float64), axis=1, keepdims=True)
            if not norm.all():
                raise ValueError(
                    f"{name} has a row of zeros, row {int(np.argmin(norm))}: it has no direction, and the metric is angular"
                )
            return (X / norm).astype(np.float32)
        if len(X) and np.abs(X).max() > (widest := np.sqrt(np.finfo(np.float32).max / (4 * X.shape[1]))):
            raise ValueError(
                f"{name} has values above {widest / self.scale:.0e}, whose squared distances float32 cannot hold: scale it"
            )
        return self._lifted(X, name) if self.metric == "inner" else X

    def _lifted(self, X: np.ndarray, name: str) -> np.ndarray:
        """One more column, which makes all rows equally long and is 0 for queries: the order of distances is that of inner products."""
        last = np.zeros(len(X), np.float64)
        if name == "X":
            squares = (X.astype(np.float64) ** 2).sum(axis=1)
            self.longest = self.longest or float(squares.max(initial=0.0))
            last = np.sqrt(np.maximum(self.longest - squares, 0.0))
        return np.ascontiguousarray(np.column_stack([X, last.astype(np.float32)]))

    def _segment(self, X, labels, ids, progress=None, graphs: bool = True) -> Planner:
        parts = NEEDS[self.method] if graphs else ""
        if np.all(labels[1:] >= labels[:-1]):  # a segment does not copy what is sorted, and X belongs to the caller
            own = aligned(X.shape, X.dtype)
            own[...] = X
            X, labels = own, labels.copy()
        segment = Segment(X, labels, ids, parts, self.shape, self.threads)
        planner = Planner(segment)
        segment.build(progress, planner.watch)
        planner.finish()
        return planner

    # ---- searching ---------------------------------------------------------------------------------------------------

    def search(
        self, Q: Any, lo: Any, hi: Any, k: int = 10, closed: str = "both", **how: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest rows to each query among those whose label lies in its window.

        Q: (nq, d). lo, hi: scalars or (nq,), -inf and inf for no bound; (nq, m) asks for the union of m windows. closed:
        which ends belong to a window, both | left | right | neither. how: see `search_counted`.

        Returns ids (nq, k) int64 row numbers, -1 where the window has fewer than k points, and distances (nq, k) float32
        ascending, inf where missing: true L2, 1 - cosine, or minus the inner product. Raises ValueError for bad input.
        """
        return self.search_counted(Q, lo, hi, k, closed, **how)[:2]

    def search_counted(self, Q: Any, lo: Any, hi: Any, k: int = 10, closed: str = "both", *, method: str | None = None, beam: int = 40,
                       multiply: int = 1, max_beam: int = 10_000, min_ratio: float | None = None, recall: float | None = None,
                       compat: str = "intended") -> tuple[np.ndarray, np.ndarray, Counts]:  # fmt: skip
        """`search`, and what it cost.

        method: another of those this index holds graphs for. beam, multiply, max_beam: of the doubling postfilter; auto
        chooses its own beams, from `recall` (1 scans). min_ratio: below this share of its node an (optimized or three-split) postfilter
        gives way to tree search; compat="official" makes it always do so, as the official code does.
        """
        self._fitted()
        Q = self._points(Q, "Q")
        method = method or self.method
        _choice("method", method, METHODS)
        _choice("compat", compat, ("intended", "official"))
        if not set(NEEDS[method]) <= set(NEEDS[self.method]):
            raise ValueError(
                f"this index was built for method {self.method!r} and has no graphs for {method!r}: build it with method='auto'"
            )
        self._check_k(k)
        if beam < 1 or multiply < 1 or max_beam < 1:
            raise ValueError(f"beam is {beam}, multiply {multiply}, max_beam {max_beam}: each must be at least 1")
        for name, share in (("min_ratio", min_ratio), ("recall", recall)):
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{name} is {share}: give a share between 0 and 1")
        lo, hi, m = self._windows(lo, hi, len(Q))
        options = Options(
            METHODS.index(method),
            int(beam),
            int(multiply),
            int(max_beam),
            float(min_ratio or 0.0),
            int(compat == "official"),
        )
        found = [
            self._search_segment(planner, Q, lo, hi, m, closed, int(k), options, recall) for planner in self.planners
        ]
        ids, distances = _merge([f[0] for f in found], [f[1] for f in found], int(k))
        if self.metric == "angular":
            distances = distances / 2  # |q - x|^2 = 2 - 2 cos on the unit sphere
        elif self.metric == "euclidean":
            distances = np.sqrt(distances)
        if self.scale != 1.0:
            distances = (distances.astype(np.float64) / self.scale ** (2 if self.metric == "inner" else 1)).astype(
                np.float32
            )
        if method == "auto":
            self._look_at(Q)
        computed = found[0][2] if len(found) == 1 else np.sum([f[2] for f in found], axis=0)
        return ids, distances, Counts(computed, NAMES[found[0][3]])  # the oldest segment is the largest

    def _look_at(self, Q: np.ndarray) -> None:
        """Warn, once, where the queries are not of the kind that the recall was measured for."""
        if len(Q) < SOME or self._looked >= 8 or not self.planners:
            return
        self._looked += 1
        if self.planners[0].unlike(Q) > UNLIKE:
            self._looked = 8
            warnings.warn("most of these queries are farther from the data than those that the recall was measured for, so it "
                          "may not be reached: give a sample of them, fit(X, labels, queries=...) or calibrate(queries)", stacklevel=4)  # fmt: skip

    def _windows(self, lo: Any, hi: Any, nq: int) -> tuple[Bounds, Bounds, int]:
        """lo, hi in the labels' type, of shapes that broadcast to (nq,) or (nq, m), and m. Raises ValueError for shapes that do not fit and for lo > hi."""
        dtype = self.label_type
        low, high = bounds(dtype, lo, "lo"), bounds(dtype, hi, "hi")
        shape = low.floor.shape, high.floor.shape
        wide = [s for s in shape if len(s) == 2]
        m = max((s[1] for s in wide), default=1)
        if any(len(s) > 2 or (len(s) == 1 and s[0] not in (1, nq)) for s in shape) or any(
            s[0] not in (1, nq) or s[1] not in (1, m) for s in wide
        ):
            raise ValueError(
                f"lo has shape {shape[0]} and hi {shape[1]} for {nq} queries: give scalars, (nq,), or (nq, m) for unions"
            )
        if wide:  # the others are columns beside it
            low, high = (
                b if len(s) != 1 else Bounds(*(x[:, None] for x in b)) for s, b in zip(shape, (low, high), strict=True)
            )
        wrong = reversed_windows(low, high)
        if wrong.any():
            i = int(np.argwhere(np.atleast_1d(wrong))[0][0])
            raise ValueError(f"lo > hi in window {i} ({_shown(lo, i)} > {_shown(hi, i)}): swap them")
        return low, high, m

    def _search_segment(
        self, planner: Planner, Q, lo, hi, m: int, closed: str, k: int, options: Options, recall: float | None
    ) -> tuple[np.ndarray, ...]:
        """(ids, squared distances, distances computed, methods) of one segment; unions are searched window by window."""
        segment = planner.segment
        S, E = rank_interval(segment.labels, lo, hi, closed)
        if m > 1:
            S, E = disjoint(np.broadcast_to(S, (len(Q), m)), np.broadcast_to(E, (len(Q), m)))
            m = S.shape[1]
        elif S.size != len(Q):
            S, E = np.full(len(Q), S.ravel()[0]), np.full(len(Q), E.ravel()[0])
        costs = self._costs(planner, k, METHODS[options.method], recall)
        many = Q if m == 1 else np.repeat(Q, m, axis=0)
        asked = Asked(many, np.ascontiguousarray(S.ravel()), np.ascontiguousarray(E.ravel()))
        rank, distance, computed, chosen = segment.search(asked, k, options, costs)
        ids = segment.ids[rank]
        if rank[:, -1].min(initial=0) < 0:
            ids[rank < 0] = -1
        if self.metric == "inner":
            product = np.einsum("qkd,qd->qk", segment.X[rank], many)  # the column that is theirs alone is 0 in queries
            distance = np.where(rank >= 0, -product, np.inf).astype(np.float32)
        if m > 1:
            nq = len(Q)
            ids, distance = _merge(
                list(ids.reshape(nq, m, k).swapaxes(0, 1)), list(distance.reshape(nq, m, k).swapaxes(0, 1)), k
            )
            computed, chosen = computed.reshape(nq, m).sum(1), chosen.reshape(nq, m)[:, 0]
        return ids, distance, computed, chosen

    def _costs(self, planner: Planner, k: int, method: str, recall: float | None) -> Costs | None:
        """What auto needs to know; nothing for recall 1, which scans."""
        target = self.recall if recall is None else recall
        return planner.costs(target, self.graph_cost) if method == "auto" and target < 1 else None

    def explain(self, lo: Any, hi: Any, closed: str = "both", k: int = 10, **options: Any) -> dict[str, Any]:
        """The plan of one window: its ranks, the method, its pieces and what auto thinks it costs, in distances.

        Each piece says what is done for which ranks: `scan`, or `graph` with its node and the beam, or, for auto, the distances
        after which the search gives up.
        """
        self._fitted()
        self._check_k(k)
        segment = self.segments[0]
        method = options.pop("method", self.method)
        _choice("method", method, METHODS)
        if unknown := set(options) - {"beam", "multiply", "max_beam", "min_ratio", "compat", "recall"}:
            raise ValueError(f"unknown option {', '.join(sorted(unknown))}: explain takes those of search_counted")
        lo, hi, _ = self._windows(lo, hi, 1)
        s, e = (int(x.ravel()[0]) for x in rank_interval(segment.labels, lo, hi, closed))
        chosen = Options(METHODS.index(method), options.get("beam", 40), options.get("multiply", 1), options.get("max_beam", 10_000),
                         options.get("min_ratio") or 0.0, int(options.get("compat") == "official"))  # fmt: skip
        costs = self._costs(self.planners[0], k, method, options.get("recall"))
        pieces, number, cost = segment.explain(s, e, int(k), chosen, costs)
        listed = [
            {"do": "scan", "ranks": (lo_, hi_)} if node == SCAN else
            {"do": "graph", "ranks": (lo_, hi_), "node": (int(segment.start[node]), int(segment.end[node])),
             "most" if multiply == ADAPT else "beam": beam}
            for node, lo_, hi_, beam, multiply in pieces.tolist()
        ]  # fmt: skip
        return {
            "ranks": (s, e),
            "method": METHODS[number],
            "cost": cost if method == "auto" else None,
            "pieces": listed,
            "promise": f"queries like the sample of {sample} given"
            if (sample := self.planners[0].sample)
            else "queries like the rows of the data",
        }

    # ---- inserts and deletes -----------------------------------------------------------------------------------------

    def insert(self, X: Any, labels: Any) -> np.ndarray:
        """Add rows; returns their ids (m,) int64. Amortised O(log n) rebuilds of a point (Bentley and Saxe's logarithmic method).

        New points form a segment of their own; while a segment is not at least twice as large as the next, they are merged
        into one. A segment that fits a leaf is scanned and has no graphs.
        """
        self._fitted()
        X, labels = self._points(X), in_type(self.label_type, as_labels(labels))
        _same_length(X, labels)
        ids = np.arange(self.next_id, self.next_id + len(X))
        part: tuple[np.ndarray, ...] = (X, labels, ids)
        if (
            self.metric == "inner"
            and len(X)
            and (longest := float((X[:, :-1].astype(np.float64) ** 2).sum(1).max())) > self.longest
        ):
            self._lengthen(part, longest)
            self.next_id += len(X)
            return ids
        kept = list(self.planners)
        while kept and kept[-1].segment.live < 2 * len(part[0]):
            part = _concatenate(part, kept.pop().segment)
        self.planners = [*kept, self._of(part)]  # only now: a build that is interrupted loses no rows
        self.next_id += len(X)
        return ids

    def _lengthen(self, part: tuple[np.ndarray, ...], longest: float) -> None:
        """Build anew with rows longer than all before: the column that makes rows equally long changes in each."""
        for planner in self.planners:
            part = _concatenate(part, planner.segment)
        X = part[0].astype(np.float64)
        X[:, -1] = np.sqrt(np.maximum(longest - (X[:, :-1] ** 2).sum(1), 0.0))
        self.planners = [self._of((X.astype(np.float32), *part[1:]))]
        self.longest = longest

    def delete(self, ids: Any) -> None:
        """Never return these rows again. A segment of which less than half is left is built anew.

        Raises ValueError for an id that is not here (never was, or was deleted), and then deletes nothing.
        """
        self._fitted()
        ids = np.unique(np.atleast_1d(np.asarray(ids)))
        if not len(ids):
            return
        if ids.dtype.kind not in "iu":
            raise ValueError(f"ids are {ids.dtype}: give row numbers")
        found = [segment.find(ids) for segment in self.segments]
        known = np.concatenate(
            [ids[np.isin(ids, segment.ids[ranks])] for segment, ranks in zip(self.segments, found, strict=True)]
        )
        if len(missing := np.setdiff1d(ids, known)):
            raise ValueError(
                f"there is no row {missing[0]} to delete (and {len(missing) - 1} more): it was never here, or was deleted"
            )
        for segment, ranks in zip(self.segments, found, strict=True):
            segment.bury(ranks)
        kept = [planner for planner in self.planners if planner.segment.live]
        self.planners = [self._of(_living(p.segment)) if 2 * p.segment.live < len(p.segment.X) else p for p in kept]

    def _of(self, part: tuple[np.ndarray, ...]) -> Planner:
        X, labels, ids = part
        return self._segment(X, labels, ids, graphs=len(X) > self.shape.cutoff)

    def __len__(self) -> int:
        return sum(segment.live for segment in self.segments)

    def _check_k(self, k: Any) -> None:
        if (
            not isinstance(k, int | float | np.integer | np.floating) or k % 1 or not 1 <= k <= len(self)
        ):  # NaN % 1 is NaN, inf too
            raise ValueError(
                f"k is {k!r}: give 1 to {len(self)}, the number of points"
                if len(self)
                else "every row was deleted: insert some, or fit anew"
            )

    def _fitted(self) -> None:
        if not self.built_for:
            raise ValueError("this index is empty: call fit(X, labels) first")

    # ---- storing -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that it takes to make this index again: text and numbers under `settings`, arrays under `segments`."""
        self._fitted()
        settings = {"method": self.method, "metric": self.metric, "recall": self.recall, "graph_cost": self.graph_cost,
                    "shape": self.shape._asdict(), "next_id": self.next_id, "d": self.d, "built_for": self.built_for,
                    "label_type": self.label_type.str, "scale": self.scale, "longest": self.longest}  # fmt: skip
        return {"settings": settings, "segments": [p.segment.state() | p.state() for p in self.planners]}

    @classmethod
    def from_state(cls, state: dict[str, Any], threads: int | None = None) -> WindowIndex:
        s = state["settings"]
        index = cls(
            s["method"], s["metric"], recall=s["recall"], graph_cost=s["graph_cost"], threads=threads, **s["shape"]
        )
        index.next_id, index.d, index.built_for = s["next_id"], s["d"], s["built_for"]
        index.label_type, index.scale, index.longest = np.dtype(s["label_type"]), s["scale"], s["longest"]
        parts = state["segments"]
        segments = [Segment.from_state(part, index.shape, index.threads) for part in parts]
        index.planners = [Planner.from_state(segment, part) for segment, part in zip(segments, parts, strict=True)]
        return index

    def __reduce__(self) -> tuple:
        """For pickle, copy.deepcopy and joblib: all arrays travel, so `save` and `load` are lighter between processes of one machine."""
        return _unpickled, (self.get_params(), self.state() if self.built_for else None)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What the constructor takes, as scikit-learn's `clone` wants it."""
        return {"method": self.method, "metric": self.metric, "recall": self.recall, "graph_cost": self.graph_cost,
                "threads": self.threads, **self.shape._asdict()}  # fmt: skip

    def save(self, path: str | os.PathLike) -> None:
        """Write a folder of arrays that `load` maps into memory. An earlier index there is replaced in one step."""
        storage.save(Path(path), self.state())

    @classmethod
    def load(
        cls, path: str | os.PathLike, X: Any = None, labels: Any = None, threads: int | None = None, verify: bool = True
    ) -> WindowIndex:
        """The index saved at `path`, memory-mapped. With X and labels, the data it must have been fitted on.

        verify: compare every array with its checksum (reads them all). Raises ValueError where the folder is no index, is
        damaged, or was built for other data.
        """
        if (X is None) != (labels is None):
            raise ValueError("give both X and labels, or neither: the index is compared with the two together")
        index = cls.from_state(storage.load(Path(path), verify), threads)
        if X is not None:
            index_points = index._points(X)
            if content_hash(index_points, as_labels(labels)) != index.built_for:
                raise ValueError(f"the index at {path} was built for other data: fit a new one")
        return index


def _unpickled(params: dict[str, Any], state: dict[str, Any] | None) -> WindowIndex:
    return WindowIndex.from_state(state, params["threads"]) if state else WindowIndex(**params)


def _choice(name: str, value: Any, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise ValueError(f"{name} is {value!r}: choose {', '.join(valid)}")


def _shown(bound: Any, i: int) -> Any:
    """The bound of the i-th window as it was given."""
    bound = np.asarray(bound)
    return bound if bound.ndim == 0 else bound[i if len(bound) > 1 else 0]


def _same_length(X: np.ndarray, labels: np.ndarray) -> None:
    if len(X) != len(labels):
        raise ValueError(f"X has {len(X)} rows and labels {len(labels)}: give one label a row")


def _merge(ids: list[np.ndarray], distances: list[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest of several answers, (nq, k) each, whose points are disjoint; ties by id."""
    if len(ids) == 1:
        return ids[0], distances[0]
    every, far = np.concatenate(ids, axis=1), np.concatenate(distances, axis=1)
    order = np.lexsort((every, far), axis=1)[:, :k]
    return np.take_along_axis(every, order, 1), np.take_along_axis(far, order, 1)


def _living(segment: Segment) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    alive = segment.alive
    return segment.X[alive], segment.labels[alive], segment.ids[alive]


def _concatenate(part: tuple[np.ndarray, ...], segment: Segment) -> tuple[np.ndarray, ...]:
    return tuple(np.concatenate([old, new]) for old, new in zip(_living(segment), part, strict=True))
