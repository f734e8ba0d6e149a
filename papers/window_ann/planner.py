"""What the automatic planner knows: how wide a beam reaches the wanted recall, and what that costs, measured on the index.

The paper leaves the choice of method to the user. Here each piece a method might use is priced by two numbers: the size of
its node and its blowup (node size / points of the window in it). For a few sizes and blowups the searches are really made.
The queries are points of the data, left out of a graph that is built for the purpose (points that a graph holds are too easy
to find in it), and from all over the data (a node's own points are too easy where labels go with places). Between what was
measured the logarithms are interpolated.
Prices count distances, so the same data and seed give the same plans.
"""

from __future__ import annotations

import numpy as np

from papers.window_ann.plans import NEVER, Costs
from papers.window_ann.segment import Segment

# in units of k * blowup: about so many candidates hold k points of the window
BEAMS = (1, 1.4, 2, 2.8, 4, 5.6, 8, 11, 16)
BLOWUPS = (1, 2, 4, 8, 16, 32)
SIZES = 4  # node sizes that are measured
NODES = 4  # at most so many of one size
QUERIES = 96  # of one size


class Measured:
    """beam, recall, distances: (sizes, blowups, beams); sizes: log2 of node sizes. Recall 0 where a cell was not measured."""

    def __init__(self, sizes: np.ndarray, beam: np.ndarray, recall: np.ndarray, distances: np.ndarray):
        self.sizes, self.beam, self.recall, self.distances = sizes, beam, recall, distances

    def costs(self, target: float, graph_cost: float) -> Costs:
        """Prices of reaching `target` recall: the cheapest measured beam that does, or one interpolated between two."""
        beam, cost = np.full(self.recall.shape[:2], 30.0), np.full(self.recall.shape[:2], NEVER)
        for cell in np.ndindex(beam.shape):
            recall, distances, beams = self.recall[cell], np.log2(self.distances[cell]), np.log2(self.beam[cell])
            choices = [(distances[i], beams[i]) for i in np.flatnonzero(recall >= target)]
            for i in np.flatnonzero((recall[:-1] < target) & (recall[1:] > target)):
                part = (target - recall[i]) / (recall[i + 1] - recall[i])
                choices.append(
                    ((1 - part) * distances[i] + part * distances[i + 1], (1 - part) * beams[i] + part * beams[i + 1])
                )
            if choices:
                cost[cell], beam[cell] = min(choices)
        return Costs(
            self.sizes, np.log2(np.array(BLOWUPS, np.float64)), beam, cost, np.array([graph_cost, 2.0 ** cost.min()])
        )


class Planner:
    """Prices for the searches of one segment: `costs` measures them at the first call for a k."""

    def __init__(self, segment: Segment, measured: dict[int, Measured] | None = None):
        self.segment, self.measured = segment, measured or {}
        self._prices: dict[tuple[int, float, float], Costs] = {}

    def calibrate(self, k: int) -> Measured:
        """What searches for the k nearest cost, measured once. The same seed and data give the same figures."""
        if k not in self.measured:
            self.measured[k] = measure(self.segment, k, np.random.default_rng([self.segment.shape.seed, k]))
        return self.measured[k]

    def costs(self, k: int, target: float, graph_cost: float) -> Costs:
        if (k, target, graph_cost) not in self._prices:
            self._prices[k, target, graph_cost] = self.calibrate(k).costs(target, graph_cost)
        return self._prices[k, target, graph_cost]

    def state(self) -> dict[str, np.ndarray]:
        """The arrays that `from_state` needs."""
        state = {"k": np.array(sorted(self.measured), np.int64)}
        for k, measured in self.measured.items():
            state |= {f"{name}_{k}": array for name, array in vars(measured).items()}
        return state

    @classmethod
    def from_state(cls, segment: Segment, state: dict[str, np.ndarray]) -> Planner:
        names = ("sizes", "beam", "recall", "distances")
        return cls(segment, {int(k): Measured(*(state[f"{name}_{k}"] for name in names)) for k in state["k"]})


def measure(segment: Segment, k: int, generator: np.random.Generator) -> Measured:
    """Measure nodes of SIZES sizes, at windows of each blowup and every beam. A few thousand searches, one small build a size."""
    sizes = segment.end - segment.start
    built = np.flatnonzero((segment.layout.graph >= 0) & (sizes >= 4 * k))
    if not len(built):
        cell = (1, len(BLOWUPS), len(BEAMS))
        return Measured(np.zeros(1), np.ones(cell), np.zeros(cell), np.ones(cell))
    logs = np.log2(sizes[built])
    wanted = np.unique(logs[[np.argmin(abs(logs - x)) for x in np.linspace(logs.min(), logs.max(), SIZES)]])
    cells = (len(wanted), len(BLOWUPS), len(BEAMS))
    beams = np.broadcast_to(np.ceil(k * np.array(BLOWUPS)[:, None] * np.array(BEAMS)), cells).copy()
    recall, distances = np.zeros(cells), np.full(cells, 2.0**NEVER)
    for a, log in enumerate(wanted):
        some = generator.choice(built[logs == log], min(NODES, (logs == log).sum()), replace=False)
        number = max(1, min(QUERIES // len(some), len(segment.X) // 10))
        probes = [held_out(segment, node, number, generator) for node in some]
        for b, blowup in enumerate(BLOWUPS):
            windows = [_windows(probe, Q, blowup, generator) for probe, Q in probes]
            w = windows[0][0, 2] - windows[0][0, 1]
            if w < 2 * k:
                continue
            truth = [
                probe.search_pieces(Q, pieces * [0, 1, 1, 1, 1] + [-1, 0, 0, 0, 0], k).ids
                for (probe, Q), pieces in zip(probes, windows, strict=True)
            ]
            for c in range(len(BEAMS)):
                found, computed_mean = 0.0, 0.0
                for (probe, Q), pieces, right in zip(probes, windows, truth, strict=True):
                    pieces[:, 3] = beams[a, b, c]
                    ids, _, computed, _ = probe.search_pieces(Q, pieces, k)
                    found += ((ids[:, :, None] == right[:, None, :]) & (ids >= 0)[:, :, None]).sum() / right.size
                    computed_mean += computed.mean()
                recall[a, b, c], distances[a, b, c] = found / len(probes), max(computed_mean / len(probes), 1.0)
                if (
                    distances[a, b, c] > 4 * w or recall[a, b, c] > 0.998
                ):  # scanning is cheaper by far, or nothing is left to win
                    break
        recall[a] = np.maximum.accumulate(recall[a], axis=1)
    return Measured(wanted, beams, recall, distances)


def held_out(segment: Segment, node: int, number: int, generator: np.random.Generator) -> tuple[Segment, np.ndarray]:
    """`number` queries drawn from all points, as a user's are, and a segment of the node's points without them."""
    rows = np.sort(generator.choice(len(segment.X), number, replace=False))
    start, end = segment.start[node], segment.end[node]
    rest = np.delete(segment.X[start:end], rows[(rows >= start) & (rows < end)] - start, axis=0)
    ranks = np.arange(len(rest))
    shape = segment.shape._replace(beta=2, cutoff=max(2, len(rest)), shift=0.5, overlap=2.0)
    probe = Segment(rest, ranks, ranks, "r", shape, segment.threads)
    return probe.build(), np.ascontiguousarray(segment.X[rows])


def _windows(probe: Segment, Q: np.ndarray, blowup: int, generator: np.random.Generator) -> np.ndarray:
    """A random window of 1 / blowup of the probe's points for each query, as pieces (nq, 5) on its one node."""
    n = len(probe.X)
    lo = generator.integers(0, n - n // blowup + 1, len(Q))
    return np.stack([0 * lo, lo, lo + n // blowup, 0 * lo, 0 * lo + 1], 1)
