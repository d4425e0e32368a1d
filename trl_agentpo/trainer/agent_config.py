# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Configuration of training over environments: everything of `GRPOConfig`, and the environment loop's own options.

Invariant: a wrong value raises here, with the field, the value and the remedy, before a model is loaded.
"""

import contextlib
import json
import math
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from ..actions import ACTION_TAGS
from ._trl import ADDITIVE_LOSSES


CONTEXTS = ("window", "full_history")
LOSS_NORMALIZATIONS = ("token", "turn", "episode")
ENVIRONMENT_ERRORS = ("mask", "raise")
SCALE_REWARDS = ("group", "none")


@dataclass
class AgentGRPOConfig(GRPOConfig):
    r"""
    Configuration class for the [`AgentGRPOTrainer`].

    It has every parameter of [`~trl.GRPOConfig`]. `max_completion_length` is the budget of one turn, and
    `num_generations` the number of episodes in a group. `loss_type` must add up over rows: `"dapo"`, `"cispo"` or
    `"vespo"`.

    Parameters:
        environment_kwargs (`dict`, *optional*):
            Arguments of the environment's constructor, such as `{"is_slippery": False}`.
        num_tasks (`int`, *optional*):
            How many tasks to train on, when no `train_dataset` is given; their seeds follow from `seed`. If `None`, every
            update draws new tasks, and `max_steps` must be set.
        num_eval_tasks (`int`, *optional*):
            How many tasks to evaluate on, when no `eval_dataset` is given; their seeds follow from `seed` and are
            disjoint from those of training.
        max_turns (`int`, *optional*, defaults to `10`):
            After how many turns an episode is truncated.
        max_actions (`int`, *optional*):
            After how many actions an episode is truncated. If `None`, only turns count.
        max_actions_per_turn (`int`, *optional*, defaults to `1`):
            How many actions of a reply are executed.
        max_episode_length (`int`, *optional*):
            How many tokens the prompts and replies of an episode may have together; what a prompt repeats of the turn
            before counts once. An episode whose next turn might not fit, or would exceed the model's context, is truncated.
            If `None`, only the model's context counts.
        action_format (`str`, *optional*, defaults to `"action"`):
            `"action"` for `<think>…</think><action>…</action>` or `"answer"` for `<think>…</think><answer>a || b</answer>`.
        require_thinking (`bool`, *optional*, defaults to `True`):
            Whether a reply without a `<think>` block is invalid.
        context (`str`, *optional*, defaults to `"window"`):
            What the model sees: `"window"` (the last `history_length` turns in a fresh message) or `"full_history"` (the
            whole dialogue; one training row per episode).
        history_length (`int`, *optional*, defaults to `2`):
            How many past turns `context="window"` shows.
        invalid_action_penalty (`float`, *optional*, defaults to `0.1`):
            Subtracted from the reward of a turn whose reply is invalid.
        loss_normalization (`str`, *optional*, defaults to `"token"`):
            What counts the same in the loss: every `"token"`, every `"turn"` or every `"episode"`. The KL term is a mean
            over tokens in each case.
        max_resample (`int`, *optional*, defaults to `0`):
            How often groups whose episodes all earned the same, which teach nothing, are played again on other training
            tasks drawn at random (DAPO's dynamic sampling). `0`: never.
        on_env_error (`str`, *optional*, defaults to `"mask"`):
            What a crash of an environment does: `"mask"` takes its episode out of the loss and of all statistics and
            counts it, `"raise"` stops the run.

    Parameters with another default than in [`~trl.GRPOConfig`]:
        gradient_accumulation_steps (defaults to `4`):
            With the other defaults, 4 groups of 8 episodes an update.
        max_completion_length (defaults to `256`):
            A turn is shorter than a whole solution.
        num_generations_eval (defaults to `1`):
            Evaluation plays each task once.
        vllm_importance_sampling_mode (defaults to `"token_truncate"`):
            `"sequence_mask"` would mask long episodes wholesale.
    """

    _VALID_DICT_FIELDS = GRPOConfig._VALID_DICT_FIELDS + ["environment_kwargs"]

    gradient_accumulation_steps: int = field(
        default=4, metadata={"help": "Number of batches whose gradients are added up before an optimizer step."}
    )
    max_completion_length: int | None = field(
        default=256, metadata={"help": "Maximum number of tokens the model may sample in one turn."}
    )
    num_generations_eval: int | None = field(
        default=1, metadata={"help": "Number of episodes played for each task during evaluation."}
    )
    vllm_importance_sampling_mode: str = field(
        default="token_truncate",
        metadata={"help": "How vLLM's sampling probabilities are corrected for; see `GRPOConfig`."},
    )
    environment_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Arguments of the environment's constructor (JSON on the command line)."}
    )
    num_tasks: int | None = field(
        default=None,
        metadata={"help": "How many tasks to train on without a dataset. `None`: new tasks at every update."},
    )
    num_eval_tasks: int | None = field(
        default=None,
        metadata={"help": "How many tasks, disjoint from those of training, to evaluate on without a dataset."},
    )
    max_turns: int = field(default=10, metadata={"help": "After how many turns an episode is truncated."})
    max_actions: int | None = field(default=None, metadata={"help": "After how many actions an episode is truncated."})
    max_actions_per_turn: int = field(default=1, metadata={"help": "How many actions of a reply are executed."})
    max_episode_length: int | None = field(
        default=None,
        metadata={"help": "Tokens the prompts and replies of an episode may have. `None`: the model's context."},
    )
    action_format: str = field(
        default="action",
        metadata={"help": "Form of a reply: 'action' or 'answer' (several actions separated by ||)."},
    )
    require_thinking: bool = field(
        default=True, metadata={"help": "Whether a reply without a <think> block is invalid."}
    )
    context: str = field(
        default="window", metadata={"help": "What the model sees of the past: 'window' or 'full_history'."}
    )
    history_length: int = field(default=2, metadata={"help": "How many past turns `context='window'` shows."})
    invalid_action_penalty: float = field(
        default=0.1, metadata={"help": "Subtracted from the reward of a turn whose reply is invalid."}
    )
    loss_normalization: str = field(
        default="token", metadata={"help": "What counts the same in the loss: 'token', 'turn' or 'episode'."}
    )
    max_resample: int = field(
        default=0,
        metadata={"help": "How often groups that all earned the same are played again on other tasks (DAPO)."},
    )
    on_env_error: str = field(
        default="mask",
        metadata={"help": "What a crash of an environment does: 'mask' its episode, or 'raise'."},
    )

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_numbers()
        self._check_groups()
        self._check_environment_kwargs()
        super().__post_init__()
        self._check_generation()
        self._check_scale_rewards()

    @property
    def environment_keywords(self) -> dict[str, Any]:
        """`environment_kwargs` as a dict, `{}` if there are none."""
        return dict(self.environment_kwargs) if isinstance(self.environment_kwargs, dict) else {}

    @property
    def turn_length(self) -> int:
        """`max_completion_length`, which is never `None` here."""
        assert self.max_completion_length is not None
        return self.max_completion_length

    def _check_choices(self) -> None:
        require_choice("action_format", self.action_format, ACTION_TAGS)
        require_choice("context", self.context, CONTEXTS)
        require_choice("loss_normalization", self.loss_normalization, LOSS_NORMALIZATIONS)
        require_choice("on_env_error", self.on_env_error, ENVIRONMENT_ERRORS)
        if self.loss_type not in ADDITIVE_LOSSES:
            raise ValueError(
                f"`loss_type`={self.loss_type!r} averages within a batch of rows, which is wrong when the number of rows "
                f"depends on how many turns the episodes took. Use one of {', '.join(map(repr, ADDITIVE_LOSSES))}, with "
                "`loss_normalization` to say what counts the same."
            )

    def _check_numbers(self) -> None:
        for name in ("max_turns", "max_actions", "max_actions_per_turn", "num_tasks", "num_eval_tasks"):
            require_at_least(name, getattr(self, name), 1, whole=True)
        for name in ("history_length", "max_resample"):
            require_at_least(name, getattr(self, name), 0, whole=True)
        require_at_least("invalid_action_penalty", self.invalid_action_penalty, 0)
        if self.max_completion_length is None or self.max_completion_length < 1:
            raise ValueError(
                f"`max_completion_length` must be at least 1, got {self.max_completion_length}. It is the number of tokens "
                "the model may sample in one turn."
            )
        if self.max_episode_length is not None and self.max_episode_length <= self.max_completion_length:
            raise ValueError(
                f"`max_episode_length`={self.max_episode_length} leaves no room for a prompt beside "
                f"`max_completion_length`={self.max_completion_length}. Raise the one or lower the other."
            )

    def _check_groups(self) -> None:
        if self.num_generations is None or self.num_generations < 2:
            raise ValueError(
                f"`num_generations` must be at least 2, got {self.num_generations}: advantages compare the episodes of a "
                "group with each other. Use 8, or the largest number that divides the generation batch."
            )
        if self.use_adaptive_entropy:
            raise ValueError(
                "`use_adaptive_entropy`=True is not supported: its controller averages over batches of equal size. Set "
                "`entropy_coef` to a fixed value."
            )
        if self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"`multi_objective_aggregation`={self.multi_objective_aggregation!r} is not supported: the rewards of an "
                "episode are summed before they are compared within its group. Leave it at 'sum_then_normalize', and weigh "
                "the rewards with `reward_weights`."
            )

    def _check_environment_kwargs(self) -> None:
        # Here and not in `transformers`, whose message would not name the field.
        given = self.environment_kwargs
        with contextlib.suppress(json.JSONDecodeError):
            self.environment_kwargs = json.loads(given) if isinstance(given, str) else given
        if not isinstance(self.environment_kwargs, dict | None):
            raise ValueError(
                f"`environment_kwargs` must be a dict, or a JSON object on the command line, got {given!r}. Write it as "
                """--environment_kwargs '{"is_slippery": false}'."""
            )

    def _check_generation(self) -> None:
        fixed = {"max_new_tokens": "`max_completion_length`", "num_return_sequences": "`num_generations`"}
        for name, instead in fixed.items():
            if name in (self.generation_kwargs or {}):
                raise ValueError(f"`generation_kwargs` must not set {name!r}, which would bypass {instead}. Set that.")
        num_generations = self.num_generations_eval or self.num_generations
        if (self.per_device_eval_batch_size * self.world_size) % num_generations:
            raise ValueError(
                f"`num_generations_eval`={num_generations} must divide the evaluation batch of {self.world_size} × "
                f"`per_device_eval_batch_size`={self.per_device_eval_batch_size} episodes. Set the latter to a multiple of it."
            )

    def _check_scale_rewards(self) -> None:
        require_choice("scale_rewards", self.scale_rewards, SCALE_REWARDS)


def require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """
    Check that an option is one of its choices.

    Args:
        name (`str`):
            The field.
        value (`Any`):
            Its value.
        choices (`tuple[str, ...]`):
            What it may be.

    Raises:
        ValueError: it is none of them.
    """
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def require_at_least(name: str, value: float | None, least: float, whole: bool = False) -> None:
    """
    Check that a number is finite and large enough; `None` passes.

    Args:
        name (`str`):
            The field.
        value (`float` or `None`):
            Its value.
        least (`float`):
            The smallest allowed value.
        whole (`bool`, *optional*, defaults to `False`):
            Whether only whole numbers are allowed.

    Raises:
        ValueError: it is smaller, not a finite number, or not whole.
    """
    if whole and isinstance(value, float) and not value.is_integer():
        raise ValueError(f"`{name}` must be a whole number, got {value}.")
    if value is not None and not (math.isfinite(value) and value >= least):
        raise ValueError(f"`{name}` must be at least {least}, got {value}. Set it to {least} or more.")
