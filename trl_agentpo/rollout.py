# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
The environment loop: render, generate, parse, step, for as long as an episode is unfinished.

Invariant: only unfinished episodes generate, every process makes the same number of `generate` calls (generation may be a
collective operation), and every turn is recorded as it happened. An environment that crashes ends its own episode only.
"""

import functools
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from . import environment as contract
from .actions import ActionParser, ParsedResponse, match_vocabulary
from .context import ChatTokens, ContextPolicy, TaskPrompt, show
from .environment import EnvironmentContractError, Observation, StepResult
from .episode import Episode, Turn
from .pool import EnvironmentPool


logger = logging.getLogger(__name__)

# What may end an episode as truncated.
LIMITS = ("environment", "max_turns", "max_actions", "max_context_length", "max_episode_length")

_Result = TypeVar("_Result")
Generate = Callable[[list[list[int]]], tuple[list[list[int]], list[list[float]] | None]]


@dataclass(frozen=True)
class Limits:
    """
    When an episode ends as truncated.

    Args:
        max_turns (`int`):
            Turns in an episode.
        max_actions (`int` or `None`):
            Actions in an episode.
        max_actions_per_turn (`int`):
            Actions executed in one turn; further ones are ignored.
        max_completion_length (`int`):
            Tokens the model may sample in a turn.
        max_context_length (`int` or `None`):
            Tokens of a turn's prompt and reply together: what the model can take in.
        max_episode_length (`int` or `None`):
            Tokens of all prompts and replies of an episode. What a prompt repeats of the turn before counts once.
    """

    max_turns: int
    max_actions: int | None
    max_actions_per_turn: int
    max_completion_length: int
    max_context_length: int | None
    max_episode_length: int | None

    def exceeded(self, episode: Episode, prompt: list[int]) -> str | None:
        """The limit that a prompt and a full reply to it would exceed, if any."""
        needed = len(prompt) + self.max_completion_length
        if self.max_context_length is not None and needed > self.max_context_length:
            return "max_context_length"
        needed = episode.num_tokens + _num_new_tokens(episode, prompt) + self.max_completion_length
        if self.max_episode_length is not None and needed > self.max_episode_length:
            return "max_episode_length"
        return None


class Rollout:
    """
    Plays episodes.

    Args:
        pool ([`EnvironmentPool`]):
            The environments.
        generate (`Callable`):
            Samples a completion for each prompt: `list[list[int]]` to the completions' ids and, where there are any, their
            log-probabilities.
        any_active (`Callable[[int], bool]`):
            Whether any process still has an unfinished episode, given how many this one has.
        chat ([`ChatTokens`]):
            The chat template.
        context ([`ContextPolicy`]):
            What the model sees.
        task ([`TaskPrompt`]):
            The task's instructions.
        parse (`Callable[[str], ParsedResponse]`):
            Reads a reply.
        limits ([`Limits`]):
            When episodes are cut.
        end_tokens (`Sequence[int]`):
            Ids that end a reply.
        raise_on_error (`bool`):
            Whether a crash of an environment stops the run, instead of ending its episode.
    """

    def __init__(
        self,
        pool: EnvironmentPool,
        generate: Generate,
        any_active: Callable[[int], bool],
        chat: ChatTokens,
        context: ContextPolicy,
        task: TaskPrompt,
        parse: ActionParser,
        limits: Limits,
        end_tokens: Sequence[int],
        raise_on_error: bool,
    ):
        self.pool = pool
        self.generate = generate
        self.any_active = any_active
        self.chat = chat
        self.context = context
        self.task = task
        self.parse = parse
        self.limits = limits
        self.end_tokens = frozenset(end_tokens)
        self.raise_on_error = raise_on_error
        self.generation_seconds = 0.0
        self._warned: set[str] = set()

    def play(self, episodes: list[Episode]) -> None:
        """
        Play episodes to their ends, in place.

        Args:
            episodes (`list[Episode]`):
                Episodes without turns; `seed` and `options` say which task each is.

        Raises:
            ValueError: the first prompt of a task leaves no room for a reply.
            NonDeterministicResetError: two episodes of one task started from different states.
            EnvironmentContractError: an environment returned something the contract does not allow.
        """
        self.generation_seconds = 0.0
        states = self._reset_all(episodes)
        while True:
            prompts = self._prompts(episodes, states)
            if not self.any_active(len(prompts)):
                return
            completions, logprobs = self._sample(list(prompts.values()))
            for n, (place, prompt) in enumerate(prompts.items()):
                turn = self._record(prompt, completions[n], states[place], None if logprobs is None else logprobs[n])
                states[place] = self._act(place, episodes[place], turn, states[place])

    def _reset_all(self, episodes: list[Episode]) -> dict[int, Observation]:
        states: dict[int, Observation] = {}
        first_of_task: dict[Hashable, Observation] = {}
        for place, episode in enumerate(episodes):
            state = self._guarded(place, episode, functools.partial(self._reset, place, episode))
            if state is None:
                continue
            states[place] = state
            first = first_of_task.setdefault((episode.seed, repr(episode.options)), state)
            name = type(self.pool[place].unwrapped).__name__
            contract.check_same_start(name, episode.seed, first, state)
        return states

    def _reset(self, place: int, episode: Episode) -> Observation:
        return contract.reset(self.pool[place], episode.seed, episode.options or None)

    def _prompts(self, episodes: list[Episode], states: dict[int, Observation]) -> dict[int, list[int]]:
        """The prompts of unfinished episodes; those whose next turn would not fit end here."""
        prompts = {}
        for place, episode in enumerate(episodes):
            if episode.done:
                continue
            prompt = self.context.prompt_ids(self.chat, self.task, episode.turns, states[place])
            limit = self.limits.exceeded(episode, prompt)
            if limit is None:
                prompts[place] = prompt
            else:
                self._check_begun(episode, prompt)
                _truncate(episode, limit)
        return prompts

    def _check_begun(self, episode: Episode, prompt: list[int]) -> None:
        if not episode.turns:
            raise ValueError(
                f"The first prompt of task seed={episode.seed} has {len(prompt)} tokens and leaves no room for a reply of "
                f"`max_completion_length`={self.limits.max_completion_length}: the model's context is "
                f"{self.limits.max_context_length} tokens and `max_episode_length` is {self.limits.max_episode_length}. "
                "Lower `max_completion_length`, raise `max_episode_length`, shorten the observation, or use a model with a "
                "longer context."
            )

    def _sample(self, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]] | None]:
        start = time.perf_counter()
        # A process without unfinished episodes takes part with a prompt whose reply nobody reads.
        sampled = self.generate(prompts or [self.chat.encode([{"role": "user", "content": "-"}])])
        self.generation_seconds += time.perf_counter() - start
        return sampled

    def _record(
        self, prompt: list[int], completion: list[int], state: Observation, logprobs: list[float] | None
    ) -> Turn:
        return Turn(
            observation=show(state),
            anchor=state.anchor,
            prompt_ids=prompt,
            completion_ids=list(completion),
            response=self.chat.tokenizer.decode(completion, skip_special_tokens=True),
            cut=not completion or completion[-1] not in self.end_tokens,
            logprobs=logprobs,
            admissible_actions=state.admissible_actions,
            facts=state.facts,
        )

    def _act(self, place: int, episode: Episode, turn: Turn, state: Observation) -> Observation:
        """Execute a reply: complete its turn, add it to the episode, and say where that led."""
        parsed = self._parse(turn.response)
        actions, all_known = match_vocabulary(parsed.actions, contract.vocabulary_of(self.pool[place]))
        turn.thinking, turn.well_formed, turn.valid = parsed.thinking, parsed.valid, parsed.valid and all_known
        episode.num_tokens += _num_new_tokens(episode, turn.prompt_ids) + len(turn.completion_ids)
        episode.turns.append(turn)
        for action in actions[: self._actions_left(episode)]:
            result = self._guarded(place, episode, functools.partial(contract.step, self.pool[place], action))
            if result is None:
                return state
            state = result.observation
            episode.last_observation = show(state)
            _account(episode, turn, action, result)
            if episode.done:
                return state
        self._apply_limits(episode)
        return state

    def _parse(self, response: str) -> ParsedResponse:
        try:
            parsed = self.parse(response)
        # A user's parser may raise anything on what a model says; a reply that cannot be read is an invalid turn.
        except Exception as error:
            self._warn_once(
                error, f"`action_parser` raised on the reply {response!r:.80}; the turn counts as invalid."
            )
            return ParsedResponse((), valid=False)
        if not isinstance(parsed, ParsedResponse):
            raise TypeError(
                f"`action_parser` must return a `ParsedResponse`, got {type(parsed).__name__}: {parsed!r:.80}."
            )
        return parsed

    def _warn_once(self, error: Exception, what: str) -> None:
        """Show an error with its traceback, the first time it is met."""
        text = f"{type(error).__name__}: {error}"
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s Further errors of this kind are only counted.", what, exc_info=error)

    def _actions_left(self, episode: Episode) -> int:
        if self.limits.max_actions is None:
            return self.limits.max_actions_per_turn
        return min(self.limits.max_actions_per_turn, self.limits.max_actions - episode.num_actions)

    def _apply_limits(self, episode: Episode) -> None:
        if self.limits.max_actions is not None and episode.num_actions >= self.limits.max_actions:
            _truncate(episode, "max_actions")
        elif len(episode.turns) >= self.limits.max_turns:
            _truncate(episode, "max_turns")

    def _guarded(self, place: int, episode: Episode, call: Callable[[], "_Result"]) -> "_Result | None":
        """The result of a call into an environment, or `None` if the environment crashed, which ends its episode."""
        start = time.perf_counter()
        try:
            return call()
        except EnvironmentContractError:
            raise
        # An environment is the user's code and may raise anything; a crash costs its episode, not the run.
        except Exception as error:
            if self.raise_on_error:
                raise
            episode.error = f"{type(error).__name__}: {error}"
            name = type(self.pool[place].unwrapped).__name__
            self._warn_once(error, f"{name} crashed in task seed={episode.seed}; its episode is left out.")
            self.pool.replace(place)
            return None
        finally:
            episode.environment_seconds += time.perf_counter() - start


def _account(episode: Episode, turn: Turn, action: str, result: StepResult) -> None:
    turn.actions.append(action)
    turn.reward += result.reward
    turn.valid = turn.valid and result.action_valid
    turn.effective = turn.effective or result.action_effective
    episode.success = episode.success or result.success
    episode.terminated = result.terminated
    if result.truncated and not result.terminated:
        _truncate(episode, "environment")


def _num_new_tokens(episode: Episode, prompt: list[int]) -> int:
    """The length of a prompt without what it repeats of the turn before, where it begins with all of that."""
    if not episode.turns:
        return len(prompt)
    before = episode.turns[-1].prompt_ids + episode.turns[-1].completion_ids
    return len(prompt) - (len(before) if prompt[: len(before)] == before else 0)


def _truncate(episode: Episode, limit: str) -> None:
    episode.truncated = True
    episode.limit = limit
