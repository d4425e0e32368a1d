# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""GiGPO: [`AgentGRPOTrainer`] with credit for single turns."""

import numpy as np
from numpy.typing import NDArray

from ..advantages import anchor_buckets, gigpo_advantages
from ..turns import TurnArrays
from .agent_trainer import AgentGRPOTrainer
from .gigpo_config import GiGPOConfig


_BUCKET_SIZES = ((1, 1), (2, 3), (4, 7), (8, None))


class GiGPOTrainer(AgentGRPOTrainer):
    """
    Trainer for Group-in-Group Policy Optimization (GiGPO).

    GiGPO ([Group-in-Group Policy Optimization for LLM Agent Training](https://huggingface.co/papers/2505.10978)) adds to
    the advantage of an episode within its group a step-relative advantage: turns of one group that met the same
    environment state (the *anchor state*) and then acted differently are compared by their discounted returns. It costs
    no further rollout.

    The only change with respect to [`AgentGRPOTrainer`] is `compute_advantages`.

    Example:

    ```python
    >>> from peft import LoraConfig
    >>> from trl_agentpo import GiGPOConfig, GiGPOTrainer

    >>> trainer = GiGPOTrainer(
    ...     model="Qwen/Qwen2.5-0.5B-Instruct",
    ...     environment_factory="trl_agentpo/FrozenLake-v0",
    ...     args=GiGPOConfig(output_dir="frozenlake-gigpo", max_steps=200),
    ...     peft_config=LoraConfig(r=16, lora_alpha=32),
    ... )
    >>> trainer.train()
    ```

    Arguments are those of [`AgentGRPOTrainer`], with a [`GiGPOConfig`] for `args`.
    """

    _tag_names = ["trl", "trl-agentpo", "gigpo"]
    _name = "GiGPO"
    _paper = {
        "title": "Group-in-Group Policy Optimization for LLM Agent Training",
        "id": "2505.10978",
        "citation": (
            "@article{feng2025group,\n"
            "    title        = {{Group-in-Group Policy Optimization for LLM Agent Training}},\n"
            "    author       = {Lang Feng and Zhenghai Xue and Tingcong Liu and Bo An},\n"
            "    year         = 2025,\n"
            "    eprint       = {arXiv:2505.10978},\n"
            "}"
        ),
    }
    _config_class = GiGPOConfig

    args: GiGPOConfig

    def compute_advantages(self, turns: TurnArrays) -> NDArray[np.float64]:
        """
        Give credit: `A = A^E + ω · A^S`, see [`gigpo_advantages`].

        Args:
            turns ([`TurnArrays`]):
                The turns of all processes.

        Returns:
            `NDArray[np.float64]` of shape `(num_turns,)`: one advantage per turn.
        """
        # Buckets are anchors too: turns of one bucket met one state. Similar anchors are thus matched only once.
        buckets = anchor_buckets(turns.group_ids, turns.anchors, anchor_similarity=self.args.anchor_similarity)
        advantages = self._advantages(turns, buckets, self.args.step_advantage_weight)
        episode_level = self._advantages(turns, buckets, 0.0)
        step_level = self._advantages(turns, buckets, 1.0) - episode_level
        self._log_credit(buckets, episode_level, step_level)
        return advantages

    def _advantages(
        self, turns: TurnArrays, buckets: NDArray[np.int64], step_advantage_weight: float
    ) -> NDArray[np.float64]:
        return gigpo_advantages(
            turns.rewards,
            turns.episode_ids,
            turns.group_ids,
            buckets.tolist(),
            gamma=self.args.gamma,
            step_advantage_weight=step_advantage_weight,
            scale_rewards=self.args.scale_rewards,
            episode_baseline=self.args.episode_baseline,
            single_score=self.args.single_score,
            invalid=turns.invalid,
            invalid_action_penalty=self.args.invalid_action_penalty,
            invalid_penalty_mode=self.args.invalid_penalty_mode,
        )

    def _log_credit(
        self, buckets: NDArray[np.int64], episode_level: NDArray[np.float64], step_level: NDArray[np.float64]
    ) -> None:
        sizes = np.bincount(buckets)
        self.log_values("anchors/shared_turns", (sizes[buckets] >= 2).astype(float).tolist())
        self.log_values("anchors/mean_bucket_size", sizes.astype(float).tolist())
        for least, most in _BUCKET_SIZES:
            within = (sizes >= least) & (sizes <= (most or np.inf))
            name = f"{least}" if least == most else f"{least}-{most}" if most else f"{least}+"
            self.log_values(f"anchors/buckets_of_{name}", within.astype(float).tolist())
        self.log_values("advantages/episode_mean_abs", np.abs(episode_level).tolist())
        self.log_values("advantages/step_mean_abs", np.abs(step_level).tolist())
