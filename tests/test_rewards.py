# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""What the shipped rewards pay, which statements are understood, and how the result of a reward function is read."""

import functools
import math
import pickle
import random
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import byte_tokenizer

import trl_agentpo
from trl_agentpo.actions import ActionFormat
from trl_agentpo.context import ChatTokens, TaskPrompt, Window
from trl_agentpo.episode import Episode, Turn
from trl_agentpo.pool import EnvironmentPool
from trl_agentpo.rewards import (
    effectiveness_reward,
    format_reward,
    grounded_share,
    grounding_reward,
    thinking_length_reward,
    turn_rewards,
    validity_reward,
)
from trl_agentpo.rollout import Limits, Rollout
from trl_agentpo.testing import describe


LAKE = {"player": (1, 2), "goal": (3, 3), "holes": ((1, 1), (2, 1), (3, 1))}
ROOM = {"player": (2, 2), "boxes": ((2, 3), (3, 4)), "targets": ((2, 4), (3, 4))}
ARMS = {"arms": ("Phoenix", "Dragon"), "safe": "Phoenix", "risky": "Dragon"}

TOKENIZER = byte_tokenizer()
SHIPPED = [
    format_reward,
    validity_reward,
    effectiveness_reward,
    grounding_reward,
    thinking_length_reward(min_words=1, max_words=9),
]


def turn(**given: Any) -> Turn:
    return Turn(observation="", anchor=0, prompt_ids=[], completion_ids=[], response="", **given)


def episodes_of(*lengths: int) -> list[Episode]:
    return [Episode(seed=n, turns=[turn() for _ in range(length)]) for n, length in enumerate(lengths)]


def played(environment: str, options: dict[str, Any], replies: Sequence[str], **given: Any) -> Episode:
    """One episode of a real environment with these replies, one for each turn."""
    remaining = iter(replies)

    def generate(prompts: list[list[int]]) -> tuple[list[list[int]], None]:
        reply = TOKENIZER(next(remaining), add_special_tokens=False)["input_ids"]
        return [[*reply, TOKENIZER.eos_token_id] for _ in prompts], None

    episode = Episode(seed=0, options=options)
    Rollout(
        pool=EnvironmentPool(functools.partial(trl_agentpo.make, environment, **given)),
        generate=generate,
        any_active=lambda number: number > 0,
        chat=ChatTokens(TOKENIZER),
        context=Window(0),
        task=TaskPrompt("Play.", "Answer."),
        parse=ActionFormat(),
        limits=Limits(len(replies), None, 1, 500, None, None),
        end_tokens=[TOKENIZER.eos_token_id],
        raise_on_error=True,
    ).play([episode])
    assert len(episode.turns) == len(replies)
    return episode


# On recorded episodes


def test_the_rewards_of_a_walk_over_the_lake() -> None:
    episode = played(
        "trl_agentpo/FrozenLake-v0",
        {"map": ["SFF", "HFF", "FFG"]},
        [
            # A step against the edge. Player and goal as said, the hole elsewhere.
            "<think>The player is at (1, 1), the goal at (3, 3), a hole at (2, 2).</think><action>Up</action>",
            "<think>I am at (1, 1). goal down right, holes down</think><action>Right</action>",
            # One word too few, and where the player was a turn ago.
            "<think>player (1, 1)</think><action>Down</action>",
            "<action>Down</action>",
            "<think>goal right, holes no</think><action>Fly</action>",
            "I give up.",
        ],
        is_slippery=False,
    )
    assert [step.facts["player"] for step in episode.turns] == [(1, 1), (1, 1), (1, 2), (2, 2), (3, 2), (3, 2)]
    assert grounding_reward([episode]) == [[2 / 3, 1.0, 0.0, 0.0, 1.0, 0.0]]
    assert format_reward([episode]) == [[1.0, 1.0, 1.0, 0.0, 1.0, 0.0]]
    assert validity_reward([episode]) == [[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]]
    assert effectiveness_reward([episode]) == [[0.0, 1.0, 1.0, 1.0, 0.0, 0.0]]
    # Words: 16, 10, 3, 0, 4, 0.
    assert thinking_length_reward(min_words=4, max_words=10)([episode]) == [[0.0, 1.0, 0.0, 0.0, 1.0, 0.0]]


def test_grounding_in_a_warehouse() -> None:
    episode = played(
        "trl_agentpo/Sokoban-v0",
        {"map": ["#######", "#PX_O_#", "#__X_O#", "#_____#", "#######"]},
        [
            "<think>boxes right, targets no. Boxes: row 2, column 3; row 3, column 4.</think><action>Right</action>",
            "<think>The boxes are at (2, 4) and (3, 4), the targets at (2, 5) and (3, 5).</think><action>Up</action>",
        ],
    )
    # The second: the box was pushed to (2, 4); targets are (2, 5) and (3, 6), so one of four is wrong.
    assert grounding_reward([episode]) == [[1.0, 3 / 4]]


def test_grounding_before_two_arms() -> None:
    thinking = "Dragon is risky, so the safe arm is Phoenix; Unicorn is risky."
    episode = played("trl_agentpo/Bandit-v0", {}, [f"<think>{thinking}</think><action>Dragon</action>"])
    swapped = played("trl_agentpo/Bandit-v0", {}, [f"<think>{thinking}</think><action>Dragon</action>"], reverse=True)
    assert grounding_reward([episode, swapped]) == [[1.0], [0.0]]


@pytest.mark.parametrize("environment", ["trl_agentpo/FrozenLake-v0", "trl_agentpo/Sokoban-v0"])
@pytest.mark.parametrize("seed", range(3))
def test_what_the_tiny_policy_learns_to_say_is_grounded_in_every_state(environment: str, seed: int) -> None:
    game = trl_agentpo.make(environment)
    _, info = game.reset(seed=seed)
    moves = random.Random(seed)
    for _ in range(30):
        assert grounded_share(describe(info["facts"]), info["facts"]) == 1.0
        *_, terminated, _, info = game.step(moves.choice(["Left", "Right", "Up", "Down"]))
        if terminated:
            _, info = game.reset()


@pytest.mark.parametrize("environment", ["trl_agentpo/FrozenLake-v0", "trl_agentpo/Sokoban-v0"])
def test_an_observation_is_grounded_in_its_own_state(environment: str) -> None:
    shown, info = trl_agentpo.make(environment).reset(seed=0)
    assert grounded_share(shown, info["facts"]) == 1.0


@pytest.mark.parametrize("function", SHIPPED)
def test_a_shipped_function_takes_what_trl_hands_over_and_is_read_back(function: Any) -> None:
    episodes = episodes_of(2, 0, 1)
    rewards = function(episodes=episodes, prompts=["p"] * 3, completions=["c"] * 3, trainer_state=None)
    assert [len(of_episode) for of_episode in rewards] == [2, 0, 1]
    assert turn_rewards(rewards, episodes, function.__name__) == ([sum(r) for r in rewards], rewards)


# Statements


@pytest.mark.parametrize(
    ("facts", "thinking", "share"),
    [
        (LAKE, "player (1, 2)", 1.0),
        (LAKE, "player(1,2)", 1.0),
        (LAKE, "The PLAYER\nis\tat\n ( 1 , 2 )", 1.0),
        (LAKE, "player at row 1, column 2", 1.0),
        (LAKE, "the player's position is row 1 and col 2", 1.0),
        (LAKE, "player: (2, 2)", 0.0),
        (LAKE, "player at row 2, column 1", 0.0),
        (LAKE, "player at row 1, column 21", 0.0),
        (LAKE, "You are at row 1, column 2. The goal is at row 3, column 3.", 1.0),
        (LAKE, "I am at (1, 2) and the goal is at (3, 2)", 1 / 2),
        (LAKE, "a hole at (2, 1)", 1.0),
        (LAKE, "holes (1, 1), (2, 1) and (3, 0)", 2 / 3),
        (LAKE, "holes at (1, 1), at (2, 2), and at (3, 3), the goal at (3, 3)", 2 / 4),
        (LAKE, "hole (1, 1), hole (1, 1), hole (1, 1), hole (2, 2)", 1 / 2),
        (LAKE, "goal (-3, 3)", 0.0),
        (ROOM, "box (2, 3)", 1.0),
        (ROOM, "boxes (2, 3); (3, 4); (4, 4)", 2 / 3),
        (ROOM, "the box on the target (2, 4)", 1.0),
        (LAKE, "goal down right", 1.0),
        (LAKE, "goal down left", 1 / 2),
        (LAKE, "GOAL Down Right", 1.0),
        (LAKE, "Goal: up left, holes left", 1 / 3),
        (LAKE, "goal no, holes no", 0.0),
        (LAKE, "holes left down right up", 1 / 4),
        (ROOM, "the box is right, targets no.", 1.0),
        ({**LAKE, "player": (3, 3)}, "goal no", 1.0),
        ({"player": [1, 2], "goal": [np.int64(3), np.int64(3)], "holes": []}, "goal (3, 3), holes no", 1.0),
        ({"player": (1, 2), "holes": ()}, "hole at (1, 2)", 0.0),
        ({"exit_doors": ((1, 2),)}, "exit door (1, 2), exit_doors (1, 3)", 1 / 2),
        (ARMS, "Dragon is risky", 1.0),
        (ARMS, "dragon is the RISKY arm", 1.0),
        (ARMS, "the risky arm is Dragon", 1.0),
        (ARMS, "risky: Dragon, safe: Phoenix", 1.0),
        (ARMS, "risky=Phoenix", 0.0),
        (ARMS, "Dragon is risky. The safe one is Dragon.", 1 / 2),
        (ARMS, "Dragon is risky, Dragon is risky, Phoenix is risky", 1 / 2),
        ({"weather": "rainy", "kinds": ["rainy", "sunny"]}, "the weather is sunny", 0.0),
        ({"arms": ("Red", "Red Dragon"), "risky": "Red Dragon"}, "risky: Red Dragon", 1.0),
        ({"arms": ("Red", "Red Dragon"), "risky": "Red"}, "risky: Red Dragon", 0.0),
        ({"risky": "C++ (2)"}, "C++ (2) is risky", 1.0),
    ],
)
def test_the_share_of_true_statements(facts: dict[str, Any], thinking: str, share: float) -> None:
    assert grounded_share(thinking, facts) == share


@pytest.mark.parametrize(
    ("facts", "thinking"),
    [
        (LAKE, ""),
        (LAKE, "I should be careful and go right."),
        (LAKE, "The goal is near. (3, 3)"),
        (LAKE, "the wumpus is at (3, 3)"),
        (LAKE, "multiplayer (1, 2), players2 (1, 2), goalkeeper (3, 3)"),
        (LAKE, "there is no hole at (1, 1), and that isn't a hole at (2, 1)"),
        (LAKE, "the player is not at (1, 2)"),
        (LAKE, "the goal is rightly far, and holes no one sees"),
        (LAKE, "player right"),
        (LAKE, f"player (1, {'2' * 5000}), player at row 1, column {'2' * 5000}"),
        ({"goal": (3, 3)}, "goal down right"),
        (ARMS, "Dragon is not risky"),
        (ARMS, "the risky arm isn't Dragon; the less risky arm is Dragon"),
        (ARMS, "Unicorn is risky, and the safe arm is Unicorn"),
        (ARMS, "Dragons is risky, and the safe arm is Phoenixes"),
        (ARMS, "Dragon or Phoenix, risky or safe?"),
        ({}, "player (1, 2), Dragon is risky"),
        ({"step": 3, "open": True, "flags": (True, False), "name": ""}, "step (1, 0), open (1, 0), flags (1, 0)"),
    ],
)
def test_what_is_no_statement(facts: dict[str, Any], thinking: str) -> None:
    assert grounded_share(thinking, facts) is None


def test_nothing_to_check_earns_nothing() -> None:
    turns = [turn(), turn(thinking="player (1, 2)"), turn(facts=LAKE), turn(facts=LAKE, thinking="Let me think.")]
    assert grounding_reward([Episode(seed=0, turns=turns)]) == [[0.0, 0.0, 0.0, 0.0]]


CELLS = st.tuples(st.integers(0, 6), st.integers(0, 6))
NAMES = st.sampled_from(["goal", "holes", "boxes", "targets", "red_keys", "switches", "exit"])
WORLDS = st.fixed_dictionaries({"player": CELLS}).flatmap(
    lambda player: st.dictionaries(NAMES, CELLS | st.lists(CELLS, unique=True).map(tuple), min_size=1).map(
        lambda others: {**player, **others}
    )
)


@given(WORLDS)
def test_a_description_is_grounded(facts: dict[str, Any]) -> None:
    assert grounded_share(describe(facts), facts) == 1.0


@given(st.integers(-3, 3), st.integers(-3, 3), st.integers(-3, 3), st.integers(-3, 3))
def test_each_word_of_a_direction_is_a_statement(down: int, right: int, said_down: int, said_right: int) -> None:
    """The goal is somewhere and said to be elsewhere: the words that the two descriptions share are true."""
    truth = describe({"player": (5, 5), "goal": (5 + down, 5 + right)}).split()[1:]
    said = describe({"player": (5, 5), "goal": (5 + said_down, 5 + said_right)})
    words = said.split()[1:]
    share = grounded_share(said, {"player": (5, 5), "goal": (5 + down, 5 + right)})
    assert share == len(set(words) & set(truth)) / len(words)


@given(st.lists(CELLS, unique=True, min_size=1), st.data())
def test_each_shifted_position_costs_its_share(holes: list[tuple[int, int]], data: st.DataObject) -> None:
    shifted = data.draw(st.sets(st.sampled_from(holes)))
    # A shift by more than the board leads to no other hole.
    said = [(row + 10, column) if (row, column) in shifted else (row, column) for row, column in holes]
    text = "The holes are at " + ", ".join(map(str, said))
    assert grounded_share(text, {"holes": holes}) == (len(holes) - len(shifted)) / len(holes)


@given(st.text(), st.sampled_from([LAKE, ROOM, ARMS]))
def test_no_text_is_refused(text: str, facts: dict[str, Any]) -> None:
    share = grounded_share(text, facts)
    assert share is None or 0.0 <= share <= 1.0


@pytest.mark.parametrize(
    "piece",
    [" ", "player ", "player is at ", "at ", "(", "1", "(1, 2), ", "holes (1, 2), ", "no ", "row 1, ", "goal down "]
    + ["down ", "risky ", "risky arm ", "Dragon is ", "risky is the ", "player's ", "n't a "],
)
@pytest.mark.parametrize("start", ["player ", "risky "])
def test_long_text_takes_no_quadratic_time(start: str, piece: str) -> None:
    text = start + piece * (100_000 // len(piece))
    # A name that is also one of the words between makes the worst case.
    share = grounded_share(text, {**LAKE, **ARMS, "at": (1, 1), "down": (2, 2)})
    assert share is None or 0.0 <= share <= 1.0


# The length of thinking


@pytest.mark.parametrize(("words", "reward"), [(None, 0.0), (1, 0.0), (2, 1.0), (3, 1.0), (4, 0.0)])
def test_bounds_of_thinking_are_included(words: int | None, reward: float) -> None:
    episode = Episode(seed=0, turns=[turn(thinking=None if words is None else "\n so " * words)])
    assert thinking_length_reward(min_words=2, max_words=3)([episode]) == [[reward]]


def test_no_thinking_has_no_words() -> None:
    assert thinking_length_reward(min_words=0, max_words=0)(episodes_of(1)) == [[1.0]]


def test_a_length_reward_has_a_name_for_logs_and_can_be_pickled() -> None:
    function = thinking_length_reward(min_words=2, max_words=3)
    assert function.__name__ == "thinking_length_reward"
    again = pickle.loads(pickle.dumps(function))
    assert again == function and again.__name__ == "thinking_length_reward"


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((-1, 3), r"`min_words` must be a whole number of at least 0, got -1\."),
        ((0, 2.5), r"`max_words` must be a whole number of at least 0, got 2\.5\."),
        ((True, 3), r"`min_words` must be a whole number of at least 0, got True\."),
        (
            (4, 3),
            r"`max_words` must be at least `min_words` \(4\), got 3: .* Raise `max_words` or lower `min_words`\.",
        ),
    ],
)
def test_bad_bounds_are_refused(bounds: tuple[Any, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        thinking_length_reward(*bounds)


# What a reward function returned


def test_numbers_sequences_and_none() -> None:
    returned = [2, [0.5, -1.5, 4.0], None, 7.5, [], None]
    totals, by_turn = turn_rewards(returned, episodes_of(2, 3, 2, 0, 0, 0), "mine")
    assert totals == [2.0, 3.0, None, 7.5, 0.0, None]
    assert by_turn == [[0.0, 2.0], [0.5, -1.5, 4.0], [0.0, 0.0], [], [], []]
    assert all(type(number) is float for number in [*totals[:2], *by_turn[0], *by_turn[1]])


@pytest.mark.parametrize(
    "returned",
    [
        np.array([[1, 2], [3, 4]]),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16),
        [np.array([1.0, 2.0]), torch.tensor([3, 4])],
        [(np.float32(1), np.int8(2)), [torch.tensor(3), np.array(4)]],
        ((1, Decimal(2)), range(3, 5)),
    ],
)
def test_arrays_and_tensors_of_turns(returned: Any) -> None:
    assert turn_rewards(returned, episodes_of(2, 2), "mine") == ([3.0, 7.0], [[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    "returned",
    [
        np.array([1, 2], dtype=np.uint8),
        torch.tensor([1.0, 2.0]),
        [torch.tensor(1), np.float16(2)],
        [np.array(1.0), np.int64(2)],
    ],
)
def test_arrays_and_tensors_of_episodes(returned: Any) -> None:
    assert turn_rewards(returned, episodes_of(2, 1), "mine") == ([1.0, 2.0], [[0.0, 1.0], [2.0]])


@given(st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=5))
def test_totals_are_the_sums_of_the_turns(rewards: list[list[int]]) -> None:
    totals, by_turn = turn_rewards(rewards, episodes_of(*map(len, rewards)), "mine")
    assert (totals, by_turn) == ([sum(of_episode) for of_episode in rewards], rewards)


@pytest.mark.parametrize("returned", [[], [1.0], [1.0, 2.0, 3.0], None, 1.0, "ab", {0: 1.0, 1: 2.0}, np.array(1.0)])
def test_a_result_that_is_not_one_entry_for_each_episode_is_refused(returned: Any) -> None:
    with pytest.raises(
        ValueError, match=r"Reward function `mine` returned .* for 2 episodes\. Return a list with one"
    ):
        turn_rewards(returned, episodes_of(1, 1), "mine")


@pytest.mark.parametrize(
    "entry",
    [
        True,
        np.True_,
        torch.tensor(True),
        np.array([True, False]),
        [1.0, False],
        "1",
        "12",
        b"12",
        ["1", "2"],
        [1.0, None],
    ]
    + [math.nan, -math.inf, [1.0, math.nan], torch.tensor([math.inf, 0.0]), np.float32("nan"), 10**400]
    + [[], [1.0], [1.0, 2.0, 3.0], np.ones((2, 1)), torch.ones(1), {0: 1.0, 1: 2.0}, {1.0, 2.0}, object(), 1j],
    ids=repr,
)
def test_an_entry_that_is_no_reward_is_refused(entry: Any) -> None:
    with pytest.raises(ValueError) as caught:
        turn_rewards([None, entry], episodes_of(1, 2), "mine")
    message = str(caught.value)
    assert message.startswith(f"Reward function `mine` returned {entry!r:.80}")
    assert "for `episodes[1]`, which has 2 turns. Return a finite number, a list of 2 finite numbers" in message
    assert "or None where the function does not apply; neither NaN nor a truth value is a number here." in message


def test_the_module_does_without_torch() -> None:
    code = "import sys, trl_agentpo.rewards; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
