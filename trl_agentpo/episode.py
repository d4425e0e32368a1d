# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
What was seen, said, done and earned: the record of a rollout.

Invariant: a turn's `prompt_ids` and `completion_ids` are exactly the ids the model was given and exactly the ids it
sampled, never decoded and encoded again. Everything after the rollout (credit, rows, logs, replays) reads these records
and nothing else.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Turn:
    """
    One exchange: a state was shown, the model replied, the environment moved.

    Args:
        observation (`str`):
            What the model was shown of the state.
        anchor (`Hashable`):
            The environment state in which the model replied.
        prompt_ids (`list[int]`):
            The token ids the model was given.
        completion_ids (`list[int]`):
            The token ids it sampled.
        response (`str`):
            The completion as text.
        thinking (`str` or `None`, *optional*):
            The reasoning in it.
        actions (`list[str]`, *optional*):
            The actions that were executed, in order.
        reward (`float`, *optional*, defaults to `0.0`):
            The environment's reward, summed over the turn's actions.
        well_formed (`bool`, *optional*, defaults to `True`):
            The reply had the asked-for form, whatever the actions in it.
        valid (`bool`, *optional*, defaults to `True`):
            The reply had the asked-for form and the environment understood every action in it.
        effective (`bool`, *optional*, defaults to `False`):
            At least one action changed the state.
        cut (`bool`, *optional*, defaults to `False`):
            The reply hit its token limit before its end-of-turn token.
        logprobs (`list[float]` or `None`, *optional*):
            Sampling log-probabilities of `completion_ids`, where the generator gives them.
        admissible_actions (`tuple[str, ...]`, *optional*):
            The actions the environment listed in that state.
        facts (`Mapping[str, Any]`, *optional*):
            What the environment said is true of that state.
    """

    observation: str
    anchor: Hashable
    prompt_ids: list[int]
    completion_ids: list[int]
    response: str
    thinking: str | None = None
    actions: list[str] = field(default_factory=list)
    reward: float = 0.0
    well_formed: bool = True
    valid: bool = True
    effective: bool = False
    cut: bool = False
    logprobs: list[float] | None = None
    admissible_actions: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Episode:
    """
    One playthrough of one task.

    Args:
        seed (`int` or `None`):
            The task seed.
        options (`dict`, *optional*):
            The task's further parameters.
        turns (`list[Turn]`, *optional*):
            The turns in time order.
        terminated (`bool`, *optional*, defaults to `False`):
            The episode reached an end of its own.
        truncated (`bool`, *optional*, defaults to `False`):
            A limit ended it: the environment's own, or one of ours.
        limit (`str` or `None`, *optional*):
            Which limit: `"environment"`, `"max_turns"`, `"max_actions"`, `"max_context_length"` (the model's context) or
            `"max_episode_length"`.
        success (`bool`, *optional*, defaults to `False`):
            The task was solved.
        error (`str` or `None`, *optional*):
            What the environment raised, if it crashed. Such an episode takes part in nothing: no loss, no statistic.
        last_observation (`str` or `None`, *optional*):
            What the last turn led to; no turn begins with it.
        num_tokens (`int`, *optional*, defaults to `0`):
            Tokens of its prompts and replies; what a prompt repeats of the turn before counts once.
        environment_seconds (`float`, *optional*, defaults to `0.0`):
            Time spent in the environment.
    """

    seed: int | None
    options: dict[str, Any] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    limit: str | None = None
    success: bool = False
    error: str | None = None
    last_observation: str | None = None
    num_tokens: int = 0
    environment_seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the environment crashed in this episode."""
        return self.error is not None

    @property
    def done(self) -> bool:
        """Whether nothing more happens in this episode."""
        return self.terminated or self.truncated or self.failed

    @property
    def total_reward(self) -> float:
        """The undiscounted return of the environment's rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def num_actions(self) -> int:
        """How many actions were executed."""
        return sum(len(turn.actions) for turn in self.turns)
