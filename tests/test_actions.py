# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""Replies and what they say to do: worked cases for every malformation, and arbitrary text."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trl_agentpo.actions import ActionFormat, ParsedResponse, match_vocabulary


TAGS = ("action", "answer")
every_tag = pytest.mark.parametrize("tag", TAGS)

# Text without angle brackets or separators cannot be taken for markup.
plain = st.text(st.characters(exclude_characters="<>|", exclude_categories=["Cs"]), max_size=12)
# Mostly markup, in any order.
junk = st.lists(
    st.sampled_from(["<think>", "</think>", "<action>", "</action>", "<answer>", "</answer>", "||", "|", "<", "\n"])
    | st.text(max_size=5),
    max_size=15,
).map("".join)


def read(reply: str, tag: str = "action", require_thinking: bool = True) -> ParsedResponse:
    return ActionFormat(tag, require_thinking, max_actions=4)(reply)


# The asked-for form


@every_tag
def test_thinking_and_action(tag: str) -> None:
    assert read(f"<think> the goal is right </think>\n<{tag}> right\n</{tag}>", tag) == ParsedResponse(
        ("right",), True, "the goal is right"
    )


@every_tag
def test_the_other_tag_is_no_action(tag: str) -> None:
    other = next(name for name in TAGS if name != tag)
    assert read(f"<think>x</think><{other}>left</{other}>", tag) == ParsedResponse((), False, "x")


@every_tag
def test_thinking_may_be_asked_for(tag: str) -> None:
    reply = f"<{tag}>left</{tag}>"
    assert read(reply, tag, require_thinking=True) == ParsedResponse(("left",), False, None)
    assert read(reply, tag, require_thinking=False) == ParsedResponse(("left",), True, None)


def test_thinking_that_nobody_asked_for_is_kept() -> None:
    assert read("<think>x</think><action>left</action>", require_thinking=False) == ParsedResponse(
        ("left",), True, "x"
    )


@pytest.mark.parametrize(
    ("block", "actions"),
    [
        ("left || right", ("left", "right")),
        ("left||right||left", ("left", "right", "left")),
        (" go to cabinet 1 ||\n open cabinet 1 ", ("go to cabinet 1", "open cabinet 1")),
        ("left ||", ("left",)),
        ("|| left || || right", ("left", "right")),
        ("left | right", ("left | right",)),
        ("left ||| right", ("left", "| right")),
    ],
)
def test_actions_are_separated_by_two_bars(block: str, actions: tuple[str, ...]) -> None:
    assert read(f"<think></think><action>{block}</action>") == ParsedResponse(actions, True, "")


@pytest.mark.parametrize(
    ("action_format", "actions"),
    [
        (ActionFormat("action", max_actions=1), ("search[red || blue]",)),
        (ActionFormat("action", max_actions=2), ("search[red", "blue]")),
        (ActionFormat("answer", max_actions=1), ("search[red", "blue]")),
    ],
)
def test_where_one_action_is_asked_for_the_bars_are_part_of_it(
    action_format: ActionFormat, actions: tuple[str, ...]
) -> None:
    reply = f"<think></think><{action_format.tag}>search[red || blue]</{action_format.tag}>"
    assert action_format(reply).actions == actions


@pytest.mark.parametrize("actions", ["right", ["right"], (1,), None])
def test_actions_that_are_no_tuple_of_strings_are_refused(actions: Any) -> None:
    with pytest.raises(TypeError, match="`actions` must be a tuple of strings"):
        ParsedResponse(actions)


def test_tags_may_be_in_any_case_and_actions_keep_theirs() -> None:
    assert read("<THINK>Go</Think><Action>Go LEFT</aCTION>") == ParsedResponse(("Go LEFT",), True, "Go")


def test_text_around_the_blocks_is_ignored() -> None:
    assert read("Sure! <think>x</think> so <action>left</action>.<|end|>") == ParsedResponse(("left",), True, "x")


# Malformed replies


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("", ParsedResponse((), False)),
        ("left", ParsedResponse((), False)),
        ("<think>x</think>", ParsedResponse((), False, "x")),
        ("<think>x</think><action>", ParsedResponse((), False, "x")),
        ("<think>x</think><action>left", ParsedResponse((), False, "x")),
        ("<think>x</think>left</action>", ParsedResponse((), False, "x")),
        ("<think>x</think></action>left<action>", ParsedResponse((), False, "x")),
        ("<think>x</think><action></action>", ParsedResponse((), False, "x")),
        ("<think>x</think><action> \n </action>", ParsedResponse((), False, "x")),
        ("<think>x</think><action>||</action>", ParsedResponse((), False, "x")),
        ("<think>x</think>< action >left</ action >", ParsedResponse((), False, "x")),
        ("<think>x<action>left</action>", ParsedResponse(("left",), False, None)),
        ("x</think><action>left</action>", ParsedResponse(("left",), False, None)),
        ("<think>x</think><action>left<action>right</action>", ParsedResponse(("left<action>right",), True, "x")),
        ("<think>x</think><action>left</action></action>", ParsedResponse(("left",), True, "x")),
        ("<think>a<think>b</think>c</think><action>left</action>", ParsedResponse(("left",), True, "a<think>b")),
        # The first of each kind, wherever it stands.
        ("<think>x</think><action>left</action><action>right</action>", ParsedResponse(("left",), True, "x")),
        ("<action>left</action><think>x</think>", ParsedResponse(("left",), True, "x")),
        ("<think>a</think><think>b</think><action>left</action>", ParsedResponse(("left",), True, "a")),
    ],
)
def test_a_malformed_reply_is_read_as_far_as_it_goes(reply: str, expected: ParsedResponse) -> None:
    assert read(reply) == expected


@pytest.mark.parametrize("reply", ["\x00\ud800", "�" * 40, '{"action": "left"}', "<action/>", "<<<>>>||", "١٢٣"])
def test_junk_is_invalid(reply: str) -> None:
    assert read(reply) == ParsedResponse((), False, None)


@given(reply=junk | st.text(), tag=st.sampled_from(TAGS), require_thinking=st.booleans())
@example(reply="<action>" * 2000, tag="action", require_thinking=True)
def test_no_text_raises_and_actions_are_never_blank(reply: str, tag: str, require_thinking: bool) -> None:
    parsed = read(reply, tag, require_thinking)
    assert all(action and action == action.strip() and "||" not in action for action in parsed.actions)
    assert all(action in reply for action in parsed.actions)
    assert not parsed.valid or (parsed.actions and (parsed.thinking is not None or not require_thinking))


@given(
    before=plain,
    thinking=plain,
    actions=st.lists(plain.filter(str.strip), min_size=1, max_size=4),
    after=plain,
    tag=st.sampled_from(TAGS),
)
def test_what_is_written_in_form_is_read_back(
    before: str, thinking: str, actions: list[str], after: str, tag: str
) -> None:
    reply = f"{before}<think>{thinking}</think>{before}<{tag}>{'||'.join(actions)}</{tag}>{after}"
    assert read(reply, tag) == ParsedResponse(tuple(action.strip() for action in actions), True, thinking.strip())


# What the model is told


@every_tag
@pytest.mark.parametrize("require_thinking", [True, False])
@pytest.mark.parametrize("max_actions", [1, 2, 3])
def test_a_reply_as_the_instructions_show_it_is_valid(tag: str, require_thinking: bool, max_actions: int) -> None:
    action_format = ActionFormat(tag, require_thinking, max_actions)
    shown = action_format.instructions.removeprefix("Answer with ")
    parsed = action_format(shown)
    assert parsed.valid
    assert len(parsed.actions) == 1
    assert (parsed.thinking is not None) == require_thinking
    assert ("||" in shown) == (max_actions > 1)
    assert (str(max_actions) in shown) == (max_actions > 1)


def test_an_unknown_tag_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'action', 'answer', got 'act'"):
        ActionFormat("act")


# Vocabulary


def test_known_actions_are_spelled_as_the_environment_does() -> None:
    assert match_vocabulary(["LEFT", "Right", "up"], ["left", "Right", "UP"]) == (["left", "Right", "UP"], True)
    assert match_vocabulary(["Straße"], ["STRASSE"]) == (["STRASSE"], True)


def test_an_unknown_action_is_left_out_and_reported() -> None:
    assert match_vocabulary(["left", "jump", "RIGHT"], ["left", "right"]) == (["left", "right"], False)
    assert match_vocabulary(["jump"], ["left", "right"]) == ([], False)


def test_free_text_is_passed_on_as_it_is() -> None:
    assert match_vocabulary(["Search [red shoes]", ""], []) == (["Search [red shoes]", ""], True)


def test_nothing_said_holds_nothing_unknown() -> None:
    assert match_vocabulary([], ["left"]) == ([], True)


def test_case_decides_where_the_environment_tells_it_apart() -> None:
    # As in Sokoban's notation: small letters walk and capitals push.
    assert match_vocabulary(["u", "U", "d"], ["u", "U", "D"]) == (["u", "U", "D"], True)


names = st.text("aAbBß", min_size=1, max_size=3)


@given(vocabulary=st.lists(names, min_size=1, max_size=5), actions=st.lists(names | st.just("SS"), max_size=5))
def test_matching_agrees_with_a_search_of_the_vocabulary(vocabulary: list[str], actions: list[str]) -> None:
    similar = [[name for name in vocabulary if name.casefold() == action.casefold()] for action in actions]
    known, all_known = match_vocabulary(actions, vocabulary)
    assert all_known == all(similar)
    said = [(action, names) for action, names in zip(actions, similar, strict=True) if names]
    for found, (action, names) in zip(known, said, strict=True):
        assert found == action if action in vocabulary else found in names
