"""An index whose graphs link every point with every other: any search on it is exact, and so must every method be."""

import numpy as np

from papers.window_ann import WindowIndex
from papers.window_ann.twins import representatives


def complete(index: WindowIndex) -> WindowIndex:
    """Replace the edges of every graph by all edges between distinct points; the index must have been built with R = n - 1."""
    for segment in index.segments:
        for node in segment.owners:
            m, row = int(segment.end[node] - segment.start[node]), int(segment.layout.graph[node])
            there = np.flatnonzero(representatives(segment.points.twins, int(segment.start[node]), m))
            segment.G[row : row + m] = -1
            for i in there:
                segment.G[row + i, : len(there) - 1] = there[there != i]
    return index


def exact_index(X, labels, method="auto", metric="euclidean", **options) -> WindowIndex:
    options = {"threads": 1, "R": max(len(X) - 1, 1), "L": 4} | options
    return complete(WindowIndex(method, metric, **options).fit(X, labels))
