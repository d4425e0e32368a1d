# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""What holds for every game: its id, gymnasium's own check, one episode per seed in any process, what is imported."""

import ast
import copy
import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import trl_agentpo.envs
from trl_agentpo import environment as contract


CLASSES = {
    "trl_agentpo/FrozenLake-v0": "FrozenLake",
    "trl_agentpo/Sokoban-v0": "Sokoban",
    "trl_agentpo/Bandit-v0": "Bandit",
}
VARIANTS = [
    ("trl_agentpo/FrozenLake-v0", {}),
    ("trl_agentpo/FrozenLake-v0", {"random_start": True, "size": 5, "success_rate": 0.8, "vocabulary": "letters"}),
    ("trl_agentpo/Sokoban-v0", {}),
    ("trl_agentpo/Sokoban-v0", {"size": [7, 6], "num_boxes": 2, "vocabulary": "letters"}),
    ("trl_agentpo/Bandit-v0", {}),
    ("trl_agentpo/Bandit-v0", {"pair": "test", "reverse": True}),
]
every_variant = pytest.mark.parametrize(("environment_id", "settings"), VARIANTS)
every_id = pytest.mark.parametrize("environment_id", CLASSES)

# Plays one episode and prints everything that came out of it. Run as its own process, too.
PLAYER = """
import json, sys
from trl_agentpo import environment as contract

def play(environment_id, settings, seed, picks):
    game = contract.make(environment_id, **settings)
    state = contract.reset(game, seed)
    record = [state.text, repr(state.anchor)]
    for pick in picks:
        actions = contract.vocabulary_of(game)
        result = contract.step(game, actions[pick % len(actions)])
        record += [result.observation.text, repr(result.observation.anchor), result.reward, result.terminated]
        if result.terminated:
            break
    return record

if __name__ == "__main__":
    print(json.dumps([play(*arguments) for arguments in json.loads(sys.argv[1])]))
"""


def play_in_this_process(arguments):
    names = {"__name__": "player"}
    exec(PLAYER, names)
    return [names["play"](*one) for one in arguments]


def run_python(*arguments, hash_seed="0"):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@every_id
def test_an_id_gives_its_class(environment_id):
    game = gymnasium.make(environment_id)
    assert type(game.unwrapped) is getattr(trl_agentpo.envs, CLASSES[environment_id])


@every_id
def test_an_entry_point_is_a_string_so_that_registering_imports_nothing(environment_id):
    module, name = gymnasium.registry[environment_id].entry_point.split(":")
    assert getattr(sys.modules[module], name) is getattr(trl_agentpo.envs, CLASSES[environment_id])


def test_importing_again_warns_of_nothing_and_keeps_what_was_put_in_place():
    replaced = gymnasium.envs.registration.EnvSpec("trl_agentpo/Bandit-v0", entry_point="somewhere:Else")
    original = gymnasium.registry["trl_agentpo/Bandit-v0"]
    gymnasium.registry["trl_agentpo/Bandit-v0"] = replaced
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            importlib.reload(trl_agentpo.envs)
        assert gymnasium.registry["trl_agentpo/Bandit-v0"] is replaced
    finally:
        gymnasium.registry["trl_agentpo/Bandit-v0"] = original


def test_gymnasium_finds_an_id_by_its_module_and_nothing_heavy_is_imported():
    heavy = run_python(
        "import gymnasium, sys;"
        "gymnasium.make('trl_agentpo.envs:trl_agentpo/Sokoban-v0').reset(seed=0);"
        "print([name for name in ('torch', 'transformers', 'trl', 'pygame') if name in sys.modules])"
    )
    assert heavy.strip() == "[]"


def test_the_games_depend_on_the_contract_and_on_nothing_else_of_the_package():
    for file in sorted(Path(trl_agentpo.envs.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not any(name.name.startswith("trl_agentpo") for name in node.names), file
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module.startswith("trl_agentpo"):
                assert node.module == "trl_agentpo.environment", file


@every_variant
def test_gymnasium_finds_nothing_wrong(environment_id, settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(environment_id, **settings).unwrapped)


@every_variant
def test_the_contract_finds_nothing_missing(environment_id, settings):
    game = contract.make(environment_id, **settings)
    contract.check_same_start(environment_id, 5, contract.reset(game, 5), contract.reset(game, 5))


def test_a_seed_gives_the_same_episode_in_every_process():
    arguments = [[name, settings, seed, [0, 1, 2, 3, 1, 2, 2]] for name, settings in VARIANTS for seed in range(8)]
    here = play_in_this_process(arguments)
    for hash_seed in ("1", "4242"):
        assert json.loads(run_python(PLAYER, json.dumps(arguments), hash_seed=hash_seed)) == here


@every_variant
def test_seeds_give_different_games(environment_id, settings):
    game = contract.make(environment_id, **settings)
    starts = {contract.reset(game, seed).anchor for seed in range(20)}
    # A bandit has two starts, and two lakes of 4x4 may be alike by chance.
    assert len(starts) == 2 if "Bandit" in environment_id else len(starts) >= 15


@every_variant
def test_a_reset_without_a_seed_goes_on_in_the_stream_of_the_last_one(environment_id, settings):
    def starts():
        game = contract.make(environment_id, **settings)
        return [contract.reset(game, seed).anchor for seed in (3, *[None] * 15)]

    assert starts() == starts()
    assert len(set(starts())) > 1


@every_variant
def test_the_initial_state_does_not_depend_on_what_was_played_before(environment_id, settings):
    game = contract.make(environment_id, **settings)
    first = contract.reset(game, 11)
    contract.step(game, contract.vocabulary_of(game)[0])
    contract.check_same_start(environment_id, 11, first, contract.reset(game, 11))


@every_variant
def test_a_copy_made_in_the_middle_of_an_episode_goes_on_like_the_original(environment_id, settings):
    game = contract.make(environment_id, **settings)
    contract.reset(game, 2)
    contract.step(game, "not an action")
    other = copy.deepcopy(game)
    for action in contract.vocabulary_of(game):
        expected = contract.step(game, action)
        assert contract.step(other, action) == expected
        if expected.terminated:
            break


@every_variant
def test_an_action_that_is_none_changes_nothing_and_costs_nothing(environment_id, settings):
    game = contract.make(environment_id, **settings)
    before = contract.reset(game, 4)
    for action in ("", "jump", "left right", "phoenix, dragon", "√"):
        result = contract.step(game, action)
        assert (result.reward, result.terminated, result.truncated, result.success) == (0, False, False, False)
        assert (result.action_valid, result.action_effective) == (False, False)
        assert result.observation == before


@every_variant
def test_names_of_actions_are_matched_without_case_and_surrounding_space(environment_id, settings):
    game = contract.make(environment_id, **settings)
    for action in contract.vocabulary_of(game):
        results = []
        for spelling in (action, action.upper(), action.lower(), f" {action}\n"):
            contract.reset(game, 6)
            results.append(contract.step(game, spelling))
        assert all(result == results[0] and result.action_valid for result in results)


@every_variant
def test_the_vocabulary_is_in_the_instructions_or_on_show(environment_id, settings):
    game = contract.make(environment_id, **settings)
    state = contract.reset(game, 0)
    actions_line = contract.instructions_of(game).splitlines()[-1]
    assert actions_line.startswith("Actions: ")
    for action in contract.vocabulary_of(game):
        assert action in actions_line or action in state.admissible_actions


@every_id
def test_a_step_without_a_reset_says_so(environment_id):
    game = getattr(trl_agentpo.envs, CLASSES[environment_id])()
    with pytest.raises(gymnasium.error.ResetNeeded):
        game.step(game.action_space.actions[0])


@every_id
def test_an_unknown_option_is_refused_by_name(environment_id):
    with pytest.raises(ValueError, match="mpa"):
        contract.reset(contract.make(environment_id), 0, {"mpa": []})


@every_id
def test_render_gives_the_observation_in_ansi_mode_only(environment_id):
    game = contract.make(environment_id, render_mode="ansi")
    assert game.render is not None
    state = contract.reset(game, 0)
    assert game.render() == state.text
    silent = getattr(trl_agentpo.envs, CLASSES[environment_id])()
    silent.reset(seed=0)
    assert silent.render() is None


@every_id
def test_another_render_mode_is_refused(environment_id):
    with pytest.raises(ValueError, match="render_mode.*'human'"):
        getattr(trl_agentpo.envs, CLASSES[environment_id])(render_mode="human")


@every_id
def test_environments_do_not_share_their_action_space(environment_id):
    one, other = (getattr(trl_agentpo.envs, CLASSES[environment_id])() for _ in range(2))
    assert one.action_space is not other.action_space
