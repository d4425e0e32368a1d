# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""The README's code runs as it stands, but for the model and the length of training."""

import re
from pathlib import Path
from typing import Any

import pytest

import trl_agentpo


README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)

SHORT = (
    "max_steps=1, use_cpu=True, bf16=False, max_completion_length=4, max_turns=2, gradient_accumulation_steps=1, "
    "report_to='none', save_strategy='no', num_eval_tasks=4"
)


def run(snippet: str, model: str, folder: Path) -> dict[str, Any]:
    """Execute a snippet with a tiny model, in a folder of its own, for one step."""
    snippet = snippet.replace("Qwen/Qwen2.5-0.5B-Instruct", model)
    snippet = re.sub(r'output_dir="([^"]*)"', rf'output_dir="{folder}/\1"', snippet)
    snippet, replaced = re.subn(r"max_steps=\d+", SHORT, snippet)
    assert replaced == 1
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(snippet, "README.md", "exec"), names)
    return names


def test_there_are_two_snippets() -> None:
    assert len(SNIPPETS) == 2


def test_an_environment_and_its_training_fit_in_25_lines() -> None:
    lines = [line for line in SNIPPETS[1].splitlines() if line.strip()]
    assert len(lines) <= 25


@pytest.mark.parametrize("snippet", SNIPPETS, ids=["frozen lake", "own environment"])
def test_the_snippets_train(snippet: str, random_model: str, tmp_path: Path) -> None:
    trainer = run(snippet, random_model, tmp_path)["trainer"]
    assert isinstance(trainer, trl_agentpo.GiGPOTrainer)
    assert trainer.state.global_step == 1
    assert 0 <= trainer.evaluate()["eval_success"] <= 1
