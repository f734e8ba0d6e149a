"""What the automatic planner knows: how many points to expand for the wanted recall, and what that costs, measured on the index.

The paper leaves the choice of method to the user. Here `fit` measures, on graphs of a few sizes, how many of the r nearest
are found by a search that expands b points (`probe.curve`). A search inside a window then looks at the place r that its k-th
best has among all that it has seen and goes on as long as those curves ask (`executor.adapt`): where labels go with places
it ends early, where the window is far it goes on, and gives up at the price of a scan.

The queries are points that wait outside while their graph is built (points that a graph holds are too easy to find in it):
half from among the node's own points, half from elsewhere (where labels go with places those are another kind of query). So
measuring builds nothing, and holds for every k. Prices count distances: the same data and seed give the same plans.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from papers.window_ann import probe
from papers.window_ann.executor import Asked, place_of
from papers.window_ann.plans import CLOSE, FAR, NEAR, POSTFILTER, SURE, Costs, Options
from papers.window_ann.segment import Segment
from papers.window_ann.twins import representatives

BEAMS = np.unique(np.ceil(2.0 ** np.arange(1, 8.6, 0.5)).astype(np.int64))  # points expanded
RANKS = np.unique(np.round(2.0 ** np.arange(0, 8.1, 0.5)).astype(np.int64))  # the r nearest
SIZES = 4  # node sizes that are measured
NODES = 2  # at most so many of one size
QUERIES = 48  # of one node, and so many from elsewhere
ENOUGH = 12  # of those, to go by
ASKED = 32  # queries that are compared with those
NEXT_TO = 0.2  # of the distance to the tenth neighbour: how close to a point CLOSE queries are
WITHIN = 0.95
DRIFT = 0.28  # `apart` is a third where labels are independent
MARGIN = 0.1  # of what the wanted recall leaves to 1, added to it: what is measured on a few queries is not sure


class Curves(NamedTuple):
    """sizes: (a,) log2 of node sizes; found: (3, a, beams, ranks), for queries of NEAR, FAR and CLOSE;
    cost: (3, a, beams); reach: (a, ranks) squared distance to the r-th nearest that WITHIN of the near queries keep; apart:
    (1,), a third where the nearest of a query have any label, less where labels go with places; gather: (a, 2), how many
    times k of the nearest hold k of a window of a half and a quarter of the node, around the query: 2 and 4, or fewer there.
    """

    sizes: np.ndarray
    found: np.ndarray
    cost: np.ndarray
    reach: np.ndarray
    apart: np.ndarray
    gather: np.ndarray

    def costs(self, target: float, graph_cost: float, most: float) -> Costs:
        """For every r the points to expand for `target` recall, interpolated between what was measured, and their price."""
        target = target + MARGIN * (1 - target)
        every = np.arange(RANKS[-1] + 1)
        limits = np.ones((3, len(self.sizes), len(every)), np.int64)
        prices = np.full(limits.shape, np.inf)
        for where, a in np.ndindex(3, len(self.sizes)):
            beams = np.array([_beam_for(self.found[where, a, :, r], target) for r in range(len(RANKS))])
            beams = np.maximum.accumulate(beams)
            log = np.interp(np.log2(np.maximum(every, 1)), np.log2(RANKS), beams)
            if where == FAR:  # what is closer than the window is all looked at: a part of it says nothing of the rest
                log = np.maximum(log, np.log2(np.maximum(every, 1)))
            limits[where, a] = np.ceil(2.0 ** np.minimum(log, 40.0))
            slope = np.log2(self.cost[where, a])
            price = np.interp(log, np.log2(BEAMS), slope) + np.maximum(log - np.log2(BEAMS[-1]), 0)
            prices[where, a] = 2.0**price
        log_ranks = np.log2(np.maximum(every, 1))
        reach = np.array([np.interp(log_ranks, np.log2(RANKS), row) for row in self.reach], np.float32)
        return Costs(
            self.sizes, limits, prices, reach, self.gather, np.array([graph_cost]), np.array([most]), self.apart < DRIFT
        )


def _beam_for(found: np.ndarray, target: float) -> float:
    """log2 of the least beam with recall of at least target; where none was measured, as if the misses halved with each doubling."""
    found = np.maximum.accumulate(found)
    log = np.log2(BEAMS)
    if found[0] >= target:
        return float(log[0])
    if found[-1] < target:
        return float(log[-1] + np.log2((1 - found[-1]) / (1 - target)))
    i = int(np.argmax(found >= target))
    return float(log[i - 1] + (target - found[i - 1]) / (found[i] - found[i - 1]) * (log[i] - log[i - 1]))


class Planner:
    """Prices for the searches of one segment. It watches the segment being built: `segment.build(watch=planner.watch)`."""

    def __init__(self, segment: Segment, curves: Curves | None = None):
        self.segment, self.curves = segment, curves
        self.sample = 0  # queries of the user's own that were measured
        self._seen: dict[int, list[probe.Curve]] = {}
        self._prices: dict[tuple[float, float], Costs] = {}
        self._nodes = self._choose()

    def _choose(self) -> dict[int, int]:
        """node -> which of the sizes it stands for: a few nodes of a few sizes, from the smallest to the root."""
        segment = self.segment
        owners = np.array(segment.owners, np.int64)
        if not len(owners):
            return {}
        logs = np.log2(segment.end[owners] - segment.start[owners])
        ladder = np.linspace(logs.min(), logs.max(), SIZES)
        sizes = np.unique(logs[[np.argmin(abs(logs - x)) for x in ladder]])
        chosen = {}
        for a, size in enumerate(sizes):
            there = owners[logs == size]
            for i in np.unique(np.linspace(0, len(there) - 1, NODES).round().astype(int)):
                chosen[int(there[i])] = a
        self._sizes = sizes
        return chosen

    def watch(self, node: int) -> tuple[int, Callable | None]:
        """(how many points of a node to hold back, what to do with the graph without them)."""
        return (QUERIES, self._measure) if node in self._nodes else (0, None)

    def _measure(self, node: int, place, inside: np.ndarray, held: np.ndarray) -> None:
        segment, n = self.segment, len(self.segment.X)
        generator = np.random.default_rng([segment.shape.seed, node])
        away = generator.choice(n, min(n, 2 * QUERIES), replace=False)
        away = away[(away < place.first) | (away >= place.first + place.size)][:QUERIES]
        near = segment.X[place.first + held]
        far = segment.X[away] if len(away) else near
        # next to a point, in any direction from it
        some = place.first + generator.permutation(np.flatnonzero(inside))[:QUERIES]
        step = generator.standard_normal((len(some), near.shape[1]))
        step *= NEXT_TO * probe.distance_to(segment.X, place, inside, some, 10) / np.linalg.norm(step, axis=1)[:, None]
        close = (segment.X[some] + step).astype(np.float32)
        beams = BEAMS[: max(2, np.searchsorted(BEAMS, place.size))]
        asked = (near, held), (far, None), (close, None)
        self._seen[node] = [
            probe.curve(segment.X, segment.G, place, inside, Q, beams, RANKS, home) for Q, home in asked
        ]

    def calibrate(self, Q: np.ndarray) -> None:
        """Measure with queries of the user's own, on the graphs as they are."""
        segment = self.segment
        for node in self._nodes:
            place = place_of(segment.layout, node)
            inside = representatives(segment.points.twins, place.first, place.size)
            beams = BEAMS[: max(2, np.searchsorted(BEAMS, place.size))]
            self._seen[node] = 3 * [probe.curve(segment.X, segment.G, place, inside, Q[: 4 * QUERIES], beams, RANKS)]
        self.finish()
        self.sample = len(Q)
        self._prices = {}

    def unlike(self, Q: np.ndarray) -> float:
        """The share of some queries whose tenth neighbour is farther than it was for nearly all queries that were measured."""
        if self.curves is None:
            return 0.0
        segment, few = self.segment, Q[:ASKED]
        none, k = np.zeros(len(few), np.int64), min(10, segment.live)
        found = segment.search(
            Asked(few, none, none + len(segment.X)), k, Options(POSTFILTER, 2 * k, 1, 10_000, 0.0, 0)
        )
        reach = np.interp(np.log2(k), np.log2(RANKS), self.curves.reach[-1])
        return float((found.distances[:, -1] > reach).mean())

    def finish(self) -> None:
        """Put together what was seen."""
        by_size: dict[int, list[list[probe.Curve]]] = {}
        for node in sorted(self._seen):
            by_size.setdefault(self._nodes[node], []).append(self._seen[node])
        if not by_size:
            return
        here = sorted(by_size)
        found = np.ones((3, len(here), len(BEAMS), len(RANKS)))
        cost, reach = np.zeros((3, len(here), len(BEAMS))), np.empty((len(here), len(RANKS)))
        for a, size in enumerate(here):
            for where in (NEAR, FAR, CLOSE):
                curves = [seen[where] for seen in by_size[size]]
                measured = min(len(curve.cost) for curve in curves)  # wider beams than the node has points find all
                shares = [curve.outer if where == FAR else curve.found for curve in curves]
                found[where, a, :measured] = np.mean([share[:measured] for share in shares], axis=0)
                cost[where, a, :measured] = np.mean([curve.cost[:measured] for curve in curves], axis=0)
                cost[where, a, measured:] = cost[where, a, measured - 1]
            if min(len(seen[NEAR].reach) for seen in by_size[size]) < ENOUGH:  # a few points: all of them, then
                found[:, a, :-1], found[:, a, -1] = 0.0, 1.0
            found[NEAR, a] = np.minimum(found[NEAR, a], found[CLOSE, a])
            reach[a] = np.quantile(np.concatenate([seen[NEAR].reach for seen in by_size[size]]), WITHIN, axis=0)
        gather = np.array([np.mean([seen[NEAR].gather for seen in by_size[size]], axis=0) for size in here])
        apart = np.array([np.mean([seen[NEAR].apart for seen in by_size[here[-1]]])])
        self.curves, self._seen = Curves(self._sizes[here], found, cost, reach, apart, gather), {}

    def costs(self, target: float, graph_cost: float) -> Costs | None:
        """What `plan` needs for a recall; None where there are no graphs."""
        if self.curves is None:
            return None
        if (target, graph_cost) not in self._prices:
            self._prices[target, graph_cost] = self.curves.costs(target, graph_cost, SURE * self.segment.shape.R)
        return self._prices[target, graph_cost]

    def state(self) -> dict[str, np.ndarray]:
        """The arrays that `from_state` needs."""
        sample = {"sample": np.array([self.sample])}
        return (
            sample
            if self.curves is None
            else sample | {f"curves_{name}": array for name, array in self.curves._asdict().items()}
        )

    @classmethod
    def from_state(cls, segment: Segment, state: dict[str, np.ndarray]) -> Planner:
        here = "curves_sizes" in state
        planner = cls(
            segment, Curves(*(np.array(state[f"curves_{name}"]) for name in Curves._fields)) if here else None
        )
        planner.sample = int(state["sample"][0])
        return planner
