# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
One of two processes that train together, for tests/trainer/test_distributed.py: it writes down what it saw.

    RANK=0 WORLD_SIZE=2 … python tests/distributed_worker.py MODEL FOLDER
"""

import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from support import Corridor
from trainer_support import AnywhereCorridor, Gradients, loss_rows, make_trainer, played_episodes, spy, training_logs

from trl_agentpo import AgentGRPOTrainer, GiGPOTrainer


class Crashing(Corridor):
    """Crashes at the first step of the tasks that say so."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.crashes = bool((options or {}).get("crashes"))
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.crashes:
            raise RuntimeError("out of order")
        return super().step(action)


def make(trainer_class: type[AgentGRPOTrainer], model: str, folder: Path, **options: Any) -> AgentGRPOTrainer:
    """A trainer that takes part."""
    return make_trainer(trainer_class, model, folder, ddp_backend="gloo", max_grad_norm=1e9, **options)


def record(trainer: AgentGRPOTrainer, gradients: Gradients) -> dict[str, Any]:
    """Train, and write down everything that the two processes are to agree or to differ in."""
    episodes = played_episodes(trainer)
    losses = spy(trainer, "_compute_loss")
    calls = spy(trainer.rollout, "generate")
    trainer.train()
    return {
        "episodes": episodes,
        "rows": [row for (_, inputs), _ in losses for row in loss_rows(inputs)],
        "num_losses": len(losses),
        "num_generate_calls": len(calls),
        "gradients": gradients.steps,
        "parameters": {name: value.detach().clone() for name, value in trainer.model.named_parameters()},
        "logs": training_logs(trainer),
    }


def straddling_groups(model: str, folder: Path) -> dict[str, Any]:
    """Six episodes a process in groups of four; the tasks begin at different distances from the goal."""
    gradients = Gradients()
    trainer = make(
        GiGPOTrainer,
        model,
        folder / "straddling",
        per_device_train_batch_size=6,
        max_steps=2,
        max_turns=6,
        environment_kwargs={"length": 6},
        shuffle_dataset=False,
        arguments={
            "callbacks": [gradients],
            "train_dataset": Dataset.from_dict({"seed": list(range(6)), "cell": [4, 4, 0, 4, 0, 0]}),
        },
    )
    return record(trainer, gradients)


def one_process_without_rows(model: str, folder: Path) -> dict[str, Any]:
    """All episodes of the second process crash."""
    gradients = Gradients()
    trainer = make(
        AgentGRPOTrainer,
        model,
        folder / "crashes",
        environment=Crashing,
        per_device_train_batch_size=4,
        shuffle_dataset=False,
        arguments={
            "callbacks": [gradients],
            "train_dataset": Dataset.from_dict({"seed": [1, 2], "crashes": [False, True]}),
        },
    )
    return record(trainer, gradients)


def last_batch_without_rows(model: str, folder: Path) -> dict[str, Any]:
    """An update of two rollouts: all episodes of the second crash, on both processes."""
    gradients = Gradients()
    trainer = make(
        AgentGRPOTrainer,
        model,
        folder / "last-crashes",
        environment=Crashing,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=1,
        shuffle_dataset=False,
        arguments={
            "callbacks": [gradients],
            "train_dataset": Dataset.from_dict({"seed": [1, 2, 3, 4], "crashes": [False, False, True, True]}),
        },
    )
    return record(trainer, gradients)


def evaluation(model: str, folder: Path, num_generations_eval: int, batch: int) -> dict[str, Any]:
    """Five tasks, a number that does not divide among the processes."""
    trainer = make(
        AgentGRPOTrainer,
        model,
        folder / "evaluation",
        environment_kwargs={"length": 2},
        max_turns=1,
        num_eval_tasks=5,
        num_generations_eval=num_generations_eval,
        per_device_eval_batch_size=batch,
    )
    episodes = played_episodes(trainer)
    return {"metrics": trainer.evaluate(), "episodes": episodes, "tasks": trainer.eval_dataset["seed"]}


def resumed_epoch(model: str, folder: Path) -> dict[str, Any]:
    """Three rollouts an epoch; the run is resumed in the second epoch, after a checkpoint that was not finished."""
    options = {
        "per_device_train_batch_size": 4,
        "num_tasks": 6,
        "max_steps": 5,
        "max_turns": 2,
        "environment": AnywhereCorridor,
        "environment_kwargs": {"length": 9},
        "save_strategy": "steps",
        "save_steps": 1,
    }
    unbroken = make(AgentGRPOTrainer, model, folder / "resumed", **options)
    played = played_episodes(unbroken)
    unbroken.train()
    unbroken.accelerator.wait_for_everyone()
    if unbroken.is_world_process_zero():
        (folder / "resumed" / "checkpoint-5" / "agent_state_1.pt").unlink()
    unbroken.accelerator.wait_for_everyone()
    resumed = make(AgentGRPOTrainer, model, folder / "resumed", **options)
    episodes = played_episodes(resumed)
    resumed.train(resume_from_checkpoint=True)
    return {
        "logs": [training_logs(unbroken), training_logs(resumed)],
        "tasks": [[[episode.seed for episode in batch] for batch in batches] for batches in (played, episodes)],
    }


def main(model: str, folder: Path) -> None:
    """Go through all of it and leave a record."""
    records = {
        "straddling": straddling_groups(model, folder),
        "crashes": one_process_without_rows(model, folder),
        "last-crashes": last_batch_without_rows(model, folder),
        "evaluation": [evaluation(model, folder, *setting) for setting in ((1, 2), (2, 4))],
        "resumed": resumed_epoch(model, folder),
    }
    rank = torch.distributed.get_rank()
    (folder / f"rank{rank}.pickle").write_bytes(pickle.dumps(records))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]))
