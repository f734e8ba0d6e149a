"""A static index: points sorted by label, the nodes over them, a graph at each node that the methods need, and searching."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import NamedTuple

import numpy as np

from papers.window_ann import executor, vamana
from papers.window_ann.beam import Answers, Place, Scratch, no_answers, scratch
from papers.window_ann.compiled import aligned
from papers.window_ann.executor import Asked, Graphs, Points
from papers.window_ann.overlap import OverlappingRows
from papers.window_ann.plans import AUTO, Costs, Layout, Options, no_costs, piece_room, plan
from papers.window_ann.tree import Tree

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
NO_PIECES = np.empty((0, 5), np.int64)
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

    def __init__(self, X: np.ndarray, labels: np.ndarray, ids: np.ndarray, parts: str, shape: Shape, threads: int):
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
        self.points = Points(self.X, np.arange(len(X) + 1))
        self.repaired = 0
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

    def build(self, progress: Callable[[Iterable, str], Iterable] | None = None) -> Segment:
        """Build the graph of every node that is wanted. The same seed gives the same graphs on any number of threads."""
        track = progress or (lambda nodes, description: nodes)
        self.G = aligned((self.stored, self.shape.R), np.int32)
        large = [node for node in self.owners if self.end[node] - self.start[node] > LARGE]
        small = [node for node in self.owners if self.end[node] - self.start[node] <= LARGE]
        with ThreadPoolExecutor(self.threads) as pool:
            for node in track(large, "graphs of large nodes"):
                self.repaired += self._build_node(node, pool.map, self.threads)
            for added in track(_Sized(pool.map(self._build_node, small), len(small)), "graphs of small nodes"):
                self.repaired += added
        for node, owner in self.owner.items():
            self.layout.entry[node] = self.layout.entry[owner]
        return self

    def _build_node(self, node: int, run: Callable = map, workers: int = 1) -> int:
        start, end = int(self.start[node]), int(self.end[node])
        generator = np.random.default_rng([self.shape.seed, start, end])  # a node's graph depends on its range alone
        entry = vamana.medoid(self.X[start:end]) if self.shape.start == "medoid" else 0
        self.layout.entry[node] = entry
        place = Place(start, end - start, int(self.layout.graph[node]), entry)
        return vamana.build_into(self.X, self.G, place, self.shape.L, self.shape.alpha, generator, run, workers)

    # ---- searching ---------------------------------------------------------------------------------------------------

    @property
    def graphs(self) -> Graphs:
        return Graphs(self.G, self.layout)

    def search(self, asked: Asked, k: int, options: Options, costs: Costs | None = None) -> Answers:
        """Ranks, squared distances, distances computed and methods chosen."""
        return self._spread(asked, k, options, costs or no_costs(), NO_PIECES)

    def search_pieces(self, Q: np.ndarray, pieces: np.ndarray, k: int) -> Answers:
        """One piece for each query: what the planner measures. pieces: (nq, 5) int64."""
        none = np.zeros(len(Q), np.int64)
        return self._spread(Asked(Q, none, none), k, Options(AUTO, 1, 1, 10_000, 0.0, 0), no_costs(), pieces)

    def _spread(self, asked: Asked, k: int, options: Options, costs: Costs, given: np.ndarray) -> Answers:
        """Cut the batch into parts and give them to threads; a query's answer does not depend on the cutting."""
        nq = len(asked.Q)
        answers, graphs = no_answers(nq, k, options.method), self.graphs
        size = max(1, -(-nq // (8 * self.threads)) if self.threads > 1 else min(nq, 4096))  # Ctrl-C waits for a part
        widest = min(options.max_beam, len(self.X))

        def part(i: int) -> None:
            cut = slice(i, i + size)
            work = self._borrow(widest)
            executor.search_part(
                self.points, graphs, costs, asked.part(cut), options, given[cut], answers.part(cut), work
            )
            self._scratch.put(work)

        self.in_threads(part, range(0, nq, size))
        return answers

    def in_threads(self, part: Callable[[int], None], starts: Sequence[int]) -> None:
        """part(i) for every i of `starts`; this thread and helpers take the next one as they become free."""
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

    def explain(self, s: int, e: int, options: Options, costs: Costs | None) -> tuple[np.ndarray, int, float]:
        """(pieces, method, estimated cost) of one window."""
        room = piece_room(self.layout)
        pieces, spare = np.empty((room, 5), np.int64), np.empty((room, 5), np.int64)
        count, method, cost = plan(self.layout, self.points.live, costs or no_costs(), s, e, options, pieces, spare)
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
        parts = np.array([part in self.parts for part in "rto"])
        return {"X": self.X, "labels": self.labels, "ids": self.ids, "alive": self.alive, "G": self.G, "entry": self.layout.entry, "parts": parts}  # fmt: skip

    @classmethod
    def from_state(cls, state: dict[str, np.ndarray], shape: Shape, threads: int) -> Segment:
        parts = "".join(part for part, here in zip("rto", state["parts"], strict=True) if here)
        segment = cls(state["X"], state["labels"], state["ids"], parts, shape, threads)
        if len(state["G"]) != segment.stored or len(state["entry"]) != len(segment.start):
            raise ValueError("the index does not fit its own data: build it again")
        segment.G = state["G"]
        segment.layout.entry[:] = state["entry"]
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
