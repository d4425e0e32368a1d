# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Which tasks are trained on and which are evaluated on.

Invariant: a task is a seed and options, and what is drawn for training is disjoint from what is drawn for evaluation: the
two come from different halves of the seeds, whatever the run's seed.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np


PANELS = ("train", "eval")
_HALF = 2**30
_RESERVED_COLUMNS = ("seed", "options")


def draw_task_seeds(num_tasks: int, seed: int, panel: str) -> list[int]:
    """
    Draw the seeds of a panel of tasks.

    Args:
        num_tasks (`int`):
            How many.
        seed (`int`):
            The run's seed: it fixes the panel.
        panel (`str`):
            `"train"` or `"eval"`.

    Returns:
        `list[int]`: different seeds, below 2³⁰ for training and from 2³⁰ on for evaluation. A longer panel begins with
        the shorter one of the same seed.
    """
    which = PANELS.index(panel)
    generator = np.random.default_rng([seed, which])
    drawn: dict[int, None] = {}
    while len(drawn) < num_tasks:
        drawn.setdefault(int(generator.integers(_HALF)))
    return [which * _HALF + value for value in drawn]


def task_of(row: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """
    Read the task from a row of a dataset.

    Args:
        row (`Mapping[str, Any]`):
            Column `seed`; `options`, a dict; and any further columns, which are options under their own names. An option
            that is `None` is not given.

    Returns:
        `tuple[int, dict]`: seed and options for `reset`.

    Raises:
        ValueError: the row has no seed, or a prompt.
    """
    if row.get("seed") is None:
        raise ValueError(
            f"A task row has no `seed` (columns: {', '.join(row)}). Add an integer column `seed`: it fixes the initial "
            "state that the episodes of a group share."
        )
    if "prompt" in row:
        raise ValueError(
            "A task row has a `prompt`, but prompts are written by the environment (its `instructions` and observations) "
            "and the context policy. Remove the column, or rename it to hand it to the environment as an option."
        )
    columns = {key: value for key, value in row.items() if key not in _RESERVED_COLUMNS}
    options = {**columns, **(row.get("options") or {})}
    # Datasets fill up what only other rows have with `None`.
    return int(row["seed"]), {key: value for key, value in options.items() if value is not None}
