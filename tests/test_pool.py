# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""Environments are built once, when they are needed, and never shared."""

import itertools

import gymnasium
import pytest
from support import Corridor

from trl_agentpo.environment import EnvironmentContractError
from trl_agentpo.pool import EnvironmentPool


class Closing(Corridor):
    """Counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_every_place_has_its_own_environment_built_once() -> None:
    pool = EnvironmentPool(Corridor)
    first = [pool[place] for place in range(4)]
    assert len({id(environment) for environment in first}) == 4
    assert all(pool[place] is environment for place, environment in enumerate(first))


def test_one_environment_in_two_places_is_refused() -> None:
    """Two episodes would move the same state."""
    shared = Corridor()
    pool = EnvironmentPool(lambda: shared)
    assert pool[0] is shared
    with pytest.raises(EnvironmentContractError, match="one and the same Corridor twice"):
        pool[1]


def test_nothing_is_built_before_it_is_needed() -> None:
    built: list[gymnasium.Env] = []

    def build() -> gymnasium.Env:
        built.append(Corridor())
        return built[-1]

    pool = EnvironmentPool(build)
    assert (len(pool), len(built)) == (0, 0)
    assert pool[0] is built[0]
    assert pool[1] is built[1]
    assert pool[0] is built[0]
    assert (len(pool), len(built)) == (2, 2)


def test_a_crashed_environment_is_replaced_in_its_place_only_and_not_closed() -> None:
    pool = EnvironmentPool(Closing)
    before = [pool[place] for place in range(3)]
    pool.replace(1)
    after = [pool[place] for place in range(3)]
    assert [old is new for old, new in zip(before, after, strict=True)] == [True, False, True]
    assert isinstance(after[1], Closing)
    assert before[1].closed == 0


def test_a_constructor_that_fails_does_so_when_its_environment_is_needed_and_is_tried_again() -> None:
    attempts = itertools.count(1)

    def build() -> gymnasium.Env:
        if next(attempts) == 2:
            raise OSError("no connection")
        return Corridor()

    pool = EnvironmentPool(build)
    assert isinstance(pool[0], Corridor)
    with pytest.raises(OSError, match="no connection"):
        pool[1]
    pool.replace(1)
    assert isinstance(pool[1], Corridor)


def test_closing_closes_each_once_and_forgets_them() -> None:
    pool = EnvironmentPool(Closing)
    environments = [pool[place] for place in range(3)]
    pool.close()
    pool.close()
    assert [environment.closed for environment in environments] == [1, 1, 1]
    assert len(pool) == 0
    assert pool[0] is not environments[0]
