# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""What is watched against plain loops, and every rule of collapse on logs made by hand, with its near misses."""

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_agentpo import Episode, Turn
from trl_agentpo.collapse import (
    CollapseDetector,
    CollapseRules,
    group_outcomes,
    mutual_information,
    response_variety,
    thinking_pairs,
)


EPISODES = st.lists(
    st.tuples(st.integers(0, 8).map(lambda n: n / 8), st.integers(0, 4), st.booleans()), min_size=1, max_size=20
)


# A batch


@given(EPISODES)
def test_outcomes_of_groups(episodes: list[tuple[float, int, bool]]) -> None:
    spreads, all_solved, all_failed = [], 0, 0
    numbers = {number for _, number, _ in episodes}
    for number in numbers:
        scores = [score for score, group, _ in episodes if group == number]
        spreads.append(statistics.stdev(scores) if len(scores) > 1 else 0.0)
        if len(set(scores)) == 1 and all(success for _, group, success in episodes if group == number):
            all_solved += 1
        elif len(set(scores)) == 1:
            all_failed += 1
    assert group_outcomes(*zip(*episodes, strict=True)) == pytest.approx(
        {
            "groups/reward_std": statistics.fmean(spreads),
            "groups/all_solved": all_solved / len(numbers),
            "groups/all_failed": all_failed / len(numbers),
        }
    )


def test_outcomes_by_hand() -> None:
    """Groups: solved alike, failed alike, half of each (deviation √2/2), solved in several lengths (√2/4)."""
    outcomes = group_outcomes([1, 1, 0, 0, 0, 1, 1, 0.5], [7, 7, 2, 2, 3, 3, 9, 9], [1, 1, 0, 0, 0, 1, 1, 1])
    assert outcomes["groups/reward_std"] == pytest.approx((0 + 0 + math.sqrt(2) / 2 + math.sqrt(2) / 4) / 4)
    assert (outcomes["groups/all_solved"], outcomes["groups/all_failed"]) == (0.25, 0.25)


def test_equal_scores_of_which_one_failed_are_not_solved() -> None:
    outcomes = group_outcomes([1, 1], [0, 0], [True, False])
    assert (outcomes["groups/all_solved"], outcomes["groups/all_failed"]) == (0, 1)


def test_no_episode() -> None:
    assert group_outcomes([], [], []) == {}
    assert response_variety([], []) == {}


def test_one_success_for_each_episode() -> None:
    with pytest.raises(ValueError, match=r"`successes` has the shape \(1,\) and `group_ids` \(2,\)"):
        group_outcomes([0, 1], [0, 0], [True])


def test_variety_by_hand() -> None:
    """Of four thoughts the second and the fourth were there before; the turns without one do not count."""
    thinkings = ["go left", " go left\n", None, "", "  ", "go right", "go left"]
    variety = response_variety(["a", "a", "b", "b", "b", "c", "a"], thinkings)
    assert variety == pytest.approx({"turn/distinct_responses": 3 / 7, "turn/repeated_thinking": 2 / 4})


def test_variety_without_thinking() -> None:
    assert response_variety(["a", "b"], [None, ""]) == {"turn/distinct_responses": 1.0}


# Mutual information


@given(st.integers(1, 6), st.integers(0, 100))
def test_mutual_information(size: int, seed: int) -> None:
    scores = np.random.default_rng(seed).normal(-2, 1, (size, size)).tolist()
    information = accuracy = 0.0
    for i, row in enumerate(scores):
        information += row[i] - math.log(sum(math.exp(score) for score in row) / size)
        accuracy += all(row[i] > row[j] for j in range(size) if j != i)
    found = mutual_information(scores)
    assert found.mutual_information == pytest.approx(information / size, abs=1e-12)
    assert found.conditional_entropy == pytest.approx(-sum(scores[i][i] for i in range(size)) / size)
    assert found.retrieval_accuracy == pytest.approx(accuracy / size)


def test_mutual_information_at_its_ends() -> None:
    """Thinking that suits every prompt says nothing of it; one that suits only its own says all, log N."""
    assert mutual_information(np.full((4, 4), -3.0)).mutual_information == pytest.approx(0)
    found = mutual_information(np.where(np.eye(4), -1.0, -1000.0))
    assert (found.mutual_information, found.retrieval_accuracy) == (pytest.approx(math.log(4)), 1)


def test_very_unlikely_thinking() -> None:
    """exp(−2000) is 0 in floating point: 2000 + log(½(1 + e^−1)) apart from its marginal."""
    expected = -2000 - (-2000 + math.log((1 + math.exp(-1)) / 2))
    assert mutual_information([[-2000, -2001], [-2001, -2000]]).mutual_information == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(2, 3), (4,), (0, 0)])
def test_scores_that_are_not_square(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="`log_likelihoods` must be square"):
        mutual_information(np.zeros(shape))


def turn(prompt: str, completion: str, thinking: str | None = "x") -> Turn:
    """A turn whose tokens are characters."""
    return Turn("", 0, [*map(ord, prompt)], [*map(ord, completion)], completion, thinking=thinking)


def chosen(episodes: list[Episode], limit: int = 9) -> list[tuple[str, str]]:
    decode = lambda ids: "".join(map(chr, ids))  # noqa: E731
    return [(decode(prompt), decode(thinking)) for prompt, thinking in thinking_pairs(episodes, decode, limit)]


def test_every_task_before_a_second_of_one() -> None:
    episodes = [
        Episode(1, turns=[turn("a", "ta"), turn("b", "tb")]),
        Episode(1, turns=[turn("a", "other"), turn("c", "tc")]),
        Episode(2, turns=[turn("d", "td"), turn("a", "of another task")]),
        Episode(1, {"size": 5}, turns=[turn("e", "te")]),
    ]
    pairs = [("a", "ta"), ("d", "td"), ("e", "te"), ("b", "tb"), ("c", "tc")]
    assert chosen(episodes) == pairs
    assert chosen(episodes, limit=4) == pairs[:4]


def test_turns_without_thinking_and_crashed_episodes_are_left_out() -> None:
    crashed = Episode(2, turns=[turn("b", "tb")], error="crash")
    assert chosen([Episode(1, turns=[turn("a", "ta", None), turn("c", "tc", " \n")]), crashed]) == []


@pytest.mark.parametrize(
    "completion, thinking",
    [
        ("<think>x</think><action>up</action>", "<think>x</think>"),
        ("x</think> and </think>", "x</think>"),
        ("</think>", "</think>"),
        ("<think>endless", "<think>endless"),
    ],
)
def test_thinking_ends_with_its_tag(completion: str, thinking: str) -> None:
    assert chosen([Episode(1, turns=[turn("a", completion)])]) == [("a", thinking)]


# Rules

REWARD, ENTROPY, NORM, TEMPLATE = "groups/reward_std", "entropy", "grad_norm", "turn/repeated_thinking"


def symptoms(
    metric: str, values: Sequence[float | None], every: int = 1, **others: float
) -> list[tuple[int, str, int]]:
    """The step, name and last clean step of each symptom in the logs of one metric."""
    detector = CollapseDetector(CollapseRules())
    return [
        (step, symptom.name, symptom.clean_step)
        for step, value in zip(range(every, 10**6, every), values, strict=False)
        for symptom in detector.observe(step, {metric: value, **others})
    ]


SPREADS = [0.25, 0.75] * 5  # mean 0.5, so that the limit is 0.05


def test_reward_spread_vanishes() -> None:
    assert symptoms(REWARD, SPREADS + [0.04] * 30) == [(20, "vanishing reward spread", 10)]
    assert symptoms(REWARD, SPREADS + [0.04] * 9 + [0.3] + [0.0] * 10) == [(30, "vanishing reward spread", 20)]


@pytest.mark.parametrize(
    "values",
    [
        SPREADS + [0.04] * 9,
        (SPREADS + ([0.04] * 9 + [0.06]) * 4),
        SPREADS + [0.0501] * 30,
        [0.0] * 40,
        [0.5] + [0.04] * 9 + [0.02] * 9,
    ],
    ids=["nine", "interrupted", "above", "never any", "fell within the first ten"],
)
def test_reward_spread_stays(values: list[float]) -> None:
    assert symptoms(REWARD, values) == []


def test_the_mastered_task_is_no_trap() -> None:
    """Where all are solved there is no spread, no uncertainty and no new word either."""
    low = SPREADS + [0.0] * 30
    assert symptoms(REWARD, low, **{"groups/all_solved": 0.8}) == []
    assert symptoms(REWARD, low, **{"groups/all_solved": 0.79}) == [(20, "vanishing reward spread", 10)]
    assert symptoms(ENTROPY, low, **{"groups/all_solved": 0.8}) == []
    assert symptoms(NORM, [1.0] * 10 + [11.0], **{"groups/all_solved": 1.0}) == [(11, "gradient spike", 10)]


def test_unknown_values_neither_count_nor_interrupt() -> None:
    """The ten low values come with every second log: the tenth at step 30, and step 11 is the last log before them."""
    values = SPREADS + [None, 0.04, math.nan, 0.04] * 5
    assert symptoms(REWARD, values) == [(30, "vanishing reward spread", 11)]
    assert symptoms(REWARD, [None, math.nan] * 5 + SPREADS + [0.04] * 10) == [(30, "vanishing reward spread", 20)]


def test_a_log_of_several_steps_is_one_observation() -> None:
    assert symptoms(REWARD, SPREADS + [0.04] * 10, every=5) == [(100, "vanishing reward spread", 50)]


def test_entropy_collapses() -> None:
    start = [1.5, 2.5] * 5
    assert symptoms(ENTROPY, [*start, 0.21, 0.19, 0.1]) == [(12, "entropy collapse", 11)]
    assert symptoms(ENTROPY, [*start, 0.21] + [0.201] * 20) == []
    assert symptoms(ENTROPY, [2.0] * 9 + [0.1]) == [], "the tenth log belongs to the start: its limit is 0.181"


def test_gradient_spikes() -> None:
    norms = [0.5, 1.5] * 5  # median 1
    assert symptoms(NORM, [*norms, 10.1, 50.0]) == [(11, "gradient spike", 10)]
    assert symptoms(NORM, [*norms, 9.9]) == []
    assert symptoms(NORM, [1.0] * 9 + [100.0]) == [], "nine are too few for a median"
    assert symptoms(NORM, [*norms, math.inf]) == [(11, "gradient spike", 10)]


def test_the_median_is_over_the_last_fifty() -> None:
    assert symptoms(NORM, [100.0] * 60 + [1.0] * 50 + [11.0]) == [(111, "gradient spike", 110)]
    assert symptoms(NORM, [100.0] * 60 + [1.0] * 24 + [11.0]) == [], "26 of the last 50 are 100"


def test_skipped_updates_have_no_gradient() -> None:
    assert symptoms(NORM, [1.0] * 10 + [0.0] * 40 + [5.0]) == []
    assert symptoms(NORM, [1.0, 0.0] * 9 + [100.0]) == []


def test_thinking_becomes_a_template() -> None:
    start = [0.3, 0.5] * 5
    assert symptoms(TEMPLATE, start + [0.95] * 30) == [(20, "template thinking", 10)]
    assert symptoms(TEMPLATE, start + [0.95] * 9 + [0.94] + [0.95] * 9) == []


@pytest.mark.parametrize("start", [0.91, 0.95, 1.0])
def test_thinking_that_was_fixed_from_the_start(start: float) -> None:
    assert symptoms(TEMPLATE, [start] * 10 + [1.0] * 30) == []


def test_evidence_has_the_numbers_and_the_remedy_names_options() -> None:
    """Start 0.5, limit 0.05; entropy from 2 to 0.1; a norm of 20 after 12 of 1; thinking from 0.4 to 1."""
    detector = CollapseDetector(CollapseRules())
    found = []
    for step in range(1, 23):
        early = step <= 10
        log = {REWARD: 0.5 if early else 0.04, TEMPLATE: 0.4 if early else 1.0, "loss": 0.0}
        found += detector.observe(step, {**log, ENTROPY: 2 if early else 0.1, NORM: 20.0 if step == 13 else 1.0})
    told = {symptom.name: symptom for symptom in found}
    assert [*told] == ["entropy collapse", "gradient spike", "vanishing reward spread", "template thinking"]
    for name, numbers, option in [
        ("vanishing reward spread", ["is 0.04 now", "below 0.05", "10%", "in the last 10 "], 'group_filter="top_p"'),
        ("entropy collapse", ["is 0.1 now", "below 0.2", "10%", "in the last 1 "], "entropy_coef"),
        ("gradient spike", ["is 20,", "10 times 1,", "the 12 logs before"], "max_grad_norm"),
        (
            "template thinking",
            ["is 1 now", "at least 0.95", "last 10 logs", "its mean over the first 10 was 0.4"],
            "StarPOSConfig",
        ),
    ]:
        assert all(number in told[name].evidence for number in numbers), told[name].evidence
        assert option in told[name].remedy


def test_suspicion_lasts_as_long_as_the_sign() -> None:
    detector = CollapseDetector(CollapseRules(window=1, patience=2))
    suspected = []
    for step, value in enumerate([1, 1, 0, 1, 0, 0, 0, 1], start=1):
        detector.observe(step, {REWARD: value})
        suspected.append(detector.suspects)
    # A symptom is known and no longer suspected.
    assert suspected == [False, False, True, False, True, False, False, False]


@pytest.mark.parametrize(
    "option, value",
    [
        ("window", 0),
        ("patience", 0),
        ("reward_fraction", 0),
        ("entropy_fraction", 1.5),
        ("solved_share", math.nan),
        ("repeated_share", 0.5),
        ("spike_factor", 1),
    ],
)
def test_rules_out_of_range(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"`{option}` must be .*, got {value}"):
        CollapseRules(**{option: value})
