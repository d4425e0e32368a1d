# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Sokoban rooms: their rules, a solver and a generator. Pure functions over [`Room`].

Invariant: a generated room has been solved, by a shortest solution whose length lies within the bounds asked for, and
it depends on the random generator it was drawn from and on nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np


Position = tuple[int, int]
State = tuple[Position, frozenset[Position]]

DIRECTIONS: dict[str, Position] = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}

WALL, FLOOR, TARGET = "#", "_", "O"

# How much of the inside is carved out: fuller than a corridor, emptier than a hall.
FLOOR_SHARES = (0.5, 0.85)
MAX_TRIES = 2000
# A candidate with more states than this is dropped: large rooms of many boxes would keep one try busy for minutes.
MAX_STATES = 200_000


@dataclass(frozen=True)
class Room:
    """
    One state of a Sokoban game.

    Positions are `(row, column)`, counted from 0 at the top left.

    Args:
        layout (`tuple[str, ...]`):
            The rows without player and boxes: `#` wall, `_` floor, `O` target.
        player (`tuple[int, int]`):
            Where the player is.
        boxes (`tuple[tuple[int, int], ...]`):
            Where the boxes are, sorted.
    """

    layout: tuple[str, ...]
    player: Position
    boxes: tuple[Position, ...]

    @property
    def targets(self) -> tuple[Position, ...]:
        """Where the targets are, sorted."""
        return tuple(cell for cell in self.free_cells if self.layout[cell[0]][cell[1]] == TARGET)

    @property
    def free_cells(self) -> tuple[Position, ...]:
        """Every cell that is no wall, sorted."""
        return tuple((i, j) for i, row in enumerate(self.layout) for j, cell in enumerate(row) if cell != WALL)

    @property
    def boxes_on_target(self) -> int:
        """How many boxes are where they should be."""
        return sum(self.layout[row][column] == TARGET for row, column in self.boxes)

    @property
    def solved(self) -> bool:
        """Whether every box is on a target."""
        return self.boxes_on_target == len(self.boxes)

    def is_free(self, cell: Position) -> bool:
        """Whether a cell is inside the room and no wall; a box may still stand there."""
        row, column = cell
        inside = 0 <= row < len(self.layout) and 0 <= column < len(self.layout[row])
        return inside and self.layout[row][column] != WALL


def move(room: Room, action: str) -> Room:
    """
    Do one action.

    Args:
        room ([`Room`]):
            The state before.
        action (`str`):
            A key of `DIRECTIONS`.

    Returns:
        [`Room`]: the state after; the same room if a wall, or a box that cannot be pushed, is in the way.
    """
    ahead = _shifted(room.player, DIRECTIONS[action])
    if not room.is_free(ahead):
        return room
    if ahead not in room.boxes:
        return replace(room, player=ahead)
    behind = _shifted(ahead, DIRECTIONS[action])
    if not room.is_free(behind) or behind in room.boxes:
        return room
    boxes = sorted(behind if box == ahead else box for box in room.boxes)
    return Room(room.layout, ahead, tuple(boxes))


def solve(room: Room, max_length: int | None = None, max_states: int | None = None) -> list[str] | None:
    """
    Find a shortest solution by breadth-first search.

    Args:
        room ([`Room`]):
            The state to begin with.
        max_length (`int`, *optional*):
            Look for solutions of at most this many actions.
        max_states (`int`, *optional*):
            Give up once this many states have been met.

    Returns:
        `list[str]` or `None`: the actions of a shortest solution (counting steps, not pushes), `None` if there is none
        within the limits.
    """
    useful = _useful_cells(room)
    targets = frozenset(room.targets)
    start: State = (room.player, frozenset(room.boxes))
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    frontier, length = [start], 0
    while frontier:
        solution = next((state for state in frontier if state[1] <= targets), None)
        if solution is not None:
            return _actions_to(solution, came_from)
        if length == max_length or (max_states is not None and len(came_from) > max_states):
            return None
        frontier, length = _next_layer(frontier, room, useful, came_from), length + 1
    return None


def _next_layer(
    frontier: list[State],
    room: Room,
    useful: frozenset[Position],
    came_from: dict[State, tuple[State, str] | None],
) -> list[State]:
    layer = []
    free = frozenset(room.free_cells)
    for state in frontier:
        for action, after in _successors(state, free, useful):
            if after not in came_from:
                came_from[after] = (state, action)
                layer.append(after)
    return layer


def _successors(state: State, free: frozenset[Position], useful: frozenset[Position]) -> Iterable[tuple[str, State]]:
    player, boxes = state
    for action, direction in DIRECTIONS.items():
        ahead = _shifted(player, direction)
        if ahead not in free:
            continue
        if ahead not in boxes:
            yield action, (ahead, boxes)
            continue
        behind = _shifted(ahead, direction)
        if behind in useful and behind not in boxes:
            yield action, (ahead, boxes - {ahead} | {behind})


def _useful_cells(room: Room) -> frozenset[Position]:
    """The cells from which a box alone in the room can be pushed onto some target, found by pulling it off."""
    useful, frontier = set(room.targets), list(room.targets)
    while frontier:
        box = frontier.pop()
        for direction in DIRECTIONS.values():
            pulled = _shifted(box, direction)
            if pulled not in useful and room.is_free(pulled) and room.is_free(_shifted(pulled, direction)):
                useful.add(pulled)
                frontier.append(pulled)
    return frozenset(useful)


def _actions_to(state: State, came_from: dict[State, tuple[State, str] | None]) -> list[str]:
    actions = []
    step = came_from[state]
    while step is not None:
        state, action = step
        actions.append(action)
        step = came_from[state]
    return actions[::-1]


def check_options(
    size: tuple[int, int], num_boxes: int, min_solution_length: int | None, max_solution_length: int | None
) -> None:
    """
    Check that rooms of this kind can exist at all.

    Args:
        size (`tuple[int, int]`):
            Rows and columns, walls included.
        num_boxes (`int`):
            Number of boxes, and of targets.
        min_solution_length, max_solution_length (`int`, *optional*):
            Bounds of the shortest solution, in actions.

    Raises:
        ValueError: no such room exists; the message names the argument and the remedy.
    """
    _check_size(size, num_boxes)
    for field, value in (("min_solution_length", min_solution_length), ("max_solution_length", max_solution_length)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"`{field}` must be a whole number of at least 1, got {value!r}. Pass None for no bound.")
    if max_solution_length is not None and max_solution_length < max(num_boxes, min_solution_length or 1):
        raise ValueError(
            f"`max_solution_length` must not be below `min_solution_length` ({min_solution_length}) nor below "
            f"`num_boxes` ({num_boxes}: every box takes a push), got {max_solution_length}. Raise it, or pass None "
            "for no bound."
        )


def _check_size(size: tuple[int, int], num_boxes: int) -> None:
    if len(size) != 2 or not all(isinstance(side, int) and side >= 3 for side in size):
        raise ValueError(
            f"`size` must be two whole numbers of at least 3, walls included, got {size!r}. RAGEN: (6, 6)."
        )
    if max(size) < 5:
        raise ValueError(
            f"`size` must have a side of at least 5, got {size!r}: a push needs three cells in a row inside the walls."
        )
    if not isinstance(num_boxes, int) or num_boxes < 1:
        raise ValueError(f"`num_boxes` must be a whole number of at least 1, got {num_boxes!r}.")
    inside = (size[0] - 2) * (size[1] - 2)
    if 2 * num_boxes + 1 > inside:
        raise ValueError(
            f"`num_boxes` must leave room for as many targets and the player, got {num_boxes} boxes for {inside} "
            f"cells inside the walls. Use at most {(inside - 1) // 2}, or a larger `size`."
        )


def generate_room(
    np_random: np.random.Generator,
    size: tuple[int, int] = (6, 6),
    num_boxes: int = 1,
    min_solution_length: int | None = None,
    max_solution_length: int | None = None,
) -> Room:
    """
    Draw a solvable room: carve it, place everything at random, keep it if the search solves it within the bounds.

    Args:
        np_random (`numpy.random.Generator`):
            The source of everything random.
        size (`tuple[int, int]`, *optional*, defaults to `(6, 6)`):
            Rows and columns, walls included.
        num_boxes (`int`, *optional*, defaults to `1`):
            Number of boxes, and of targets. No box starts on a target.
        min_solution_length, max_solution_length (`int`, *optional*):
            Bounds of the shortest solution, in actions.

    Returns:
        [`Room`]: the room.

    Raises:
        ValueError: no such room can exist, or none was found in a bounded number of tries.
    """
    check_options(size, num_boxes, min_solution_length, max_solution_length)
    for _ in range(MAX_TRIES):
        room = _place(_carve(np_random, size, num_boxes), np_random, size, num_boxes)
        solution = solve(room, max_solution_length, MAX_STATES)
        if solution is not None and len(solution) >= (min_solution_length or 1):
            return room
    raise ValueError(
        f"Found no room in {MAX_TRIES} tries with size={size}, num_boxes={num_boxes}, min_solution_length="
        f"{min_solution_length}, max_solution_length={max_solution_length}. Lower `min_solution_length`, raise "
        "`max_solution_length`, or choose a larger `size` or fewer boxes."
    )


def _carve(np_random: np.random.Generator, size: tuple[int, int], num_boxes: int) -> list[Position]:
    """Walk at random inside the walls until enough cells have been visited: these are the floor, sorted."""
    inside = (size[0] - 2) * (size[1] - 2)
    fewest = max(2 * num_boxes + 1, round(FLOOR_SHARES[0] * inside))
    most = max(fewest, round(FLOOR_SHARES[1] * inside))
    wanted = int(np_random.integers(fewest, most + 1))
    cell = (int(np_random.integers(1, size[0] - 1)), int(np_random.integers(1, size[1] - 1)))
    floor = {cell}
    directions = list(DIRECTIONS.values())
    while len(floor) < wanted:
        row, column = _shifted(cell, directions[int(np_random.integers(4))])
        if 1 <= row < size[0] - 1 and 1 <= column < size[1] - 1:
            cell = (row, column)
            floor.add(cell)
    return sorted(floor)


def _place(floor: list[Position], np_random: np.random.Generator, size: tuple[int, int], num_boxes: int) -> Room:
    cells = [floor[i] for i in np_random.permutation(len(floor))]
    boxes, targets, rest = cells[:num_boxes], cells[num_boxes : 2 * num_boxes], cells[num_boxes:]
    player = rest[int(np_random.integers(len(rest)))]
    kinds = {**dict.fromkeys(floor, FLOOR), **dict.fromkeys(targets, TARGET)}
    layout = tuple("".join(kinds.get((i, j), WALL) for j in range(size[1])) for i in range(size[0]))
    return Room(layout, player, tuple(sorted(boxes)))


def _shifted(cell: Position, direction: Position) -> Position:
    return cell[0] + direction[0], cell[1] + direction[1]
