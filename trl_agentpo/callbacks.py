# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
What a person sees while a run goes on.

Invariant: callbacks read logs and change nothing of the training.
"""

from typing import Any

from transformers import ProgressCallback, TrainerControl, TrainerState, TrainingArguments


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
