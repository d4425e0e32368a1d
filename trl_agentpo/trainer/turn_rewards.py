# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
A user's reward functions, as TRL wants them: one number per episode.

Invariant: what a function gave single turns is kept beside their sum until the next call, so that credit sees it at its
turn. Reward models, which score a transcript, are left as they are.
"""

from collections.abc import Callable
from typing import Any

from torch import nn
from trl.trainer.utils import get_callable_name, is_async_callable

from ..episode import Episode
from ..rewards import turn_rewards


class TurnRewardFunction:
    """
    A reward function that may give a number per episode, a number per turn, or `None`.

    Args:
        function (`Callable`):
            The user's function.

    Attributes:
        by_turn (`list[list[float]]`):
            What the last call gave each turn of each episode.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.__name__ = get_callable_name(function)
        self.by_turn: list[list[float]] = []

    def __call__(self, **kwargs: Any) -> list[float | None]:
        return self._take(self.function(**kwargs), kwargs["episodes"])

    def _take(self, returned: Any, episodes: list[Episode]) -> list[float | None]:
        totals, self.by_turn = turn_rewards(returned, episodes, self.__name__)
        return totals


class AsyncTurnRewardFunction(TurnRewardFunction):
    """[`TurnRewardFunction`] of an asynchronous function, such as one that asks a judge over the network."""

    async def __call__(self, **kwargs: Any) -> list[float | None]:  # type: ignore[override]
        return self._take(await self.function(**kwargs), kwargs["episodes"])


def by_turn(function: Any) -> Any:
    """
    Let a reward function give numbers per turn.

    Args:
        function (`str`, `torch.nn.Module` or callable):
            What the user gave as a reward function.

    Returns:
        The function as a [`TurnRewardFunction`]; a model or a model's name as it is.
    """
    if isinstance(function, str | nn.Module) or not callable(function):
        return function
    return AsyncTurnRewardFunction(function) if is_async_callable(function) else TurnRewardFunction(function)
