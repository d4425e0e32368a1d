# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""Flat arrays over turns, and the weights of a mean, compared with plain loops over the episodes."""

from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_agentpo.episode import Episode, Turn
from trl_agentpo.turns import TurnArrays, concatenate, flatten, normalization_weights


def turn(
    reward: float = 0.0, tokens: int = 1, valid: bool = True, cut: bool = False, anchor: Hashable = "a room"
) -> Turn:
    return Turn("", anchor, [1], [2] * tokens, "", reward=reward, valid=valid, cut=cut)


def episode(*turns: Turn, error: str | None = None) -> Episode:
    return Episode(seed=0, turns=list(turns), error=error)


turn_strategy = st.builds(
    turn,
    reward=st.integers(-8, 8).map(float),
    tokens=st.integers(0, 5),
    valid=st.booleans(),
    cut=st.booleans(),
    anchor=st.sampled_from(["hall", (1, 2), None]),
)
episode_strategy = st.builds(
    lambda turns, error: Episode(seed=0, turns=turns, error=error),
    st.lists(turn_strategy, max_size=4),
    st.sampled_from([None, None, "OSError: x"]),
)


def as_lists(turns: TurnArrays) -> dict[str, list]:
    return {name: list(values) for name, values in vars(turns).items()}


# Flattening


def test_turns_by_hand() -> None:
    episodes = [
        episode(turn(0.5, 3, anchor="hall"), turn(1.0, 2, valid=False, anchor=(1, 2))),
        episode(turn(9.0), error="OSError: no connection"),
        episode(turn(-1.0, 4, cut=True)),
    ]
    turns = flatten(episodes, extra_rewards=[[4.0, 10.0], [20.0], [30.0]], first_episode=7, num_generations=4)
    assert as_lists(turns) == {
        "rewards": [4.5, 11.0, 29.0],
        "episode_ids": [7, 7, 9],
        # Episodes 4 to 7 are a group, which began in another process, and 8 to 11 are the next.
        "group_ids": [1, 1, 2],
        "anchors": ["hall", (1, 2), "a room"],
        "invalid": [False, True, False],
        "num_tokens": [3, 2, 4],
    }
    assert len(turns) == 3


@given(st.lists(episode_strategy, max_size=5), st.integers(0, 20), st.integers(1, 4), st.booleans(), st.data())
def test_turns_agree_with_a_loop_over_episodes(
    episodes: list[Episode], first: int, num_generations: int, skip_cut: bool, data: st.DataObject
) -> None:
    extra = [[float(data.draw(st.integers(-5, 5))) for _ in one.turns] for one in episodes]
    expected: dict[str, list] = {name: [] for name in TurnArrays.__dataclass_fields__}
    for number, one in enumerate(episodes):
        for position, t in enumerate(one.turns if one.error is None else []):
            expected["rewards"].append(t.reward + extra[number][position])
            expected["episode_ids"].append(first + number)
            expected["group_ids"].append((first + number) // num_generations)
            expected["anchors"].append(t.anchor)
            expected["invalid"].append(not t.valid)
            expected["num_tokens"].append(0 if skip_cut and t.cut else len(t.completion_ids))
    assert as_lists(flatten(episodes, extra, first, num_generations, skip_cut)) == expected


def test_flattening_changes_no_episode() -> None:
    one = episode(turn(0.5), turn(1.0))
    flatten([one], [[10.0, 3.0]], 0, 2)
    assert [t.reward for t in one.turns] == [0.5, 1.0]


@pytest.mark.parametrize("episodes", [[], [episode()], [episode(turn(), error="OSError: x")]])
def test_without_turns_the_arrays_are_empty_and_of_the_same_types(episodes: list[Episode]) -> None:
    empty, full = (
        flatten(episodes, [[1.0] * len(e.turns) for e in episodes], 0, 2),
        flatten([episode(turn())], [[1.0]], 0, 2),
    )
    assert len(empty) == 0
    for name, values in vars(empty).items():
        assert len(values) == 0
        assert name == "anchors" or values.dtype == getattr(full, name).dtype


@given(st.lists(episode_strategy, max_size=9), st.integers(1, 4), st.booleans(), st.data())
def test_the_parts_of_several_processes_are_what_one_process_has(
    episodes: list[Episode], num_generations: int, skip_cut: bool, data: st.DataObject
) -> None:
    extra = [[n + 0.1 * m for m, _ in enumerate(one.turns)] for n, one in enumerate(episodes)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(episodes)), max_size=3)))
    bounds = list(zip([0, *cuts], [*cuts, len(episodes)], strict=True))
    parts = [flatten(episodes[start:end], extra[start:end], start, num_generations, skip_cut) for start, end in bounds]
    whole = flatten(episodes, extra, 0, num_generations, skip_cut)
    together = concatenate(parts)
    assert as_lists(together) == as_lists(whole)
    for name, values in vars(whole).items():
        assert name == "anchors" or getattr(together, name).dtype == values.dtype


# Normalisation


def arrays(num_tokens: Sequence[int], episode_ids: Sequence[int]) -> TurnArrays:
    count = len(num_tokens)
    return TurnArrays(
        rewards=np.zeros(count),
        episode_ids=np.array(episode_ids, dtype=np.int64),
        group_ids=np.zeros(count, dtype=np.int64),
        anchors=[None] * count,
        invalid=np.zeros(count, dtype=bool),
        num_tokens=np.array(num_tokens, dtype=np.int64),
    )


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def mean_by_loops(losses: list[list[float]], episode_ids: list[int], loss_normalization: str) -> float:
    """The mean over tokens, over turns of their means, or over episodes of theirs; what has no tokens is in none."""
    if loss_normalization == "token":
        return mean([loss for turn_losses in losses for loss in turn_losses])
    if loss_normalization == "turn":
        return mean([mean(turn_losses) for turn_losses in losses if turn_losses])
    by_episode: dict[int, list[float]] = {}
    for number, turn_losses in zip(episode_ids, losses, strict=True):
        by_episode.setdefault(number, []).extend(turn_losses)
    return mean([mean(episode_losses) for episode_losses in by_episode.values() if episode_losses])


@given(
    st.lists(
        st.tuples(st.lists(st.integers(-50, 50).map(float), max_size=5), st.sampled_from([3, 4, 11])),
        min_size=1,
        max_size=8,
    ).filter(lambda turns: any(losses for losses, _ in turns)),
    st.sampled_from(["token", "turn", "episode"]),
)
def test_weights_turn_the_mean_over_tokens_into_the_mean_asked_for(
    turns: list[tuple[list[float], int]], loss_normalization: str
) -> None:
    losses, episode_ids = [losses for losses, _ in turns], sorted(number for _, number in turns)
    weights = normalization_weights(arrays([len(part) for part in losses], episode_ids), loss_normalization)
    weighted = [weight * loss for weight, part in zip(weights, losses, strict=True) for loss in part]
    assert mean(weighted) == pytest.approx(mean_by_loops(losses, episode_ids, loss_normalization), rel=1e-9, abs=1e-9)
    assert np.all(weights > 0)


def test_weights_by_hand() -> None:
    turns = arrays([1, 3, 4, 0], [0, 0, 5, 6])
    assert normalization_weights(turns, "token").tolist() == [1, 1, 1, 1]
    # 8 tokens in 3 turns that have any: 8/3 on average.
    assert normalization_weights(turns, "turn")[:3] == pytest.approx([8 / 3, 8 / 9, 2 / 3])
    # 8 tokens in 2 episodes that have any: 4 on average, and both have 4.
    assert normalization_weights(turns, "episode")[:3].tolist() == [1, 1, 1]


@pytest.mark.parametrize("loss_normalization", ["token", "turn", "episode"])
def test_nothing_to_train_on_gives_finite_weights(loss_normalization: str) -> None:
    assert normalization_weights(arrays([], []), loss_normalization).shape == (0,)
    assert np.all(np.isfinite(normalization_weights(arrays([0, 0], [0, 1]), loss_normalization)))
