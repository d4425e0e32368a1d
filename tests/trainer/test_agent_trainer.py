# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""From an environment to the loss: credit, rewards, crashes, tasks, evaluation, logs and TRL's own options."""

import copy
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset
from numpy.typing import NDArray
from peft import LoraConfig, PeftModel, get_peft_model
from support import Corridor, save_random_model
from trainer_support import (
    Gradients,
    assert_same_rows,
    expected_rows,
    group_relative,
    log_probabilities,
    loss_rows,
    make_trainer,
    metrics_of,
    penalised_return,
    played_episodes,
    relative_error,
    sampled_positions,
    short_replies,
    spy,
    training_logs,
    walk_by_length,
)
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForSequenceClassification,
    Qwen2Tokenizer,
    TrainerCallback,
)

from trl_agentpo import (
    AgentGRPOConfig,
    AgentGRPOTrainer,
    Episode,
    FullHistory,
    GiGPOConfig,
    GiGPOTrainer,
    NonDeterministicResetError,
    TextEnvironment,
    Turn,
)
from trl_agentpo.environment import EnvironmentContractError
from trl_agentpo.rows import merge_turns
from trl_agentpo.turns import TurnArrays


def grpo_credit(episodes: list[Episode], returns: list[float] | None = None, size: int = 4) -> list[list[float]]:
    """GRPO's advantage for each turn of each episode, group by group; crashed episodes are not there."""
    if returns is None:
        returns = [penalised_return(episode) for episode in episodes]
    credit: list[list[float]] = []
    for first in range(0, len(episodes), size):
        group = list(zip(episodes, returns, strict=True))[first : first + size]
        alive = [value for episode, value in group if not episode.failed]
        advantages = iter(group_relative(alive))
        credit += [[] if e.failed else [next(advantages)] * len(e.turns) for e, _ in group]
    return credit


def tokens_of(episodes: list[Episode]) -> int:
    """How many tokens were sampled in all episodes."""
    return sum(len(turn.completion_ids) for episode in episodes for turn in episode.turns)


def log_probability(model: torch.nn.Module, turn: Turn) -> torch.Tensor:
    """The log-probabilities of a turn's sampled tokens, from a forward pass over this turn alone."""
    return log_probabilities(model, (*turn.prompt_ids, *turn.completion_ids))[sampled_positions(turn).start :]


def mean_loss(model: torch.nn.Module, episodes: list[Episode], credit: list[list[float]], over: str) -> torch.Tensor:
    """The loss on the policy, turn by turn, whatever the rows: the mean of -A · log p over tokens, turns or episodes."""
    terms = [
        [-value * log_probability(model, turn) for turn, value in zip(episode.turns, values, strict=True)]
        for episode, values in zip(episodes, credit, strict=True)
    ]
    if over == "token":
        return torch.cat([term for episode in terms for term in episode]).mean()
    if over == "turn":
        return torch.stack([term.mean() for episode in terms for term in episode]).mean()
    return torch.stack([torch.cat(episode).mean() for episode in terms]).mean()


def gradient_of(loss: torch.Tensor, model: torch.nn.Module) -> torch.Tensor:
    """The gradient of a loss as one vector."""
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# Credit and loss


@pytest.mark.parametrize("context", ["window", "full_history"])
@pytest.mark.parametrize("scale_rewards", ["group", "none"])
def test_every_sampled_token_has_the_advantage_of_its_episode(
    random_model: str, tmp_path: Path, context: str, scale_rewards: str
) -> None:
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, context=context, scale_rewards=scale_rewards)
    batches = played_episodes(trainer)
    losses = spy(trainer, "_compute_loss")
    trainer.train()
    (episodes,) = batches
    credit = grpo_credit(episodes)
    if scale_rewards == "none":
        returns = [penalised_return(episode) for episode in episodes]
        means = np.repeat([np.mean(returns[:4]), np.mean(returns[4:])], 4)
        credit = [[r - m] * len(e.turns) for e, r, m in zip(episodes, returns, means, strict=True)]
    # Episodes of several lengths, and credit of both signs: otherwise the test would show little.
    assert len({len(episode.turns) for episode in episodes}) > 1
    assert min(map(min, credit)) < -0.05 < 0.05 < max(map(max, credit))
    rows = [row for (_, inputs), _ in losses for row in loss_rows(inputs)]
    assert len(rows) == (8 if context == "full_history" else sum(len(e.turns) for e in episodes))
    assert_same_rows(rows, expected_rows(episodes, credit, merged=context == "full_history"))
    # The table of completions has the mean over an episode's turns.
    assert list(trainer._logs["advantages"]) == pytest.approx([values[0] for values in credit])


@pytest.mark.parametrize("context", ["window", "full_history"])
@pytest.mark.parametrize("loss_normalization", ["token", "turn", "episode"])
def test_the_gradient_is_that_of_the_formula(
    random_model: str, tmp_path: Path, tokenizer: Qwen2Tokenizer, context: str, loss_normalization: str
) -> None:
    gradients = Gradients()
    trainer = make_trainer(
        AgentGRPOTrainer,
        random_model,
        tmp_path,
        context=context,
        loss_normalization=loss_normalization,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_grad_norm=1e9,
        generation_kwargs=short_replies(tokenizer),
        arguments={"callbacks": [gradients]},
    )
    batches = played_episodes(trainer)
    trainer.train()
    (episodes,) = batches
    credit = grpo_credit(episodes)
    assert len({len(turn.completion_ids) for episode in episodes for turn in episode.turns}) > 2

    model = AutoModelForCausalLM.from_pretrained(random_model)
    loss = mean_loss(model, episodes, credit, loss_normalization)
    expected = gradient_of(loss, model)
    assert expected.norm() > 0.01
    assert relative_error(gradients.steps[0], expected) < 1e-4
    assert training_logs(trainer)[0]["loss"] == pytest.approx(
        {  # On the policy itself the ratio is 1, so the loss is minus the mean advantage.
            "token": -np.mean(
                [
                    v
                    for e, c in zip(episodes, credit, strict=True)
                    for t, v in zip(e.turns, c, strict=True)
                    for _ in t.completion_ids
                ]
            ),
            "turn": -np.mean([v for values in credit for v in values]),
            "episode": -np.mean([values[0] for values in credit]),
        }[loss_normalization],
        abs=1e-5,
    )


class Snapshots(TrainerCallback):
    """Keeps the model before each optimizer step, as transformers makes it: TRL has patched the one in training."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.models: list[torch.nn.Module] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.models.append(AutoModelForCausalLM.from_pretrained(self.folder))
        self.models[-1].load_state_dict(kwargs["model"].state_dict())


@pytest.mark.parametrize("context", ["window", "full_history"])
def test_the_loss_off_the_policy_is_that_of_the_formula(random_model: str, tmp_path: Path, context: str) -> None:
    # One rollout for two optimizer steps: the second is off the policy, so that ratio, clip and KL all take part.
    snapshots = Snapshots(random_model)
    trainer = make_trainer(
        AgentGRPOTrainer,
        random_model,
        tmp_path,
        context=context,
        beta=0.1,
        per_device_train_batch_size=4,
        steps_per_generation=2,
        max_steps=2,
        learning_rate=0.03,
        arguments={"callbacks": [snapshots]},
    )
    batches = played_episodes(trainer)
    losses = spy(trainer, "_compute_loss")
    steps = spy(trainer, "training_step")
    trainer.train()
    (episodes,) = batches
    rows = expected_rows(episodes, grpo_credit(episodes), merged=context == "full_history")
    credit = {sequence: (mask, advantages) for sequence, mask, advantages in rows}
    assert len(credit) == len(rows)

    old, new = snapshots.models
    second = [row for (_, inputs), _ in losses[len(losses) // 2 :] for row in loss_rows(inputs)]
    assert 0 < len(second) < len(rows)
    total, clipped = 0.0, 0
    for sequence, mask, _ in second:
        expected_mask, advantages = credit[sequence]
        assert mask == expected_mask
        with torch.no_grad():
            was, now = log_probabilities(old, sequence), log_probabilities(new, sequence)
        for place in np.flatnonzero(mask):
            ratio, advantage = math.exp(now[place] - was[place]), advantages[place]
            bounded = min(max(ratio, 0.8), 1.2)
            clipped += bounded * advantage < ratio * advantage
            # The reference is the untrained model, which is also the old policy.
            difference = float(was[place] - now[place])
            total += -min(ratio * advantage, bounded * advantage)
            # TRL weighs the KL term by the ratio, too (`use_bias_correction_kl`).
            total += 0.1 * ratio * (math.exp(difference) - difference - 1)
    assert clipped > 0
    # Half of the tokens of the rollout: one of its two steps.
    assert float(steps[1][1]) == pytest.approx(total / (tokens_of(episodes) / 2), rel=1e-4)


class DropFirstGroup(AgentGRPOTrainer):
    """Trains on the second group only."""

    def select_episodes(self, turns: TurnArrays) -> NDArray[np.bool_]:
        return turns.group_ids == 1


@pytest.mark.parametrize("loss_normalization", ["token", "turn", "episode"])
def test_what_is_not_selected_costs_nothing_and_counts_nothing(
    random_model: str, tmp_path: Path, tokenizer: Qwen2Tokenizer, loss_normalization: str
) -> None:
    gradients = Gradients()
    trainer = make_trainer(
        DropFirstGroup,
        random_model,
        tmp_path,
        loss_normalization=loss_normalization,
        max_grad_norm=1e9,
        generation_kwargs=short_replies(tokenizer),
        arguments={"callbacks": [gradients]},
    )
    batches = played_episodes(trainer)
    losses = spy(trainer, "_compute_loss")
    trainer.train()
    (episodes,) = batches
    kept, credit = episodes[4:], grpo_credit(episodes)[4:]
    rows = [row for (_, inputs), _ in losses for row in loss_rows(inputs)]
    assert sorted(row[0] for row in rows) == sorted(row[0] for row in expected_rows(kept, credit, merged=False))
    model = AutoModelForCausalLM.from_pretrained(random_model)
    expected = gradient_of(mean_loss(model, kept, credit, loss_normalization), model)
    assert expected.norm() > 0.01
    assert relative_error(gradients.steps[0], expected) < 1e-4


def test_cut_replies_stay_as_context_but_are_not_trained_on(
    random_model: str, tmp_path: Path, tokenizer: Qwen2Tokenizer
) -> None:
    spoken = (1, 2, tokenizer.eos_token_id)
    trainer = make_trainer(
        AgentGRPOTrainer,
        random_model,
        tmp_path,
        context="full_history",
        mask_truncated_completions=True,
        # The untrained model ends one reply in 270; with three tokens to choose from it is one in three.
        generation_kwargs={"suppress_tokens": [n for n in range(len(tokenizer)) if n not in spoken]},
        max_completion_length=3,
    )
    batches = played_episodes(trainer)
    losses = spy(trainer, "_compute_loss")
    trainer.train()
    (episodes,) = batches
    cut = [turn.cut for episode in episodes for turn in episode.turns]
    assert 0 < sum(cut) < len(cut)
    expected = []
    for sequence, mask, advantages in expected_rows(episodes, grpo_credit(episodes), merged=True):
        episode = next(e for e in episodes if tuple(e.turns[-1].prompt_ids + e.turns[-1].completion_ids) == sequence)
        places = {place for turn in episode.turns if turn.cut for place in sampled_positions(turn)}
        trained = tuple(int(m and n not in places) for n, m in enumerate(mask))
        if any(trained):
            expected.append((sequence, trained, tuple(a * m for a, m in zip(advantages, trained, strict=True))))
    assert_same_rows([row for (_, inputs), _ in losses for row in loss_rows(inputs)], expected)


@pytest.mark.parametrize("context", ["window", "full_history"])
def test_the_samplers_log_probabilities_stay_with_their_tokens(
    random_model: str, tmp_path: Path, context: str
) -> None:
    # Without vLLM: its place is taken by `generate`, with log-probabilities that tell the tokens apart.
    trainer = make_trainer(
        AgentGRPOTrainer,
        random_model,
        tmp_path,
        context=context,
        per_device_train_batch_size=4,
        steps_per_generation=2,
    )
    sample, numbers = trainer.rollout.generate, itertools.count(1)

    def with_logprobs(prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
        trainer.use_vllm = False
        completions, _ = sample(prompts)
        trainer.use_vllm = True
        return completions, [[-5.0 - next(numbers) / 1000 for _ in completion] for completion in completions]

    trainer.rollout.generate = with_logprobs
    trainer.use_vllm = True
    batches = played_episodes(trainer)
    losses = spy(trainer, "_compute_loss")
    trainer.args.max_steps = 2
    trainer.train()
    expected = {}
    for episode in batches[0]:
        for turns in [episode.turns] if context == "full_history" else [[turn] for turn in episode.turns]:
            sequence = (*turns[-1].prompt_ids, *turns[-1].completion_ids)
            places = [place for turn in turns for place in sampled_positions(turn)]
            expected[sequence] = dict(zip(places, [value for turn in turns for value in turn.logprobs], strict=True))
    found = {}
    for (_, inputs), _ in losses:
        # In the place of the advantages, so that they come out along with them.
        for sequence, mask, values in loss_rows({**inputs, "advantages": inputs["sampling_per_token_logps"]}):
            found[sequence] = {place: values[place] for place in np.flatnonzero(mask)}
    assert found.keys() == expected.keys()
    assert all(found[sequence] == pytest.approx(expected[sequence], abs=1e-5) for sequence in expected)
    # A row that only pads has log-probabilities as well.
    assert sum(len(inputs["prompt_ids"]) for (_, inputs), _ in losses) == len(expected) + len(expected) % 2


# Rewards


def test_extra_rewards_are_weighed_and_added_to_the_episode(random_model: str, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def long_episodes(episodes: list[Episode], completions: list[Any], **kwargs: Any) -> list[float]:
        seen.update(kwargs, episodes=episodes, completions=completions)
        return [float(len(episode.turns)) for episode in episodes]

    def every_other(episodes: list[Episode], **kwargs: Any) -> list[float | None]:
        return [None if n % 2 else float(len(e.turns[0].completion_ids)) for n, e in enumerate(episodes)]

    async def waited_for(episodes: list[Episode], **kwargs: Any) -> list[float]:
        return [float(episode.success) for episode in episodes]

    functions = [long_episodes, every_other, waited_for]
    trainer = make_trainer(
        AgentGRPOTrainer,
        random_model,
        tmp_path,
        reward_weights=[0.5, 2.0, 3.0],
        arguments={
            "reward_funcs": functions,
            "train_dataset": Dataset.from_dict({"seed": [1, 2], "colour": ["red", "blue"]}),
        },
    )
    batches = played_episodes(trainer)
    losses = spy(trainer, "_compute_loss")
    trainer.train()
    (episodes,) = batches
    extra = [
        0.5 * len(e.turns) + 2.0 * (0.0 if n % 2 else len(e.turns[0].completion_ids)) + 3.0 * e.success
        for n, e in enumerate(episodes)
    ]
    returns = [penalised_return(e) + value for e, value in zip(episodes, extra, strict=True)]
    rows = [row for (_, inputs), _ in losses for row in loss_rows(inputs)]
    assert_same_rows(rows, expected_rows(episodes, grpo_credit(episodes, returns), merged=False))
    assert seen["episodes"] == episodes
    assert sorted(seen["colour"]) == ["blue"] * 4 + ["red"] * 4
    assert [[m["content"] for m in c if m["role"] == "assistant"] for c in seen["completions"]] == [
        [turn.response for turn in episode.turns] for episode in episodes
    ]
    log = training_logs(trainer)[0]
    assert log["rewards/long_episodes/mean"] == pytest.approx(np.mean([len(e.turns) for e in episodes]))
    given = [len(e.turns[0].completion_ids) for e in episodes[::2]]
    assert log["rewards/every_other/mean"] == pytest.approx(np.mean(given))
    assert log["rewards/environment_return/mean"] == pytest.approx(np.mean([e.total_reward for e in episodes]))
    total = [e.total_reward + value for e, value in zip(episodes, extra, strict=True)]
    assert log["reward"] == pytest.approx(np.mean(total), rel=1e-5)
    # What the user gave is as it was.
    assert functions == [long_episodes, every_other, waited_for]


def test_a_single_reward_function_needs_no_list_and_no_weight(random_model: str, tmp_path: Path) -> None:
    def constant(episodes: list[Episode], **kwargs: Any) -> list[float]:
        return [5.0] * len(episodes)

    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, arguments={"reward_funcs": constant})
    batches = played_episodes(trainer)
    trainer.train()
    log = training_logs(trainer)[0]
    assert log["rewards/constant/mean"] == 5.0
    assert log["reward"] == pytest.approx(5.0 + np.mean([episode.total_reward for episode in batches[0]]))


@pytest.mark.parametrize("weights", [[1.0], [1.0, 2.0, 3.0], []])
def test_reward_weights_of_another_number_are_refused(random_model: str, tmp_path: Path, weights: list[float]) -> None:
    functions = [lambda episodes, **kwargs: [0.0] * len(episodes)] * 2
    with pytest.raises(ValueError, match=rf"`reward_weights` has {len(weights)} weights for 2 `reward_funcs`"):
        make_trainer(
            AgentGRPOTrainer, random_model, tmp_path, reward_weights=weights, arguments={"reward_funcs": functions}
        )


def test_the_users_configuration_is_not_changed(random_model: str, tmp_path: Path) -> None:
    args = AgentGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, reward_weights=[2.0], max_steps=1)
    AgentGRPOTrainer(
        random_model,
        Corridor,
        reward_funcs=lambda episodes, **kwargs: [0.0] * len(episodes),
        args=args,
        action_parser=walk_by_length,
    )
    assert args.reward_weights == [2.0]


def test_a_reward_model_reads_the_transcript(random_model: str, tmp_path: Path, tokenizer: Qwen2Tokenizer) -> None:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
    )
    judge = Qwen2ForSequenceClassification(config).eval()
    judge.config._name_or_path = "judge"
    trainer = make_trainer(
        AgentGRPOTrainer,
        random_model,
        tmp_path,
        arguments={"reward_funcs": [judge], "reward_processing_classes": tokenizer},
    )
    batches = played_episodes(trainer)
    trainer.train()
    scores = []
    for episode in batches[0]:
        opening = f"{Corridor.instructions}\n{episode.turns[0].observation}"
        messages = [{"role": "user", "content": opening}, {"role": "assistant", "content": episode.turns[0].response}]
        for turn in episode.turns[1:]:
            messages.append({"role": "user", "content": turn.observation})
            messages.append({"role": "assistant", "content": turn.response})
        # And where that led.
        last = episode.turns[-1]
        cell = max(0, last.anchor + {"left": -1, "right": 1}[last.actions[0]])
        messages.append({"role": "user", "content": f"cell {cell} of 3"})
        ids = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)["input_ids"]
        with torch.no_grad():
            scores.append(float(judge(input_ids=ids).logits[0, 0]))
    assert np.std(scores) > 1e-4
    assert training_logs(trainer)[0]["rewards/judge/mean"] == pytest.approx(np.mean(scores), rel=1e-3)


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_stops_the_run(random_model: str, tmp_path: Path, reward: float) -> None:
    class Unfinished(Corridor):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            text, _, *rest = super().step(action)
            return text, reward, *rest

    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, environment=Unfinished)
    with pytest.raises(EnvironmentContractError, match=f"Unfinished.step.* gave the reward {reward}"):
        trainer.train()


def test_an_infinite_extra_reward_stops_the_run(random_model: str, tmp_path: Path) -> None:
    def boundless(episodes: list[Episode], **kwargs: Any) -> list[float]:
        return [math.inf] * len(episodes)

    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, arguments={"reward_funcs": boundless})
    with pytest.raises(ValueError, match="Reward function `boundless` returned inf"):
        trainer.train()


# Crashes


class Fragile(Corridor):
    """Crashes where a step to the left leads nowhere."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.cell == 0 and action == "left":
            raise RuntimeError("ran into the wall")
        return super().step(action)


class Broken(Corridor):
    """Crashes at every step."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        raise RuntimeError("out of order")


def test_a_crash_costs_its_episode_and_nothing_else(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(
        AgentGRPOTrainer,
        random_model,
        tmp_path,
        environment=Fragile,
        per_device_train_batch_size=24,
        num_generations=8,
        max_steps=2,
    )
    batches = played_episodes(trainer)
    losses = spy(trainer, "_compute_loss")
    trainer.train()
    assert len(batches) == 2
    for number, episodes in enumerate(batches):
        failed = [episode.failed for episode in episodes]
        assert 0 < sum(failed) < len(failed)
        credit = grpo_credit(episodes, size=8)
        assert max(max(values, default=0.0) for values in credit) > 0.1
        played = [n for n, episode in enumerate(episodes) if not episode.failed]
        expected = expected_rows([episodes[n] for n in played], [credit[n] for n in played], merged=False)
        rows = {row[0] for row in expected}
        found = [row for (_, inputs), _ in losses for row in loss_rows(inputs) if row[0] in rows]
        assert_same_rows(found, expected)
        log = training_logs(trainer)[number]
        assert log["episode/failed"] == pytest.approx(np.mean(failed))
        # Only episodes that were played to their end are in the other statistics.
        assert log["success"] == pytest.approx(np.mean([episodes[n].success for n in played]))
        assert log["reward"] == pytest.approx(np.mean([episodes[n].total_reward for n in played]))
    seen = [row[0] for (_, inputs), _ in losses for row in loss_rows(inputs)]
    crashed = {tuple(t.prompt_ids + t.completion_ids) for b in batches for e in b if e.failed for t in e.turns}
    assert crashed and not crashed & set(seen)


def test_a_batch_in_which_all_crash_changes_nothing(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, environment=Broken, max_steps=2, beta=0.1)
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    for log in training_logs(trainer):
        assert (log["episode/failed"], log["loss"], log["grad_norm"]) == (1.0, 0.0, 0.0)
        assert log.get("success") is None
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    assert json.loads(json.dumps(trainer.state.log_history, allow_nan=False))


class BreaksInTheSecondUpdate(TrainerCallback):
    """Breaks the environments once the optimizer has momentum, and keeps the weights of each step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.weights.append(copy.deepcopy(kwargs["model"].state_dict()))
        self.monkeypatch.setattr(Corridor, "step", Broken.step)


def test_nothing_to_learn_from_moves_no_weight_though_the_optimizer_has_momentum(
    random_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, max_steps=2, weight_decay=0.1)
    before = copy.deepcopy(trainer.model.state_dict())
    callback = BreaksInTheSecondUpdate(monkeypatch)
    trainer.add_callback(callback)
    trainer.train()
    first, second = callback.weights
    assert any(not torch.equal(value, before[name]) for name, value in first.items())
    assert all(torch.equal(value, first[name]) for name, value in second.items())
    assert training_logs(trainer)[1]["update_skipped"] == 1.0
    assert "update_skipped" not in training_logs(trainer)[0]


def test_all_crash_with_gigpo_and_in_evaluation(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(GiGPOTrainer, random_model, tmp_path, environment=Broken, num_eval_tasks=3)
    trainer.train()
    assert training_logs(trainer)[0]["episode/failed"] == 1.0
    metrics = trainer.evaluate()
    assert metrics["eval_episode/failed"] == 1.0
    assert metrics["eval_loss"] == 0.0


def test_a_crash_can_stop_the_run(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, environment=Broken, on_env_error="raise")
    with pytest.raises(RuntimeError, match="out of order"):
        trainer.train()


# Tasks


class Recorded(Corridor):
    """Remembers with what it was reset."""

    resets: list[tuple[int | None, dict[str, Any] | None]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.resets.append((seed, options))
        return super().reset(seed=seed, options=options)


@pytest.fixture
def resets() -> list[tuple[int | None, dict[str, Any] | None]]:
    Recorded.resets.clear()
    return Recorded.resets


def test_rows_of_a_dataset_reach_reset(random_model: str, tmp_path: Path, resets: list[Any]) -> None:
    tasks = [
        {"seed": 11, "options": {"cell": 1}, "level": "easy"},
        {"seed": 12, "options": {"cell": 2}, "level": "hard"},
    ]
    dataset = Dataset.from_list(tasks)
    trainer = make_trainer(
        AgentGRPOTrainer, random_model, tmp_path, environment=Recorded, arguments={"train_dataset": dataset}
    )
    batches = played_episodes(trainer)
    resets.clear()
    trainer.train()
    expected = [(11, {"cell": 1, "level": "easy"})] * 4 + [(12, {"cell": 2, "level": "hard"})] * 4
    assert sorted(resets, key=str) == sorted(expected, key=str)
    # Groups are whole and stand next to each other, and the options had their effect.
    assert [episode.seed for episode in batches[0]] in ([11] * 4 + [12] * 4, [12] * 4 + [11] * 4)
    for episode in batches[0]:
        assert episode.turns[0].anchor == episode.seed - 10


def test_rows_without_a_seed_get_one(random_model: str, tmp_path: Path, resets: list[Any]) -> None:
    dataset = Dataset.from_dict({"cell": [0, 1, 2, 0]})
    trainer = make_trainer(
        AgentGRPOTrainer,
        random_model,
        tmp_path,
        environment=Recorded,
        num_train_epochs=2,
        max_steps=-1,
        arguments={"train_dataset": dataset, "eval_dataset": Dataset.from_dict({"cell": [2]})},
    )
    resets.clear()
    trainer.train()
    played = {seed: options["cell"] for seed, options in resets}
    assert len(resets) == 2 * 4 * 4
    assert sorted(played.values()) == [0, 0, 1, 2]
    resets.clear()
    trainer.evaluate()
    ((seed, options),) = resets
    assert options == {"cell": 2}
    assert seed not in played


def test_every_update_has_new_tasks_unless_their_number_is_given(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, max_steps=3)
    batches = played_episodes(trainer)
    trainer.train()
    groups = [episodes[n].seed for episodes in batches for n in (0, 4)]
    assert len(set(groups)) == 6
    assert len(trainer.train_dataset) == 6
    assert all(e.seed == episodes[4 * (n // 4)].seed for episodes in batches for n, e in enumerate(episodes))


def test_a_number_of_tasks_is_played_through_in_every_epoch(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, num_tasks=4, max_steps=6, num_eval_tasks=5)
    batches = played_episodes(trainer)
    trainer.train()
    groups = [episodes[n].seed for episodes in batches for n in (0, 4)]
    epochs = [groups[n : n + 4] for n in range(0, 12, 4)]
    assert all(sorted(epoch) == sorted(trainer.train_dataset["seed"]) for epoch in epochs)
    assert epochs[0] != epochs[1] or epochs[1] != epochs[2]
    assert len(trainer.eval_dataset) == len(set(trainer.eval_dataset["seed"])) == 5
    assert not set(trainer.eval_dataset["seed"]) & set(groups)


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        (
            {"num_tasks": 4},
            {"train_dataset": Dataset.from_dict({"seed": [1, 2, 3, 4]})},
            "`num_tasks`=4 was given together with a `train_dataset`",
        ),
        (
            {"num_eval_tasks": 4},
            {"eval_dataset": Dataset.from_dict({"seed": [1]})},
            "`num_eval_tasks`=4 was given together with an `eval_dataset`",
        ),
        ({"max_steps": -1}, {}, "`max_steps`=-1. Set `max_steps`"),
        ({"num_tasks": 1}, {}, "`num_tasks` is 1, less than the 2 groups of a generation batch"),
        (
            {},
            {"train_dataset": Dataset.from_dict({"seed": [1]})},
            "`train_dataset` has 1 rows, less than the 2 groups of a generation batch",
        ),
        (
            {},
            {"train_dataset": Dataset.from_dict({"seed": [1, 2], "prompt": ["go", "stop"]})},
            "has a `prompt`, but prompts are written by the environment",
        ),
        (
            {},
            {"eval_dataset": {"a": Dataset.from_dict({"seed": [1]}), "b": Dataset.from_dict({"prompt": ["go"]})}},
            "has a `prompt`, but prompts are written by the environment",
        ),
        (
            {},
            {"train_dataset": IterableDataset.from_generator(lambda: iter([{"level": 1}]))},
            "no `seed` .columns: level",
        ),
    ],
    ids=[
        "num_tasks+dataset",
        "num_eval_tasks+dataset",
        "no-length",
        "too-few-tasks",
        "too-few-rows",
        "with-prompt",
        "panel-with-prompt",
        "stream-without-seed",
    ],
)
def test_tasks_that_cannot_be_are_refused(
    random_model: str, tmp_path: Path, options: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_trainer(AgentGRPOTrainer, random_model, tmp_path, arguments=arguments, **options)


def test_a_stream_of_tasks(random_model: str, tmp_path: Path, resets: list[Any]) -> None:
    def tasks() -> Any:
        yield from ({"seed": n, "cell": n % 3} for n in range(100))

    trainer = make_trainer(
        AgentGRPOTrainer,
        random_model,
        tmp_path,
        environment=Recorded,
        shuffle_dataset=False,
        max_steps=2,
        arguments={
            "train_dataset": IterableDataset.from_generator(tasks),
            "eval_dataset": IterableDataset.from_generator(lambda: iter([{"seed": 7, "cell": 2}] * 3)),
        },
    )
    resets.clear()
    trainer.train()
    assert resets == [(n, {"cell": n % 3}) for n in range(4) for _ in range(4)]
    batches = played_episodes(trainer)
    metrics = trainer.evaluate()
    assert metrics["eval_success"] == np.mean([episode.success for episode in batches[0]])
    assert len(batches[0]) == 3


# Environments


def test_an_environment_by_its_id(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(
        AgentGRPOTrainer,
        random_model,
        tmp_path,
        environment="trl_agentpo/FrozenLake-v0",
        environment_kwargs={"is_slippery": False},
        max_turns=2,
        arguments={"action_parser": None},
    )
    trainer.train()
    log = training_logs(trainer)[0]
    # Nothing the untrained model says has the form that is asked for.
    assert (log["turn/valid"], log["episode/turns"], log["episode/actions"]) == (0.0, 2.0, 0.0)
    assert trainer.pool[0].unwrapped.is_slippery is False


def test_arguments_of_the_environment_reach_it(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, environment_kwargs={"length": 9})
    assert [trainer.pool[n].unwrapped.length for n in range(3)] == [9, 9, 9]


def test_what_is_no_environment_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    class NoReset(TextEnvironment):
        instructions = "Nothing to do."

    with pytest.raises(EnvironmentContractError, match="NoReset lacks: a method `reset"):
        make_trainer(AgentGRPOTrainer, "no/such-model", tmp_path, environment=NoReset)


def test_a_reset_that_is_not_reproducible_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    class Restless(Corridor):
        resets = 0

        def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
            Restless.resets += 1
            return f"cell {Restless.resets}", {}

    with pytest.raises(NonDeterministicResetError, match="Restless.reset.seed=.* two different initial states"):
        make_trainer(AgentGRPOTrainer, "no/such-model", tmp_path, environment=Restless)


# Evaluation and logs


@pytest.mark.parametrize(("num_generations_eval", "batch"), [(1, 2), (1, 4), (2, 4), (3, 6)])
def test_evaluation_counts_every_episode_once(
    random_model: str, tmp_path: Path, num_generations_eval: int, batch: int
) -> None:
    trainer = make_trainer(
        AgentGRPOTrainer,
        random_model,
        tmp_path,
        environment_kwargs={"length": 2},
        max_turns=1,
        num_eval_tasks=5,
        num_generations_eval=num_generations_eval,
        per_device_eval_batch_size=batch,
    )
    batches = played_episodes(trainer)
    metrics = trainer.evaluate()
    episodes = [episode for batch in batches for episode in batch]
    assert len(episodes) == 5 * num_generations_eval
    successes = [episode.success for episode in episodes]
    assert 0 < sum(successes) < len(successes)
    assert metrics["eval_success"] == pytest.approx(np.mean(successes), abs=1e-12)
    assert metrics["eval_turn/valid"] == pytest.approx(np.mean([e.turns[0].valid for e in episodes]), abs=1e-12)
    lengths = [len(episode.turns[0].completion_ids) for episode in episodes]
    assert metrics["eval_completions/mean_length"] == pytest.approx(np.mean(lengths), abs=1e-12)
    assert sorted({episode.seed for episode in episodes}) == sorted(trainer.eval_dataset["seed"])


def test_evaluation_compares_the_episodes_of_a_task(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(
        AgentGRPOTrainer,
        random_model,
        tmp_path,
        num_eval_tasks=2,
        num_generations_eval=3,
        per_device_eval_batch_size=6,
    )
    batches = played_episodes(trainer)
    metrics = trainer.evaluate()
    credit = grpo_credit(batches[0], size=3)
    assert max(max(values) for values in credit) > 0.1
    assert list(trainer._logs["advantages"]) == pytest.approx([values[0] for values in credit])
    terms = [
        v
        for e, c in zip(batches[0], credit, strict=True)
        for t, v in zip(e.turns, c, strict=True)
        for _ in t.completion_ids
    ]
    assert metrics["eval_loss"] == pytest.approx(-np.mean(terms), abs=1e-5)


def test_evaluation_during_training_leaves_it_alone(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(
        AgentGRPOTrainer, random_model, tmp_path, max_steps=2, eval_strategy="steps", eval_steps=1, num_eval_tasks=3
    )
    batches = played_episodes(trainer)
    trainer.train()
    assert [len(episodes) for episodes in batches] == [8, 3, 8, 3]
    logs = metrics_of(trainer)
    assert [("loss" in log, "eval_loss" in log) for log in logs[:4]] == [(True, False), (False, True)] * 2
    for log, episodes in zip(logs, batches, strict=False):
        name = "eval_success" if "eval_loss" in log else "success"
        assert log[name] == np.mean([episode.success for episode in episodes])
        prefixes = {key.startswith("eval_") for key in log if key not in ("epoch", "step")}
        assert len(prefixes) == 1


def test_several_panels_can_be_evaluated(random_model: str, tmp_path: Path) -> None:
    panels = {"near": Dataset.from_dict({"cell": [2, 2]}), "far": Dataset.from_dict({"cell": [0, 0, 0]})}
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, arguments={"eval_dataset": panels}, max_turns=1)
    batches = played_episodes(trainer)
    metrics = trainer.evaluate()
    assert metrics["eval_near_success"] == np.mean([episode.success for episode in batches[0]])
    assert metrics["eval_far_success"] == np.mean([episode.success for episode in batches[1]])
    assert {"eval_near_loss", "eval_far_loss"} <= set(metrics)
    assert not any(name.startswith(("eval_success", "eval_episode", "success")) for name in metrics)
    assert [[episode.turns[0].anchor for episode in batch] for batch in batches] == [[2, 2], [0, 0, 0]]


def test_what_is_logged_is_what_was_played(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, max_steps=2, logging_steps=2)
    batches = played_episodes(trainer)
    trainer.train()
    episodes = [episode for batch in batches for episode in batch]
    turns = [turn for episode in episodes for turn in episode.turns]
    lengths = [len(turn.completion_ids) for turn in turns]
    (log,) = training_logs(trainer)

    def of_episodes(value: Callable[[Episode], float]) -> float:
        return pytest.approx(float(np.mean([value(episode) for episode in episodes])))

    assert log["success"] == of_episodes(lambda e: e.turns[-1].reward > 0)
    assert log["episode/return"] == of_episodes(lambda e: sum(turn.reward for turn in e.turns))
    assert log["episode/turns"] == of_episodes(lambda e: len(e.turns))
    assert log["episode/actions"] == of_episodes(lambda e: len(e.turns))
    assert log["episode/truncated"] == of_episodes(lambda e: e.turns[-1].reward == 0)
    assert log["episode/truncated_by_max_turns"] == log["episode/truncated"]
    for limit in ("environment", "max_actions", "max_context_length", "max_episode_length"):
        assert log[f"episode/truncated_by_{limit}"] == 0
    # Each turn has a fresh prompt here.
    assert log["episode/tokens"] == of_episodes(lambda e: sum(len(t.prompt_ids + t.completion_ids) for t in e.turns))
    assert log["episode/failed"] == 0
    assert log["turn/valid"] == pytest.approx(np.mean([len(turn.response) % 3 > 0 for turn in turns]))
    moved = [not (turn.anchor == 0 and turn.actions == ["left"]) for turn in turns]
    assert log["turn/effective"] == pytest.approx(np.mean(moved))
    assert log["completions/mean_length"] == pytest.approx(np.mean(lengths))
    of_batches = [[len(t.completion_ids) for e in batch for t in e.turns] for batch in batches]
    assert log["completions/min_length"] == np.mean([min(values) for values in of_batches])
    assert log["completions/max_length"] == np.mean([max(values) for values in of_batches])
    end = trainer.processing_class.eos_token_id
    assert log["completions/clipped_ratio"] == pytest.approx(np.mean([t.completion_ids[-1] != end for t in turns]))
    assert 0 < log["episode/truncated"] < 1
    assert {"entropy", "grad_norm", "loss", "clip_ratio/region_mean", "num_tokens"} <= set(log)
    full = next(log for log in trainer.state.log_history if "loss" in log)
    assert all(full[name] > 0 for name in ("time/generation", "time/environment", "time/training", "step_time"))
    # All of a step is in `step_time`, and the clocks do not overlap.
    parts = sum(full[name] for name in ("time/generation", "time/environment", "time/training"))
    assert parts < full["step_time"] * 1.05


@pytest.mark.parametrize(("context", "budget"), [("full_history", 220), ("window", 600)])
def test_an_episode_that_outgrows_its_tokens_is_truncated(
    random_model: str, tmp_path: Path, context: str, budget: int
) -> None:
    trainer = make_trainer(
        AgentGRPOTrainer, random_model, tmp_path, context=context, max_episode_length=budget, max_turns=20
    )
    batches = played_episodes(trainer)
    trainer.train()
    (episodes,) = batches
    rows = [merge_turns(episode.turns) for episode in episodes]
    lengths = [sum(len(row.prompt_ids) + len(row.completion_ids) for row in of_episode) for of_episode in rows]
    assert max(lengths) <= budget
    by_length = [episode.limit == "max_episode_length" for episode in episodes]
    assert any(by_length)
    assert training_logs(trainer)[0]["episode/truncated_by_max_episode_length"] == np.mean(by_length)


# Schedules


@pytest.mark.parametrize(
    ("options", "rollouts", "slices"),
    [
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 4, "max_steps": 4}, 2, 4),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2, "max_steps": 1}, 2, 2),
        ({"num_iterations": 2, "max_steps": 4}, 2, 1),
        ({"generation_batch_size": 12, "max_steps": 3}, 1, 3),
        ({"num_iterations": 2, "steps_per_generation": 2, "max_steps": 3}, 1, 2),
    ],
    ids=["several-updates-a-rollout", "several-rollouts-an-update", "iterations", "generation_batch_size", "both"],
)
def test_every_row_is_trained_on_as_often_as_the_schedule_says(
    random_model: str, tmp_path: Path, options: dict[str, Any], rollouts: int, slices: int
) -> None:
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, per_device_train_batch_size=4, **options)
    batches = played_episodes(trainer)
    losses = spy(trainer, "_compute_loss")
    steps = spy(trainer, "training_step")
    trainer.train()
    assert len(batches) == rollouts
    assert all(len(episodes) == 4 * slices for episodes in batches)
    assert len({tuple(e.seed for e in episodes) for episodes in batches}) == rollouts
    assert len(steps) == options["max_steps"] * options.get("gradient_accumulation_steps", 1)
    rows = [row for (_, inputs), _ in losses for row in loss_rows(inputs)]
    expected = [row for e in batches for row in expected_rows(e, grpo_credit(e), merged=False)]
    repeats = len(steps) / (rollouts * slices)
    times = {sequence: sum(row[0] == sequence for row in rows) for sequence, *_ in expected}
    assert set(times.values()) <= {math.floor(repeats), math.ceil(repeats)}
    assert_same_rows(list({row[0]: row for row in rows}.values()), expected)
    assert [log["step"] for log in training_logs(trainer)] == list(range(1, options["max_steps"] + 1))


def test_the_same_seed_gives_the_same_run(random_model: str, tmp_path: Path) -> None:
    def run(seed: int) -> list[dict[str, Any]]:
        options = {"max_steps": 2, "num_eval_tasks": 2, "eval_strategy": "steps", "eval_steps": 1, "seed": seed}
        trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, **options)
        trainer.train()
        return metrics_of(trainer)

    first = run(seed=1)
    assert run(seed=1) == first
    assert run(seed=2) != first


# Models


def adapter_config() -> LoraConfig:
    return LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("wrapped", [False, True], ids=["peft_config", "PeftModel"])
def test_only_the_adapter_is_trained(random_model: str, tmp_path: Path, wrapped: bool, beta: float) -> None:
    model: Any = random_model
    if wrapped:
        torch.manual_seed(0)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(random_model), adapter_config())
    arguments = {} if wrapped else {"peft_config": adapter_config()}
    trainer = make_trainer(
        AgentGRPOTrainer, model, tmp_path, beta=beta, max_steps=2, num_iterations=2, arguments=arguments
    )
    assert isinstance(trainer.model, PeftModel)
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    changed = {name for name, value in trainer.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all("lora_" in name and ".ref." not in name for name in changed)
    if beta:
        logs = training_logs(trainer)
        # The reference is the model as it was: no distance before the first step, some after it.
        assert logs[0]["kl"] == pytest.approx(0.0, abs=1e-7)
        assert logs[1]["kl"] > 1e-6
    trainer.save_model(str(tmp_path / "adapter"))
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()


def test_a_model_object_is_trained_in_place(random_model: str, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(random_model)
    before = copy.deepcopy(model.state_dict())
    trainer = make_trainer(AgentGRPOTrainer, model, tmp_path, beta=0.1)
    trainer.train()
    assert trainer.model is model
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_saved_policy_can_be_loaded(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path / "run")
    trainer.train()
    trainer.save_model(str(tmp_path / "policy"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy")
    for (name, value), (other_name, other) in zip(
        model.named_parameters(), trainer.model.named_parameters(), strict=True
    ):
        assert name == other_name
        assert torch.equal(value, other)
    message = [{"role": "user", "content": "cell 0"}]
    shown = trainer.processing_class.apply_chat_template(message, tokenize=False)
    assert tokenizer.apply_chat_template(message, tokenize=False) == shown
    again = make_trainer(AgentGRPOTrainer, str(tmp_path / "policy"), tmp_path / "run")
    again.train()


@pytest.mark.parametrize(
    ("trainer_class", "paper", "tag", "other"),
    [
        (GiGPOTrainer, "2505.10978", "gigpo", "2402.03300"),
        (AgentGRPOTrainer, "2402.03300", "agent-grpo", "2505.10978"),
    ],
)
def test_the_model_card_cites_the_method(
    random_model: str, tmp_path: Path, trainer_class: type[AgentGRPOTrainer], paper: str, tag: str, other: str
) -> None:
    trainer = make_trainer(trainer_class, random_model, tmp_path)
    trainer.create_model_card(model_name="policy")
    card = (tmp_path / "README.md").read_text()
    assert paper in card
    assert trainer_class._name in card
    assert f"- {tag}\n" in card and "- trl-agentpo\n" in card
    assert other not in card
    assert ("DeepSeekMath" in card) == (trainer_class is AgentGRPOTrainer)


def test_a_model_without_a_chat_template_is_refused(
    random_model: str, tmp_path: Path, tokenizer: Qwen2Tokenizer
) -> None:
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    with pytest.raises(ValueError, match="no chat template. Use an instruction-tuned model"):
        make_trainer(AgentGRPOTrainer, random_model, tmp_path, arguments={"processing_class": bare})


def test_a_prompt_that_does_not_fit_the_model_is_refused(tmp_path: Path, tokenizer: Qwen2Tokenizer) -> None:
    model = save_random_model(tmp_path / "model", tokenizer, max_position_embeddings=64)
    trainer = make_trainer(AgentGRPOTrainer, model, tmp_path)
    with pytest.raises(
        ValueError,
        match="The first prompt of task seed=.* leaves no room.*`max_completion_length`=5: the model.s context is 64",
    ):
        trainer.train()


def test_without_a_configuration_there_is_a_default_one(
    random_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass
    class OnThisMachine(GiGPOConfig):
        use_cpu: bool = True
        bf16: bool | None = False

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(GiGPOTrainer, "_config_class", OnThisMachine)
    trainer = GiGPOTrainer(random_model, Corridor, action_parser=walk_by_length)
    assert type(trainer.args) is OnThisMachine
    assert trainer.args.output_dir == f"{Path(random_model).name}-GiGPO"
    assert trainer.args.max_steps == 200


def test_a_configuration_of_another_kind_is_refused(random_model: str, tmp_path: Path) -> None:
    args = AgentGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, max_steps=1)
    with pytest.raises(TypeError, match="`args` must be a `GiGPOConfig`, got `AgentGRPOConfig`"):
        GiGPOTrainer(random_model, Corridor, args=args)


# Contexts, callbacks, other generators


def test_a_context_of_ones_own(random_model: str, tmp_path: Path, tokenizer: Qwen2Tokenizer) -> None:
    def last_turn_only(task: Any, turns: Any, observation: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{len(turns)}: {observation.text}"}]

    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, arguments={"context": last_turn_only})
    batches = played_episodes(trainer)
    trainer.train()
    for episode in batches[0]:
        for number, turn in enumerate(episode.turns):
            shown = f"<|im_start|>user\n{number}: cell {turn.anchor} of 3<|im_end|>\n<|im_start|>assistant\n"
            assert tokenizer.decode(turn.prompt_ids) == shown


def test_a_context_policy_overrides_the_configuration(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(
        AgentGRPOTrainer, random_model, tmp_path, context="window", arguments={"context": FullHistory()}
    )
    losses = spy(trainer, "_compute_loss")
    trainer.train()
    assert sum(len(loss_rows(inputs)) for (_, inputs), _ in losses) == 8


def test_callbacks_are_called_and_can_stop_the_run(random_model: str, tmp_path: Path) -> None:
    class StopAfterTwo(TrainerCallback):
        logs: list[dict[str, Any]] = []

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            self.logs.append(dict(logs))

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step == 2

    callback = StopAfterTwo()
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, max_steps=5, arguments={"callbacks": [callback]})
    trainer.train()
    assert trainer.state.global_step == 2
    assert ["success" in log for log in callback.logs] == [True, True, False]


def test_continuous_batching(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(
        AgentGRPOTrainer,
        random_model,
        tmp_path,
        use_transformers_continuous_batching=True,
        transformers_continuous_batching_config={"num_blocks": 64, "max_batch_tokens": 1024},
        num_eval_tasks=2,
        max_turns=2,
    )
    batches = played_episodes(trainer)
    trainer.train()
    metrics = trainer.evaluate()
    (log,) = training_logs(trainer)
    assert log["success"] == np.mean([episode.success for episode in batches[0]])
    assert all(1 <= len(turn.completion_ids) <= 5 for episode in batches[0] for turn in episode.turns)
    # In evaluation too, although generation leaves the model in training mode.
    assert metrics["eval_success"] == np.mean([episode.success for episode in batches[1]])
    assert not any(name in metrics for name in ("success", "episode/return"))
