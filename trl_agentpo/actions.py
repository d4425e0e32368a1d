# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
From the text of a reply to its thinking and its actions.

Invariant: parsing never raises on a reply, however malformed; a reply that does not have the asked-for form is an invalid
[`ParsedResponse`], and an invalid turn is recorded and penalised, not lost.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass


ACTION_SEPARATOR = "||"
ACTION_TAGS = ("action", "answer")


@dataclass(frozen=True)
class ParsedResponse:
    """
    What a reply says to do.

    Args:
        actions (`tuple[str, ...]`):
            The actions named, in order, stripped of blanks.
        valid (`bool`, *optional*, defaults to `True`):
            Whether the reply has the asked-for form.
        thinking (`str` or `None`, *optional*):
            The reasoning, if the reply has any.

    Raises:
        TypeError: `actions` is not a tuple of strings.
    """

    actions: tuple[str, ...]
    valid: bool = True
    thinking: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.actions, tuple) or not all(isinstance(action, str) for action in self.actions):
            raise TypeError(f"`actions` must be a tuple of strings such as ('left',), got {self.actions!r}.")


ActionParser = Callable[[str], ParsedResponse]


@dataclass(frozen=True)
class ActionFormat:
    """
    Replies of the form `<think>…</think><action>…</action>` (GiGPO) or `<think>…</think><answer>a || b</answer>` (RAGEN).

    The first block of each kind counts and text around the blocks is ignored. `||` separates actions where several may be
    given: with the tag `"answer"`, and with `"action"` if `max_actions` is more than 1.

    Args:
        tag (`str`, *optional*, defaults to `"action"`):
            `"action"` or `"answer"`.
        require_thinking (`bool`, *optional*, defaults to `True`):
            Whether a reply without a `<think>` block is invalid. Its actions are executed all the same.
        max_actions (`int`, *optional*, defaults to `1`):
            How many actions the instructions invite to; the limit itself is kept by the rollout.

    Raises:
        ValueError: `tag` is neither of the two.
    """

    tag: str = "action"
    require_thinking: bool = True
    max_actions: int = 1

    def __post_init__(self) -> None:
        if self.tag not in ACTION_TAGS:
            raise ValueError(f"`tag` must be one of {', '.join(map(repr, ACTION_TAGS))}, got {self.tag!r}.")

    @property
    def instructions(self) -> str:
        """The order to answer in this form, as the model is told."""
        several = f" Separate up to {self.max_actions} actions by {ACTION_SEPARATOR}." if self.max_actions > 1 else ""
        what = "your actions" if self.max_actions > 1 else "one action"
        if not self.require_thinking:
            return f"Answer with <{self.tag}>{what}</{self.tag}>.{several}"
        return f"Answer with <think>your reasoning</think><{self.tag}>{what}</{self.tag}>.{several}"

    def __call__(self, response: str) -> ParsedResponse:
        """
        Read a reply.

        Args:
            response (`str`):
                The model's text, without special tokens.

        Returns:
            [`ParsedResponse`]: its thinking and actions; invalid if a block is missing or names no action.
        """
        thinking = _first_block(response, "think")
        block = _first_block(response, self.tag)
        actions = tuple(name for name in self._names(block or "") if name)
        valid = bool(actions) and (thinking is not None or not self.require_thinking)
        return ParsedResponse(actions=actions, valid=valid, thinking=thinking)

    def _names(self, block: str) -> list[str]:
        # Where one action is asked for, `||` may be part of it, as in a search query.
        several = self.tag == "answer" or self.max_actions > 1
        return [name.strip() for name in block.split(ACTION_SEPARATOR)] if several else [block.strip()]


def _first_block(text: str, tag: str) -> str | None:
    # Not one pattern for the whole block: on a thousand tags that are never closed it takes quadratic time.
    after = re.split(f"<{tag}>", text, maxsplit=1, flags=re.IGNORECASE)[1:]
    block = re.split(f"</{tag}>", after[0], maxsplit=1, flags=re.IGNORECASE) if after else []
    return block[0].strip() if len(block) == 2 else None


def match_vocabulary(actions: Sequence[str], vocabulary: Sequence[str]) -> tuple[list[str], bool]:
    """
    Spell actions as the environment spells them, whatever case the model wrote.

    Args:
        actions (`Sequence[str]`):
            The actions a reply names.
        vocabulary (`Sequence[str]`):
            The environment's actions; empty if it takes free text.

    Returns:
        `tuple[list[str], bool]`: the known actions in order (all of them for free text), and whether none was unknown.
    """
    if not vocabulary:
        return list(actions), True
    # An exact match comes first, for vocabularies in which the case has a meaning.
    spelling = {name.casefold(): name for name in vocabulary} | {name: name for name in vocabulary}
    found = [spelling.get(action, spelling.get(action.casefold())) for action in actions]
    known = [name for name in found if name is not None]
    return known, len(known) == len(actions)
