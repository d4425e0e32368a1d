# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""What the tests of the trainers share: small runs over the corridor, and records of what happens in them."""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support import Corridor
from transformers import PreTrainedTokenizerBase, TrainerCallback

from trl_agentpo import AgentGRPOConfig, AgentGRPOTrainer, Episode, ParsedResponse, Turn


# Small, on the CPU, in float32, and with two groups of four episodes an update.
SMALL: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": [],
    "disable_tqdm": True,
    "save_strategy": "no",
    "logging_steps": 1,
    "max_steps": 1,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 5,
    "max_turns": 4,
    "learning_rate": 1e-2,
}


class AnywhereCorridor(Corridor):
    """A corridor whose start depends on the seed, so that runs on other tasks are other runs."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.cell = int(self.np_random.integers(self.length - 1))
        return self._text(), {"anchor": self.cell}


# Metrics that measure the machine and not the run.
CLOCKS = ("time/", "_time", "_runtime", "_per_second")


def walk_by_length(response: str) -> ParsedResponse:
    """Any text is a step: by the parity of its length to the right or to the left, and sometimes an invalid one."""
    return ParsedResponse(("right" if len(response) % 2 else "left",), valid=len(response) % 3 > 0)


def make_args(config_class: type[AgentGRPOConfig], folder: Path, **options: Any) -> AgentGRPOConfig:
    """A small configuration, with the options of one test."""
    return config_class(output_dir=str(folder), **{**SMALL, **options})


def make_trainer(
    trainer_class: type[AgentGRPOTrainer],
    model: Any,
    folder: Path,
    *,
    environment: Any = Corridor,
    arguments: Mapping[str, Any] | None = None,
    **options: Any,
) -> AgentGRPOTrainer:
    """A trainer over the corridor; `options` go to its configuration and `arguments` to itself."""
    return trainer_class(
        model=model,
        environment_factory=environment,
        args=make_args(trainer_class._config_class, folder, **options),
        **{"action_parser": walk_by_length, **(arguments or {})},
    )


def worker_path() -> str:
    """Where a process of its own finds these helpers, and what else this process was told to find."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))


def short_replies(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Arguments of generation with which replies have several lengths: 12 tokens to choose from instead of 265."""
    spoken = {*range(65, 76), tokenizer.eos_token_id}
    return {"suppress_tokens": [token for token in range(len(tokenizer)) if token not in spoken]}


def metrics_of(trainer: AgentGRPOTrainer) -> list[dict[str, Any]]:
    """What was logged, without what measures the machine."""
    return [
        {name: value for name, value in log.items() if not any(clock in name for clock in CLOCKS)}
        for log in trainer.state.log_history
    ]


def training_logs(trainer: AgentGRPOTrainer) -> list[dict[str, Any]]:
    """What was logged of updates: not evaluations, nor the summary of the run."""
    return [log for log in metrics_of(trainer) if "loss" in log]


def spy(target: Any, name: str) -> list[tuple[tuple[Any, ...], Any]]:
    """Record the arguments and the result of every call of a method."""
    calls: list[tuple[tuple[Any, ...], Any]] = []
    method: Callable[..., Any] = getattr(target, name)

    def recorded(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        calls.append((args, result))
        return result

    setattr(target, name, recorded)
    return calls


def played_episodes(trainer: AgentGRPOTrainer) -> list[list[Episode]]:
    """The episodes of every rollout of a trainer, filled as it plays."""
    batches: list[list[Episode]] = []
    play = trainer.rollout.play

    def recorded(episodes: list[Episode]) -> None:
        play(episodes)
        batches.append(episodes)

    trainer.rollout.play = recorded  # type: ignore[method-assign]
    return batches


class Gradients(TrainerCallback):
    """Keeps the gradients of every optimizer step, as one vector each, before they are clipped."""

    def __init__(self) -> None:
        self.steps: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        self.steps.append(torch.cat([p.grad.flatten().clone() for p in model.parameters() if p.grad is not None]))


def relative_error(value: torch.Tensor, expected: torch.Tensor) -> float:
    """How far a vector is from another, in units of the other."""
    return float((value - expected).norm() / expected.norm())


def group_relative(returns: list[float]) -> list[float]:
    """GRPO's advantages of the episodes of one group, written out: distance from the mean over unbiased spread."""
    mean = sum(returns) / len(returns)
    variance = sum((value - mean) ** 2 for value in returns) / (len(returns) - 1)
    return [(value - mean) / (variance**0.5 + 1e-6) if variance > 0 else 0.0 for value in returns]


def penalised_return(episode: Episode, penalty: float = 0.1) -> float:
    """The sum of an episode's rewards, less the penalty of its invalid turns."""
    return sum(turn.reward - penalty * (not turn.valid) for turn in episode.turns)


def gigpo_credit(
    episodes: list[Episode], gamma: float, weight: float, scaled: bool, size: int = 4, penalty: float = 0.1
) -> list[list[float]]:
    """Eq. 8 of the paper, written out: one advantage for each turn of each episode."""

    def relative(values: list[float]) -> list[float]:
        if len(values) == 1:
            return [0.0]
        return group_relative(values) if scaled else [value - sum(values) / len(values) for value in values]

    credit = [[0.0] * len(episode.turns) for episode in episodes]
    for first in range(0, len(episodes), size):
        numbers = range(first, first + size)
        for number, advantage in zip(numbers, relative([penalised_return(episodes[n]) for n in numbers]), strict=True):
            credit[number] = [advantage] * len(episodes[number].turns)
        buckets = defaultdict(list)
        for number in numbers:
            turns = episodes[number].turns
            for time, turn in enumerate(turns):
                rewards = [later.reward - penalty * (not later.valid) for later in turns[time:]]
                step_return = sum(gamma**wait * reward for wait, reward in enumerate(rewards))
                buckets[turn.anchor].append((number, time, step_return))
        for bucket in buckets.values():
            advantages = relative([step_return for _, _, step_return in bucket])
            for (number, time, _), advantage in zip(bucket, advantages, strict=True):
                credit[number][time] += weight * advantage
    return credit


def sampled_positions(turn: Turn) -> range:
    """Where the sampled tokens of a turn are in its sequence."""
    return range(len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.completion_ids))


def expected_rows(episodes: list[Episode], credit: list[list[float]], merged: bool) -> list[tuple[Any, ...]]:
    """
    The rows of a batch as (sequence, loss mask, advantage at each place): one a turn, or one an episode if `merged`.

    `credit` has one number for each turn of each episode.
    """
    rows = []
    for episode, values in zip(episodes, credit, strict=True):
        pairs = list(zip(episode.turns, values, strict=True))
        for merged_pairs in [pairs] if merged else [[pair] for pair in pairs]:
            last = merged_pairs[-1][0]
            sequence = [*last.prompt_ids, *last.completion_ids]
            mask, advantages = [0] * len(sequence), [0.0] * len(sequence)
            for turn, number in merged_pairs:
                for place in sampled_positions(turn):
                    mask[place], advantages[place] = 1, number
            rows.append((tuple(sequence), tuple(mask), tuple(advantages)))
    return rows


def loss_rows(inputs: Mapping[str, torch.Tensor]) -> list[tuple[Any, ...]]:
    """The rows that reach the loss, unpadded, in the form of [`expected_rows`], without those that only pad."""
    rows = []
    for row in range(inputs["prompt_ids"].size(0)):
        prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()].tolist()
        kept = inputs["completion_mask"][row].bool()
        assert torch.equal(kept.long().sort(descending=True).values, kept.long()), (
            "completions are padded on the right"
        )
        mask = [0] * len(prompt) + inputs["tool_mask"][row][kept].tolist()
        advantages = [0.0] * len(prompt) + inputs["advantages"][row][kept].tolist()
        assert not inputs["advantages"][row][~kept].any(), "padding has no advantage"
        if any(mask):
            rows.append((tuple(prompt + inputs["completion_ids"][row][kept].tolist()), tuple(mask), tuple(advantages)))
    return rows


def assert_same_rows(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]], tolerance: float = 1e-5) -> None:
    """Check that two lists hold the same rows, in whatever order."""
    found, expected = sorted(found), sorted(expected)
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    for row, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(row[2], other[2], atol=tolerance)


def log_probabilities(model: torch.nn.Module, sequence: tuple[int, ...]) -> torch.Tensor:
    """The log-probability of each token of one sequence given those before it; 0 for the first."""
    logits = model(input_ids=torch.tensor([sequence])).logits[0, :-1].float()
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(sequence)[1:, None])[:, 0]
    return torch.cat([torch.zeros(1), chosen])
