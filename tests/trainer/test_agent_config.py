# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""A wrong value raises before a model is loaded, and the message says field, value and remedy."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import HfArgumentParser
from trl import GRPOConfig, TrlParser

from trl_agentpo import AgentGRPOConfig, GiGPOConfig


def make(folder: Path, **options: Any) -> AgentGRPOConfig:
    return AgentGRPOConfig(output_dir=str(folder), use_cpu=True, bf16=False, **options)


WRONG = [
    # field, wrong value, what the message offers instead
    ("action_format", "json", "'action', 'answer'"),
    ("context", "history", "'window', 'full_history'"),
    ("loss_normalization", "row", "'token', 'turn', 'episode'"),
    ("on_env_error", "ignore", "'mask', 'raise'"),
    ("scale_rewards", "batch", "'group', 'none'"),
    ("multi_objective_aggregation", "normalize_then_sum", "reward_weights"),
    ("max_turns", 0, "1 or more"),
    ("max_turns", -3, "1 or more"),
    ("max_actions", 0, "1 or more"),
    ("max_actions_per_turn", 0, "1 or more"),
    ("num_tasks", 0, "1 or more"),
    ("num_eval_tasks", 0, "1 or more"),
    ("history_length", -1, "0 or more"),
    ("invalid_action_penalty", -0.1, "0 or more"),
    ("invalid_action_penalty", float("nan"), "0 or more"),
    ("invalid_action_penalty", float("inf"), "0 or more"),
    ("num_generations", 1, "Use 8"),
    ("num_generations", None, "Use 8"),
    ("max_completion_length", 0, "one turn"),
    ("max_completion_length", None, "one turn"),
    ("max_episode_length", 256, "Raise the one or lower the other"),
    ("max_episode_length", 100, "Raise the one or lower the other"),
    ("max_turns", 2.5, "whole number"),
    ("max_actions", 1.5, "whole number"),
    ("history_length", 0.5, "whole number"),
    ("num_generations_eval", 3, "per_device_eval_batch_size"),
    ("generation_kwargs", {"max_new_tokens": 5}, "Set that"),
    ("generation_kwargs", {"num_return_sequences": 2}, "Set that"),
    ("use_adaptive_entropy", True, "entropy_coef"),
    ("loss_type", "grpo", "'dapo', 'cispo', 'vespo'"),
    ("loss_type", "bnpo", "'dapo', 'cispo', 'vespo'"),
    ("loss_type", "dr_grpo", "'dapo', 'cispo', 'vespo'"),
    ("loss_type", "sapo", "'dapo', 'cispo', 'vespo'"),
    ("loss_type", "luspo", "'dapo', 'cispo', 'vespo'"),
    ("environment_kwargs", "is_slippery=False", '{"is_slippery": false}'),
    ("environment_kwargs", '{"is_slippery": False}', '{"is_slippery": false}'),
    ("environment_kwargs", '["is_slippery"]', '{"is_slippery": false}'),
    ("environment_kwargs", ["is_slippery"], '{"is_slippery": false}'),
]


@pytest.mark.parametrize(("name", "value", "remedy"), WRONG, ids=[f"{name}={value}" for name, value, _ in WRONG])
def test_a_wrong_value_names_field_value_and_remedy(tmp_path: Path, name: str, value: Any, remedy: str) -> None:
    with pytest.raises(ValueError) as error:
        make(tmp_path, **{name: value})
    message = str(error.value)
    assert f"`{name}`" in message
    assert str(value) in message or (isinstance(value, dict) and repr(*value) in message)
    assert remedy in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("action_format", "answer"),
        ("context", "full_history"),
        ("loss_normalization", "turn"),
        ("loss_normalization", "episode"),
        ("on_env_error", "raise"),
        ("scale_rewards", "none"),
        ("loss_type", "cispo"),
        ("loss_type", "vespo"),
        ("max_turns", 1),
        ("max_actions", 1),
        ("history_length", 0),
        ("invalid_action_penalty", 0),
        ("num_generations", 2),
        ("max_episode_length", 257),
        ("num_generations_eval", 4),
        ("generation_kwargs", {"top_k": 5}),
        ("environment_kwargs", None),
        ("environment_kwargs", {"is_slippery": False}),
    ],
)
def test_a_value_at_the_edge_is_taken(tmp_path: Path, name: str, value: Any) -> None:
    assert getattr(make(tmp_path, **{name: value}), name) == value


@pytest.mark.parametrize(("given", "kept"), [(True, "group"), (False, "none")])
def test_scale_rewards_takes_trls_booleans(tmp_path: Path, given: bool, kept: str) -> None:
    assert make(tmp_path, scale_rewards=given).scale_rewards == kept


def test_defaults(tmp_path: Path) -> None:
    args = make(tmp_path)
    assert args.loss_type == "dapo"
    assert args.context == "window"
    assert args.history_length == 2
    assert args.action_format == "action"
    assert args.require_thinking
    assert args.max_turns == 10
    assert args.max_actions is None
    assert args.max_actions_per_turn == 1
    assert args.max_episode_length is None
    assert args.invalid_action_penalty == 0.1
    assert args.loss_normalization == "token"
    assert args.on_env_error == "mask"
    assert args.scale_rewards == "group"
    assert args.num_generations_eval == 1
    assert args.vllm_importance_sampling_mode == "token_truncate"
    # Four groups of eight episodes an update.
    assert args.num_generations == 8
    assert args.generation_batch_size == 32


def own_fields(config_class: type[AgentGRPOConfig], base: type) -> list[dataclasses.Field]:
    """The fields that a class adds to its base, or gives another default."""
    inherited = {field.name: field.default for field in dataclasses.fields(base)}
    return [f for f in dataclasses.fields(config_class) if f.name not in inherited or inherited[f.name] != f.default]


@pytest.mark.parametrize(("config_class", "base"), [(AgentGRPOConfig, GRPOConfig), (GiGPOConfig, AgentGRPOConfig)])
def test_every_own_field_has_help_and_is_documented(config_class: type[AgentGRPOConfig], base: type) -> None:
    fields = own_fields(config_class, base)
    assert len(fields) > 5
    for field in fields:
        assert field.metadata["help"].endswith("."), field.name
        assert re.search(rf"^ +{field.name} \(", config_class.__doc__, flags=re.MULTILINE), field.name


@pytest.mark.parametrize("parser_class", [HfArgumentParser, TrlParser])
def test_parses_from_the_command_line(tmp_path: Path, parser_class: type[HfArgumentParser]) -> None:
    line = f"--output_dir {tmp_path} --use_cpu --bf16 False --context full_history --max_turns 7 --num_tasks 12"
    line += " --require_thinking False --max_actions 9 --invalid_action_penalty 0.25 --scale_rewards none"
    words = [*line.split(), "--environment_kwargs", '{"is_slippery": false, "size": 5}']
    (args,) = parser_class(AgentGRPOConfig).parse_args_into_dataclasses(words)
    assert (args.context, args.max_turns, args.num_tasks, args.max_actions) == ("full_history", 7, 12, 9)
    assert (args.require_thinking, args.invalid_action_penalty, args.scale_rewards) == (False, 0.25, "none")
    assert args.environment_keywords == {"is_slippery": False, "size": 5}


def test_parses_from_a_yaml_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        f"output_dir: {tmp_path}\nuse_cpu: true\nbf16: false\nenvironment_kwargs:\n  size: 5\nmax_turns: 3\n"
    )
    (args,) = TrlParser(AgentGRPOConfig).parse_args_and_config(["--config", str(file), "--max_actions", "4"])
    assert (args.environment_keywords, args.max_turns, args.max_actions) == ({"size": 5}, 3, 4)


def test_help_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    # A percent sign in a help text would make argparse raise.
    with pytest.raises(SystemExit):
        HfArgumentParser(GiGPOConfig).parse_args_into_dataclasses(["--help"])
    shown = capsys.readouterr().out
    assert "--invalid_action_penalty" in shown
    assert "--anchor_similarity" in shown


def test_environment_keywords_without_any(tmp_path: Path) -> None:
    assert make(tmp_path).environment_keywords == {}


def test_survives_being_written_and_read(tmp_path: Path) -> None:
    args = make(tmp_path, environment_kwargs={"length": 5}, max_turns=3)
    written = args.to_dict()
    assert written["environment_kwargs"] == {"length": 5}
    assert written["max_turns"] == 3
