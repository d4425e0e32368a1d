# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""The progress bar shows what matters, and prints nothing; the alarm warns once, stops, and keeps good checkpoints."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import byte_tokenizer
from trainer_support import log_probabilities, make_trainer, played_episodes
from transformers import (
    AutoModelForCausalLM,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from trl_agentpo import AgentGRPOTrainer, Episode, ParsedResponse, Turn
from trl_agentpo.callbacks import EchoTrapCallback, SuccessProgressCallback, log_likelihoods
from trl_agentpo.collapse import CollapseRules, mutual_information, thinking_pairs


LOG = {"success": 0.25, "episode/turns": 4.0, "turn/valid": 1.0, "entropy": None, "loss": 0.1}


@pytest.fixture
def callback(tmp_path: object) -> SuccessProgressCallback:
    callback = SuccessProgressCallback()
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    callback.on_train_begin(args, TrainerState(max_steps=4), TrainerControl())
    return callback


def log(callback: SuccessProgressCallback, logs: dict[str, float | None]) -> str:
    callback.on_log(TrainingArguments(use_cpu=True), TrainerState(max_steps=4), TrainerControl(), logs=logs)
    return callback.training_bar.postfix or ""


def test_success_is_in_the_bar(callback: SuccessProgressCallback) -> None:
    assert log(callback, LOG) == "success=0.25, turns=4.00, valid=1.00"


def test_a_log_without_success_leaves_the_bar(callback: SuccessProgressCallback) -> None:
    log(callback, LOG)
    assert log(callback, {"train_runtime": 3.0}) == "success=0.25, turns=4.00, valid=1.00"


# The echo trap

# The start is two logs, and three low ones in a row are a symptom.
RULES = CollapseRules(window=2, patience=3)
COLLAPSE = (0.5, 0.5, 0.0, 0.0, 0.0, 0.0)


class Run:
    """A run of which only the logs exist."""

    def __init__(self, folder: Path, callback: EchoTrapCallback, first_process: bool = True, **options: Any):
        self.args = TrainingArguments(output_dir=str(folder), use_cpu=True, **options)
        self.state = TrainerState(is_world_process_zero=first_process)
        self.control = TrainerControl()
        self.callback = callback
        callback.on_train_begin(self.args, self.state, self.control)

    def log(self, **logs: float) -> bool:
        """Log one step at which a checkpoint is due, and say whether it is written."""
        self.state.global_step += 1
        self.control.should_save = True
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.callback.on_log(self.args, self.state, self.control, logs=logs)
        return self.control.should_save

    def spreads(self, values: Sequence[float]) -> list[bool]:
        return [self.log(**{"groups/reward_std": value}) for value in values]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "trl_agentpo.callbacks"]


def test_one_warning_for_each_symptom(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, EchoTrapCallback(RULES))
    saved = run.spreads(COLLAPSE) + [run.log(entropy=value, grad_norm=1.0) for value in (1.0, 1.0, 0.01, 0.01)]
    assert all(saved) and not run.control.should_training_stop
    spread, entropy = warnings_of(caplog)
    assert "vanishing reward spread" in spread and "is 0 now." in spread and "`StarPOSConfig(" in spread
    assert "entropy collapse" in entropy and "is 0.01 now." in entropy


def test_evaluations_and_summaries_are_no_observations(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, EchoTrapCallback(RULES))
    for _ in range(2):
        run.log(**{"groups/reward_std": 0.5, "entropy": 1.0})
    for _ in range(5):
        run.log(**{"eval_groups/reward_std": 0.0, "entropy": 0.0})
    assert warnings_of(caplog) == []


def test_all_processes_stop_and_the_first_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = Run(tmp_path, EchoTrapCallback(RULES, stop=True), first_process=False)
    assert other.spreads(COLLAPSE[:5]) == [True, True, True, True, False]
    assert other.control.should_training_stop
    assert warnings_of(caplog) == []
    first = Run(tmp_path, EchoTrapCallback(RULES, stop=True))
    assert first.spreads(COLLAPSE[:5]) == [True, True, True, True, False]
    assert first.control.should_training_stop
    assert len(warnings_of(caplog)) == 1


def test_the_end_of_the_epoch_saves_no_collapsed_model(tmp_path: Path) -> None:
    run = Run(tmp_path, EchoTrapCallback(RULES, stop=True))
    for values, saved in ((COLLAPSE[:4], True), (COLLAPSE[4:5], False)):
        run.spreads(values)
        run.control.should_save = True
        run.callback.on_epoch_end(run.args, run.state, run.control)
        assert run.control.should_save is saved


def test_no_checkpoint_is_deleted_while_a_sign_lasts(tmp_path: Path) -> None:
    run = Run(tmp_path, EchoTrapCallback(RULES, stop=True), save_total_limit=2)
    limits = []
    for value in (0.5, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0, 0.5):
        run.spreads([value])
        limits.append(run.args.save_total_limit)
    assert limits == [2, 2, None, 2, None, None, None, None]
    run.callback.on_train_end(run.args, run.state, run.control)
    assert run.args.save_total_limit == 2


def test_checkpoints_are_left_alone_where_the_run_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path, EchoTrapCallback(RULES), save_total_limit=2)
    run.spreads(COLLAPSE)
    assert run.args.save_total_limit == 2


def test_the_warning_names_the_last_whole_checkpoint_before_the_sign(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The sign begins at step 3: checkpoint 3 has it, and checkpoint 2 was not written to its end."""
    for step in (1, 2, 3):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").touch()
    for step in (1, 3):
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").touch()
    Run(tmp_path, EchoTrapCallback(RULES)).spreads(COLLAPSE)
    Run(tmp_path / "empty", EchoTrapCallback(RULES)).spreads(COLLAPSE)
    named, none = warnings_of(caplog)
    assert named.endswith(f"The last checkpoint before it: {tmp_path / 'checkpoint-1'}.")
    assert none.endswith("No checkpoint from before it is left.")


@pytest.mark.parametrize("steps_before", range(7))
def test_a_resumed_run_remembers(tmp_path: Path, caplog: pytest.LogCaptureFixture, steps_before: int) -> None:
    """Wherever it was interrupted, the fifth log gives the warning, and no other does."""
    run = Run(tmp_path, EchoTrapCallback(RULES, stop=True), save_total_limit=1)
    run.spreads(COLLAPSE[:steps_before])
    run.state.save_to_json(str(tmp_path / "state.json"))
    assert len(warnings_of(caplog)) == (steps_before >= 5)

    resumed = Run(tmp_path, EchoTrapCallback(RULES, stop=True), save_total_limit=1)
    resumed.state = TrainerState.load_from_json(str(tmp_path / "state.json"))
    resumed.state.is_world_process_zero = True
    resumed.callback.on_train_begin(resumed.args, resumed.state, resumed.control)
    assert (resumed.args.save_total_limit is None) == (steps_before in (3, 4))
    resumed.spreads(COLLAPSE[steps_before:])
    assert len(warnings_of(caplog)) == 1
    assert resumed.control.should_training_stop == (steps_before < 5)


def test_a_second_run_starts_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = EchoTrapCallback(RULES, stop=True)
    for _ in range(2):
        run = Run(tmp_path, callback)
        assert run.spreads(COLLAPSE[:5]) == [True, True, True, True, False]
    assert len(warnings_of(caplog)) == 2


class Scripted(TrainerCallback):
    """Replaces what a run logs of its groups."""

    def __init__(self, values: Sequence[float]):
        self.values = values

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        if "loss" in logs:
            logs["groups/reward_std"] = self.values[state.global_step - 1]
            state.log_history[-1]["groups/reward_std"] = logs["groups/reward_std"]


def scripted_trainer(model: str, folder: Path, values: Sequence[float]) -> AgentGRPOTrainer:
    """A run that saves at every step and keeps one checkpoint. Other symptoms than the scripted one need more logs."""
    options: dict[str, Any] = {"max_steps": 6, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    callbacks = [Scripted(values), EchoTrapCallback(CollapseRules(window=2, patience=3, spike_factor=1e9), stop=True)]
    return make_trainer(AgentGRPOTrainer, model, folder, arguments={"callbacks": callbacks}, **options)


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def test_the_last_good_checkpoint_is_there_after_the_stop(
    random_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = scripted_trainer(random_model, tmp_path, COLLAPSE)
    trainer.train()
    assert trainer.state.global_step == 5
    assert checkpoints(tmp_path) == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]
    assert trainer.args.save_total_limit == 1
    assert any(str(tmp_path / "checkpoint-2") in message for message in warnings_of(caplog))

    # Interrupted while the sign lasted, the run ends at the same step.
    resumed = scripted_trainer(random_model, tmp_path, COLLAPSE)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.state.global_step == 5
    assert checkpoints(tmp_path) == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]


def test_a_sign_that_passes_leaves_no_checkpoints_behind(random_model: str, tmp_path: Path) -> None:
    trainer = scripted_trainer(random_model, tmp_path, (0.5, 0.5, 0.0, 0.0, 0.5, 0.5))
    trainer.train()
    assert trainer.state.global_step == 6
    assert checkpoints(tmp_path) == ["checkpoint-6"]


# Mutual information


PAIRS = [([65, 66, 67], [70, 71]), ([68], [72, 73, 74, 75]), ([80, 81], [82])]


def each_alone(model: torch.nn.Module, pairs: list[tuple[list[int], list[int]]]) -> np.ndarray:
    """The mean log-probability of each thinking after each prompt, one sequence at a time and without padding."""
    with torch.no_grad():
        scores = [
            [log_probabilities(model, (*prompt, *thinking))[len(prompt) :].mean().item() for prompt, _ in pairs]
            for _, thinking in pairs
        ]
    return np.array(scores)


@pytest.mark.parametrize("batch_size", [1, 2, 4, 100])
def test_log_likelihoods_of_all_pairs(random_model: str, batch_size: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(random_model).eval()
    found = log_likelihoods(model, PAIRS, batch_size)
    np.testing.assert_allclose(found, each_alone(model, PAIRS), atol=1e-5)
    assert len(np.unique(found.round(4))) == 9, "nine different numbers, or a mix-up would not show"


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(random_model: str, training: bool) -> None:
    """Dropout is off while it measures, nothing random is drawn, and no gradient is kept."""
    model = AutoModelForCausalLM.from_pretrained(random_model, attention_dropout=0.5).train(training)
    state = torch.get_rng_state()
    np.testing.assert_array_equal(log_likelihoods(model, PAIRS, 3), log_likelihoods(model, PAIRS, 3))
    assert model.training == training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def think_everything(response: str) -> ParsedResponse:
    return ParsedResponse(("right",), thinking=response)


def test_a_run_measures_every_so_many_steps(random_model: str, tmp_path: Path) -> None:
    """With learning rate 0 the model of the run is the model of the test."""
    trainer = make_trainer(
        AgentGRPOTrainer,
        random_model,
        tmp_path,
        arguments={"action_parser": think_everything},
        max_steps=4,
        learning_rate=0.0,
    )
    trainer.add_callback(EchoTrapCallback(trainer=trainer, mutual_information_steps=2, mutual_information_pairs=3))
    batches = played_episodes(trainer)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "echo_trap/mutual_information" in log]
    assert [log["step"] for log in logs] == [2, 4]
    model = AutoModelForCausalLM.from_pretrained(random_model).eval()
    for log in logs:
        pairs = thinking_pairs(batches[log["step"] - 1], byte_tokenizer().decode, 3)
        expected = mutual_information(each_alone(model, pairs))
        assert len(pairs) == 3
        assert log["echo_trap/mutual_information"] == pytest.approx(expected.mutual_information, abs=1e-5)
        assert log["echo_trap/conditional_entropy"] == pytest.approx(expected.conditional_entropy, abs=1e-5)
        assert log["echo_trap/retrieval_accuracy"] == pytest.approx(expected.retrieval_accuracy)
        assert log["time/mutual_information"] > 0


def stub_trainer(episodes: list[Episode], **spread: Any) -> Any:
    """What the callback needs of a trainer where nothing is to be measured."""
    given = {"is_fsdp_enabled": False, "is_deepspeed_enabled": False, **spread}
    return SimpleNamespace(last_episodes=episodes, processing_class=byte_tokenizer(), **given)


def test_one_pair_is_too_few(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Said once, by the process that measures; a stub without `log_values` shows that nothing is logged."""
    episodes = [Episode(1, turns=[Turn("", 0, [65], [66], "B", thinking="B")] * 2)]
    callback = EchoTrapCallback(trainer=stub_trainer(episodes), mutual_information_steps=1)
    for first_process in (False, True, True):
        run = Run(tmp_path, callback, first_process)
        run.callback.on_step_end(run.args, run.state, run.control)
        assert len(warnings_of(caplog)) == first_process
    (message,) = warnings_of(caplog)
    assert "needs 2 turns" in message and "last rollout has 1." in message


def test_measurement_options_out_of_range() -> None:
    with pytest.raises(ValueError, match="`mutual_information_steps`=5 needs the trainer, got `trainer`=None"):
        EchoTrapCallback(mutual_information_steps=5)
    for steps, pairs in ((0, 64), (5, 1)):
        with pytest.raises(ValueError, match=f"got {steps} and {pairs}"):
            EchoTrapCallback(trainer=stub_trainer([]), mutual_information_steps=steps, mutual_information_pairs=pairs)


def deepspeed(stage: int) -> dict[str, Any]:
    plugin = SimpleNamespace(zero_stage=stage)
    return {
        "is_deepspeed_enabled": True,
        "accelerator": SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin)),
    }


@pytest.mark.parametrize("spread", [{"is_fsdp_enabled": True}, deepspeed(3)], ids=["FSDP", "ZeRO-3"])
def test_weights_spread_over_processes(spread: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs the whole model on one process"):
        EchoTrapCallback(trainer=stub_trainer([], **spread), mutual_information_steps=5)
    # Without the measurement the weights may be anywhere.
    EchoTrapCallback(trainer=stub_trainer([], **spread))


def test_replicated_weights_can_be_measured() -> None:
    EchoTrapCallback(trainer=stub_trainer([], **deepspeed(2)), mutual_information_steps=5)
