# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
The environment contract: text in, text out, over gymnasium's API.

Invariant: whatever leaves this module is a `gymnasium.Env` whose `reset` takes `seed` and `options`, that names its task
in `instructions`, and whose observations come out as an [`Observation`] with a hashable anchor. The same seed and
options give the same initial state: that is what makes the episodes of one task a *group*.
"""

import difflib
import functools
import importlib
import inspect
import math
import string
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium


BUILTIN_ENVIRONMENTS = "trl_agentpo.envs"
NAMESPACE = "trl_agentpo"

EnvironmentSource = str | type[gymnasium.Env] | Callable[..., gymnasium.Env]


class EnvironmentContractError(TypeError):
    """An environment does not fit the contract; the message says what is missing and how to add it."""


class NonDeterministicResetError(RuntimeError):
    """The same seed and options gave two different initial states, so its episodes cannot form a group."""


class TextSpace(gymnasium.spaces.Text):
    """
    The space of all strings, optionally with a vocabulary of actions.

    `gymnasium.spaces.Text` admits alphanumeric characters only; a language model may say anything, so membership here is
    being a string. Sampling gives an action of the vocabulary, or a short random word when there is none.

    Args:
        actions (`Sequence[str]`, *optional*, defaults to `()`):
            The complete action vocabulary. Empty: the environment accepts free text.
    """

    def __init__(self, actions: Sequence[str] = ()):
        super().__init__(max_length=16, charset=string.ascii_letters)
        self.actions = tuple(actions)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        if self.actions:
            return self.actions[int(self.np_random.integers(len(self.actions)))]
        return super().sample(mask=mask, probability=probability)

    def __repr__(self) -> str:
        return f"TextSpace({list(self.actions)!r})" if self.actions else "TextSpace()"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, TextSpace) and self.actions == other.actions


class TextEnvironment(gymnasium.Env[str, str]):
    """
    Base class of environments that speak text.

    A subclass sets `instructions` (the task and the action vocabulary, shown to the model once), may set
    `action_space = TextSpace([...])` if its actions can be listed, and implements gymnasium's `reset` and `step`. `info`
    may carry, all optional:

    | key | type | meaning | default |
    | --- | --- | --- | --- |
    | `anchor` | hashable | the environment state the agent is in, for step-level groups | the observation |
    | `success` | `bool` | the episode is solved | `False` |
    | `admissible_actions` | `list[str]` | what may be done now, shown to the model | none |
    | `action_valid` | `bool` | the environment understood the action | `True` |
    | `action_effective` | `bool` | the action changed the state | `True` |
    | `facts` | `dict` | what is true of the state, for rewards that check what a model claims | none |

    After the end of an episode `step` is not called before the next `reset`.

    Example:

    ```python
    >>> class Countdown(TextEnvironment):
    ...     instructions = "Say `down` until the counter shows 0."
    ...     action_space = TextSpace(["down"])
    ...
    ...     def reset(self, *, seed=None, options=None):
    ...         super().reset(seed=seed)
    ...         self.counter = int(self.np_random.integers(1, 4))
    ...         return f"counter: {self.counter}", {}
    ...
    ...     def step(self, action):
    ...         self.counter -= action == "down"
    ...         solved = self.counter == 0
    ...         return f"counter: {self.counter}", float(solved), solved, False, {"success": solved}
    ```
    """

    instructions: str = ""
    observation_space: gymnasium.Space[str] = TextSpace()
    action_space: gymnasium.Space[str] = TextSpace()


@dataclass(frozen=True)
class Observation:
    """
    What an environment shows at one moment.

    Args:
        text (`str`):
            The observation, as the model sees it.
        anchor (`Hashable`):
            The environment state, equal for two turns exactly if they met the same state.
        admissible_actions (`tuple[str, ...]`, *optional*, defaults to `()`):
            What may be done now; empty if the environment does not say.
        facts (`Mapping[str, Any]`, *optional*, defaults to `{}`):
            What is true of the state; empty if the environment does not say.
    """

    text: str
    anchor: Hashable
    admissible_actions: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StepResult:
    """
    What one action led to.

    Args:
        observation ([`Observation`]):
            The state after the action.
        reward (`float`):
            The environment's reward for the action.
        terminated (`bool`):
            The episode has reached an end of its own.
        truncated (`bool`):
            The environment cut the episode (a time limit).
        success (`bool`):
            The episode is solved.
        action_valid (`bool`):
            The environment understood the action.
        action_effective (`bool`):
            The action changed the state.
    """

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    success: bool
    action_valid: bool
    action_effective: bool


def make(environment: EnvironmentSource, **kwargs: Any) -> gymnasium.Env:
    """
    Build one environment and check that it fits the contract.

    Args:
        environment (`str`, environment class or callable):
            A gymnasium id (`"trl_agentpo/FrozenLake-v0"`, or `"module:namespace/Id-v0"` to import a module first), a
            `gymnasium.Env` class, or a callable that returns an environment.
        **kwargs:
            Handed to the environment's constructor.

    Returns:
        `gymnasium.Env`: the environment.

    Raises:
        ValueError: the id is not registered; the message lists near matches.
        ModuleNotFoundError: the module to import first, or something the environment needs, is not installed.
        EnvironmentContractError: the environment lacks something the contract asks for.
    """
    if isinstance(environment, str):
        built = _make_registered(environment, kwargs)
    elif callable(environment):
        built = environment(**kwargs)
    else:
        raise EnvironmentContractError(
            f"`environment_factory` must be a gymnasium id, a `gymnasium.Env` class or a callable that returns one, got "
            f"{type(environment).__name__}: {environment!r}. Every episode of a batch needs an environment of its own: pass "
            "its class, or `lambda: MyEnvironment(...)`."
        )
    check_contract(built)
    return built


def _make_registered(environment_id: str, kwargs: Mapping[str, Any]) -> gymnasium.Env:
    needs_builtin = environment_id.startswith(f"{NAMESPACE}/")
    spelled = f"{BUILTIN_ENVIRONMENTS}:{environment_id}" if needs_builtin else environment_id
    try:
        return gymnasium.make(spelled, disable_env_checker=True, **kwargs)
    # gymnasium calls an id deprecated if a later version of the same name exists, even if this one never did.
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        raise ValueError(_unknown_id_message(environment_id)) from error


def _unknown_id_message(environment_id: str) -> str:
    importlib.import_module(BUILTIN_ENVIRONMENTS)
    registered = list(gymnasium.registry)
    ours = [name for name in registered if name.startswith(f"{NAMESPACE}/")]
    by_name = {name.rpartition("/")[2].lower(): name for name in registered}
    near = difflib.get_close_matches(environment_id.rpartition("/")[2].lower(), by_name, n=3)
    matches = sorted((by_name[name] for name in near), key=lambda name: name not in ours)
    meant = f" Did you mean {', '.join(map(repr, matches))}?" if matches else ""
    return (
        f"Unknown environment id {environment_id!r}.{meant} Environments of this package: {', '.join(sorted(ours))}. "
        'For an environment of your own, pass its class, or register it and write `"your_module:YourId-v0"`.'
    )


def check_contract(environment: gymnasium.Env) -> None:
    """
    Check that an environment fits the contract, without playing it.

    Args:
        environment (`gymnasium.Env`):
            The environment to look at.

    Raises:
        EnvironmentContractError: it does not; the message names everything that is missing.
    """
    name = type(environment).__name__
    if not isinstance(environment, gymnasium.Env):
        raise EnvironmentContractError(
            f"{name} is not a `gymnasium.Env`. Subclass `trl_agentpo.TextEnvironment` and implement "
            "`reset(self, *, seed=None, options=None) -> (text, info)` and "
            "`step(self, action) -> (text, reward, terminated, truncated, info)`."
        )
    inner = environment.unwrapped
    missing = []
    if type(inner).reset is gymnasium.Env.reset:
        missing.append("a method `reset(self, *, seed=None, options=None)` returning `(text, info)`")
    else:
        missing += [
            f"the keyword `{keyword}` in `reset` (without it a task cannot be played again, and there are no groups)"
            for keyword in ("seed", "options")
            if not _accepts(inner.reset, keyword)
        ]
    if type(inner).step is gymnasium.Env.step:
        missing.append("a method `step(self, action)` returning `(text, reward, terminated, truncated, info)`")
    if not _has_instructions(environment):
        missing.append("an attribute `instructions`: the task and its actions in words, shown to the model")
    if missing:
        raise EnvironmentContractError(f"{type(inner).__name__} lacks: {'; '.join(missing)}.")


def _has_instructions(environment: gymnasium.Env) -> bool:
    """Whether the environment or a wrapper around it says what to do; a property is not evaluated."""
    found = inspect.getattr_static(environment, "instructions", None)
    if found is None and isinstance(environment, gymnasium.Wrapper):
        return _has_instructions(environment.env)
    return isinstance(found, (property, functools.cached_property)) or (isinstance(found, str) and bool(found.strip()))


def _accepts(function: Callable[..., Any], keyword: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == keyword or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def instructions_of(environment: gymnasium.Env) -> str:
    """The task and its action vocabulary, in the environment's own words."""
    return environment.get_wrapper_attr("instructions")


def vocabulary_of(environment: gymnasium.Env) -> tuple[str, ...]:
    """The environment's complete list of actions, or `()` if it takes free text."""
    space = environment.action_space
    return space.actions if isinstance(space, TextSpace) else ()


def reset(environment: gymnasium.Env, seed: int | None, options: dict[str, Any] | None = None) -> Observation:
    """
    Start the episode that `seed` and `options` determine.

    Args:
        environment (`gymnasium.Env`):
            An environment that passed [`check_contract`].
        seed (`int` or `None`):
            The task seed.
        options (`dict`, *optional*):
            Further task parameters.

    Returns:
        [`Observation`]: the initial state.

    Raises:
        EnvironmentContractError: observation or info are missing or of the wrong type, or the anchor is not hashable.
    """
    name = type(environment.unwrapped).__name__
    text, info = _parts(environment.reset(seed=seed, options=options), f"{name}.reset", "(text, info)")
    return observe(text, info, name)


def step(environment: gymnasium.Env, action: str) -> StepResult:
    """
    Do one action.

    Args:
        environment (`gymnasium.Env`):
            An environment in the middle of an episode.
        action (`str`):
            The action.

    Returns:
        [`StepResult`]: the new state and what it was worth.

    Raises:
        EnvironmentContractError: something is missing or of the wrong type, the anchor is not hashable, or the reward
            is not a finite number.
    """
    name = type(environment.unwrapped).__name__
    text, reward, terminated, truncated, info = _parts(
        environment.step(action), f"{name}.step", "(text, reward, terminated, truncated, info)"
    )
    return StepResult(
        observation=observe(text, info, name),
        reward=_finite(reward, f"{name}.step({action!r})"),
        terminated=bool(terminated),
        truncated=bool(truncated),
        success=bool(info.get("success", False)),
        action_valid=bool(info.get("action_valid", True)),
        action_effective=bool(info.get("action_effective", True)),
    )


def _parts(returned: Any, method: str, expected: str) -> tuple[Any, ...]:
    if isinstance(returned, (tuple, list)) and len(returned) == len(expected.split(",")):
        return tuple(returned)
    found = f"{len(returned)} values" if isinstance(returned, (tuple, list)) else type(returned).__name__
    raise EnvironmentContractError(f"{method} returned {found}, expected `{expected}`.")


def _finite(reward: Any, call: str) -> float:
    try:
        number = math.nan if isinstance(reward, str) else float(reward)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise EnvironmentContractError(
            f"{call} gave the reward {reward!r}: a return cannot be formed from it. Return a finite number."
        )
    return number


def observe(text: Any, info: Any, name: str) -> Observation:
    """
    Read an observation and the optional keys of `info`.

    Args:
        text (`str`):
            The observation.
        info (`Mapping[str, Any]`):
            The environment's info.
        name (`str`):
            The environment's name, for errors.

    Returns:
        [`Observation`]: the state, with its anchor (the observation itself where the environment gives none).

    Raises:
        EnvironmentContractError: `text` is not a string, `info` or its facts not a mapping, the anchor not hashable, or the
            admissible actions are not strings.
    """
    if not isinstance(text, str):
        raise EnvironmentContractError(f"{name} gave an observation of type {type(text).__name__}, expected `str`.")
    if not text.isascii() and text != text.encode("utf-8", "ignore").decode("utf-8"):
        raise EnvironmentContractError(f"{name} gave an observation that is not valid Unicode: {text!r:.80}.")
    if not isinstance(info, Mapping):
        raise EnvironmentContractError(f"{name} gave an info of type {type(info).__name__}, expected `dict`.")
    anchor = info.get("anchor", text)
    try:
        hash(anchor)
    except TypeError as error:
        raise EnvironmentContractError(
            f"{name} gave an anchor that cannot be hashed ({type(anchor).__name__}: {anchor!r:.80}), so turns cannot be "
            'grouped by it. Make it a string, a number or a tuple, for example `info["anchor"] = tuple(...)`.'
        ) from error
    return Observation(
        text, anchor, _admissible(info.get("admissible_actions"), name), _facts(info.get("facts"), name)
    )


def _facts(facts: Any, name: str) -> Mapping[str, Any]:
    if facts is not None and not isinstance(facts, Mapping):
        raise EnvironmentContractError(
            f'{name} gave info["facts"] = {facts!r:.80}, expected a dict such as {{"player": (0, 1)}}.'
        )
    return facts or {}


def _admissible(actions: Any, name: str) -> tuple[str, ...]:
    if actions is None:
        return ()
    listed = tuple(actions) if isinstance(actions, Iterable) and not isinstance(actions, str) else (None,)
    if not all(isinstance(action, str) for action in listed):
        raise EnvironmentContractError(
            f'{name} gave info["admissible_actions"] = {actions!r:.80}, expected a list of strings, one for each action.'
        )
    return listed


def check_same_start(name: str, seed: int | None, first: Observation, other: Observation) -> None:
    """
    Check that two resets of one task gave the same state.

    Args:
        name (`str`):
            The environment's name, for the error.
        seed (`int` or `None`):
            The task seed, for the error.
        first, other ([`Observation`]):
            The two initial states.

    Raises:
        NonDeterministicResetError: they differ; the message names the environment, the seed and the difference.
    """
    if (first.text, first.anchor) != (other.text, other.anchor):
        # The same text says nothing: then it is the anchors that differ.
        shown = [state.text if first.text != other.text else f"anchor: {state.anchor!r}" for state in (first, other)]
        raise NonDeterministicResetError(
            f"{name}.reset(seed={seed}) gave two different initial states:\n--- first\n{shown[0]}\n--- second\n"
            f"{shown[1]}\nEpisodes of one group must start from the same state. Draw everything random from "
            "`self.np_random` after `super().reset(seed=seed)`."
        )
