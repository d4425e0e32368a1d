# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
A tiny policy that needs no download: for tests, for the quickstart, and for trying an environment on a laptop.

Invariant: the policy reads and does not know. Its warm start teaches it to say what it sees and to answer in form; the
action itself is drawn at random, so whatever it knows about playing after training, training taught it. The same
arguments give the same weights, and a second call takes them from the cache.
"""

import functools
import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from datasets import Dataset
from tokenizers import pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer, set_seed
from trl import SFTConfig, SFTTrainer

from . import environment as contract
from .actions import ACTION_SEPARATOR, ActionFormat
from .context import ChatTokens, ContextPolicy, TaskPrompt, Window, show
from .environment import EnvironmentSource
from .episode import Turn
from .rows import merge_turns


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END_OF_TURN = "<|im_end|>"

# Raised when the recipe below changes what it builds, so that an older policy in the cache is not taken for a new one.
RECIPE = 1

Facts = Mapping[str, Any]


def tiny_policy(
    environment: EnvironmentSource = "trl_agentpo/FrozenLake-v0",
    environment_kwargs: dict[str, Any] | None = None,
    *,
    action_format: ActionFormat | None = None,
    context: ContextPolicy | None = None,
    max_turns: int = 10,
    hidden_size: int = 128,
    num_episodes: int = 3000,
    num_steps: int = 400,
    seed: int = 0,
    cache_dir: str | None = None,
) -> str:
    """
    Build a chat model of less than a million parameters that answers an environment in form and plays at random.

    Args:
        environment (`str`, environment class or callable, *optional*, defaults to `"trl_agentpo/FrozenLake-v0"`):
            The environment to be played. It must have a vocabulary of actions.
        environment_kwargs (`dict`, *optional*):
            Arguments of its constructor.
        action_format ([`ActionFormat`], *optional*):
            The form of a reply. If `None`, `ActionFormat()`.
        context ([`ContextPolicy`], *optional*):
            The prompts of the warm start; those of training should be of the same kind. If `None`, `Window(0)`.
        max_turns (`int`, *optional*, defaults to `10`):
            Turns of an episode of the warm start.
        hidden_size (`int`, *optional*, defaults to `128`):
            Width of the model; 128 gives about 0.4 million parameters.
        num_episodes (`int`, *optional*, defaults to `3000`):
            Episodes of the warm start.
        num_steps (`int`, *optional*, defaults to `400`):
            Optimizer steps of the warm start, of 64 rows each.
        seed (`int`, *optional*, defaults to `0`):
            Seed of weights and data.
        cache_dir (`str`, *optional*):
            Where finished policies are kept. If `None`, `$TRL_AGENTPO_CACHE` or `~/.cache/trl-agentpo`.

    Returns:
        `str`: a folder that `from_pretrained` loads, model and tokenizer.

    Raises:
        ValueError: the environment takes free text, so there is nothing to play at random.
    """
    game = contract.make(environment, **(environment_kwargs or {}))
    if not contract.vocabulary_of(game):
        raise ValueError(
            f"{type(game.unwrapped).__name__} has no vocabulary, so there are no actions to play at random. Give it "
            '`action_space = TextSpace(["…", "…"])`.'
        )
    action_format, context = action_format or ActionFormat(), context or Window(0)
    settings: list[Any] = [
        type(game.unwrapped).__qualname__,
        contract.vocabulary_of(game),
        [contract.reset(game, number).text for number in range(3)],
        contract.instructions_of(game),
        environment_kwargs or {},
    ]
    settings += [action_format, type(context).__name__, vars(context), max_turns, hidden_size, num_episodes, num_steps]
    target = _cached_folder(cache_dir, [*settings, seed])
    if not target.exists():
        task = TaskPrompt(contract.instructions_of(game), action_format.instructions)
        player = functools.partial(_scripted_turns, action_format=action_format)
        games = (int(n) for n in np.random.default_rng([seed, 1]).integers(2**31, size=num_episodes))
        tokenizer = _tiny_tokenizer(game, task, player)
        chat = ChatTokens(tokenizer)
        rows = [row for n in games for row in _warm_start_rows(game, chat, task, context, player, max_turns, n)]
        _train(tokenizer, Dataset.from_list(rows), hidden_size, num_steps, seed, target)
    return str(target)


def describe(facts: Facts) -> str:
    """
    Put what an environment knows of its state in the fewest words: what a policy can learn to say that it sees.

    Args:
        facts (`Mapping[str, Any]`):
            Positions `(row, column)` by name, one of them the `player`'s. One position is described by its direction, and
            several by the sides of the player on which there is one.

    Returns:
        `str`: for example `"goal down right, holes left"`; `""` without a player.
    """
    if "player" not in facts:
        return ""
    row, column = facts["player"]
    others = {name: positions for name, positions in facts.items() if name != "player"}
    return ", ".join(f"{name} {_where(positions, row, column) or 'no'}" for name, positions in others.items())


def _where(positions: Any, row: int, column: int) -> str:
    if positions and isinstance(positions[0], int):
        return _direction(positions[0] - row, positions[1] - column)
    sides = {(1, 0): "down", (0, 1): "right", (-1, 0): "up", (0, -1): "left"}
    near = {(other[0] - row, other[1] - column) for other in positions}
    return " ".join(name for side, name in sides.items() if side in near)


def _direction(down: int, right: int) -> str:
    vertical = "down" if down > 0 else "up" if down < 0 else ""
    horizontal = "right" if right > 0 else "left" if right < 0 else ""
    return f"{vertical} {horizontal}".strip()


def _scripted_turns(
    game: gymnasium.Env, max_turns: int, seed: int, *, action_format: ActionFormat
) -> Iterator[tuple[contract.Observation, Turn]]:
    """Play one episode at random: each state, and a turn whose reply says what is seen and does anything."""
    generator = np.random.default_rng([seed, 2])
    state, done = contract.reset(game, seed), False
    for _ in range(max_turns):
        if done:
            return
        seen, reward, actions = state, 0.0, _random_actions(game, action_format.max_actions, generator)
        reply = _reply(state.facts, actions, action_format)
        for action in actions:
            result = contract.step(game, action)
            state, reward, done = result.observation, reward + result.reward, result.terminated or result.truncated
            if done:
                break
        yield seen, Turn(show(seen), seen.anchor, [], [], reply, actions=actions, reward=reward)


def _random_actions(game: gymnasium.Env, most: int, generator: np.random.Generator) -> list[str]:
    vocabulary = contract.vocabulary_of(game)
    number = int(generator.integers(1, most + 1)) if most > 1 else 1
    return [vocabulary[int(generator.integers(len(vocabulary)))] for _ in range(number)]


def _reply(facts: Facts, actions: list[str], action_format: ActionFormat) -> str:
    thinking = f"<think>{describe(facts)}</think>" if action_format.require_thinking else ""
    return f"{thinking}<{action_format.tag}>{f' {ACTION_SEPARATOR} '.join(actions)}</{action_format.tag}>"


def _warm_start_rows(
    game: gymnasium.Env,
    chat: ChatTokens,
    task: TaskPrompt,
    context: ContextPolicy,
    player: Callable[..., Iterator[tuple[contract.Observation, Turn]]],
    max_turns: int,
    seed: int,
) -> list[dict[str, list[int]]]:
    """The rows of one scripted episode, laid out as in training."""
    turns: list[Turn] = []
    for observation, turn in player(game, max_turns, seed):
        turn.prompt_ids = context.prompt_ids(chat, task, turns, observation)
        turn.completion_ids = chat.tokenizer(turn.response + END_OF_TURN, add_special_tokens=False)["input_ids"]
        turns.append(turn)
    return [
        {
            "input_ids": row.prompt_ids + row.completion_ids,
            "completion_mask": [0] * len(row.prompt_ids) + row.mask,
        }
        for row in merge_turns(turns)
    ]


def _tiny_tokenizer(
    game: gymnasium.Env, task: TaskPrompt, player: Callable[..., Iterator[tuple[contract.Observation, Turn]]]
) -> Qwen2Tokenizer:
    """A byte-level BPE of the game's own text, in which each fixed text of the prompt is one token."""
    corpus = [
        f"user\n{show(state)}\nassistant\n{turn.response}" for n in range(200) for state, turn in player(game, 10, n)
    ]
    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    # Qwen2's own class, since `AutoTokenizer` takes it for any Qwen2 model, and with it its way to split words.
    untrained = Qwen2Tokenizer(
        vocab=alphabet,
        merges=[],
        unk_token=None,
        eos_token=END_OF_TURN,
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
        padding_side="left",
    )
    tokenizer = untrained.train_new_from_iterator(corpus, vocab_size=512, show_progress=False)
    tokenizer.chat_template = CHAT_TEMPLATE
    tags = [f"<{close}{tag}>" for tag in ("think", "action", "answer") for close in ("", "/")]
    tokenizer.add_tokens([task.instructions, task.format_instructions, *tags])
    return tokenizer


def _train(
    tokenizer: Qwen2Tokenizer, rows: Dataset, hidden_size: int, num_steps: int, seed: int, target: Path
) -> None:
    """Warm up a new model on the rows and move it to its place in the cache in one step."""
    set_seed(seed)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=".building-"))
    try:
        trainer = SFTTrainer(
            model=_tiny_model(tokenizer, hidden_size),
            args=_warm_start_config(scratch, num_steps, seed),
            train_dataset=rows,
            processing_class=tokenizer,
        )
        trainer.train()
        trainer.model.save_pretrained(scratch / "policy")
        tokenizer.save_pretrained(scratch / "policy")
        if not target.exists():
            os.replace(scratch / "policy", target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _tiny_model(tokenizer: Qwen2Tokenizer, hidden_size: int) -> Qwen2ForCausalLM:
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=hidden_size,
            intermediate_size=2 * hidden_size,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def _warm_start_config(folder: Path, num_steps: int, seed: int) -> SFTConfig:
    return SFTConfig(
        output_dir=str(folder / "warm-start"),
        max_steps=num_steps,
        per_device_train_batch_size=64,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=num_steps // 10,
        max_length=None,
        completion_only_loss=True,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        seed=seed,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
    )


def _cached_folder(cache_dir: str | None, settings: list[Any]) -> Path:
    """Where the policy with these settings is, or will be."""
    root = cache_dir or os.environ.get("TRL_AGENTPO_CACHE") or str(Path.home() / ".cache" / "trl-agentpo")
    versions = [importlib.metadata.version(name) for name in ("torch", "transformers", "trl")]
    text = json.dumps([RECIPE, versions, settings], default=repr, sort_keys=True)
    return Path(root) / f"tiny-policy-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
