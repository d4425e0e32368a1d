# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""The progress bar shows what matters, and prints nothing."""

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from trl_agentpo.callbacks import SuccessProgressCallback


LOG = {"success": 0.25, "episode/turns": 4.0, "turn/valid": 1.0, "entropy": None, "loss": 0.1}


@pytest.fixture
def callback(tmp_path: object) -> SuccessProgressCallback:
    callback = SuccessProgressCallback()
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    callback.on_train_begin(args, TrainerState(max_steps=4), TrainerControl())
    return callback


def log(callback: SuccessProgressCallback, logs: dict[str, float | None]) -> str:
    callback.on_log(TrainingArguments(use_cpu=True), TrainerState(max_steps=4), TrainerControl(), logs=logs)
    return callback.training_bar.postfix or ""


def test_success_is_in_the_bar(callback: SuccessProgressCallback) -> None:
    assert log(callback, LOG) == "success=0.25, turns=4.00, valid=1.00"


def test_a_log_without_success_leaves_the_bar(callback: SuccessProgressCallback) -> None:
    log(callback, LOG)
    assert log(callback, {"train_runtime": 3.0}) == "success=0.25, turns=4.00, valid=1.00"
