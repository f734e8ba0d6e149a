"""Wrapper that numbers the valid bids: one discrete action a bid, and a mask of the numbers that exist."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from papers.neg_ucb.environments.base import Environment


class Listed(gymnasium.Wrapper):
    """Action i proposes row i of `bids()`; info["action_mask"] (n,) int8 says which numbers are bids now.

    For learners with one discrete action, however few combinations of a MultiDiscrete space are valid. `action_masks()`
    is the same mask as booleans. A number without a bid ends the episode, as a bid that is not valid does.
    most: size n of the action space; by default the most valid bids that the task can have.
    Raises ValueError where the bids are too many to list.
    """

    env: Environment

    def __init__(self, env: gymnasium.Env, most: int | None = None):
        super().__init__(env)
        self.task: Environment = env.unwrapped  # type: ignore[assignment]
        self.n = self.task.most_bids() if most is None else most
        self.action_space = spaces.Discrete(self.n)

    def action_masks(self) -> np.ndarray:
        """Which actions are bids now: (n,) bool."""
        return np.arange(self.n) < min(len(self.task.bids()), self.n)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seen, info = super().reset(seed=seed, options=options)
        return seen, info | {"action_mask": self.action_masks().astype(np.int8)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        bids, action = self.task.bids(), int(action)
        bid = bids[action] if 0 <= action < len(bids) else np.full(bids.shape[1], -1)
        seen, reward, over, cut, info = super().step(bid)
        return seen, reward, over, cut, info | {"action_mask": self.action_masks().astype(np.int8)}
