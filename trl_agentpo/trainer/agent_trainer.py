# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
GRPO over environments: the rollout, the rewards, the credit and the rows of one generation batch, in that order.

Invariant: credit is computed on the turns of all processes, so that a group may straddle them, and every process then
takes its own turns. Rows that only pad are added after credit is given and enter no statistic.
"""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from numpy.typing import NDArray
from peft import PeftConfig, PeftModel
from transformers import (
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    TrainerCallback,
)
from transformers.trainer_utils import has_length
from trl.trainer.utils import get_config_model_id

from .. import environment as contract
from ..actions import ActionFormat, ActionParser
from ..advantages import episode_advantages
from ..collapse import group_outcomes, response_variety
from ..context import (
    ChatTokens,
    ContextPolicy,
    FullHistory,
    MessageContext,
    MessageFunction,
    TaskPrompt,
    Window,
    paragraphs,
)
from ..environment import EnvironmentSource
from ..episode import Episode
from ..filtering import group_deviations
from ..pool import EnvironmentPool
from ..rewards import turn_rewards
from ..rollout import LIMITS, Limits, Rollout
from ..rows import TokenRow, balanced_shares, by_episode, merge_turns, padded_count, padding_row, turn_values
from ..tasks import draw_task_seeds, task_of
from ..turns import TurnArrays, concatenate, episode_scores, flatten, normalization_weights
from ._trl import Collected, EnvironmentSeam
from .agent_config import AgentGRPOConfig
from .turn_rewards import TurnRewardFunction, by_turn


RewardFunction: TypeAlias = str | PreTrainedModel | Callable[..., list[float | None]]


def environment_return(episodes: list[Episode], **kwargs: Any) -> list[float]:
    """The reward function of the environment itself: each episode's undiscounted return."""
    return [episode.total_reward for episode in episodes]


@dataclass
class _Batch:
    """A generation batch: local tasks, episodes and transcripts, the rewards and the turns of all processes."""

    inputs: list[dict[str, Any]]
    episodes: list[Episode]
    prompts: list[Any]
    completions: list[Any]
    rewards: torch.Tensor
    turns: TurnArrays


class AgentGRPOTrainer(EnvironmentSeam):
    """
    Trainer for Group Relative Policy Optimization over multi-turn environments.

    The only change with respect to [`~trl.GRPOTrainer`] is where completions come from and how credit is placed: an
    environment loop plays `num_generations` episodes of each task, and every token of an episode gets the advantage of its
    episode's return within the group. It is the baseline of [`GiGPOTrainer`].

    Example:

    ```python
    >>> from peft import LoraConfig
    >>> from trl_agentpo import AgentGRPOConfig, AgentGRPOTrainer

    >>> trainer = AgentGRPOTrainer(
    ...     model="Qwen/Qwen2.5-0.5B-Instruct",
    ...     environment_factory="trl_agentpo/FrozenLake-v0",
    ...     args=AgentGRPOConfig(output_dir="frozenlake-grpo", max_steps=200),
    ...     peft_config=LoraConfig(r=16, lora_alpha=32),
    ... )
    >>> trainer.train()
    ```

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Model to be trained; see [`~trl.GRPOTrainer`].
        environment_factory (`str`, `gymnasium.Env` class or callable):
            A gymnasium id, an environment class, or a callable that returns an environment. `args.environment_kwargs` are
            handed to it.
        reward_funcs (`RewardFunction` or `list[RewardFunction]`, *optional*):
            Extra rewards, added to the environment's at the end of an episode. As in [`~trl.GRPOTrainer`]; custom
            functions also receive `episodes`, a list of [`Episode`]. `args.reward_weights` has a weight for each of them;
            the environment's own reward has weight 1.
        args ([`AgentGRPOConfig`], *optional*):
            Configuration. If `None`, a default configuration is used.
        train_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`], *optional*):
            The tasks, one row each: column `seed`, a column `options` (dict) and any further columns reach
            `reset(seed=…, options=…)`. Rows of a `Dataset` without `seed` get one. If `None`, seeds are drawn.
        eval_dataset ([`~datasets.Dataset`], [`~datasets.IterableDataset`] or `dict`, *optional*):
            The tasks to evaluate on, in the same form.
        processing_class ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            The tokenizer, with a chat template. If `None`, loaded from the model's name.
        reward_processing_classes, callbacks, optimizers, quantization_config, peft_config (*optional*):
            As in [`~trl.GRPOTrainer`].
        context ([`ContextPolicy`] or callable, *optional*):
            What the model sees, instead of what `args.context` says: a policy, or a function from the task, the turns so
            far and the current observation to chat messages.
        action_parser (callable, *optional*):
            From the text of a reply to a [`ParsedResponse`], instead of what `args.action_format` says. The environment's
            `instructions` then have to say in which form to answer.

    Raises:
        ValueError: an option or a task is wrong; the message says which and what to do.
        EnvironmentContractError: the environment does not fit the contract.
        NonDeterministicResetError: the same seed gives different initial states.
    """

    _tag_names = ["trl", "trl-agentpo", "agent-grpo"]
    _name = "GRPO over environments"
    _paper = {
        "title": "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
        "id": "2402.03300",
        "citation": (
            "@article{shao2024deepseekmath,\n"
            "    title        = {{DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models}},\n"
            "    author       = {Zhihong Shao and Peiyi Wang and Qihao Zhu and others},\n"
            "    year         = 2024,\n"
            "    eprint       = {arXiv:2402.03300},\n"
            "}"
        ),
    }
    _config_class = AgentGRPOConfig

    args: AgentGRPOConfig

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        environment_factory: EnvironmentSource,
        reward_funcs: RewardFunction | list[RewardFunction] | None = None,
        args: AgentGRPOConfig | None = None,
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
    ):
        if args is None:
            args = self._default_config(model)
        if not isinstance(args, self._config_class):
            raise TypeError(
                f"`args` must be a `{self._config_class.__name__}`, got `{type(args).__name__}`: the options of the "
                "environment loop live there."
            )
        self.pool = EnvironmentPool(functools.partial(contract.make, environment_factory, **args.environment_keywords))
        train_dataset = _train_tasks(args, train_dataset)
        if args.max_resample and not isinstance(train_dataset, Dataset):
            raise ValueError(
                f"`max_resample`={args.max_resample} draws further tasks at random, which an `IterableDataset` does not "
                "allow. Give a `Dataset`, or `num_tasks`, or set `max_resample` to 0."
            )
        eval_dataset = _eval_tasks(args, eval_dataset)
        for panel in (train_dataset, *(eval_dataset.values() if isinstance(eval_dataset, dict) else [eval_dataset])):
            if panel is not None:
                self._check_environment(panel)
        functions = _as_list(reward_funcs)

        super().__init__(
            model=model,
            reward_funcs=[*map(by_turn, functions), environment_return],
            args=_with_environment_weight(args, len(functions)),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            reward_processing_classes=_for_each(reward_processing_classes, len(functions)),
            callbacks=callbacks,
            optimizers=optimizers,
            quantization_config=quantization_config,
            peft_config=peft_config,
        )
        # TRL would mask whole rows by their last token; rows hold several turns here, see `merge_turns`.
        self.mask_truncated_completions = False
        parse = action_parser or ActionFormat(args.action_format, args.require_thinking, args.max_actions_per_turn)
        self.rollout = self._build_rollout(self._context(context), parse)
        self.num_rollouts = 0
        self.last_episodes: list[Episode] = []

    @classmethod
    def _default_config(cls, model: str | PreTrainedModel | PeftModel) -> AgentGRPOConfig:
        model_name = model if isinstance(model, str) else get_config_model_id(model.config)
        return cls._config_class(f"{model_name.split('/')[-1]}-{cls.__name__.removesuffix('Trainer')}", max_steps=200)

    def _check_environment(self, tasks: Dataset | IterableDataset) -> None:
        """Reset two environments to the first task: it must be possible, and give the same state twice."""
        seed, options = task_of(next(iter(tasks)))
        first, second = (contract.reset(self.pool[place], seed, options or None) for place in (0, 1))
        contract.check_same_start(type(self.pool[0].unwrapped).__name__, seed, first, second)

    def _context(self, context: ContextPolicy | MessageFunction | None) -> ContextPolicy:
        if isinstance(context, ContextPolicy):
            return context
        return self.context_policy() if context is None else MessageContext(context)

    def _build_rollout(self, context: ContextPolicy, parse: ActionParser) -> Rollout:
        environment = self.pool[0]
        return Rollout(
            pool=self.pool,
            generate=self.sample,
            any_active=self._any_active,
            chat=ChatTokens(self._tokenizer, self.chat_template_kwargs),
            context=context,
            task=TaskPrompt(
                contract.instructions_of(environment), parse.instructions if isinstance(parse, ActionFormat) else ""
            ),
            parse=parse,
            limits=_limits(self.args, self._model_context()),
            end_tokens=self.eos_token_ids,
            raise_on_error=self.args.on_env_error == "raise",
        )

    def _model_context(self) -> int | None:
        if self.use_vllm and self.args.vllm_max_model_length is not None:
            return self.args.vllm_max_model_length
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    def _any_active(self, num_active: int) -> bool:
        counts = self.accelerator.gather(torch.tensor([num_active], device=self.accelerator.device))
        return bool(counts.sum() > 0)

    # The hooks of an algorithm

    def context_policy(self) -> ContextPolicy:
        """What the model sees of the past where the user gave no `context`, as the configuration says."""
        return FullHistory() if self.args.context == "full_history" else Window(self.args.history_length)

    def select_episodes(self, turns: TurnArrays) -> NDArray[np.bool_]:
        """
        Say which turns are trained on. Whole groups are to be kept or dropped.

        Args:
            turns ([`TurnArrays`]):
                The turns of all processes.

        Returns:
            `NDArray[np.bool_]` of shape `(num_turns,)`: here all of them.
        """
        return np.ones(len(turns), dtype=bool)

    def compute_advantages(self, turns: TurnArrays) -> NDArray[np.float64]:
        """
        Give credit: GRPO's, the return of the episode relative to its group.

        Args:
            turns ([`TurnArrays`]):
                The turns of all processes.

        Returns:
            `NDArray[np.float64]` of shape `(num_turns,)`: one advantage per turn.
        """
        return episode_advantages(
            self.penalized_rewards(turns), turns.episode_ids, turns.group_ids, scale_rewards=self.args.scale_rewards
        )

    def penalized_rewards(self, turns: TurnArrays) -> NDArray[np.float64]:
        """Each turn's reward without the penalty on invalid replies."""
        return turns.rewards - self.args.invalid_action_penalty * turns.invalid

    def set_targets(self, rows: list[TokenRow], turns: TurnArrays) -> NDArray[np.float64]:
        """
        Put advantages on the tokens of the rows, as the target `"advantages"`.

        Args:
            rows (`list[TokenRow]`):
                The rows of this process.
            turns ([`TurnArrays`]):
                The turns of all processes.

        Returns:
            `NDArray[np.float64]` of shape `(num_turns,)`: the mean advantage of each turn of all processes, to be shown.
        """
        advantages = self.compute_advantages(turns) * normalization_weights(turns, self.args.loss_normalization)
        for row in rows:
            row.targets["advantages"] = turn_values(row, advantages)
        return advantages

    def add_rows(self, rows: list[TokenRow]) -> list[TokenRow]:
        """
        Say what else is trained on besides the rows of this rollout.

        Args:
            rows (`list[TokenRow]`):
                The rows of this process, with their targets.

        Returns:
            `list[TokenRow]`: here the same rows.
        """
        return rows

    # One generation batch

    def collect(self, inputs: list[dict[str, Any]]) -> Collected:
        """
        Play, reward, select, credit and lay out one generation batch.

        Args:
            inputs (`list[dict]`):
                The task rows of this process, `num_generations` equal ones after each other.

        Returns:
            [`Collected`]: the rows and their credit.
        """
        played: list[Episode] = []
        batch = self._play(inputs, [Episode(*task_of(row)) for row in inputs], played)
        if self.mode == "train":
            batch = self._resample(batch, played)
            self.last_episodes = batch.episodes
        turns = batch.turns
        selected = self.select_episodes(turns)
        # What is not trained on must not count where every turn or episode is to count the same.
        turns.num_tokens[~selected] = 0
        rows = self._deal(self._rows(batch.episodes, turns, selected), selected)
        advantages = self.set_targets(rows, turns)
        rows = self._pad_rows(self.add_rows(rows))
        self._log_episodes(played)
        self._log_groups(batch)
        if self.mode == "train":
            self.num_rollouts += 1
        return Collected(
            batch.prompts,
            batch.completions,
            rows,
            batch.rewards,
            _mean_by_episode(turns, advantages, len(batch.rewards)),
        )

    def _play(self, inputs: list[dict[str, Any]], episodes: list[Episode], played: list[Episode]) -> "_Batch":
        """Play those episodes that have not begun, and reward all."""
        new = [episode for episode in episodes if not episode.done]
        self.rollout.play(new)
        played += new
        prompts, completions = _transcripts(episodes, self.rollout.task)
        rewards, extra = self._reward(inputs, episodes, prompts, completions)
        return _Batch(inputs, episodes, prompts, completions, rewards, self._turn_arrays(episodes, extra))

    def _resample(self, batch: "_Batch", played: list[Episode]) -> "_Batch":
        """Play new tasks in place of groups that taught nothing (DAPO's dynamic sampling)."""
        num_resampled = 0
        for attempt in range(self.args.max_resample):
            flat = self._flat_groups(batch.turns)
            if not flat:
                break
            num_resampled += len(flat)
            batch = self._play(*self._with_new_tasks(batch, flat, attempt), played)
        if self.args.max_resample:
            self.log_values("groups/resampled", [float(num_resampled)])
        return batch

    def _with_new_tasks(
        self, batch: "_Batch", groups: list[int], attempt: int
    ) -> tuple[list[dict[str, Any]], list[Episode]]:
        """The local tasks and episodes, of which those of these groups are new."""
        new = self._draw_tasks(groups, attempt)
        first = self.accelerator.process_index * len(batch.inputs)
        inputs, episodes = list(batch.inputs), list(batch.episodes)
        for place in range(len(inputs)):
            group = (first + place) // self._group_size
            if group in new:
                inputs[place], episodes[place] = new[group], Episode(*task_of(new[group]))
        return inputs, episodes

    def _flat_groups(self, turns: TurnArrays) -> list[int]:
        """The groups of all processes whose episodes all earned the same."""
        scores, group_ids = episode_scores(self.penalized_rewards(turns), turns)
        groups, deviations = group_deviations(scores, group_ids)
        return groups[deviations == 0].tolist()

    def _draw_tasks(self, groups: list[int], attempt: int) -> dict[int, dict[str, Any]]:
        """A training task drawn at random for each of these groups, the same one on every process."""
        draw = np.random.default_rng([self.args.seed, self.num_rollouts, attempt])
        return {group: self.train_dataset[int(draw.integers(len(self.train_dataset)))] for group in groups}

    @property
    def _group_size(self) -> int:
        return self.num_generations if self.mode == "train" else self.num_generations_eval

    def _reward(
        self, inputs: list[dict[str, Any]], episodes: list[Episode], prompts: list[Any], completions: list[Any]
    ) -> tuple[torch.Tensor, list[list[float]]]:
        """
        Rewards of all processes' episodes by function, NaN for crashed ones, which TRL then leaves out; and for each turn
        of this process what reward functions add to the environment's reward.
        """
        rows = [{**row, "episodes": episode} for row, episode in zip(inputs, episodes, strict=True)]
        token_ids = [[i for turn in episode.turns for i in turn.completion_ids] for episode in episodes]
        rewards = self.reward_episodes(rows, prompts, completions, token_ids)
        failed = gather_object([episode.failed for episode in episodes])
        rewards[torch.tensor(failed, device=rewards.device)] = torch.nan
        first = self.accelerator.process_index * len(episodes)
        return rewards, self._extra_rewards(episodes, rewards[first : first + len(episodes)])

    def _extra_rewards(self, episodes: list[Episode], rewards: torch.Tensor) -> list[list[float]]:
        extra = [np.zeros(len(episode.turns)) for episode in episodes]
        for number, (function, weight) in enumerate(
            zip(self.reward_funcs[:-1], self.reward_weights[:-1], strict=True)
        ):
            if isinstance(function, TurnRewardFunction):
                given = function.by_turn
            else:
                given = turn_rewards(rewards[:, number].nan_to_num().tolist(), episodes, str(number))[1]
            for total, values in zip(extra, given, strict=True):
                total += float(weight) * np.array(values)
        return [values.tolist() for values in extra]

    def _turn_arrays(self, episodes: list[Episode], extra_rewards: list[list[float]]) -> TurnArrays:
        first = self.accelerator.process_index * len(episodes)
        local = flatten(episodes, extra_rewards, first, self._group_size, self.args.mask_truncated_completions)
        return concatenate(gather_object([local]))

    def _rows(self, episodes: list[Episode], turns: TurnArrays, selected: NDArray[np.bool_]) -> list[TokenRow]:
        """The rows of this process's selected episodes; their turns are numbered over all processes."""
        first = self.accelerator.process_index * len(episodes)
        kept, first_turns = np.unique(turns.episode_ids, return_index=True)
        rows: list[TokenRow] = []
        for number, first_turn in zip(kept.tolist(), first_turns.tolist(), strict=True):
            if first <= number < first + len(episodes) and selected[first_turn]:
                turns_of = episodes[number - first].turns
                rows += merge_turns(turns_of, first_turn, self.args.mask_truncated_completions, number)
        return rows

    def _deal(self, rows: list[TokenRow], selected: NDArray[np.bool_]) -> list[TokenRow]:
        """Where a selection left some processes with fewer rows than others, an equal share of all processes' rows."""
        if selected.all() or self.accelerator.num_processes == 1:
            return rows
        episodes = gather_object(by_episode(rows))
        shares = balanced_shares([len(of_episode) for of_episode in episodes], self.accelerator.num_processes)
        own = np.flatnonzero(shares == self.accelerator.process_index)
        return [row for number in own for row in episodes[number]]

    def _pad_rows(self, rows: list[TokenRow]) -> list[TokenRow]:
        slices = self.args.steps_per_generation if self.mode == "train" else 1
        missing = padded_count(gather_object([len(rows)]), slices) - len(rows)
        return rows + [padding_row(self._tokenizer.eos_token_id, self.use_vllm) for _ in range(missing)]

    def loop_state(self) -> dict[str, Any]:
        return {"num_rollouts": self.num_rollouts}

    def load_loop_state(self, state: dict[str, Any]) -> None:
        self.num_rollouts = state["num_rollouts"]

    # Metrics

    def _log_episodes(self, episodes: list[Episode]) -> None:
        gather = gather_object if self.mode == "train" else self._gather_evaluated
        summaries = gather([_summary(episode) for episode in episodes])
        for name in sorted({name for summary in summaries for name in summary}):
            self.log_values(name, [value for summary in summaries for value in summary.get(name, ())])
        self._log_lengths([int(n) for summary in summaries for n in summary["completions/mean_length"]])
        self._log_seconds(episodes)

    def _gather_evaluated(self, values: list[Any]) -> list[Any]:
        """All processes' values, without those of tasks that were played already and only fill up the last batch."""
        gathered = gather_object(values)
        dataloader = self.accelerator.gradient_state.active_dataloader
        if not self.accelerator.gradient_state.end_of_dataloader or not has_length(dataloader.dataset):
            return gathered
        # Not accelerate's own remainder, which takes every task to be played once.
        num_episodes = len(dataloader.dataset) * self.num_generations_eval
        return gathered[: num_episodes % dataloader.total_batch_size or None]

    def _log_groups(self, batch: "_Batch") -> None:
        """Log how the outcomes within groups differ, and how the replies do."""
        if self._group_size > 1:
            scores, group_ids = episode_scores(self.penalized_rewards(batch.turns), batch.turns)
            for name, value in group_outcomes(scores, group_ids, self._successes(batch)).items():
                self.log_values(name, [value])
        turns = [turn for episode in batch.episodes for turn in episode.turns]
        variety = response_variety([turn.response for turn in turns], [turn.thinking for turn in turns])
        of_all = gather_object([variety])
        # A process whose turns hold no thinking says nothing about it.
        for name in sorted({name for local in of_all for name in local}):
            self.log_values(name, [float(np.mean([local[name] for local in of_all if name in local]))])

    def _successes(self, batch: "_Batch") -> NDArray[np.bool_]:
        """Whether each episode that is in the turn arrays succeeded."""
        successes = np.array(gather_object([episode.success for episode in batch.episodes]), dtype=bool)
        return successes[np.unique(batch.turns.episode_ids)]

    def _log_lengths(self, lengths: list[int]) -> None:
        self.count_tokens(sum(lengths))
        if lengths:
            self.log_values("completions/min_length", [min(lengths)])
            self.log_values("completions/max_length", [max(lengths)])

    def _log_seconds(self, episodes: list[Episode]) -> None:
        spent = [self.rollout.generation_seconds, sum(episode.environment_seconds for episode in episodes)]
        gathered = self.accelerator.gather(torch.tensor([spent], device=self.accelerator.device, dtype=torch.float32))
        for name, seconds in zip(("time/generation", "time/environment"), gathered.mean(dim=0).tolist(), strict=True):
            self.log_values(name, [seconds])


def _with_environment_weight(args: AgentGRPOConfig, num_functions: int) -> AgentGRPOConfig:
    """The configuration with weight 1 for the environment's reward, where the user gave weights for the others."""
    if args.reward_weights is None:
        return args
    if len(args.reward_weights) != num_functions:
        raise ValueError(
            f"`reward_weights` has {len(args.reward_weights)} weights for {num_functions} `reward_funcs`. Give one for "
            "each; the environment's own reward has weight 1."
        )
    args = copy.copy(args)
    args.reward_weights = [*args.reward_weights, 1.0]
    return args


def _as_list(reward_funcs: RewardFunction | list[RewardFunction] | None) -> list[RewardFunction]:
    if reward_funcs is None:
        return []
    return list(reward_funcs) if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]


def _for_each(processing_classes: Any, num_functions: int) -> list[Any] | None:
    if processing_classes is None:
        return None
    given = processing_classes if isinstance(processing_classes, list) else [processing_classes]
    return [*given, None] if len(given) == num_functions else given


def _limits(args: AgentGRPOConfig, model_context: int | None) -> Limits:
    return Limits(
        max_turns=args.max_turns,
        max_actions=args.max_actions,
        max_actions_per_turn=args.max_actions_per_turn,
        max_completion_length=args.turn_length,
        max_context_length=model_context,
        max_episode_length=args.max_episode_length,
    )


def _train_tasks(args: AgentGRPOConfig, dataset: Dataset | IterableDataset | None) -> Dataset | IterableDataset:
    groups = args.generation_batch_size // args.num_generations
    if dataset is not None:
        if args.num_tasks is not None:
            raise ValueError(
                f"`num_tasks`={args.num_tasks} was given together with a `train_dataset`. Give one of them: the dataset's "
                "rows are the tasks."
            )
        if isinstance(dataset, Dataset) and len(dataset) < groups:
            raise ValueError(f"`train_dataset` has {len(dataset)} rows, {_too_few(args, groups)}")
        return _with_seeds(dataset, args.seed, "train")
    if args.num_tasks is None and args.max_steps <= 0:
        raise ValueError(
            f"Without a `train_dataset` or `num_tasks` the length of training is unknown: `max_steps`={args.max_steps}. Set "
            "`max_steps` to the number of optimizer steps, or `num_tasks` to the number of tasks of an epoch."
        )
    if args.num_tasks is not None and args.num_tasks < groups:
        raise ValueError(f"`num_tasks` is {args.num_tasks}, {_too_few(args, groups)}")
    num_tasks = args.num_tasks if args.num_tasks is not None else groups * _num_generation_batches(args)
    return Dataset.from_dict({"seed": draw_task_seeds(num_tasks, args.seed, "train")})


def _too_few(args: AgentGRPOConfig, groups: int) -> str:
    return (
        f"less than the {groups} groups of a generation batch (`generation_batch_size`={args.generation_batch_size} / "
        f"`num_generations`={args.num_generations}). Give more tasks, or lower `per_device_train_batch_size` or "
        "`steps_per_generation`."
    )


def _num_generation_batches(args: AgentGRPOConfig) -> int:
    """How often `max_steps` optimizer steps generate."""
    return -(-args.max_steps * args.gradient_accumulation_steps // (args.steps_per_generation * args.num_iterations))


def _eval_tasks(args: AgentGRPOConfig, dataset: Any) -> Any:
    if args.num_eval_tasks is None:
        if isinstance(dataset, dict):
            return {name: _with_seeds(part, args.seed, "eval") for name, part in dataset.items()}
        return None if dataset is None else _with_seeds(dataset, args.seed, "eval")
    if dataset is not None:
        raise ValueError(
            f"`num_eval_tasks`={args.num_eval_tasks} was given together with an `eval_dataset`. Give one of them."
        )
    return Dataset.from_dict({"seed": draw_task_seeds(args.num_eval_tasks, args.seed, "eval")})


def _with_seeds(dataset: Dataset | IterableDataset, seed: int, panel: str) -> Dataset | IterableDataset:
    if not isinstance(dataset, Dataset) or "seed" in dataset.column_names:
        return dataset
    return dataset.add_column("seed", draw_task_seeds(len(dataset), seed, panel))


def _transcripts(episodes: list[Episode], task: TaskPrompt) -> tuple[list[Any], list[Any]]:
    """Each episode as chat messages, for people and reward models: the opening message, and what followed it."""
    prompts, completions = [], []
    for episode in episodes:
        shown = episode.turns[0].observation if episode.turns else ""
        opening = paragraphs(task.instructions, shown, task.format_instructions)
        messages = []
        for number, turn in enumerate(episode.turns):
            if number:
                messages.append({"role": "user", "content": turn.observation})
            messages.append({"role": "assistant", "content": turn.response})
        if episode.last_observation is not None:
            messages.append({"role": "user", "content": episode.last_observation})
        prompts.append([{"role": "user", "content": opening}])
        completions.append(messages)
    return prompts, completions


def _mean_by_episode(turns: TurnArrays, advantages: NDArray[np.float64], num_episodes: int) -> list[float]:
    sums = np.bincount(turns.episode_ids, weights=advantages, minlength=num_episodes)
    counts = np.bincount(turns.episode_ids, minlength=num_episodes)
    return (sums / np.maximum(counts, 1)).tolist()


def _summary(episode: Episode) -> dict[str, list[float]]:
    """What is logged of one episode, with one value for each turn or one in all; of a crashed one only that it crashed."""
    lengths = {
        "completions/mean_length": [float(len(turn.completion_ids)) for turn in episode.turns],
        "completions/clipped_ratio": [float(turn.cut) for turn in episode.turns],
        "episode/failed": [float(episode.failed)],
    }
    if episode.failed:
        return lengths
    return lengths | {
        "success": [float(episode.success)],
        "episode/return": [episode.total_reward],
        "episode/turns": [float(len(episode.turns))],
        "episode/actions": [float(episode.num_actions)],
        "episode/tokens": [float(episode.num_tokens)],
        "episode/truncated": [float(episode.truncated)],
        **{f"episode/truncated_by_{limit}": [float(episode.limit == limit)] for limit in LIMITS},
        "turn/valid": [float(turn.valid) for turn in episode.turns],
        "turn/effective": [float(turn.effective) for turn in episode.turns],
    }
