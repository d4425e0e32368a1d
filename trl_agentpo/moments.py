# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Mean and variance of numbers that lie on several processes.

Invariant: merging the moments of parts gives the moments of the whole, whatever the parts, without the loss of digits that
sums of squares have (Chan et al. 1983).
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Moments:
    """
    Count, mean and spread of numbers.

    Args:
        count (`int`, *optional*, defaults to `0`):
            How many there are.
        mean (`float`, *optional*, defaults to `0.0`):
            Their mean.
        squares (`float`, *optional*, defaults to `0.0`):
            The sum of their squared distances from the mean.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def variance(self) -> float:
        """The unbiased variance; 0 for fewer than two numbers."""
        return self.squares / (self.count - 1) if self.count > 1 else 0.0

    def __add__(self, other: "Moments") -> "Moments":
        count = self.count + other.count
        if count == 0:
            return self
        distance = other.mean - self.mean
        return Moments(
            count=count,
            mean=self.mean + distance * other.count / count,
            squares=self.squares + other.squares + distance**2 * self.count * other.count / count,
        )


def moments(values: ArrayLike) -> Moments:
    """The moments of some numbers."""
    values = np.asarray(values, dtype=np.float64)
    if not values.size:
        return Moments()
    return Moments(values.size, float(values.mean()), float(((values - values.mean()) ** 2).sum()))


def merge(parts: Iterable[Moments]) -> Moments:
    """The moments of all numbers, from those of the parts."""
    return functools.reduce(Moments.__add__, parts, Moments())
