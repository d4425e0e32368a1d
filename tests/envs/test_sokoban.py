# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""Sokoban against a second implementation of its rules, written here over the text, and rooms worked out by hand."""

import random
import re
import time

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agentpo.envs import Sokoban, sokoban_rooms
from trl_agentpo.envs.sokoban import solve


STEPS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


def rows_of(text):
    """The room in an observation of the "ragen" vocabulary, without spaces."""
    return tuple(line.replace(" ", "") for line in text.splitlines()[:-1])


def text_move(rows, action):
    """The rules as rewriting of the symbols in front of the player; the same rows if nothing moves."""
    (row, column), down, right = find_player(rows), *STEPS[action]
    places = [(row + n * down, column + n * right) for n in range(3)]
    line = "".join(rows[i][j] if 0 <= i < len(rows) and 0 <= j < len(rows[0]) else "#" for i, j in places)
    left, entered, pushed = {"P": "_", "S": "O"}, {"_": "P", "O": "S", "X": "P", "√": "S"}, {"_": "X", "O": "√"}
    if line[1] in "_O":
        after = left[line[0]] + entered[line[1]]
    elif line[1] in "X√" and line[2] in "_O":
        after = left[line[0]] + entered[line[1]] + pushed[line[2]]
    else:
        return rows
    grid = [list(cells) for cells in rows]
    for (i, j), symbol in zip(places, after, strict=False):
        grid[i][j] = symbol
    return tuple("".join(cells) for cells in grid)


def find_player(rows):
    return next((i, j) for i, cells in enumerate(rows) for j, symbol in enumerate(cells) if symbol in "PS")


def text_solution_length(rows):
    """Number of actions of a shortest solution by an uninformed search over whole rooms; None if there is none."""
    met, layer, length = {rows}, [rows], 0
    while layer:
        if any("X" not in "".join(room) for room in layer):
            return length
        layer = [after for room in layer for after in dict.fromkeys(text_move(room, action) for action in STEPS)]
        layer = [room for room in dict.fromkeys(layer) if room not in met]
        met.update(layer)
        length += 1
    return None


def start(rows, **arguments):
    game = Sokoban(**arguments)
    return game, game.reset(seed=0, options={"map": rows})


@pytest.mark.parametrize(
    ("size", "num_boxes", "seeds"), [((6, 6), 1, 200), ((6, 6), 2, 12), ((3, 7), 1, 20), ((5, 4), 1, 20)]
)
def test_every_room_can_be_solved_and_the_shortest_solution_is_known(size, num_boxes, seeds):
    game = Sokoban(size=size, num_boxes=num_boxes)
    for seed in range(seeds):
        rows = rows_of(game.reset(seed=seed)[0])
        assert (len(rows), len(rows[0])) == size
        solution = solve(game.room)
        assert len(solution) == text_solution_length(rows)
        for action in solution:
            _, _, terminated, _, info = game.step(action)
        assert terminated
        assert info["success"]


def test_rooms_are_walled_in_and_hold_what_was_asked_for():
    game, players = Sokoban(size=(7, 8), num_boxes=2), set()
    for seed in range(40):
        rows = rows_of(game.reset(seed=seed)[0])
        assert rows[0] == rows[-1] == "#" * 8
        assert all(row[0] == row[-1] == "#" for row in rows)
        cells = "".join(rows)
        assert (cells.count("X"), cells.count("√"), cells.count("O") + cells.count("S")) == (2, 0, 2)
        assert cells.count("P") + cells.count("S") == 1
        players.add("P" if "P" in cells else "S")
    # No box starts on a target, but the player may.
    assert players == {"P", "S"}


@pytest.mark.parametrize(("shortest", "longest"), [(None, 3), (8, None), (6, 7), (4, 4)])
def test_the_bounds_of_the_solution_are_kept(shortest, longest):
    game = Sokoban(min_solution_length=shortest, max_solution_length=longest)
    lengths = {text_solution_length(rows_of(game.reset(seed=seed)[0])) for seed in range(25)}
    assert min(lengths) >= (shortest or 1)
    assert max(lengths) <= (longest or 100)


def test_rooms_of_eight_by_eight_with_two_boxes_come_soon():
    game, begin = Sokoban(size=(8, 8), num_boxes=2), time.perf_counter()
    for seed in range(15):
        game.reset(seed=seed)
        assert len(solve(game.room)) > 0
    assert time.perf_counter() - begin < 30


def test_rooms_neither_use_nor_change_the_global_random_states():
    def draw(number):
        random.seed(number)
        np.random.seed(number)
        text, _ = Sokoban().reset(seed=7)
        return text, random.random(), np.random.random()

    texts = []
    for number in (1, 2):
        text, *drawn = draw(number)
        random.seed(number)
        np.random.seed(number)
        assert drawn == [random.random(), np.random.random()]
        texts.append(text)
    assert texts[0] == texts[1]


@given(seed=st.integers(0, 10_000), actions=st.lists(st.sampled_from(sorted(STEPS)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_play_follows_the_rules_and_the_rewards(seed, actions):
    game = Sokoban(size=(6, 7), num_boxes=2)
    text, _ = game.reset(seed=seed)
    rows = rows_of(text)
    for action in actions:
        after = text_move(rows, action)
        text, reward, terminated, truncated, info = game.step(action)
        assert rows_of(text) == after
        solved = "X" not in "".join(after)
        newly_on = "".join(after).count("√") - "".join(rows).count("√")
        assert reward == pytest.approx(-0.1 + newly_on + 10 * solved)
        assert (terminated, truncated, info["success"]) == (solved, False, solved)
        assert (info["action_valid"], info["action_effective"]) == (True, after != rows)
        rows = after
        if terminated:
            break


def test_the_text_of_a_room():
    text, info = start(["#####", "#PXO#", "#__√#", "#####"])[1]
    assert text == (
        "# # # # #\n"
        "# P X O #\n"
        "# _ _ √ #\n"
        "# # # # #\n"
        "You are at row 2, column 2. Boxes: row 2, column 3; row 3, column 4. "
        "Targets: row 2, column 4; row 3, column 4."
    )
    assert info == {
        "anchor": (("#####", "#__O#", "#__O#", "#####"), (2, 2), ((2, 3), (3, 4))),
        "success": False,
        "facts": {"player": (2, 2), "boxes": ((2, 3), (3, 4)), "targets": ((2, 4), (3, 4))},
    }


def test_pushing_the_last_box_onto_its_target_solves_the_room():
    game, _ = start(["#####", "#PXO#", "#####"])
    text, reward, terminated, truncated, info = game.step("Right")
    assert rows_of(text) == ("#####", "#_P√#", "#####")
    # Costs 0.1, a box on its target 1, solved 10.
    assert reward == pytest.approx(10.9)
    assert (terminated, truncated, info["success"]) == (True, False, True)
    with pytest.raises(gymnasium.error.ResetNeeded):
        game.step("Left")


def test_a_box_earns_one_on_a_target_and_loses_it_again():
    game, _ = start(["#######", "#PXO__#", "#_____#", "#_XO__#", "#######"])
    text, reward, terminated, _, info = game.step("Right")
    assert rows_of(text)[1] == "#_P√__#"
    assert (reward, terminated, info["success"]) == (pytest.approx(0.9), False, False)
    text, reward, terminated, _, info = game.step("Right")
    assert rows_of(text)[1] == "#__SX_#"
    assert (reward, terminated, info["success"]) == (pytest.approx(-1.1), False, False)
    text, reward, *_ = game.step("Left")
    assert rows_of(text)[1] == "#_POX_#"
    assert reward == pytest.approx(-0.1)


def test_from_target_to_target_a_box_neither_gains_nor_loses():
    game, _ = start(["######", "#P√O_#", "#X___#", "######"])
    text, reward, terminated, *_ = game.step("Right")
    assert rows_of(text)[1] == "#_S√_#"
    assert (reward, terminated) == (pytest.approx(-0.1), False)


@pytest.mark.parametrize(
    ("rows", "action"),
    [
        (["#####", "#XPO#", "#####"], "Left"),
        (["#####", "#XPO#", "#####"], "Up"),
        (["######", "#PXX_#", "#_OO_#", "######"], "Right"),
        (["######", "#PX√_#", "#_O__#", "######"], "Right"),
        (["####", "#PO#", "#_X#", "####"], "Left"),
        (["PXO"], "Up"),
        (["P_O", "__X"], "Left"),
        (["O_PX"], "Right"),
    ],
    ids=["box at wall", "wall", "two boxes", "box on target", "corner", "edge", "edge at the left", "box at the edge"],
)
def test_what_is_blocked_costs_an_action_and_changes_nothing(rows, action):
    game, (before, info_before) = start(rows)
    text, reward, terminated, _, info = game.step(action)
    assert text == before
    assert (reward, terminated) == (pytest.approx(-0.1), False)
    assert (info["action_valid"], info["action_effective"]) == (True, False)
    assert info["anchor"] == info_before["anchor"]


def test_the_anchor_is_the_state_and_not_the_way_to_it():
    game, (_, first) = start(["######", "#P__X#", "#___O#", "######"])
    anchors = [game.step(action)[4]["anchor"] for action in ("Right", "Left", "Down", "Up")]
    assert anchors[1] == anchors[3] == first["anchor"]
    assert len({first["anchor"], *anchors}) == 3


def test_boxes_are_alike_so_which_one_is_where_makes_no_state():
    pushed, _ = start(["######", "#_P__#", "#_XX_#", "#____#", "#OO__#", "######"])
    info = pushed.step("Down")[4]
    _, (_, same) = start(["######", "#____#", "#_PX_#", "#_X__#", "#OO__#", "######"])
    assert info["facts"]["boxes"] == ((3, 4), (4, 3))
    assert info["anchor"] == same["anchor"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["#####", "#PXO#", "#####"], ["Right"]),
        (["#####", "#OXP#", "#####"], ["Left"]),
        (["#####", "#P__#", "#_XO#", "#####"], ["Down", "Right"]),
        # Into the corner first, then round the box and up.
        (["#####", "#__O#", "#__X#", "#P__#", "#####"], ["Right", "Right", "Up"]),
        (["######", "#P_X_#", "#____#", "#_O__#", "######"], None),
        (["#####", "#XP_#", "#_O_#", "#####"], None),
    ],
)
def test_shortest_solutions_by_hand(rows, expected):
    game, _ = start(rows)
    assert solve(game.room) == expected


def test_a_bounded_search_stops_at_its_bounds():
    game, _ = start(["#####", "#__O#", "#__X#", "#P__#", "#####"])
    assert solve(game.room, max_length=3) == ["Right", "Right", "Up"]
    assert solve(game.room, max_length=2) is None
    assert solve(game.room, max_states=2) is None


def test_a_solved_room_needs_no_action():
    game, _ = start(["#####", "#PXO#", "#####"])
    game.step("Right")
    assert solve(game.room) == []


@pytest.mark.parametrize("vocabulary", ["ragen", "letters"])
def test_the_legend_explains_every_symbol(vocabulary):
    game, (text, _) = start(["########", "#SXO√_X#", "########"], vocabulary=vocabulary)
    (line,) = (line for line in game.instructions.splitlines() if line.startswith("Symbols: "))
    legend = dict(re.findall(r"(\S) = ([a-z ]+)", line))
    assert len(legend) == len(set(legend.values())) == 7
    inside = [legend[symbol] for symbol in text.splitlines()[1].split(" ")]
    assert inside == ["wall", "player on target", "box", "target", "box on target", "floor", "box", "wall"]
    text, *_ = game.step("Right")
    inside = [legend[symbol] for symbol in text.splitlines()[1].split(" ")]
    assert inside == ["wall", "target", "player", "box on target", "box on target", "floor", "box", "wall"]


def test_the_symbols_of_ragen_and_of_the_alternative():
    rows = ["########", "#SXO√_X#", "########"]
    assert start(rows)[1][0].splitlines()[1] == "# S X O √ _ X #"
    assert start(rows, vocabulary="letters")[1][0].splitlines()[1] == "W R B T D E B W"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": (6,)}, r"`size`.*got \(6,\)"),
        ({"size": (2, 9)}, r"`size`.*got \(2, 9\)"),
        ({"size": (6.0, 6)}, r"`size`.*got \(6.0, 6\)"),
        ({"size": (4, 4)}, r"`size`.*at least 5, got \(4, 4\)"),
        ({"num_boxes": 0}, "`num_boxes`.*got 0"),
        ({"num_boxes": 8}, "`num_boxes`.*got 8.*at most 7"),
        ({"min_solution_length": 0}, "`min_solution_length`.*got 0"),
        ({"max_solution_length": -1}, "`max_solution_length`.*got -1"),
        ({"max_solution_length": 2.5}, "`max_solution_length`.*got 2.5"),
        ({"min_solution_length": 5, "max_solution_length": 4}, "`max_solution_length`.*got 4"),
        ({"num_boxes": 3, "max_solution_length": 2}, "`max_solution_length`.*got 2"),
        ({"vocabulary": "emoji"}, "`vocabulary`.*'ragen', 'letters'.*got 'emoji'"),
    ],
)
def test_a_bad_argument_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Sokoban(**arguments)


def test_bounds_that_no_room_meets_end_in_an_error_and_not_in_a_search_for_ever(monkeypatch):
    monkeypatch.setattr(sokoban_rooms, "MAX_TRIES", 10)
    with pytest.raises(ValueError, match="10 tries.*min_solution_length=500.*Lower `min_solution_length`"):
        Sokoban(min_solution_length=500).reset(seed=0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("#PXO#", "list of rows"),
        ([], "one length"),
        (["#PXO#", "###"], "one length"),
        (["#PXG#"], "symbols # _ O"),
        (["#_XO#"], "one player"),
        (["#PXOS#"], "one player"),
        (["#PX_#"], "as many boxes"),
        (["#P_√#"], "not on a target"),
    ],
)
def test_a_bad_map_is_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        Sokoban().reset(seed=0, options={"map": rows})
