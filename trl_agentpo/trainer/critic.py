# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
The critic of the PPO form: what an episode is still worth, read before each sampled token.

Invariant: the critic is a copy of a model that shares with it whatever is frozen. Beside a LoRA policy it is one more
adapter on the same base weights; a policy that is trained in full gets a critic of its own size. It has its own optimizer,
is the same on every process, is no part of the policy and is never pushed with it.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from ..rows import TokenRow, pad_rows


class Critic(nn.Module):
    """
    A value for each completion token, from the model's last hidden state before it.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The model to start from. Its frozen parameters are shared, the others copied.
    """

    def __init__(self, model: PreTrainedModel | PeftModel):
        super().__init__()
        backbone = (model.get_base_model() if isinstance(model, PeftModel) else model).base_model
        frozen = [parameter for parameter in backbone.parameters() if not parameter.requires_grad]
        self.backbone = copy.deepcopy(backbone, {id(parameter): parameter for parameter in frozen})
        self.head = nn.Linear(model.config.get_text_config().hidden_size, 1, device=model.device)
        # All values are 0 before anything is learnt, rather than noise that the first advantages would carry.
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """
        Read the values.

        Args:
            batch (`Mapping[str, torch.Tensor]`):
                `prompt_ids`, `prompt_mask`, `completion_ids` and `completion_mask`.

        Returns:
            `torch.Tensor` of shape `(num_rows, completion_length)`: at each completion token the value of the state before
            it.
        """
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        hidden = self.backbone(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        before = hidden[:, -batch["completion_ids"].size(1) - 1 : -1]
        return self.head(before.float()).squeeze(-1)


def value_losses(values: torch.Tensor, batch: Mapping[str, torch.Tensor], cliprange: float) -> torch.Tensor:
    """
    PPO's clipped value loss of each token: `½ max((V − R)², (clip(V, V_old ± cliprange) − R)²)`.

    Args:
        values (`torch.Tensor` of shape `(num_rows, length)`):
            What the critic says now.
        batch (`Mapping[str, torch.Tensor]`):
            `old_values`, what it said when the tokens were sampled, and `returns`, what it is to say.
        cliprange (`float`):
            How far a value may move to its advantage.

    Returns:
        `torch.Tensor` of shape `(num_rows, length)`: the losses.
    """
    old, returns = batch["old_values"], batch["returns"]
    clipped = old + (values - old).clamp(-cliprange, cliprange)
    return 0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)


class CriticLearner:
    """
    Trains a critic on the rows the policy is trained on.

    Args:
        critic ([`Critic`]):
            The critic.
        accelerator ([`~accelerate.Accelerator`]):
            The trainer's.
        optimizer ([`~torch.optim.Optimizer`]):
            The optimizer of the critic's trainable parameters.
        cliprange (`float`):
            See [`value_losses`].
        max_grad_norm (`float`):
            To what length longer gradients are cut; 0 for no cut.
    """

    def __init__(
        self,
        critic: Critic,
        accelerator: Accelerator,
        optimizer: torch.optim.Optimizer,
        cliprange: float,
        max_grad_norm: float,
    ):
        self.critic = critic
        self.accelerator = accelerator
        self.optimizer = optimizer
        self.cliprange = cliprange
        self.max_grad_norm = max_grad_norm
        self.loss = 0.0

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained, by name."""
        return {name: parameter for name, parameter in self.critic.named_parameters() if parameter.requires_grad}

    @torch.no_grad()
    def values(self, rows: Sequence[TokenRow], batch_size: int, token_id: int) -> list[NDArray[np.float64]]:
        """
        Read the values of rows.

        Args:
            rows (`Sequence[TokenRow]`):
                The rows.
            batch_size (`int`):
                How many are read at once.
            token_id (`int`):
                What to pad with.

        Returns:
            `list[NDArray[np.float64]]`: for each row one value per completion token.
        """
        self.critic.eval()
        values: list[NDArray[np.float64]] = []
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            padded = {name: ids.to(self.accelerator.device) for name, ids in pad_rows(batch, token_id).items()}
            with self.accelerator.autocast():
                read = self.critic(padded).double().cpu().numpy()
            values += [of_row[: len(row.completion_ids)] for of_row, row in zip(read, batch, strict=True)]
        return values

    def accumulate(self, chunks: Sequence[Mapping[str, Any]], num_tokens: float) -> None:
        """
        Add the gradients of a training step's rows.

        Args:
            chunks (`Sequence[Mapping[str, Any]]`):
                The rows, cut into chunks.
            num_tokens (`float`):
                How many trained tokens of all processes the optimizer step averages over.
        """
        self.critic.train()
        for chunk in chunks:
            with self.accelerator.autocast():
                values = self.critic(chunk)
            mask = chunk["completion_mask"] * chunk["tool_mask"]
            loss = (value_losses(values, chunk, self.cliprange) * mask).sum() / num_tokens
            loss.backward()
            self.loss += loss.item()

    def step(self) -> dict[str, float]:
        """
        Do an optimizer step with what was added up on all processes.

        Returns:
            `dict[str, float]`: `loss` and `grad_norm` of the step.
        """
        gradients = [parameter for parameter in self.parameters.values() if parameter.grad is not None]
        for parameter in gradients:
            parameter.grad = self.accelerator.reduce(parameter.grad, reduction="sum")
        norm = nn.utils.clip_grad_norm_(gradients, self.max_grad_norm or float("inf"))
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss = self.accelerator.reduce(torch.tensor(self.loss, device=self.accelerator.device), reduction="sum")
        self.loss = 0.0
        return {"loss": loss.item(), "grad_norm": norm.item()}

    def state(self) -> dict[str, Any]:
        """What is needed to go on: the trained parameters and the optimizer's state."""
        return {
            "parameters": {n: p.detach() for n, p in self.parameters.items()},
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """
        Go on from what [`state`] gave.

        Args:
            state (`dict`):
                What it gave.
        """
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state["parameters"][name])
        self.optimizer.load_state_dict(state["optimizer"])
