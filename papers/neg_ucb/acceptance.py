"""The acceptance model: kernel ridge regression with a hidden state per counterpart, and its confidence bonus.

Symbols, here and in the chapter: phi(x) (m,) features of a bid in its context; h_g (l,) hidden state of counterpart g and
h~_g = [1; h_g]; Theta = [theta, W] (m, 1 + l); z = phi (x) h~_g (Kronecker product, feature index slow, hidden index fast).

    q_g(x) ~ phi' (theta + W h_g) = z' vec(Theta)                                                                   (1)
    A = lambda_1 I + sum_g S_g (x) h~_g h~_g',   vec(Theta) = A^{-1} sum_g r_g (x) h~_g                              (2)
    C_g = lambda_2 I + W' S_g W,   h_g = C_g^{-1} (W' (r_g - S_g theta) + lambda_2 h_g0)                             (3)
    bonus = alpha_theta sqrt(z' A^{-1} z) + alpha_h sqrt(v' C_g^{-1} v),   v = W' phi                                (4)

with S_g = sum phi phi', r_g = sum phi y over the rounds with g: no history is kept. This is a reconstruction (see the chapter);
another form of the model replaces this file by keeping `AcceptanceModel`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

import numpy as np
from scipy.linalg import lapack

from common.rng import Rng
from papers.neg_ucb.features import FeatureMap


class AcceptanceModel(Protocol):
    """What learns whether counterpart g will accept. Everything paper-specific stays behind these three."""

    def ucb(self, x: np.ndarray, g: Hashable) -> tuple[np.ndarray, np.ndarray]:
        """(mean, bonus), each (n,), of the bids x (n, d) for g; an unknown g is created on the fly."""

    def update(self, x: np.ndarray, g: Hashable, y: float) -> None:
        """Learn that g answered y (1 accept, 0 reject) to the bid x (d,)."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def check_answer(x: np.ndarray, y: float) -> np.ndarray:
    """x as (1, d), both finite. Raises ValueError naming what is not."""
    x = np.asarray(x, float).reshape(1, -1)
    if not np.isfinite(x).all():
        raise ValueError("x has entries that are not finite: check the environment's features and utilities")
    if not 0 <= y <= 1:
        raise ValueError(f"y is {y}: an answer lies in [0, 1] (1 accept, 0 reject)")
    return x


def inverse(A: np.ndarray) -> tuple[np.ndarray, float]:
    """(A^{-1}, ln det A) of a symmetric positive definite A, by Cholesky."""
    L, failed = lapack.dpotrf(A, lower=1)
    if failed:
        raise np.linalg.LinAlgError("A is not positive definite: lambda must be positive")
    log_det = 2 * np.log(np.diag(L)).sum()
    inv, _ = lapack.dpotri(L, lower=1, overwrite_c=1)
    lower = np.tril(inv)
    return lower + np.tril(inv, -1).T, float(log_det)


class NegUCB:
    """Optimistic acceptance model with hidden states, estimated by alternating ridge regression.

    feature_map   phi; see `papers.neg_ucb.features`
    hidden        l, length of each hidden state; 0 is plain (kernel) ridge, i.e. LinUCB or KernelUCB
    coupling      bilinear: eq. (1) | additive: h_g shifts the intercept only | none: l = 0
    lambda_theta, lambda_h, alpha_theta, alpha_h   of eqs. (2)-(4)
    every         rounds between full alternations; in between Sherman-Morrison with the current hidden states
    rebuild       exact: A is rebuilt when the states change | stale: never (hLinUCB as published), for comparison
    exploration   ucb: eq. (4) | thompson: a posterior sample of (Theta, h), `bonus` is then its signed deviation | greedy: no bonus
    spread        standard deviation of h_g0. Zero would be a fixed point: W never gets data and the states do nothing
    delta, bound  theory mode where delta is given: alpha_theta of `confidence_radius`, with ||Theta|| <= bound
    discount      forget a counterpart's old answers by this factor at each new one (1: never)

    >>> model = NegUCB(Linear(d=3), hidden=2); mean, bonus = model.ucb(x, "anna"); model.update(x[4], "anna", 1)   # doctest: +SKIP
    """

    def __init__(self, feature_map: FeatureMap, hidden: int = 2, *, coupling: str = "bilinear", lambda_theta: float = 1.0,
                 lambda_h: float = 0.5, alpha_theta: float = 0.3, alpha_h: float = 0.1, every: int = 10, rebuild: str = "exact",
                 exploration: str = "ucb", spread: float = 0.3, delta: float | None = None, bound: float = 1.0,
                 discount: float = 1.0, seed: int = 0):  # fmt: skip
        for name, value, allowed in (("coupling", coupling, ("bilinear", "additive", "none")), ("rebuild", rebuild, ("exact", "stale")),
                                     ("exploration", exploration, ("ucb", "thompson", "greedy"))):  # fmt: skip
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}: choose {', '.join(allowed)}")
        if lambda_theta <= 0 or lambda_h <= 0 or not 0 < discount <= 1 or every < 1 or hidden < 0:
            raise ValueError("lambda_theta, lambda_h and every must be positive, discount in (0, 1], hidden at least 0")
        if alpha_theta < 0 or alpha_h < 0 or (delta is not None and not 0 < delta < 1):
            raise ValueError("alpha_theta and alpha_h must be at least 0, delta in (0, 1)")
        self.phi, self.hidden = feature_map, 0 if coupling == "none" else hidden
        self.lambda_theta, self.lambda_h = lambda_theta, lambda_h
        self.alpha_theta, self.alpha_h, self.every, self.rebuild_mode = alpha_theta, alpha_h, every, rebuild
        self.exploration, self.spread, self.delta, self.bound, self.discount, self.seed = (
            exploration,
            spread,
            delta,
            bound,
            discount,
            seed,
        )
        m, width = feature_map.dim, 1 + self.hidden
        free = np.ones((m, width), bool)
        if coupling == "additive":
            free[:-1, 1:] = False  # W keeps the row of the constant feature alone: h_g'w is an intercept of g's own
        self.free = np.flatnonzero(free.ravel())  # coordinates of vec(Theta) that are estimated
        self.A_inv: np.ndarray = np.eye(len(self.free)) / lambda_theta
        self.log_det = len(self.free) * np.log(lambda_theta)
        self.Theta = np.zeros((m, width))
        self.rhs = np.zeros(len(self.free))  # the right side of eq. (2), kept by the stale mode
        self.rounds, self.draw = 0, 0
        self.index: dict[Hashable, int] = {}
        self.S, self.r = np.zeros((0, m, m)), np.zeros((0, m))
        self.yy, self.n = np.zeros(0), np.zeros(0)  # sum of y^2 and number of answers, for objective and evidence
        self.h: np.ndarray = np.zeros((0, self.hidden))
        self.h0: np.ndarray = np.zeros((0, self.hidden))
        self._sample: tuple | None = None

    # ---- counterparts ------------------------------------------------------------------------------------------------

    def counterpart(self, g: Hashable) -> int:
        """The row of g; a new one starts at h_g0 ~ N(0, spread^2 I), drawn from (seed, g), and leaves the shared Theta as it is."""
        if g not in self.index:
            self.index[g] = len(self.index)
            h0 = Rng(self.seed, "h0", repr(g)).numpy.normal(0, self.spread, (1, self.hidden))
            m = self.phi.dim
            self.S, self.r = np.concatenate([self.S, np.zeros((1, m, m))]), np.concatenate([self.r, np.zeros((1, m))])
            self.yy, self.n = np.append(self.yy, 0.0), np.append(self.n, 0.0)
            self.h, self.h0 = np.concatenate([self.h, h0]), np.concatenate([self.h0, h0])
        return self.index[g]

    def C(self, i: int) -> np.ndarray:
        """C_g of eq. (3) with the present W: (l, l)."""
        W = self.Theta[:, 1:]
        return self.lambda_h * np.eye(self.hidden) + W.T @ self.S[i] @ W

    def tilde(self, h: np.ndarray) -> np.ndarray:
        """[1; h]: (..., l) -> (..., 1 + l)."""
        return np.concatenate([np.ones((*h.shape[:-1], 1)), h], axis=-1)

    # ---- prediction, eqs. (1) and (4) ----------------------------------------------------------------------------------

    def ucb(self, x: np.ndarray, g: Hashable) -> tuple[np.ndarray, np.ndarray]:
        """(mean, bonus) of bids x (n, d) for counterpart g. O(n m^2): the hidden index is contracted once, before the bids."""
        phi = self.phi(x)
        i = self.counterpart(g)
        tilde = self.tilde(self.h[i])
        mean = phi @ (self.Theta @ tilde)
        if self.exploration == "greedy":
            return mean, np.zeros_like(mean)
        if self.exploration == "thompson":
            Theta, h = self._thompson(i)
            return mean, phi @ (Theta @ self.tilde(h)) - mean
        B = self._contracted(tilde)  # (m, m): z' A^{-1} z = phi' B phi
        bonus = self._radius() * np.sqrt(np.maximum(np.einsum("ij,ij->i", phi @ B, phi), 0))
        if self.hidden and self.alpha_h:
            v = phi @ self.Theta[:, 1:]  # (n, l)
            bonus += self.alpha_h * np.sqrt(np.maximum(np.einsum("ij,ij->i", v @ np.linalg.inv(self.C(i)), v), 0))
        return mean, bonus

    def mean(self, x: np.ndarray, g: Hashable) -> np.ndarray:
        """The estimate of eq. (1) alone, for bids x (n, d): (n,)."""
        i = self.counterpart(g)
        return self.phi(x) @ (self.Theta @ self.tilde(self.h[i]))

    def _contracted(self, tilde: np.ndarray) -> np.ndarray:
        """(I (x) h~)' A^{-1} (I (x) h~): (m, m)."""
        m, width = self.Theta.shape
        if width == 1:
            return self.A_inv
        full = self.A_inv
        if len(self.free) < m * width:
            full = np.zeros((m * width, m * width))
            full[np.ix_(self.free, self.free)] = self.A_inv
        right = (full.reshape(m * width, m, width) @ tilde).reshape(m, width, m)
        return np.tensordot(tilde, right, axes=(0, 1))

    def _radius(self) -> float:
        """alpha_theta: the tuned constant, or in theory mode the radius of the confidence ellipsoid."""
        if self.delta is None:
            return self.alpha_theta
        return confidence_radius(
            self.log_det - len(self.free) * np.log(self.lambda_theta), self.lambda_theta, self.bound, self.delta
        )

    def _thompson(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """One posterior sample of (Theta, h_g), the same until the next answer. O(p^3)."""
        if self._sample is None or self._sample[0] != self.draw:
            noise = Rng(self.seed, "thompson", self.draw).numpy
            root = np.linalg.cholesky(self.A_inv)
            Theta = self.Theta.copy().ravel()
            Theta[self.free] += self.alpha_theta * root @ noise.normal(size=len(self.free))
            self._sample = (self.draw, Theta.reshape(self.Theta.shape), noise.normal(size=self.hidden))
        _, Theta, noise_h = self._sample
        return Theta, self.h[i] + self.alpha_h * np.linalg.cholesky(np.linalg.inv(self.C(i))) @ noise_h

    # ---- estimation, eqs. (2) and (3) ----------------------------------------------------------------------------------

    def update(self, x: np.ndarray, g: Hashable, y: float, weight: float = 1.0) -> None:
        """One answer: rank-one update of A^{-1} and Theta, and every `every` rounds a full alternation.

        weight: of this answer in the squares, for side information such as a counter-proposal (y = 1, weight < 1).
        """
        phi = self.phi(check_answer(x, y))[0]
        i = self.counterpart(g)
        if self.discount < 1:
            self.S[i] *= self.discount
            self.r[i] *= self.discount
            self.yy[i] *= self.discount
            self.n[i] *= self.discount
        self.S[i] += weight * np.outer(phi, phi)
        self.r[i] += weight * y * phi
        self.yy[i] += weight * y * y
        self.n[i] += weight
        z = np.outer(phi, self.tilde(self.h[i])).ravel()[self.free]  # feature index slow, hidden index fast
        Az = self.A_inv @ z
        gain = weight / (1 + weight * (z @ Az))
        error = y - z @ self.Theta.ravel()[self.free]
        self.A_inv -= np.outer(gain * Az, Az)  # Sherman-Morrison
        self.Theta.ravel()[self.free] += gain * error * Az
        self.log_det += np.log1p(weight * (z @ Az))
        self.rhs += weight * y * z
        self.rounds += 1
        self.draw += 1
        if self.rounds % self.every == 0:
            self.alternate()

    def alternate(self) -> None:
        """One full alternation: all hidden states given Theta, then A and Theta rebuilt exactly given the states."""
        self.h_step()
        if self.rebuild_mode == "exact":
            self.rebuild()
        else:
            self.Theta.ravel()[self.free] = self.A_inv @ self.rhs

    def h_step(self) -> None:
        """Eq. (3) for every counterpart seen, all at once."""
        if not self.hidden or not self.index:
            return
        theta, W = self.Theta[:, 0], self.Theta[:, 1:]
        SW = self.S @ W  # (G, m, l)
        C = self.lambda_h * np.eye(self.hidden) + W.T @ SW  # (G, l, l)
        right = (self.r - self.S @ theta) @ W + self.lambda_h * self.h0  # (G, l)
        self.h = np.linalg.solve(C, right[..., None])[..., 0]

    def rebuild(self) -> None:
        """Eq. (2) from the per-counterpart statistics: after the states moved, the rows already in A are those of old states."""
        m, width = self.Theta.shape
        tilde = self.tilde(self.h)  # (G, 1 + l)
        if width == 1:
            A, rhs = self.S.sum(0), self.r.sum(0)
        else:
            outer = (tilde[:, :, None] * tilde[:, None, :]).reshape(len(tilde), -1)  # (G, (1+l)^2)
            A = (
                (self.S.reshape(len(tilde), -1).T @ outer)
                .reshape(m, m, width, width)
                .transpose(0, 2, 1, 3)
                .reshape(m * width, m * width)
            )
            rhs = (self.r.T @ tilde).ravel()
            A, rhs = A[np.ix_(self.free, self.free)], rhs[self.free]
        self.A_inv, self.log_det = inverse(A + self.lambda_theta * np.eye(len(A)))
        self.rhs = rhs
        self.Theta.ravel()[self.free] = self.A_inv @ rhs

    def objective(self) -> float:
        """What both steps lower: half the squared errors plus the two ridge penalties, from the statistics alone."""
        w = self.tilde(self.h) @ self.Theta.T  # (G, m)
        squares = self.yy.sum() - 2 * (w * self.r).sum() + np.einsum("gi,gij,gj->", w, self.S, w)
        return float(
            0.5 * squares
            + 0.5 * self.lambda_theta * (self.Theta**2).sum()
            + 0.5 * self.lambda_h * ((self.h - self.h0) ** 2).sum()
        )

    def evidence(self, noise: float | None = None) -> float:
        """Log marginal likelihood of all answers, Gaussian noise of variance `noise` (what fits best where None).

        Exact without hidden states; with them Laplace's approximation at the present (Theta, h), one block each. Priors:
        Theta ~ N(0, noise/lambda_1), h_g ~ N(h_g0, noise/lambda_2). To compare models of the same answers by.
        """
        n, p = float(self.n.sum()), len(self.free)
        squares = max(2 * self.objective(), 1e-12)
        if noise is None:
            noise = squares / max(n, 1)
        width = self.log_det - p * np.log(self.lambda_theta)
        if self.hidden:
            W = self.Theta[:, 1:]
            C = self.lambda_h * np.eye(self.hidden) + W.T @ self.S @ W  # (G, l, l)
            width += float(np.linalg.slogdet(C)[1].sum()) - C.shape[0] * self.hidden * np.log(self.lambda_h)
        return float(-0.5 * (n * np.log(2 * np.pi * noise) + squares / noise + width))

    def fit(self, x: np.ndarray, g: list[Hashable], y: np.ndarray, sweeps: int = 10) -> None:
        """Warm start from logged offers: x (n, d), g and y (n,). All statistics at once, then `sweeps` alternations.

        Raises ValueError as `update` does, and where x, g and y differ in length; nothing is learnt then.
        """
        x, y = np.asarray(x, float), np.asarray(y, float)
        if not len(x) == len(g) == len(y):
            raise ValueError(
                f"x, g and y have {len(x)}, {len(g)} and {len(y)} rows: one each per logged offer is needed"
            )
        for row, answer in zip(x, y, strict=True):
            check_answer(row, answer)
        phi = self.phi(x)
        for who in dict.fromkeys(g):
            i, rows = self.counterpart(who), np.array([other == who for other in g])
            self.S[i] += phi[rows].T @ phi[rows]
            self.r[i] += phi[rows].T @ y[rows]
            self.yy[i] += (y[rows] ** 2).sum()
            self.n[i] += rows.sum()
        self.rounds += len(y)
        self.draw += 1
        self.rebuild()
        for _ in range(sweeps):
            self.h_step()
            self.rebuild()

    def weights(self) -> tuple[list[Hashable], np.ndarray]:
        """(counterparts, W h_g (G, m)): what is special to each, free of the rotation that h_g alone is known up to."""
        return list(self.index), self.h @ self.Theta[:, 1:].T

    # ---- save and load -------------------------------------------------------------------------------------------------

    ARRAYS = ("A_inv", "Theta", "rhs", "S", "r", "yy", "n", "h", "h0")

    def state_dict(self) -> dict[str, Any]:
        """Everything learnt, with the feature map it was learnt in; plain dicts and arrays."""
        return {"arrays": {name: getattr(self, name).copy() for name in self.ARRAYS}, "index": dict(self.index), "log_det": self.log_det,
                "rounds": self.rounds, "draw": self.draw, "seed": self.seed, "map": self.phi.state_dict()}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state. Raises ValueError where its shape is another model's."""
        if state["arrays"]["Theta"].shape != self.Theta.shape or state["arrays"]["A_inv"].shape != self.A_inv.shape:
            raise ValueError(
                f"state of shape {state['arrays']['Theta'].shape} does not fit this model's {self.Theta.shape}: same map, hidden and coupling?"
            )
        for name in self.ARRAYS:
            setattr(self, name, np.array(state["arrays"][name]))
        self.index, self.log_det, self.rounds, self.draw, self.seed = (
            dict(state["index"]),
            state["log_det"],
            state["rounds"],
            state["draw"],
            state["seed"],
        )
        vars(self.phi).update(state["map"])
        self._sample = None


def confidence_radius(log_det_ratio: float, lam: float, bound: float, delta: float, sigma: float = 0.5) -> float:
    """sqrt(lam) bound + sigma sqrt(2 ln(1/delta) + ln det A - ln det(lam I)) (Abbasi-Yadkori et al. 2011); sigma = 1/2 for Bernoulli answers."""
    return float(np.sqrt(lam) * bound + sigma * np.sqrt(2 * np.log(1 / delta) + log_det_ratio))
