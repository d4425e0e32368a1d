# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""The options of GiGPO and the preset of its reference implementation."""

from pathlib import Path
from typing import Any

import pytest
from transformers import HfArgumentParser

from trl_agentpo import AgentGRPOConfig, GiGPOConfig


def make(folder: Path, **options: Any) -> GiGPOConfig:
    return GiGPOConfig(output_dir=str(folder), use_cpu=True, bf16=False, **options)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("gamma", -0.1, "[0, 1]"),
        ("gamma", 1.01, "[0, 1]"),
        ("gamma", float("nan"), "[0, 1]"),
        ("step_advantage_weight", -1.0, "0 or more"),
        ("step_advantage_weight", float("nan"), "0 or more"),
        ("step_advantage_weight", float("inf"), "0 or more"),
        ("anchor_similarity", 0, "(0, 1]"),
        ("anchor_similarity", 1.2, "(0, 1]"),
        ("anchor_similarity", float("nan"), "(0, 1]"),
        ("episode_baseline", "group", "'episode', 'turn'"),
        ("single_score", "drop", "'zero', 'keep'"),
        ("invalid_penalty_mode", "token", "'reward', 'row'"),
        # What AgentGRPOConfig refuses is refused here as well.
        ("loss_type", "grpo", "'dapo'"),
        ("scale_rewards", "batch", "'group', 'none'"),
        ("max_turns", 0, "1 or more"),
    ],
)
def test_a_wrong_value_names_field_value_and_remedy(tmp_path: Path, name: str, value: Any, remedy: str) -> None:
    with pytest.raises(ValueError) as error:
        make(tmp_path, **{name: value})
    message = str(error.value)
    assert f"`{name}`" in message
    assert str(value) in message
    assert remedy in message


@pytest.mark.parametrize(
    ("name", "value"),
    [("gamma", 0), ("gamma", 1), ("step_advantage_weight", 0), ("anchor_similarity", 0.01), ("single_score", "keep")],
)
def test_a_value_at_the_edge_is_taken(tmp_path: Path, name: str, value: Any) -> None:
    assert getattr(make(tmp_path, **{name: value}), name) == value


def test_defaults_are_the_papers(tmp_path: Path) -> None:
    args = make(tmp_path)
    assert (args.gamma, args.step_advantage_weight, args.anchor_similarity) == (0.95, 1.0, 1.0)
    assert (args.episode_baseline, args.single_score, args.invalid_penalty_mode) == ("episode", "zero", "reward")
    assert args.invalid_action_penalty == 0.1
    assert args.beta == 0.0


def test_preset_of_the_reference(tmp_path: Path) -> None:
    args = GiGPOConfig.verl_agent(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    assert type(args) is GiGPOConfig
    assert (args.episode_baseline, args.invalid_penalty_mode, args.single_score) == ("turn", "row", "keep")
    assert (args.context, args.history_length) == ("window", 2)
    assert (args.beta, args.epsilon, args.gamma, args.step_advantage_weight) == (0.01, 0.2, 0.95, 1.0)
    # The reference's KL term is the plain k3 estimate.
    assert not args.use_bias_correction_kl


def test_preset_yields_to_overrides_and_is_checked(tmp_path: Path) -> None:
    args = GiGPOConfig.verl_agent(output_dir=str(tmp_path), use_cpu=True, bf16=False, beta=0.0, history_length=5)
    assert (args.beta, args.history_length, args.episode_baseline) == (0.0, 5, "turn")
    with pytest.raises(ValueError, match="gamma"):
        GiGPOConfig.verl_agent(output_dir=str(tmp_path), use_cpu=True, bf16=False, gamma=2.0)


def test_is_an_agent_config_and_parses_from_the_command_line(tmp_path: Path) -> None:
    line = f"--output_dir {tmp_path} --use_cpu --bf16 False --gamma 0.5 --anchor_similarity 0.9 --single_score keep"
    (args,) = HfArgumentParser(GiGPOConfig).parse_args_into_dataclasses([*line.split(), "--max_turns", "3"])
    assert isinstance(args, AgentGRPOConfig)
    assert (args.gamma, args.anchor_similarity, args.single_score, args.max_turns) == (0.5, 0.9, "keep", 3)
