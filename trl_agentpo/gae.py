# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Advantages with a critic: generalized advantage estimation over tokens, and over turns and the tokens in them.

Invariant: only sampled tokens have a value here, in time order; what the environment wrote between two turns is skipped,
so the token after a turn's last one is the next turn's first. Turn ends are known from the recorded turns, not guessed
from rewards, so a last turn that earns nothing is a turn like any other. After an episode's last token the value is 0.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray


Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


def token_gae(
    values: ArrayLike,
    turn_ids: ArrayLike,
    turn_rewards: ArrayLike,
    episode_ids: ArrayLike,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> Floats:
    """
    Advantages over the tokens of an episode (Schulman et al. 2016), the PPO form of StarPO.

    `δ_t = r_t + γ V_{t+1} − V_t` and `A_t = δ_t + γ λ A_{t+1}`; the reward of a turn is that of its last token.

    Args:
        values (`ArrayLike` of shape `(num_tokens,)`):
            The critic's value before each sampled token.
        turn_ids (`ArrayLike` of shape `(num_tokens,)`):
            The turn of each token, from 0; the tokens of a turn, and the turns of an episode, one after the other.
        turn_rewards (`ArrayLike` of shape `(num_turns,)`):
            The reward of each turn.
        episode_ids (`ArrayLike` of shape `(num_turns,)`):
            The episode of each turn.
        gamma (`float`, *optional*, defaults to `1.0`):
            Discount per token, in [0, 1].
        lam (`float`, *optional*, defaults to `1.0`):
            Weight of longer look-aheads, in [0, 1].

    Returns:
        `np.ndarray` of `float64`, shape `(num_tokens,)`: one advantage per token.

    Raises:
        ValueError: lengths that do not fit, a turn without tokens, tokens out of order, or a factor out of its range.
    """
    values, turns, rewards, episodes = _arrays(values, turn_ids, turn_rewards, episode_ids)
    _check_factors(gamma=gamma, lam=lam)
    is_last = _last_tokens(turns)
    token_rewards = np.where(is_last, rewards[turns], 0.0)
    return _recursion(values, token_rewards, episodes[turns], gamma, lam)


def bi_level_gae(
    values: ArrayLike,
    turn_ids: ArrayLike,
    turn_rewards: ArrayLike,
    episode_ids: ArrayLike,
    *,
    gamma_turn: float = 0.95,
    lam_turn: float = 1.0,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> Floats:
    """
    Advantages first over turns, then over the tokens of each turn (RAGEN's bi-level GAE).

    Over turns, with the value `V(e_k)` at the last token of turn k: `δ_k = r_k + γ_turn V(e_{k+1}) − V(e_k)` and
    `A_k = δ_k + γ_turn λ_turn A_{k+1}`. Inside turn k ordinary GAE without rewards, which ends in the target
    `A_k + V(e_k)`, so the turn's last token has the advantage `A_k`.

    Args:
        values, turn_ids, turn_rewards, episode_ids (`ArrayLike`):
            As in [`token_gae`].
        gamma_turn (`float`, *optional*, defaults to `0.95`):
            Discount per turn, in [0, 1].
        lam_turn (`float`, *optional*, defaults to `1.0`):
            Weight of longer look-aheads over turns, in [0, 1].
        gamma, lam (`float`, *optional*, defaults to `1.0`):
            The same over the tokens of a turn.

    Returns:
        `np.ndarray` of `float64`, shape `(num_tokens,)`: one advantage per token.

    Raises:
        ValueError: as in [`token_gae`].
    """
    values, turns, rewards, episodes = _arrays(values, turn_ids, turn_rewards, episode_ids)
    _check_factors(gamma_turn=gamma_turn, lam_turn=lam_turn, gamma=gamma, lam=lam)
    is_last = _last_tokens(turns)
    turn_advantages = _recursion(values[is_last], rewards, episodes, gamma_turn, lam_turn)
    # A reward of A_k + V(e_k) after the last token, where no value follows, makes its advantage A_k.
    targets = np.where(is_last, (turn_advantages + values[is_last])[turns], 0.0)
    return _recursion(values, targets, turns, gamma, lam)


def sampled_turns(
    turn_ids: ArrayLike, turn_rewards: ArrayLike, episode_ids: ArrayLike
) -> tuple[Integers, Floats, Integers]:
    """
    Leave out episodes and turns without a sampled token, for [`token_gae`] and [`bi_level_gae`].

    The reward of a turn that is left out goes to the turn before it, or to the next where there is none before it, so that
    the return of the episode stays what it was.

    Args:
        turn_ids (`ArrayLike` of shape `(num_tokens,)`):
            The turn of each token.
        turn_rewards (`ArrayLike` of shape `(num_turns,)`):
            The reward of each turn.
        episode_ids (`ArrayLike` of shape `(num_turns,)`):
            The episode of each turn.

    Returns:
        `tuple[np.ndarray, np.ndarray, np.ndarray]`: the turn of each token, counted from 0; and the reward and the episode of
        each turn that has tokens.
    """
    rewards, episodes = np.asarray(turn_rewards, dtype=np.float64), np.asarray(episode_ids, dtype=np.int64)
    kept, numbers = np.unique(np.asarray(turn_ids, dtype=np.int64), return_inverse=True)
    of_sampled = np.flatnonzero(np.isin(episodes, episodes[kept]))
    heirs = np.maximum(np.searchsorted(kept, of_sampled, side="right") - 1, 0)
    heirs += episodes[kept[heirs]] != episodes[of_sampled]
    inherited = np.bincount(heirs, weights=rewards[of_sampled], minlength=len(kept)).astype(np.float64)
    return numbers.astype(np.int64), inherited, episodes[kept]


def _recursion(values: Floats, rewards: Floats, sequence_ids: Integers, gamma: float, lam: float) -> Floats:
    """GAE over consecutive steps of one sequence; 0 follows the last step of each."""
    advantages = np.zeros(len(values))
    following_value = following_advantage = 0.0
    for step in range(len(values) - 1, -1, -1):
        if step == len(values) - 1 or sequence_ids[step + 1] != sequence_ids[step]:
            following_value = following_advantage = 0.0
        delta = rewards[step] + gamma * following_value - values[step]
        following_advantage = delta + gamma * lam * following_advantage
        following_value, advantages[step] = values[step], following_advantage
    return advantages


def _last_tokens(turns: Integers) -> NDArray[np.bool_]:
    return np.append(turns[1:] != turns[:-1], True)[: len(turns)]


def _arrays(
    values: ArrayLike, turn_ids: ArrayLike, turn_rewards: ArrayLike, episode_ids: ArrayLike
) -> tuple[Floats, Integers, Floats, Integers]:
    arrays = (
        np.asarray(values, dtype=np.float64),
        np.asarray(turn_ids, dtype=np.int64),
        np.asarray(turn_rewards, dtype=np.float64),
        np.asarray(episode_ids, dtype=np.int64),
    )
    if len(arrays[0]) != len(arrays[1]):
        raise ValueError(
            f"`values` has {len(arrays[0])} entries and `turn_ids` {len(arrays[1])}; give one of each per token."
        )
    if len(arrays[2]) != len(arrays[3]):
        raise ValueError(
            f"`turn_rewards` has {len(arrays[2])} entries and `episode_ids` {len(arrays[3])}; give one of each per turn."
        )
    if not np.array_equal(np.unique(arrays[1]), np.arange(len(arrays[2]))) or (np.diff(arrays[1]) < 0).any():
        raise ValueError(
            f"`turn_ids` must count the {len(arrays[2])} turns from 0 in time order, each with at least one token, got "
            f"{arrays[1].tolist()!r:.80}. Leave out turns in which nothing was sampled."
        )
    return arrays


def _check_factors(**factors: float) -> None:
    for name, value in factors.items():
        if not 0 <= value <= 1:
            raise ValueError(f"`{name}` must be in [0, 1], got {value}. Use 1 for no discount.")
