"""Super-postfiltering's rows of overlapping buckets (sec. 5): some bucket contains the window, and is not much larger.

Row i has buckets [j h, j h + B) with h = ceil(sigma B). Coverage lemma: it contains every window of at most B - h + 1 ranks
(of the h starts j h, ..., one lies within h - 1 before s). With sizes falling by beta from row to row, the smallest bucket
that contains a window of w ranks has B / w < beta / (1 - sigma) up to rounding: that ratio is the blowup (Def. 5.5).
"""

from __future__ import annotations

import numpy as np

from papers.window_ann.compiled import jit


class OverlappingRows:
    """The buckets of super-postfiltering over n ranks.

    size, shift, count, first: (rows,) int64: B, h, the number of buckets and the first bucket's number of each row.
    Raises ValueError unless n >= 1, beta > 1, 0 < shift < 1 and cutoff >= 1.
    """

    def __init__(self, n: int, beta: float = 2.0, cutoff: int = 1000, shift: float = 0.5):
        if n < 1 or cutoff < 1:
            raise ValueError(f"n is {n} and cutoff {cutoff}: both must be at least 1")
        if not beta > 1:
            raise ValueError(f"beta is {beta}: bucket sizes fall by it from row to row, give more than 1")
        if not 0 < shift < 1:
            raise ValueError(
                f"shift is {shift}: give the part of a bucket by which the next one starts later, between 0 and 1"
            )
        self.n, self.beta, self.cutoff, self.sigma = int(n), float(beta), int(cutoff), float(shift)
        size, step, count = [n], [n], [1]
        while size[-1] > cutoff:
            B = min(int(np.ceil(size[-1] / beta)), size[-1] - 1)
            h = int(np.ceil(B * shift))
            size.append(B)
            step.append(h)
            count.append(-(-(n - B) // h) + 1)
        self.size, self.shift, self.count = (np.array(x, np.int64) for x in (size, step, count))
        self.first = np.concatenate([[0], np.cumsum(self.count)])

    @property
    def rows(self) -> int:
        return len(self.size)

    def buckets(self) -> np.ndarray:
        """Every bucket's rank interval, row by row: (buckets, 2) int64."""
        starts = [np.arange(count) * h for count, h in zip(self.count, self.shift, strict=True)]
        return np.concatenate(
            [np.stack([s, np.minimum(s + B, self.n)], 1) for s, B in zip(starts, self.size, strict=True)]
        )

    @property
    def stored(self) -> int:
        """Points stored over all rows, overlaps counted each time."""
        return int(np.diff(self.buckets(), axis=1).sum())

    def smallest(self, s: int, e: int) -> tuple[int, int]:
        """(row, bucket) of the smallest bucket that contains [s, e), the one where it lies most central."""
        row, bucket = smallest_row(self.size, self.shift, self.count, s, e)
        return int(row), int(bucket)

    def blowup_bound(self) -> float:
        """beta / (1 - sigma): what B / w stays under, up to rounding, for windows the bottom row does not surely contain."""
        return self.beta / (1 - self.sigma)


@jit
def smallest_row(size, shift, count, s, e):
    """(row, bucket): from the lowest row up, the first with a bucket around [s, e). Row 0 always has."""
    for row in range(len(size) - 1, 0, -1):
        B, h = size[row], shift[row]
        if e - s > B:
            continue
        low = max(0, -((B - e) // h))  # first bucket that ends at or after e; the last one ends at n
        high = min(count[row] - 1, s // h)  # last bucket that starts at or before s
        if low <= high:
            middle = (s + e - B) // 2
            bucket = min(max((middle + h // 2) // h, low), high)
            return row, bucket
    return 0, 0


def tradeoff(blowup: float, n: int, cutoff: int = 1000) -> tuple[float, float, float]:
    """The (beta, shift) of least memory whose blowup stays under `blowup`, and that memory in points stored (cf. Thm. 5.7).

    A row stores n / sigma points and there are log_beta(n / cutoff) rows; the bound beta / (1 - sigma) = blowup gives
    sigma = 1 - beta / blowup, so 1 / ((1 - beta / blowup) ln beta) is what is minimised over 1 < beta < blowup.
    Raises ValueError unless blowup > 1 and n > cutoff.
    """
    if not blowup > 1 or n <= cutoff:
        raise ValueError(f"blowup is {blowup} and n {n}: give a blowup above 1 and n above the cutoff {cutoff}")
    from scipy.optimize import minimize_scalar

    def cost(beta: float) -> float:
        return 1 / ((1 - beta / blowup) * np.log(beta))

    width = blowup - 1
    beta = float(
        minimize_scalar(
            cost, bounds=(1 + 1e-6 * width, blowup - 1e-6 * width), method="bounded", options={"xatol": 1e-9}
        ).x
    )
    return beta, 1 - beta / blowup, n * np.log(n / cutoff) * cost(beta)
