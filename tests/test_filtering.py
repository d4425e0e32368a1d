# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""The choice of groups against the definition, written as plain loops."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_agentpo.filtering import group_deviations, top_k_groups, top_p_groups


# Scores in eighths, so that sums are exact and equal spreads stay equal.
GROUPS = st.dictionaries(
    st.integers(0, 50),
    st.lists(st.integers(-16, 16).map(lambda n: n / 8), min_size=1, max_size=5),
    min_size=1,
    max_size=7,
)
RATIOS = st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9, 1.0])


def flat(groups: dict[int, list[float]], order: int = 0) -> tuple[list[float], list[int]]:
    """Scores and group ids, shuffled by `order`."""
    pairs = [(score, group) for group, scores in groups.items() for score in scores]
    shuffled = [pairs[i] for i in np.random.default_rng(order).permutation(len(pairs))]
    return [score for score, _ in shuffled], [group for _, group in shuffled]


def deviation(scores: list[float]) -> float:
    return statistics.stdev(scores) if len(scores) > 1 else 0.0


@given(GROUPS, st.integers(0, 5))
def test_deviations(groups: dict[int, list[float]], order: int) -> None:
    ids, deviations = group_deviations(*flat(groups, order))
    assert ids.tolist() == sorted(groups)
    assert deviations.tolist() == pytest.approx([deviation(groups[group]) for group in sorted(groups)])


@given(GROUPS, RATIOS, st.integers(0, 5))
def test_top_k_keeps_the_widest(groups: dict[int, list[float]], ratio: float, order: int) -> None:
    kept = top_k_groups(*flat(groups, order), ratio).tolist()
    assert len(kept) == max(1, math.floor(ratio * len(groups)))
    dropped = set(groups) - set(kept)
    narrowest = min(deviation(groups[group]) for group in kept)
    assert all(deviation(groups[group]) <= narrowest + 1e-12 for group in dropped)


@given(GROUPS, RATIOS, st.integers(0, 5))
def test_top_p_keeps_the_fewest_that_reach_the_share(groups: dict[int, list[float]], ratio: float, order: int) -> None:
    kept = top_p_groups(*flat(groups, order), ratio).tolist()
    spreads = {group: deviation(scores) for group, scores in groups.items()}
    total = sum(spreads.values())
    assert all(spreads[group] > 0 for group in kept)
    if total == 0:
        assert kept == []
        return
    assert sum(spreads[group] for group in kept) >= ratio * total - 1e-9
    widest = sorted(spreads.values(), reverse=True)[: len(kept) - 1]
    assert sum(widest) < ratio * total + 1e-9


def test_by_hand() -> None:
    """Deviations: group 0: 0, group 1: √2/2 ≈ 0.71, group 2: √2 ≈ 1.41, group 3: √2/4 ≈ 0.35; total 2.47."""
    scores, groups = [1, 1, 0, 1, 0, 2, 0, 0.5], [0, 0, 1, 1, 2, 2, 3, 3]
    assert top_k_groups(scores, groups, 0.25).tolist() == [2]
    assert top_k_groups(scores, groups, 0.5).tolist() == [1, 2]
    assert top_k_groups(scores, groups, 0.1).tolist() == [2]
    assert top_p_groups(scores, groups, 0.5).tolist() == [2]
    assert top_p_groups(scores, groups, 0.9).tolist() == [1, 2, 3]
    assert top_p_groups(scores, groups, 1.0).tolist() == [1, 2, 3]


def test_scale_counts() -> None:
    """Twice the spread is twice the deviation: scores that were normalised first would make the groups alike."""
    assert top_k_groups([0, 1, 0, 10], [0, 0, 1, 1], 0.5).tolist() == [1]


def test_float_noise_is_no_spread() -> None:
    noisy = [0.1 + 0.2, 0.3, 0.3]
    assert top_p_groups([*noisy, 0, 1], [0, 0, 0, 1, 1], 1.0).tolist() == [1]


def test_whole_number_of_groups_in_spite_of_rounding() -> None:
    """0.29 · 100 is a little less than 29 in floating point."""
    scores = [score for n in range(100) for score in (0, n + 1)]
    groups = [n for n in range(100) for _ in range(2)]
    assert len(top_k_groups(scores, groups, 0.29)) == 29


@pytest.mark.parametrize("select", [top_k_groups, top_p_groups])
@pytest.mark.parametrize("ratio", [0, -1, 1.1, float("nan")])
def test_ratio_out_of_range(select: object, ratio: float) -> None:
    with pytest.raises(ValueError, match="`ratio` must be in"):
        select([0, 1], [0, 0], ratio)


def test_bad_scores() -> None:
    with pytest.raises(ValueError, match="`scores` must be finite, got nan"):
        group_deviations([0.0, float("nan")], [0, 0])
    with pytest.raises(ValueError, match="one of each per episode"):
        group_deviations([0.0], [0, 0])
