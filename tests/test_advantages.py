# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Credit is compared with oracles written from the formulas with plain loops, and with numbers worked out by hand.

The oracles share nothing with the module: they find peers by comparing every turn with every other, and take means and
deviations from `statistics`, which is exact.
"""

import difflib
import importlib.util
import itertools
import statistics
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trl_agentpo import advantages as advantages_module
from trl_agentpo.advantages import (
    anchor_buckets,
    bucket_sizes,
    episode_advantages,
    gigpo_advantages,
    step_advantages,
    step_returns,
)


REWARDS = [-1.0, -0.1, 0.0, 0.1, 0.2, 0.3, 1.0, 10.0]
ANCHORS = ["kitchen", "hall", "", (0, 1), (0, 2), ("hall",), None, 1, 1.0, True, 2, frozenset({1})]
TEXTS = ["a red door", "a red floor", "a blue door", "the garden", "the gardens", "", "x"]


# Layouts: what a rollout may look like


@st.composite
def layouts(draw, anchors=ANCHORS, max_turns=5):
    """Rewards, episode ids, group ids, anchors and invalid flags of interleaved episodes of uneven lengths."""
    lengths = draw(
        st.lists(st.lists(st.integers(1, max_turns), min_size=1, max_size=4), min_size=1, max_size=3), label="lengths"
    )
    episodes = [(f"group {group}", number) for group, row in enumerate(lengths) for number in range(len(row))]
    turns = [
        episode for episode, length in zip(episodes, itertools.chain(*lengths), strict=True) for _ in range(length)
    ]
    episode_ids = draw(st.permutations(turns), label="order")
    count = len(turns)
    reward = st.sampled_from(REWARDS) | st.integers(-500, 500).map(lambda cents: cents / 100)
    return {
        "rewards": draw(st.lists(reward, min_size=count, max_size=count), label="rewards"),
        "episode_ids": episode_ids,
        "group_ids": [group for group, _ in episode_ids],
        "anchors": draw(st.lists(st.sampled_from(anchors), min_size=count, max_size=count), label="anchors"),
        "invalid": draw(st.lists(st.booleans(), min_size=count, max_size=count), label="invalid"),
    }


def episode_arguments(layout):
    return layout["rewards"], layout["episode_ids"], layout["group_ids"]


def gigpo_arguments(layout):
    return (*episode_arguments(layout), layout["anchors"])


gammas = st.sampled_from([0.0, 0.3, 0.5, 0.95, 1.0])
scales = st.sampled_from(["group", "none"])
baselines = st.sampled_from(["episode", "turn"])
single_scores = st.sampled_from(["zero", "keep"])
penalty_modes = st.sampled_from(["reward", "row"])
similarities = st.sampled_from([0.3, 0.65, 0.85, 1.0])


def close(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-8)


# Oracles: the formulas, turn by turn


def oracle_returns(rewards, episode_ids, gamma):
    returns = []
    for turn, episode in enumerate(episode_ids):
        later = [rewards[other] for other in range(turn, len(rewards)) if episode_ids[other] == episode]
        returns.append(sum(gamma**distance * reward for distance, reward in enumerate(later)))
    return returns


def oracle_relative(score, baseline_scores, scale_rewards, single_score="zero"):
    mean, deviation = statistics.fmean(baseline_scores), 0.0
    if len(baseline_scores) > 1:
        deviation = statistics.stdev(baseline_scores)
    elif single_score == "keep":
        mean, deviation = 0.0, 1.0
    if deviation < 1e-8 * max(1.0, abs(mean)):
        return 0.0
    return (score - mean) / (deviation + 1e-6 if scale_rewards == "group" else 1.0)


def oracle_episode(
    rewards, episode_ids, group_ids, scale_rewards, episode_baseline, single_score="zero", row_penalties=None
):
    turns = range(len(rewards))
    row_penalties = row_penalties or [0.0] * len(rewards)
    episode_return = {
        episode: sum(rewards[turn] for turn in turns if episode_ids[turn] == episode) for episode in episode_ids
    }
    scores = [episode_return[episode_ids[turn]] - row_penalties[turn] for turn in turns]
    result = []
    for turn in turns:
        peers = [other for other in turns if group_ids[other] == group_ids[turn]]
        if episode_baseline == "turn":
            baseline_scores = [scores[peer] for peer in peers]
        else:
            baseline_scores = [episode_return[episode] for episode in {episode_ids[peer] for peer in peers}]
        result.append(oracle_relative(scores[turn], baseline_scores, scale_rewards, single_score))
    return result


def lcs_ratio(first, second):
    """Twice the longest common subsequence over the sum of the lengths, by the textbook table."""
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for row, column in itertools.product(range(len(first)), range(len(second))):
        extended = table[row][column] + 1
        skipped = max(table[row][column + 1], table[row + 1][column])
        table[row + 1][column + 1] = extended if first[row] == second[column] else skipped
    total = len(first) + len(second)
    return 2 * table[-1][-1] / total if total else 1.0


def oracle_buckets(group_ids, anchors, anchor_similarity=1.0):
    """Every bucket as the list of its turns, in order of first appearance."""
    buckets = []
    for turn, anchor in enumerate(anchors):
        for bucket in buckets:
            same_group = group_ids[bucket[0]] == group_ids[turn]
            first = anchors[bucket[0]]
            alike = first == anchor if anchor_similarity == 1 else lcs_ratio(first, anchor) >= anchor_similarity
            if same_group and alike:
                bucket.append(turn)
                break
        else:
            buckets.append([turn])
    return buckets


def oracle_step(returns, group_ids, anchors, scale_rewards, anchor_similarity=1.0):
    result = [0.0] * len(returns)
    for bucket in oracle_buckets(group_ids, anchors, anchor_similarity):
        for turn in bucket:
            result[turn] = oracle_relative(returns[turn], [returns[other] for other in bucket], scale_rewards)
    return result


def oracle_gigpo(layout, gamma, weight, scale, baseline, single_score, penalty, penalty_mode, similarity):
    rewards = list(layout["rewards"])
    lost = [penalty if flag else 0.0 for flag in layout["invalid"]]
    later_loss = [0.0] * len(rewards)
    if penalty_mode == "reward":
        rewards = [reward - loss for reward, loss in zip(rewards, lost, strict=True)]
    else:
        later_loss = lost
    returns = oracle_returns(rewards, layout["episode_ids"], gamma)
    returns = [value - loss for value, loss in zip(returns, later_loss, strict=True)]
    episode_part = oracle_episode(
        rewards, layout["episode_ids"], layout["group_ids"], scale, baseline, single_score, later_loss
    )
    step_part = oracle_step(returns, layout["group_ids"], layout["anchors"], scale, similarity)
    return [episode + weight * step for episode, step in zip(episode_part, step_part, strict=True)]


# step_returns


@given(layouts(), gammas)
def test_step_returns_match_the_formula(layout, gamma):
    result = step_returns(layout["rewards"], layout["episode_ids"], gamma=gamma)
    assert result.dtype == np.float64
    assert result.tolist() == close(oracle_returns(layout["rewards"], layout["episode_ids"], gamma))


def test_step_returns_of_interleaved_episodes_by_hand():
    # a: rewards 1, 2, 4 at turns 0, 2, 3   ->  4;  2 + 4/2 = 4;  1 + 4/2 = 3
    # b: rewards 0, 8    at turns 1, 4      ->  8;  0 + 8/2 = 4
    result = step_returns([1, 0, 2, 4, 8], ["a", "b", "a", "a", "b"], gamma=0.5)
    assert result.tolist() == [3.0, 4.0, 4.0, 4.0, 8.0]


def test_step_returns_default_discount_is_the_papers():
    assert step_returns([0.0, 0.0, 1.0], [0, 0, 0]).tolist() == close([0.95**2, 0.95, 1.0])


@given(layouts())
def test_step_returns_without_foresight_are_the_rewards(layout):
    assert step_returns(layout["rewards"], layout["episode_ids"], gamma=0).tolist() == layout["rewards"]


@given(layouts())
def test_step_return_of_the_first_turn_undiscounted_is_the_episode_return(layout):
    result = step_returns(layout["rewards"], layout["episode_ids"], gamma=1)
    for episode in set(layout["episode_ids"]):
        turns = [turn for turn, other in enumerate(layout["episode_ids"]) if other == episode]
        assert result[turns[0]] == close(sum(layout["rewards"][turn] for turn in turns))


def test_step_returns_do_not_change_their_input():
    rewards = np.array([1.0, 2.0])
    step_returns(rewards, [0, 0])
    assert rewards.tolist() == [1.0, 2.0]


# episode_advantages


@given(layouts(), scales, baselines, single_scores, st.booleans())
def test_episode_advantages_match_the_formula(layout, scale, baseline, single_score, penalised):
    penalties = [0.1 * flag for flag in layout["invalid"]] if penalised else None
    result = episode_advantages(
        *episode_arguments(layout),
        scale_rewards=scale,
        episode_baseline=baseline,
        single_score=single_score,
        row_penalties=penalties,
    )
    expected = oracle_episode(*episode_arguments(layout), scale, baseline, single_score, penalties)
    assert result.dtype == np.float64
    assert result.tolist() == close(expected)


# One group, returns 1 (three turns), 0 and -1 (one turn each).
HAND_REWARDS = [0.0, 0.0, 1.0, 0.0, -1.0]
HAND_EPISODES = ["a", "a", "a", "b", "c"]
HAND_GROUPS = [7, 7, 7, 7, 7]


def test_episode_advantages_over_episodes_by_hand():
    # Over (1, 0, -1): mean 0, variance (1 + 0 + 1) / 2 = 1, deviation 1.
    unscaled = episode_advantages(HAND_REWARDS, HAND_EPISODES, HAND_GROUPS, scale_rewards="none")
    assert unscaled.tolist() == [1.0, 1.0, 1.0, 0.0, -1.0]
    scaled = episode_advantages(HAND_REWARDS, HAND_EPISODES, HAND_GROUPS)
    # The digits of 1 / (1 + 1e-6) are compared, so that the offset is there and has that size.
    assert scaled.tolist() == pytest.approx([0.999999000001] * 3 + [0.0, -0.999999000001], abs=1e-13)


def test_episode_advantages_over_turns_by_hand():
    # Over (1, 1, 1, 0, -1): mean 2/5, distances 0.6 0.6 0.6 -0.4 -1.4, squares 0.36*3 + 0.16 + 1.96 = 3.2,
    # variance 3.2 / 4 = 0.8, deviation 0.894427191.
    arguments = (HAND_REWARDS, HAND_EPISODES, HAND_GROUPS)
    unscaled = episode_advantages(*arguments, scale_rewards="none", episode_baseline="turn")
    assert unscaled.tolist() == close([0.6, 0.6, 0.6, -0.4, -1.4])
    scaled = episode_advantages(*arguments, episode_baseline="turn")
    assert scaled.tolist() == pytest.approx([0.670820] * 3 + [-0.447213, -1.565246], abs=2e-6)


@given(layouts(), scales)
def test_episodes_of_equal_length_weigh_alike_under_either_baseline(layout, scale):
    length = 3
    episode_ids = [episode for episode in sorted(set(layout["episode_ids"])) for _ in range(length)]
    rewards = np.resize(layout["rewards"], len(episode_ids))
    group_ids = [group for group, _ in episode_ids]
    over_episodes = episode_advantages(rewards, episode_ids, group_ids, scale_rewards="none")
    over_turns = episode_advantages(
        rewards, episode_ids, group_ids, scale_rewards="none", episode_baseline="turn", single_score="keep"
    )
    assert over_turns.tolist() == close(over_episodes.tolist())


@pytest.mark.parametrize("scale, kept", [("none", 5.0), ("group", 5.0 / 1.000001)])
def test_single_score_is_a_single_episode_or_a_single_row(scale, kept):
    # One episode of two turns, return 2 + 3 = 5: one episode, but two rows.
    one_episode = ([2.0, 3.0], ["a", "a"], [0, 0])
    # One episode of one turn: one episode and one row.
    one_row = ([5.0], ["a"], [0])

    def advantages(arguments, baseline, single_score):
        result = episode_advantages(
            *arguments, scale_rewards=scale, episode_baseline=baseline, single_score=single_score
        )
        return result.tolist()

    assert advantages(one_episode, "episode", "zero") == [0.0, 0.0]
    assert advantages(one_episode, "episode", "keep") == pytest.approx([kept, kept], rel=1e-12)
    assert advantages(one_episode, "turn", "keep") == [0.0, 0.0]
    assert advantages(one_row, "turn", "zero") == [0.0]
    assert advantages(one_row, "turn", "keep") == pytest.approx([kept], rel=1e-12)


def test_single_score_is_kept_even_if_it_is_zero_or_tiny():
    result = episode_advantages([0.0, 1e-9], ["a", "b"], ["a", "b"], scale_rewards="none", single_score="keep")
    assert result.tolist() == [0.0, 1e-9]


def test_row_penalty_lowers_one_row_and_under_turn_baseline_the_statistics():
    # Returns: a = 2 (turns 0, 1), b = 0 (turn 2). Turn 1 loses 0.5.
    arguments = ([1.0, 1.0, 0.0], ["a", "a", "b"], [0, 0, 0])
    # Over the episodes (2, 0), mean 1: 2 - 1, 2 - 0.5 - 1, 0 - 1.
    over_episodes = episode_advantages(*arguments, scale_rewards="none", row_penalties=[0.0, 0.5, 0.0])
    assert over_episodes.tolist() == close([1.0, 0.5, -1.0])
    # Over the rows (2, 1.5, 0), mean 3.5 / 3.
    over_turns = episode_advantages(
        *arguments, scale_rewards="none", episode_baseline="turn", row_penalties=[0.0, 0.5, 0.0]
    )
    assert over_turns.tolist() == close([2 - 3.5 / 3, 1.5 - 3.5 / 3, -3.5 / 3])


@pytest.mark.parametrize("scale", ["group", "none"])
def test_row_penalty_in_a_group_of_equal_returns_has_no_scale_and_gives_zero(scale):
    result = episode_advantages(
        [1.0, 1.0, 2.0], ["a", "a", "b"], [0, 0, 0], scale_rewards=scale, row_penalties=[0.0, 0.1, 0.0]
    )
    assert result.tolist() == [0.0, 0.0, 0.0]


# step_advantages and anchor_buckets


@given(layouts(), scales)
def test_step_advantages_match_the_formula(layout, scale):
    arguments = (layout["rewards"], layout["group_ids"], layout["anchors"])
    result = step_advantages(*arguments, scale_rewards=scale)
    assert result.dtype == np.float64
    assert result.tolist() == close(oracle_step(*arguments, scale))


@given(layouts(anchors=TEXTS), scales, similarities)
def test_step_advantages_over_similar_texts_match_the_formula(layout, scale, similarity):
    arguments = (layout["rewards"], layout["group_ids"], layout["anchors"])
    result = step_advantages(*arguments, scale_rewards=scale, anchor_similarity=similarity)
    assert result.tolist() == close(oracle_step(*arguments, scale, similarity))


def test_step_advantages_by_hand():
    # Bucket (0, "s"): returns 4, 1, 1; mean 2, distances 2 -1 -1, variance (4 + 1 + 1) / 2 = 3, deviation 1.7320508.
    # Bucket (0, "t"): return 9, alone. Bucket (1, "s"): return 3, alone in its group.
    returns, groups, anchors = [4.0, 9.0, 1.0, 1.0, 3.0], [0, 0, 0, 0, 1], ["s", "t", "s", "s", "s"]
    unscaled = step_advantages(returns, groups, anchors, scale_rewards="none")
    assert unscaled.tolist() == [2.0, 0.0, -1.0, -1.0, 0.0]
    scaled = step_advantages(returns, groups, anchors)
    assert scaled.tolist() == pytest.approx([1.1546999, 0.0, -0.5773499, -0.5773499, 0.0], abs=1e-7)


@pytest.mark.parametrize("scale", ["group", "none"])
def test_bucket_of_one_gives_zero(scale):
    result = step_advantages([5.0, -3.0, 2.0], [0, 0, 1], ["s", "t", "s"], scale_rewards=scale)
    assert result.tolist() == [0.0, 0.0, 0.0]


def test_one_episode_meets_one_state_twice():
    # One episode: s, t, s with rewards 0, 0, 1 and gamma 0.5, so G = 0.25, 0.5, 1. The bucket of s is turns 0 and 2 of
    # the same episode: mean 0.625. The episode has no peer, so its own part is 0.
    result = gigpo_advantages([0.0, 0.0, 1.0], [0, 0, 0], [0, 0, 0], ["s", "t", "s"], gamma=0.5, scale_rewards="none")
    assert result.tolist() == [-0.375, 0.0, 0.375]


@given(layouts(), scales)
def test_step_advantages_of_a_bucket_sum_to_zero(layout, scale):
    result = step_advantages(layout["rewards"], layout["group_ids"], layout["anchors"], scale_rewards=scale)
    for bucket in oracle_buckets(layout["group_ids"], layout["anchors"]):
        assert sum(result[turn] for turn in bucket) == close(0.0)


@given(layouts(anchors=TEXTS), similarities)
def test_anchor_buckets_match_the_definition(layout, similarity):
    result = anchor_buckets(layout["group_ids"], layout["anchors"], anchor_similarity=similarity)
    expected = np.zeros(len(result), dtype=np.int64)
    for number, bucket in enumerate(oracle_buckets(layout["group_ids"], layout["anchors"], similarity)):
        expected[bucket] = number
    assert result.dtype == np.int64
    assert result.tolist() == expected.tolist()


@given(layouts())
def test_anchor_buckets_take_any_hashable(layout):
    result = anchor_buckets(layout["group_ids"], layout["anchors"]).tolist()
    for first, second in itertools.product(range(len(result)), repeat=2):
        alike = (layout["group_ids"][first], layout["anchors"][first]) == (
            layout["group_ids"][second],
            layout["anchors"][second],
        )
        assert (result[first] == result[second]) == alike


def test_anchor_buckets_by_hand():
    groups = ["x", "x", "y", "x", "y", "x"]
    anchors = [(0, 1), (1, 0), (0, 1), (0, 1), (0, 1), (1, 0)]
    assert anchor_buckets(groups, anchors).tolist() == [0, 1, 2, 0, 2, 1]


def test_anchors_are_equal_as_dictionary_keys_are():
    # 1 == 1.0 == True as keys, "1" is not.
    assert anchor_buckets([0] * 4, [1, 1.0, True, "1"]).tolist() == [0, 0, 0, 1]


def test_arrays_of_strings_numbers_and_objects_are_anchors():
    tuples = np.empty(3, dtype=object)
    tuples[:] = [(0, 1), (0, 2), (0, 1)]
    for anchors in (np.array(["a", "b", "a"]), np.array([4, 5, 4]), tuples):
        assert anchor_buckets(np.zeros(3), anchors).tolist() == [0, 1, 0]


def test_tensor_entries_are_compared_by_value():
    class Tensor:
        """Iterating a tensor gives objects that are hashed by identity."""

        ndim = 1

        def __init__(self, values):
            self.values = values

        def __iter__(self):
            return iter([object() for _ in self.values])

        def __len__(self):
            return len(self.values)

        def tolist(self):
            return self.values

    assert anchor_buckets(Tensor([3, 3, 4]), Tensor([1, 1, 1])).tolist() == [0, 0, 1]


def test_similar_texts_are_compared_with_the_first_member_only():
    # Ratios, twice the common subsequence over the sum of lengths: abcd-abce 2*3/8 = 0.75, abce-abfe 0.75,
    # abcd-abfe 2*2/8 = 0.5. So abfe resembles the second member of the first bucket but not the first.
    texts = ["abcd", "abce", "abfe", "abce"]
    assert anchor_buckets([0] * 4, texts, anchor_similarity=0.7).tolist() == [0, 0, 1, 0]
    assert anchor_buckets([0] * 4, texts, anchor_similarity=0.5).tolist() == [0, 0, 0, 0]
    assert anchor_buckets([0] * 4, texts, anchor_similarity=0.8).tolist() == [0, 1, 2, 1]


def test_similar_texts_join_the_first_match_not_the_best():
    # pqrstu and pqrxyz share pqr, 2*3/12 = 0.5. pqrxyu shares pqru with the first, 2*4/12 = 0.67, and pqrxy with the
    # second, 2*5/12 = 0.83.
    texts = ["pqrstu", "pqrxyz", "pqrxyu"]
    assert anchor_buckets([0] * 3, texts, anchor_similarity=0.6).tolist() == [0, 1, 0]


def test_similar_texts_of_different_groups_stay_apart():
    assert anchor_buckets([0, 1, 0], ["same", "same", "sane"], anchor_similarity=0.7).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "first, second, ratio",
    [("abcd", "abce", 6 / 8), ("abcde", "abcxy", 0.6), ("a", "abbbbbbbb", 0.2), ("a red door", "the garden", 0.3)],
)
def test_the_threshold_of_similarity_is_inclusive(first, second, ratio):
    # 2*3/8, 2*3/10, 2*1/10 and ("red" or "ard") 2*3/20: reached exactly, although one minus the distance may not be.
    assert anchor_buckets([0, 0], [first, second], anchor_similarity=ratio).tolist() == [0, 0]
    assert anchor_buckets([0, 0], [first, second], anchor_similarity=ratio + 1e-9).tolist() == [0, 1]


@given(st.text("abc ", max_size=12), st.text("abc ", max_size=12))
def test_texts_alike_to_difflib_are_alike_here(first, second):
    ratio = difflib.SequenceMatcher(None, first, second).ratio()
    assume(0 < ratio < 1)
    assert anchor_buckets([0, 0], [first, second], anchor_similarity=ratio).tolist() == [0, 0]


def test_texts_unlike_to_difflib_may_be_alike_here():
    # difflib takes the longest block, "###", and finds nothing to the same side of it in both: 2*3/20. The longest
    # common subsequence is "abcd", 2*4/20.
    first, second = "###a.b.c.d", "a-b-c-d###"
    ratio = difflib.SequenceMatcher(None, first, second).ratio()
    assert ratio == 2 * 3 / 20
    assert anchor_buckets([0, 0], [first, second], anchor_similarity=0.4).tolist() == [0, 0]


@given(st.lists(st.integers(0, 5), max_size=20))
def test_bucket_sizes_count_the_turns_of_each_bucket(buckets):
    result = bucket_sizes(buckets)
    assert result.dtype == np.int64
    assert result.tolist() == [buckets.count(bucket) for bucket in buckets]


# gigpo_advantages


@given(
    layouts(anchors=TEXTS),
    gammas,
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    scales,
    baselines,
    single_scores,
    st.sampled_from([0.0, 0.1, 1.0]),
    penalty_modes,
    similarities,
)
def test_gigpo_advantages_match_the_formula(
    layout, gamma, weight, scale, baseline, single_score, penalty, mode, similarity
):
    result = gigpo_advantages(
        *gigpo_arguments(layout),
        gamma=gamma,
        step_advantage_weight=weight,
        scale_rewards=scale,
        episode_baseline=baseline,
        single_score=single_score,
        invalid=layout["invalid"],
        invalid_action_penalty=penalty,
        invalid_penalty_mode=mode,
        anchor_similarity=similarity,
    )
    expected = oracle_gigpo(layout, gamma, weight, scale, baseline, single_score, penalty, mode, similarity)
    assert result.dtype == np.float64
    assert result.tolist() == close(expected)


@given(layouts())
def test_gigpo_defaults_are_the_papers(layout):
    result = gigpo_advantages(*gigpo_arguments(layout), invalid=layout["invalid"])
    expected = oracle_gigpo(layout, 0.95, 1.0, "group", "episode", "zero", 0.1, "reward", 1.0)
    assert result.tolist() == close(expected)


# Group 0, gamma 0.5, turn 1 invalid with penalty 0.1:
#   a: s, t, s with rewards 0, 0, 1;  b: s with reward 0.
PENALTY_LAYOUT = ([0.0, 0.0, 1.0, 0.0], ["a", "a", "a", "b"], [0, 0, 0, 0], ["s", "t", "s", "s"])
PENALTY_OPTIONS = {"gamma": 0.5, "scale_rewards": "none", "invalid": [False, True, False, False]}


def test_penalty_on_the_reward_by_hand():
    # Rewards 0, -0.1, 1 | 0. R = 0.9, 0; mean 0.45; A^E = 0.45 x3, -0.45.
    # G = 0 + 0.4/2 = 0.2, -0.1 + 1/2 = 0.4, 1 | 0. Bucket s: 0.2, 1, 0, mean 0.4: -0.2, 0.6, -0.4. Bucket t alone: 0.
    result = gigpo_advantages(*PENALTY_LAYOUT, **PENALTY_OPTIONS)
    assert result.tolist() == close([0.45 - 0.2, 0.45, 0.45 + 0.6, -0.45 - 0.4])


def test_penalty_on_the_row_by_hand():
    # R = 1, 0; mean 0.5; the row of turn 1 has 1 - 0.1. A^E = 0.5, 0.4, 0.5, -0.5.
    # G = 0.25, 0.5 - 0.1, 1 | 0: turn 0 does not feel the penalty of turn 1. Bucket s: 0.25, 1, 0, mean 1.25/3.
    result = gigpo_advantages(*PENALTY_LAYOUT, **PENALTY_OPTIONS, invalid_penalty_mode="row")
    mean = 1.25 / 3
    assert result.tolist() == close([0.5 + 0.25 - mean, 0.4, 0.5 + 1 - mean, -0.5 - mean])


def test_penalty_on_the_row_reaches_the_bucket_of_that_turn():
    # Two episodes of one turn in the same state, both with return 1, the second invalid: R equal, so A^E = 0.
    # Bucket: 1, 0.9; mean 0.95.
    result = gigpo_advantages(
        [1.0, 1.0], ["a", "b"], [0, 0], ["s", "s"], scale_rewards="none", invalid=[0, 1], invalid_penalty_mode="row"
    )
    assert result.tolist() == close([0.05, -0.05])


def test_rules_of_the_reference_by_hand():
    # verl-agent's choices together: rows as baseline, row penalty, single score kept.
    # Group 0 as above. Row scores 1, 0.9, 1, 0: mean 2.9/4 = 0.725, distances 0.275 0.175 0.275 -0.725,
    # squares 0.075625 + 0.030625 + 0.075625 + 0.525625 = 0.7075, variance 0.7075/3 = 0.2358333, deviation 0.4856267.
    # A^E, with 1e-6 added to that: 0.566277, 0.360358, 0.566277, -1.492913.
    # Step returns after the penalty: 0.25, 0.4, 1 | 0. Bucket s (0.25, 1, 0): mean 0.4166667, distances -0.1666667
    # 0.5833333 -0.4166667, squares 0.0277778 + 0.3402778 + 0.1736111 = 0.5416667, deviation 0.5204165.
    # A^S, likewise: -0.320256, 0, 1.120895, -0.800639.
    # Group 1 is one episode of one turn, reward 2, invalid: one row, its score 2 - 0.1 is kept, over 1 + 1e-6.
    rewards, episodes, groups, anchors = PENALTY_LAYOUT
    result = gigpo_advantages(
        [*rewards, 2.0],
        [*episodes, "c"],
        [*groups, 1],
        [*anchors, "s"],
        gamma=0.5,
        scale_rewards="group",
        episode_baseline="turn",
        single_score="keep",
        invalid=[False, True, False, False, True],
        invalid_action_penalty=0.1,
        invalid_penalty_mode="row",
    )
    expected = [0.566277 - 0.320256, 0.360358, 0.566277 + 1.120895, -1.492913 - 0.800639, 1.899998]
    assert result.tolist() == pytest.approx(expected, abs=2e-6)


@given(layouts(), scales, baselines)
def test_without_step_weight_only_the_episode_part_is_left(layout, scale, baseline):
    options = {"scale_rewards": scale, "episode_baseline": baseline}
    result = gigpo_advantages(*gigpo_arguments(layout), step_advantage_weight=0, **options)
    assert result.tolist() == episode_advantages(*episode_arguments(layout), **options).tolist()


@given(layouts(), scales)
def test_step_weight_multiplies_the_step_part(layout, scale):
    arguments = gigpo_arguments(layout)
    nothing, once, thrice = (
        gigpo_advantages(*arguments, step_advantage_weight=weight, scale_rewards=scale) for weight in (0, 1, 3)
    )
    assert (thrice - nothing).tolist() == close((3 * (once - nothing)).tolist())


@given(layouts())
def test_no_invalid_turns_is_the_same_as_not_saying(layout):
    arguments = gigpo_arguments(layout)
    plain = gigpo_advantages(*arguments).tolist()
    assert gigpo_advantages(*arguments, invalid=[False] * len(plain)).tolist() == plain
    assert gigpo_advantages(*arguments, invalid=layout["invalid"], invalid_action_penalty=0).tolist() == plain


@given(layouts(anchors=TEXTS), similarities)
def test_bucket_numbers_may_stand_in_for_anchors(layout, similarity):
    buckets = anchor_buckets(layout["group_ids"], layout["anchors"], anchor_similarity=similarity)
    direct = gigpo_advantages(*gigpo_arguments(layout), anchor_similarity=similarity)
    assert gigpo_advantages(*episode_arguments(layout), buckets).tolist() == direct.tolist()


# What may change without changing credit, and what may not


def reordered(layout, order):
    return {name: [values[turn] for turn in order] for name, values in layout.items()}


@given(layouts(), st.data(), scales, baselines, penalty_modes)
def test_order_of_episodes_does_not_matter(layout, data, scale, baseline, mode):
    shuffled_ids = data.draw(st.permutations(layout["episode_ids"]))
    turns = {episode: iter([]) for episode in shuffled_ids}
    for episode in turns:
        turns[episode] = iter([turn for turn, other in enumerate(layout["episode_ids"]) if other == episode])
    order = [next(turns[episode]) for episode in shuffled_ids]
    other = reordered(layout, order)
    options = {"scale_rewards": scale, "episode_baseline": baseline, "invalid_penalty_mode": mode}
    before = gigpo_advantages(*gigpo_arguments(layout), invalid=layout["invalid"], **options)
    after = gigpo_advantages(*gigpo_arguments(other), invalid=other["invalid"], **options)
    assert after.tolist() == close(before[order].tolist())


@given(layouts(), scales, baselines)
def test_names_of_episodes_groups_and_anchors_do_not_matter(layout, scale, baseline):
    options = {"scale_rewards": scale, "episode_baseline": baseline}
    before = gigpo_advantages(*gigpo_arguments(layout), **options)
    renamed = (
        layout["rewards"],
        [f"episode {episode}" for episode in layout["episode_ids"]],
        np.array([int(group.removeprefix("group ")) + 40 for group in layout["group_ids"]]),
        [("state", anchor) for anchor in layout["anchors"]],
    )
    assert gigpo_advantages(*renamed, **options).tolist() == before.tolist()


@given(layouts(anchors=TEXTS), st.data(), scales, baselines, penalty_modes, similarities)
def test_groups_do_not_influence_each_other(layout, data, scale, baseline, mode, similarity):
    group = data.draw(st.sampled_from(layout["group_ids"]))
    kept = [turn for turn, other in enumerate(layout["group_ids"]) if other == group]
    alone = reordered(layout, kept)
    options = {
        "scale_rewards": scale,
        "episode_baseline": baseline,
        "invalid_penalty_mode": mode,
        "anchor_similarity": similarity,
    }
    together = gigpo_advantages(*gigpo_arguments(layout), invalid=layout["invalid"], **options)
    separate = gigpo_advantages(*gigpo_arguments(alone), invalid=alone["invalid"], **options)
    assert separate.tolist() == together[kept].tolist()


def with_final_rewards(layout, amount):
    rewards = list(layout["rewards"])
    last = {episode: turn for turn, episode in enumerate(layout["episode_ids"])}
    for turn in last.values():
        rewards[turn] += amount
    return {**layout, "rewards": rewards}


@given(layouts(), st.sampled_from([-3.0, 0.7, 20.0]), scales, baselines)
def test_a_constant_at_the_end_of_every_episode_shifts_all_returns_alike(layout, amount, scale, baseline):
    # Every R moves by the amount; undiscounted, every G does too. Discounted, turns of one bucket at different
    # distances from the end move by different amounts, so only the episode part is unchanged then.
    options = {"scale_rewards": scale, "episode_baseline": baseline}
    shifted = with_final_rewards(layout, amount)
    before = episode_advantages(*episode_arguments(layout), **options)
    assert episode_advantages(*episode_arguments(shifted), **options).tolist() == close(before.tolist())
    before = gigpo_advantages(*gigpo_arguments(layout), gamma=1, **options)
    assert gigpo_advantages(*gigpo_arguments(shifted), gamma=1, **options).tolist() == close(before.tolist())


def test_a_constant_at_the_end_changes_discounted_step_parts():
    arguments = ([0, 0, 0], ["a", "a", "b"], [0, 0, 0], ["s", "t", "s"])
    options = {"gamma": 0.5, "scale_rewards": "none"}
    assert gigpo_advantages(*arguments, **options).tolist() == [0.0, 0.0, 0.0]
    # One more at each end: G of turn 0 is 0.5, of turn 2 is 1, in one bucket of mean 0.75.
    assert gigpo_advantages([0, 1, 1], *arguments[1:], **options).tolist() == [-0.25, 0.0, 0.25]


@given(st.integers(1, 4), st.data(), scales, baselines)
def test_a_constant_on_every_reward_is_no_credit_among_episodes_of_equal_length(length, data, scale, baseline):
    count = 4 * length
    rewards = np.array(data.draw(st.lists(st.sampled_from(REWARDS), min_size=count, max_size=count)))
    episode_ids, group_ids = np.arange(count) % 4, np.zeros(count)
    options = {"scale_rewards": scale, "episode_baseline": baseline}
    before = episode_advantages(rewards, episode_ids, group_ids, **options)
    after = episode_advantages(rewards + 0.5, episode_ids, group_ids, **options)
    assert after.tolist() == close(before.tolist())


def test_a_constant_on_every_reward_favours_longer_episodes():
    # Two turns against one, all rewards 0, then all 1: returns 0, 0 become 2, 1.
    assert episode_advantages([0, 0, 0], [0, 0, 1], [0, 0, 0], scale_rewards="none").tolist() == [0.0, 0.0, 0.0]
    assert episode_advantages([1, 1, 1], [0, 0, 1], [0, 0, 0], scale_rewards="none").tolist() == [0.5, 0.5, -0.5]


@given(layouts(), st.sampled_from([2.0, 10.0, 1000.0]), baselines)
def test_units_of_reward_cancel_when_scaled_and_stay_otherwise(layout, factor, baseline):
    rewards = [reward * factor for reward in layout["rewards"]]
    rest = gigpo_arguments(layout)[1:]
    unscaled = [
        gigpo_advantages(values, *rest, scale_rewards="none", episode_baseline=baseline)
        for values in (layout["rewards"], rewards)
    ]
    assert unscaled[1].tolist() == pytest.approx((factor * unscaled[0]).tolist(), rel=1e-9, abs=1e-8 * factor)
    # The offset in the divisor is 1e-6 against deviations of at least 1e-3 here, hence the tolerance.
    scaled = [
        gigpo_advantages(values, *rest, gamma=1, episode_baseline=baseline) for values in (layout["rewards"], rewards)
    ]
    assert scaled[1].tolist() == pytest.approx(scaled[0].tolist(), rel=1e-3, abs=1e-3)


@given(layouts(), baselines)
def test_turning_rewards_round_turns_credit_round(layout, baseline):
    before = gigpo_advantages(*gigpo_arguments(layout), episode_baseline=baseline)
    negated = [-reward for reward in layout["rewards"]]
    after = gigpo_advantages(negated, *gigpo_arguments(layout)[1:], episode_baseline=baseline)
    assert after.tolist() == close((-before).tolist())


@given(layouts(), st.floats(0.1, 5.0))
def test_credit_goes_to_the_better_episode(layout, extra):
    group = layout["group_ids"][0]
    assume(len({e for e, g in zip(layout["episode_ids"], layout["group_ids"], strict=True) if g == group}) > 1)
    before = episode_advantages(*episode_arguments(layout), scale_rewards="none")
    rewards = [layout["rewards"][0] + extra, *layout["rewards"][1:]]
    after = episode_advantages(rewards, *episode_arguments(layout)[1:], scale_rewards="none")
    assert after[0] > before[0]


# Equal returns


@pytest.mark.parametrize("parts", [(0.1, 0.2, 0.3), (0.1e9 + 0.1, 0.2e9 + 0.2, 0.3e9 + 0.3)])
@pytest.mark.parametrize("scale", ["group", "none"])
@pytest.mark.parametrize("baseline", ["episode", "turn"])
def test_equal_returns_that_differ_by_rounding_give_exactly_zero(scale, baseline, parts):
    # Seven episodes earn the same three rewards in different orders: one return, but two sums in floating point. For
    # the larger rewards the rounding is larger too, and small only relative to the mean.
    rewards = np.array([*itertools.permutations(parts), parts]).ravel()
    episode_ids = np.repeat(np.arange(7), 3)
    sums = np.bincount(episode_ids, weights=rewards)
    assert len(set(sums)) > 1
    options = {"scale_rewards": scale, "episode_baseline": baseline}
    assert episode_advantages(rewards, episode_ids, np.zeros(21), **options).tolist() == [0.0] * 21
    anchors = ["start", "s", "t"] * 7
    result = gigpo_advantages(rewards, episode_ids, np.zeros(21), anchors, gamma=1, **options)
    assert result[::3].tolist() == [0.0] * 7


@pytest.mark.parametrize("scale", ["group", "none"])
def test_step_returns_that_differ_by_rounding_give_exactly_zero(scale):
    returns = [0.1 + 0.2, 0.3] * 7
    assert len(set(returns)) == 2
    assert step_advantages(returns, [0] * 14, ["s"] * 14, scale_rewards=scale).tolist() == [0.0] * 14


@pytest.mark.parametrize(
    "returns, is_flat",
    [
        # Two values, difference d: deviation d / sqrt(2). Absolute below a mean of 1, relative above.
        ([0.0, 1.2e-8], True),
        ([0.0, 1.6e-8], False),
        ([1000.0, 1000.0 + 1.2e-5], True),
        ([1000.0, 1000.0 + 1.6e-5], False),
        ([-1000.0, -1000.0 - 1.2e-5], True),
        ([-1000.0, -1000.0 - 1.6e-5], False),
    ],
)
@pytest.mark.parametrize("scale", ["group", "none"])
def test_where_zero_variance_ends(returns, is_flat, scale):
    step_part = step_advantages(returns, [0, 0], ["s", "s"], scale_rewards=scale)
    episode_part = episode_advantages(returns, [0, 1], [0, 0], scale_rewards=scale)
    assert (step_part == 0).all() == is_flat
    assert (episode_part == 0).all() == is_flat


@given(layouts(), st.sampled_from(REWARDS), scales, baselines)
def test_equal_returns_give_zero(layout, final, scale, baseline):
    # Only the end of an episode is rewarded, always alike.
    layout = with_final_rewards({**layout, "rewards": [0.0] * len(layout["rewards"])}, final)
    options = {"scale_rewards": scale, "episode_baseline": baseline}
    result = gigpo_advantages(*gigpo_arguments(layout), gamma=1, **options)
    assert result.tolist() == [0.0] * len(result)


# Cost: how often ids and anchors are looked at, not how long it takes


class Counted:
    """A value that counts how often it is hashed or compared."""

    looks = 0

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        Counted.looks += 1
        return hash(self.value)

    def __eq__(self, other):
        Counted.looks += 1
        return self.value == other.value


def looks_at(num_turns):
    """How often ids and anchors of a rollout of this many turns are looked at: 10 turns an episode, 10 states."""
    turns = np.arange(num_turns)
    # New objects at every turn, or equality would be settled by identity.
    episode_ids, group_ids, anchors = (
        [Counted(int(value)) for value in values] for values in (turns // 10, turns // 40, turns % 10)
    )
    Counted.looks = 0
    gigpo_advantages(np.zeros(num_turns), episode_ids, group_ids, anchors)
    return Counted.looks


def test_cost_is_linear_in_the_turns():
    looks = [looks_at(num_turns) for num_turns in (1_000, 2_000, 4_000)]
    # Not exactly twice: integers that share a slot of the dictionary are compared, and a growing table hashes nothing.
    assert looks[1] <= 2.1 * looks[0]
    assert looks[2] <= 2.1 * looks[1]
    assert looks[0] <= 20 * 1_000


# Bad input


GOOD = {"rewards": [0.0, 1.0], "episode_ids": ["a", "b"], "group_ids": [0, 0], "anchors": ["s", "s"]}


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"gamma": 1.5}, ValueError, ["gamma", "1.5", "[0, 1]"]),
        ({"gamma": -0.1}, ValueError, ["gamma", "-0.1"]),
        ({"gamma": float("nan")}, ValueError, ["gamma", "nan"]),
        ({"step_advantage_weight": -1.0}, ValueError, ["step_advantage_weight", "-1.0", "at least 0"]),
        ({"step_advantage_weight": float("inf")}, ValueError, ["step_advantage_weight", "inf"]),
        ({"invalid_action_penalty": -0.1}, ValueError, ["invalid_action_penalty", "-0.1"]),
        ({"invalid_action_penalty": float("nan")}, ValueError, ["invalid_action_penalty", "nan"]),
        ({"scale_rewards": "batch"}, ValueError, ["scale_rewards", "'batch'", "'group', 'none'"]),
        ({"scale_rewards": True}, ValueError, ["scale_rewards", "True", "'group', 'none'"]),
        ({"episode_baseline": "row"}, ValueError, ["episode_baseline", "'row'", "'episode', 'turn'"]),
        ({"single_score": "drop"}, ValueError, ["single_score", "'drop'", "'zero', 'keep'"]),
        ({"invalid_penalty_mode": "turn"}, ValueError, ["invalid_penalty_mode", "'turn'", "'reward', 'row'"]),
        ({"anchor_similarity": 0.0}, ValueError, ["anchor_similarity", "0.0", "(0, 1]"]),
        ({"anchor_similarity": 1.01}, ValueError, ["anchor_similarity", "1.01"]),
        ({"anchor_similarity": float("nan")}, ValueError, ["anchor_similarity", "nan"]),
        ({"rewards": [0.0, float("nan")]}, ValueError, ["rewards", "nan", "turn 1"]),
        ({"rewards": [float("-inf"), float("nan")]}, ValueError, ["rewards", "-inf", "turn 0"]),
        ({"rewards": [0.0, None]}, ValueError, ["rewards", "nan", "turn 1"]),
        ({"rewards": ["much", 1.0]}, TypeError, ["rewards", "much"]),
        ({"rewards": [[0.0, 1.0]]}, ValueError, ["rewards", "flat", "(1, 2)"]),
        ({"episode_ids": ["a"]}, ValueError, ["episode_ids", "1 entries", "rewards", "2"]),
        ({"group_ids": [0, 0, 0]}, ValueError, ["group_ids", "3 entries", "rewards", "2"]),
        ({"anchors": ["s"]}, ValueError, ["anchors", "1 entries", "group_ids", "2"]),
        ({"invalid": [True]}, ValueError, ["invalid", "1 entries", "rewards", "2"]),
        ({"invalid": [False, 0.1]}, ValueError, ["invalid", "0.1", "turn 1", "invalid_action_penalty"]),
        ({"episode_ids": ["a", "a"], "group_ids": [0, 1]}, ValueError, ["episode_ids", "'a'", "group_ids", "unique"]),
        ({"anchors": ["s", ["t"]]}, TypeError, ["anchors", "['t']", "list", "turn 1", "tuple"]),
        ({"episode_ids": ["a", {}]}, TypeError, ["episode_ids", "{}", "dict", "turn 1"]),
        ({"group_ids": [[0], 0]}, TypeError, ["group_ids", "[0]", "list", "turn 0"]),
        ({"anchors": np.zeros((2, 3))}, ValueError, ["anchors", "(2, 3)", "tuples"]),
        (
            {"anchors": ["s", (1, 2)], "anchor_similarity": 0.9},
            TypeError,
            ["anchors", "(1, 2)", "tuple", "turn 1", "0.9"],
        ),
    ],
)
def test_bad_input_is_named_with_its_value_and_a_remedy(change, error, words):
    with pytest.raises(error) as caught:
        gigpo_advantages(**{**GOOD, **change})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: step_returns([0.0, float("nan")], [0, 0]),
        lambda: step_returns([0.0], [0, 0]),
        lambda: step_returns([0.0], [0], gamma=2),
        lambda: episode_advantages([0.0, float("inf")], [0, 0], [0, 0]),
        lambda: episode_advantages([0.0, 1.0], [0, 0], [0]),
        lambda: episode_advantages([0.0, 1.0], [0, 0], [0, 1]),
        lambda: episode_advantages([0.0, 1.0], [0, 1], [0, 0], row_penalties=[0.0]),
        lambda: episode_advantages([0.0, 1.0], [0, 1], [0, 0], row_penalties=[0.0, float("nan")]),
        lambda: step_advantages([float("nan")], [0], ["s"]),
        lambda: step_advantages([0.0], [0, 0], ["s", "s"]),
        lambda: step_advantages([0.0], [0], ["s"], scale_rewards="std"),
        lambda: anchor_buckets([0], ["s", "t"]),
        lambda: anchor_buckets([0], ["s"], anchor_similarity=2),
    ],
)
def test_every_function_checks_its_own_input(call):
    with pytest.raises(ValueError):
        call()


def test_an_episode_that_changes_group_half_way_is_found():
    with pytest.raises(ValueError, match="'b'"):
        episode_advantages([0.0] * 4, ["a", "b", "a", "b"], [0, 0, 0, 1])


@pytest.mark.parametrize("empty", [[], np.array([])])
@pytest.mark.parametrize("similarity", [1.0, 0.9])
def test_nothing_gives_nothing(empty, similarity):
    results = [
        step_returns(empty, empty),
        episode_advantages(empty, empty, empty),
        episode_advantages(empty, empty, empty, episode_baseline="turn", single_score="keep"),
        step_advantages(empty, empty, empty, anchor_similarity=similarity),
        gigpo_advantages(empty, empty, empty, empty, invalid=empty, anchor_similarity=similarity),
    ]
    for result in results:
        assert result.dtype == np.float64
        assert result.shape == (0,)
    for result in (anchor_buckets(empty, empty, anchor_similarity=similarity), bucket_sizes(empty)):
        assert result.dtype == np.int64
        assert result.shape == (0,)


def test_input_is_left_alone():
    arrays = {name: np.array(values) for name, values in GOOD.items()}
    copies = {name: values.copy() for name, values in arrays.items()}
    for mode in ("reward", "row"):
        gigpo_advantages(**arrays, invalid=np.array([True, False]), invalid_penalty_mode=mode)
    for name, values in arrays.items():
        assert values.tolist() == copies[name].tolist()


def test_single_precision_input_is_computed_in_double():
    rewards = np.array([0.1, 0.2, 0.7], dtype=np.float32)
    single = gigpo_advantages(rewards, [0, 1, 2], [0, 0, 0], ["s"] * 3)
    double = gigpo_advantages(rewards.astype(np.float64), [0, 1, 2], [0, 0, 0], ["s"] * 3)
    assert single.dtype == np.float64
    assert single.tolist() == double.tolist()


# What is needed to use it


def test_without_rapidfuzz_similarity_names_the_package_and_equality_works(monkeypatch):
    for name in ("rapidfuzz", "rapidfuzz.distance"):
        monkeypatch.setitem(sys.modules, name, None)
    assert anchor_buckets([0, 0], ["s", "s"]).tolist() == [0, 0]
    with pytest.raises(ImportError, match="pip install rapidfuzz"):
        anchor_buckets([0, 0], ["s", "s"], anchor_similarity=0.9)


def test_importing_the_module_needs_numpy_only():
    # Loaded by path, so that only this module is looked at, and in a new process, where nothing is imported yet.
    path = importlib.util.find_spec(advantages_module.__name__).origin
    program = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('advantages', {path!r})\n"
        "spec.loader.exec_module(importlib.util.module_from_spec(spec))\n"
        "print(sorted({'torch', 'trl', 'transformers', 'rapidfuzz', 'trl_agentpo'} & set(sys.modules)))\n"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
