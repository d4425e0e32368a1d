# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""The seam with TRL: what is relied on, and that padding and chunking change nothing."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch.utils.data import DataLoader
from trainer_support import Gradients, log_probabilities, make_trainer, metrics_of, relative_error, spy, training_logs
from trl import GRPOTrainer

from trl_agentpo import AgentGRPOTrainer
from trl_agentpo.rows import NOT_TRAINED, TokenRow, padding_row, turn_values
from trl_agentpo.trainer._trl import (
    CONTRACT,
    Collected,
    EnvironmentSeam,
    EpochSampler,
    changed_signatures,
    pass_epochs_on,
)


def test_the_installed_trl_keeps_the_contract() -> None:
    assert changed_signatures() == []


def test_a_changed_signature_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GRPOTrainer, "log", lambda self, logs, step: None)
    monkeypatch.delattr(GRPOTrainer, "_generate_single_turn")
    changes = "\n".join(changed_signatures())
    assert len(changed_signatures()) == 2
    assert "`GRPOTrainer.log` takes ('self', 'logs', 'step'), expected ('self', 'logs', 'start_time')" in changes
    assert "`GRPOTrainer._generate_single_turn` is gone" in changes


def test_the_contract_names_every_overridden_method_of_trl() -> None:
    overridden = {
        name
        for name, value in vars(EnvironmentSeam).items()
        if callable(value) and hasattr(GRPOTrainer, name) and not name.startswith("__")
    }
    # Public methods of transformers, of which nothing else is relied on.
    assert overridden - {"train", "evaluate", "get_train_dataloader"} <= set(CONTRACT)
    assert {"_generate", "training_step", "_calculate_rewards"} <= overridden


def canned(num_prompts: int, num_rows: int, num_padding: int = 0, with_logprobs: bool = False) -> Collected:
    """What a rollout could have returned: rows of several turns, with tokens of the environment between them."""
    generator = np.random.default_rng(0)
    rows = []
    for number in range(num_rows):
        lengths = generator.integers(1, 6, size=3)
        turns = [2 * number] * lengths[0] + [NOT_TRAINED] * lengths[1] + [2 * number + 1] * lengths[2]
        prompt = generator.integers(0, 200, size=generator.integers(3, 12)).tolist()
        row = TokenRow(prompt, generator.integers(0, 200, size=len(turns)).tolist(), turns)
        if with_logprobs:  # As far from the untrained model's, about -5.6, as no real sampler's would be.
            row.logprobs = [float(generator.normal(-5.6)) * trained for trained in row.mask]
        rows.append(row)
    turn_advantages = generator.normal(size=2 * num_rows)
    for row in rows:
        row.targets["advantages"] = turn_values(row, turn_advantages)
    return Collected(
        prompts=[[{"role": "user", "content": f"question {n}"}] for n in range(num_prompts)],
        completions=[[{"role": "assistant", "content": f"answer {n}"}] for n in range(num_prompts)],
        rows=rows + [padding_row(0, with_logprobs) for _ in range(num_padding)],
        rewards=torch.as_tensor(generator.normal(size=(num_prompts, 1))),
        episode_advantages=generator.normal(size=num_prompts).tolist(),
    )


def run(
    model: str, folder: Path, num_rows: int = 6, num_padding: int = 0, chunk: int = 8, **options: Any
) -> tuple[list[torch.Tensor], list[dict[str, Any]], AgentGRPOTrainer]:
    """Train on a canned batch in chunks of a size; the gradients before each optimizer step, and what was logged."""
    gradients = Gradients()
    trainer = make_trainer(
        AgentGRPOTrainer, model, folder, arguments={"callbacks": [gradients]}, max_grad_norm=1e9, **options
    )
    trainer.collect = lambda inputs: canned(len(inputs), num_rows, num_padding)
    # From here on only the size of the chunks depends on it.
    trainer.args.per_device_train_batch_size = chunk
    trainer.train()
    return gradients.steps, training_logs(trainer), trainer


def assert_same_logs(logs: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Check that the same metrics were logged, with the same values but for rounding."""
    for log, other in zip(logs, expected, strict=True):
        assert {name for name in log if log[name] is None} == {name for name in other if other[name] is None}
        numbers = {name: value for name, value in other.items() if value is not None}
        assert {name: value for name, value in log.items() if value is not None} == pytest.approx(
            numbers, rel=1e-4, abs=2e-6
        )


# With two iterations on one batch, the second step has ratios other than 1, some of them clipped. Not Adam: it blows
# up rounding errors of the first gradient where that is nearly 0.
OFF_POLICY = {"num_iterations": 2, "max_steps": 2, "optim": "sgd", "learning_rate": 0.3}


def test_padding_rows_change_neither_loss_nor_gradient(random_model: str, tmp_path: Path) -> None:
    plain, plain_logs, _ = run(random_model, tmp_path, **OFF_POLICY, beta=0.1, entropy_coef=0.05)
    padded, padded_logs, _ = run(random_model, tmp_path, num_padding=7, **OFF_POLICY, beta=0.1, entropy_coef=0.05)
    assert len(plain) == len(padded) == 2
    for gradient, expected in zip(padded, plain, strict=True):
        assert expected.norm() > 0.1
        assert relative_error(gradient, expected) < 1e-5
    assert_same_logs(padded_logs, plain_logs)


TERMS = [
    {},
    {"beta": 0.1},
    {"entropy_coef": 0.05},
    {"beta": 0.1, "entropy_coef": 0.05, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4},
    {"loss_type": "cispo", "epsilon_high": 5.0},
    {"loss_type": "vespo"},
    {"importance_sampling_level": "sequence"},
]


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_chunks_add_up_to_the_whole_batch(random_model: str, tmp_path: Path, terms: dict[str, Any]) -> None:
    whole, whole_logs, _ = run(random_model, tmp_path, num_padding=4, chunk=100, **OFF_POLICY, **terms)
    for chunk in (1, 2):
        gradients, logs, _ = run(random_model, tmp_path, num_padding=4, chunk=chunk, **OFF_POLICY, **terms)
        assert len(gradients) == len(whole) == 2
        for gradient, expected in zip(gradients, whole, strict=True):
            assert expected.norm() > 0.1
            assert relative_error(gradient, expected) < 1e-5
        # What is logged of a batch does not depend on the chunks either, nor on those that only pad.
        assert_same_logs(logs, whole_logs)


def test_only_the_last_chunk_of_an_update_is_synchronised(random_model: str, tmp_path: Path) -> None:
    # Processes exchange gradients, and DeepSpeed steps, once an update.
    trainer = make_trainer(
        AgentGRPOTrainer, random_model, tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=2
    )
    trainer.collect = lambda inputs: canned(len(inputs), 6)
    trainer.args.per_device_train_batch_size = 1
    compute_loss, synchronised = trainer._compute_loss, []

    def watched(*args: Any) -> torch.Tensor:
        synchronised.append(trainer.accelerator.sync_gradients)
        return compute_loss(*args)

    trainer._compute_loss = watched
    trainer.train()
    assert synchronised == [False] * 5 + [True]


def test_off_policy_steps_are_clipped(random_model: str, tmp_path: Path) -> None:
    # Otherwise the tests above would not see the clip.
    _, logs, _ = run(random_model, tmp_path, **OFF_POLICY)
    assert logs[0]["clip_ratio/region_mean"] == 0
    assert 0 < logs[1]["clip_ratio/region_mean"] < 1


def test_the_entropy_bonus_is_the_mean_entropy_however_chunked(random_model: str, tmp_path: Path) -> None:
    _, without, _ = run(random_model, tmp_path, chunk=1)
    _, bonus, _ = run(random_model, tmp_path, chunk=1, entropy_coef=0.5)
    assert bonus[0]["entropy"] == pytest.approx(without[0]["entropy"], rel=1e-6)
    assert bonus[0]["loss"] == pytest.approx(without[0]["loss"] - 0.5 * without[0]["entropy"], abs=2e-5)
    assert bonus[0]["policy_loss"] == pytest.approx(without[0]["loss"], abs=2e-5)
    assert bonus[0]["entropy_coef"] == 0.5


def test_the_logged_entropy_is_the_mean_over_trained_tokens(random_model: str, tmp_path: Path) -> None:
    _, logs, trainer = run(random_model, tmp_path, num_padding=3, chunk=1, learning_rate=0.0)
    entropies = []
    for row in canned(8, 6).rows:
        logits = trainer.model(input_ids=torch.tensor([row.prompt_ids + row.completion_ids])).logits[0].float()
        distribution = torch.distributions.Categorical(logits=logits[len(row.prompt_ids) - 1 : -1])
        entropies += distribution.entropy()[torch.tensor(row.mask).bool()].tolist()
    assert logs[0]["entropy"] == pytest.approx(np.mean(entropies), rel=1e-5)


@pytest.mark.parametrize("chunk", [1, 100])
def test_log_probabilities_of_a_sampler_correct_the_loss(random_model: str, tmp_path: Path, chunk: int) -> None:
    # Without vLLM: what it would have returned is in the rows.
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, learning_rate=0.0)
    collected = canned(8, 6, num_padding=3, with_logprobs=True)
    trainer.collect = lambda inputs: collected
    trainer.use_vllm = True
    trainer.args.per_device_train_batch_size = chunk
    trainer.train()
    total, weights = 0.0, []
    for row in collected.rows[:6]:
        with torch.no_grad():
            own = log_probabilities(trainer.model, (*row.prompt_ids, *row.completion_ids))[len(row.prompt_ids) :]
        for place, turn in enumerate(row.turn_indices):
            if turn != NOT_TRAINED:
                weights.append(min(float(torch.exp(own[place] - row.logprobs[place])), 3.0))
                total -= weights[-1] * row.targets["advantages"][place]
    assert min(weights) < 0.5 and max(weights) == 3.0
    (log,) = training_logs(trainer)
    assert log["loss"] == pytest.approx(total / len(weights), rel=1e-4)
    assert log["sampling/importance_sampling_ratio/mean"] == pytest.approx(np.mean(weights), rel=1e-4)


def test_chunks_are_as_wide_as_their_own_rows(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path)
    collected = canned(8, 6)
    trainer.collect = lambda inputs: collected
    trainer.args.per_device_train_batch_size = 1
    calls = spy(trainer, "_compute_loss")
    trainer.train()
    shapes = {(i["prompt_ids"].size(1), i["completion_ids"].size(1), i["advantages"].size(1)) for (_, i), _ in calls}
    lengths = {(len(row.prompt_ids), len(row.completion_ids), len(row.completion_ids)) for row in collected.rows}
    assert len(calls) == 6
    assert shapes == lengths


@pytest.mark.parametrize("terms", [{}, {"beta": 0.1, "entropy_coef": 0.5}], ids=str)
def test_evaluation_is_the_same_however_chunked(random_model: str, tmp_path: Path, terms: dict[str, Any]) -> None:
    results = []
    for chunk in (1, 2, 100):
        trainer = make_trainer(
            AgentGRPOTrainer, random_model, tmp_path, num_eval_tasks=1, per_device_eval_batch_size=chunk, **terms
        )
        trainer.collect = lambda inputs: canned(len(inputs), num_rows=5)
        trainer.evaluate()
        (metrics,) = metrics_of(trainer)
        results.append(metrics)
    assert abs(results[-1]["eval_loss"]) > 1e-3
    assert_same_logs(results[:-1], [results[-1]] * 2)


def test_the_completions_table_has_our_advantages(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, log_completions=True, num_completions_to_print=1)
    collected = canned(8, 6)
    trainer.collect = lambda inputs: copy.deepcopy(collected)
    trainer.train()
    assert list(trainer._logs["advantages"]) == collected.episode_advantages
    table = pd.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    assert table["advantage"].tolist() == collected.episode_advantages
    assert [list(p) for p in table["prompt"]] == collected.prompts
    assert [list(c) for c in table["completion"]] == collected.completions
    assert table["environment_return"].tolist() == pytest.approx(collected.rewards[:, 0].tolist())


def test_sampling_asks_for_one_completion_and_keeps_the_mode(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path)
    asked = []

    def generate(prompt_ids: list[list[int]], *args: Any, num_generations: int) -> tuple[list[list[int]], None]:
        asked.append((prompt_ids, num_generations))
        trainer.model.train()
        return [[7]] * len(prompt_ids), None

    trainer._generate_single_turn = generate
    for training in (True, False):
        trainer.model.train(training)
        assert trainer.sample([[1, 2], [3]]) == ([[7], [7]], None)
        assert trainer.model.training is training
    assert asked == [([[1, 2], [3]], 1)] * 2


def order_of(loader: Any) -> list[int]:
    return [int(index) for batch in loader for index in batch]


def test_the_order_of_tasks_depends_on_seed_and_epoch_only() -> None:
    def make(seed: int) -> EpochSampler:
        return EpochSampler(list(range(20)), mini_repeat_count=1, shuffle=True, seed=seed)

    played = make(seed=3)
    orders = []
    for epoch in range(3):
        played.set_epoch(epoch)
        orders.append(list(played))
    assert len({tuple(order) for order in orders}) == 3
    resumed = make(seed=3)
    resumed.set_epoch(2)
    assert list(resumed) == orders[2]
    other = make(seed=4)
    other.set_epoch(2)
    assert list(other) != orders[2]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_resumed_epoch_goes_on_in_its_own_order(random_model: str, tmp_path: Path, num_processes: int) -> None:
    # As accelerate and transformers do it: batches are dealt out to the processes, and those already seen are skipped.
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, num_tasks=20)

    def loader() -> Any:
        sampler = trainer._get_train_sampler()
        plain = DataLoader(list(range(20)), batch_size=8, sampler=sampler, drop_last=True)
        return pass_epochs_on(prepare_data_loader(plain, num_processes=num_processes, process_index=0))

    unbroken = loader()
    unbroken.set_epoch(1)
    first = loader()
    first.set_epoch(0)
    expected = order_of(unbroken)
    assert expected != order_of(first)
    resumed = skip_first_batches(loader(), 1)
    resumed.set_epoch(1)
    assert order_of(resumed) == expected[8:]
