# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""The interval against the equation it solves, and the random player against chances that can be worked out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import Corridor, Essay

from trl_agentpo.environment import TextEnvironment, TextSpace
from trl_agentpo.evaluation import SuccessRate, play_at_random, wilson_interval


Z = 1.959963984540054  # 97.5 % quantile of the standard normal distribution


@given(st.integers(1, 2000), st.data())
def test_bounds_lie_one_z_from_the_rate_under_their_own_variance(episodes: int, data: st.DataObject) -> None:
    """Wilson's bounds p solve (rate − p)² = z² p (1 − p) / n."""
    successes = data.draw(st.integers(0, episodes))
    rate = successes / episodes
    for bound in wilson_interval(successes, episodes):
        assert (rate - bound) ** 2 == pytest.approx(Z**2 * bound * (1 - bound) / episodes, abs=1e-9)


@given(st.integers(1, 2000), st.data())
def test_bounds_hold_the_rate(episodes: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, episodes))
    low, high = wilson_interval(successes, episodes)
    assert 0 <= low <= successes / episodes + 1e-12
    assert successes / episodes - 1e-12 <= high <= 1


def test_a_case_by_hand() -> None:
    """No success in 10: the upper bound is z² / (n + z²)."""
    assert wilson_interval(0, 10) == pytest.approx((0.0, Z**2 / (10 + Z**2)))


def test_more_confidence_is_wider() -> None:
    assert wilson_interval(5, 10, 0.99)[1] > wilson_interval(5, 10, 0.9)[1]


@pytest.mark.parametrize(("successes", "episodes"), [(-1, 10), (11, 10), (0, 0)])
def test_impossible_counts(successes: int, episodes: int) -> None:
    with pytest.raises(ValueError, match=f"`successes`={successes}"):
        wilson_interval(successes, episodes)


def test_a_rate_is_shown_with_its_interval() -> None:
    assert str(SuccessRate(0, 10)) == "  0.0%  [  0.0%,  27.8%]"


def test_random_walk_to_the_end_of_a_corridor() -> None:
    """From cell 0 of 3 within two actions only right-right solves it: one chance in four."""
    rate = play_at_random(Corridor, range(4000), max_turns=2, environment_kwargs={"length": 3})
    assert rate.episodes == 4000
    assert rate.rate == pytest.approx(0.25, abs=0.03)


def test_free_text_cannot_be_played_at_random() -> None:
    with pytest.raises(ValueError, match="Essay takes free text"):
        play_at_random(Essay, [1], max_turns=1)


def test_the_player_stops_where_the_episode_ends() -> None:
    class Once(TextEnvironment):
        instructions = "Do it."
        action_space = TextSpace(["it"])

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict]:
            self.over = False
            return "", {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            assert not self.over
            self.over = True
            return "", 0.0, True, False, {"success": False}

    assert play_at_random(Once, [1, 2], max_turns=3).successes == 0
