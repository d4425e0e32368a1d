# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
The learning probe: where step credit decides, GiGPO reaches the goal and trajectory credit does not, at the same budget.

Eight rooms in a row, each with a right and a wrong door and a treasure of its own. The return of an episode adds up the
doors of all rooms, so trajectory credit tells a room's door from the seven others' only on average over many episodes.
Step credit compares turns that met the same room. With shuffled anchors it compares turns of different rooms, whose
treasures hide what the door was worth.
"""

import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import byte_tokenizer, save_random_model

from trl_agentpo import (
    AgentGRPOTrainer,
    GiGPOConfig,
    GiGPOTrainer,
    ParsedResponse,
    TextEnvironment,
    TextSpace,
)
from trl_agentpo.turns import TurnArrays


ROOMS = 8
LEARNT = 0.8
NOT_LEARNT = 0.65


class Rooms(TextEnvironment):
    """Open one of two doors in each room; the right one pays 1, and the room's treasure is paid in any case."""

    instructions = "Open a door."
    action_space = TextSpace(["red", "blue"])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        layout = np.random.default_rng(0)
        self.right_doors = layout.permutation(["red", "blue"] * (ROOMS // 2))
        self.treasures = layout.permutation(ROOMS) * 10.0
        self.room = 0
        return self._text(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.right_doors[self.room]) + self.treasures[self.room]
        self.room += 1
        return self._text(), reward, self.room == ROOMS, False, {}

    def _text(self) -> str:
        return chr(ord("a") + self.room)


def any_token_is_a_door(response: str) -> ParsedResponse:
    """Every reply is valid: letters of even number open the red door, others the blue one."""
    return ParsedResponse(("red" if sum(response.encode()) % 2 == 0 else "blue",))


class ShuffledAnchors(GiGPOTrainer):
    """GiGPO with a planted bug: anchors are dealt out anew among the turns."""

    def compute_advantages(self, turns: TurnArrays) -> NDArray[np.float64]:
        order = np.random.default_rng(self.state.global_step).permutation(len(turns))
        turns.anchors = [turns.anchors[i] for i in order]
        return super().compute_advantages(turns)


class WrongSign(GiGPOTrainer):
    """GiGPO with a planted bug: the sign of the credit is turned round."""

    def compute_advantages(self, turns: TurnArrays) -> NDArray[np.float64]:
        return -super().compute_advantages(turns)


def share_of_right_doors(trainer_class: type[AgentGRPOTrainer], model: str, folder: Path, seed: int) -> float:
    """Train for the budget and return the share of right doors in the last five updates."""
    trainer = trainer_class(
        model=model,
        environment_factory=Rooms,
        args=GiGPOConfig(
            output_dir=str(folder),
            gamma=0.0,
            max_steps=50,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            per_device_train_batch_size=32,
            num_generations=8,
            gradient_accumulation_steps=1,
            max_completion_length=1,
            max_turns=ROOMS,
            history_length=0,
            seed=seed,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
        ),
        context=lambda task, turns, observation: [{"role": "user", "content": observation.text}],
        action_parser=any_token_is_a_door,
    )
    trainer.train()
    treasure = ROOMS * (ROOMS - 1) / 2 * 10.0
    returns = [log["episode/return"] for log in trainer.state.log_history if "episode/return" in log]
    return (float(np.mean(returns[-5:])) - treasure) / ROOMS


@pytest.fixture(scope="module")
def letters_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An untrained model whose tokens are the lower-case letters, so that few tokens have to be learnt about."""
    return save_random_model(tmp_path_factory.mktemp("letters"), byte_tokenizer(string.ascii_lowercase + "Ċ"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_step_credit_learns_what_trajectory_credit_does_not(letters_model: str, tmp_path: Path, seed: int) -> None:
    """And with shuffled anchors nothing is left of the gain. Chance is 0.5."""
    assert share_of_right_doors(GiGPOTrainer, letters_model, tmp_path, seed) > LEARNT
    assert share_of_right_doors(AgentGRPOTrainer, letters_model, tmp_path, seed) < NOT_LEARNT
    assert share_of_right_doors(ShuffledAnchors, letters_model, tmp_path, seed) < NOT_LEARNT


@pytest.mark.slow
def test_a_wrong_sign_unlearns(letters_model: str, tmp_path: Path) -> None:
    assert share_of_right_doors(WrongSign, letters_model, tmp_path, seed=0) < 1 - LEARNT
