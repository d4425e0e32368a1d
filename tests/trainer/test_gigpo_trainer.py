# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""GiGPO's credit on the tokens of the loss, its options, and what is logged of its buckets."""

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Corridor
from trainer_support import (
    assert_same_rows,
    expected_rows,
    gigpo_credit,
    group_relative,
    loss_rows,
    make_args,
    make_trainer,
    played_episodes,
    spy,
    training_logs,
    walk_by_length,
)

from trl_agentpo import AgentGRPOTrainer, GiGPOConfig, GiGPOTrainer
from trl_agentpo.advantages import gigpo_advantages
from trl_agentpo.turns import TurnArrays


@pytest.mark.parametrize("context", ["window", "full_history"])
@pytest.mark.parametrize(
    ("gamma", "weight", "scale_rewards"), [(0.95, 1.0, "group"), (0.5, 2.0, "none"), (0.0, 0.5, "group")]
)
def test_every_sampled_token_has_the_advantage_of_its_turn(
    random_model: str, tmp_path: Path, context: str, gamma: float, weight: float, scale_rewards: str
) -> None:
    trainer = make_trainer(
        GiGPOTrainer,
        random_model,
        tmp_path,
        context=context,
        gamma=gamma,
        step_advantage_weight=weight,
        scale_rewards=scale_rewards,
    )
    batches = played_episodes(trainer)
    losses = spy(trainer, "_compute_loss")
    trainer.train()
    (episodes,) = batches
    credit = gigpo_credit(episodes, gamma, weight, scale_rewards == "group")
    # The turns of an episode differ in credit: that is what GiGPO is for.
    assert any(max(values) - min(values) > 0.1 for values in credit)
    rows = [row for (_, inputs), _ in losses for row in loss_rows(inputs)]
    assert_same_rows(rows, expected_rows(episodes, credit, merged=context == "full_history"))
    assert list(trainer._logs["advantages"]) == pytest.approx([np.mean(values) for values in credit], abs=1e-6)


# Two groups of two episodes. Buckets: in group 0 a has three turns and b two; in group 1 a and e have one, and d four.
TURNS = TurnArrays(
    rewards=np.array([0.0, 0.5, 1.0, 0.0, 0.25, 0.0, 0.0, 1.0, 0.0, 2.0, 0.5]),
    episode_ids=np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3]),
    group_ids=np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]),
    anchors=["aaaa", "bbbb", "aaaa", "aaaa", "bbbb", "aaaa", "dddd", "dddd", "dddd", "dddd", "eeed"],
    invalid=np.array([True, False, False, False, True, False, False, False, True, False, False]),
    num_tokens=np.ones(11, dtype=np.int64),
)


@pytest.fixture(scope="module")
def trainer(random_model: str, tmp_path_factory: pytest.TempPathFactory) -> GiGPOTrainer:
    return make_trainer(GiGPOTrainer, random_model, tmp_path_factory.mktemp("gigpo"))


def logged_by(trainer: GiGPOTrainer, turns: TurnArrays) -> dict[str, float]:
    """The means of what the trainer logs of a batch."""
    trainer.model.train()
    trainer._metrics["train"].clear()
    trainer.compute_advantages(turns)
    return {name: float(np.mean(values)) for name, values in trainer._metrics["train"].items() if values}


def test_buckets_are_logged(trainer: GiGPOTrainer) -> None:
    logs = logged_by(trainer, TURNS)
    assert logs["anchors/shared_turns"] == pytest.approx(9 / 11)
    assert logs["anchors/mean_bucket_size"] == pytest.approx(11 / 5)
    assert logs["anchors/buckets_of_1"] == pytest.approx(2 / 5)
    assert logs["anchors/buckets_of_2-3"] == pytest.approx(2 / 5)
    assert logs["anchors/buckets_of_4-7"] == pytest.approx(1 / 5)
    assert logs["anchors/buckets_of_8+"] == 0


def test_both_levels_are_logged_on_their_own(trainer: GiGPOTrainer) -> None:
    logs = logged_by(trainer, TURNS)
    # Returns less the penalty of 0.1: (1.4, 0.15) and (2.9, 0.5). With two episodes, A is ± half the difference over std + ε.
    episode_level = []
    for (high, low), turns in (((1.4, 0.15), 5), ((2.9, 0.5), 6)):
        half = (high - low) / 2
        episode_level += [half / (math.sqrt(2) * half + 1e-6)] * turns
    assert logs["advantages/episode_mean_abs"] == pytest.approx(np.mean(episode_level))
    # Step returns in the three buckets that have more than one turn.
    gamma = 0.95
    of_a = [-0.1 + 0.5 * gamma + gamma**2, 1.0, 0.15 * gamma]
    of_b = [0.5 + gamma, 0.15]
    of_d = [gamma - 0.1 * gamma**2 + 2 * gamma**3, 1 - 0.1 * gamma + 2 * gamma**2, -0.1 + 2 * gamma, 2.0]
    step_level = np.abs(group_relative(of_a) + group_relative(of_b) + group_relative(of_d)).sum() / 11
    assert logs["advantages/step_mean_abs"] == pytest.approx(step_level)


def test_no_turns_log_nothing(trainer: GiGPOTrainer) -> None:
    empty = TurnArrays(*(np.zeros(0), np.zeros(0, int), np.zeros(0, int)), [], np.zeros(0, bool), np.zeros(0, int))
    assert logged_by(trainer, empty) == {}


def test_without_step_level_it_is_grpo(random_model: str, tmp_path: Path) -> None:
    gigpo = make_trainer(GiGPOTrainer, random_model, tmp_path, step_advantage_weight=0.0)
    grpo = make_trainer(AgentGRPOTrainer, random_model, tmp_path)
    np.testing.assert_allclose(gigpo.compute_advantages(TURNS), grpo.compute_advantages(TURNS), rtol=0, atol=1e-12)
    # And not by chance: on these turns the step level matters.
    full = make_trainer(GiGPOTrainer, random_model, tmp_path)
    assert np.abs(full.compute_advantages(TURNS) - grpo.compute_advantages(TURNS)).max() > 0.1


DEFAULTS: dict[str, Any] = {
    "gamma": 0.95,
    "step_advantage_weight": 1.0,
    "scale_rewards": "group",
    "episode_baseline": "episode",
    "single_score": "zero",
    "invalid_action_penalty": 0.1,
    "invalid_penalty_mode": "reward",
    "anchor_similarity": 1.0,
}


@pytest.mark.parametrize(
    "option",
    [
        {"gamma": 0.5},
        {"step_advantage_weight": 0.3},
        {"scale_rewards": "none"},
        {"episode_baseline": "turn"},
        {"single_score": "keep"},
        {"invalid_action_penalty": 0.7},
        {"invalid_penalty_mode": "row"},
        {"anchor_similarity": 0.2},
    ],
    ids=str,
)
def test_every_option_reaches_the_credit(random_model: str, tmp_path: Path, option: dict[str, Any]) -> None:
    if "anchor_similarity" in option:
        pytest.importorskip("rapidfuzz")
    turns = TURNS
    if "single_score" in option:  # A group with one episode of one turn.
        turns = TurnArrays(
            np.array([1.0, 0.0, 5.0]),
            np.array([0, 1, 2]),
            np.array([0, 0, 1]),
            ["a", "a", "a"],
            np.zeros(3, bool),
            np.ones(3, int),
        )
    trainer = make_trainer(GiGPOTrainer, random_model, tmp_path, **option)
    arrays = (turns.rewards, turns.episode_ids, turns.group_ids, turns.anchors)
    usual = gigpo_advantages(*arrays, invalid=turns.invalid, **DEFAULTS)
    expected = gigpo_advantages(*arrays, invalid=turns.invalid, **{**DEFAULTS, **option})
    assert np.abs(expected - usual).max() > 1e-3
    np.testing.assert_allclose(trainer.compute_advantages(turns), expected, rtol=0, atol=1e-12)


def test_the_log_of_a_run_has_its_buckets(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(GiGPOTrainer, random_model, tmp_path)
    batches = played_episodes(trainer)
    trainer.train()
    met: dict[tuple[int, Any], int] = defaultdict(int)
    for number, episode in enumerate(batches[0]):
        for turn in episode.turns:
            met[number // 4, turn.anchor] += 1
    sizes = list(met.values())
    log = training_logs(trainer)[0]
    assert log["anchors/shared_turns"] == pytest.approx(sum(s for s in sizes if s > 1) / sum(sizes))
    assert log["anchors/mean_bucket_size"] == pytest.approx(np.mean(sizes))
    assert log["anchors/buckets_of_1"] == pytest.approx(np.mean([s == 1 for s in sizes]))
    assert log["anchors/buckets_of_4-7"] == pytest.approx(np.mean([4 <= s <= 7 for s in sizes]))


def test_the_preset_of_the_reference_trains(random_model: str, tmp_path: Path) -> None:
    small = make_args(GiGPOConfig, tmp_path, max_steps=2)
    preset = GiGPOConfig.verl_agent(
        **{name: getattr(small, name) for name in ("output_dir", "use_cpu", "bf16", "max_steps", "report_to", "seed")},
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        num_generations=4,
        max_completion_length=5,
        max_turns=3,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
    )
    trainer = GiGPOTrainer(random_model, Corridor, args=preset, action_parser=walk_by_length)
    batches = played_episodes(trainer)
    losses = spy(trainer, "_compute_loss")
    trainer.train()
    logs = training_logs(trainer)
    assert [log["step"] for log in logs] == [1, 2]
    assert logs[0]["kl"] == pytest.approx(0.0, abs=1e-7)

    # Scores per row: an invalid turn has its own, and mean and deviation are over all turns of a group.
    expected = []
    for episodes in (batches[0][:4], batches[0][4:]):
        turns = [(e, time) for e in episodes for time in range(len(e.turns))]
        scores = [e.total_reward - 0.1 * (not e.turns[time].valid) for e, time in turns]
        returns = [
            sum(0.95 ** (k - time) * e.turns[k].reward for k in range(time, len(e.turns)))
            - 0.1 * (not e.turns[time].valid)
            for e, time in turns
        ]
        episode_level = group_relative(scores)
        for number, (e, time) in enumerate(turns):
            bucket = [k for k, (f, t) in enumerate(turns) if f.turns[t].anchor == e.turns[time].anchor]
            alone = len(bucket) == 1
            step_level = 0.0 if alone else group_relative([returns[k] for k in bucket])[bucket.index(number)]
            expected.append((e, time, episode_level[number] + step_level))
    credit = defaultdict(list)
    for e, _, value in expected:
        credit[id(e)].append(value)
    rows = [row for (_, inputs), _ in losses for row in loss_rows(inputs)]
    first = expected_rows(batches[0], [credit[id(e)] for e in batches[0]], merged=False)
    known = {row[0] for row in first}
    assert_same_rows([row for row in rows if row[0] in known], first)
