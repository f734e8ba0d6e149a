"""An index whose graphs link every point with every other: any search on it is exact, and so must every method be."""

import numpy as np

from papers.window_ann import WindowIndex


def complete(index: WindowIndex) -> WindowIndex:
    """Replace the edges of every graph by all edges; the index must have been built with R = n - 1."""
    for segment in index.segments:
        for node in segment.owners:
            m, row = int(segment.end[node] - segment.start[node]), int(segment.layout.graph[node])
            others = np.arange(m)[None, :] + (np.arange(m)[None, :] >= np.arange(m)[:, None])
            segment.G[row : row + m] = -1
            segment.G[row : row + m, : m - 1] = others[:, : m - 1]
    return index


def exact_index(X, labels, method="auto", metric="euclidean", **options) -> WindowIndex:
    options = {"threads": 1, "R": max(len(X) - 1, 1), "L": 4} | options
    return complete(WindowIndex(method, metric, **options).fit(X, labels))
