# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Episodes of earlier rollouts, to be trained on once more.

Invariant: an episode is kept as the rows it was trained on, with their advantages and the log-probabilities of the policy
that sampled them, so the importance ratio and its clip are right whenever it is replayed. The oldest leave first, and none
is older than the buffer takes to fill.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .rows import TokenRow


@dataclass(frozen=True)
class StoredEpisode:
    """
    An episode and when it was played.

    Args:
        rollout (`int`):
            The number of the rollout in which it was played.
        rows (`list[TokenRow]`):
            Its rows, with their targets.
    """

    rollout: int
    rows: list[TokenRow]


class ReplayBuffer:
    """
    The last episodes of one process.

    Args:
        size (`int`):
            How many episodes are kept.
        max_staleness (`int`):
            How many rollouts after its own an episode may be replayed.
    """

    def __init__(self, size: int, max_staleness: int):
        self.max_staleness = max_staleness
        self.episodes: deque[StoredEpisode] = deque(maxlen=size)

    def add(self, rollout: int, episodes: Sequence[list[TokenRow]]) -> None:
        """
        Keep the episodes of a rollout.

        Args:
            rollout (`int`):
                The rollout's number.
            episodes (`Sequence[list[TokenRow]]`):
                The rows of each episode, with their targets.
        """
        self.episodes.extend(StoredEpisode(rollout, rows) for rows in episodes)

    def draw(self, number: int, rollout: int, seed: Sequence[int]) -> list[StoredEpisode]:
        """
        Draw different episodes that are not too stale; those that are leave the buffer.

        Args:
            number (`int`):
                How many are wanted; fewer are drawn if there are fewer.
            rollout (`int`):
                The number of the rollout at hand.
            seed (`Sequence[int]`):
                What the choice depends on.

        Returns:
            `list[StoredEpisode]`: the episodes.
        """
        while self.episodes and rollout - self.episodes[0].rollout > self.max_staleness:
            self.episodes.popleft()
        order = np.random.default_rng(seed).permutation(len(self.episodes))
        return [self.episodes[place] for place in order[:number]]

    def state(self) -> list[dict[str, Any]]:
        """What the buffer holds, as lists, dicts, numbers and strings."""
        return [{"rollout": stored.rollout, "rows": [_plain(row) for row in stored.rows]} for stored in self.episodes]

    def load_state(self, state: Sequence[dict[str, Any]]) -> None:
        """
        Hold again what [`state`] gave.

        Args:
            state (`Sequence[dict]`):
                What it gave.
        """
        self.episodes.clear()
        for stored in state:
            self.add(stored["rollout"], [[_row(row) for row in stored["rows"]]])


def _plain(row: TokenRow) -> dict[str, Any]:
    return {**asdict(row), "targets": {name: values.tolist() for name, values in row.targets.items()}}


def _row(plain: dict[str, Any]) -> TokenRow:
    targets = {name: np.array(values, dtype=np.float64) for name, values in plain["targets"].items()}
    return TokenRow(**{**plain, "targets": targets})
