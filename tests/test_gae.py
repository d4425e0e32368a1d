# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""Advantages with a critic against their definitions, written as sums over what follows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_agentpo.gae import bi_level_gae, token_gae


FACTORS = st.sampled_from([0.0, 0.3, 0.95, 1.0])
NUMBERS = st.integers(-20, 20).map(lambda n: n / 4)


@dataclass
class Layout:
    """Episodes as lists of turns, each a reward and the values of its tokens."""

    episodes: list[list[tuple[float, list[float]]]]

    def arguments(self) -> tuple[list[float], list[int], list[float], list[int]]:
        turns = [(number, turn) for number, episode in enumerate(self.episodes) for turn in episode]
        return (
            [value for _, (_, values) in turns for value in values],
            [k for k, (_, (_, values)) in enumerate(turns) for _ in values],
            [reward for _, (reward, _) in turns],
            [number for number, _ in turns],
        )


LAYOUTS = st.lists(
    st.lists(st.tuples(NUMBERS, st.lists(NUMBERS, min_size=1, max_size=4)), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
).map(Layout)


def weighted_sum(values: list[float], rewards: list[float], gamma: float, lam: float) -> list[float]:
    """A_t = Σ_l (γ λ)^l δ_{t+l} over one sequence: the definition, without the recursion."""
    following = [*values[1:], 0.0]
    deltas = [r + gamma * after - v for r, after, v in zip(rewards, following, values, strict=True)]
    count = len(deltas)
    return [sum((gamma * lam) ** step * deltas[t + step] for step in range(count - t)) for t in range(count)]


@given(LAYOUTS, FACTORS, FACTORS)
def test_token_gae(layout: Layout, gamma: float, lam: float) -> None:
    expected = []
    for episode in layout.episodes:
        values = [value for _, turn in episode for value in turn]
        rewards = [reward if n == len(turn) - 1 else 0.0 for reward, turn in episode for n in range(len(turn))]
        expected += weighted_sum(values, rewards, gamma, lam)
    assert token_gae(*layout.arguments(), gamma=gamma, lam=lam) == pytest.approx(expected)


@given(LAYOUTS, FACTORS, FACTORS, FACTORS, FACTORS)
def test_bi_level_gae(layout: Layout, gamma_turn: float, lam_turn: float, gamma: float, lam: float) -> None:
    expected = []
    for episode in layout.episodes:
        ends, rewards = [turn[-1] for _, turn in episode], [reward for reward, _ in episode]
        for (_, turn), advantage in zip(episode, weighted_sum(ends, rewards, gamma_turn, lam_turn), strict=True):
            inside = [0.0] * (len(turn) - 1) + [advantage + turn[-1]]
            expected += weighted_sum(turn, inside, gamma, lam)
    factors = {"gamma_turn": gamma_turn, "lam_turn": lam_turn, "gamma": gamma, "lam": lam}
    assert bi_level_gae(*layout.arguments(), **factors) == pytest.approx(expected)


@given(LAYOUTS)
def test_without_discount_it_is_what_is_still_earned_less_the_value(layout: Layout) -> None:
    """γ = λ = 1: A_t = Σ_{k ≥ turn of t} r_k − V_t, on both levels alike."""
    expected = [
        sum(reward for reward, _ in episode[k:]) - value
        for episode in layout.episodes
        for k, (_, turn) in enumerate(episode)
        for value in turn
    ]
    assert token_gae(*layout.arguments()) == pytest.approx(expected)
    assert bi_level_gae(*layout.arguments(), gamma_turn=1.0) == pytest.approx(expected)


def test_a_last_turn_that_earns_nothing() -> None:
    """Turn rewards 1 and 0, values 0.5 0.5 | 0.25; γ_turn = 0.5: A_1 = −0.25, A_0 = 1 + 0.125 − 0.5 + 0.5 · −0.25 = 0.5."""
    advantages = bi_level_gae([0.5, 0.5, 0.25], [0, 0, 1], [1.0, 0.0], [7, 7], gamma_turn=0.5)
    assert advantages.tolist() == pytest.approx([0.5, 0.5, -0.25])


def test_episodes_do_not_reach_into_each_other() -> None:
    alone = token_gae([0.5, 0.2], [0, 1], [0.0, 1.0], [0, 0])
    followed = token_gae([0.5, 0.2, 9.0], [0, 1, 2], [0.0, 1.0, 5.0], [0, 0, 1])
    assert followed[:2].tolist() == alone.tolist()


@pytest.mark.parametrize("estimate", [token_gae, bi_level_gae])
def test_nothing(estimate: Callable[..., Any]) -> None:
    assert estimate([], [], [], []).shape == (0,)


@pytest.mark.parametrize("estimate", [token_gae, bi_level_gae])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.0], [0, 0], [1.0], [0]), "`values` has 1 entries and `turn_ids` 2"),
        (([0.0], [0], [1.0], [0, 0]), "`turn_rewards` has 1 entries and `episode_ids` 2"),
        (([0.0], [1], [1.0, 1.0], [0, 0]), "each with at least one token"),
        (([0.0, 0.0], [1, 0], [1.0, 1.0], [0, 0]), "in time order"),
    ],
)
def test_what_does_not_fit(estimate: Callable[..., Any], arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate(*arguments)


@pytest.mark.parametrize("name", ["gamma", "lam", "gamma_turn", "lam_turn"])
def test_factors_out_of_range(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be in"):
        bi_level_gae([0.0], [0], [1.0], [0], **{name: np.nan})
