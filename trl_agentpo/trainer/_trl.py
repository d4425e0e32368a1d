# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
The seam with TRL: every private name of `GRPOTrainer` that this package touches is in this file.

Invariant: TRL's bodies are called, never copied. [`EnvironmentSeam`] replaces single-turn generation by a rollout that
returns `M` training rows for `N` episodes, lets TRL pad the rows, score old and reference log-probabilities and average
its metrics, and then puts one advantage on each token. Subclasses see the hooks [`EnvironmentSeam.collect`] and
[`EnvironmentSeam.sample`] and no TRL internals. `CONTRACT` says what is relied on; a test names what a new TRL changed.
"""

import contextlib
import inspect
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from accelerate.logging import get_logger
from accelerate.utils import send_to_device
from torch import nn
from torch.utils.data import DataLoader, Sampler
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from ..context import Message
from ..rows import Rows, TokenRow, pad_targets, split_rows, trained_tokens


logger = get_logger(__name__)

CONTRACT: dict[str, tuple[str, ...]] = {
    "_generate": ("self", "prompts"),
    "_generate_single_turn": (
        "self",
        "prompt_ids",
        "images",
        "multimodal_fields",
        "num_generations",
        "has_tool_images",
    ),
    "_generate_and_score_completions": ("self", "inputs"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_prepare_inputs": ("self", "generation_batch"),
    "_compute_loss": ("self", "model", "inputs"),
    "_get_per_token_logps_and_entropies": (
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
        "compute_aux_loss",
        "pixel_values",
        "image_grid_thw",
        "num_images",
        "pixel_attention_mask",
        "spatial_shapes",
        "num_tiles",
        "image_sizes",
        "token_type_ids",
        "mm_token_type_ids",
        "image_position_ids",
    ),
    "_get_train_sampler": ("self", "dataset"),
    "_save_checkpoint": ("self", "model", "trial"),
    "_load_optimizer_and_scheduler": ("self", "checkpoint"),
    "training_step": ("self", "model", "inputs", "num_items_in_batch"),
    "prediction_step": ("self", "model", "inputs", "prediction_loss_only", "ignore_keys"),
    "log": ("self", "logs", "start_time"),
}

# Losses that are sums over tokens divided by a number known before the rows are cut into chunks.
ADDITIVE_LOSSES = ("dapo", "cispo", "vespo")

# What TRL's batch holds of the policy that sampled, with one value for each completion token.
OLD_POLICY = ("old_per_token_logps", "importance_sampling_ratio")


def changed_signatures() -> list[str]:
    """What of `CONTRACT` the installed TRL does not keep, one sentence each; empty if all of it holds."""
    changes = []
    for name, expected in CONTRACT.items():
        function = inspect.getattr_static(GRPOTrainer, name, None)
        if function is None:
            changes.append(f"`GRPOTrainer.{name}` is gone.")
        elif (found := tuple(inspect.signature(function).parameters)) != expected:
            changes.append(f"`GRPOTrainer.{name}` takes {found}, expected {expected}.")
    return changes


@dataclass
class Collected:
    """
    What a rollout hands to TRL.

    Args:
        prompts (`list[list[dict]]` of length `N`):
            The opening message of each local episode, for logs and reward models.
        completions (`list[list[dict]]` of length `N`):
            The rest of each local episode's transcript.
        rows (`list[TokenRow]` of length `M`):
            The local training rows with their targets, equally many on every process.
        rewards (`torch.Tensor` of shape `(N_global, num_reward_functions)`):
            The rewards of all episodes; NaN for episodes that take part in nothing.
        episode_advantages (`list[float]` of length `N_global`):
            The mean advantage over an episode's turns, for the completions table.
    """

    prompts: list[list[Message]]
    completions: list[list[Message]]
    rows: list[TokenRow]
    rewards: torch.Tensor
    episode_advantages: list[float]


class EpochSampler(RepeatSampler):
    """
    TRL's sampler with an order that depends on the seed and the epoch only, not on how many epochs this process ran.

    Without it a run resumed in its second epoch would see the tasks in the order of the first.
    """

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for this epoch; called by accelerate at the start of each."""
        if self.shuffle and self.seed is not None:
            self.generator.manual_seed(self.seed + epoch)


class EnvironmentSeam(GRPOTrainer):
    """`GRPOTrainer` with generation replaced by [`collect`] and a training step that cuts its rows into chunks."""

    _collected: Collected
    _training_seconds: float = 0.0
    _panel: str = ""
    _resumed_loss: tuple[torch.Tensor, int] | None = None
    entropy_coef: float
    router_aux_loss_coef: float

    def collect(self, inputs: list[dict[str, Any]]) -> Collected:
        """Play the tasks of `inputs` and return rows and credit. Implemented by the trainers."""
        raise NotImplementedError

    # Hooks of algorithms that do more than give credit

    keeps_old_logprobs: bool = False

    def after_scoring(self, rows: list[TokenRow], old_policy: dict[str, torch.Tensor]) -> None:
        """
        Look at the rows once more when TRL has scored them. Here nothing is done.

        Args:
            rows (`list[TokenRow]`):
                The local rows.
            old_policy (`dict[str, torch.Tensor]`):
                Of the names in `OLD_POLICY` those that the batch has: per completion token, under the policy that sampled.
        """

    def train_critic(self, chunks: Sequence[Mapping[str, Any]]) -> bool:
        """
        Learn something else than the policy from a training step's rows. Here nothing is learnt.

        Args:
            chunks (`Sequence[Mapping[str, Any]]`):
                The rows, cut into chunks.

        Returns:
            `bool`: whether the policy is to learn from them, too.
        """
        return True

    def loop_state(self) -> dict[str, Any]:
        """What an algorithm remembers from one rollout to the next: tensors, numbers, strings, lists and dicts of them."""
        return {}

    def load_loop_state(self, state: dict[str, Any]) -> None:
        """Take up what [`loop_state`] gave when the checkpoint was written."""

    def save_networks(self, folder: Path) -> None:
        """Write what else is trained, equal on every process, into a checkpoint. Called on one process. Here nothing."""

    def load_networks(self, folder: Path) -> None:
        """Read what [`save_networks`] wrote. Called on every process."""

    @property
    def closes_update(self) -> bool:
        """Whether an optimizer step follows the training step at hand."""
        return (self._step + 1) % self.current_gradient_accumulation_steps == 0

    def sample(self, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]] | None]:
        """
        Sample one completion for each prompt with TRL's backend: `generate`, continuous batching or vLLM.

        Args:
            prompts (`list[list[int]]`):
                Token ids.

        Returns:
            `tuple[list[list[int]], list[list[float]] | None]`: the completions' ids, up to and with the end-of-turn
            token, and their log-probabilities where the backend gives them.
        """
        was_training = self.model.training
        # One generation each: vLLM's server mode would otherwise take every num_generations-th prompt only.
        sampled = self._generate_single_turn(prompts, None, {}, num_generations=1)
        # Continuous batching leaves the model in training mode, which TRL reads as "this is not an evaluation".
        self.model.train(was_training)
        return sampled

    @property
    def mode(self) -> str:
        """`"train"` or `"eval"`."""
        return "train" if self.model.training else "eval"

    def log_values(self, name: str, values: Sequence[float]) -> None:
        """
        Add values to a metric; the mean over all values since the last log is reported.

        Args:
            name (`str`):
                The metric's name, without the `eval_` prefix.
            values (`Sequence[float]`):
                Its values, the same on every process.
        """
        self._metrics[self.mode][name].extend(values)

    def count_tokens(self, num_tokens: int) -> None:
        """Add to the tokens seen in training and report them as TRL does."""
        if self.mode == "train":
            self.state.num_input_tokens_seen += num_tokens
        self._metrics[self.mode]["num_tokens"] = [self.state.num_input_tokens_seen]

    def reward_episodes(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], completion_ids: list[Any]
    ) -> torch.Tensor:
        """Call the reward functions as TRL does; `(N_global, num_reward_functions)`."""
        return super()._calculate_rewards(inputs, prompts, completions, completion_ids)

    # Generation

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._task_rows = inputs
        output = super()._generate_and_score_completions([{**row, "prompt": []} for row in inputs])
        collected = self._collected
        if self.keeps_old_logprobs and self.mode == "train" and "old_per_token_logps" not in output:
            output["old_per_token_logps"] = self._logprobs(output)
        self._set_targets(output, collected.rows)
        self.after_scoring(collected.rows, {name: output[name] for name in OLD_POLICY if name in output})
        self._replace_logged_advantages(collected.episode_advantages)
        return output

    def _set_targets(self, output: dict[str, Any], rows: list[TokenRow]) -> None:
        """Put the rows' targets into TRL's batch. What a replayed row knows of its policy replaces what TRL computed."""
        length, device = output["completion_ids"].size(1), output["completion_ids"].device
        for name in {name for row in rows for name in row.targets} | {"advantages"}:
            padded = pad_targets(rows, name, length).to(device)
            if name in OLD_POLICY:
                known = torch.tensor([name in row.targets for row in rows], device=device)
                padded = torch.where(known.unsqueeze(1), padded, output[name])
            output[name] = padded

    def _logprobs(self, output: Mapping[str, Any]) -> torch.Tensor:
        """The log-probabilities of the rows' completions under the policy as it is."""
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        size = self.args.per_device_train_batch_size
        with torch.no_grad():
            logprobs, _, _ = self._get_per_token_logps_and_entropies(
                self.model, ids, mask, output["completion_ids"].size(1), batch_size=size
            )
        return logprobs

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        collected = self._collected = self.collect(self._task_rows)
        # TRL logs the list it passed here; the placeholders in it become the episodes' opening messages.
        prompts[:] = collected.prompts
        rows = collected.rows
        logprobs = None if rows[0].logprobs is None else [row.logprobs for row in rows]
        return (
            [row.prompt_ids for row in rows],
            [row.completion_ids for row in rows],
            [row.mask for row in rows],
            collected.completions,
            logprobs,
            {},
            None,
            [],
        )

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> torch.Tensor:
        return self._collected.rewards

    def _replace_logged_advantages(self, advantages: list[float]) -> None:
        logged = self._logs["advantages"]
        for _ in range(min(len(advantages), len(logged))):
            logged.pop()
        logged.extend(advantages)

    # Training in chunks

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return generation_batch if isinstance(generation_batch, Rows) else super()._prepare_inputs(generation_batch)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        model.train()
        self._take_up_loss()
        start = time.perf_counter()
        batch = self._prepare_inputs(inputs)
        prepared = time.perf_counter()
        if batch["num_items_in_batch"] == 0 and not _has_gradients(model):
            return self._skip_update()
        chunks = split_rows(batch, self.args.per_device_train_batch_size)
        if not self.train_critic(chunks):
            return self._pass_over()
        total = trained_tokens(batch)
        loss = torch.zeros((), device=self.accelerator.device)
        with self._logged_as_one(chunks):
            for chunk in chunks[:-1]:
                with self._accumulating(model), self._share_of_means(chunk, total, len(chunks)):
                    loss += super(GRPOTrainer, self).training_step(model, chunk, num_items_in_batch)
            self._current_train_step_time += time.perf_counter() - start
            # TRL's own step comes last and once: it counts steps and times them.
            with self._share_of_means(chunks[-1], total, len(chunks)):
                loss += super().training_step(model, chunks[-1], num_items_in_batch)
        self._log_training_seconds(time.perf_counter() - prepared)
        return loss

    def _skip_update(self) -> torch.Tensor:
        """Leave the weights as they are: without gradients the optimizer does nothing, momentum and decay included."""
        logger.warning("No token of this batch can be learnt from; the update is skipped.")
        self.log_values("update_skipped", [1.0])
        return self._pass_over()

    def _pass_over(self) -> torch.Tensor:
        self._step += 1
        return torch.zeros((), device=self.accelerator.device)

    def _log_training_seconds(self, seconds: float) -> None:
        """Report the time of forward and backward passes once per optimizer step."""
        self._training_seconds += seconds
        if self._step % self.current_gradient_accumulation_steps == 0:
            self.log_values("time/training", [self._training_seconds])
            self._training_seconds = 0.0

    @contextlib.contextmanager
    def _accumulating(self, model: nn.Module) -> Iterator[None]:
        """Keep gradients local, and DeepSpeed from stepping, until the last chunk."""
        state = self.accelerator.gradient_state
        syncs = state.sync_gradients
        state._set_sync_gradients(False)
        try:
            with self.accelerator.no_sync(model):
                yield
        finally:
            state._set_sync_gradients(syncs)

    @contextlib.contextmanager
    def _share_of_means(self, chunk: Mapping[str, Any], total_tokens: float, num_chunks: int) -> Iterator[None]:
        """Weigh the terms that TRL averages over what it is given, so that the chunks' terms add up to the batch's."""
        entropy_coef, router_coef = self.entropy_coef, self.router_aux_loss_coef
        self.entropy_coef = entropy_coef * trained_tokens(chunk) / max(total_tokens, 1.0)
        self.router_aux_loss_coef = router_coef / num_chunks
        try:
            yield
        finally:
            self.entropy_coef, self.router_aux_loss_coef = entropy_coef, router_coef

    @contextlib.contextmanager
    def _logged_as_one(self, chunks: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Replace what TRL logs of each chunk by what it would have logged of the batch."""
        logged = self._metrics[self.mode]
        before = {name: len(values) for name, values in logged.items()}
        yield
        if len(chunks) == 1:
            return
        tokens = torch.tensor([trained_tokens(chunk) for chunk in chunks], device=self.accelerator.device)
        weights = self.accelerator.reduce(tokens, reduction="sum").tolist()
        for name, values in logged.items():
            first = before.get(name, 0)
            if len(values) - first == len(chunks):
                values[first:] = [merged_metric(name, values[first:], weights)]
        # Logged in the last chunk, where it was that chunk's share.
        if len(logged.get("entropy_coef", ())) > before.get("entropy_coef", 0):
            logged["entropy_coef"][-1] = self.entropy_coef

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor, None, None]:
        batch = self._prepare_inputs(inputs)
        chunks = split_rows(batch, self.args.per_device_eval_batch_size)
        total = trained_tokens(batch)
        loss = torch.zeros((), device=self.accelerator.device)
        with self._logged_as_one(chunks):
            for chunk in chunks:
                with self._share_of_means(chunk, total, len(chunks)):
                    loss += super().prediction_step(model, chunk, prediction_loss_only)[0]
        return loss, None, None

    # Evaluation of several panels

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """
        Evaluate, as [`~transformers.Trainer.evaluate`] does.

        Args:
            *args, **kwargs:
                Arguments of [`~transformers.Trainer.evaluate`].
            metric_key_prefix (`str`, *optional*, defaults to `"eval"`):
                What the metrics' names begin with. Of several panels each has its own: `eval_<panel>_success`.

        Returns:
            `dict[str, float]`: the metrics.
        """
        before, self._panel = self._panel, metric_key_prefix.removeprefix("eval").strip("_")
        try:
            return super().evaluate(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        finally:
            self._panel = before

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        metrics = self._metrics["eval"]
        if self.mode == "eval" and self._panel:
            # TRL puts `eval_` before all names, whichever panel they are of.
            named = {f"{self._panel}_{name}": values for name, values in metrics.items()}
            metrics.clear()
            metrics.update(named)
        super().log(logs, start_time)

    # Checkpoints that resume exactly

    def get_train_dataloader(self) -> DataLoader:
        """The tasks of training, see [`~trl.GRPOTrainer`]; a resumed epoch goes on in its own order."""
        return pass_epochs_on(super().get_train_dataloader())

    def _get_train_sampler(self, dataset: Any = None) -> Sampler:
        sampler = super()._get_train_sampler(dataset)
        return EpochSampler(
            data_source=sampler.data_source,
            mini_repeat_count=sampler.mini_repeat_count,
            batch_size=sampler.batch_size,
            repeat_count=sampler.repeat_count,
            shuffle=sampler.shuffle,
            seed=sampler.seed,
        )

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """
        Train, as [`~transformers.Trainer.train`] does.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                A checkpoint's folder, or `True` for the last checkpoint in `output_dir` that was written to its end: one
                that a kill or a full disk left half-written is passed over.
            **kwargs:
                Further arguments of [`~transformers.Trainer.train`].

        Returns:
            [`~transformers.trainer_utils.TrainOutput`]: loss and metrics.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_complete_checkpoint(self.args.output_dir, self.accelerator.num_processes)
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.args.save_only_model:
            return super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        # Before everything else: what TRL writes last, the trainer's state, says that this was written as well.
        torch.save(self._loop_state(), folder / _loop_state_name(self.accelerator.process_index))
        if self.args.should_save:
            self.save_networks(folder)
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            (folder / _FILE_SIZES).write_text(json.dumps(_file_sizes(folder)))

    def _loop_state(self) -> dict[str, Any]:
        """What the loop remembers between steps: rollouts that are used in later steps, and metrics not yet logged."""
        return {
            "step": self._step,
            "buffered_inputs": self._buffered_inputs,
            "metrics": dict(self._metrics["train"]),
            "train_step_time": self._current_train_step_time,
            "loss": self._tr_loss,
            "logged_step": self._globalstep_last_logged,
            "algorithm": self.loop_state(),
        }

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        path = None if checkpoint is None else Path(checkpoint) / _loop_state_name(self.accelerator.process_index)
        if path is None or not path.exists():
            return
        # In two steps: torch does not load to the device "cpu:0" that accelerate names on several processes.
        state = send_to_device(torch.load(path, map_location="cpu", weights_only=True), self.accelerator.device)
        self._step = state["step"]
        self._buffered_inputs = state["buffered_inputs"]
        self._metrics["train"].update(state["metrics"])
        self._current_train_step_time = state["train_step_time"]
        self._resumed_loss = (state["loss"], state["logged_step"])
        self.load_loop_state(state["algorithm"])
        self.load_networks(path.parent)

    def _take_up_loss(self) -> None:
        """Go on with the loss that was not yet logged when the checkpoint was written: transformers starts it anew."""
        if self._resumed_loss is not None:
            loss, self._globalstep_last_logged = self._resumed_loss
            self._tr_loss += loss
            # The summary of the run is about the steps since the checkpoint.
            self._total_loss_scalar -= loss.item()
            self._resumed_loss = None


def merged_metric(name: str, values: Sequence[float], weights: Sequence[float]) -> float:
    """
    What TRL would have logged of a batch, from what it logged of the batch's chunks.

    Args:
        name (`str`):
            The metric.
        values (`Sequence[float]`):
            Its value in each chunk; NaN where there is none.
        weights (`Sequence[float]`):
            The trained tokens in each chunk.

    Returns:
        `float`: the sum of losses, the smallest minimum, the largest maximum, and for all others the mean over tokens.
    """
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if not math.isnan(value)]
    if not known:
        return math.nan
    if name == "policy_loss":
        return sum(value for value, _ in known)
    if name.endswith("_min"):
        return min(value for value, _ in known)
    if name.endswith("_max"):
        return max(value for value, _ in known)
    return sum(value * weight for value, weight in known) / max(1.0, sum(weight for _, weight in known))


def pass_epochs_on(dataloader: DataLoader) -> DataLoader:
    """
    Let the number of an epoch reach the sampler when the epoch is resumed on several processes.

    accelerate wraps the sampler once to deal it out to the processes and once more to skip what was seen, and looks for
    it behind one wrapper only. Without this the epoch would go on in the order of the first.

    Args:
        dataloader (`torch.utils.data.DataLoader`):
            What accelerate prepared.

    Returns:
        `torch.utils.data.DataLoader`: the same.
    """
    if isinstance(dataloader.batch_sampler, BatchSamplerShard):
        dataloader.batch_sampler.sampler = dataloader.batch_sampler.batch_sampler.sampler
    return dataloader


def _has_gradients(model: nn.Module) -> bool:
    """Whether an earlier batch of the update left gradients, which processes have yet to exchange in its last one."""
    return any(parameter.grad is not None for parameter in model.parameters())


# Written last into a checkpoint: the sizes of its files, by which files that were cut or lost are noticed.
_FILE_SIZES = "agent_files.json"


def _loop_state_name(process_index: int) -> str:
    return f"agent_state_{process_index}.pt"


def last_complete_checkpoint(output_dir: str, num_processes: int) -> str:
    """
    The latest checkpoint that was written to its end.

    Args:
        output_dir (`str`):
            The run's folder.
        num_processes (`int`):
            How many processes write into a checkpoint.

    Returns:
        `str`: the checkpoint's folder.

    Raises:
        ValueError: there is none.
    """
    folders = Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
    complete = [f for f in folders if f.name.rpartition("-")[2].isdigit() and _is_complete(f, num_processes)]
    if not complete:
        raise ValueError(
            f"There is no complete checkpoint in {output_dir!r} to resume from. Start without `resume_from_checkpoint`, and "
            "set `save_steps` so that a checkpoint is written before the run can be interrupted."
        )
    return str(max(complete, key=lambda folder: int(folder.name.rpartition("-")[2])))


def _is_complete(folder: Path, num_processes: int) -> bool:
    if not all((folder / _loop_state_name(index)).exists() for index in range(num_processes)):
        return False
    try:
        TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
    except (OSError, json.JSONDecodeError, TypeError):
        return False
    return _recorded_sizes(folder).items() <= _file_sizes(folder).items()


def _file_sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def _recorded_sizes(folder: Path) -> dict[str, int]:
    """The sizes of a checkpoint's files; none if the run ended between the trainer's state and their record."""
    try:
        return json.loads((folder / _FILE_SIZES).read_text())
    except (OSError, json.JSONDecodeError):
        return {}
