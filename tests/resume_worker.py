# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Runs that are killed in the middle of training, for tests/trainer/test_resume.py.

    python tests/resume_worker.py MODEL FOLDER

Every run of `RUNS` is started in a process of its own, with its output in a folder of its name, and ends by SIGKILL.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import IterableDataset
from peft import LoraConfig
from trainer_support import AnywhereCorridor, make_trainer

from trl_agentpo import AgentGRPOTrainer, GiGPOTrainer


@dataclass
class Run:
    """
    One run.

    Args:
        options (`dict`):
            Its configuration.
        killed_in (`str`):
            The method in which it is killed.
        killed_at (`int`):
            After how many optimizer steps it is killed.
        last_saved (`int`):
            The step of the last checkpoint that was written to its end.
        trainer_class (`type`, *optional*):
            What trains.
        arguments (`dict`, *optional*):
            Further arguments of the trainer.
    """

    options: dict[str, Any]
    killed_in: str
    killed_at: int
    last_saved: int
    trainer_class: type[AgentGRPOTrainer] = AgentGRPOTrainer
    arguments: dict[str, Any] = field(default_factory=dict)


def tasks() -> Iterator[dict[str, int]]:
    """A stream of tasks."""
    yield from ({"seed": number} for number in range(1000))


RUNS = {
    # Four tasks, two of them in a rollout: an epoch has two steps, and the kill is in the third epoch.
    "several-epochs": Run({"num_tasks": 4, "max_steps": 6, "save_steps": 1}, "_compute_loss", 5, 5),
    # A rollout is trained on in eight steps, and the checkpoint is in the second rollout.
    "inside-a-cycle": Run(
        {
            "num_tasks": 6,
            "per_device_train_batch_size": 2,
            "steps_per_generation": 4,
            "num_iterations": 2,
            "max_steps": 14,
            "save_steps": 2,
            "beta": 0.1,
            "log_completions": True,
        },
        "_compute_loss",
        11,
        10,
        GiGPOTrainer,
    ),
    # Checkpoints fall between two logs and between two evaluations, and updates take two batches.
    "between-logs": Run(
        {
            "num_tasks": 5,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "max_steps": 8,
            "save_steps": 2,
            "logging_steps": 3,
            "eval_strategy": "steps",
            "eval_steps": 3,
            "num_eval_tasks": 2,
        },
        "_compute_loss",
        5,
        4,
    ),
    "stream": Run(
        {"max_steps": 4, "save_steps": 1},
        "_compute_loss",
        3,
        3,
        arguments={"train_dataset": IterableDataset.from_generator(tasks)},
    ),
    "while-saving": Run({"num_tasks": 4, "max_steps": 5, "save_steps": 1}, "_save_rng_state", 4, 3),
    "adapter": Run(
        {"num_tasks": 4, "max_steps": 4, "save_steps": 1},
        "_compute_loss",
        3,
        3,
        arguments={"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")},
    ),
}


def make_run(name: str, model: str, folder: Path) -> AgentGRPOTrainer:
    """The trainer of a run."""
    run = RUNS[name]
    options = {"environment": AnywhereCorridor, "environment_kwargs": {"length": 9}, "max_turns": 6}
    options |= {"save_strategy": "steps", "arguments": run.arguments, **run.options}
    return make_trainer(run.trainer_class, model, folder / name, **options)


def train_and_die(name: str, model: str, folder: Path) -> None:
    """Train until the run's end."""
    trainer = make_run(name, model, folder)
    method: Callable[..., Any] = getattr(trainer, RUNS[name].killed_in)

    def deadly(*args: Any, **kwargs: Any) -> Any:
        if trainer.state.global_step == RUNS[name].killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*args, **kwargs)

    setattr(trainer, RUNS[name].killed_in, deadly)
    trainer.train()


def main(model: str, folder: Path) -> None:
    """Start the runs, one after the other, and check that each was killed."""
    for name in RUNS:
        # Forked: the imports take longer than a run.
        process = os.fork()
        if process == 0:
            train_and_die(name, model, folder)
            os._exit(0)
        _, status = os.waitpid(process, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(f"The run {name} was not killed.")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
