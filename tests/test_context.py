# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Prompts as token ids, compared with what the tokenizer makes of the whole dialogue at once.

The templates are the ways in which the common model families write a dialogue, on a tokenizer with one token per byte, so
that every token of a difference can be read.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import byte_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import Qwen2Tokenizer

from trl_agentpo.context import ChatTokens, FullHistory, MessageContext, TaskPrompt, Window, show
from trl_agentpo.environment import Observation
from trl_agentpo.episode import Turn
from trl_agentpo.testing import CHAT_TEMPLATE, END_OF_TURN


Message = dict[str, Any]

TASK = TaskPrompt("Find the key.", "Answer with one action.")


@dataclass(frozen=True)
class Family:
    """
    A way to write a dialogue.

    Args:
        template (`str`):
            The chat template.
        end (`str`):
            The token with which the model ends its turn.
        markup (`tuple[str, ...]`, *optional*):
            The template's other tokens.
        before, after (`str`, *optional*):
            What the model itself writes around the content of its reply, where the template puts it there.
    """

    template: str
    end: str
    markup: tuple[str, ...] = ()
    before: str = ""
    after: str = ""


FAMILIES = {
    "chatml": Family(CHAT_TEMPLATE, END_OF_TURN),
    # Llama 3: contents are trimmed.
    "headers": Family(
        "{{ '<bos>' }}{% for m in messages %}<|header|>{{ m['role'] }}<|/header|>\n\n{{ m['content'] | trim }}<|eot|>"
        "{% endfor %}{% if add_generation_prompt %}<|header|>assistant<|/header|>\n\n{% endif %}",
        "<|eot|>",
        ("<bos>", "<|header|>", "<|/header|>"),
    ),
    # Gemma: the assistant has another name, and a turn ends with two tokens.
    "renamed": Family(
        "{{ '<bos>' }}{% for m in messages %}<turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
        "{{ m['content'] | trim }}</turn>\n{% endfor %}{% if add_generation_prompt %}<turn>model\n{% endif %}",
        "</turn>",
        ("<bos>", "<turn>"),
    ),
    # Mistral: only what the user says stands between tokens; two roles must alternate.
    "instructions": Family(
        "{{ '<s>' }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Roles must alternate') }}{% endif %}"
        "{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]{% else %} {{ m['content'] }}</s>{% endif %}"
        "{% endfor %}",
        "</s>",
        ("<s>", "[INST]", "[/INST]"),
        before=" ",
    ),
    # Llama 2: a blank between the reply and the token that ends it.
    "blank": Family(
        "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<s>' }}[INST] {{ m['content'] | trim }} [/INST]"
        "{% else %} {{ m['content'] | trim }} {{ '</s>' }}{% endif %}{% endfor %}",
        "</s>",
        ("<s>",),
        before=" ",
        after=" ",
    ),
    # GLM: no token ends a turn, so the model ends it with the one that begins the next.
    "begin only": Family(
        "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        "<|user|>",
        ("<|assistant|>",),
    ),
}
# Qwen 3: thinking is shown in replies to the last question only.
FORGETFUL = (
    "{% set last = namespace(index=0) %}{% for m in messages %}{% if m['role'] == 'user' %}{% set last.index = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}{% set content = m['content'] %}"
    "{% if m['role'] == 'assistant' and loop.index0 < last.index %}{% set content = content.split('</think>')[-1].lstrip() %}"
    "{% endif %}<|im_start|>{{ m['role'] }}\n{{ content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


@functools.cache
def tokenizer_of(family: Family) -> Qwen2Tokenizer:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([*family.markup, family.end], special_tokens=True)
    tokenizer.chat_template = family.template
    if "<bos>" in family.markup:
        # Such tokenizers put their first token before every text, and their templates write it themselves.
        first = ("<bos>", tokenizer.convert_tokens_to_ids("<bos>"))
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[first])
    return tokenizer


def tokenizer_with(template: str | None) -> Qwen2Tokenizer:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def encode(tokenizer: Qwen2Tokenizer, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def whole_dialogue(tokenizer: Qwen2Tokenizer, contents: Sequence[str], **options: Any) -> list[int]:
    """Contents of user and assistant in turn, as the tokenizer renders them."""
    messages = [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)]
    return list(
        tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_dict=False, **options
        )
    )


def state(text: str) -> Observation:
    return Observation(text, text)


def play(chat: ChatTokens, observations: Sequence[str], completions: Sequence[list[int]]) -> list[Turn]:
    """The turns of an episode with full history; the prompt that follows them is that of a last turn without reply."""
    turns: list[Turn] = []
    for text, completion_ids in zip(observations, [*completions, []], strict=True):
        prompt_ids = FullHistory().prompt_ids(chat, TASK, turns, state(text))
        turns.append(Turn(text, text, prompt_ids, completion_ids, ""))
    return turns


def opening(observation: str) -> str:
    return f"{TASK.instructions}\n{observation}\n{TASK.format_instructions}"


# Full history


words = st.text("ab ⁂\n", min_size=1, max_size=6)
contents = words.map(str.strip).filter(bool)
questions = st.lists(words, min_size=2, max_size=4)


@every_family
@given(data=st.data())
def test_the_stitched_prompt_is_the_dialogue_as_the_template_writes_it(family: Family, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(family)
    observations = data.draw(questions, label="observations")
    replies = [data.draw(contents, label="reply") for _ in observations[1:]]
    cut = [data.draw(st.booleans(), label="cut") for _ in replies]
    completions = [
        encode(tokenizer, family.before + reply + ("" if short else family.after + family.end))
        for reply, short in zip(replies, cut, strict=True)
    ]
    dialogue = [opening(observations[0])]
    for reply, observation in zip(replies, observations[1:], strict=True):
        dialogue += [reply, observation]

    turns = play(ChatTokens(tokenizer), observations, completions)

    assert turns[-1].prompt_ids == whole_dialogue(tokenizer, dialogue)


@given(
    st.lists(st.lists(st.integers(0, len(byte_tokenizer()) - 1), max_size=6), min_size=1, max_size=4),
    st.sampled_from([CHAT_TEMPLATE, FORGETFUL]),
)
def test_whatever_is_sampled_stays_as_it_was_sampled(completions: list[list[int]], template: str) -> None:
    tokenizer = tokenizer_with(template)
    turns = play(ChatTokens(tokenizer), [f"state {n}" for n in range(len(completions) + 1)], completions)
    for number, (turn, following) in enumerate(zip(turns, turns[1:], strict=False), start=1):
        seen = turn.prompt_ids + turn.completion_ids
        end = [] if turn.completion_ids[-1:] == [tokenizer.eos_token_id] else encode(tokenizer, END_OF_TURN)
        rest = f"\n<|im_start|>user\nstate {number}<|im_end|>\n<|im_start|>assistant\n"
        assert following.prompt_ids == seen + end + encode(tokenizer, rest)


def test_ids_that_would_be_encoded_otherwise_are_kept(tokenizer: Qwen2Tokenizer) -> None:
    spelled = [encode(tokenizer, letter)[0] for letter in "<action>"]
    assert encode(tokenizer, tokenizer.decode(spelled)) != spelled
    _, following = play(ChatTokens(tokenizer), ["one", "two"], [[*spelled, tokenizer.eos_token_id]])
    text = f"<|im_start|>user\n{opening('one')}<|im_end|>\n<|im_start|>assistant\n"
    assert following.prompt_ids[len(encode(tokenizer, text)) :][: len(spelled)] == spelled


def test_thinking_that_the_template_would_drop_is_kept() -> None:
    tokenizer = tokenizer_with(FORGETFUL)
    reply = "<think>where?</think>left"
    turns = play(ChatTokens(tokenizer), ["one", "two"], [encode(tokenizer, reply + END_OF_TURN)])
    assert "where?" in tokenizer.decode(turns[1].prompt_ids)
    # What the template itself makes of it is no continuation of what was sampled.
    rendered = whole_dialogue(tokenizer, [opening("one"), reply, "two"])
    seen = turns[0].prompt_ids + turns[0].completion_ids
    assert rendered[: len(seen)] != seen
    assert turns[1].prompt_ids[: len(seen)] == seen


def test_arguments_of_the_template_hold_at_every_turn() -> None:
    tokenizer = tokenizer_with(FORGETFUL)
    chat = ChatTokens(tokenizer, {"enable_thinking": False})
    turns = play(chat, ["one", "two", "three"], [encode(tokenizer, "x" + END_OF_TURN)] * 2)
    assert [tokenizer.decode(turn.prompt_ids).endswith("<think>\n\n</think>\n\n") for turn in turns] == [True] * 3


def test_a_message_may_hold_what_the_template_is_probed_with(tokenizer: Qwen2Tokenizer) -> None:
    message = "⁂reply⁂ and ⁂question⁂"
    expected = f"<|im_end|>\n<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"
    assert ChatTokens(tokenizer).continuation(message, None) == encode(tokenizer, expected)


def test_a_prompt_shares_no_list_with_the_turns(tokenizer: Qwen2Tokenizer) -> None:
    turns = play(ChatTokens(tokenizer), ["one", "two"], [[5, 6]])
    before = (list(turns[0].prompt_ids), list(turns[0].completion_ids))
    turns[1].prompt_ids.append(7)
    assert (turns[0].prompt_ids, turns[0].completion_ids) == before


def test_admissible_actions_are_shown_at_every_turn(tokenizer: Qwen2Tokenizer) -> None:
    chat = ChatTokens(tokenizer)
    first = Observation("a room", 0, ("go", "stay"))
    later = Observation("a hall", 1, ("leave",))
    prompt_ids = FullHistory().prompt_ids(chat, TASK, [], first)
    assert "a room\nAdmissible actions: go, stay\n" in tokenizer.decode(prompt_ids)
    turns = [Turn(show(first), 0, prompt_ids, [tokenizer.eos_token_id], "")]
    following = tokenizer.decode(FullHistory().prompt_ids(chat, TASK, turns, later))
    assert "user\na hall\nAdmissible actions: leave<|im_end|>" in following


# Windows


def past(count: int) -> list[Turn]:
    return [
        Turn(
            f"state {n}.",
            n,
            [],
            [],
            f"<think>secret {n}</think><action>move {n}</action>",
            thinking=f"secret {n}",
            actions=[f"move {n}."],
        )
        for n in range(1, count + 1)
    ]


@given(length=st.integers(0, 6), count=st.integers(0, 6))
def test_a_window_shows_the_last_turns_without_thinking_and_no_other(length: int, count: int) -> None:
    tokenizer = tokenizer_with(CHAT_TEMPLATE)
    ids = Window(length).prompt_ids(ChatTokens(tokenizer), TASK, past(count), state("state now."))
    text = tokenizer.decode(ids)
    shown = set(range(count - length + 1, count + 1)) & set(range(1, count + 1))
    assert {n for n in range(1, count + 1) if f"state {n}." in text} == shown
    assert {n for n in range(1, count + 1) if f"move {n}." in text} == shown
    assert [text.index(f"state {n}.") for n in sorted(shown)] == sorted(text.index(f"state {n}.") for n in shown)
    assert "secret" not in text
    assert text.count("state now.") == 1
    assert text.count("<|im_start|>") == 2


def test_a_window_word_for_word(tokenizer: Qwen2Tokenizer) -> None:
    turns = past(3)
    turns[1].actions = ["left", "right"]
    turns[2].actions = []
    ids = Window(2).prompt_ids(ChatTokens(tokenizer), TASK, turns, Observation("a door", 9, ("open",)))
    expected = (
        "Find the key.\n"
        "Turns so far: 3. The last 2:\n"
        "[Turn 2] state 2.\n[Action 2] left || right\n"
        "[Turn 3] state 3.\n[Action 3] (none)\n"
        "Now:\n"
        "a door\nAdmissible actions: open\n"
        "Answer with one action."
    )
    assert ids == whole_dialogue(tokenizer, [expected])


@pytest.mark.parametrize(("length", "count"), [(0, 0), (0, 4), (3, 0)])
def test_without_past_turns_a_window_is_the_opening(tokenizer: Qwen2Tokenizer, length: int, count: int) -> None:
    ids = Window(length).prompt_ids(ChatTokens(tokenizer), TASK, past(count), state("a door"))
    assert ids == whole_dialogue(tokenizer, [opening("a door")])
    assert ids == FullHistory().prompt_ids(ChatTokens(tokenizer), TASK, [], state("a door"))


def test_an_empty_part_leaves_no_empty_line(tokenizer: Qwen2Tokenizer) -> None:
    task = TaskPrompt("Find the key.", "")
    for context in (Window(2), FullHistory()):
        ids = context.prompt_ids(ChatTokens(tokenizer), task, [], state("a door"))
        assert ids == whole_dialogue(tokenizer, ["Find the key.\na door"])


def test_a_negative_window_is_refused() -> None:
    with pytest.raises(ValueError, match="`history_length`.*-1"):
        Window(-1)


# A context of one's own


def test_a_users_messages_are_rendered_as_they_are(tokenizer: Qwen2Tokenizer) -> None:
    calls = []

    def newest_first(task: TaskPrompt, turns: Sequence[Turn], observation: Observation) -> list[Message]:
        calls.append((task, list(turns), observation))
        lines = [observation.text, *(turn.observation for turn in reversed(turns))]
        return [{"role": "system", "content": task.instructions}, {"role": "user", "content": " < ".join(lines)}]

    turns = past(2)
    ids = MessageContext(newest_first).prompt_ids(ChatTokens(tokenizer), TASK, turns, state("here"))
    assert calls == [(TASK, turns, state("here"))]
    assert tokenizer.decode(ids) == (
        "<|im_start|>system\nFind the key.<|im_end|>\n<|im_start|>user\nhere < state 2. < state 1.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


# Templates that do not do


def test_a_tokenizer_without_a_template_is_refused_with_a_remedy() -> None:
    with pytest.raises(
        ValueError, match="Qwen2Tokenizer.*no chat template.*instruction-tuned.*`tokenizer.chat_template`"
    ):
        ChatTokens(tokenizer_with(None))


def test_a_template_that_refuses_the_assistant_is_named_with_its_own_words() -> None:
    template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ raise_exception('only questions here') }}{% endif %}"
        "{{ m['content'] }}{% endfor %}"
    )
    with pytest.raises(ValueError, match="only questions here.*instruction-tuned.*`assistant`"):
        ChatTokens(tokenizer_with(template))


def test_a_template_that_is_no_template_is_refused() -> None:
    with pytest.raises(ValueError, match="refuses a dialogue.*instruction-tuned"):
        ChatTokens(tokenizer_with("{% for m in messages %}{{ m['content'] }}"))


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}",
        "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ m['content'] }}{% endif %}{% endfor %}",
        "{{ messages[0]['content'] }}",
        "{% for m in messages | reverse %}{{ m['content'] }}\n{% endfor %}",
        # Contents that are lists of parts, as in templates of vision models.
        "{% for m in messages %}{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endfor %}",
    ],
    ids=["no assistant", "no user", "first message only", "backwards", "parts"],
)
def test_a_template_that_leaves_a_role_out_is_refused_with_a_remedy(template: str) -> None:
    with pytest.raises(ValueError, match="does not render the roles.*instruction-tuned"):
        ChatTokens(tokenizer_with(template))
