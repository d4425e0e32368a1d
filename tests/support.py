# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""What several tests need: a small deterministic environment and a tokenizer and model made on the spot."""

from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer, set_seed

from trl_agentpo.environment import TextEnvironment, TextSpace
from trl_agentpo.testing import CHAT_TEMPLATE, END_OF_TURN


class Corridor(TextEnvironment):
    """A corridor of `length` cells: start at 0, the last cell is the goal, worth 1; `left` at 0 changes nothing."""

    instructions = "Walk to the end of the corridor. Actions: left, right."
    action_space = TextSpace(["left", "right"])

    def __init__(self, length: int = 4):
        self.length = length
        self.cell = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = (options or {}).get("cell", 0)
        return self._text(), {"anchor": self.cell}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before = self.cell
        self.cell = max(0, self.cell + {"left": -1, "right": 1}[action])
        solved = self.cell == self.length - 1
        info = {"anchor": self.cell, "success": solved, "action_effective": self.cell != before}
        return self._text(), float(solved), solved, False, info

    def _text(self) -> str:
        return f"cell {self.cell} of {self.length - 1}"


class Essay(TextEnvironment):
    """One turn of free text, which is worth nothing."""

    instructions = "Write."

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", 0.0, True, False, {}


def byte_tokenizer(letters: str = "") -> Qwen2Tokenizer:
    """One token per byte (or only for the given ones), and one for each tag; chat markup like Qwen's."""
    alphabet = {letter: n for n, letter in enumerate(sorted(letters or pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Qwen2Tokenizer(
        vocab=alphabet,
        merges=[],
        unk_token=None,
        eos_token=END_OF_TURN,
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
        padding_side="left",
    )
    tokenizer.add_tokens(["<think>", "</think>", "<action>", "</action>", "<answer>", "</answer>"])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_random_model(folder: Path, tokenizer: Qwen2Tokenizer, max_position_embeddings: int = 1024) -> str:
    """An untrained Qwen2 of about 30,000 parameters, with its tokenizer, saved where `from_pretrained` finds it."""
    set_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=max_position_embeddings,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
