# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Episodes as token rows for the loss.

Invariant: every sampled token is in exactly one row, with the context it was sampled in before it. A turn joins the row of
the turn before if its prompt begins with that turn's prompt and completion; where the prefix breaks, a new row begins.
Tokens that the environment wrote, and rows that only pad, are masked and change nothing.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from .episode import Turn


NOT_TRAINED = -1
NO_EPISODE = -1

_PROMPT_KEYS = ("prompt_ids", "prompt_mask")


@dataclass
class TokenRow:
    """
    One sequence of the training batch.

    Args:
        prompt_ids (`list[int]`):
            What came before the first sampled token.
        completion_ids (`list[int]`, *optional*):
            Everything after it: replies, and what the environment wrote between them.
        turn_indices (`list[int]`, *optional*):
            For each completion token the number of the turn it was sampled in, or `NOT_TRAINED`.
        logprobs (`list[float]` or `None`, *optional*):
            For each completion token its sampling log-probability (0 where not sampled), where there are any.
        episode_id (`int`, *optional*):
            The episode, numbered over all processes.
        targets (`dict[str, NDArray[np.float64]]`, *optional*):
            By name, what the loss wants of each completion token, such as `"advantages"`.
    """

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    turn_indices: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None
    episode_id: int = NO_EPISODE
    targets: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def mask(self) -> list[int]:
        """1 for trained tokens, 0 for the others."""
        return [int(turn != NOT_TRAINED) for turn in self.turn_indices]


class Rows(dict[str, Any]):
    """Padded rows, ready for the loss: what [`split_rows`] returns and `training_step` passes through."""


def merge_turns(
    turns: Sequence[Turn], first_turn: int = 0, skip_cut: bool = False, episode_id: int = NO_EPISODE
) -> list[TokenRow]:
    """
    Build the rows of one episode.

    Args:
        turns (`Sequence[Turn]`):
            The episode's turns in time order.
        first_turn (`int`, *optional*, defaults to `0`):
            The number of the first of these turns in the batch.
        skip_cut (`bool`, *optional*, defaults to `False`):
            Whether replies cut by their token limit stay as context but are not trained on.
        episode_id (`int`, *optional*):
            The number of the episode.

    Returns:
        `list[TokenRow]`: the rows. A turn in which nothing was sampled gives none.
    """
    rows: list[TokenRow] = []
    for index, turn in enumerate(turns, start=first_turn):
        if not turn.completion_ids:
            continue
        if not rows or not _begins_with(turn.prompt_ids, rows[-1]):
            logprobs: list[float] | None = None if turn.logprobs is None else []
            rows.append(TokenRow(prompt_ids=turn.prompt_ids, logprobs=logprobs, episode_id=episode_id))
        between = turn.prompt_ids[len(rows[-1].prompt_ids) + len(rows[-1].completion_ids) :]
        _append(rows[-1], between, NOT_TRAINED, None)
        _append(rows[-1], turn.completion_ids, NOT_TRAINED if skip_cut and turn.cut else index, turn.logprobs)
    return rows


def _begins_with(prompt_ids: list[int], row: TokenRow) -> bool:
    start, end = len(row.prompt_ids), len(row.prompt_ids) + len(row.completion_ids)
    return prompt_ids[:start] == row.prompt_ids and prompt_ids[start:end] == row.completion_ids


def _append(row: TokenRow, ids: list[int], turn: int, logprobs: list[float] | None) -> None:
    row.completion_ids += ids
    row.turn_indices += [turn] * len(ids)
    if row.logprobs is not None:
        row.logprobs += [0.0] * len(ids) if logprobs is None else logprobs


def padding_row(token_id: int, with_logprobs: bool) -> TokenRow:
    """
    A row that takes part in the forward pass and in nothing else.

    Args:
        token_id (`int`):
            Any token.
        with_logprobs (`bool`):
            Whether the other rows carry log-probabilities.

    Returns:
        [`TokenRow`]: one token of prompt and one of completion, masked.
    """
    return TokenRow([token_id], [token_id], [NOT_TRAINED], [0.0] if with_logprobs else None)


def padded_count(counts: Sequence[int], multiple: int) -> int:
    """
    How many rows every process must have.

    Args:
        counts (`Sequence[int]`):
            How many each has.
        multiple (`int`):
            In how many equal slices the rows are cut.

    Returns:
        `int`: the largest count, rounded up to a multiple, and never 0.
    """
    return -(-max([*counts, 1]) // multiple) * multiple


def balanced_shares(sizes: Sequence[int], num_shares: int) -> NDArray[np.int64]:
    """
    Deal items of different sizes into shares of about equal size, the largest first to the smallest share.

    Args:
        sizes (`Sequence[int]`):
            How many rows each episode has.
        num_shares (`int`):
            How many processes there are.

    Returns:
        `NDArray[np.int64]` of shape `(num_items,)`: the share of each item. For items of one size no two shares differ by
        more than one item.
    """
    shares = np.zeros(len(sizes), dtype=np.int64)
    totals = np.zeros(num_shares, dtype=np.int64)
    for item in np.argsort(-np.asarray(sizes, dtype=np.int64), kind="stable"):
        shares[item] = np.argmin(totals)
        totals[shares[item]] += sizes[item]
    return shares


def by_episode(rows: Sequence[TokenRow]) -> list[list[TokenRow]]:
    """The rows of each episode, which are next to each other, in the order of the rows."""
    return [list(of_episode) for _, of_episode in itertools.groupby(rows, key=lambda row: row.episode_id)]


def turn_values(row: TokenRow, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """
    Put a value of each turn on the turn's tokens.

    Args:
        row ([`TokenRow`]):
            A row.
        values (`NDArray[np.float64]` of shape `(num_turns,)`):
            One value per turn, as the row numbers them.

    Returns:
        `NDArray[np.float64]` of shape `(num_completion_tokens,)`: the values, 0 where not trained.
    """
    # The number of what is not trained on, -1, takes the 0 at the end.
    return np.append(values, 0.0)[np.array(row.turn_indices, dtype=np.int64)]


def pad_targets(rows: Sequence[TokenRow], name: str, length: int) -> torch.Tensor:
    """
    One target of all rows.

    Args:
        rows (`Sequence[TokenRow]`):
            The rows.
        name (`str`):
            The target.
        length (`int`):
            The padded length of the completions.

    Returns:
        `torch.Tensor` of shape `(num_rows, length)`: the target, 0 beyond a row's end and for rows without it.
    """
    padded = torch.zeros(len(rows), length)
    for number, row in enumerate(rows):
        if name in row.targets:
            target = torch.as_tensor(row.targets[name], dtype=torch.float32)
            padded[number, : len(target)] = target
    return padded


def pad_rows(rows: Sequence[TokenRow], token_id: int) -> Rows:
    """
    The token ids of rows as tensors.

    Args:
        rows (`Sequence[TokenRow]`):
            The rows.
        token_id (`int`):
            What to pad with.

    Returns:
        [`Rows`]: `prompt_ids` (padded on the left) and `completion_ids` (on the right), and their masks.
    """
    prompts = [torch.tensor(row.prompt_ids) for row in rows]
    completions = [torch.tensor(row.completion_ids) for row in rows]
    return Rows(
        prompt_ids=pad_sequence(prompts, batch_first=True, padding_value=token_id, padding_side="left"),
        prompt_mask=pad_sequence([torch.ones_like(ids) for ids in prompts], batch_first=True, padding_side="left"),
        completion_ids=pad_sequence(completions, batch_first=True, padding_value=token_id),
        completion_mask=pad_sequence([torch.ones_like(ids) for ids in completions], batch_first=True),
    )


def split_rows(batch: Mapping[str, Any], size: int) -> list[Rows]:
    """
    Cut a padded batch into chunks, each padded no more than its own rows need.

    Args:
        batch (`Mapping[str, Any]`):
            TRL's batch: tensors with one entry per row, and scalars.
        size (`int`):
            Rows in a chunk.

    Returns:
        `list[Rows]`: the chunks. Scalars are in each.
    """
    count = batch["prompt_ids"].size(0)
    return [_trim(_take(batch, slice(start, start + size))) for start in range(0, count, size)]


def _take(batch: Mapping[str, Any], rows: slice) -> Rows:
    return Rows({k: v[rows] if isinstance(v, torch.Tensor) and v.dim() else v for k, v in batch.items()})


def _trim(batch: Rows) -> Rows:
    prompt = int(batch["prompt_mask"].sum(1).max())
    completion = int(batch["completion_mask"].sum(1).max())
    width = batch["completion_ids"].size(1)
    for key, value in batch.items():
        if key in _PROMPT_KEYS:
            batch[key] = value[:, value.size(1) - prompt :]
        elif isinstance(value, torch.Tensor) and value.dim() == 2 and value.size(1) == width:
            batch[key] = value[:, :completion]
    return batch


def trained_tokens(batch: Mapping[str, Any]) -> float:
    """
    How many tokens of a batch enter the loss.

    Args:
        batch (`Mapping[str, Any]`):
            Padded rows.

    Returns:
        `float`: their number.
    """
    return float((batch["completion_mask"] * batch["tool_mask"]).sum())
