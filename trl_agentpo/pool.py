# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
The environments of a batch, built once and reset often.

Invariant: place i of the pool always holds a usable environment; one that crashed is replaced by a new one, so that no
broken state reaches the next episode.
"""

from collections.abc import Callable

import gymnasium

from .environment import EnvironmentContractError


class EnvironmentPool:
    """
    Environments in this process, one for each episode that runs at the same time.

    Args:
        build (`Callable[[], gymnasium.Env]`):
            Makes one environment that fits the contract.
    """

    def __init__(self, build: Callable[[], gymnasium.Env]):
        self._build = build
        self._environments: dict[int, gymnasium.Env] = {}

    def __getitem__(self, place: int) -> gymnasium.Env:
        if place not in self._environments:
            self._environments[place] = self._build_own()
        return self._environments[place]

    def __len__(self) -> int:
        return len(self._environments)

    def _build_own(self) -> gymnasium.Env:
        built = self._build()
        if any(built.unwrapped is other.unwrapped for other in self._environments.values()):
            raise EnvironmentContractError(
                f"`environment_factory` returned one and the same {type(built.unwrapped).__name__} twice. The episodes of a "
                "batch run side by side, each in an environment of its own: make a new one at every call."
            )
        return built

    def replace(self, place: int) -> None:
        """
        Make room for a new environment where one crashed. It is built when it is needed: building may crash, too.

        Args:
            place (`int`):
                Its place in the pool. The crashed one is dropped without `close()`, which may crash in turn.
        """
        self._environments.pop(place, None)

    def close(self) -> None:
        """Close all environments."""
        for environment in self._environments.values():
            environment.close()
        self._environments.clear()
