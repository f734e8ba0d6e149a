"""What the paper proves about the two structures, checked on every window of a small index (sec. 3 and 5)."""

from __future__ import annotations

import numpy as np

from papers.window_ann.compiled import jit
from papers.window_ann.overlap import OverlappingRows, smallest_row, tradeoff
from papers.window_ann.tree import Tree, decompose


@jit
def _survey(offsets, first, starts, size, shift, count, n, widest):
    """Over all windows 0 <= s < e <= n: (windows, covered exactly by the tree, inside their bucket, most nodes, longest end).

    widest: (n + 1,) float64, filled with the largest blowup of the windows of each width.
    """
    windows = covered = inside = nodes = ends = 0
    out = np.empty(4 * n, np.int64)
    for s in range(n):
        for e in range(s + 1, n + 1):
            windows += 1
            number, left, right = decompose(offsets, first, s, e, out)
            total = (left - s) + (e - right)
            for i in range(number):
                total += starts[out[i], 1] - starts[out[i], 0]
            covered += total == e - s
            nodes = max(nodes, number)
            if number > 0:
                ends = max(ends, left - s, e - right)
            row, bucket = smallest_row(size, shift, count, s, e)
            start = bucket * shift[row]
            end = min(start + size[row], n)
            inside += start <= s and e <= end
            widest[e - s] = max(widest[e - s], (end - start) / (e - s))
    return windows, covered, inside, nodes, ends


def survey(n: int, cutoff: int, beta: int, shift: float, blowup: float, big: int, picture_n: int) -> dict:
    """All windows of n ranks: exact covers, blowup against its bound, decomposition size against its bound, storage.

    blowup: for which the cheapest (beta, shift) is found; big: an n at which only rows and nodes are counted.
    """
    tree, rows = Tree(n, beta, cutoff), OverlappingRows(n, beta, cutoff, shift)
    widest = np.zeros(n + 1)
    windows, covered, inside, nodes, ends = _survey(
        tree.offsets, tree.first, tree.buckets(), rows.size, rows.shift, rows.count, n, widest
    )
    sure = int(rows.size[-1] - rows.shift[-1] + 1)  # every window up to this width lies in a bottom bucket
    bound = rows.blowup_bound()
    # with B <= beta' sizes and h rounded up: B / w <= B / (B_next - h_next + 2), the exact form of the bound
    exact = max(float(rows.size[i] / (rows.size[i + 1] - rows.shift[i + 1] + 2)) for i in range(rows.rows - 1))
    # what a partition has in place of overlapping buckets: the smallest node around a window across the middle
    across = tree.buckets()[tree.node(*tree.smallest(n // 2 - sure // 2 - 1, n // 2 + sure // 2 + 1))]
    partition = float(across[1] - across[0]) / (2 * (sure // 2 + 1)) / exact
    narrow = OverlappingRows(big, beta, 1000, shift / 2)
    most = 2 * (beta - 1) * (tree.rows - 1) + 2 * (beta - 1)
    best_beta, best_shift, least = tradeoff(blowup, n, cutoff)
    plain = n * np.log(n / cutoff) / ((1 - beta / blowup) * np.log(beta)) if beta < blowup else np.nan
    large, large_rows = Tree(big, beta, 1000), OverlappingRows(big, beta, 1000, shift)
    return {
        "windows": windows, "covered_share": covered / windows, "inside_share": inside / windows,
        "max_nodes": nodes, "max_nodes_bound": most, "nodes_share": nodes / most, "longest_end": ends,
        "max_blowup": float(widest[sure + 1 :].max()), "bound": bound, "blowup_share": float(widest[sure + 1 :].max()) / exact,
        "control": {"partition_blowup_share": partition, "half_shift_stored_ratio": narrow.stored / (big * Tree(big, beta, 1000).rows)},
        "stored_ratio": rows.stored / (n * tree.rows), "large_rows": large.rows, "large_nodes": len(large.buckets()),
        "large_stored_ratio": large_rows.stored / (big * large.rows), "optimal_beta": best_beta, "optimal_shift": best_shift,
        "default_over_optimal": float(plain / least), "sure_width": sure, "blowup_by_width": widest.tolist(),
        "rows": [_row(i, tree, rows) for i in range(rows.rows)],
    }  # fmt: skip


def _row(i: int, tree: Tree, rows: OverlappingRows) -> dict:
    return {
        "row": i,
        "tree buckets": len(tree.row(i)) - 1 if i < tree.rows else None,
        "overlapping buckets": int(rows.count[i]),
        "bucket size": int(rows.size[i]),
        "windows surely inside, up to": int(rows.size[i] - rows.shift[i] + 1) if i else rows.n,
    }
