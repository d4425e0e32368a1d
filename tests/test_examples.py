# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""The examples run, as a user starts them, with an untrained model and for two steps."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from trl_agentpo import ActionFormat, FullHistory, GiGPOConfig


QUICKSTART = str(Path(__file__).parents[1] / "examples" / "quickstart.py")

SHORT = [
    *("--max_steps", "2", "--num_tasks", "4", "--eval_episodes", "6", "--max_turns", "2", "--logging_steps", "1"),
    *("--max_completion_length", "4", "--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "2"),
    *("--use_cpu", "--bf16", "False", "--gradient_checkpointing", "False"),
]


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def check_report(output: str, folder: Path) -> None:
    """All players are reported on both panels, and the curve is a picture."""
    lines = output.splitlines()
    for player in ("random player", "untrained policy", "trained policy"):
        (line,) = [line for line in lines if line.startswith(player)]
        assert line.count("%") == 6
    assert (folder / "quickstart-output" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("trainer", ["gigpo", "grpo"])
def test_quickstart(random_model: str, tmp_path: Path, trainer: str) -> None:
    output = run([sys.executable, QUICKSTART, "--model", random_model, "--trainer", trainer, *SHORT], tmp_path)
    check_report(output, tmp_path)


def test_quickstart_with_lora_on_another_environment(random_model: str, tmp_path: Path) -> None:
    options = ["--environment", "trl_agentpo/Sokoban-v0", "--use_peft"]
    output = run([sys.executable, QUICKSTART, "--model", random_model, *options, *SHORT], tmp_path)
    check_report(output, tmp_path)
    assert (tmp_path / "quickstart-output" / "adapter_model.safetensors").exists()


def test_a_model_in_a_config_file_is_the_model_that_is_trained(random_model: str, tmp_path: Path) -> None:
    """And the tiny policy's settings stay out of it: they would set `beta`."""
    (tmp_path / "config.yaml").write_text(f"model_name_or_path: {random_model}\nmax_steps: 2\ndtype: float32\n")
    output = run([sys.executable, QUICKSTART, "--config", "config.yaml", *SHORT], tmp_path)
    check_report(output, tmp_path)
    trained = torch.load(tmp_path / "quickstart-output" / "training_args.bin", weights_only=False)
    assert (trained.beta, trained.history_length, trained.environment_kwargs) == (0.0, 2, {"is_slippery": False})
    assert AutoConfig.from_pretrained(tmp_path / "quickstart-output").hidden_size == 32


def test_the_tiny_policy_is_warmed_up_in_the_form_of_the_run(tmp_path: Path) -> None:
    """The reply of another form would begin as an invalid one;"""
    spec = importlib.util.spec_from_file_location("quickstart", QUICKSTART)
    assert spec is not None and spec.loader is not None
    quickstart = importlib.util.module_from_spec(spec)
    sys.modules["quickstart"] = quickstart
    spec.loader.exec_module(quickstart)
    asked = {}
    quickstart.tiny_policy = lambda *args, **kwargs: asked.update(kwargs, args=args) or "policy"
    args = GiGPOConfig(action_format="answer", context="full_history", max_turns=3, use_cpu=True, bf16=False)
    assert quickstart.make_tiny_policy(quickstart.ScriptArguments(), args) == "policy"
    assert asked["action_format"] == ActionFormat("answer")
    assert isinstance(asked["context"], FullHistory)
    assert asked["max_turns"] == 3


@pytest.mark.slow
def test_quickstart_on_two_processes(random_model: str, tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "--cpu"]
    output = run([*launch, QUICKSTART, "--model", random_model, *SHORT], tmp_path)
    check_report(output, tmp_path)
