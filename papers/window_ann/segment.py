"""A static index: points sorted by label, the nodes over them, a graph at each node that the methods need, and searching."""

from __future__ import annotations

import os
import queue
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from papers.window_ann import executor, probe, twins, vamana
from papers.window_ann.beam import Answers, Place, Scratch, no_answers, scratch
from papers.window_ann.compiled import aligned
from papers.window_ann.executor import Asked, Graphs, Points
from papers.window_ann.overlap import OverlappingRows
from papers.window_ann.plans import Costs, Layout, Options, no_costs, piece_room, plan
from papers.window_ann.tree import Tree
from papers.window_ann.twins import Twins

# what each method searches: the root's graph, the tree's, the overlapping rows'
NEEDS = {
    "prefilter": "",
    "postfilter": "r",
    "tree": "rt",
    "optimized_postfilter": "rt",
    "three_split": "rt",
    "super_postfilter": "ro",
    "auto": "rto",
}
Watch = Callable[
    [int], tuple[int, Callable | None]
]  # node -> (points to hold back, what looks at its graph without them)
CHECKED = 16  # points that every graph must find the neighbours of before it takes them in
FINE = 0.95  # of their ten nearest, by a search that expands 40 points: below, hubs may be in the way
SOUND = 0.75  # below, a graph is built again, more densely
DENSER = 1.2  # with at least this alpha and twice the build beam
POOR = 0.5  # below, the user is told
LARGE = 4096  # a node of more points is built by all threads together, smaller ones side by side


class Shape(NamedTuple):
    """Which nodes there are, and their graphs. beta, cutoff: of the tree; shift, overlap: of the overlapping rows; the rest: see `vamana.build`."""

    beta: int = 2
    cutoff: int = 1000
    shift: float = 0.5
    overlap: float = 2.0
    R: int = 32
    L: int = 64
    alpha: float = 1.0
    start: str = "medoid"
    seed: int = 0


@cache
def _pool(helpers: int) -> ThreadPoolExecutor:
    """Threads that wait for the next search: starting them anew would cost more than a short search does."""
    return ThreadPoolExecutor(helpers)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads


class Segment:
    """n points in label order. X: (n, d) float32, labels: (n,), ids: (n,) int64, the caller's row numbers.

    parts: which nodes get a graph, a string of r (root), t (tree), o (overlapping rows).
    """

    def __init__(
        self,
        X: np.ndarray,
        labels: np.ndarray,
        ids: np.ndarray,
        parts: str,
        shape: Shape,
        threads: int,
        equal: Twins | None = None,
    ):
        if np.all(labels[1:] >= labels[:-1]):  # sorted already (read from disk): no copy
            self.X, self.labels, self.ids = X, labels, ids
        else:
            order = np.argsort(labels, kind="stable")
            self.X, self.labels, self.ids = aligned(X.shape, X.dtype), labels[order], ids[order]
            np.take(X, order, axis=0, out=self.X, mode="clip")  # raise would buffer
        self.parts, self.shape, self.threads = parts, shape, threads
        self.tree = Tree(len(X), shape.beta, shape.cutoff)
        self.overlap = OverlappingRows(len(X), shape.overlap, shape.cutoff, shape.shift)
        self._lay_out()
        self.G = np.empty((0, 1), np.int32)
        self.points = Points(self.X, np.arange(len(X) + 1), twins.find(self.X) if equal is None else equal)
        self.repaired = 0
        self.health: dict[int, float] = {}  # node -> recall@10 of a search that expands 40 points, when it was built
        self._scratch: queue.SimpleQueue = queue.SimpleQueue()

    def _lay_out(self) -> None:
        """Number the nodes; nodes of equal range that are wanted share one graph, built in order of first use."""
        buckets = np.concatenate([self.tree.buckets(), self.overlap.buckets()])
        self.start, self.end = np.ascontiguousarray(buckets[:, 0]), np.ascontiguousarray(buckets[:, 1])
        trees = len(self.tree.buckets())
        wanted = np.zeros(len(buckets), bool)
        wanted[0] = "r" in self.parts
        wanted[:trees] |= "t" in self.parts
        wanted[trees:] |= "o" in self.parts
        graph = np.full(len(buckets), -1, np.int64)
        self.owners: list[int] = []  # the nodes whose graph is built; others of the same range use it
        row, seen = 0, {}
        for node in np.flatnonzero(wanted):
            range_ = (self.start[node], self.end[node])
            if range_ not in seen:
                seen[range_] = node
                self.owners.append(int(node))
                graph[node] = row
                row += range_[1] - range_[0]
            graph[node] = graph[seen[range_]]
        self.stored = int(row)  # points stored over all built nodes
        self.owner = {int(node): int(seen[self.start[node], self.end[node]]) for node in np.flatnonzero(wanted)}
        first = self.tree.first.astype(np.int64)
        self.layout = Layout(self.start, self.end, graph, np.zeros(len(buckets), np.int64), self.tree.offsets, first, self.overlap.size,
                             self.overlap.shift, self.overlap.count, trees + self.overlap.first[:-1],
                             np.array([self.shape.cutoff]), np.array([self.shape.beta]))  # fmt: skip

    # ---- building ----------------------------------------------------------------------------------------------------

    def build(self, progress: Callable[[Iterable, str], Iterable] | None = None, watch: Watch | None = None) -> Segment:
        """Build the graph of every node that is wanted. The same seed gives the same graphs on any number of threads.

        watch: which nodes hold back points, and who looks at their graphs meanwhile (`Planner.watch`).
        """
        track = progress or (lambda nodes, description: nodes)
        self.G = aligned((self.stored, self.shape.R), np.int32)
        large = [node for node in self.owners if self.end[node] - self.start[node] > LARGE]
        small = [node for node in self.owners if self.end[node] - self.start[node] <= LARGE]
        build_small = partial(self._build_node, watch)
        with ThreadPoolExecutor(self.threads) as pool:
            for node in track(large, "graphs of large nodes"):
                self.repaired += self._build_node(watch, node, pool.map, self.threads)
            for added in track(_Sized(pool.map(build_small, small), len(small)), "graphs of small nodes"):
                self.repaired += added
        for node, owner in self.owner.items():
            self.layout.entry[node] = self.layout.entry[owner]
        self._warn()
        return self

    def _build_node(self, watch: Watch | None, node: int, run: Callable = map, workers: int = 1) -> int:
        """A graph is built again, more densely, where it finds too little of points that it does not hold yet."""
        start, end = int(self.start[node]), int(self.end[node])
        entry = vamana.medoid(self.X[start:end]) if self.shape.start == "medoid" else 0
        self.layout.entry[node] = twins.first_equal(self.points.twins, start + entry, start) - start
        place = executor.place_of(self.layout, node)
        there = twins.representatives(self.points.twins, start, end - start)
        held, look = watch(node) if watch else (0, None)
        held = min(max(held, CHECKED), int(there.sum()) // 8)
        look_at = partial(self._examine, node, place, there, look) if held else None
        rows, mute = slice(place.row, place.row + place.size), vamana.NO_HUBS
        L, alpha, kept = self.shape.L, self.shape.alpha, None
        while True:
            before = self.health.get(node)
            generator = np.random.default_rng(
                [self.shape.seed, start, end]
            )  # a node's graph depends on its range alone
            added = vamana.build_into(self.X, self.G, place, self.points.twins, L, alpha, generator, run, workers, held=held,
                                      probe=look_at, mute=mute)  # fmt: skip
            if not held:
                break
            if kept and self.health[node] == before:  # no better than it was
                self.G[rows], added = kept
            if L > self.shape.L:
                break
            known, extreme = vamana.hubs(self.G[rows]) if not len(mute) else (mute, False)
            if len(mute) or not known.any() or not (extreme or self.health[node] < FINE):
                if self.health[node] >= SOUND:
                    break
                L, alpha = 2 * L, max(alpha, DENSER)
            mute, kept = known, (self.G[rows].copy(), added)
        return int(added)

    def _examine(self, node: int, place: Place, there: np.ndarray, look: Callable | None, held: np.ndarray) -> None:
        inside = there.copy()
        inside[held] = False
        Q = self.X[place.first + held[:CHECKED]]
        found = float(probe.curve(self.X, self.G, place, inside, Q, np.array([40]), np.array([10])).found[0, 0])
        if found > self.health.get(node, -1.0):
            self.health[node] = found
            if look is not None:
                look(node, place, inside, held)

    def _warn(self) -> None:
        poor = [node for node, found in self.health.items() if found < POOR]
        if poor:
            worst = min(self.health[node] for node in poor)
            warnings.warn(f"{len(poor)} of {len(self.health)} graphs find few of the neighbours of points they do not hold (the worst "
                          f"{worst:.2f} of them): searches will be wide, or scans; more edges (R) and a wider build beam (L) help", stacklevel=2)  # fmt: skip

    # ---- searching ---------------------------------------------------------------------------------------------------

    @property
    def graphs(self) -> Graphs:
        return Graphs(self.G, self.layout)

    def search(self, asked: Asked, k: int, options: Options, costs: Costs | None = None) -> Answers:
        """Ranks, squared distances, distances computed and methods chosen.

        The batch is cut into parts, which threads take; a query's answer does not depend on the cutting.
        """
        nq, costs = len(asked.Q), costs or no_costs()
        answers, graphs = no_answers(nq, k, options.method), self.graphs
        size = max(1, -(-nq // (8 * self.threads)) if self.threads > 1 else min(nq, 4096))  # Ctrl-C waits for a part
        widest = min(options.max_beam, len(self.X))

        def part(i: int) -> None:
            cut = slice(i, i + size)
            work = self._borrow(widest)
            executor.search_part(self.points, graphs, costs, asked.part(cut), options, answers.part(cut), work)
            self._scratch.put(work)

        self.in_threads(part, range(0, nq, size))
        return answers

    def in_threads(self, part: Callable[[int], None], starts: Sequence[int]) -> None:
        """part(i) for every i of `starts`; this thread and helpers take the next one as they become free."""
        if len(starts) == 1 or self.threads == 1:
            for i in starts:
                part(i)
            return
        todo = iter(starts)

        def work() -> None:
            for i in todo:
                part(i)

        helpers = [_pool(self.threads - 1).submit(work) for _ in range(min(self.threads, len(starts)) - 1)]
        try:
            work()
        finally:
            wait(helpers)
        for helper in helpers:
            helper.result()

    def _borrow(self, beam: int) -> Scratch:
        """A thread's scratch space, made once and passed from search to search."""
        try:
            work = self._scratch.get_nowait()
        except queue.Empty:
            work = None
        if work is None or len(work.keys) <= beam or work.stamp[0] > 2**30:
            work = scratch(len(self.X), beam, max(self.G.shape[1], 1))
        return work

    def explain(self, s: int, e: int, k: int, options: Options, costs: Costs | None) -> tuple[np.ndarray, int, float]:
        """(pieces, method, estimated cost) of one window."""
        room = piece_room(self.layout)
        pieces, spare = np.empty((room, 5), np.int64), np.empty((room, 5), np.int64)
        count, method, cost = plan(self.layout, self.points.live, costs or no_costs(), s, e, k, options, pieces, spare)
        return pieces[:count], int(method), float(cost)

    # ---- deleting, storing -------------------------------------------------------------------------------------------

    @property
    def alive(self) -> np.ndarray:
        """Which ranks are not deleted, (n,) bool."""
        return np.diff(self.points.live) > 0

    @property
    def live(self) -> int:
        return int(self.points.live[-1])

    def find(self, ids: np.ndarray) -> np.ndarray:
        """The ranks of those `ids` that are here and not deleted."""
        return np.flatnonzero(np.isin(self.ids, ids) & self.alive)

    def bury(self, ranks: np.ndarray) -> None:
        """Tombstones: these ranks are never returned again; searches still pass through them."""
        alive = self.alive
        alive[ranks] = False
        self.points.live[1:] = np.cumsum(alive)

    def state(self) -> dict[str, np.ndarray]:
        """The arrays that `from_state` needs."""
        return {"X": self.X, "labels": self.labels, "ids": self.ids, "alive": self.alive, "G": self.G, "entry": self.layout.entry,
                "parts": np.array([part in self.parts for part in "rto"]), "before": self.points.twins.before,
                "checked": np.array(sorted(self.health), np.int64), "health": np.array([self.health[i] for i in sorted(self.health)])}  # fmt: skip

    @classmethod
    def from_state(cls, state: dict[str, np.ndarray], shape: Shape, threads: int) -> Segment:
        """Raises ValueError for arrays that do not fit together. Edges are not read: searches take none that leads out of its graph."""
        X, n = state["X"], len(state["X"])
        parts = "".join(part for part, here in zip("rto", state["parts"], strict=True) if here)
        fits = (
            X.ndim == 2 and X.dtype == np.float32 and all(len(state[name]) == n for name in ("labels", "ids", "alive"))
        )
        if not fits or len(state["before"]) not in (0, n):
            raise ValueError("the index does not fit its own data: build it again")
        segment = cls(
            X, state["labels"], state["ids"], parts, shape, threads, twins.from_before(np.asarray(state["before"]))
        )
        entry, G = state["entry"], state["G"]
        if (
            len(G) != segment.stored
            or G.ndim != 2
            or G.dtype != np.int32
            or len(entry) != len(segment.start)
            or segment.X is not X
        ):
            raise ValueError("the index does not fit its own data: build it again")
        if (entry < 0).any() or (entry >= segment.end - segment.start).any():
            raise ValueError("the index is damaged (entry): build it again")
        segment.G = G
        segment.layout.entry[:] = entry
        segment.health = dict(zip(state["checked"].tolist(), state["health"].tolist(), strict=True))
        segment.bury(np.flatnonzero(~state["alive"]))
        return segment


class _Sized:
    """An iterator that knows its length, for a bar with an ETA."""

    def __init__(self, iterable: Iterable, length: int):
        self.iterable, self.length = iterable, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self):
        return iter(self.iterable)
