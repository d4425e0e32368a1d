# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""FrozenLake against gymnasium's own transition table, and its text against lakes worked out by hand."""

import math
import re
from collections import Counter, deque

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import DOWN, LEFT, RIGHT, UP, FrozenLakeEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agentpo.envs import FrozenLake


# By gymnasium's constants, not by the order in our own vocabulary.
NUMBERS = {"Left": LEFT, "Down": DOWN, "Right": RIGHT, "Up": UP}
SMALL_LAKE = ["SFF", "FHF", "FFG"]


def map_of(info):
    return info["anchor"][0]


def tiles(lake, letter):
    return [(i, j) for i, row in enumerate(lake) for j, found in enumerate(row) if found == letter]


def distance_to_goal(lake):
    """Fewest steps from start to goal on dry tiles; None if there is no way."""
    (start,), (goal,) = tiles(lake, "S"), tiles(lake, "G")
    steps, queue = {start: 0}, deque([start])
    while queue:
        row, column = queue.popleft()
        for near in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if near in steps or not (0 <= near[0] < len(lake) and 0 <= near[1] < len(lake[0])):
                continue
            if lake[near[0]][near[1]] != "H":
                steps[near] = steps[row, column] + 1
                queue.append(near)
    return steps.get(goal)


@pytest.mark.parametrize("random_start", [False, True])
@pytest.mark.parametrize(("size", "frozen_share"), [(4, 0.8), (6, 0.6), (2, 0.6)])
def test_every_lake_can_be_crossed(size, frozen_share, random_start):
    game = FrozenLake(size=size, frozen_share=frozen_share, random_start=random_start)
    for seed in range(150):
        lake = map_of(game.reset(seed=seed)[1])
        assert [len(row) for row in lake] == [size] * size
        assert distance_to_goal(lake) >= 1


def test_start_and_goal_are_opposite_corners_or_anywhere():
    corners, anywhere = FrozenLake(), FrozenLake(random_start=True)
    for seed in range(50):
        lake = map_of(corners.reset(seed=seed)[1])
        assert (lake[0][0], lake[3][3]) == ("S", "G")
    starts, goals = Counter(), Counter()
    for seed in range(600):
        lake = map_of(anywhere.reset(seed=seed)[1])
        starts.update(tiles(lake, "S"))
        goals.update(tiles(lake, "G"))
    for counts in (starts, goals):
        # All 16 tiles occur, none twice as often as it would if all were alike (600 / 16 = 37.5).
        assert len(counts) == 16
        assert max(counts.values()) < 75


@pytest.mark.parametrize("random_start", [False, True])
def test_the_frozen_share_is_the_share_of_frozen_tiles(random_start):
    def share_of_holes(frozen_share):
        game = FrozenLake(size=8, frozen_share=frozen_share, random_start=random_start)
        lakes = ["".join(map_of(game.reset(seed=seed)[1])) for seed in range(60)]
        return sum(lake.count("H") for lake in lakes) / sum(map(len, lakes))

    assert share_of_holes(1.0) == 0
    # Lakes that cannot be crossed are drawn again, so a little fewer holes are left than were asked for.
    assert 0.15 < share_of_holes(0.8) < 0.21
    assert 0.24 < share_of_holes(0.7) < 0.31


@given(seed=st.integers(0, 2**31), actions=st.lists(st.sampled_from(sorted(NUMBERS)), max_size=25))
@settings(max_examples=60, deadline=None)
def test_without_slipping_it_plays_like_gymnasium(seed, actions):
    ours = FrozenLake(is_slippery=False, random_start=True)
    _, info = ours.reset(seed=seed)
    theirs = FrozenLakeEnv(desc=list(map_of(info)), is_slippery=False)
    place, _ = theirs.reset(seed=0)
    for action in actions:
        before, (place, reward, terminated, _, _) = place, theirs.step(NUMBERS[action])
        _, our_reward, our_terminated, truncated, info = ours.step(action)
        row, column = info["anchor"][1]
        assert ((row - 1) * 4 + column - 1, our_reward, our_terminated) == (place, reward, terminated)
        assert not truncated
        assert info["action_valid"]
        assert info["action_effective"] == (place != before)
        assert info["success"] == (reward == 1)
        if terminated:
            break


@pytest.mark.parametrize("success_rate", [1 / 3, 0.8])
@pytest.mark.parametrize("action", sorted(NUMBERS))
@pytest.mark.parametrize("lake", [["FFF", "FSF", "FFG"], ["SGF", "HFF", "FFF"]], ids=["middle", "corner"])
def test_slips_are_as_frequent_as_gymnasiums_table_says(lake, action, success_rate):
    table = FrozenLakeEnv(desc=lake, is_slippery=True, success_rate=success_rate).P
    start = "".join(lake).index("S")
    expected = Counter()
    for probability, place, _, _ in table[start][NUMBERS[action]]:
        expected[place] += probability
    game, plays, seen = FrozenLake(success_rate=success_rate), 800, Counter()
    for seed in range(plays):
        game.reset(seed=seed, options={"map": lake})
        row, column = game.step(action)[4]["facts"]["player"]
        seen[(row - 1) * 3 + column - 1] += 1
    assert set(seen) == set(expected)
    for place, probability in expected.items():
        deviation = math.sqrt(plays * probability * (1 - probability))
        assert abs(seen[place] - plays * probability) < 4 * deviation


def test_slips_of_later_steps_follow_the_table_too():
    lake, plays = ["SFFF", "FFFF", "FFFF", "FFFG"], 600
    table = FrozenLakeEnv(desc=lake, is_slippery=True, success_rate=0.8).P
    chances = np.zeros(16)
    chances[0] = 1
    for action in (RIGHT, DOWN, RIGHT):
        after = np.zeros(16)
        for place in range(16):
            for probability, then, _, _ in table[place][action]:
                after[then] += chances[place] * probability
        chances = after
    game, seen = FrozenLake(success_rate=0.8), np.zeros(16)
    for seed in range(plays):
        game.reset(seed=seed, options={"map": lake})
        for action in ("Right", "Down", "Right"):
            row, column = game.step(action)[4]["facts"]["player"]
        seen[(row - 1) * 4 + column - 1] += 1
    assert (np.abs(seen - plays * chances) <= 4 * np.sqrt(plays * chances * (1 - chances)) + 1e-9).all()


def test_the_same_seed_and_actions_slip_alike_and_seeds_slip_differently():
    def places(seed):
        game = FrozenLake()
        game.reset(seed=seed, options={"map": ["FFFFF", "FFFFF", "FFSFF", "FFFFF", "GFFFF"]})
        return [game.step(action)[4]["facts"]["player"] for action in ("Up", "Right", "Down")]

    assert all(places(seed) == places(seed) for seed in range(10))
    assert len({tuple(places(seed)) for seed in range(30)}) > 8


@given(seed=st.integers(0, 1000), gaps=st.lists(st.integers(0, 2), min_size=6, max_size=6))
@settings(max_examples=30, deadline=None)
def test_an_action_that_is_none_does_not_disturb_the_slips(seed, gaps):
    def play(junk):
        game, record = FrozenLake(size=8), []
        game.reset(seed=seed)
        for action, count in zip(["Right", "Down"] * 3, junk, strict=True):
            for _ in range(count):
                game.step("Rigt")
            text, reward, terminated, _, _ = game.step(action)
            record.append((text, reward, terminated))
            if terminated:
                break
        return record

    assert play(gaps) == play([0] * 6)


def test_the_best_player_of_random_starts_succeeds_as_often_as_published():
    """RAGEN's lakes of 4x4 at a success rate of 1/3: 0.483 in 10 actions, by dynamic programming over the table."""

    def best_success(lake):
        environment = FrozenLakeEnv(desc=lake, is_slippery=True, success_rate=1 / 3)
        values = np.zeros(16)
        for _ in range(10):
            values = np.array(
                [
                    max(
                        sum(p * (reward + (not over) * values[then]) for p, then, reward, over in outcomes)
                        for outcomes in environment.P[place].values()
                    )
                    for place in range(16)
                ]
            )
        return environment.initial_state_distrib @ values

    game = FrozenLake(random_start=True)
    successes = [best_success(list(map_of(game.reset(seed=seed)[1]))) for seed in range(400)]
    assert abs(np.mean(successes) - 0.483) < 3 * np.std(successes) / math.sqrt(len(successes))


def test_the_text_of_a_lake():
    game = FrozenLake(is_slippery=False)
    text, info = game.reset(seed=0, options={"map": ["FSF", "HFF", "FFG"]})
    assert text == "_ P _\nO _ _\n_ _ G\nYou are at row 1, column 2. The goal is at row 3, column 3."
    assert info == {
        "anchor": (("FSF", "HFF", "FFG"), (1, 2)),
        "success": False,
        "facts": {"player": (1, 2), "goal": (3, 3), "holes": ((2, 1),)},
    }


@pytest.mark.parametrize(
    ("vocabulary", "actions", "expected"),
    [
        ("ragen", ["Down", "Left"], "_ _ _\nX _ _\n_ _ G\nYou are at row 2, column 1."),
        ("ragen", ["Down", "Down", "Right"], "_ _ _\nO _ _\n_ _ √\nYou are at row 3, column 3."),
        ("letters", ["Down"], "F F F\nH A F\nF F T\nYou are at row 2, column 2."),
        ("letters", ["Down", "Left"], "F F F\nD F F\nF F T\nYou are at row 2, column 1."),
        ("letters", ["Down", "Down", "Right"], "F F F\nH F F\nF F W\nYou are at row 3, column 3."),
    ],
)
def test_the_text_of_what_happens(vocabulary, actions, expected):
    game = FrozenLake(is_slippery=False, vocabulary=vocabulary)
    game.reset(seed=0, options={"map": ["FSF", "HFF", "FFG"]})
    for action in actions:
        text, *_ = game.step(action)
    assert text == f"{expected} The goal is at row 3, column 3."


def test_the_goal_is_worth_one_and_a_hole_nothing_and_both_end_the_episode():
    game = FrozenLake(is_slippery=False)
    for actions, outcome in (
        (["Right", "Right", "Down", "Down"], (1, True, True)),
        (["Right", "Down"], (0, True, False)),
    ):
        game.reset(seed=0, options={"map": SMALL_LAKE})
        for action in actions[:-1]:
            _, reward, terminated, _, info = game.step(action)
            assert (reward, terminated, info["success"]) == (0, False, False)
        _, reward, terminated, _, info = game.step(actions[-1])
        assert (reward, terminated, info["success"]) == outcome
        with pytest.raises(gymnasium.error.ResetNeeded):
            game.step("Up")


def test_a_step_against_the_edge_is_valid_but_has_no_effect():
    game = FrozenLake(is_slippery=False)
    _, before = game.reset(seed=0, options={"map": SMALL_LAKE})
    _, reward, terminated, _, info = game.step("Up")
    assert (reward, terminated, info["action_valid"], info["action_effective"]) == (0, False, True, False)
    assert info["anchor"] == before["anchor"]


@pytest.mark.parametrize("vocabulary", ["ragen", "letters"])
def test_the_legend_explains_every_symbol(vocabulary):
    game = FrozenLake(is_slippery=False, vocabulary=vocabulary)
    (line,) = (line for line in game.instructions.splitlines() if line.startswith("Symbols: "))
    legend = dict(re.findall(r"(\S) = ([a-z ]+)", line))
    assert len(legend) == len(set(legend.values())) == 6
    for end, player in (
        (["Right"], "player"),
        (["Right", "Down"], "player in a hole"),
        (["Down"], "player on the goal"),
    ):
        text, _ = game.reset(seed=0, options={"map": ["SF", "GH"]})
        for action in end:
            text, *_ = game.step(action)
        meanings = [[legend[symbol] for symbol in row.split(" ")] for row in text.splitlines()[:2]]
        expected = [["frozen tile", "frozen tile"], ["goal", "hole"]]
        row, column = {"player": (0, 1), "player in a hole": (1, 1), "player on the goal": (1, 0)}[player]
        expected[row][column] = player
        assert meanings == expected


def test_the_two_vocabularies_share_no_symbol():
    symbols = [set(FrozenLake(vocabulary=name).symbols.values()) for name in ("ragen", "letters")]
    assert not symbols[0] & symbols[1]


def test_the_instructions_tell_the_truth_about_the_ice():
    assert "slippery" not in FrozenLake(is_slippery=False).instructions
    assert "chance of 80%, and to each of the two sides of it with a chance of 10%" in (
        FrozenLake(success_rate=0.8).instructions
    )


def test_a_lake_may_have_any_shape_and_be_impossible():
    game = FrozenLake(is_slippery=False)
    text, info = game.reset(seed=0, options={"map": ("SHFFG",)})
    assert text.splitlines()[0] == "P O _ _ G"
    assert info["facts"] == {"player": (1, 1), "goal": (1, 5), "holes": ((1, 2),)}


def test_facts_and_anchor_follow_the_player():
    game = FrozenLake(is_slippery=False)
    game.reset(seed=0, options={"map": SMALL_LAKE})
    anchors = [game.step(action)[4]["anchor"] for action in ("Right", "Left", "Right", "Right")]
    assert [place for _, place in anchors] == [(1, 2), (1, 1), (1, 2), (1, 3)]
    assert anchors[0] == anchors[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 1}, "`size`.*got 1"),
        ({"size": 4.0}, "`size`.*got 4.0"),
        ({"frozen_share": 0.3}, "`frozen_share`.*got 0.3"),
        ({"frozen_share": 1.2}, "`frozen_share`.*got 1.2"),
        ({"success_rate": -0.1}, "`success_rate`.*got -0.1.*is_slippery=False"),
        ({"success_rate": 80}, "`success_rate`.*got 80"),
        ({"vocabulary": "emoji"}, "`vocabulary`.*'ragen', 'letters'.*got 'emoji'"),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        FrozenLake(**arguments)


@pytest.mark.parametrize(
    ("lake", "message"),
    [
        ("SFFG", "list of rows"),
        ([], "one length"),
        (["SF", "G"], "one length"),
        (["P_", "OG"], "letters S"),
        (["SF", "FF"], "one goal"),
        (["SS", "FG"], "one start"),
    ],
)
def test_a_bad_map_is_refused(lake, message):
    with pytest.raises(ValueError, match=message):
        FrozenLake().reset(seed=0, options={"map": lake})
