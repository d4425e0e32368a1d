# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
The contract: what is accepted, and that each thing missing is named in the error.

A wrong environment is written out here for each way to be wrong, so that every message is read at least once.
"""

import copy
import functools
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TimeLimit, TransformObservation
from support import Corridor

from trl_agentpo import environment as contract
from trl_agentpo.environment import (
    EnvironmentContractError,
    NonDeterministicResetError,
    Observation,
    TextEnvironment,
    TextSpace,
    make,
)
from trl_agentpo.envs import Sokoban


Info = dict[str, Any]


class Plain(gymnasium.Env[str, str]):
    """An environment that fits without being a `TextEnvironment`."""

    instructions = "Say anything."
    observation_space = TextSpace()
    action_space = TextSpace(["a", "b"])

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        return f"options {options}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return action, 0.0, False, False, {}


class Echo(Plain):
    """Returns from `reset` and `step` what it was told to."""

    def __init__(self, start: Any = ("start", {}), move: Any = ("next", 0.0, False, False, {})):
        self.start, self.move = start, move

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Any:
        return self.start

    def step(self, action: str) -> Any:
        return self.move


def message_of(error: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


# Sources


@pytest.mark.parametrize(
    ("source", "built"),
    [
        (Corridor, Corridor),
        (Plain, Plain),
        (lambda: Corridor(), Corridor),
        (functools.partial(Corridor, length=7), Corridor),
        ("trl_agentpo/Sokoban-v0", Sokoban),
    ],
    ids=["class", "plain class", "function", "partial", "id"],
)
def test_an_id_a_class_or_a_callable_gives_an_environment(source: contract.EnvironmentSource, built: type) -> None:
    assert type(make(source).unwrapped) is built


def test_every_call_builds_a_new_environment() -> None:
    assert make(Corridor) is not make(Corridor)


def test_keywords_reach_the_constructor_of_a_class_and_of_an_id() -> None:
    assert make(Corridor, length=9).length == 9
    assert make("trl_agentpo/FrozenLake-v0", size=6).unwrapped.size == 6


def test_a_wrong_keyword_is_not_hidden() -> None:
    assert "lenght" in message_of(TypeError, lambda: make(Corridor, lenght=9))


@pytest.mark.parametrize("source", [Corridor(), 3, None, ["trl_agentpo/FrozenLake-v0"]])
def test_what_is_no_source_is_named_with_a_remedy(source: Any) -> None:
    message = message_of(EnvironmentContractError, lambda: make(source))
    assert type(source).__name__ in message
    assert "lambda" in message


# Ids


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("trl_agentpo/FrozenLak-v0", "trl_agentpo/FrozenLake-v0"),
        ("trl_agentpo/frozenlake-v0", "trl_agentpo/FrozenLake-v0"),
        ("trl_agentpo/FrozenLake-v7", "trl_agentpo/FrozenLake-v0"),
        ("agentpo/FrozenLake-v0", "trl_agentpo/FrozenLake-v0"),
        ("Sokobann-v0", "trl_agentpo/Sokoban-v0"),
        ("Sokoban-v0", "trl_agentpo/Sokoban-v0"),
        # gymnasium has a FrozenLake-v1 and calls every lower version deprecated.
        ("FrozenLake-v0", "trl_agentpo/FrozenLake-v0"),
        ("Taxi-v1", "Taxi-v4"),
    ],
)
def test_an_unknown_id_lists_near_matches_and_ours_first(wrong: str, meant: str) -> None:
    message = message_of(ValueError, lambda: make(wrong))
    assert repr(wrong) in message
    assert message.partition("Did you mean ")[2].startswith(repr(meant))


def test_an_id_near_to_nothing_lists_what_there_is() -> None:
    message = message_of(ValueError, lambda: make("zzz/qqqqqqqq-v0"))
    assert "Did you mean" not in message
    assert "trl_agentpo/FrozenLake-v0" in message
    assert "trl_agentpo/Sokoban-v0" in message


def test_an_unknown_id_is_helped_in_a_process_that_imported_no_environment_yet() -> None:
    program = "from trl_agentpo.environment import make; make('agentpo/FrozenLak-v0')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "Did you mean 'trl_agentpo/FrozenLake-v0'" in done.stderr


def test_an_id_of_the_users_own_module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_games.py").write_text(
        "import gymnasium, support\ngymnasium.register('MyCorridor-v0', support.Corridor)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    assert isinstance(make("my_games:MyCorridor-v0", length=3).unwrapped, Corridor)
    assert "'my_games:Other-v0'" in message_of(ValueError, lambda: make("my_games:Other-v0"))


def test_a_missing_module_is_named_and_not_taken_for_an_unknown_id(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    for environment_id, missing in [
        ("no_such_games:A-v0", "no_such_games"),
        ("needs_more:A-v0", "no_such_dependency"),
    ]:
        message = message_of(ModuleNotFoundError, functools.partial(make, environment_id))
        assert f"'{missing}'" in message


# What the contract asks for


class WithoutSeed(Plain):
    def reset(self, options: Info | None = None) -> tuple[str, Info]:
        return "", {}


class WithoutOptions(Plain):
    def reset(self, seed: int | None = None) -> tuple[str, Info]:
        return "", {}


class AnyKeywords(Plain):
    def reset(self, **kwargs: Any) -> tuple[str, Info]:
        return "", {}


class WithoutReset(gymnasium.Env[str, str]):
    instructions = "Say anything."

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return "", 0.0, False, False, {}


class WithoutStep(gymnasium.Env[str, str]):
    instructions = "Say anything."

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        return "", {}


class WithoutInstructions(Plain):
    instructions = None  # type: ignore[assignment]


class BlankInstructions(Plain):
    instructions = " \n"


class InstructionsAsMethod(Plain):
    def instructions(self) -> str:  # type: ignore[override]
        return "Say anything."


class NoEnvironment:
    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        return "", {}


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (WithoutSeed, ["WithoutSeed", "`seed`"]),
        (WithoutOptions, ["WithoutOptions", "`options`"]),
        (WithoutReset, ["WithoutReset", "`reset("]),
        (WithoutStep, ["WithoutStep", "`step("]),
        (WithoutInstructions, ["WithoutInstructions", "`instructions`"]),
        (BlankInstructions, ["`instructions`"]),
        (InstructionsAsMethod, ["`instructions`"]),
        (NoEnvironment, ["NoEnvironment", "gymnasium.Env", "TextEnvironment"]),
        (lambda: None, ["NoneType", "gymnasium.Env"]),
    ],
)
def test_what_is_missing_is_named(source: contract.EnvironmentSource, named: list[str]) -> None:
    message = message_of(EnvironmentContractError, lambda: make(source))
    assert [word for word in named if word not in message] == []


def test_only_what_is_missing_is_named() -> None:
    message = message_of(EnvironmentContractError, lambda: make(WithoutSeed))
    assert [word for word in ("`options`", "`step(", "`instructions`") if word in message] == []


def test_everything_missing_is_named_at_once() -> None:
    message = message_of(EnvironmentContractError, lambda: make(gymnasium.Env))
    assert all(word in message for word in ("`reset(", "`step(", "`instructions`"))


def test_the_base_class_alone_does_not_fit() -> None:
    assert "`instructions`" in message_of(EnvironmentContractError, lambda: make(TextEnvironment))


def test_keywords_may_be_taken_all_together() -> None:
    assert contract.reset(make(AnyKeywords), 0).text == ""


def test_instructions_may_be_computed_and_are_not_computed_by_the_check() -> None:
    class Computed(Plain):
        computed = 0

        @property
        def instructions(self) -> str:  # type: ignore[override]
            type(self).computed += 1
            return "Say something."

    class Cached(Computed):
        instructions = functools.cached_property(lambda self: "Say it once.")  # type: ignore[assignment]

    environment = make(Computed)
    assert Computed.computed == 0
    assert contract.instructions_of(environment) == "Say something."
    assert contract.instructions_of(make(Cached)) == "Say it once."


# Wrappers


def test_a_wrapper_passes_everything_through() -> None:
    environment = make(lambda: TimeLimit(Corridor(length=5), max_episode_steps=2))
    assert contract.instructions_of(environment) == Corridor.instructions
    assert contract.vocabulary_of(environment) == ("left", "right")
    assert contract.reset(environment, 0, {"cell": 2}) == Observation("cell 2 of 4", 2)
    first, second = (contract.step(environment, "right") for _ in range(2))
    assert (first.terminated, first.truncated) == (False, False)
    assert (second.terminated, second.truncated, second.success) == (True, True, True)


def test_an_error_names_the_environment_and_not_its_wrapper() -> None:
    message = message_of(
        EnvironmentContractError, lambda: make(lambda: TimeLimit(WithoutInstructions(), max_episode_steps=2))
    )
    assert "WithoutInstructions" in message
    assert "TimeLimit" not in message


def test_an_error_in_the_middle_of_an_episode_names_the_environment_too() -> None:
    environment = make(lambda: gymnasium.wrappers.OrderEnforcing(Echo(move=("x", None, False, False, {}))))
    contract.reset(environment, 0)
    assert "Echo.step" in message_of(EnvironmentContractError, lambda: contract.step(environment, "a"))
    environment.unwrapped.start = None
    assert "Echo.reset" in message_of(EnvironmentContractError, lambda: contract.reset(environment, 0))


def test_a_wrapper_may_turn_an_ordinary_environment_into_one_that_fits() -> None:
    class Told(TransformObservation):
        instructions = "Push the cart: 0 or 1."

    environment = make(lambda: Told(gymnasium.make("CartPole-v1"), lambda state: str(state), TextSpace()))
    assert contract.instructions_of(environment) == "Push the cart: 0 or 1."
    assert contract.reset(environment, 0).text.startswith("[")
    assert contract.vocabulary_of(environment) == ()


# Reset and step


def test_an_environment_that_is_only_a_gymnasium_one_is_played() -> None:
    environment = make(Plain)
    assert contract.reset(environment, 3, {"size": 2}) == Observation("options {'size': 2}", "options {'size': 2}")
    result = contract.step(environment, "b")
    assert result == contract.StepResult(Observation("b", "b"), 0.0, False, False, False, True, True)


def test_every_optional_key_of_info_is_read() -> None:
    info = {
        "anchor": (1, 2),
        "success": np.True_,
        "admissible_actions": ["up", np.str_("down")],
        "action_valid": False,
        "action_effective": 0,
        "more": object(),
    }
    result = contract.step(Echo(move=("there", 0.5, np.True_, 0, info)), "a")
    assert result == contract.StepResult(
        Observation("there", (1, 2), ("up", "down")),
        reward=0.5,
        terminated=True,
        truncated=False,
        success=True,
        action_valid=False,
        action_effective=False,
    )
    assert [type(flag) for flag in (result.terminated, result.truncated, result.success)] == [bool] * 3


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.int64(1), np.array(1.0), Fraction(1)])
def test_a_reward_may_be_any_number(reward: Any) -> None:
    result = contract.step(Echo(move=("x", reward, False, False, {})), "a")
    assert result.reward == 1.0
    assert type(result.reward) is float


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -np.inf, np.float32("nan"), None, "much", [], {}])
def test_a_reward_that_is_no_number_is_refused_with_the_action(reward: Any) -> None:
    message = message_of(
        EnvironmentContractError, lambda: contract.step(Echo(move=("x", reward, False, False, {})), "jump")
    )
    assert "Echo.step('jump')" in message
    assert repr(reward) in message


@pytest.mark.parametrize("start", ["ab", "start", None, ("start",), ("start", {}, {}), {"text": "start"}])
def test_a_reset_that_returns_something_else_is_refused(start: Any) -> None:
    message = message_of(EnvironmentContractError, lambda: contract.reset(Echo(start=start), 0))
    assert "Echo.reset" in message
    assert "(text, info)" in message


@pytest.mark.parametrize("move", [None, "moves", ("x", 0.0, False, {}), ("x", 0.0, False, False, {}, {})])
def test_a_step_that_returns_something_else_is_refused(move: Any) -> None:
    message = message_of(EnvironmentContractError, lambda: contract.step(Echo(move=move), "a"))
    assert "Echo.step" in message
    assert "(text, reward, terminated, truncated, info)" in message


@pytest.mark.parametrize("text", [None, 3, b"cell", ["cell"], np.zeros(2)])
def test_an_observation_that_is_no_text_is_refused(text: Any) -> None:
    for call in (
        lambda: contract.reset(Echo(start=(text, {})), 0),
        lambda: contract.step(Echo(move=(text, 0.0, False, False, {})), "a"),
    ):
        message = message_of(EnvironmentContractError, call)
        assert "Echo" in message
        assert type(text).__name__ in message


@pytest.mark.parametrize("info", [None, [], "anchor"])
def test_an_info_that_is_no_mapping_is_refused(info: Any) -> None:
    for call in (
        lambda: contract.reset(Echo(start=("x", info)), 0),
        lambda: contract.step(Echo(move=("x", 0.0, False, False, info)), "a"),
    ):
        assert "info" in message_of(EnvironmentContractError, call)


@pytest.mark.parametrize("anchor", [[1, 2], {"x": 1}, np.zeros(2), ("room", [1])])
def test_an_anchor_that_cannot_be_compared_by_hash_is_refused(anchor: Any) -> None:
    message = message_of(EnvironmentContractError, lambda: contract.reset(Echo(start=("x", {"anchor": anchor})), 0))
    assert "Echo" in message
    assert type(anchor).__name__ in message
    assert "tuple" in message


@pytest.mark.parametrize("anchor", [0, "", (), False])
def test_an_anchor_that_is_false_is_still_the_anchor(anchor: Any) -> None:
    assert contract.reset(Echo(start=("x", {"anchor": anchor})), 0).anchor == anchor


def test_no_admissible_actions_may_be_said_in_three_ways() -> None:
    for info in ({}, {"admissible_actions": None}, {"admissible_actions": []}):
        assert contract.observe("x", info, "Echo").admissible_actions == ()


def test_facts_are_handed_on_and_may_be_missing() -> None:
    assert contract.observe("x", {"facts": {"player": (0, 1)}}, "Echo").facts == {"player": (0, 1)}
    for info in ({}, {"facts": None}, {"facts": {}}):
        assert contract.observe("x", info, "Echo").facts == {}


def test_facts_that_are_no_dict_are_refused() -> None:
    with pytest.raises(EnvironmentContractError, match=r"Echo gave info\[\"facts\"\] = .*expected a dict such as"):
        contract.observe("x", {"facts": [("player", (0, 1))]}, "Echo")


@pytest.mark.parametrize("actions", ["left", [1, 2], [["left"]]])
def test_admissible_actions_that_are_no_list_of_texts_are_refused(actions: Any) -> None:
    message = message_of(
        EnvironmentContractError, lambda: contract.observe("x", {"admissible_actions": actions}, "Echo")
    )
    assert "Echo" in message
    assert repr(actions) in message


# The same start


class Unseeded(Plain):
    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        self.count = getattr(self, "count", 0) + 1
        return f"start {self.count}", {}


def test_a_reset_that_ignores_its_seed_is_named_with_the_difference() -> None:
    environment = make(Unseeded)
    first, other = (contract.reset(environment, 17) for _ in range(2))
    message = message_of(NonDeterministicResetError, lambda: contract.check_same_start("Unseeded", 17, first, other))
    assert [word for word in ("Unseeded", "seed=17", "start 1", "start 2") if word not in message] == []


def test_states_that_differ_in_the_anchor_only_are_told_apart() -> None:
    first, other = Observation("x", ("hidden", 1)), Observation("x", ("hidden", 2))
    message = message_of(NonDeterministicResetError, lambda: contract.check_same_start("Plain", 0, first, other))
    assert "('hidden', 1)" in message
    assert "('hidden', 2)" in message


def test_the_same_state_passes() -> None:
    contract.check_same_start("Plain", 0, Observation("x", 1), Observation("x", 1))


# Spaces


def test_every_text_is_in_the_space_and_nothing_else() -> None:
    space = TextSpace(["left"])
    assert all(text in space for text in ("left", "", "↑ ⁂\n", "<action>", "a" * 10_000))
    assert all(other not in space for other in (None, 3, b"left", ["left"]))


def test_a_sample_is_an_action_and_every_action_is_sampled() -> None:
    space = TextSpace(["left", "right", "stay"])
    space.seed(0)
    assert {space.sample() for _ in range(100)} == {"left", "right", "stay"}


def test_sampling_follows_the_seed() -> None:
    draws = []
    for _ in range(2):
        space = TextSpace([str(n) for n in range(100)])
        space.seed(4)
        draws.append([space.sample() for _ in range(10)])
    assert draws[0] == draws[1]


def test_spaces_are_equal_by_their_actions_and_survive_copying() -> None:
    space = TextSpace(["left", "right"])
    assert space != TextSpace(["right", "left"])
    assert space != gymnasium.spaces.Text(16)
    for other in (copy.deepcopy(space), pickle.loads(pickle.dumps(space)), TextSpace(("left", "right"))):
        assert other == space
    assert repr(space) == "TextSpace(['left', 'right'])"
    assert repr(TextSpace()) == "TextSpace()"


class FreeText(Corridor):
    """Takes any text."""

    action_space = TextSpace()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return super().step("right")


@pytest.mark.parametrize("source", [Corridor, FreeText])
def test_gymnasiums_own_check_accepts_the_space(source: type[Corridor]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(source(), skip_render_check=True)


def test_the_example_in_the_docstring_is_an_environment() -> None:
    example = TextEnvironment.__doc__.partition("```python\n")[2].partition("```")[0]
    lines = [line.strip("\n")[8:] for line in example.splitlines() if line.strip()]
    names = {"TextEnvironment": TextEnvironment, "TextSpace": TextSpace}
    exec("\n".join(lines), names)
    countdown = make(names["Countdown"])
    shown = int(contract.reset(countdown, 1).text.removeprefix("counter: "))
    results = [contract.step(countdown, "down") for _ in range(shown)]
    assert [result.success for result in results] == [False] * (shown - 1) + [True]
    assert [result.terminated for result in results] == [False] * (shown - 1) + [True]
