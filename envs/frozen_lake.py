# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
FrozenLake in text: gymnasium's dynamics, one random map per seed.

Invariant: the map and every slip are drawn from one stream that the seed determines, so the same seed and the same
actions give the same episode in any process. An action that is not understood draws nothing from it.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from trl_agentpo.environment import TextEnvironment, TextSpace


# In the order of gymnasium's action numbers.
ACTIONS = ("Left", "Down", "Right", "Up")

VOCABULARIES: dict[str, dict[str, str]] = {
    "ragen": {
        "player": "P",
        "frozen tile": "_",
        "hole": "O",
        "goal": "G",
        "player in a hole": "X",
        "player on the goal": "√",
    },
    "letters": {
        "player": "A",
        "frozen tile": "F",
        "hole": "H",
        "goal": "T",
        "player in a hole": "D",
        "player on the goal": "W",
    },
}

# Below the percolation threshold of the square grid (0.593) a path becomes ever rarer with growing size, and drawing
# maps until one can be crossed would not end.
SMALLEST_FROZEN_SHARE = 0.6

Position = tuple[int, int]


class FrozenLake(TextEnvironment):
    """
    Walk over a frozen lake to the goal without stepping into a hole.

    The reward is 1 on reaching the goal and 0 otherwise; the goal and a hole end the episode. There is no step limit
    of its own: use gymnasium's `TimeLimit` or the limits of the rollout.

    `info["anchor"]` is `(map, position)`. `info["facts"]` holds `player`, `goal` and `holes` as `(row, column)`,
    counted from 1 at the top left, as in the observation.

    Args:
        size (`int`, *optional*, defaults to `4`):
            Side length of the lake.
        frozen_share (`float`, *optional*, defaults to `0.8`):
            Chance of a tile to be frozen rather than a hole, at least 0.6. Every map that is drawn can be crossed.
        is_slippery (`bool`, *optional*, defaults to `True`):
            Whether a step may go to the side of the chosen direction.
        success_rate (`float`, *optional*, defaults to `1/3`):
            Chance of a step on slippery ice to go where it was meant to go (1/3 in RAGEN, 0.8 in RAGEN-2). The two
            sides share the rest equally.
        random_start (`bool`, *optional*, defaults to `False`):
            Draw start and goal among the frozen tiles, as RAGEN does. Otherwise they are two opposite corners.
        vocabulary (`str`, *optional*, defaults to `"ragen"`):
            The symbols of the map: `"ragen"` or, to test generalisation, `"letters"`.
        render_mode (`str`, *optional*):
            `"ansi"`: `render` returns the observation. `None`: it returns nothing.

    Raises:
        ValueError: an argument is out of its range; the message names it and the remedy.
    """

    # An instance variable in gymnasium's annotations, so it cannot be a `ClassVar` here.
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        size: int = 4,
        frozen_share: float = 0.8,
        is_slippery: bool = True,
        success_rate: float = 1 / 3,
        random_start: bool = False,
        vocabulary: str = "ragen",
        render_mode: str | None = None,
    ):
        _check_numbers(size, frozen_share, success_rate)
        _check_choice("vocabulary", vocabulary, tuple(VOCABULARIES))
        _check_choice("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self.size = size
        self.frozen_share = frozen_share
        self.is_slippery = is_slippery
        self.success_rate = success_rate
        self.random_start = random_start
        self.render_mode = render_mode
        self.symbols = VOCABULARIES[vocabulary]
        self.instructions = _instructions(self.symbols, is_slippery, success_rate)
        self.action_space = TextSpace(ACTIONS)
        self.observation_space = TextSpace()
        self._map: tuple[str, ...] = ()
        self._lake: FrozenLakeEnv | None = None
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """
        Start the episode that `seed` and `options` determine.

        Args:
            seed (`int`, *optional*):
                The task seed. `None` goes on in the stream of the last one.
            options (`dict`, *optional*):
                `{"map": [...]}` plays this map instead of a random one: rows of gymnasium's letters `S` (start), `F`
                (frozen), `H` (hole), `G` (goal). It is played as it is, even if it cannot be crossed.

        Returns:
            `tuple[str, dict]`: observation and info.

        Raises:
            ValueError: an unknown option, or a map that is not one.
        """
        super().reset(seed=seed)
        self._map = _given_map(options or {}) or self._draw_map()
        self._lake = FrozenLakeEnv(desc=list(self._map), is_slippery=self.is_slippery, success_rate=self.success_rate)
        # One generator for the map and the slips: the seed then determines the whole episode.
        self._lake.np_random = self.np_random
        self._lake.reset()
        self._over = False
        return self._text(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """
        Walk one step.

        Args:
            action (`str`):
                A direction, in any case. Anything else changes nothing and costs nothing.

        Returns:
            `tuple[str, float, bool, bool, dict]`: observation, reward, terminated, truncated, info.
        """
        if self._lake is None or self._over:
            raise gymnasium.error.ResetNeeded("The episode is over or was never started. Call `reset` first.")
        directions = [name.lower() for name in ACTIONS]
        meant = action.strip().lower()
        if meant not in directions:
            return self._text(), 0.0, False, False, self._info(action_valid=False, action_effective=False)
        before = self._position
        _, reward, self._over, _, _ = self._lake.step(directions.index(meant))
        info = self._info(action_valid=True, action_effective=self._position != before)
        return self._text(), float(reward), self._over, False, info

    def render(self) -> str | None:
        """The lake as text in render mode `"ansi"`, otherwise nothing."""
        return self._text() if self.render_mode == "ansi" else None

    def _draw_map(self) -> tuple[str, ...]:
        if self.random_start:
            return _draw_map_with_random_start(self.size, self.frozen_share, self.np_random)
        map_seed = int(self.np_random.integers(2**31))
        return tuple(generate_random_map(self.size, self.frozen_share, map_seed))

    @property
    def _position(self) -> Position:
        assert self._lake is not None
        row, column = divmod(int(self._lake.s), len(self._map[0]))
        return row + 1, column + 1

    def _info(self, **about_action: bool) -> dict[str, Any]:
        player, goal = self._position, _positions(self._map, "G")[0]
        facts = {"player": player, "goal": goal, "holes": _positions(self._map, "H")}
        return {"anchor": (self._map, player), "success": player == goal, "facts": facts, **about_action}

    def _text(self) -> str:
        player, goal = self._position, _positions(self._map, "G")[0]
        meanings = {"S": "frozen tile", "F": "frozen tile", "H": "hole", "G": "goal"}
        cells = [[self.symbols[meanings[letter]] for letter in row] for row in self._map]
        cells[player[0] - 1][player[1] - 1] = self._player_symbol(player)
        # With a space between them a tokenizer gives each tile a token of its own; tight rows melt into long ones.
        grid = "\n".join(" ".join(row) for row in cells)
        return f"{grid}\nYou are at {_words(player)}. The goal is at {_words(goal)}."

    def _player_symbol(self, player: Position) -> str:
        meanings = {"H": "player in a hole", "G": "player on the goal"}
        return self.symbols[meanings.get(self._map[player[0] - 1][player[1] - 1], "player")]


def _check_numbers(size: int, frozen_share: float, success_rate: float) -> None:
    if not isinstance(size, int) or size < 2:
        raise ValueError(f"`size` must be a whole number of at least 2, got {size!r}. RAGEN's lakes have size 4.")
    if not SMALLEST_FROZEN_SHARE <= frozen_share <= 1:
        raise ValueError(
            f"`frozen_share` must lie between {SMALLEST_FROZEN_SHARE} and 1, got {frozen_share!r}: with fewer frozen "
            "tiles hardly any map can be crossed. RAGEN uses 0.8."
        )
    if not 0 <= success_rate <= 1:
        raise ValueError(
            f"`success_rate` must lie between 0 and 1, got {success_rate!r}. It is the chance of a step to go where "
            "it was meant to go; for ice that never slips pass `is_slippery=False`."
        )


def _check_choice(field: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        raise ValueError(f"`{field}` must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def _instructions(symbols: dict[str, str], is_slippery: bool, success_rate: float) -> str:
    legend = ", ".join(f"{symbol} = {meaning}" for meaning, symbol in symbols.items())
    return (
        "You stand on a frozen lake and walk to the goal. A step into a hole ends the game, and it is lost.\n"
        f"Symbols: {legend}.\n"
        "Rows are counted from 1 at the top, columns from 1 at the left.\n"
        f"{_slip_rule(is_slippery, success_rate)} A step against the edge of the lake leaves you where you are.\n"
        f"Actions: {', '.join(ACTIONS)}."
    )


def _slip_rule(is_slippery: bool, success_rate: float) -> str:
    if not is_slippery:
        return "A step always goes in the direction you choose."
    return (
        f"The ice is slippery: a step goes in the direction you choose with a chance of {success_rate:.0%}, and to "
        f"each of the two sides of it with a chance of {(1 - success_rate) / 2:.0%}."
    )


def _given_map(options: dict[str, Any]) -> tuple[str, ...] | None:
    unknown = sorted(set(options) - {"map"})
    if unknown:
        raise ValueError(f"Unknown reset options of FrozenLake: {unknown}. The only option is 'map'.")
    rows = options.get("map")
    if rows is None:
        return None
    if isinstance(rows, str) or not all(isinstance(row, str) for row in rows):
        raise ValueError(f"The option 'map' must be a list of rows such as ['SF', 'HG'], got {rows!r}.")
    _check_map(tuple(rows))
    return tuple(rows)


def _check_map(rows: tuple[str, ...]) -> None:
    letters = "".join(rows)
    if len({len(row) for row in rows}) != 1 or not letters:
        raise ValueError(f"The rows of the option 'map' must be of one length and not empty, got {list(rows)}.")
    if set(letters) - set("SFHG"):
        raise ValueError(
            "The option 'map' must be written in the letters S (start), F (frozen), H (hole) and G (goal), whatever "
            f"the vocabulary, got {list(rows)}."
        )
    for letter, name in (("S", "start"), ("G", "goal")):
        if letters.count(letter) != 1:
            raise ValueError(f"The option 'map' must hold exactly one {name} '{letter}', got {list(rows)}.")


def _draw_map_with_random_start(size: int, frozen_share: float, np_random: np.random.Generator) -> tuple[str, ...]:
    while True:
        board = np_random.choice(["F", "H"], (size, size), p=[frozen_share, 1 - frozen_share])
        frozen = np.argwhere(board == "F")
        if len(frozen) < 2:
            continue
        start, goal = (tuple(tile) for tile in np_random.choice(frozen, 2, replace=False))
        board[start], board[goal] = "S", "G"
        rows = tuple("".join(row) for row in board)
        if _can_be_crossed(rows):
            return rows


def _can_be_crossed(rows: tuple[str, ...]) -> bool:
    goal = _positions(rows, "G")[0]
    dry = {*_positions(rows, "S"), *_positions(rows, "F"), goal}
    frontier = list(_positions(rows, "S"))
    while frontier:
        row, column = frontier.pop()
        dry.discard((row, column))
        neighbours = {(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)}
        frontier.extend(neighbours & dry)
    return goal not in dry


def _positions(rows: tuple[str, ...], letter: str) -> tuple[Position, ...]:
    return tuple((i, j) for i, row in enumerate(rows, 1) for j, found in enumerate(row, 1) if found == letter)


def _words(position: Position) -> str:
    return f"row {position[0]}, column {position[1]}"
