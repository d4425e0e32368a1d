# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""Configuration of GiGPO: what [`AgentGRPOConfig`] has, and how credit is given to turns."""

from dataclasses import dataclass, field
from typing import Any

from .agent_config import AgentGRPOConfig, require_at_least, require_choice


@dataclass
class GiGPOConfig(AgentGRPOConfig):
    r"""
    Configuration class for the [`GiGPOTrainer`].

    It has every parameter of [`AgentGRPOConfig`]. `scale_rewards` (`"group"` or `"none"`) holds for both levels of
    advantages; the paper uses `"group"` for ALFWorld and `"none"` for WebShop.

    Parameters:
        gamma (`float`, *optional*, defaults to `0.95`):
            Discount of the step returns, in [0, 1].
        step_advantage_weight (`float`, *optional*, defaults to `1.0`):
            Weight ω of the step-relative advantage. `0`: GRPO over episodes.
        anchor_similarity (`float`, *optional*, defaults to `1.0`):
            How alike two text anchors must be to count as the same state: `1` means equal; below, a string-similarity
            ratio (needs rapidfuzz).
        episode_baseline (`str`, *optional*, defaults to `"episode"`):
            Over what the episode level takes its mean and deviation: the `"episode"`s of a group, or all its `"turn"`s,
            where long episodes weigh more.
        single_score (`str`, *optional*, defaults to `"zero"`):
            The advantage of a group with a single score: `"zero"`, or `"keep"` the score itself.
        invalid_penalty_mode (`str`, *optional*, defaults to `"reward"`):
            Where `invalid_action_penalty` is subtracted: from the turn's `"reward"`, so that it is part of both returns,
            or from the turn's `"row"`, after discounting.
    """

    gamma: float = field(default=0.95, metadata={"help": "Discount of the step returns, in [0, 1]."})
    step_advantage_weight: float = field(
        default=1.0, metadata={"help": "Weight of the step-relative advantage. 0: GRPO over episodes."}
    )
    anchor_similarity: float = field(
        default=1.0, metadata={"help": "How alike two text anchors must be to be the same state; 1: equal."}
    )
    episode_baseline: str = field(
        default="episode", metadata={"help": "Statistics of the episode level over each 'episode' or each 'turn'."}
    )
    single_score: str = field(
        default="zero", metadata={"help": "Advantage of a group with a single score: 'zero', or 'keep' the score."}
    )
    invalid_penalty_mode: str = field(
        default="reward",
        metadata={"help": "Subtract the invalid-action penalty from the turn's 'reward' or from its 'row' only."},
    )

    @classmethod
    def verl_agent(cls, **overrides: Any) -> "GiGPOConfig":
        """
        The settings of GiGPO's reference implementation: its advantages on the same recorded turns, its context and its
        regularisation.

        Args:
            **overrides:
                Parameters of this class, which win over the preset.

        Returns:
            [`GiGPOConfig`]: the configuration.
        """
        preset: dict[str, Any] = {
            "episode_baseline": "turn",
            "invalid_penalty_mode": "row",
            "single_score": "keep",
            "context": "window",
            "history_length": 2,
            "beta": 0.01,
            "use_bias_correction_kl": False,
            "epsilon": 0.2,
        }
        return cls(**{**preset, **overrides})

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"`gamma` must be in [0, 1], got {self.gamma}. The paper uses 0.95.")
        if not 0 < self.anchor_similarity <= 1:
            raise ValueError(
                f"`anchor_similarity` must be in (0, 1], got {self.anchor_similarity}. Use 1 for equal anchors."
            )
        require_at_least("step_advantage_weight", self.step_advantage_weight, 0)
        require_choice("episode_baseline", self.episode_baseline, ("episode", "turn"))
        require_choice("single_score", self.single_score, ("zero", "keep"))
        require_choice("invalid_penalty_mode", self.invalid_penalty_mode, ("reward", "row"))
        super().__post_init__()
