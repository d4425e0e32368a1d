# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Watch a language model learn to cross a frozen lake with GiGPO.

On a laptop, nothing to download: a policy of 0.4 million parameters, trained on the CPU.

    python examples/quickstart.py

The same file with a real model, on a GPU:

    python examples/quickstart.py --model Qwen/Qwen2.5-0.5B-Instruct --use_peft --lora_r 16 --lora_alpha 32 \
        --max_steps 200 --num_tasks 256 --output_dir frozenlake-gigpo --push_to_hub

Every option of `GiGPOConfig` and of TRL's `ModelConfig` (LoRA, quantization) is a flag.
"""

import json
import os
import time
from dataclasses import dataclass, field

import matplotlib


matplotlib.use("Agg")

import torch
from datasets import Dataset
from matplotlib import pyplot
from transformers import ProgressCallback
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from trl_agentpo import ActionFormat, AgentGRPOTrainer, FullHistory, GiGPOConfig, GiGPOTrainer, Window
from trl_agentpo.callbacks import SuccessProgressCallback
from trl_agentpo.environment import vocabulary_of
from trl_agentpo.evaluation import SuccessRate, play_at_random
from trl_agentpo.tasks import draw_task_seeds
from trl_agentpo.testing import tiny_policy


FROZEN_LAKE = "trl_agentpo/FrozenLake-v0"
TRAINERS = {"gigpo": GiGPOTrainer, "grpo": AgentGRPOTrainer}

# What the tiny policy needs: a KL term, a firm penalty on bad form and small steps at the end keep it from collapsing, several
# optimizer steps on each batch of 64 episodes make the most of it. A real model starts from `GiGPOConfig`'s defaults.
TINY = {
    "max_steps": 280,
    "learning_rate": 7e-4,
    "lr_scheduler_type": "linear",
    "warmup_steps": 8,
    "max_grad_norm": 0.5,
    "beta": 0.03,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 4,
    "num_tasks": 8,
    "per_device_eval_batch_size": 128,
    "max_completion_length": 20,
    "history_length": 0,
    "invalid_action_penalty": 0.5,
    "bf16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
}


@dataclass
class ScriptArguments:
    """What is trained on what, and how long it is looked at."""

    model: str | None = field(
        default=None, metadata={"help": "A model id or folder. Default: a tiny policy made here."}
    )
    environment: str = field(default=FROZEN_LAKE, metadata={"help": "A gymnasium id."})
    trainer: str = field(default="gigpo", metadata={"help": "'gigpo' or 'grpo'.", "choices": list(TRAINERS)})
    eval_episodes: int = field(default=256, metadata={"help": "Episodes played on each panel, before and after."})


def main(script: ScriptArguments, args: GiGPOConfig, model_config: ModelConfig) -> None:
    """Evaluate, train, evaluate, and draw the curve."""
    started = time.perf_counter()
    model = named_model(script, model_config)
    if model is not None:
        args.model_init_kwargs = {
            "revision": model_config.model_revision,
            "attn_implementation": model_config.attn_implementation,
            "dtype": model_config.dtype,
        }
    trainer = TRAINERS[script.trainer](
        model=model or make_tiny_policy(script, args),
        environment_factory=script.environment,
        args=args,
        quantization_config=get_quantization_config(model_config),
        peft_config=get_peft_config(model_config),
    )
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(SuccessProgressCallback())
    panels = make_panels(trainer.train_dataset, args.seed, script.eval_episodes)
    players = {}
    if vocabulary_of(trainer.pool[0]):
        players["random player"] = {name: play(script, args, panel["seed"]) for name, panel in panels.items()}
    players["untrained policy"] = evaluate(trainer, panels)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    players["trained policy"] = evaluate(trainer, panels)
    trainer.save_model()
    if trainer.is_world_process_zero():
        report(players, script.eval_episodes)
        curve = draw_curve(
            trainer.state.log_history, players, args.output_dir, f"{script.trainer} on {script.environment}"
        )
        print(
            f"\nLearning curve: {curve}\nTrained policy: {args.output_dir}\nTime: {time.perf_counter() - started:.0f} s"
        )
    if args.push_to_hub:
        trainer.push_to_hub()


def named_model(script: ScriptArguments, model_config: ModelConfig) -> str | None:
    """The model the user named, with this script's option or with TRL's."""
    return script.model or model_config.model_name_or_path


def make_tiny_policy(script: ScriptArguments, args: GiGPOConfig) -> str:
    """The tiny policy, built by one process and found in the cache by the others."""
    with args.main_process_first(desc="warm start"):
        if args.process_index == 0:
            print(
                "Warming up a tiny policy: it learns to say what it sees, and acts at random (kept for the next time)."
            )
        return tiny_policy(
            script.environment,
            args.environment_keywords,
            action_format=ActionFormat(args.action_format, args.require_thinking, args.max_actions_per_turn),
            context=FullHistory() if args.context == "full_history" else Window(args.history_length),
            max_turns=args.max_turns,
        )


def make_panels(train_dataset: Dataset, seed: int, episodes: int) -> dict[str, Dataset]:
    """As many episodes on tasks of the training as on tasks it never saw."""
    trained = [train_dataset[i % len(train_dataset)]["seed"] for i in range(episodes)]
    unseen = draw_task_seeds(episodes, seed, "eval")
    return {
        "maps it trains on": Dataset.from_dict({"seed": trained}),
        "maps it never saw": Dataset.from_dict({"seed": unseen}),
    }


def play(script: ScriptArguments, args: GiGPOConfig, seeds: list[int]) -> SuccessRate:
    """What random actions reach."""
    return play_at_random(script.environment, seeds, args.max_turns, args.environment_keywords)


def evaluate(trainer: AgentGRPOTrainer, panels: dict[str, Dataset]) -> dict[str, SuccessRate]:
    """What the policy reaches, sampling as in training."""
    rates = {name: trainer.evaluate(panel)["eval_success"] for name, panel in panels.items()}
    return {name: SuccessRate(round(rate * len(panels[name])), len(panels[name])) for name, rate in rates.items()}


def report(players: dict[str, dict[str, SuccessRate]], episodes: int) -> None:
    """Print success with its 95 % interval."""
    names = list(next(iter(players.values())))
    print(f"\nSuccess in {episodes} episodes, with 95 % interval")
    print(f"{'':18}" + "".join(f"{name:>28}" for name in names))
    for player, rates in players.items():
        print(f"{player:18}" + "".join(f"{rates[name]!s:>28}" for name in names))


def draw_curve(history: list[dict], players: dict[str, dict[str, SuccessRate]], folder: str, title: str) -> str:
    """Success of the training episodes over the updates, with the players beside it."""
    points = [(log["step"], log["success"]) for log in history if "success" in log]
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(*zip(*points, strict=True), color="C0", label="training episodes")
    for colour, (player, rates) in zip(("C1", "C2", "C7"), reversed(players.items()), strict=False):
        for style, (name, rate) in zip(("--", ":"), rates.items(), strict=True):
            axes.axhline(rate.rate, color=colour, linestyle=style, linewidth=1, label=f"{player}, {name}")
    axes.set(xlabel="optimizer step", ylabel="success", ylim=(0, 1), title=title)
    axes.legend(fontsize=7)
    figure.tight_layout()
    path = os.path.join(folder, "learning_curve.png")
    figure.savefig(path, dpi=150)
    return path


if __name__ == "__main__":
    first_look = TrlParser((ScriptArguments, ModelConfig))
    script_arguments, model_arguments, _ = first_look.parse_args_and_config(
        return_remaining_strings=True, fail_with_unknown_args=False
    )
    parser = TrlParser((ScriptArguments, GiGPOConfig, ModelConfig))
    parser.set_defaults(output_dir="quickstart-output", logging_steps=4, save_strategy="no", report_to="none")
    if script_arguments.environment == FROZEN_LAKE:
        parser.set_defaults(environment_kwargs=json.dumps({"is_slippery": False}))
    if named_model(script_arguments, model_arguments) is None:
        parser.set_defaults(**TINY)
        # A model this small is no faster with more threads, and many times slower where processes share the cores.
        torch.set_num_threads(1)
    main(*parser.parse_args_and_config())
