# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""The sums over an episode, and when it is over."""

import itertools

import pytest

from trl_agentpo.episode import Episode, Turn


def turn(reward: float, actions: list[str]) -> Turn:
    return Turn("a room", 0, [1], [2], "reply", actions=actions, reward=reward)


def test_the_sums_are_over_all_turns() -> None:
    episode = Episode(seed=0, turns=[turn(0.5, ["a", "b"]), turn(-0.25, []), turn(2.0, ["c"])])
    assert episode.total_reward == 2.25
    assert episode.num_actions == 3


def test_an_episode_without_turns_sums_to_nothing() -> None:
    assert (Episode(seed=0).total_reward, Episode(seed=0).num_actions, Episode(seed=0).done) == (0, 0, False)


@pytest.mark.parametrize(
    ("terminated", "truncated", "error"),
    list(itertools.product([False, True], [False, True], [None, "", "ValueError: x"])),
)
def test_an_episode_is_over_for_any_of_three_reasons(terminated: bool, truncated: bool, error: str | None) -> None:
    episode = Episode(seed=0, terminated=terminated, truncated=truncated, error=error)
    assert episode.failed == (error is not None)
    assert episode.done == (terminated or truncated or error is not None)


def test_episodes_and_turns_share_no_lists() -> None:
    first, second = Episode(seed=0), Episode(seed=0)
    first.turns.append(turn(0.0, []))
    first.options["size"] = 4
    assert (second.turns, second.options) == ([], {})
    assert Turn("", 0, [], [], "").actions is not Turn("", 0, [], [], "").actions
