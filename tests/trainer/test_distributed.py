# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""Two processes train as one: groups may straddle them, and nothing hangs, is counted twice or gets lost."""

import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainer_support import (
    assert_same_rows,
    expected_rows,
    gigpo_credit,
    log_probabilities,
    relative_error,
    sampled_positions,
    worker_path,
)
from transformers import AutoModelForCausalLM

from trl_agentpo import Episode


pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent.parent
RANKS = (0, 1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def records(random_model: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two processes wrote down."""
    folder = tmp_path_factory.mktemp("distributed")
    shared = {**os.environ, "PYTHONPATH": worker_path(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, str(TESTS / "distributed_worker.py"), random_model, str(folder)]
    processes = [
        subprocess.Popen(
            command,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in RANKS
    ]
    try:
        # A process that waits for the other for ever is a failure.
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return [pickle.loads((folder / f"rank{rank}.pickle").read_bytes()) for rank in RANKS]


def rollouts(records: list[dict[str, Any]], name: str) -> list[list[Episode]]:
    """The episodes of both processes together, rollout by rollout."""
    both = zip(*(record[name]["episodes"] for record in records), strict=True)
    return [[*first, *second] for first, second in both]


def test_groups_straddle_the_processes(records: list[dict[str, Any]]) -> None:
    seeds = [[episode.seed for episode in record["straddling"]["episodes"][0]] for record in records]
    assert seeds == [[0, 0, 0, 0, 1, 1], [1, 1, 2, 2, 2, 2]]


def test_credit_is_that_of_one_process(records: list[dict[str, Any]]) -> None:
    for rank in RANKS:
        expected = []
        for episodes in rollouts(records, "straddling"):
            credit = gigpo_credit(episodes, gamma=0.95, weight=1.0, scaled=True)
            assert {len(values) for values in credit} != {1}
            own = slice(6 * rank, 6 * rank + 6)
            expected += expected_rows(episodes[own], credit[own], merged=False)
        assert_same_rows(records[rank]["straddling"]["rows"], expected)


def test_the_gradient_is_that_of_one_process(random_model: str, records: list[dict[str, Any]]) -> None:
    episodes = rollouts(records, "straddling")[0]
    credit = gigpo_credit(episodes, gamma=0.95, weight=1.0, scaled=True)
    model = AutoModelForCausalLM.from_pretrained(random_model)
    terms = []
    for episode, values in zip(episodes, credit, strict=True):
        for turn, value in zip(episode.turns, values, strict=True):
            sampled = log_probabilities(model, (*turn.prompt_ids, *turn.completion_ids))
            terms.append(-value * sampled[sampled_positions(turn).start :])
    torch.cat(terms).mean().backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    for record in records:
        assert relative_error(record["straddling"]["gradients"][0], expected) < 1e-4


def test_processes_generate_and_score_equally_often(records: list[dict[str, Any]]) -> None:
    # Although the episodes of one are over before those of the other.
    longest = [
        [max(len(episode.turns) for episode in episodes) for episodes in record["straddling"]["episodes"]]
        for record in records
    ]
    assert longest[0] != longest[1]
    calls = [record["straddling"]["num_generate_calls"] for record in records]
    assert calls[0] == calls[1] == sum(map(max, zip(*longest, strict=True)))
    assert records[0]["straddling"]["num_losses"] == records[1]["straddling"]["num_losses"]
    assert len(records[0]["straddling"]["rows"]) != len(records[1]["straddling"]["rows"])


@pytest.mark.parametrize("name", ["straddling", "crashes", "last-crashes"])
def test_parameters_stay_the_same_on_both(records: list[dict[str, Any]], name: str) -> None:
    first, second = (record[name]["parameters"] for record in records)
    assert all(torch.equal(value, second[key]) for key, value in first.items())


def test_logs_are_about_all_episodes(records: list[dict[str, Any]]) -> None:
    for log, episodes in zip(records[0]["straddling"]["logs"], rollouts(records, "straddling"), strict=True):
        assert log["success"] == pytest.approx(np.mean([episode.success for episode in episodes]))
        assert log["episode/turns"] == pytest.approx(np.mean([len(episode.turns) for episode in episodes]))
        assert log["reward"] == pytest.approx(np.mean([episode.total_reward for episode in episodes]))
        lengths = [len(turn.completion_ids) for episode in episodes for turn in episode.turns]
        assert log["completions/mean_length"] == pytest.approx(np.mean(lengths))


def test_a_process_without_rows_takes_part(records: list[dict[str, Any]]) -> None:
    first, second = (record["crashes"] for record in records)
    assert [episode.failed for episode in second["episodes"][0]] == [True] * 4
    assert (len(first["rows"]) > 0, second["rows"]) == (True, [])
    assert first["num_losses"] == second["num_losses"]
    assert torch.equal(first["gradients"][0], second["gradients"][0])
    assert first["gradients"][0].norm() > 0.01
    assert first["logs"][0]["episode/failed"] == 0.5


def test_gradients_are_exchanged_though_the_last_batch_has_no_rows(records: list[dict[str, Any]]) -> None:
    first, second = (record["last-crashes"] for record in records)
    assert [[episode.failed for episode in batch] for batch in first["episodes"]] == [[False] * 4, [True] * 4]
    assert first["gradients"][0].norm() > 0.01
    assert torch.equal(first["gradients"][0], second["gradients"][0])


@pytest.mark.parametrize(("setting", "repeats"), [(0, 1), (1, 2)])
def test_evaluation_counts_every_episode_once(records: list[dict[str, Any]], setting: int, repeats: int) -> None:
    evaluations = [record["evaluation"][setting] for record in records]
    batches = list(zip(*(evaluation["episodes"] for evaluation in evaluations), strict=True))
    assert len(batches) == 2
    counted: list[Episode] = [episode for batch in batches[0] for episode in batch]
    played = {episode.seed for episode in counted}
    # The last batch is filled up with tasks that were played in the first.
    last = [episode for batch in batches[1] for episode in batch]
    counted += [episode for episode in last if episode.seed not in played]
    assert sorted(episode.seed for episode in counted) == sorted([*evaluations[0]["tasks"]] * repeats)
    assert len(counted) < len(last) + 4 * repeats
    exact = np.mean([episode.success for episode in counted])
    assert 0 < exact < 1
    for evaluation in evaluations:
        assert evaluation["metrics"]["eval_success"] == pytest.approx(exact, abs=1e-12)


def test_a_run_is_resumed_in_the_order_of_its_epoch(records: list[dict[str, Any]]) -> None:
    for record in records:
        unbroken, resumed = record["resumed"]["tasks"]
        # The checkpoint of step 5 lost a part and is passed over: step 5 is done again, from the last one.
        assert (len(unbroken), len(resumed)) == (5, 1)
        assert resumed[0] == unbroken[4] != unbroken[1]
        logs, resumed_logs = record["resumed"]["logs"]
        assert len(logs) == 5
        assert resumed_logs == logs
