# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
The environments of a batch, built once and reset often.

Invariant: place i of the pool always holds a usable environment; one that crashed is replaced by a new one, so that no
broken state reaches the next episode.
"""

from collections.abc import Callable

import gymnasium


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
            self._environments[place] = self._build()
        return self._environments[place]

    def __len__(self) -> int:
        return len(self._environments)

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
