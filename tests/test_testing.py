# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""The tiny policy answers in form, says what it sees, and acts at random."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Essay
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_agentpo import environment as contract
from trl_agentpo.actions import ActionFormat
from trl_agentpo.context import ChatTokens, FullHistory, TaskPrompt, Window
from trl_agentpo.testing import describe, tiny_policy


LAKE = {"is_slippery": False}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"player": (1, 1), "goal": (4, 4), "holes": ((1, 2), (3, 1))}, "goal down right, holes right"),
        ({"player": (2, 2), "goal": (2, 1), "holes": ((1, 2), (3, 2))}, "goal left, holes down up"),
        ({"player": (4, 4), "goal": (1, 4), "holes": ()}, "goal up, holes no"),
        ({"player": (4, 4), "goal": (4, 4)}, "goal no"),
        ({}, ""),
    ],
)
def test_facts_in_words(facts: dict[str, Any], words: str) -> None:
    assert describe(facts) == words


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A policy warmed up for less long than the quickstart's: it answers in form but reads less surely."""
    cache = str(tmp_path_factory.mktemp("cache"))
    return tiny_policy(environment_kwargs=LAKE, hidden_size=64, num_episodes=600, num_steps=150, cache_dir=cache)


@pytest.fixture(scope="module")
def replies(policy: str) -> list[str]:
    """Sampled replies to the first states of 400 lakes."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = AutoModelForCausalLM.from_pretrained(policy).eval()
    game = contract.make("trl_agentpo/FrozenLake-v0", **LAKE)
    task = TaskPrompt(contract.instructions_of(game), ActionFormat().instructions)
    chat, context = ChatTokens(tokenizer), Window(0)
    prompts = [context.prompt_ids(chat, task, [], contract.reset(game, seed)) for seed in range(10**6, 10**6 + 400)]
    batch = tokenizer.pad({"input_ids": prompts}, return_tensors="pt")
    torch.manual_seed(0)
    sampled = model.generate(**batch, max_new_tokens=24, do_sample=True)
    return tokenizer.batch_decode(sampled[:, batch["input_ids"].size(1) :], skip_special_tokens=True)


def test_it_has_less_than_a_million_parameters(policy: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(policy)
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000


def test_replies_are_in_form(replies: list[str]) -> None:
    valid = [ActionFormat()(reply).valid for reply in replies]
    assert sum(valid) / len(valid) > 0.9


def test_it_says_where_the_goal_is(replies: list[str]) -> None:
    """The goal is down right of the start in every lake."""
    thoughts = [ActionFormat()(reply).thinking or "" for reply in replies]
    assert sum(thought.startswith("goal down right") for thought in thoughts) / len(thoughts) > 0.8


def test_it_acts_at_random(replies: list[str]) -> None:
    """Each of four actions about a quarter of 400 times: five standard deviations are 0.11, and so much again to learn."""
    counts = Counter(action for reply in replies for action in ActionFormat()(reply).actions)
    assert set(counts) >= {"Left", "Down", "Right", "Up"}
    for action in ("Left", "Down", "Right", "Up"):
        assert counts[action] / sum(counts.values()) == pytest.approx(0.25, abs=0.2)


def short(cache: Path, **settings: Any) -> str:
    """A warm start of three steps."""
    settings = {"num_steps": 3, "num_episodes": 30, "hidden_size": 16, **settings}
    return tiny_policy(environment_kwargs=LAKE, cache_dir=str(cache), **settings)


def weights(folder: str) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def test_the_same_arguments_give_the_same_weights(tmp_path: Path) -> None:
    first, second = weights(short(tmp_path / "a")), weights(short(tmp_path / "b"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_seed_gives_other_weights_and_another_folder(tmp_path: Path) -> None:
    first, second = short(tmp_path), short(tmp_path, seed=1)
    assert first != second
    assert not torch.equal(weights(first)["lm_head.weight"], weights(second)["lm_head.weight"])


def test_a_second_call_takes_the_policy_from_the_cache(tmp_path: Path) -> None:
    folder = short(tmp_path)
    written = os.stat(Path(folder) / "model.safetensors").st_mtime_ns
    assert short(tmp_path) == folder
    assert os.stat(Path(folder) / "model.safetensors").st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == [Path(folder).name]


def test_another_context_is_another_policy(tmp_path: Path) -> None:
    assert short(tmp_path, context=FullHistory(), max_turns=3) != short(tmp_path, max_turns=3)


def test_free_text_cannot_be_played_at_random() -> None:
    with pytest.raises(ValueError, match="Essay has no vocabulary"):
        tiny_policy(Essay)
