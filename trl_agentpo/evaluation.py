# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
How good a success rate is: its interval, and what a player without a policy reaches.

Invariant: a rate is never reported without the number of episodes behind it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from . import environment as contract
from .environment import EnvironmentSource


@dataclass(frozen=True)
class SuccessRate:
    """
    A share of solved episodes.

    Args:
        successes (`int`):
            Episodes that were solved.
        episodes (`int`):
            Episodes that were played.
    """

    successes: int
    episodes: int

    @property
    def rate(self) -> float:
        """The share of solved episodes."""
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval, see [`wilson_interval`]."""
        return wilson_interval(self.successes, self.episodes)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.rate:6.1%}  [{low:6.1%}, {high:6.1%}]"


def wilson_interval(successes: int, episodes: int, confidence: float = 0.95) -> tuple[float, float]:
    """
    Wilson's score interval of a proportion (Wilson 1927): unlike ± 1.96 standard errors it is right near 0 and 1.

    Args:
        successes (`int`):
            Episodes that were solved.
        episodes (`int`):
            Episodes that were played, at least 1.
        confidence (`float`, *optional*, defaults to `0.95`):
            How often the interval is to hold the true rate.

    Returns:
        `tuple[float, float]`: lower and upper bound, in [0, 1].

    Raises:
        ValueError: `successes` is not between 0 and `episodes`, or no episode was played.
    """
    if not 0 <= successes <= episodes or episodes < 1:
        raise ValueError(
            f"`successes`={successes} must be between 0 and `episodes`={episodes}, and `episodes` at least 1."
        )
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate, spread = successes / episodes, z * z / episodes
    centre = (rate + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(rate * (1 - rate) / episodes + spread / (4 * episodes))
    return max(0.0, centre - half), min(1.0, centre + half)


def play_at_random(
    environment: EnvironmentSource,
    task_seeds: Sequence[int],
    max_turns: int,
    environment_kwargs: dict[str, Any] | None = None,
    seed: int = 0,
) -> SuccessRate:
    """
    Play tasks with uniformly random actions: the floor that any policy has to beat.

    Args:
        environment (`str`, environment class or callable):
            An environment with a vocabulary of actions.
        task_seeds (`Sequence[int]`):
            The tasks, one episode each.
        max_turns (`int`):
            Actions in an episode.
        environment_kwargs (`dict`, *optional*):
            Arguments of the environment's constructor.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the actions.

    Returns:
        [`SuccessRate`]: how often the player solved the task.

    Raises:
        ValueError: the environment takes free text.
    """
    game = contract.make(environment, **(environment_kwargs or {}))
    if not contract.vocabulary_of(game):
        raise ValueError(
            f"{type(game.unwrapped).__name__} takes free text, so there are no actions to draw from. Give it "
            '`action_space = TextSpace(["…", "…"])`.'
        )
    generator = np.random.default_rng(seed)
    solved = sum(_play_one_at_random(game, task_seed, max_turns, generator) for task_seed in task_seeds)
    return SuccessRate(solved, len(task_seeds))


def _play_one_at_random(game: Any, task_seed: int, max_turns: int, generator: np.random.Generator) -> bool:
    actions = contract.vocabulary_of(game)
    contract.reset(game, task_seed)
    for _ in range(max_turns):
        result = contract.step(game, actions[int(generator.integers(len(actions)))])
        if result.success or result.terminated or result.truncated:
            return result.success
    return False
