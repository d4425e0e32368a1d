# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""A run that was killed goes on as if nothing had happened, and half-written checkpoints are passed over."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from resume_worker import RUNS, make_run
from trainer_support import make_trainer, metrics_of, worker_path

from trl_agentpo import AgentGRPOTrainer
from trl_agentpo.trainer._trl import last_complete_checkpoint


TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def killed(random_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs that were killed."""
    folder = tmp_path_factory.mktemp("killed")
    environment = {**os.environ, "PYTHONPATH": worker_path(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(TESTS / "resume_worker.py"), random_model, str(folder)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stdout + process.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_ends_as_an_unbroken_one(random_model: str, tmp_path: Path, killed: Path, name: str) -> None:
    unbroken = make_run(name, random_model, tmp_path)
    unbroken.train()
    checkpoint = last_complete_checkpoint(str(killed / name), num_processes=1)
    assert checkpoint.endswith(f"checkpoint-{RUNS[name].last_saved}")

    resumed = make_run(name, random_model, killed)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == RUNS[name].options["max_steps"]
    # But for the summary, which is about the steps since the checkpoint, all logs are the same to the last bit.
    expected, found = metrics_of(unbroken), metrics_of(resumed)
    assert len(expected) > 2
    assert found[:-1] == expected[:-1]
    assert any(log["step"] > RUNS[name].last_saved for log in found[:-1])
    for (parameter, value), (_, other) in zip(
        resumed.model.named_parameters(), unbroken.model.named_parameters(), strict=True
    ):
        assert torch.equal(value, other), parameter


def test_the_summary_is_about_the_steps_since_the_checkpoint(random_model: str, tmp_path: Path) -> None:
    options = {"num_tasks": 4, "max_steps": 4, "save_steps": 1, "save_strategy": "steps"}
    make_trainer(AgentGRPOTrainer, random_model, tmp_path, logging_steps=4, **options).train()
    resumed = make_trainer(AgentGRPOTrainer, random_model, tmp_path, logging_steps=4, **options)
    result = resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    alone = make_trainer(AgentGRPOTrainer, random_model, tmp_path / "alone", logging_steps=1, **options)
    alone.train()
    losses = [log["loss"] for log in alone.state.log_history if "loss" in log]
    assert abs(losses[3] - sum(losses) / 4) > 1e-4
    assert result.training_loss == pytest.approx(losses[3], rel=1e-4)
    (log,) = [log for log in resumed.state.log_history if "loss" in log]
    assert log["loss"] == pytest.approx(sum(losses) / 4, rel=1e-4)


@pytest.fixture(scope="module")
def finished(random_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with checkpoints 9, 10 and 11, and another folder that is none."""
    folder = tmp_path_factory.mktemp("finished")
    options = {"max_steps": 3, "save_steps": 1, "save_strategy": "steps", "max_turns": 1}
    make_trainer(AgentGRPOTrainer, random_model, folder, **options).train()
    for step in (3, 2, 1):
        (folder / f"checkpoint-{step}").rename(folder / f"checkpoint-{step + 8}")
    (folder / "checkpoint-best").mkdir()
    return folder


def cut(path: Path) -> None:
    """Cut a file to half its length."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


FILES = [
    "trainer_state.json",
    "agent_state_0.pt",
    "model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
]


@pytest.mark.parametrize("damage", [cut, Path.unlink], ids=["cut", "lost"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_passed_over(
    tmp_path: Path, finished: Path, name: str, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    assert last_complete_checkpoint(str(folder), num_processes=1) == str(folder / "checkpoint-11")
    damage(folder / "checkpoint-11" / name)
    assert last_complete_checkpoint(str(folder), num_processes=1) == str(folder / "checkpoint-10")
    damage(folder / "checkpoint-10" / name)
    assert last_complete_checkpoint(str(folder), num_processes=1) == str(folder / "checkpoint-9")
    damage(folder / "checkpoint-9" / name)
    with pytest.raises(ValueError, match="no complete checkpoint"):
        last_complete_checkpoint(str(folder), num_processes=1)


def test_a_run_that_ended_before_the_record_of_sizes_is_complete(tmp_path: Path, finished: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "checkpoint-11" / "agent_files.json").unlink()
    cut(folder / "checkpoint-10" / "agent_files.json")
    assert last_complete_checkpoint(str(folder), num_processes=1) == str(folder / "checkpoint-11")


def test_every_process_must_have_written_its_part(tmp_path: Path, finished: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    with pytest.raises(ValueError, match="no complete checkpoint"):
        last_complete_checkpoint(str(folder), num_processes=2)
    shutil.copy(folder / "checkpoint-10" / "agent_state_0.pt", folder / "checkpoint-10" / "agent_state_1.pt")
    assert last_complete_checkpoint(str(folder), num_processes=2) == str(folder / "checkpoint-10")


def test_without_a_checkpoint_there_is_nothing_to_resume(random_model: str, tmp_path: Path) -> None:
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path / "new")
    with pytest.raises(ValueError, match="no complete checkpoint in .*new.* to resume from. Start without"):
        trainer.train(resume_from_checkpoint=True)


def test_a_checkpoint_of_the_model_only_cannot_be_resumed(random_model: str, tmp_path: Path) -> None:
    options = {"save_steps": 1, "save_strategy": "steps", "save_only_model": True}
    make_trainer(AgentGRPOTrainer, random_model, tmp_path, **options).train()
    assert (tmp_path / "checkpoint-1" / "model.safetensors").exists()
    trainer = make_trainer(AgentGRPOTrainer, random_model, tmp_path, **options)
    with pytest.raises(ValueError, match="no complete checkpoint"):
        trainer.train(resume_from_checkpoint=True)


def test_old_checkpoints_are_still_removed(random_model: str, tmp_path: Path) -> None:
    options = {"max_steps": 3, "save_steps": 1, "save_strategy": "steps", "save_total_limit": 1, "max_turns": 1}
    make_trainer(AgentGRPOTrainer, random_model, tmp_path, **options).train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]
    assert last_complete_checkpoint(str(tmp_path), num_processes=1).endswith("checkpoint-3")
