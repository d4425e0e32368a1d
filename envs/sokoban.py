# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Sokoban in text: push every box onto a target.

Invariant: the game is deterministic, and every room that is drawn can be solved. All that is random is the room, drawn
from the stream that the seed determines.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium

from trl_agentpo.environment import TextEnvironment, TextSpace

from .sokoban_rooms import DIRECTIONS, FLOOR, TARGET, WALL, Position, Room, check_options, generate_room, move, solve


__all__ = ["Sokoban", "solve"]

ACTIONS = tuple(DIRECTIONS)

VOCABULARIES: dict[str, dict[str, str]] = {
    "ragen": {
        "wall": "#",
        "floor": "_",
        "target": "O",
        "box on target": "√",
        "box": "X",
        "player": "P",
        "player on target": "S",
    },
    "letters": {
        "wall": "W",
        "floor": "E",
        "target": "T",
        "box on target": "D",
        "box": "B",
        "player": "A",
        "player on target": "R",
    },
}

ACTION_REWARD = -0.1
BOX_REWARD = 1.0
SOLVED_REWARD = 10.0


class Sokoban(TextEnvironment):
    """
    Push every box onto a target; boxes can be pushed, never pulled.

    Every action costs 0.1; a box pushed onto a target earns 1, pushed off it costs 1, and the last box on its target
    earns 10 more and ends the episode. There is no step limit of its own: use gymnasium's `TimeLimit` or the limits of
    the rollout.

    `info["anchor"]` is `(layout, player, boxes)`. `info["facts"]` holds `player`, `boxes` and `targets` as `(row,
    column)`, counted from 1 at the top left, walls included, as in the observation.

    Args:
        size (`tuple[int, int]`, *optional*, defaults to `(6, 6)`):
            Rows and columns of the room, walls included.
        num_boxes (`int`, *optional*, defaults to `1`):
            Number of boxes, and of targets.
        min_solution_length, max_solution_length (`int`, *optional*):
            Bounds of the shortest solution, in actions. `None`: no bound.
        vocabulary (`str`, *optional*, defaults to `"ragen"`):
            The symbols of the room: `"ragen"` or, to test generalisation, `"letters"`.
        render_mode (`str`, *optional*):
            `"ansi"`: `render` returns the observation. `None`: it returns nothing.

    Raises:
        ValueError: an argument is out of its range; the message names it and the remedy.
    """

    # An instance variable in gymnasium's annotations, so it cannot be a `ClassVar` here.
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        size: tuple[int, int] = (6, 6),
        num_boxes: int = 1,
        min_solution_length: int | None = None,
        max_solution_length: int | None = None,
        vocabulary: str = "ragen",
        render_mode: str | None = None,
    ):
        check_options(size, num_boxes, min_solution_length, max_solution_length)
        _check_choice("vocabulary", vocabulary, tuple(VOCABULARIES))
        _check_choice("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self.size = (size[0], size[1])
        self.num_boxes = num_boxes
        self.min_solution_length = min_solution_length
        self.max_solution_length = max_solution_length
        self.render_mode = render_mode
        self.symbols = VOCABULARIES[vocabulary]
        self.instructions = _instructions(self.symbols)
        self.action_space = TextSpace(ACTIONS)
        self.observation_space = TextSpace()
        self._room: Room | None = None

    @property
    def room(self) -> Room:
        """The current state, for [`solve`]."""
        if self._room is None:
            raise gymnasium.error.ResetNeeded("The episode was never started. Call `reset` first.")
        return self._room

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """
        Start the episode that `seed` and `options` determine.

        Args:
            seed (`int`, *optional*):
                The task seed. `None` goes on in the stream of the last one.
            options (`dict`, *optional*):
                `{"map": [...]}` plays this room instead of a random one: rows of the `"ragen"` symbols, whatever the
                vocabulary. It is played as it is, even if it cannot be solved.

        Returns:
            `tuple[str, dict]`: observation and info.

        Raises:
            ValueError: an unknown option, a map that is not a room, or bounds for which no room was found.
        """
        super().reset(seed=seed)
        self._room = _given_room(options or {}) or generate_room(
            self.np_random, self.size, self.num_boxes, self.min_solution_length, self.max_solution_length
        )
        return self._text(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """
        Walk one step, pushing a box if one is in the way.

        Args:
            action (`str`):
                A direction, in any case. Anything else changes nothing and costs nothing.

        Returns:
            `tuple[str, float, bool, bool, dict]`: observation, reward, terminated, truncated, info.
        """
        before = self.room
        if before.solved:
            raise gymnasium.error.ResetNeeded("The room is solved and the episode over. Call `reset` first.")
        meant = action.strip().capitalize()
        if meant not in ACTIONS:
            return self._text(), 0.0, False, False, self._info(action_valid=False, action_effective=False)
        self._room = after = move(before, meant)
        info = self._info(action_valid=True, action_effective=after != before)
        return self._text(), _reward(before, after), after.solved, False, info

    def render(self) -> str | None:
        """The room as text in render mode `"ansi"`, otherwise nothing."""
        return self._text() if self.render_mode == "ansi" else None

    def _info(self, **about_action: bool) -> dict[str, Any]:
        (player,) = _from_one([self.room.player])
        boxes, targets = _from_one(self.room.boxes), _from_one(self.room.targets)
        facts = {"player": player, "boxes": boxes, "targets": targets}
        anchor = (self.room.layout, player, boxes)
        return {"anchor": anchor, "success": self.room.solved, "facts": facts, **about_action}

    def _text(self) -> str:
        # With a space between them a tokenizer gives each cell a token of its own; tight rows melt into long ones.
        rows = [" ".join(self._symbol((i, j)) for j in range(len(row))) for i, row in enumerate(self.room.layout)]
        boxes, targets = _words(self.room.boxes), _words(self.room.targets)
        return "\n".join([*rows, f"You are at {_words([self.room.player])}. Boxes: {boxes}. Targets: {targets}."])

    def _symbol(self, cell: Position) -> str:
        ground = {WALL: "wall", FLOOR: "floor", TARGET: "target"}[self.room.layout[cell[0]][cell[1]]]
        for thing, places in (("player", (self.room.player,)), ("box", self.room.boxes)):
            if cell in places:
                return self.symbols[f"{thing} on target" if ground == "target" else thing]
        return self.symbols[ground]


def _reward(before: Room, after: Room) -> float:
    moved_onto_target = after.boxes_on_target - before.boxes_on_target
    return ACTION_REWARD + BOX_REWARD * moved_onto_target + SOLVED_REWARD * after.solved


def _check_choice(field: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        raise ValueError(f"`{field}` must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def _instructions(symbols: dict[str, str]) -> str:
    legend = ", ".join(f"{symbol} = {meaning}" for meaning, symbol in symbols.items())
    return (
        "You are in a warehouse and push every box onto a target, in as few actions as you can. Walking into a box "
        "pushes it one cell, if the cell behind it is neither a wall nor a box. You cannot pull a box.\n"
        f"Symbols: {legend}.\n"
        "Rows are counted from 1 at the top, columns from 1 at the left.\n"
        f"Actions: {', '.join(ACTIONS)}."
    )


def _given_room(options: dict[str, Any]) -> Room | None:
    unknown = sorted(set(options) - {"map"})
    if unknown:
        raise ValueError(f"Unknown reset options of Sokoban: {unknown}. The only option is 'map'.")
    rows = options.get("map")
    if rows is None:
        return None
    if isinstance(rows, str) or not all(isinstance(row, str) for row in rows):
        raise ValueError(f"The option 'map' must be a list of rows such as ['#####', '#PXO#', '#####'], got {rows!r}.")
    return _read_room(tuple(rows))


def _read_room(rows: tuple[str, ...]) -> Room:
    meanings = {symbol: meaning for meaning, symbol in VOCABULARIES["ragen"].items()}
    _check_rows(rows, set(meanings))
    cells = {(i, j): meanings[symbol] for i, row in enumerate(rows) for j, symbol in enumerate(row)}
    ground = {"wall": WALL, "target": TARGET, "box on target": TARGET, "player on target": TARGET}
    layout = tuple("".join(ground.get(meanings[symbol], FLOOR) for symbol in row) for row in rows)
    players = [cell for cell, meaning in cells.items() if meaning.startswith("player")]
    boxes = tuple(cell for cell, meaning in cells.items() if meaning.startswith("box"))
    if len(players) != 1:
        raise ValueError(f"The option 'map' must hold exactly one player (P, or S on a target), got {list(rows)}.")
    room = Room(layout, players[0], boxes)
    if len(boxes) != len(room.targets) or room.solved:
        raise ValueError(
            "The option 'map' must hold as many boxes (X, √) as targets (O, √, S), and a box that is not on a target, "
            f"got {list(rows)}."
        )
    return room


def _check_rows(rows: tuple[str, ...], symbols: set[str]) -> None:
    if len({len(row) for row in rows}) != 1:
        raise ValueError(f"The rows of the option 'map' must be of one length and at least one, got {list(rows)}.")
    if set("".join(rows)) - symbols:
        raise ValueError(
            "The option 'map' must be written in the symbols # _ O √ X P S, whatever the vocabulary, got "
            f"{list(rows)}."
        )


def _from_one(cells: Sequence[Position]) -> tuple[Position, ...]:
    return tuple((row + 1, column + 1) for row, column in cells)


def _words(cells: Sequence[Position]) -> str:
    return "; ".join(f"row {row}, column {column}" for row, column in _from_one(cells))
