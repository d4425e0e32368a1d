# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Which past turns the model sees, as token ids.

Invariant: token ids in, token ids out. Under [`FullHistory`] the prompt of a turn begins with exactly the prompt and the
completion of the turn before, so the turns of an episode merge into one training row, each token trained once; replies
are stitched in as sampled and never rendered again, because chat templates may rewrite them (Qwen3 drops thinking).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from .actions import ACTION_SEPARATOR
from .environment import Observation
from .episode import Turn


Message = dict[str, Any]
MessageFunction = Callable[["TaskPrompt", Sequence[Turn], Observation], list[Message]]

_MARKED_QUESTION = "⁂question⁂"
_MARKED_REPLY = "⁂reply⁂"
_ROLES = ("user", "assistant", "user")


@dataclass(frozen=True)
class TaskPrompt:
    """
    What the model is told besides the states.

    Args:
        instructions (`str`):
            The task and its action vocabulary, from the environment.
        format_instructions (`str`):
            The form in which to answer.
    """

    instructions: str
    format_instructions: str


class ChatTokens:
    """
    A tokenizer's chat template, as token ids.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The tokenizer, with a chat template that knows the roles `user` and `assistant`.
        chat_template_kwargs (`dict`, *optional*):
            Further arguments of the template, such as `{"enable_thinking": False}`.

    Raises:
        ValueError: there is no chat template, or it lacks one of the two roles.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat_template_kwargs: dict[str, Any] | None = None):
        self.tokenizer = tokenizer
        self.chat_template_kwargs = chat_template_kwargs or {}
        self._check_template()

    def encode(self, messages: list[Message]) -> list[int]:
        """
        The ids of a conversation, up to where the model is to reply.

        Args:
            messages (`list[dict]`):
                Messages with `role` and `content`.

        Returns:
            `list[int]`: token ids.
        """
        return self._ids(self._render(messages))

    def continuation(self, message: str, last_token: int | None) -> list[int]:
        """
        The ids between a sampled reply and the next one: the end of the turn, the user's message, the start of a reply.

        Args:
            message (`str`):
                The user's next message.
            last_token (`int` or `None`):
                The reply's last token. Where the reply already holds the template's end-of-turn token, that token is
                not repeated; a reply cut by its token limit gets it here.

        Returns:
            `list[int]`: token ids.
        """
        ids = self._ids(self._render_after_reply(message).partition(_MARKED_REPLY)[2])
        for position, token in enumerate(ids):
            if token == last_token:
                return ids[position + 1 :]
            # Some templates put a blank between a reply and its end-of-turn token.
            if self.tokenizer.decode([token]).strip():
                break
        return ids

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _render(self, messages: list[Message]) -> str:
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **self.chat_template_kwargs
        )

    def _render_after_reply(self, message: str) -> str:
        contents = ("Hello", _MARKED_REPLY, message)
        return self._render([{"role": r, "content": c} for r, c in zip(_ROLES, contents, strict=True)])

    def _check_template(self) -> None:
        name = type(self.tokenizer).__name__
        remedy = (
            "Use an instruction-tuned model, or set `tokenizer.chat_template` to a template with the roles `user` and "
            "`assistant`."
        )
        if not self.tokenizer.chat_template:
            raise ValueError(f"The tokenizer ({name}) has no chat template. {remedy}")
        try:
            text = self._render_after_reply(_MARKED_QUESTION)
        except TemplateError as error:
            raise ValueError(
                f"The chat template of the tokenizer ({name}) refuses a dialogue: {error}. {remedy}"
            ) from error
        if _MARKED_QUESTION not in text.partition(_MARKED_REPLY)[2]:
            raise ValueError(
                f"The chat template of the tokenizer ({name}) does not render the roles `user` and `assistant`. {remedy}"
            )


class ContextPolicy(ABC):
    """Decides what the model is shown at a turn."""

    @abstractmethod
    def prompt_ids(
        self, chat: ChatTokens, task: TaskPrompt, turns: Sequence[Turn], observation: Observation
    ) -> list[int]:
        """
        The prompt of the next turn.

        Args:
            chat ([`ChatTokens`]):
                The chat template.
            task ([`TaskPrompt`]):
                The task's instructions.
            turns (`Sequence[Turn]`):
                The episode so far.
            observation ([`Observation`]):
                The state in which the model is to act.

        Returns:
            `list[int]`: token ids.
        """


class FullHistory(ContextPolicy):
    """The whole dialogue so far. One training row per episode, each token trained once."""

    def prompt_ids(
        self, chat: ChatTokens, task: TaskPrompt, turns: Sequence[Turn], observation: Observation
    ) -> list[int]:
        message = self.message(turns, observation)
        if not turns:
            parts = (task.instructions, message, task.format_instructions)
            return chat.encode([{"role": "user", "content": paragraphs(*parts)}])
        last = turns[-1]
        seen = last.prompt_ids + last.completion_ids
        return seen + chat.continuation(message, last.completion_ids[-1] if last.completion_ids else None)

    def message(self, turns: Sequence[Turn], observation: Observation) -> str:
        """
        What the model is told at a turn.

        Args:
            turns (`Sequence[Turn]`):
                The episode so far.
            observation ([`Observation`]):
                The state in which the model is to act.

        Returns:
            `str`: the state.
        """
        return show(observation)


class ReportedHistory(FullHistory):
    """
    The whole dialogue so far, in RAGEN's form: each message gives the reward of the last turn, the number of the turn, the
    state, and how many actions are left. The penalty on invalid replies is not part of the reward it shows.

    Args:
        max_actions (`int` or `None`, *optional*):
            How many actions an episode has. If `None`, nothing is said about them.
    """

    def __init__(self, max_actions: int | None = None):
        self.max_actions = max_actions

    def message(self, turns: Sequence[Turn], observation: Observation) -> str:
        reward = f"Reward: {turns[-1].reward:g}" if turns else ""
        left = ""
        if self.max_actions is not None:
            left = f"Actions left: {self.max_actions - sum(len(turn.actions) for turn in turns)}"
        return paragraphs(reward, f"Turn {len(turns) + 1}:", show(observation), left)


class Window(ContextPolicy):
    """
    A fresh message at each turn, with the last `history_length` states and actions (GiGPO's memory); thinking is dropped.
    About one training row per turn.

    Args:
        history_length (`int`, *optional*, defaults to `2`):
            How many past turns are shown. `0`: only the current state.

    Raises:
        ValueError: `history_length` is negative.
    """

    def __init__(self, history_length: int = 2):
        if history_length < 0:
            raise ValueError(f"`history_length` must be 0 or more, got {history_length}.")
        self.history_length = history_length

    def prompt_ids(
        self, chat: ChatTokens, task: TaskPrompt, turns: Sequence[Turn], observation: Observation
    ) -> list[int]:
        parts = (task.instructions, self._history(turns), show(observation), task.format_instructions)
        return chat.encode([{"role": "user", "content": paragraphs(*parts)}])

    def _history(self, turns: Sequence[Turn]) -> str:
        recent = list(enumerate(turns, start=1))[max(0, len(turns) - self.history_length) :]
        if not recent:
            return ""
        lines = [f"[Turn {n}] {turn.observation}\n[Action {n}] {_said(turn)}" for n, turn in recent]
        return "\n".join([f"Turns so far: {len(turns)}. The last {len(recent)}:", *lines, "Now:"])


class MessageContext(ContextPolicy):
    """
    A user's own context: a function from the task, the turns so far and the current state to chat messages.

    Args:
        function (`Callable[[TaskPrompt, Sequence[Turn], Observation], list[dict]]`):
            Returns messages with `role` and `content`.
    """

    def __init__(self, function: MessageFunction):
        self.function = function

    def prompt_ids(
        self, chat: ChatTokens, task: TaskPrompt, turns: Sequence[Turn], observation: Observation
    ) -> list[int]:
        messages = self.function(task, turns, observation)
        if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
            raise TypeError(
                f"`context` must return a list of chat messages such as [{{'role': 'user', 'content': '…'}}], got "
                f"{messages!r:.80}."
            )
        return chat.encode(messages)


def show(observation: Observation) -> str:
    """The text of a state: the observation and, where the environment lists them, the admissible actions."""
    if not observation.admissible_actions:
        return observation.text
    return f"{observation.text}\nAdmissible actions: {', '.join(observation.admissible_actions)}"


def _said(turn: Turn) -> str:
    return f" {ACTION_SEPARATOR} ".join(turn.actions) if turn.actions else "(none)"


def paragraphs(*parts: str) -> str:
    """The parts that are not empty, one below the other."""
    return "\n".join(part for part in parts if part)
