# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Which groups of episodes are trained on: StarPO-S keeps those whose outcome is uncertain.

Invariant: whole groups only, chosen by the spread of their *raw* scores, before any normalisation (normalised scores all
have a spread of about 1). A group without spread teaches nothing and is never kept by `top_p`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def group_deviations(scores: ArrayLike, group_ids: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """
    The unbiased standard deviation of the scores within each group.

    Args:
        scores (`ArrayLike` of shape `(num_episodes,)`):
            The raw return of each episode.
        group_ids (`ArrayLike` of shape `(num_episodes,)`):
            The group of each episode.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: the different group ids in ascending order, and their deviations: 0 for a group of
        one episode, and for one whose spread is below `1e-8 · max(1, |mean|)`.

    Raises:
        ValueError: the two differ in length, or a score is not finite.
    """
    scores, group_ids = np.asarray(scores, dtype=np.float64), np.asarray(group_ids, dtype=np.int64)
    if scores.shape != group_ids.shape:
        raise ValueError(
            f"`scores` has the shape {scores.shape} and `group_ids` {group_ids.shape}; give one of each per episode."
        )
    if not np.isfinite(scores).all():
        raise ValueError(
            f"`scores` must be finite, got {scores[~np.isfinite(scores)][0]}. Leave out crashed episodes."
        )
    groups, numbers = np.unique(group_ids, return_inverse=True)
    counts = np.bincount(numbers)
    means = np.bincount(numbers, weights=scores) / np.maximum(counts, 1)
    squares = np.bincount(numbers, weights=(scores - means[numbers]) ** 2)
    deviations = np.sqrt(squares / np.maximum(counts - 1, 1))
    return groups, np.where(deviations < 1e-8 * np.maximum(1.0, np.abs(means)), 0.0, deviations)


def top_k_groups(scores: ArrayLike, group_ids: ArrayLike, ratio: float) -> NDArray[np.int64]:
    """
    The `⌊ratio · G⌋` groups with the largest deviation, at least one (RAGEN, StarPO-S; the paper's ratio is 0.25).

    Args:
        scores (`ArrayLike` of shape `(num_episodes,)`):
            The raw return of each episode.
        group_ids (`ArrayLike` of shape `(num_episodes,)`):
            The group of each episode.
        ratio (`float`):
            The share of groups to keep, in (0, 1].

    Returns:
        `np.ndarray` of `int64`: the ids of the kept groups, ascending. Of equal deviations the lower id comes first.

    Raises:
        ValueError: `ratio` is not in (0, 1].
    """
    _check_ratio(ratio)
    groups, deviations = group_deviations(scores, group_ids)
    # Some products fall short of the whole number they stand for: 0.29 * 100 is 28.999999999999996.
    kept = max(1, int(np.floor(ratio * len(groups) + 1e-9)))
    return np.sort(groups[np.argsort(-deviations, kind="stable")[:kept]])


def top_p_groups(scores: ArrayLike, group_ids: ArrayLike, ratio: float) -> NDArray[np.int64]:
    """
    The fewest groups, in order of falling deviation, whose deviations add up to `ratio` of the total (RAGEN-2; 0.9).

    Args:
        scores (`ArrayLike` of shape `(num_episodes,)`):
            The raw return of each episode.
        group_ids (`ArrayLike` of shape `(num_episodes,)`):
            The group of each episode.
        ratio (`float`):
            The share of the total deviation to keep, in (0, 1].

    Returns:
        `np.ndarray` of `int64`: the ids of the kept groups, ascending; none without deviation, so possibly empty.

    Raises:
        ValueError: `ratio` is not in (0, 1].
    """
    _check_ratio(ratio)
    groups, deviations = group_deviations(scores, group_ids)
    order = np.argsort(-deviations, kind="stable")
    order = order[deviations[order] > 0]
    reached = np.cumsum(deviations[order])
    if not len(reached):
        return groups[:0]
    # The share may be missed by a rounding error in the last place.
    needed = int(np.searchsorted(reached, ratio * reached[-1] * (1 - 1e-12)))
    return np.sort(groups[order[: needed + 1]])


def _check_ratio(ratio: float) -> None:
    if not 0 < ratio <= 1:
        raise ValueError(f"`ratio` must be in (0, 1], got {ratio}. Use 1 to keep every group.")
