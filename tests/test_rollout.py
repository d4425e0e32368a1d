# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""The environment loop with scripted replies: what is generated for whom, what is recorded, and when it ends."""

import hashlib
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import TimeLimit
from hypothesis import given
from hypothesis import strategies as st
from support import Corridor, byte_tokenizer

from trl_agentpo import rollout as rollout_module
from trl_agentpo.actions import ActionFormat, ParsedResponse
from trl_agentpo.context import ChatTokens, ContextPolicy, FullHistory, MessageContext, TaskPrompt, Window
from trl_agentpo.environment import EnvironmentContractError, NonDeterministicResetError, TextSpace
from trl_agentpo.episode import Episode
from trl_agentpo.pool import EnvironmentPool
from trl_agentpo.rollout import Limits, Rollout
from trl_agentpo.rows import merge_turns


Info = dict[str, Any]
Moved = tuple[str, float, bool, bool, Info]

TOKENIZER = byte_tokenizer()
CHAT = ChatTokens(TOKENIZER)
TASK = TaskPrompt("Walk.", "Answer.")
END = TOKENIZER.eos_token_id
RIGHT, LEFT, NOTHING = "<action>right</action>", "<action>left</action>", "I will not."


def ids(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


class Scripted:
    """
    Generation from a script.

    Args:
        *calls (`Sequence[str | list[int]]`):
            For each call one reply per prompt: a text, which gets its end-of-turn token, or ids as they are.
        logprobs (`bool`, *optional*, defaults to `False`):
            Whether there are log-probabilities: -n for the n-th token sampled of all.
    """

    def __init__(self, *calls: Sequence[str | list[int]], logprobs: bool = False):
        self.script = calls
        self.numbers = itertools.count(1) if logprobs else None
        self.prompts: list[list[list[int]]] = []

    def __call__(self, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]] | None]:
        replies = self.script[len(self.prompts)]
        assert len(replies) == len(prompts)
        self.prompts.append(prompts)
        sampled = [[*ids(reply), END] if isinstance(reply, str) else reply for reply in replies]
        if self.numbers is None:
            return sampled, None
        return sampled, [[-float(next(self.numbers)) for _ in reply] for reply in sampled]

    @property
    def shown(self) -> list[list[str]]:
        """For each call the state at the end of each prompt."""
        return [
            [text(prompt).rpartition("Walk.\n")[2].partition("\nAnswer.")[0] for prompt in p] for p in self.prompts
        ]


def text(prompt: list[int]) -> str:
    return TOKENIZER.decode(prompt)


def limits(**given: Any) -> Limits:
    standard = {
        "max_turns": 10,
        "max_actions": None,
        "max_actions_per_turn": 1,
        "max_completion_length": 50,
        "max_context_length": None,
        "max_episode_length": None,
    }
    return Limits(**{**standard, **given})


def rollout_of(generate: Any, build: Callable[[], gymnasium.Env] = Corridor, **given: Any) -> Rollout:
    standard = {
        "pool": EnvironmentPool(build),
        "generate": generate,
        "any_active": lambda number: number > 0,
        "chat": CHAT,
        "context": Window(0),
        "task": TASK,
        "parse": ActionFormat(require_thinking=False, max_actions=5),
        "limits": limits(),
        "end_tokens": [END],
        "raise_on_error": False,
    }
    return Rollout(**{**standard, **given})


def at(*cells: int) -> list[Episode]:
    """One episode for each cell of the corridor to start in; the goal is cell 3."""
    return [Episode(seed=n, options={"cell": cell}) for n, cell in enumerate(cells)]


def states(*cells: int) -> list[str]:
    return [f"cell {cell} of 3" for cell in cells]


# Who generates


def test_only_unfinished_episodes_generate() -> None:
    generate = Scripted([RIGHT] * 4, [RIGHT] * 3, [RIGHT])
    episodes = at(1, 2, 0, 1)
    rollout_of(generate).play(episodes)
    assert generate.shown == [states(1, 2, 0, 1), states(2, 1, 2), states(2)]
    assert [len(episode.turns) for episode in episodes] == [2, 1, 3, 2]
    assert all(episode.terminated and episode.success and not episode.truncated for episode in episodes)
    assert [episode.total_reward for episode in episodes] == [1.0] * 4


def test_every_reply_reaches_its_own_episode() -> None:
    generate = Scripted([RIGHT, RIGHT, LEFT], [NOTHING, RIGHT], [RIGHT, LEFT])
    episodes = at(1, 2, 1)
    rollout_of(generate, limits=limits(max_turns=3)).play(episodes)
    assert [[turn.actions for turn in episode.turns] for episode in episodes] == [
        [["right"], [], ["right"]],
        [["right"]],
        [["left"], ["right"], ["left"]],
    ]


def test_environments_are_used_again() -> None:
    rollout = rollout_of(Scripted([RIGHT], [RIGHT, RIGHT], [RIGHT]))
    for cells in ((2,), (1, 2)):
        episodes = at(*cells)
        rollout.play(episodes)
        assert all(episode.success for episode in episodes)
    assert len(rollout.pool) == 2


# What is recorded


def test_a_turn_is_recorded_as_it_happened() -> None:
    reply = "<think>on</think><action>Right</action>"
    generate = Scripted([reply], [LEFT])
    (episode,) = at(0)
    rollout_of(generate, limits=limits(max_turns=2)).play([episode])
    first, second = episode.turns
    assert (first.observation, first.anchor) == ("cell 0 of 3", 0)
    assert (second.observation, second.anchor) == ("cell 1 of 3", 1)
    assert [first.prompt_ids, second.prompt_ids] == [prompts[0] for prompts in generate.prompts]
    assert first.completion_ids == [*ids(reply), END]
    assert (first.response, first.thinking, first.actions) == (reply, "on", ["right"])
    assert (first.valid, first.effective, first.cut, first.logprobs) == (True, True, False, None)
    assert (second.response, second.thinking, second.actions) == (LEFT, None, ["left"])


def test_the_facts_of_a_turn_are_those_of_the_state_it_met() -> None:
    class Factual(Corridor):
        def reset(self, **given: Any) -> tuple[str, Info]:
            shown, info = super().reset(**given)
            return shown, {**info, "facts": {"player": self.cell}}

        def step(self, action: str) -> Moved:
            shown, *rest, info = super().step(action)
            return shown, *rest, {**info, "facts": {"player": self.cell}}

    (episode,) = at(0)
    rollout_of(Scripted([RIGHT], [LEFT], [RIGHT]), Factual, limits=limits(max_turns=3)).play([episode])
    assert [turn.facts for turn in episode.turns] == [{"player": 0}, {"player": 1}, {"player": 0}]


@pytest.mark.parametrize(
    ("reply", "well_formed", "valid"), [(RIGHT, True, True), ("<action>fly</action>", True, False)]
)
def test_a_form_may_be_right_where_the_action_is_unknown(reply: str, well_formed: bool, valid: bool) -> None:
    (episode,) = at(0)
    rollout_of(Scripted([reply]), limits=limits(max_turns=1)).play([episode])
    assert [(turn.well_formed, turn.valid) for turn in episode.turns] == [(well_formed, valid)]


def test_the_state_is_shown_and_recorded_with_its_admissible_actions() -> None:
    class Listing(Corridor):
        def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
            shown, info = super().reset(seed=seed, options=options)
            return shown, {**info, "admissible_actions": ["right", "left"]}

    generate = Scripted([RIGHT])
    (episode,) = at(2)
    rollout_of(generate, Listing).play([episode])
    assert generate.shown == [["cell 2 of 3\nAdmissible actions: right, left"]]
    assert episode.turns[0].observation == "cell 2 of 3\nAdmissible actions: right, left"
    assert episode.turns[0].admissible_actions == ("right", "left")


def test_log_probabilities_go_with_their_tokens() -> None:
    episodes = at(2, 1)
    rollout_of(Scripted([[5, END], [6, 7, 8]], [[9, END], [10]], logprobs=True), limits=limits(max_turns=2)).play(
        episodes
    )
    assert [[turn.logprobs for turn in episode.turns] for episode in episodes] == [
        [[-1.0, -2.0], [-6.0, -7.0]],
        [[-3.0, -4.0, -5.0], [-8.0]],
    ]


def test_a_reply_without_an_end_token_is_cut() -> None:
    episodes = at(0, 0, 0, 0)
    rollout_of(
        Scripted([RIGHT, ids(RIGHT), [*ids(RIGHT), 7], [END, 9]]), end_tokens=[7, END], limits=limits(max_turns=1)
    ).play(episodes)
    assert [episode.turns[0].cut for episode in episodes] == [False, True, False, True]


def test_an_empty_reply_is_an_invalid_turn_and_the_dialogue_goes_on() -> None:
    generate = Scripted([[]], [RIGHT], logprobs=True)
    (episode,) = at(2)
    rollout_of(generate, context=FullHistory()).play([episode])
    first, second = episode.turns
    assert (first.completion_ids, first.response, first.actions, first.logprobs) == ([], "", [], [])
    assert (first.valid, first.cut) == (False, True)
    after = ids("<|im_end|>\n<|im_start|>user\ncell 2 of 3<|im_end|>\n<|im_start|>assistant\n")
    assert second.prompt_ids == first.prompt_ids + after
    assert episode.success


def test_the_context_sees_the_turns_so_far() -> None:
    seen = []

    def context(task: TaskPrompt, turns: Any, observation: Any) -> list[dict[str, str]]:
        seen.append((task, [turn.actions for turn in turns], observation.anchor))
        return [{"role": "user", "content": "?"}]

    rollout_of(Scripted([RIGHT], [LEFT], [NOTHING]), context=MessageContext(context), limits=limits(max_turns=3)).play(
        at(0)
    )
    assert seen == [(TASK, [], 0), (TASK, [["right"]], 1), (TASK, [["right"], ["left"]], 0)]


def test_a_users_own_parser_reads_the_replies() -> None:
    (episode,) = at(2)
    rollout_of(Scripted(["go right"]), parse=lambda reply: ParsedResponse((reply.split()[-1],))).play([episode])
    assert episode.success


# Valid and effective


@pytest.mark.parametrize(
    ("reply", "actions", "valid", "effective", "cell"),
    [
        (RIGHT, ["right"], True, True, 2),
        ("<action>RIGHT</action>", ["right"], True, True, 2),
        (NOTHING, [], False, False, 1),
        ("<action>jump</action>", [], False, False, 1),
        ("<action>left || jump || left</action>", ["left", "left"], False, True, 0),
        ("<action>left || left || left</action>", ["left"] * 3, True, True, 0),
    ],
)
def test_what_a_reply_leads_to(reply: str, actions: list[str], valid: bool, effective: bool, cell: int) -> None:
    generate = Scripted([reply], [NOTHING])
    (episode,) = at(1)
    rollout_of(generate, limits=limits(max_turns=2, max_actions_per_turn=3)).play([episode])
    turn = episode.turns[0]
    assert (turn.actions, turn.valid, turn.effective) == (actions, valid, effective)
    assert generate.shown[1] == states(cell)


def test_an_action_that_changes_nothing_is_not_effective() -> None:
    episodes = at(0, 0)
    rollout_of(
        Scripted([LEFT, "<action>left || right</action>"]), limits=limits(max_turns=1, max_actions_per_turn=2)
    ).play(episodes)
    assert [episode.turns[0].effective for episode in episodes] == [False, True]
    assert [episode.turns[0].valid for episode in episodes] == [True, True]


class Picky(Corridor):
    """Takes any text, pays 0.5 a step, does not understand `jump`, and is solved for a moment in cell 2."""

    action_space = TextSpace()

    def step(self, action: str) -> Moved:
        known = action in ("left", "right")
        shown, _, _, _, info = super().step(action if known else "left")
        return shown, 0.5, False, False, {"anchor": self.cell, "action_valid": known, "success": self.cell == 2}


def test_an_action_the_environment_does_not_understand_makes_the_turn_invalid() -> None:
    (episode,) = at(0)
    replies = ["<action>right || jump || right</action>", RIGHT]
    rollout_of(
        Scripted(*[[reply] for reply in replies]), Picky, limits=limits(max_turns=2, max_actions_per_turn=3)
    ).play([episode])
    assert [turn.valid for turn in episode.turns] == [False, True]
    assert episode.turns[0].actions == ["right", "jump", "right"]


def test_rewards_add_up_over_the_actions_of_a_turn_and_success_stays() -> None:
    (episode,) = at(1)
    replies = ["<action>right || right</action>", LEFT, "<action>left</action>"]
    rollout_of(
        Scripted(*[[reply] for reply in replies]), Picky, limits=limits(max_turns=3, max_actions_per_turn=3)
    ).play([episode])
    assert [turn.reward for turn in episode.turns] == [1.0, 0.5, 0.5]
    assert (episode.success, episode.terminated, episode.limit) == (True, False, "max_turns")


# Limits


def test_an_episode_ends_after_its_turns() -> None:
    episodes = at(0, 1)
    rollout_of(Scripted([RIGHT] * 2, [RIGHT] * 2), limits=limits(max_turns=2)).play(episodes)
    assert [(e.terminated, e.truncated, e.limit, len(e.turns)) for e in episodes] == [
        (False, True, "max_turns", 2),
        # Solved in its last turn: that is an end of its own.
        (True, False, None, 2),
    ]


def test_an_episode_ends_after_its_actions_and_takes_no_more() -> None:
    episodes = at(0, 0)
    two = "<action>left || left</action>"
    rollout_of(Scripted([two, LEFT], [two, two]), limits=limits(max_actions=3, max_actions_per_turn=2)).play(episodes)
    assert [[len(turn.actions) for turn in episode.turns] for episode in episodes] == [[2, 1], [1, 2]]
    assert [(e.truncated, e.limit, e.num_actions) for e in episodes] == [(True, "max_actions", 3)] * 2


def test_a_turn_takes_no_more_actions_than_it_may_and_none_after_the_end() -> None:
    episodes = at(0, 2)
    four = "<action>right || right || right || right</action>"
    rollout_of(Scripted([four] * 2), limits=limits(max_turns=1, max_actions_per_turn=2)).play(episodes)
    assert [episode.turns[0].actions for episode in episodes] == [["right"] * 2, ["right"]]
    assert [episode.turns[0].valid for episode in episodes] == [True, True]
    assert [episode.terminated for episode in episodes] == [False, True]


@pytest.mark.parametrize("limit", ["max_context_length", "max_episode_length"])
def test_an_episode_ends_cleanly_where_its_next_prompt_leaves_no_room_for_a_reply(limit: str) -> None:
    (alone,) = at(0)
    rollout_of(Scripted([LEFT], [LEFT], [LEFT]), context=FullHistory(), limits=limits(max_turns=3)).play([alone])
    for number, turn in enumerate(alone.turns, start=1):
        for room, expected in [(0, number), (-1, number - 1)]:
            if not expected:
                continue
            generate = Scripted(*[[LEFT]] * expected)
            (episode,) = at(0)
            length = len(turn.prompt_ids) + room + 50
            rollout_of(generate, context=FullHistory(), limits=limits(max_turns=3, **{limit: length})).play([episode])
            assert len(episode.turns) == len(generate.prompts) == expected
            assert (episode.terminated, episode.truncated) == (False, True)
            assert episode.limit == ("max_turns" if expected == 3 else limit)


def test_an_episode_of_fresh_prompts_has_one_budget_for_all_of_them() -> None:
    first = len(CHAT.encode([{"role": "user", "content": "Walk.\ncell 0 of 3\nAnswer."}]))
    reply = len(TOKENIZER(LEFT)["input_ids"]) + 1
    # Two turns are played: prompt, reply, prompt, reply. A third prompt and a full reply to it need 50 more than its length.
    needed = 2 * (first + reply) + first + 50
    for length, expected in [(needed, 3), (needed - 1, 2)]:
        (episode,) = at(0)
        rollout_of(Scripted(*[[LEFT]] * expected), limits=limits(max_turns=3, max_episode_length=length)).play(
            [episode]
        )
        assert [len(turn.prompt_ids) for turn in episode.turns] == [first] * expected
        assert [len(turn.completion_ids) for turn in episode.turns] == [reply] * expected
        assert (len(episode.turns), episode.num_tokens) == (expected, expected * (first + reply))


@pytest.mark.parametrize("context", [FullHistory(), Window(1), Window(0)])
def test_the_tokens_of_an_episode_are_those_of_its_rows(context: ContextPolicy) -> None:
    (episode,) = at(0)
    rollout_of(Scripted([LEFT], [RIGHT], [RIGHT]), context=context, limits=limits(max_turns=3)).play([episode])
    rows = merge_turns(episode.turns)
    assert episode.num_tokens == sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows)


def test_a_long_episode_ends_alone() -> None:
    episodes = at(0, 1)
    rollout_of(
        Scripted(["x" * 40 + LEFT, RIGHT], [RIGHT]),
        context=FullHistory(),
        limits=limits(
            max_episode_length=len(CHAT.encode([{"role": "user", "content": "Walk.\ncell 0 of 3\nAnswer."}])) + 110
        ),
    ).play(episodes)
    assert [(e.limit, len(e.turns)) for e in episodes] == [("max_episode_length", 1), (None, 2)]
    assert episodes[1].success


def test_a_task_whose_first_prompt_does_not_fit_is_an_error_with_its_numbers() -> None:
    length = len(CHAT.encode([{"role": "user", "content": "Walk.\ncell 0 of 3\nAnswer."}]))
    rollout = rollout_of(Scripted(), limits=limits(max_episode_length=length + 49))
    with pytest.raises(ValueError) as caught:
        rollout.play([Episode(seed=91)])
    named = ["seed=91", f"{length} tokens", f"`max_episode_length` is {length + 49}", "`max_completion_length`=50"]
    assert [word for word in named if word not in str(caught.value)] == []


def test_the_environments_own_limit_is_a_truncation() -> None:
    episodes = at(0, 2)
    rollout_of(Scripted([RIGHT] * 2, [RIGHT]), lambda: TimeLimit(Corridor(), max_episode_steps=2)).play(episodes)
    assert [(e.terminated, e.truncated, e.limit) for e in episodes] == [
        (False, True, "environment"),
        (True, False, None),
    ]


def test_an_end_and_a_limit_at_once_are_an_end() -> None:
    (episode,) = at(2)
    rollout_of(Scripted([RIGHT]), lambda: TimeLimit(Corridor(), max_episode_steps=1)).play([episode])
    assert (episode.terminated, episode.truncated, episode.limit, episode.success) == (True, False, None, True)


# Crashes


class Fragile(Corridor):
    """Breaks for good where it is told to: in `reset` at cell 13, in `step` on `left`."""

    broken = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        if self.broken or (options or {}).get("cell") == 13:
            self.broken = True
            raise OSError("cannot start")
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> Moved:
        if action == "left":
            self.broken = True
            raise ZeroDivisionError("cannot go left")
        return super().step(action)


def test_a_crash_ends_its_own_episode_only() -> None:
    generate = Scripted([RIGHT, "<action>right || left</action>", RIGHT], [RIGHT, RIGHT], [RIGHT])
    episodes = at(1, 0, 13, 0)
    rollout = rollout_of(generate, Fragile, limits=limits(max_actions_per_turn=2))
    before = [rollout.pool[place] for place in range(4)]
    rollout.play(episodes)

    assert [episode.error for episode in episodes] == [
        None,
        "ZeroDivisionError: cannot go left",
        "OSError: cannot start",
        None,
    ]
    assert generate.shown == [states(1, 0, 0), states(2, 1), states(2)]
    # What happened before the crash is on record.
    assert [turn.actions for turn in episodes[1].turns] == [["right"]]
    assert episodes[2].turns == []
    assert [episode.success for episode in episodes] == [True, False, False, True]

    after = [rollout.pool[place] for place in range(4)]
    assert [old is new for old, new in zip(before, after, strict=True)] == [True, False, False, True]
    again = at(2, 2, 2, 2)
    rollout.generate = Scripted([RIGHT] * 4)
    rollout.play(again)
    assert [episode.error for episode in again] == [None] * 4


def test_a_constructor_that_crashes_costs_an_episode_too() -> None:
    attempts = itertools.count(1)

    def build() -> gymnasium.Env:
        if next(attempts) == 2:
            raise OSError("no connection")
        return Corridor()

    rollout = rollout_of(Scripted([RIGHT], [RIGHT, RIGHT]), build)
    for errors in ([None, "OSError: no connection"], [None, None]):
        episodes = at(2, 2)
        rollout.play(episodes)
        assert [episode.error for episode in episodes] == errors


@pytest.mark.parametrize(("cell", "error"), [(13, OSError), (0, ZeroDivisionError)])
def test_a_crash_can_be_made_to_stop_the_run(cell: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="cannot"):
        rollout_of(Scripted([LEFT]), Fragile, raise_on_error=True).play(at(cell))


class Untyped(Corridor):
    """Returns what the contract does not allow."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Any:
        return super().reset(seed=seed, options=options) if options else "cell 0"

    def step(self, action: str) -> Any:
        return "cell 0", float("nan"), False, False, {}


@pytest.mark.parametrize("raise_on_error", [True, False])
@pytest.mark.parametrize("episode", [Episode(0), Episode(0, {"cell": 1})], ids=["reset", "step"])
def test_a_breach_of_the_contract_always_stops_the_run(raise_on_error: bool, episode: Episode) -> None:
    with pytest.raises(EnvironmentContractError, match="Untyped"):
        rollout_of(Scripted([LEFT]), Untyped, raise_on_error=raise_on_error).play([episode])


def test_an_interrupt_is_no_crash() -> None:
    class Interrupted(Corridor):
        def step(self, action: str) -> Moved:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rollout_of(Scripted([LEFT]), Interrupted).play(at(0))


# Groups


class Unseeded(Corridor):
    """Starts one cell further each time, whatever its seed."""

    starts = itertools.count()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        return super().reset(seed=seed, options={"cell": next(self.starts)})


@pytest.mark.parametrize("raise_on_error", [True, False])
def test_episodes_of_one_task_must_start_the_same(raise_on_error: bool) -> None:
    with pytest.raises(NonDeterministicResetError, match=r"Unseeded\.reset\(seed=5\)"):
        rollout_of(Scripted(), Unseeded, raise_on_error=raise_on_error).play([Episode(4), Episode(5), Episode(5)])


def test_episodes_of_different_tasks_may_start_differently() -> None:
    episodes = [Episode(4), Episode(5), Episode(5, {"cell": 1})]
    rollout_of(Scripted([NOTHING] * 3), Unseeded, limits=limits(max_turns=1)).play(episodes)
    assert [len(episode.turns) for episode in episodes] == [1, 1, 1]


def test_seed_and_options_reach_the_environment() -> None:
    asked = []

    class Asking(Corridor):
        def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
            asked.append((seed, options))
            return super().reset(seed=seed, options=options)

    rollout_of(Scripted([NOTHING] * 2), Asking, limits=limits(max_turns=1)).play([Episode(3), Episode(8, {"cell": 1})])
    assert asked == [(3, None), (8, {"cell": 1})]


# Several processes


class Elsewhere:
    """Another process that has unfinished episodes for some turns, whatever happens here."""

    def __init__(self, turns: int):
        self.turns = turns
        self.here: list[int] = []

    def __call__(self, number: int) -> bool:
        self.here.append(number)
        return number > 0 or len(self.here) <= self.turns


def test_a_process_that_is_done_generates_for_as_long_as_another_one_plays() -> None:
    any_active = Elsewhere(turns=4)
    generate = Scripted([RIGHT, RIGHT], [RIGHT], [LEFT], [LEFT])
    episodes = at(2, 1)
    rollout_of(generate, any_active=any_active).play(episodes)
    assert any_active.here == [2, 1, 0, 0, 0]
    assert [len(prompts) for prompts in generate.prompts] == [2, 1, 1, 1]
    # What takes part for nobody is a chat prompt like others, and its reply goes nowhere.
    assert all(text(prompts[0]).endswith("<|im_start|>assistant\n") for prompts in generate.prompts[2:])
    assert [len(episode.turns) for episode in episodes] == [1, 2]
    assert [episode.success for episode in episodes] == [True, True]


@pytest.mark.parametrize("episodes", [[], at(13)], ids=["none", "all crashed"])
def test_a_process_without_episodes_takes_part(episodes: list[Episode]) -> None:
    generate = Scripted([RIGHT], [RIGHT])
    rollout_of(generate, Fragile, any_active=Elsewhere(turns=2)).play(episodes)
    assert len(generate.prompts) == 2


def test_processes_generate_equally_often() -> None:
    """Two threads that wait for each other at each count stand for two processes."""
    barrier, counts = threading.Barrier(2, timeout=30), [0, 0]

    def any_active_of(process: int) -> Callable[[int], bool]:
        def any_active(number: int) -> bool:
            counts[process] = number
            barrier.wait()
            total = sum(counts)
            barrier.wait()
            return total > 0

        return any_active

    generates = [Scripted([RIGHT] * 2, [RIGHT], [RIGHT]), Scripted([RIGHT], [RIGHT], [RIGHT])]
    episodes = [at(2, 1), at(0)]
    threads = [
        threading.Thread(target=rollout_of(generates[n], any_active=any_active_of(n)).play, args=(episodes[n],))
        for n in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [len(generate.prompts) for generate in generates] == [3, 3]
    assert [[len(episode.turns) for episode in part] for part in episodes] == [[1, 2], [3]]


# Time


def test_time_is_accounted_where_it_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(rollout_module.time, "perf_counter", lambda: clock[0])

    class Slow(Fragile):
        def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
            clock[0] += 1
            return super().reset(seed=seed, options=options)

        def step(self, action: str) -> Moved:
            clock[0] += 10
            return super().step(action)

    generate = Scripted([RIGHT, RIGHT, LEFT], [RIGHT], [RIGHT])

    def slowly(prompts: list[list[int]]) -> Any:
        clock[0] += 100
        return generate(prompts)

    rollout = rollout_of(slowly, Slow)
    episodes = at(1, 2, 0)
    rollout.play(episodes)
    # The step that crashed took its time, too.
    assert [episode.environment_seconds for episode in episodes] == [21, 11, 11]
    assert rollout.generation_seconds == 200
    rollout.play(at(2))
    assert rollout.generation_seconds == 100


# Everything together


class Numbered(Corridor):
    """Shows its seed and the number of the step, so that no two prompts of a batch are equal."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        self.label, self.steps = seed, 0
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> Moved:
        self.steps += 1
        return super().step(action)

    def _text(self) -> str:
        return f"{self.label}/{self.steps}: {super()._text()}"


REPLIES = [RIGHT, RIGHT, LEFT, NOTHING, "<action>right || jump || right || right</action>", "<action>left || right"]


def reply_to(shown: str) -> str:
    """A reply that depends on the state alone, as arbitrary as its digest."""
    return REPLIES[hashlib.sha256(shown.encode()).digest()[0] % len(REPLIES)]


def by_hand(cell: int, seed: int, max_turns: int, max_actions: int | None, per_turn: int) -> tuple[Any, ...]:
    """One episode played with a plain loop on the corridor itself."""
    steps, actions, reached = 0, [], False
    for _ in range(max_turns):
        reply = reply_to(f"{seed}/{steps}: cell {cell} of 3")
        inside = reply.removeprefix("<action>").removesuffix("</action>") if "</action>" in reply else ""
        turn = []
        for action in [name for name in inside.split(" || ") if name in ("left", "right")][:per_turn]:
            if reached or steps == max_actions:
                break
            turn.append(action)
            steps += 1
            cell = max(0, cell + (1 if action == "right" else -1))
            reached = cell == 3
        actions.append(turn)
        if reached:
            return actions, True, None
        if steps == max_actions:
            return actions, False, "max_actions"
    return actions, False, "max_turns"


@given(
    cells=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    max_turns=st.integers(1, 4),
    max_actions=st.none() | st.integers(1, 5),
    per_turn=st.integers(1, 4),
)
def test_episodes_together_are_what_each_would_be_alone(
    cells: list[int], max_turns: int, max_actions: int | None, per_turn: int
) -> None:
    def generate(prompts: list[list[int]]) -> Any:
        shown = [text(prompt).partition("Walk.\n")[2].partition("\nAnswer.")[0] for prompt in prompts]
        return [[*ids(reply_to(state)), END] for state in shown], None

    episodes = at(*cells)
    rollout_of(
        generate,
        Numbered,
        limits=limits(max_turns=max_turns, max_actions=max_actions, max_actions_per_turn=per_turn),
    ).play(episodes)
    for seed, (cell, episode) in enumerate(zip(cells, episodes, strict=True)):
        played = [turn.actions for turn in episode.turns], episode.success, episode.limit
        assert played == by_hand(cell, seed, max_turns, max_actions, per_turn)


# What a user's parser may do


def test_a_parser_that_raises_makes_an_invalid_turn_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    def parse(response: str) -> ParsedResponse:
        if response == NOTHING:
            raise KeyError("no action")
        return ParsedResponse(("right",))

    episodes = at(1, 1)
    rollout_of(Scripted([NOTHING, RIGHT], [NOTHING, RIGHT], [RIGHT], [RIGHT]), parse=parse).play(episodes)
    assert [turn.valid for turn in episodes[0].turns] == [False, False, True, True]
    assert all(episode.success and not episode.failed for episode in episodes)
    (record,) = caplog.records
    assert "`action_parser` raised" in record.getMessage()
    assert record.exc_info is not None and record.exc_info[0] is KeyError


def test_a_parser_that_returns_something_else_is_named() -> None:
    with pytest.raises(TypeError, match="`action_parser` must return a `ParsedResponse`, got str"):
        rollout_of(Scripted([RIGHT]), parse=lambda response: "right").play(at(1))


def test_a_crash_is_shown_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    episodes = at(0, 0)
    rollout_of(Scripted([LEFT, LEFT]), Fragile).play(episodes)
    assert all(episode.failed for episode in episodes)
    (record,) = caplog.records
    assert "Fragile crashed in task seed=0" in record.getMessage()
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError


def test_what_the_last_turn_led_to_is_on_record() -> None:
    episodes = at(1)
    rollout_of(Scripted([RIGHT], [RIGHT])).play(episodes)
    assert [turn.observation for turn in episodes[0].turns] == states(1, 2)
    assert [episodes[0].last_observation] == states(3)
