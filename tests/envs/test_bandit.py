# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""Bandit: what the arms pay against the stated chances, and that nothing on show gives the risky one away."""

import math

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agentpo.envs import Bandit


PULLS = 4000


def pull(name, seed, **arguments):
    game = Bandit(**arguments)
    game.reset(seed=seed)
    return game.step(name)


def close_to_chance(count, plays, chance):
    """Within four standard deviations of a binomial distribution."""
    return abs(count - plays * chance) < 4 * math.sqrt(plays * chance * (1 - chance))


@pytest.mark.parametrize(
    ("arguments", "safe", "risky"),
    [
        ({}, "Phoenix", "Dragon"),
        ({"reverse": True}, "Dragon", "Phoenix"),
        ({"pair": "test"}, "Trader", "Librarian"),
        ({"pair": "test", "reverse": True}, "Librarian", "Trader"),
        ({"names": ("Turtle", "Falcon")}, "Turtle", "Falcon"),
        ({"names": ["Turtle", "Falcon"], "reverse": True}, "Falcon", "Turtle"),
    ],
)
def test_which_name_is_which(arguments, safe, risky):
    assert all(pull(safe, seed, **arguments)[1] == 0.1 for seed in range(40))
    assert {pull(risky, seed, **arguments)[1] for seed in range(40)} == {0.0, 1.0}
    assert not pull(safe, 0, **arguments)[4]["success"]


@pytest.mark.parametrize(("arguments", "chance"), [({}, 0.25), ({"high_probability": 0.7, "reverse": True}, 0.7)])
def test_the_risky_arm_pays_as_often_as_stated(arguments, chance):
    game = Bandit(**arguments)
    risky = "Phoenix" if arguments.get("reverse") else "Dragon"
    paid = 0.0
    for seed in range(PULLS):
        game.reset(seed=seed)
        paid += game.step(risky)[1]
    assert close_to_chance(paid, PULLS, chance)


def test_a_chance_of_one_always_pays():
    assert all(pull("Dragon", seed, high_probability=1.0)[1] == 1 for seed in range(30))


def test_the_safe_arm_pays_what_it_is_told_to():
    assert pull("Phoenix", 0, low_reward=0.15)[1] == 0.15
    assert pull("Phoenix", 0, low_reward=0)[1] == 0


def test_the_order_is_random_and_tells_nothing_of_the_pay():
    game, first, paid_when_first, paid_when_second = Bandit(), 0, 0.0, 0.0
    for seed in range(PULLS):
        _, info = game.reset(seed=seed)
        reward = game.step("Dragon")[1]
        if info["anchor"] == ("Dragon", "Phoenix"):
            first, paid_when_first = first + 1, paid_when_first + reward
        else:
            assert info["anchor"] == ("Phoenix", "Dragon")
            paid_when_second += reward
    assert close_to_chance(first, PULLS, 0.5)
    assert close_to_chance(paid_when_first, first, 0.25)
    assert close_to_chance(paid_when_second, PULLS - first, 0.25)


@given(seed=st.integers(0, 2**31), reverse=st.booleans(), pair=st.sampled_from(["train", "test"]))
@settings(deadline=None)
def test_members_of_a_group_that_do_the_same_get_the_same(seed, reverse, pair):
    game, arguments = Bandit(pair=pair, reverse=reverse), {"pair": pair, "reverse": reverse}
    for name in game.action_space.actions:
        results = [pull(name, seed, **arguments) for _ in range(3)]
        game.reset(seed=seed)
        for junk in ("", "both", "neither"):
            game.step(junk)
        assert all(result == results[0] for result in [*results, game.step(name)])


@given(seed=st.integers(0, 2**31), pair=st.sampled_from(["train", "test"]))
@settings(deadline=None)
def test_nothing_on_show_tells_which_arm_is_risky(seed, pair):
    games = [Bandit(pair=pair, reverse=reverse) for reverse in (False, True)]
    starts = [game.reset(seed=seed) for game in games]
    shown = [
        (text, info["anchor"], info["admissible_actions"], game.instructions, game.action_space.actions)
        for game, (text, info) in zip(games, starts, strict=True)
    ]
    assert shown[0] == shown[1]
    assert starts[0][1]["facts"]["risky"] == starts[1][1]["facts"]["safe"]


def test_the_place_in_the_vocabulary_is_no_cue_that_carries_over():
    places = [game.action_space.actions.index(game.risky) for game in (Bandit(), Bandit(pair="test"))]
    assert places[0] != places[1]


def test_one_pull_ends_the_episode_and_success_is_the_choice_and_not_the_luck():
    for seed in range(40):
        text, reward, terminated, truncated, info = pull("Dragon", seed)
        assert (terminated, truncated, info["success"]) == (True, False, True)
        assert (info["action_valid"], info["action_effective"], info["admissible_actions"]) == (True, True, [])
        assert text == f"You pulled Dragon. It paid {reward:.0f}."
    text, _, terminated, _, info = pull("phoenix", 0)
    assert (text, terminated, info["success"]) == ("You pulled Phoenix. It paid 0.1.", True, False)


def test_a_second_pull_needs_a_reset():
    game = Bandit()
    game.reset(seed=0)
    game.step("Phoenix")
    with pytest.raises(gymnasium.error.ResetNeeded):
        game.step("Dragon")


def test_what_is_shown():
    game = Bandit(pair="test")
    text, info = game.reset(seed=0)
    one, two = info["anchor"]
    assert {one, two} == {"Trader", "Librarian"}
    assert text == f"The arms are {one} and {two}. Pull one."
    assert info["admissible_actions"] == [one, two]
    assert info["facts"] == {"arms": (one, two), "safe": "Trader", "risky": "Librarian"}
    assert info["success"] is False


def test_an_arm_of_the_other_pair_is_no_arm():
    _, reward, terminated, _, info = pull("Trader", 0)
    assert (reward, terminated, info["action_valid"]) == (0, False, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pair": "validation"}, "`pair`.*'train', 'test'.*got 'validation'"),
        ({"names": "Phoenix"}, "`names`.*got 'Phoenix'"),
        ({"names": ("Phoenix",)}, "`names`"),
        ({"names": ("Phoenix", "phoenix ")}, "`names`.*different"),
        ({"names": ("Phoenix", " ")}, "`names`"),
        ({"high_probability": 0}, "`high_probability`.*got 0"),
        ({"high_probability": 1.5}, "`high_probability`.*got 1.5"),
        ({"low_reward": -0.1}, "`low_reward`.*got -0.1"),
        ({"low_reward": 0.25}, r"`low_reward`.*\(0.25\), got 0.25.*Lower"),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Bandit(**arguments)
