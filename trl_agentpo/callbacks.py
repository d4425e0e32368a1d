# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
What a person sees while a run goes on, and the alarm that goes off when it collapses.

Invariant: callbacks read logs and change nothing of the training: no weight, no random number. Only
`EchoTrapCallback(stop=True)` does more, and what it does is the same on every process: it ends the run and keeps
checkpoints.
"""

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .collapse import CollapseDetector, CollapseRules, Symptom, mutual_information, thinking_pairs


if TYPE_CHECKING:
    from torch import nn

    from .trainer.agent_trainer import AgentGRPOTrainer


logger = logging.getLogger(__name__)

_SHOWN = {"success": "success", "episode/turns": "turns", "turn/valid": "valid", "entropy": "entropy"}


class SuccessProgressCallback(ProgressCallback):
    """
    The progress bar with success, turns, valid replies and entropy in it, instead of all metrics printed at every log.

    Example:

    ```python
    >>> from transformers import ProgressCallback
    >>> trainer.remove_callback(ProgressCallback)
    >>> trainer.add_callback(SuccessProgressCallback())
    ```
    """

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Show the metrics of a training log in the bar."""
        if state.is_world_process_zero and self.training_bar is not None and logs and "success" in logs:
            shown = {name: f"{logs[key]:.2f}" for key, name in _SHOWN.items() if logs.get(key) is not None}
            self.training_bar.set_postfix(shown)


class EchoTrapCallback(TrainerCallback):
    """
    Warns, once for each symptom, when a policy starts to collapse into fixed replies (RAGEN's echo trap).

    It reads the training logs: `groups/reward_std`, `entropy`, `grad_norm` and `turn/repeated_thinking`. One log is
    one observation, whatever `logging_steps` is. What it remembers it takes from the logs in the trainer's state, so a
    resumed run goes on where it was.

    Example:

    ```python
    >>> trainer.add_callback(EchoTrapCallback(stop=True))
    ```

    Args:
        rules ([`CollapseRules`], *optional*):
            From where on logs count as signs. If `None`, the default rules.
        stop (`bool`, *optional*, defaults to `False`):
            End the run at the first symptom, without a checkpoint of that step. As long as a sign lasts, and after it
            became a symptom, `save_total_limit` deletes nothing: the last checkpoint before the first sign stays.
        trainer ([`AgentGRPOTrainer`], *optional*):
            The trainer, for the mutual information of prompts and thinking.
        mutual_information_steps (`int`, *optional*):
            Measure it every so many optimizer steps. If `None`, never.
        mutual_information_pairs (`int`, *optional*, defaults to `64`):
            From how many turns at most; the cost grows with its square.

    Raises:
        ValueError: an option is out of its range, the trainer is missing, or its weights are spread over processes.
    """

    def __init__(
        self,
        rules: CollapseRules | None = None,
        stop: bool = False,
        trainer: "AgentGRPOTrainer | None" = None,
        mutual_information_steps: int | None = None,
        mutual_information_pairs: int = 64,
    ):
        if mutual_information_steps is not None:
            _check_measurement(trainer, mutual_information_steps, mutual_information_pairs)
        self.rules = rules or CollapseRules()
        self.stop = stop
        self.trainer = trainer
        self.mutual_information_steps = mutual_information_steps
        self.mutual_information_pairs = mutual_information_pairs
        self._detector = CollapseDetector(self.rules)
        self._stopped = False
        self._save_total_limit: int | None = None
        self._warned_of_pairs = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take in what was logged before the run was resumed."""
        self._detector, self._stopped = CollapseDetector(self.rules), False
        for log in state.log_history:
            self._observe(log["step"], log)
        self._guard_checkpoints(args)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Look for symptoms in a training log."""
        symptoms = self._observe(state.global_step, logs or {})
        if state.is_world_process_zero:
            for symptom in symptoms:
                logger.warning(_message(symptom, args.output_dir))
        if self.stop and symptoms:
            self._stopped = control.should_training_stop = True
            control.should_save = False
        self._guard_checkpoints(args)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep `save_strategy="epoch"` from saving what the run was stopped for."""
        if self._stopped:
            control.should_save = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put `save_total_limit` back."""
        self._restore_limit(args)

    def _observe(self, step: int, log: dict[str, Any]) -> list[Symptom]:
        if "groups/reward_std" not in log and "grad_norm" not in log:
            return []
        return self._detector.observe(step, log)

    def _guard_checkpoints(self, args: TrainingArguments) -> None:
        """Delete no checkpoint from the first sign on, until it turns out to have been none."""
        self._restore_limit(args)
        if self.stop and (self._stopped or self._detector.suspects):
            self._save_total_limit, args.save_total_limit = args.save_total_limit, None

    def _restore_limit(self, args: TrainingArguments) -> None:
        if self._save_total_limit is not None:
            args.save_total_limit, self._save_total_limit = self._save_total_limit, None

    # Mutual information

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure the mutual information, if it is time; the other processes wait for the first in their next step."""
        due = self.mutual_information_steps is not None and state.global_step % self.mutual_information_steps == 0
        if due and self.trainer is not None and state.is_world_process_zero:
            self._measure(self.trainer, args.per_device_train_batch_size)

    def _measure(self, trainer: "AgentGRPOTrainer", batch_size: int) -> None:
        start = time.perf_counter()
        pairs = thinking_pairs(trainer.last_episodes, trainer.processing_class.decode, self.mutual_information_pairs)
        if len(pairs) < 2:
            return self._warn_of_pairs(len(pairs))
        model = trainer.accelerator.unwrap_model(trainer.model)
        found = mutual_information(log_likelihoods(model, pairs, batch_size))
        trainer.log_values("echo_trap/mutual_information", [found.mutual_information])
        trainer.log_values("echo_trap/conditional_entropy", [found.conditional_entropy])
        trainer.log_values("echo_trap/retrieval_accuracy", [found.retrieval_accuracy])
        trainer.log_values("time/mutual_information", [time.perf_counter() - start])

    def _warn_of_pairs(self, num_pairs: int) -> None:
        if not self._warned_of_pairs:
            logger.warning(
                "The mutual information was not measured: it needs 2 turns with thinking and different prompts, and "
                f"the last rollout has {num_pairs}. Ask for thinking with `require_thinking=True`."
            )
        self._warned_of_pairs = True


def log_likelihoods(
    model: "nn.Module", pairs: list[tuple[list[int], list[int]]], batch_size: int
) -> NDArray[np.float64]:
    """
    Score each thinking after every prompt.

    Args:
        model (`torch.nn.Module`):
            A causal language model, whole on this process.
        pairs (`list[tuple[list[int], list[int]]]` of length `N`):
            Prompts and thinkings as token ids, none of them empty.
        batch_size (`int`):
            How many sequences to score at a time.

    Returns:
        `NDArray[np.float64]` of shape `(N, N)`: at `[i, j]` the mean log-probability of a token of thinking `i` after
        prompt `j`.
    """
    import torch

    crossed = [(prompt, thinking) for _, thinking in pairs for prompt, _ in pairs]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            scores = [
                score
                for first in range(0, len(crossed), batch_size)
                for score in _mean_logprobs(model, crossed[first : first + batch_size])
            ]
    finally:
        model.train(was_training)
    return np.array(scores, dtype=np.float64).reshape(len(pairs), len(pairs))


def _mean_logprobs(model: "nn.Module", batch: list[tuple[list[int], list[int]]]) -> list[float]:
    """The mean log-probability of the second part of each sequence after the first."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    device = next(model.parameters()).device
    sequences = [torch.tensor([*prompt, *thinking], device=device) for prompt, thinking in batch]
    ids = pad_sequence(sequences, batch_first=True)
    mask = pad_sequence([torch.ones_like(sequence) for sequence in sequences], batch_first=True)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    means = []
    for row, (prompt, thinking) in enumerate(batch):
        first, end = len(prompt), len(prompt) + len(thinking)
        # In float32, and only where it is needed: over the whole batch and vocabulary it would not fit.
        logprobs = logits[row, first - 1 : end - 1].float().log_softmax(-1)
        means.append(logprobs.gather(1, ids[row, first:end, None]).mean().item())
    return means


def _message(symptom: Symptom, output_dir: str) -> str:
    good = _last_checkpoint(output_dir, symptom.clean_step)
    kept = "No checkpoint from before it is left." if good is None else f"The last checkpoint before it: {good}."
    return f"Echo trap, {symptom.name}: {symptom.evidence} {symptom.remedy} {kept}"


def _last_checkpoint(output_dir: str, step: int) -> Path | None:
    """The latest checkpoint up to a step that was written to its end: the trainer's state is written last."""
    folders = {
        int(f.parent.name.rpartition("-")[2]): f.parent
        for f in Path(output_dir).glob("checkpoint-*/trainer_state.json")
    }
    return folders.get(max((number for number in folders if number <= step), default=0))


def _check_measurement(trainer: "AgentGRPOTrainer | None", steps: int, pairs: int) -> None:
    if trainer is None:
        raise ValueError(
            f"`mutual_information_steps`={steps} needs the trainer, got `trainer`=None. Add the callback with "
            "`trainer.add_callback(EchoTrapCallback(trainer=trainer, ...))`."
        )
    if steps < 1 or pairs < 2:
        raise ValueError(
            f"`mutual_information_steps` must be at least 1 and `mutual_information_pairs` at least 2, got {steps} "
            f"and {pairs}. Leave `mutual_information_steps` out to measure nothing."
        )
    if trainer.is_fsdp_enabled or (
        trainer.is_deepspeed_enabled and trainer.accelerator.state.deepspeed_plugin.zero_stage == 3
    ):
        raise ValueError(
            f"`mutual_information_steps`={steps} needs the whole model on one process, which FSDP and DeepSpeed ZeRO-3 "
            "spread over all. Leave it out, or train with DDP or ZeRO-2."
        )
