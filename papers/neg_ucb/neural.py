"""Neural baselines: NeuralUCB (Zhou, Li, Gu 2020) and a DQN over the bids that are worth most to the proposer."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from papers.neg_ucb.acceptance import check_answer
from papers.neg_ucb.negotiation import Stochastic
from papers.neg_ucb.oracle import random_argmax


class Net(nn.Module):
    """inputs -> width -> width -> 1 with ReLU, He-initialised from the generator."""

    def __init__(self, inputs: int, width: int, generator: torch.Generator):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, 1)
        with torch.no_grad():
            for layer in (self.one, self.two, self.three):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs) -> (n,)."""
        return self.three(torch.relu(self.two(torch.relu(self.one(x)))))[:, 0]


class Replay:
    """Inputs and targets of all rounds so far, for minibatches."""

    def __init__(self, inputs: int):
        self.inputs, self.targets, self.n = np.zeros((64, inputs), np.float32), np.zeros(64, np.float32), 0

    def add(self, row: np.ndarray, target: float) -> None:
        if self.n == len(self.inputs):
            self.inputs, self.targets = (
                np.concatenate([self.inputs, np.zeros_like(self.inputs)]),
                np.concatenate([self.targets, np.zeros_like(self.targets)]),
            )
        self.inputs[self.n], self.targets[self.n] = row, target
        self.n += 1

    def batch(self, generator: np.random.Generator, size: int) -> tuple[Tensor, Tensor]:
        rows = generator.integers(self.n, size=size)
        return torch.from_numpy(self.inputs[rows]), torch.from_numpy(self.targets[rows])

    def state_dict(self) -> dict[str, Any]:
        return {
            "inputs": torch.from_numpy(self.inputs[: self.n].copy()),
            "targets": torch.from_numpy(self.targets[: self.n].copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n = len(state["targets"])
        room = max(64, 2 * self.n)
        self.inputs, self.targets = np.zeros((room, state["inputs"].shape[1]), np.float32), np.zeros(room, np.float32)
        self.inputs[: self.n], self.targets[: self.n] = state["inputs"].numpy(), state["targets"].numpy()


class NeuralUCB:
    """f(x, g) by a 2 x width MLP on [x, one-hot g]; bonus alpha sqrt(grad' U^{-1} grad / width) with a diagonal U (as its authors' code).

    The squared gradient of each weight is an outer product of squares, so a batch of bonuses costs three matrix products.
    """

    def __init__(self, d: int, counterparts: int, *, width: int = 64, alpha: float = 0.3, ridge: float = 1.0, lr: float = 0.003,
                 every: int = 10, steps: int = 20, batch_size: int = 128, seed: int = 0):  # fmt: skip
        self.d, self.G, self.width, self.alpha, self.every, self.steps, self.batch_size, self.seed = (
            d,
            counterparts,
            width,
            alpha,
            every,
            steps,
            batch_size,
            seed,
        )
        self.net = Net(d + counterparts, width, torch.Generator().manual_seed(seed))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=lr, weight_decay=1e-4)
        self.U = [torch.full_like(p, ridge) for p in self.net.parameters()]
        self.replay, self.index, self.rounds = Replay(d + counterparts), dict[Hashable, int](), 0

    def _inputs(self, x: np.ndarray, g: Hashable) -> np.ndarray:
        i = self.index.setdefault(g, len(self.index)) % self.G
        rows = np.zeros((len(x), self.d + self.G), np.float32)
        rows[:, : self.d], rows[:, self.d + i] = x, 1
        return rows

    @torch.no_grad()
    def _squares(self, rows: np.ndarray) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """f (n,), and for each layer (input^2 (n, in), delta^2 (n, out)): the squared gradients' factors."""
        one, two, three = self.net.one, self.net.two, self.net.three
        a0 = torch.from_numpy(rows)
        a1 = torch.relu(one(a0))
        a2 = torch.relu(two(a1))
        d2 = three.weight * (a2 > 0)  # (n, width)
        d1 = (d2 @ two.weight) * (a1 > 0)
        return three(a2)[:, 0], [(a0**2, d1**2), (a1**2, d2**2), (a2**2, torch.ones(len(rows), 1))]

    def ucb(self, x: np.ndarray, g: Hashable) -> tuple[np.ndarray, np.ndarray]:
        f, factors = self._squares(self._inputs(x, g))
        variance = torch.zeros_like(f)
        for (squares, deltas), U_weight, U_bias in zip(factors, self.U[::2], self.U[1::2], strict=True):
            variance += ((squares @ (1 / U_weight).T + 1 / U_bias) * deltas).sum(1)
        return f.double().numpy(), self.alpha * np.sqrt(variance.double().numpy() / self.width)

    def update(self, x: np.ndarray, g: Hashable, y: float) -> None:
        row = self._inputs(check_answer(x, y), g)
        _, factors = self._squares(row)
        for (squares, deltas), U_weight, U_bias in zip(factors, self.U[::2], self.U[1::2], strict=True):
            U_weight += deltas.T @ squares / self.width
            U_bias += deltas[0] / self.width
        self.replay.add(row[0], y)
        self.rounds += 1
        if self.rounds % self.every == 0:
            generator = np.random.default_rng([self.seed, self.rounds])
            for _ in range(self.steps):
                inputs, targets = self.replay.batch(generator, self.batch_size)
                self.optimizer.zero_grad()
                nn.functional.mse_loss(self.net(inputs), targets).backward()
                self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "U": [u.clone() for u in self.U],
            "replay": self.replay.state_dict(),
            "index": dict(self.index),
            "rounds": self.rounds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.U = [u.clone() for u in state["U"]]
        self.replay.load_state_dict(state["replay"])
        self.index, self.rounds = dict(state["index"]), state["rounds"]


class DQN(Stochastic):
    """Q([x(b), u(b), one-hot g]) of the `top` bids of largest own utility; epsilon-greedy, a target network, one Adam step a round.

    The reward is u y. Where an episode has several proposals a rejection's target is the best next Q of the same episode.
    """

    def __init__(self, d: int, counterparts: int, generator: np.random.Generator, *, top: int = 64, width: int = 64, lr: float = 0.003, explore: int = 300,
                 epsilon: float = 0.05, batch_size: int = 64, sync: int = 50, seed: int = 0):  # fmt: skip
        super().__init__(generator)
        self.d, self.G, self.top, self.explore, self.epsilon, self.batch_size, self.sync = (
            d,
            counterparts,
            top,
            explore,
            epsilon,
            batch_size,
            sync,
        )
        self.net = Net(d + 1 + counterparts, width, torch.Generator().manual_seed(seed))
        self.target = Net(d + 1 + counterparts, width, torch.Generator().manual_seed(seed))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=lr)
        self.replay, self.rounds = Replay(d + 1 + counterparts), 0

    def _top(self, env) -> tuple[np.ndarray, np.ndarray]:
        """(bids (n, k), inputs (n, d + 1 + G)) of the bids worth most."""
        bids = env.bids() if env.n_bids <= 200_000 else env.random_bids(1000, self.generator)
        u = env.utility(bids)
        best = np.argsort(-u, kind="stable")[: self.top]
        rows = np.zeros((len(best), self.d + 1 + self.G), np.float32)
        rows[:, : self.d], rows[:, self.d], rows[:, self.d + 1 + env.counterpart % self.G] = (
            env.features(bids[best]),
            u[best],
            1,
        )
        return bids[best], rows

    @torch.no_grad()
    def propose(self, env):
        bids, rows = self._top(env)
        epsilon = max(1 - self.rounds / self.explore, self.epsilon)
        if self.generator.random() < epsilon:
            return bids[self.generator.integers(len(bids))]
        return bids[random_argmax(self.net(torch.from_numpy(rows)).numpy(), self.generator)]

    def observe(self, env, bid, x, g, u, y):
        row = np.zeros(self.d + 1 + self.G, np.float32)
        row[: self.d], row[self.d], row[self.d + 1 + g % self.G] = x, u, 1
        value = u * y
        if not env.over:
            with torch.no_grad():
                value = float(self.target(torch.from_numpy(self._top(env)[1])).max())
        self.replay.add(row, value)
        self.rounds += 1
        if self.replay.n >= self.batch_size:
            inputs, targets = self.replay.batch(self.generator, self.batch_size)
            self.optimizer.zero_grad()
            nn.functional.smooth_l1_loss(self.net(inputs), targets).backward()
            self.optimizer.step()
        if self.rounds % self.sync == 0:
            self.target.load_state_dict(self.net.state_dict())

    def state_dict(self):
        return super().state_dict() | {
            "net": self.net.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "replay": self.replay.state_dict(),
            "rounds": self.rounds,
        }

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.net.load_state_dict(state["net"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.replay.load_state_dict(state["replay"])
        self.rounds = state["rounds"]
