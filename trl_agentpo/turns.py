# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
The turns of a batch of episodes as flat arrays: what credit assignment works on.

Invariant: one entry per turn, in time order within an episode; a crashed episode has no entry, so it enters no statistic.
Group and episode numbers are global, so that the arrays of several processes can be put one after the other.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .episode import Episode


@dataclass
class TurnArrays:
    """
    Flat arrays over turns.

    Args:
        rewards (`NDArray[np.float64]` of shape `(num_turns,)`):
            The reward of each turn, extra rewards included.
        episode_ids (`NDArray[np.int64]` of shape `(num_turns,)`):
            The episode of each turn, numbered over all processes.
        group_ids (`NDArray[np.int64]` of shape `(num_turns,)`):
            The group of each turn, numbered over all processes.
        anchors (`list[Hashable]` of length `num_turns`):
            The environment state each turn met.
        invalid (`NDArray[np.bool_]` of shape `(num_turns,)`):
            Whether the reply was invalid.
        num_tokens (`NDArray[np.int64]` of shape `(num_turns,)`):
            How many of the turn's tokens are trained on.
    """

    rewards: NDArray[np.float64]
    episode_ids: NDArray[np.int64]
    group_ids: NDArray[np.int64]
    anchors: list[Hashable]
    invalid: NDArray[np.bool_]
    num_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rewards)


def flatten(
    episodes: Sequence[Episode],
    extra_rewards: Sequence[Sequence[float]],
    first_episode: int,
    num_generations: int,
    skip_cut: bool = False,
) -> TurnArrays:
    """
    Lay the turns of episodes one after the other.

    Args:
        episodes (`Sequence[Episode]`):
            The episodes of this process.
        extra_rewards (`Sequence[Sequence[float]]`):
            For each turn of each episode, what reward functions add to the environment's reward.
        first_episode (`int`):
            The number of the first episode among those of all processes.
        num_generations (`int`):
            Episodes in a group.
        skip_cut (`bool`, *optional*, defaults to `False`):
            Whether replies cut by their token limit are not trained on.

    Returns:
        [`TurnArrays`]: the turns of the episodes that did not crash.
    """
    played = [(first_episode + i, e, extra_rewards[i]) for i, e in enumerate(episodes) if not e.failed]
    turns = [turn for _, episode, _ in played for turn in episode.turns]
    episode_ids = np.array([number for number, episode, _ in played for _ in episode.turns], dtype=np.int64)
    extra = np.array([reward for _, _, rewards in played for reward in rewards], dtype=np.float64)
    return TurnArrays(
        rewards=np.array([turn.reward for turn in turns], dtype=np.float64) + extra,
        episode_ids=episode_ids,
        group_ids=episode_ids // num_generations,
        anchors=[turn.anchor for turn in turns],
        invalid=np.array([not turn.valid for turn in turns], dtype=bool),
        num_tokens=np.array([0 if skip_cut and t.cut else len(t.completion_ids) for t in turns], dtype=np.int64),
    )


def concatenate(parts: Sequence[TurnArrays]) -> TurnArrays:
    """
    Put the turns of all processes one after the other.

    Args:
        parts (`Sequence[TurnArrays]`):
            One part per process, in the order of the processes.

    Returns:
        [`TurnArrays`]: all turns.
    """
    return TurnArrays(
        rewards=np.concatenate([part.rewards for part in parts]),
        episode_ids=np.concatenate([part.episode_ids for part in parts]),
        group_ids=np.concatenate([part.group_ids for part in parts]),
        anchors=[anchor for part in parts for anchor in part.anchors],
        invalid=np.concatenate([part.invalid for part in parts]),
        num_tokens=np.concatenate([part.num_tokens for part in parts]),
    )


def episode_scores(rewards: NDArray[np.float64], turns: TurnArrays) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """
    The undiscounted return of each episode that has turns.

    Args:
        rewards (`NDArray[np.float64]` of shape `(num_turns,)`):
            The reward of each turn.
        turns ([`TurnArrays`]):
            The turns.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: the returns in ascending order of the episodes' numbers, and their groups.
    """
    _, first, number = np.unique(turns.episode_ids, return_index=True, return_inverse=True)
    scores = np.bincount(number, weights=rewards, minlength=len(first)).astype(np.float64)
    return scores, turns.group_ids[first]


def normalization_weights(turns: TurnArrays, loss_normalization: str) -> NDArray[np.float64]:
    """
    Factors on the turns' advantages that turn TRL's mean over tokens into another mean.

    TRL's `dapo` loss divides the sum over all trained tokens by their number. The clipped loss is positively homogeneous
    in the advantage, so a positive factor on a turn's advantage is a factor on its loss.

    Args:
        turns ([`TurnArrays`]):
            All turns of the batch.
        loss_normalization (`str`):
            `"token"`: every token counts the same. `"turn"`: every turn counts the same, whatever its length.
            `"episode"`: every episode counts the same.

    Returns:
        `NDArray[np.float64]` of shape `(num_turns,)`: the factors.
    """
    if loss_normalization == "token" or not len(turns):
        return np.ones(len(turns))
    if loss_normalization == "turn":
        share_of = np.arange(len(turns))
    else:
        share_of = np.unique(turns.episode_ids, return_inverse=True)[1]
    tokens = np.bincount(share_of, weights=turns.num_tokens)
    average = tokens.sum() / max(1, np.count_nonzero(tokens))
    return average / np.maximum(tokens, 1)[share_of]
