# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""StarPO and StarPO-S: [`AgentGRPOTrainer`] with the trajectory as the unit, a critic, filtered groups and replay."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.logging import get_logger
from accelerate.utils import DistributedType, gather_object
from datasets import Dataset, IterableDataset
from numpy.typing import NDArray
from peft import PeftConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    TrainerCallback,
)

from ..actions import ActionParser
from ..context import ContextPolicy, MessageFunction, ReportedHistory
from ..environment import EnvironmentSource
from ..filtering import top_k_groups, top_p_groups
from ..gae import Floats, bi_level_gae, sampled_turns, token_gae
from ..moments import merge, moments
from ..replay_buffer import ReplayBuffer
from ..rows import NO_EPISODE, NOT_TRAINED, TokenRow, by_episode
from ..turns import TurnArrays, episode_scores, normalization_weights
from .agent_trainer import AgentGRPOTrainer, RewardFunction
from .critic import Critic, CriticLearner
from .starpo_config import StarPOConfig


logger = get_logger(__name__)

_CRITIC_FILE = "critic.pt"


class StarPOTrainer(AgentGRPOTrainer):
    """
    Trainer for State-Thinking-Actions-Reward Policy Optimization (StarPO) and its stabilised form StarPO-S.

    StarPO ([RAGEN: Understanding Self-Evolution in LLM Agents via Multi-Turn Reinforcement
    Learning](https://huggingface.co/papers/2504.20073)) optimises whole trajectories of several turns with several actions
    each. With a [`StarPOConfig`] this is StarPO; with a [`StarPOSConfig`] it is StarPO-S.

    What it adds to [`AgentGRPOTrainer`]: RAGEN's messages, advantages from a critic (`advantage_estimator`), training on
    the groups of uncertain outcome only (`group_filter`), and episodes of earlier rollouts (`replay_fraction`).

    Example:

    ```python
    >>> from peft import LoraConfig
    >>> from trl_agentpo import StarPOSConfig, StarPOTrainer

    >>> trainer = StarPOTrainer(
    ...     model="Qwen/Qwen2.5-0.5B-Instruct",
    ...     environment_factory="trl_agentpo/Sokoban-v0",
    ...     args=StarPOSConfig(output_dir="sokoban-starpo-s", max_steps=200),
    ...     peft_config=LoraConfig(r=16, lora_alpha=32),
    ... )
    >>> trainer.train()
    ```

    Arguments are those of [`AgentGRPOTrainer`], with a [`StarPOConfig`] for `args`, and one more.

    Args:
        critic_model (`str`, *optional*):
            The name or folder of the model that the critic starts from, with the policy's tokenizer. If `None`, the
            policy as it is at the start. The critic is trained as the policy is: in full, or, where the policy is a
            [`~peft.PeftModel`], by an adapter of the same configuration.

    Raises:
        ValueError: besides what [`AgentGRPOTrainer`] raises: a `critic_model` without a critic, or with another tokenizer.
    """

    _tag_names = ["trl", "trl-agentpo", "starpo"]
    _name = "StarPO"
    _paper = {
        "title": "RAGEN: Understanding Self-Evolution in LLM Agents via Multi-Turn Reinforcement Learning",
        "id": "2504.20073",
        "citation": (
            "@article{wang2025ragen,\n"
            "    title        = {{RAGEN: Understanding Self-Evolution in LLM Agents via Multi-Turn Reinforcement "
            "Learning}},\n"
            "    author       = {Zihan Wang and Kangrui Wang and Qineng Wang and Pingyue Zhang and others},\n"
            "    year         = 2025,\n"
            "    eprint       = {arXiv:2504.20073},\n"
            "}"
        ),
    }
    _config_class = StarPOConfig

    args: StarPOConfig

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        environment_factory: EnvironmentSource,
        reward_funcs: RewardFunction | list[RewardFunction] | None = None,
        args: StarPOConfig | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        eval_dataset: Dataset | IterableDataset | dict[str, Dataset | IterableDataset] | None = None,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None = None,
        reward_processing_classes: PreTrainedTokenizerBase | list[PreTrainedTokenizerBase] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        quantization_config: BitsAndBytesConfig | None = None,
        peft_config: PeftConfig | None = None,
        context: ContextPolicy | MessageFunction | None = None,
        action_parser: ActionParser | None = None,
        critic_model: str | None = None,
    ):
        super().__init__(
            model=model,
            environment_factory=environment_factory,
            reward_funcs=reward_funcs,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            reward_processing_classes=reward_processing_classes,
            callbacks=callbacks,
            optimizers=optimizers,
            quantization_config=quantization_config,
            peft_config=peft_config,
            context=context,
            action_parser=action_parser,
        )
        self.replay = ReplayBuffer(self._replay_share(), self.args.max_replay_staleness)
        self.keeps_old_logprobs = self.args.replay_fraction > 0
        self.skipped_rollouts = 0
        self.critic = self._build_critic(critic_model)

    def context_policy(self) -> ContextPolicy:
        """RAGEN's messages under `context="full_history"`."""
        if self.args.context == "full_history":
            return ReportedHistory(self.args.max_actions)
        return super().context_policy()

    # Which groups are trained on

    def select_episodes(self, turns: TurnArrays) -> NDArray[np.bool_]:
        """
        Keep the groups whose scores differ most.

        Args:
            turns ([`TurnArrays`]):
                The turns of all processes.

        Returns:
            `NDArray[np.bool_]` of shape `(num_turns,)`: the turns of the groups that [`top_k_groups`] or [`top_p_groups`]
            names. In evaluation, or without a filter, all.
        """
        if self.args.group_filter == "off" or self.mode == "eval":
            return super().select_episodes(turns)
        choose = top_k_groups if self.args.group_filter == "top_k" else top_p_groups
        scores, group_ids = episode_scores(self.penalized_rewards(turns), turns)
        kept = choose(scores, group_ids, self.args.kept_ratio)
        self.log_values("groups/kept", [len(kept) / max(1, len(np.unique(group_ids)))])
        self._count_skipped(len(kept) == 0)
        return np.isin(turns.group_ids, kept)

    def _count_skipped(self, skipped: bool) -> None:
        self.skipped_rollouts = self.skipped_rollouts + 1 if skipped else 0
        if self.skipped_rollouts >= self.args.max_skipped_rollouts:
            logger.warning(
                f"In {self.skipped_rollouts} rollouts in a row the episodes of every group earned the same, so there is "
                "nothing to learn from, and the run ends here. Give tasks that are neither always nor never solved, sample "
                "with a higher `temperature`, or set `max_resample`; `max_skipped_rollouts` says when to give up."
            )
            self.control.should_training_stop = True

    # Credit

    def set_targets(self, rows: list[TokenRow], turns: TurnArrays) -> NDArray[np.float64]:
        """
        Put advantages on the tokens of the rows and, with a critic, what the critic is to learn.

        Args:
            rows (`list[TokenRow]`):
                The rows of this process.
            turns ([`TurnArrays`]):
                The turns of all processes.

        Returns:
            `NDArray[np.float64]` of shape `(num_turns,)`: the mean advantage of each turn of all processes, to be shown.
        """
        if self.critic is None:
            return super().set_targets(rows, turns)
        values = self.critic.values(rows, self._batch_size, self._tokenizer.eos_token_id)
        trained = [np.array(row.turn_indices, dtype=np.int64) != NOT_TRAINED for row in rows]
        read = np.concatenate([v[t] for v, t in zip(values, trained, strict=True)]) if rows else np.zeros(0)
        turn_ids = np.array([i for row in rows for i in row.turn_indices if i != NOT_TRAINED], dtype=np.int64)
        advantages = self._estimate(read, turn_ids, turns)
        returns = advantages + read
        self._log_critic(read, returns)
        weights = normalization_weights(turns, self.args.loss_normalization)
        credit = self._whitened(advantages) * weights[turn_ids]
        ends = np.cumsum([t.sum() for t in trained])[:-1]
        for name, target in (("old_values", read), ("returns", returns), ("advantages", credit)):
            for row, where, part in zip(rows, trained, np.split(target, ends), strict=True):
                row.targets[name] = np.zeros(len(where))
                row.targets[name][where] = part
        return self._mean_by_turn(credit, turn_ids, len(turns))

    def _estimate(self, values: NDArray[np.float64], turn_ids: NDArray[np.int64], turns: TurnArrays) -> Floats:
        numbers, rewards, episode_ids = sampled_turns(turn_ids, self.penalized_rewards(turns), turns.episode_ids)
        arguments = (values, numbers, rewards, episode_ids)
        if self.args.gamma_turn is None:
            return token_gae(*arguments, gamma=self.args.gamma, lam=self.args.lam)
        return bi_level_gae(
            *arguments,
            gamma_turn=self.args.gamma_turn,
            lam_turn=self.args.lam_turn,
            gamma=self.args.gamma,
            lam=self.args.lam,
        )

    def _whitened(self, advantages: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.args.scale_rewards == "none":
            return advantages
        of_all = merge(gather_object([moments(advantages)]))
        return (advantages - of_all.mean) / (np.sqrt(of_all.variance) + 1e-8)

    def _mean_by_turn(
        self, advantages: NDArray[np.float64], turn_ids: NDArray[np.int64], num_turns: int
    ) -> NDArray[np.float64]:
        sums = np.bincount(turn_ids, weights=advantages, minlength=num_turns)
        counts = np.bincount(turn_ids, minlength=num_turns)
        parts = gather_object([(sums, counts)])
        return sum(part[0] for part in parts) / np.maximum(sum(part[1] for part in parts), 1)

    # The critic

    def _build_critic(self, critic_model: str | None) -> CriticLearner | None:
        if not self.args.has_critic:
            if critic_model is not None:
                raise ValueError(
                    f"`critic_model`={critic_model!r} has no effect with `advantage_estimator`='grpo'. Leave it out, or use "
                    "'gae' or 'bi_level_gae'."
                )
            return None
        if self.accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
            raise ValueError(
                f"`advantage_estimator`={self.args.advantage_estimator!r} trains a critic, which does not go with "
                f"{self.accelerator.distributed_type.value}. Launch with DDP, or use `advantage_estimator`='grpo'."
            )
        critic = Critic(self.model if critic_model is None else self._other_model(critic_model))
        if self.args.gradient_checkpointing:
            critic.backbone.gradient_checkpointing_enable({"use_reentrant": False})
        learnt = [parameter for parameter in critic.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(learnt, lr=self.args.critic_learning_rate, weight_decay=self.args.weight_decay)
        return CriticLearner(critic, self.accelerator, optimizer, self.args.cliprange_value, self.args.max_grad_norm)

    def _other_model(self, name: str) -> PreTrainedModel | PeftModel:
        """The model the user named for the critic, to be trained as the policy is."""
        if AutoTokenizer.from_pretrained(name).get_vocab() != self._tokenizer.get_vocab():
            raise ValueError(
                f"`critic_model`={name!r} has another tokenizer than the policy, but the critic reads the policy's token "
                "ids. Use a model of the policy's family, or leave `critic_model` out."
            )
        model = AutoModelForCausalLM.from_pretrained(name, dtype=self.model.dtype).to(self.accelerator.device)
        return get_peft_model(model, self.model.peft_config["default"]) if isinstance(self.model, PeftModel) else model

    @property
    def _batch_size(self) -> int:
        return self.args.per_device_train_batch_size if self.mode == "train" else self.args.per_device_eval_batch_size

    def train_critic(self, chunks: Sequence[Mapping[str, Any]]) -> bool:
        """
        Let the critic learn from a training step's rows.

        Args:
            chunks (`Sequence[Mapping[str, Any]]`):
                The rows, cut into chunks.

        Returns:
            `bool`: whether the policy is to learn from them, too: not while the critic warms up.
        """
        if self.critic is None:
            return True
        share = self.current_gradient_accumulation_steps / self.args.steps_per_generation
        self.critic.accumulate(chunks, max(1.0, float(chunks[0]["num_items_in_batch"]) * share))
        if self.closes_update:
            for name, value in self.critic.step().items():
                self.log_values(f"critic/{name}", [value])
        return self.state.global_step >= self.args.critic_warmup_steps

    def _log_critic(self, values: NDArray[np.float64], returns: NDArray[np.float64]) -> None:
        parts = gather_object([(moments(values), moments(returns), moments(returns - values))])
        value, to_learn, error = (merge(of_all) for of_all in zip(*parts, strict=True))
        if to_learn.variance > 0:
            self.log_values("critic/explained_variance", [1.0 - error.variance / to_learn.variance])
        self.log_values("critic/mean_value", [value.mean])
        self.log_values("critic/mean_return", [to_learn.mean])

    def save_networks(self, folder: Path) -> None:
        """Write the critic and its optimizer into a checkpoint."""
        if self.critic is not None:
            torch.save(self.critic.state(), folder / _CRITIC_FILE)

    def load_networks(self, folder: Path) -> None:
        """Read the critic and its optimizer from a checkpoint."""
        if self.critic is not None:
            self.critic.load_state(torch.load(folder / _CRITIC_FILE, map_location="cpu", weights_only=True))

    # Replay

    def _replay_share(self) -> int:
        """How many of the buffer's episodes this process keeps."""
        size, processes = self.args.replay_buffer_size, self.accelerator.num_processes
        return size // processes + (self.accelerator.process_index < size % processes)

    def add_rows(self, rows: list[TokenRow]) -> list[TokenRow]:
        """
        Add episodes of earlier rollouts.

        Args:
            rows (`list[TokenRow]`):
                The rows of this process, with their targets.

        Returns:
            `list[TokenRow]`: these and replayed ones, so that the latter are `replay_fraction` of all episodes.
        """
        if self.args.replay_fraction == 0 or self.mode == "eval":
            return rows
        fraction = self.args.replay_fraction
        wanted = round(len(by_episode(rows)) * fraction / (1 - fraction))
        seed = (self.args.seed, self.num_rollouts, self.accelerator.process_index)
        drawn = self.replay.draw(wanted, self.num_rollouts, seed)
        self._log_replay([self.num_rollouts - stored.rollout for stored in drawn])
        return rows + [row for stored in drawn for row in stored.rows]

    def _log_replay(self, staleness: list[int]) -> None:
        of_all = [rollouts for local in gather_object([staleness]) for rollouts in local]
        self.log_values("replay/episodes", [float(len(of_all))])
        if of_all:
            self.log_values("replay/staleness", [float(rollouts) for rollouts in of_all])

    def after_scoring(self, rows: list[TokenRow], old_policy: dict[str, torch.Tensor]) -> None:
        """
        Keep the fresh episodes for later rollouts, with what the policy that sampled them thought of their tokens.

        Args:
            rows (`list[TokenRow]`):
                The local rows.
            old_policy (`dict[str, torch.Tensor]`):
                Log-probabilities, and vLLM's importance ratios, of their tokens.
        """
        if self.args.replay_fraction == 0 or self.mode == "eval":
            return
        known = {name: values.double().cpu().numpy() for name, values in old_policy.items()}
        fresh = []
        for number, row in enumerate(rows):
            if row.episode_id != NO_EPISODE and not row.targets.keys() & known.keys():
                row.targets |= {name: values[number, : len(row.completion_ids)] for name, values in known.items()}
                fresh.append(row)
        self.replay.add(self.num_rollouts - 1, by_episode(fresh))

    # What is remembered between rollouts

    def loop_state(self) -> dict[str, Any]:
        """The replay buffer and the counters."""
        return {**super().loop_state(), "skipped_rollouts": self.skipped_rollouts, "replay": self.replay.state()}

    def load_loop_state(self, state: dict[str, Any]) -> None:
        """Take up what [`loop_state`] gave."""
        super().load_loop_state(state)
        self.skipped_rollouts = state["skipped_rollouts"]
        self.replay.load_state(state["replay"])
