# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""Configuration of StarPO and of StarPO-S: what [`AgentGRPOConfig`] has, and how whole trajectories are learnt from."""

import math
from dataclasses import dataclass, field
from typing import Any

from .agent_config import AgentGRPOConfig, require_at_least, require_choice


ADVANTAGE_ESTIMATORS = ("grpo", "gae", "bi_level_gae")
# What is kept where the user does not say: RAGEN's share of groups, and RAGEN-2's share of the deviation.
FILTER_RATIOS = {"off": 1.0, "top_k": 0.25, "top_p": 0.9}


@dataclass
class StarPOConfig(AgentGRPOConfig):
    r"""
    Configuration class for the [`StarPOTrainer`] (RAGEN's StarPO).

    It has every parameter of [`AgentGRPOConfig`].

    Parameters:
        advantage_estimator (`str`, *optional*, defaults to `"grpo"`):
            `"grpo"` compares the returns of a group. `"gae"` and `"bi_level_gae"` train a critic: generalized advantage
            estimation over tokens, or over turns and the tokens in them. Their advantages are whitened, unless
            `scale_rewards="none"`.
        gamma (`float`, *optional*, defaults to `1.0`):
            Discount per token of `"gae"`, and of `"bi_level_gae"` inside a turn, in [0, 1].
        lam (`float`, *optional*, defaults to `1.0`):
            Weight of longer look-aheads over tokens, in [0, 1].
        gamma_turn (`float`, *optional*):
            Discount per turn of `"bi_level_gae"`, which needs it, in [0, 1]. RAGEN uses 0.95.
        lam_turn (`float`, *optional*, defaults to `1.0`):
            Weight of longer look-aheads over turns, in [0, 1].
        critic_learning_rate (`float`, *optional*, defaults to `1e-5`):
            Learning rate of the critic, constant.
        critic_warmup_steps (`int`, *optional*, defaults to `0`):
            For how many optimizer steps at the start only the critic learns.
        cliprange_value (`float`, *optional*, defaults to `0.5`):
            How far a value may move in the clipped value loss.
        group_filter (`str`, *optional*, defaults to `"off"`):
            Which groups are trained on, by the deviation of their raw scores: all (`"off"`), a fixed share of the groups
            (`"top_k"`), or as many as hold a share of the total deviation (`"top_p"`).
        group_filter_ratio (`float`, *optional*):
            That share, in (0, 1]. If `None`, 0.25 for `"top_k"` and 0.9 for `"top_p"`.
        max_skipped_rollouts (`int`, *optional*, defaults to `5`):
            After how many rollouts in a row without a group worth training on the run ends.
        replay_buffer_size (`int`, *optional*, defaults to `0`):
            How many episodes of earlier rollouts are kept, on all processes together.
        replay_fraction (`float`, *optional*, defaults to `0.0`):
            Which share of the episodes trained on comes from that buffer, in [0, 1). They come on top of the fresh ones.

    Parameters with another default than in [`AgentGRPOConfig`]:
        per_device_train_batch_size (`8`), gradient_accumulation_steps (`4`), steps_per_generation (`16`) and
        num_generations (`16`):
            8 groups of 16 episodes a rollout, from which 4 optimizer steps are made.
        max_turns (`5`), max_actions_per_turn (`5`), max_actions (`10`) and max_completion_length (`400`):
            What RAGEN allows an episode.
        action_format (`"answer"`) and context (`"full_history"`):
            RAGEN's form of replies and messages: each message gives the last reward, the turn's number, the state, and how
            many actions are left.
        beta (`0.001`) and entropy_coef (`0.001`):
            RAGEN's regularisation.
    """

    steps_per_generation: int | None = field(
        default=16, metadata={"help": "How many batches of a device one rollout is cut into."}
    )
    num_generations: int | None = field(default=16, metadata={"help": "Number of episodes in a group."})
    max_completion_length: int | None = field(
        default=400, metadata={"help": "Maximum number of tokens the model may sample in one turn."}
    )
    max_turns: int = field(default=5, metadata={"help": "After how many turns an episode is truncated."})
    max_actions: int | None = field(default=10, metadata={"help": "After how many actions an episode is truncated."})
    max_actions_per_turn: int = field(default=5, metadata={"help": "How many actions of a reply are executed."})
    action_format: str = field(
        default="answer",
        metadata={"help": "Form of a reply: 'action' or 'answer' (several actions separated by ||)."},
    )
    context: str = field(
        default="full_history", metadata={"help": "What the model sees of the past: 'window' or 'full_history'."}
    )
    beta: float = field(default=0.001, metadata={"help": "Weight of the KL divergence from the initial model."})
    entropy_coef: float = field(default=0.001, metadata={"help": "Weight of the entropy bonus."})
    advantage_estimator: str = field(
        default="grpo",
        metadata={"help": "'grpo' (returns within the group), 'gae' or 'bi_level_gae' (with a critic)."},
    )
    gamma: float = field(default=1.0, metadata={"help": "Discount per token of the critic's estimators."})
    lam: float = field(default=1.0, metadata={"help": "Weight of longer look-aheads over tokens."})
    gamma_turn: float | None = field(
        default=None, metadata={"help": "Discount per turn of 'bi_level_gae', which needs it (RAGEN: 0.95)."}
    )
    lam_turn: float = field(default=1.0, metadata={"help": "Weight of longer look-aheads over turns."})
    critic_learning_rate: float = field(default=1e-5, metadata={"help": "Learning rate of the critic."})
    critic_warmup_steps: int = field(
        default=0, metadata={"help": "For how many optimizer steps at the start only the critic learns."}
    )
    cliprange_value: float = field(default=0.5, metadata={"help": "Clip range of the value loss."})
    group_filter: str = field(
        default="off",
        metadata={"help": "Which groups are trained on, by the deviation of their scores: 'off', 'top_k' or 'top_p'."},
    )
    group_filter_ratio: float | None = field(
        default=None,
        metadata={"help": "Share of groups ('top_k', 0.25) or of the total deviation ('top_p', 0.9) that is kept."},
    )
    max_skipped_rollouts: int = field(
        default=5,
        metadata={"help": "After how many rollouts in a row without a group worth training on the run ends."},
    )
    replay_buffer_size: int = field(
        default=0, metadata={"help": "How many episodes of earlier rollouts are kept. 0: none."}
    )
    replay_fraction: float = field(
        default=0.0, metadata={"help": "Share of the episodes trained on that comes from the buffer, in [0, 1)."}
    )

    def __post_init__(self) -> None:
        require_choice("advantage_estimator", self.advantage_estimator, ADVANTAGE_ESTIMATORS)
        require_choice("group_filter", self.group_filter, tuple(FILTER_RATIOS))
        self._check_estimator()
        self._check_critic()
        self._check_replay()
        super().__post_init__()
        self._check_filter()

    @property
    def has_critic(self) -> bool:
        """Whether the advantages come from a critic."""
        return self.advantage_estimator != "grpo"

    @property
    def kept_ratio(self) -> float:
        """`group_filter_ratio`, or the filter's own."""
        return FILTER_RATIOS[self.group_filter] if self.group_filter_ratio is None else self.group_filter_ratio

    @property
    def max_replay_staleness(self) -> int:
        """After how many rollouts a replay buffer that is filled by whole rollouts has replaced an episode."""
        return math.ceil(self.replay_buffer_size / self.generation_batch_size)

    def _check_estimator(self) -> None:
        for name in ("gamma", "lam", "gamma_turn", "lam_turn"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"`{name}` must be in [0, 1], got {value}. Use 1 for no discount.")
        if self.advantage_estimator == "bi_level_gae" and self.gamma_turn is None:
            raise ValueError(
                "`gamma_turn` is None, but `advantage_estimator`='bi_level_gae' discounts over turns by it. Set it; RAGEN "
                "uses 0.95."
            )
        used = {"grpo": (), "gae": ("gamma", "lam"), "bi_level_gae": ("gamma", "lam", "gamma_turn", "lam_turn")}
        of_critic = ("critic_learning_rate", "critic_warmup_steps", "cliprange_value") if self.has_critic else ()
        self._refuse_unused((*used[self.advantage_estimator], *of_critic))

    def _refuse_unused(self, used: tuple[str, ...]) -> None:
        """An option of another estimator would do nothing."""
        unused: dict[str, Any] = {
            "gamma": 1.0,
            "lam": 1.0,
            "gamma_turn": None,
            "lam_turn": 1.0,
            "critic_learning_rate": 1e-5,
            "critic_warmup_steps": 0,
            "cliprange_value": 0.5,
        }
        for name in set(unused) - set(used):
            if getattr(self, name) != unused[name]:
                raise ValueError(
                    f"`{name}`={getattr(self, name)} has no effect with `advantage_estimator`="
                    f"{self.advantage_estimator!r}. Leave it out, or use another estimator, such as 'bi_level_gae'."
                )

    def _check_critic(self) -> None:
        require_at_least("critic_warmup_steps", self.critic_warmup_steps, 0, whole=True)
        for name in ("critic_learning_rate", "cliprange_value"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"`{name}` must be more than 0, got {getattr(self, name)}. RAGEN uses 1e-5 and 0.5.")
        if self.has_critic and (self.fp16 or self.fsdp or self.deepspeed):
            raise ValueError(
                f"`advantage_estimator`={self.advantage_estimator!r} trains a critic, which goes with neither `fp16` nor "
                "`fsdp` nor `deepspeed`. Use `bf16` on one process or several (DDP), or `advantage_estimator`='grpo'."
            )

    def _check_filter(self) -> None:
        require_at_least("max_skipped_rollouts", self.max_skipped_rollouts, 1, whole=True)
        if self.group_filter_ratio is not None and self.group_filter == "off":
            raise ValueError(
                f"`group_filter_ratio`={self.group_filter_ratio} has no effect with `group_filter`='off'. Leave it out, or "
                "set `group_filter` to 'top_k' or 'top_p'."
            )
        if not 0 < self.kept_ratio <= 1:
            raise ValueError(
                f"`group_filter_ratio` must be in (0, 1], got {self.kept_ratio}. RAGEN keeps 0.25 of the groups ('top_k'), "
                "RAGEN-2 0.9 of the deviation ('top_p')."
            )
        groups = self.generation_batch_size // self.num_generations
        if self.group_filter == "top_k" and self.kept_ratio * groups < 1:
            raise ValueError(
                f"`group_filter_ratio`={self.kept_ratio} of the {groups} groups of a rollout is less than one group. Raise "
                f"it to {1 / groups:g} or more, play more groups (`steps_per_generation`), or use `group_filter`='top_p'."
            )

    def _check_replay(self) -> None:
        require_at_least("replay_buffer_size", self.replay_buffer_size, 0, whole=True)
        if not 0 <= self.replay_fraction < 1:
            raise ValueError(
                f"`replay_fraction` must be in [0, 1), got {self.replay_fraction}. At 0.5 as many episodes are replayed as "
                "are fresh."
            )
        if (self.replay_buffer_size > 0) != (self.replay_fraction > 0):
            raise ValueError(
                f"`replay_buffer_size`={self.replay_buffer_size} and `replay_fraction`={self.replay_fraction}: one has no "
                "effect without the other. Set both, or neither."
            )
        if self.replay_buffer_size and self.use_vllm and self.vllm_importance_sampling_mode.startswith("sequence"):
            raise ValueError(
                f"`vllm_importance_sampling_mode`={self.vllm_importance_sampling_mode!r} does not go with "
                "`replay_buffer_size`: what is kept of an episode is kept for each token. Use 'token_truncate' or "
                "'token_mask'."
            )


@dataclass
class StarPOSConfig(StarPOConfig):
    r"""
    Configuration class for StarPO-S, the form of StarPO that does not collapse: only the groups whose outcome is most
    uncertain are trained on, there is no KL term, and good surprises may move the policy further than bad ones.

    Parameters with another default than in [`StarPOConfig`]:
        group_filter (`"top_k"`):
            RAGEN keeps a quarter of the groups. RAGEN-2 finds that this wears off late in training and that `"top_p"`
            lasts.
        beta (`0.0`):
            No KL term, and no reference model.
        epsilon_high (`0.28`):
            Clip-higher.
    """

    group_filter: str = field(
        default="top_k",
        metadata={"help": "Which groups are trained on, by the deviation of their scores: 'off', 'top_k' or 'top_p'."},
    )
    beta: float = field(default=0.0, metadata={"help": "Weight of the KL divergence from the initial model."})
    epsilon_high: float | None = field(default=0.28, metadata={"help": "Upper clip range of the importance ratio."})
