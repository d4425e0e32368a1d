# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Rewards for how a model reasons and replies, and the reading of what a reward function returned.

Invariant: a reward is finite and belongs to one turn of one episode. What the functions here pay depends on the record
of that turn alone, and a claim that cannot be checked against the facts of the state the model saw earns nothing.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

from .episode import Episode, Turn


Facts = Mapping[str, Any]
RewardFunction = Callable[..., list[list[float]]]

# A fact, what is said of it, and whether that is so. A dictionary, so that saying it again gains nothing.
Statements = dict[tuple[str, Any], bool]

# All repetitions below are bounded, or consist of words that differ from what follows: no text takes quadratic time.
# Texts have single blanks where they had any white space.

# `no hole at (1, 2)`, `isn't a hole at (1, 2)`: no statement. Of all that is not so, most is easily guessed.
NEGATION = r"(?:(?<!\w)(?:no|not|never|without|less)|n't) (?:(?:an?|any|the) )?"
# What may stand between a fact's name and where it is: `goal (3, 3)`, `goal is at`, `goal: `, `player's position is`.
LINK = (
    r"(?: ?(?:'s|[:=]|(?:is|are|am|at|on|in|the|now|currently|located|positions?|coordinates?|cells?|tiles?)(?!\w)))"
    r"{0,4} ?"
)
# Nine digits at most, since Python refuses to read numbers of many thousands.
NUMBER = r"-?[0-9]{1,9}"
# `(1, 2)`, `row 1, column 2`, `row 1 col 2`.
POSITION = rf"(?:\( ?{NUMBER} ?, ?{NUMBER} ?\)|row {NUMBER},? (?:and )?col(?:umn)? {NUMBER}(?![0-9]))"
# `(1, 2), (2, 1) and (3, 0)`: a statement each.
POSITIONS = rf"{POSITION}(?:[,;]? ?(?:and )?(?:at )?{POSITION})*"
# `down right`: a statement each. `no` is one only at the end of its clause.
SIDE = r"(?:down|right|up|left)(?!\w)"
SIDES = rf"(?:{SIDE}(?: {SIDE})*|no(?=[,;.]|$))"
# Between a name and what it is: `Dragon is the risky arm`, `risky: Dragon`.
COPULA = r" ?(?:is(?!\w)|[:=]) ?(?:(?:an?|the) )?"


def format_reward(episodes: list[Episode], **kwargs: Any) -> list[list[float]]:
    """
    Reward a reply of the asked-for form, whatever the actions in it.

    Args:
        episodes (`list[Episode]`):
            The episodes.
        **kwargs:
            What TRL hands to every reward function; not used.

    Returns:
        `list[list[float]]`: for each episode one number for each turn, 1.0 where `turn.well_formed`, else 0.0.
    """
    return _for_each_turn(episodes, lambda turn: float(turn.well_formed))


def validity_reward(episodes: list[Episode], **kwargs: Any) -> list[list[float]]:
    """
    Reward a reply of the asked-for form in which the environment understood every action.

    Args:
        episodes (`list[Episode]`):
            The episodes.
        **kwargs:
            What TRL hands to every reward function; not used.

    Returns:
        `list[list[float]]`: for each episode one number for each turn, 1.0 where `turn.valid`, else 0.0.
    """
    return _for_each_turn(episodes, lambda turn: float(turn.valid))


def effectiveness_reward(episodes: list[Episode], **kwargs: Any) -> list[list[float]]:
    """
    Reward a turn that changed the state.

    Args:
        episodes (`list[Episode]`):
            The episodes.
        **kwargs:
            What TRL hands to every reward function; not used.

    Returns:
        `list[list[float]]`: for each episode one number for each turn, 1.0 where `turn.effective`, else 0.0.
    """
    return _for_each_turn(episodes, lambda turn: float(turn.effective))


def thinking_length_reward(min_words: int, max_words: int) -> RewardFunction:
    """
    Build a reward for thinking that is neither too short nor too long.

    Args:
        min_words (`int`):
            The least number of words, at least 0. A reply without thinking has 0.
        max_words (`int`):
            The greatest number of words.

    Returns:
        `Callable`: a reward function that can be pickled; 1.0 where the number of words lies within the bounds, else
        0.0.

    Raises:
        ValueError: a bound is no whole number, negative, or the bounds exclude every number.
    """
    return _ThinkingLengthReward(min_words, max_words)


def grounding_reward(episodes: list[Episode], **kwargs: Any) -> list[list[float]]:
    """
    Reward thinking that says of the state what is true of it; see [`grounded_share`].

    Args:
        episodes (`list[Episode]`):
            The episodes.
        **kwargs:
            What TRL hands to every reward function; not used.

    Returns:
        `list[list[float]]`: for each episode one number for each turn, the share of the statements in `turn.thinking`
        that agree with `turn.facts`; 0.0 without a statement that can be checked, and so without facts.
    """
    return _for_each_turn(episodes, lambda turn: grounded_share(turn.thinking or "", turn.facts) or 0.0)


def grounded_share(thinking: str, facts: Facts) -> float | None:
    """
    Compare what a text says of a state with what is true of it.

    Names are known by the facts, in any case, singular or plural (`"holes"`: hole, holes; `"boxes"`: box, boxes). The
    `player` may also be "I" or "you". Statements are:

    - `player (1, 2)`, `the goal is at (3, 3)`, `I am at row 1, column 2`: where something is. A list such as
      `holes (1, 2), (2, 1) and (3, 0)` makes one statement for each position.
    - `goal down right`, `holes left`, `holes no`: the words of [`testing.describe`], one statement for each word. A
      single position is told by its direction from the player, several by the sides of the player on which there is
      one.
    - `Dragon is risky`, `the risky arm is Dragon`, `risky: Dragon`: which of the names in the facts a text fact holds.

    Everything else is no statement: a negation, and a name that the facts do not know. A statement made twice counts
    once. All are taken to be of the present state, also the sentences that look ahead.

    Args:
        thinking (`str`):
            The text.
        facts (`Mapping[str, Any]`):
            By name a position `(row, column)` of two whole numbers, a list or tuple of positions, a text, or a list or
            tuple of texts (the names that can be spoken of). Facts of other kinds are not checked.

    Returns:
        `float` or `None`: the share of the statements that are true; `None` if there is none.
    """
    text = " ".join(thinking.split())
    statements = {
        **_statements_of_position(text, facts),
        **_statements_of_side(text, facts),
        **_statements_of_text(text, facts),
    }
    return sum(statements.values()) / len(statements) if statements else None


def turn_rewards(
    returned: Sequence[Any], episodes: Sequence[Episode], name: str
) -> tuple[list[float | None], list[list[float]]]:
    """
    Read what a reward function returned.

    Args:
        returned (`Sequence[Any]` of length `num_episodes`):
            For each episode a number, a sequence of one number for each turn, or `None` where the function does not
            apply. Numbers are Python's, numpy's and tensors without dimension; truth values are none. TRL turns `None`
            into NaN, but a NaN that was returned is an error here: it mostly comes from a division by zero.
        episodes (`Sequence[Episode]`):
            The episodes.
        name (`str`):
            The name of the reward function, for messages.

    Returns:
        `tuple[list[float | None], list[list[float]]]`: for each episode its total, `None` where the function does not
        apply; and for each episode one number for each turn. A number for an episode is on its last turn.

    Raises:
        ValueError: the number of entries is not that of the episodes, or an entry is none of the above.
    """
    entries = _as_list(returned)
    if entries is None or len(entries) != len(episodes):
        raise ValueError(
            f"Reward function `{name}` returned {_shown(returned)} for {len(episodes)} episodes. Return a list with "
            "one entry for each episode: a number, a list of one number for each turn, or None."
        )
    read = [_read_entry(entry, i, len(episodes[i].turns), name) for i, entry in enumerate(entries)]
    return [total for total, _ in read], [by_turn for _, by_turn in read]


def _for_each_turn(episodes: list[Episode], reward: Callable[[Turn], float]) -> list[list[float]]:
    return [[reward(turn) for turn in episode.turns] for episode in episodes]


# A class rather than a closure, which could not be pickled.
@dataclass(frozen=True)
class _ThinkingLengthReward:
    # Under this name TRL logs it.
    __name__: ClassVar[str] = "thinking_length_reward"

    min_words: int
    max_words: int

    def __post_init__(self) -> None:
        for field, value in (("min_words", self.min_words), ("max_words", self.max_words)):
            if not _is_whole(value) or value < 0:
                raise ValueError(
                    f"`{field}` must be a whole number of at least 0, got {value!r}. For example, pass 10."
                )
        if self.min_words > self.max_words:
            raise ValueError(
                f"`max_words` must be at least `min_words` ({self.min_words!r}), got {self.max_words!r}: no thinking "
                "would be rewarded. Raise `max_words` or lower `min_words`."
            )

    def __call__(self, episodes: list[Episode], **kwargs: Any) -> list[list[float]]:
        return _for_each_turn(episodes, self._reward)

    def _reward(self, turn: Turn) -> float:
        return float(self.min_words <= len((turn.thinking or "").split()) <= self.max_words)


def _statements_of_position(text: str, facts: Facts) -> Statements:
    statements: Statements = {}
    for name, value in facts.items():
        positions = _positions(value)
        if positions is None:
            continue
        for claim in _claims(text, rf"{_spellings(name)}{LINK}(?P<claim>{POSITIONS})"):
            numbers = [int(number) for number in re.findall(NUMBER, claim)]
            claimed = zip(numbers[::2], numbers[1::2], strict=True)
            statements |= {(name, position): position in positions for position in claimed}
    return statements


def _statements_of_side(text: str, facts: Facts) -> Statements:
    player = facts.get("player", ())
    statements: Statements = {}
    for name, value in facts.items():
        if name == "player" or not _is_position(player) or _positions(value) is None:
            continue
        sides = _sides(value, player)
        for claim in _claims(text, rf"{_spellings(name)}{LINK}(?P<claim>{SIDES})"):
            statements |= {(name, side): side in sides for side in claim.lower().split()}
    return statements


def _statements_of_text(text: str, facts: Facts) -> Statements:
    known = _known_names(facts)
    statements: Statements = {}
    for name, value in facts.items():
        if not isinstance(value, str) or not known:
            continue
        named, said = _spellings(name), rf"(?P<claim>{known})(?!\w)"
        # One word more may name the kind: `the risky arm is Dragon`.
        for pattern in (rf"{said}{COPULA}{named}", rf"{named}(?: \w{{1,30}})?{COPULA}{said}"):
            claims = {claim.casefold() for claim in _claims(text, pattern)}
            statements |= {(name, claim): claim == value.casefold() for claim in claims}
    return statements


def _claims(text: str, pattern: str) -> Iterator[str]:
    """What a text says where it matches, negations left out."""
    for match in re.finditer(rf"(?P<negation>{NEGATION})?(?<!\w)(?:{pattern})", text, re.IGNORECASE):
        if match["negation"] is None:
            yield match["claim"]


def _spellings(name: str) -> str:
    """A pattern for the name of a fact, singular or plural, as a whole word."""
    singular = re.sub(r"(?:(x|ch|sh|ss)es|s)$", r"\1", name)
    pattern = re.escape(singular).replace("_", "[_ ]") + "(?:e?s)?"
    return f"(?:{pattern}|I|you)(?!\\w)" if name == "player" else f"{pattern}(?!\\w)"


def _known_names(facts: Facts) -> str:
    """A pattern for the texts among the facts, the longer ones first: one may begin with another."""
    lists = [value if isinstance(value, (list, tuple)) else [value] for value in facts.values()]
    names = {name for values in lists for name in values if isinstance(name, str) and name}
    return "|".join(re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name)))


def _sides(value: Any, player: Sequence[int]) -> set[str]:
    """The words with which [`testing.describe`] tells where a fact is."""
    offsets = [(row - player[0], column - player[1]) for row, column in _positions(value) or ()]
    if not _is_position(value):
        offsets = [(down, right) for down, right in offsets if abs(down) + abs(right) == 1]
    holds = {
        "down": any(down > 0 for down, _ in offsets),
        "up": any(down < 0 for down, _ in offsets),
        "right": any(right > 0 for _, right in offsets),
        "left": any(right < 0 for _, right in offsets),
    }
    return {side for side, so in holds.items() if so} or {"no"}


def _positions(value: Any) -> list[tuple[int, int]] | None:
    """The positions a fact holds, or `None` if it is of another kind."""
    several = [value] if _is_position(value) else value
    if not isinstance(several, (list, tuple)) or not all(_is_position(position) for position in several):
        return None
    return [(row, column) for row, column in several]


def _is_position(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(_is_whole(number) for number in value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _read_entry(entry: Any, number: int, num_turns: int, name: str) -> tuple[float | None, list[float]]:
    """An episode's total and its turns' rewards."""
    if entry is None:
        return None, [0.0] * num_turns
    single, several = _as_number(entry), _as_list(entry)
    if single is not None:
        return single, [*[0.0] * (num_turns - 1), single][:num_turns]
    by_turn = [value for value in map(_as_number, several or ()) if value is not None]
    if several is None or not len(by_turn) == len(several) == num_turns:
        raise ValueError(
            f"Reward function `{name}` returned {_shown(entry)} for `episodes[{number}]`, which has {num_turns} "
            f"turns. Return a finite number, a list of {num_turns} finite numbers (one for each turn), or None where "
            "the function does not apply; neither NaN nor a truth value is a number here."
        )
    return float(sum(by_turn)), by_turn


def _as_number(value: Any) -> float | None:
    """The value as a float, or `None` if it is not one finite number."""
    if isinstance(value, (bool, str, bytes)) or _as_list(value) is not None:
        return None
    try:
        # numpy and torch have no unary plus for truth values, which `float` would take for 0 and 1.
        operator.pos(value)
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


def _as_list(value: Any) -> list[Any] | None:
    """The members of a sequence, array or tensor, or `None` if the value has none or they have no order."""
    if isinstance(value, (str, bytes, Mapping, Set)):
        return None
    try:
        return list(value)
    except TypeError:
        # Arrays and tensors without dimension look as if they had members.
        return None


def _shown(value: Any) -> str:
    members = _as_list(value)
    return f"{value!r:.80}" if members is None else f"{value!r:.80} ({len(members)} entries)"
