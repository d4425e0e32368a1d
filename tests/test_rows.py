# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Rows: that they hold what was sampled, and that the gradient does not depend on how turns were put into rows.

The gradient is taken through a real model in double precision, and the loss is a plain loop over tokens, not TRL's.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from trl.trainer.utils import pad

from trl_agentpo.episode import Turn
from trl_agentpo.rows import (
    NOT_TRAINED,
    Rows,
    TokenRow,
    balanced_shares,
    by_episode,
    merge_turns,
    pad_rows,
    pad_targets,
    padded_count,
    padding_row,
    split_rows,
    trained_tokens,
    turn_values,
)


PAD = 0


def turn(prompt_ids: list[int], completion_ids: list[int], cut: bool = False, logprobs: Any = None) -> Turn:
    return Turn("", 0, prompt_ids, completion_ids, "", cut=cut, logprobs=logprobs)


# Episodes of turns that continue one another, repeat, or begin anew. With two kinds of token, accidents happen.


@st.composite
def episodes(draw: st.DrawFn, with_logprobs: bool = False, vocabulary: int = 2) -> list[Turn]:
    token = st.integers(0, vocabulary - 1)
    turns: list[Turn] = []
    for _ in range(draw(st.integers(0, 6))):
        prompt_ids = draw(st.lists(token, min_size=1, max_size=4))
        if turns and draw(st.booleans()):
            prompt_ids = turns[-1].prompt_ids + turns[-1].completion_ids + draw(st.lists(token, max_size=3))
        completion_ids = draw(st.lists(token, max_size=3))
        logprobs = [-float(100 * len(turns) + n) for n, _ in enumerate(completion_ids, 1)] if with_logprobs else None
        turns.append(turn(prompt_ids, completion_ids, draw(st.booleans()), logprobs))
    return turns


def sampled_tokens(turns: Sequence[Turn], first: int = 0) -> list[tuple[int, tuple[int, ...], int]]:
    """Every sampled token, with its turn and everything that was before it."""
    return [
        (number, (*t.prompt_ids, *t.completion_ids[:n]), token)
        for number, t in enumerate(turns, start=first)
        for n, token in enumerate(t.completion_ids)
    ]


def trained_in(rows: Sequence[TokenRow]) -> list[tuple[int, tuple[int, ...], int]]:
    """The same, read from rows."""
    return [
        (number, (*row.prompt_ids, *row.completion_ids[:n]), token)
        for row in rows
        for n, (token, number) in enumerate(zip(row.completion_ids, row.turn_indices, strict=True))
        if number != NOT_TRAINED
    ]


# Merging


@given(episodes(), st.integers(0, 50))
def test_every_sampled_token_is_trained_once_with_what_was_before_it(turns: list[Turn], first: int) -> None:
    assert trained_in(merge_turns(turns, first)) == sampled_tokens(turns, first)


@given(episodes())
def test_a_row_begins_exactly_where_the_prefix_breaks(turns: list[Turn]) -> None:
    sampled = [t for t in turns if t.completion_ids]
    starts, so_far = [], None
    for t in sampled:
        whole = [*t.prompt_ids, *t.completion_ids]
        # The next prompt must begin with all that came before, so the longest sequence so far is the last.
        if so_far is None or t.prompt_ids[: len(so_far)] != so_far:
            starts.append(t.prompt_ids)
        so_far = whole
    assert [row.prompt_ids for row in merge_turns(turns)] == starts


@given(episodes())
def test_what_was_not_sampled_is_masked_and_a_row_ends_with_a_reply(turns: list[Turn]) -> None:
    rows = merge_turns(turns)
    for row in rows:
        assert row.mask == [0 if number == NOT_TRAINED else 1 for number in row.turn_indices]
        assert row.mask[0] == row.mask[-1] == 1
    assert sum(sum(row.mask) for row in rows) == sum(len(t.completion_ids) for t in turns)


@given(episodes())
def test_cut_replies_can_be_context_only(turns: list[Turn]) -> None:
    rows, kept = merge_turns(turns, skip_cut=True), merge_turns(turns)
    assert [(row.prompt_ids, row.completion_ids) for row in rows] == [(r.prompt_ids, r.completion_ids) for r in kept]
    expected = [entry for entry in sampled_tokens(turns) if not turns[entry[0]].cut]
    assert trained_in(rows) == expected


@given(episodes(with_logprobs=True))
def test_log_probabilities_stay_with_their_tokens(turns: list[Turn]) -> None:
    found = []
    for row in merge_turns(turns):
        assert row.logprobs is not None
        found += [p for p, number in zip(row.logprobs, row.turn_indices, strict=True) if number != NOT_TRAINED]
        assert all(p == 0.0 for p, number in zip(row.logprobs, row.turn_indices, strict=True) if number == NOT_TRAINED)
    assert found == [p for t in turns for p in t.logprobs]


@given(episodes(with_logprobs=True))
def test_merging_changes_no_turn(turns: list[Turn]) -> None:
    before = [(list(t.prompt_ids), list(t.completion_ids), list(t.logprobs)) for t in turns]
    for row in merge_turns(turns):
        row.completion_ids.append(9)
        row.logprobs.append(9.0)
    assert [(t.prompt_ids, t.completion_ids, t.logprobs) for t in turns] == before


def test_a_dialogue_by_hand() -> None:
    turns = [turn([1, 2], [3, 4]), turn([1, 2, 3, 4, 5, 6], [7]), turn([1, 2, 3, 4, 5, 6, 7], [8, 9])]
    assert merge_turns(turns, first_turn=10) == [
        TokenRow([1, 2], [3, 4, 5, 6, 7, 8, 9], [10, 10, NOT_TRAINED, NOT_TRAINED, 11, 12, 12])
    ]


def test_a_window_by_hand() -> None:
    turns = [turn([1, 2], [3]), turn([1, 2, 5], [3]), turn([1], [3], logprobs=None)]
    assert merge_turns(turns) == [TokenRow([1, 2], [3], [0]), TokenRow([1, 2, 5], [3], [1]), TokenRow([1], [3], [2])]


def test_one_changed_token_breaks_the_prefix() -> None:
    for changed in range(4):
        prompt = [1, 2, 3, 4, 5]
        prompt[changed] += 50
        assert len(merge_turns([turn([1, 2], [3, 4]), turn(prompt, [6])])) == 2


def test_a_turn_without_tokens_gives_no_row_and_keeps_its_number() -> None:
    assert merge_turns([]) == merge_turns([turn([1], [])]) == []
    assert merge_turns([turn([1], []), turn([1, 2], [3]), turn([1, 2, 3], []), turn([1, 2, 3, 4], [5])]) == [
        TokenRow([1, 2], [3, 4, 5], [1, NOT_TRAINED, 3])
    ]


# Padding


def test_a_padding_row_is_masked_and_like_the_others() -> None:
    for with_logprobs in (True, False):
        row = padding_row(7, with_logprobs)
        assert (row.prompt_ids, row.completion_ids, row.mask) == ([7], [7], [0])
        assert row.logprobs == ([0.0] if with_logprobs else None)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(1, 9))
def test_the_padded_count_is_the_least_that_fits_all(counts: list[int], multiple: int) -> None:
    found = padded_count(counts, multiple)
    assert found == next(n for n in range(1, 1000) if n >= max(counts) and n % multiple == 0)


# Targets


def with_advantages(rows: list[TokenRow], values: NDArray[np.float64], length: int) -> torch.Tensor:
    for row in rows:
        row.targets["advantages"] = turn_values(row, values)
    return pad_targets(rows, "advantages", length)


@given(st.lists(episodes(), min_size=1, max_size=3), st.integers(0, 3), st.data())
def test_every_token_gets_the_advantage_of_its_turn(parts: list[list[Turn]], extra: int, data: st.DataObject) -> None:
    numbers = np.cumsum([0, *map(len, parts)]).tolist()
    rows = [row for part, first in zip(parts, numbers, strict=False) for row in merge_turns(part, first, True)]
    rows.append(padding_row(3, False))
    values = data.draw(st.lists(st.floats(-9, 9, width=32), min_size=numbers[-1], max_size=numbers[-1]))
    length = max(len(row.completion_ids) for row in rows) + extra
    expected = torch.zeros(len(rows), length)
    for i, row in enumerate(rows):
        for j, number in enumerate(row.turn_indices):
            if number >= 0:
                expected[i, j] = values[number]
    found = with_advantages(rows, np.array(values), length)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def test_without_a_trained_turn_all_advantages_are_zero() -> None:
    assert torch.equal(with_advantages([padding_row(3, False)], np.zeros(0), 4), torch.zeros(1, 4))


def test_a_row_without_a_target_has_zeros_there() -> None:
    rows = [TokenRow([1], [2, 3], [0, 0], targets={"returns": np.array([0.5, 0.25])}), padding_row(3, False)]
    assert pad_targets(rows, "returns", 3).tolist() == [[0.5, 0.25, 0], [0, 0, 0]]
    assert pad_targets(rows, "old_values", 1).tolist() == [[0], [0]]


# Dealing rows out


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 4))
def test_shares_hold_each_item_once_and_none_could_give_its_smallest_away(sizes: list[int], num_shares: int) -> None:
    shares = balanced_shares(sizes, num_shares)
    assert len(shares) == len(sizes)
    assert set(shares.tolist()) <= set(range(num_shares))
    totals = [sum(size for size, share in zip(sizes, shares, strict=True) if share == n) for n in range(num_shares)]
    for n in range(num_shares):
        own = [size for size, share in zip(sizes, shares, strict=True) if share == n]
        assert not own or totals[n] - min(own) <= min(totals)


@given(st.integers(0, 30), st.integers(1, 5))
def test_items_of_one_size_are_dealt_out_evenly(number: int, num_shares: int) -> None:
    counts = np.bincount(balanced_shares([3] * number, num_shares), minlength=num_shares)
    assert counts.sum() == number
    assert counts.max() - counts.min() <= 1


def test_rows_by_episode() -> None:
    rows = [TokenRow([n], episode_id=episode) for n, episode in enumerate([4, 4, 7, 2])]
    assert [[row.prompt_ids for row in of_episode] for of_episode in by_episode(rows)] == [[[0], [1]], [[2]], [[3]]]
    assert by_episode([]) == []


def test_the_episode_is_on_each_of_its_rows() -> None:
    turns = [turn([1, 2], [3]), turn([9], [3])]
    assert [row.episode_id for row in merge_turns(turns, episode_id=5)] == [5, 5]


def test_rows_are_padded_as_trl_does() -> None:
    rows = [TokenRow([1, 2, 3], [4], [0]), TokenRow([5], [6, 7], [0, 0])]
    expected = batch_of(rows)
    padded = pad_rows(rows, PAD)
    assert set(padded) == {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask"}
    for name, values in padded.items():
        assert torch.equal(values, expected[name]), name


# Batches as TRL pads them


def batch_of(rows: Sequence[TokenRow], advantages: Sequence[float] = ()) -> dict[str, Any]:
    """TRL's batch: prompts padded on the left, everything of the completion on the right."""

    def padded(values: Sequence[Sequence[float]], side: str, value: float = 0) -> torch.Tensor:
        return pad([torch.tensor(v) for v in values], padding_value=value, padding_side=side)

    batch = {
        "prompt_ids": padded([row.prompt_ids for row in rows], "left", PAD),
        "prompt_mask": padded([[1] * len(row.prompt_ids) for row in rows], "left"),
        "completion_ids": padded([row.completion_ids for row in rows], "right", PAD),
        "completion_mask": padded([[1] * len(row.completion_ids) for row in rows], "right"),
        # TRL pads this one with 1: the completion mask covers for it.
        "tool_mask": padded([row.mask for row in rows], "right", 1),
    }
    values = np.array(advantages or [0.0] * (1 + max(n for row in rows for n in [0, *row.turn_indices])))
    batch["advantages"] = with_advantages(list(rows), values, batch["completion_ids"].size(1))
    return batch


token_rows = st.builds(
    lambda prompt, completion, mask: TokenRow(
        prompt, completion, [0 if m else NOT_TRAINED for m in mask[: len(completion)]]
    ),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
)


@given(st.lists(token_rows, min_size=1, max_size=7), st.integers(1, 9))
def test_chunks_hold_every_row_in_order_and_every_token(rows: list[TokenRow], size: int) -> None:
    batch = batch_of(rows, [2.5])
    batch["old_per_token_logps"] = torch.rand_like(batch["advantages"]) * batch["completion_mask"]
    batch["row"] = torch.arange(len(rows))
    batch["num_items_in_batch"] = torch.tensor(17)
    batch["nothing"] = None
    chunks = split_rows(batch, size)

    assert all(isinstance(chunk, Rows) for chunk in chunks)
    assert [len(chunk["row"]) for chunk in chunks[:-1]] == [size] * (len(chunks) - 1)
    assert torch.cat([chunk["row"] for chunk in chunks]).tolist() == list(range(len(rows)))
    for chunk in chunks:
        assert chunk["num_items_in_batch"] == 17
        assert chunk["nothing"] is None
        for i, number in enumerate(chunk["row"].tolist()):
            row = rows[number]
            shown = chunk["completion_mask"][i].bool()
            assert chunk["prompt_ids"][i][chunk["prompt_mask"][i].bool()].tolist() == row.prompt_ids
            assert chunk["completion_ids"][i][shown].tolist() == row.completion_ids
            assert chunk["tool_mask"][i][shown].tolist() == row.mask
            assert chunk["advantages"][i][shown].tolist() == [2.5 * m for m in row.mask]
            old = batch["old_per_token_logps"][number]
            assert torch.equal(chunk["old_per_token_logps"][i][shown], old[: len(row.completion_ids)])
        # No wider than its own longest row.
        members = [rows[n] for n in chunk["row"].tolist()]
        assert chunk["prompt_ids"].size(1) == max(len(row.prompt_ids) for row in members)
        widths = {chunk[key].size(1) for key in ("completion_ids", "tool_mask", "advantages", "old_per_token_logps")}
        assert widths == {max(len(row.completion_ids) for row in members)}


def test_splitting_leaves_the_batch_as_it_was() -> None:
    batch = batch_of([TokenRow([1] * 5, [2], [0]), TokenRow([1], [2] * 4, [0] * 4)])
    before = {key: value.clone() for key, value in batch.items()}
    split_rows(batch, 1)
    assert all(torch.equal(batch[key], before[key]) for key in before)


@given(st.lists(token_rows, min_size=1, max_size=7), st.integers(1, 9))
def test_trained_tokens_are_those_of_the_masks(rows: list[TokenRow], size: int) -> None:
    batch = batch_of([*rows, padding_row(1, False)])
    assert trained_tokens(batch) == sum(sum(row.mask) for row in rows)
    assert sum(trained_tokens(chunk) for chunk in split_rows(batch, size)) == trained_tokens(batch)


# Through a model


@pytest.fixture(scope="module")
def model(random_model: str) -> Qwen2ForCausalLM:
    """The random model in double precision throughout, with weights so large that its output depends on its input."""
    model = Qwen2ForCausalLM.from_pretrained(random_model, dtype=torch.float64)
    for module in list(model.modules()):
        for name, child in module.named_children():
            # Theirs compute in single precision, whatever the model's.
            if isinstance(child, Qwen2RMSNorm):
                setattr(
                    module, name, torch.nn.RMSNorm(child.weight.shape, child.variance_epsilon, dtype=torch.float64)
                )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model.eval()


def log_probabilities(model: Qwen2ForCausalLM, batch: dict[str, Any]) -> torch.Tensor:
    """Of each completion token, as TRL takes them: padding is masked in the attention."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    return logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0][:, -batch["completion_ids"].size(1) :]


def token_losses(logps: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """A loss per token that is linear in the advantage and in nothing else: exp(log p / 2) for the importance ratio."""
    return -advantages * (logps / 2).exp()


def gradient(model: Qwen2ForCausalLM, batches: Sequence[dict[str, Any]]) -> torch.Tensor:
    """The gradient of the sum of the losses of all trained tokens."""
    model.zero_grad()
    for batch in batches:
        losses = token_losses(log_probabilities(model, batch), batch["advantages"])
        (losses * batch["completion_mask"] * batch["tool_mask"]).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def gradient_by_loop(model: Qwen2ForCausalLM, turns: Sequence[Turn], advantages: Sequence[float]) -> torch.Tensor:
    """The same from one forward pass per turn, without padding, masks or rows."""
    model.zero_grad()
    for t, advantage in zip(turns, advantages, strict=True):
        ids = torch.tensor([t.prompt_ids + t.completion_ids])
        logps = model(input_ids=ids).logits[0].log_softmax(-1)
        for n, token in enumerate(t.completion_ids):
            (token_losses(logps[len(t.prompt_ids) + n - 1, token], torch.tensor(advantage))).backward(
                retain_graph=True
            )
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def dialogue(lengths: Sequence[tuple[int, int]], seed: int = 0) -> list[Turn]:
    """Turns of full history: new prompt tokens and reply tokens, by turn."""
    generator = np.random.default_rng(seed)
    turns: list[Turn] = []
    seen: list[int] = []
    for new, reply in lengths:
        prompt_ids = seen + generator.integers(1, 200, new).tolist()
        turns.append(turn(prompt_ids, generator.integers(1, 200, reply).tolist()))
        seen = prompt_ids + turns[-1].completion_ids
    return turns


LENGTHS = [(7, 4), (3, 1), (5, 6), (1, 3)]
# Exact in single precision, in which TRL keeps advantages.
ADVANTAGES = [0.75, -1.25, 2.125, -0.375]


def relative_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_the_gradient_of_a_merged_row_is_the_sum_of_its_turns(model: Qwen2ForCausalLM) -> None:
    turns = dialogue(LENGTHS)
    merged = merge_turns(turns)
    split = [row for number, t in enumerate(turns) for row in merge_turns([t], number)]
    assert (len(merged), len(split)) == (1, 4)

    expected = gradient_by_loop(model, turns, ADVANTAGES)
    one_row = gradient(model, [batch_of(merged, ADVANTAGES)])
    row_by_row = gradient(model, [batch_of([row], ADVANTAGES) for row in split])
    assert relative_difference(one_row, expected) < 1e-14
    assert relative_difference(row_by_row, expected) < 1e-14

    # Each thing the equality rests on matters: without it the gradients are far apart.
    unmasked = batch_of(merged, ADVANTAGES)
    unmasked["advantages"][unmasked["tool_mask"] == 0] = 1.0
    unmasked["tool_mask"][:] = 1
    assert relative_difference(gradient(model, [unmasked]), expected) > 1e-2
    assert relative_difference(gradient(model, [batch_of(merged, ADVANTAGES[::-1])]), expected) > 1e-2


def test_the_gradient_does_not_depend_on_padding_or_chunks(model: Qwen2ForCausalLM) -> None:
    turns = dialogue(LENGTHS)
    rows = merge_turns(turns[:2]) + [row for n in (2, 3) for row in merge_turns([turns[n]], n)]
    expected = gradient_by_loop(model, turns, ADVANTAGES)
    batch = batch_of(rows, ADVANTAGES)
    # Rotary positions are single precision, and padding on the left moves them.
    for size in (1, 2, 3):
        assert relative_difference(gradient(model, split_rows(batch, size)), expected) < 1e-7
    assert relative_difference(gradient(model, [batch]), expected) < 1e-7


@pytest.mark.parametrize("size", [1, 2, 8])
def test_padding_rows_change_nothing(model: Qwen2ForCausalLM, size: int) -> None:
    rows = merge_turns(dialogue(LENGTHS))
    expected = gradient(model, [batch_of(rows, ADVANTAGES)])
    padded = [*rows, padding_row(5, False), padding_row(250, False)]
    found = gradient(model, split_rows(batch_of(padded, ADVANTAGES), size))
    assert relative_difference(found, expected) < 1e-14


def test_padding_rows_alone_have_no_gradient(model: Qwen2ForCausalLM) -> None:
    batch = batch_of([padding_row(5, False)] * 3)
    assert trained_tokens(batch) == 0
    assert torch.count_nonzero(gradient(model, [batch])) == 0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_log_probabilities_are_those_of_the_whole_batch(model: Qwen2ForCausalLM, size: int) -> None:
    rows = [
        TokenRow(t.prompt_ids, t.completion_ids, [n] * len(t.completion_ids))
        for n, t in enumerate(turns_of_all_lengths())
    ]
    batch = batch_of(rows)
    batch["expected"] = torch.zeros_like(batch["completion_ids"], dtype=torch.float64)
    with torch.no_grad():
        batch["expected"] += log_probabilities(model, batch)
        assert batch["expected"][batch["completion_mask"].bool()].std() > 0.1
        chunks = split_rows(batch, size)
        assert min(chunk["prompt_ids"].size(1) for chunk in chunks) < batch["prompt_ids"].size(1)
        for chunk in chunks:
            shown = chunk["completion_mask"].bool()
            found = log_probabilities(model, chunk)[shown]
            # Distances between tokens are all that counts, but rotary positions are single precision.
            assert torch.allclose(found, chunk["expected"][shown], rtol=0, atol=1e-6)


def turns_of_all_lengths() -> list[Turn]:
    return [
        dialogue([(prompt, reply)], seed)[0] for seed, (prompt, reply) in enumerate([(3, 9), (30, 2), (8, 5), (1, 1)])
    ]


@given(episodes(vocabulary=5))
def test_rows_of_random_episodes_survive_padding_and_splitting(turns: list[Turn]) -> None:
    rows = merge_turns(turns, skip_cut=True)
    assume(rows)
    advantages = [float(n + 1) for n, _ in enumerate(turns)]
    found = []
    for chunk in split_rows(batch_of(rows, advantages), 2):
        trained = (chunk["completion_mask"] * chunk["tool_mask"]).bool()
        for i in range(len(trained)):
            before = chunk["prompt_ids"][i][chunk["prompt_mask"][i].bool()].tolist()
            for j in trained[i].nonzero().flatten().tolist():
                history = (*before, *chunk["completion_ids"][i][:j].tolist())
                number = int(chunk["advantages"][i, j]) - 1
                found.append((number, history, int(chunk["completion_ids"][i, j])))
    assert found == [entry for entry in sampled_tokens(turns) if not turns[entry[0]].cut]
