# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
A two-armed bandit in text, played for one turn.

Invariant: the order in which the arms are shown and what the risky arm pays are drawn at reset, from the stream that
the seed determines, so members of a group that pull the same arm are paid the same. Nothing that is shown tells which
arm is risky.
"""

from typing import Any

import gymnasium

from trl_agentpo.environment import TextEnvironment, TextSpace


# (safe arm, risky arm). A name tells nothing, or the wrong thing: a trader sounds riskier than a librarian.
PAIRS = {"train": ("Phoenix", "Dragon"), "test": ("Trader", "Librarian")}

HIGH_REWARD = 1.0


class Bandit(TextEnvironment):
    """
    Pull one of two named arms: one pays a small amount for certain, the other a large one with a small chance.

    The risky arm is the better one on average (by default 0.25 against 0.1), so `info["success"]` means that it was
    pulled, whatever it paid. A valid action ends the episode; anything else pays 0 and leaves the choice open.

    `info["anchor"]` is the pair of names in the order shown, followed by the pulled one once there is one.
    `info["admissible_actions"]` lists the names in the order shown. `info["facts"]` holds `arms`, `safe` and `risky`.

    Args:
        pair (`str`, *optional*, defaults to `"train"`):
            Which names the arms have: `"train"` (Phoenix safe, Dragon risky) or `"test"` (Trader safe, Librarian
            risky).
        names (`tuple[str, str]`, *optional*):
            Names of your own for the safe and the risky arm; they replace `pair`.
        reverse (`bool`, *optional*, defaults to `False`):
            Swap which name belongs to which arm.
        low_reward (`float`, *optional*, defaults to `0.1`):
            What the safe arm pays.
        high_probability (`float`, *optional*, defaults to `0.25`):
            Chance of the risky arm to pay 1. Must exceed `low_reward`, else it is not the better arm.
        render_mode (`str`, *optional*):
            `"ansi"`: `render` returns the observation. `None`: it returns nothing.

    Raises:
        ValueError: an argument is out of its range; the message names it and the remedy.
    """

    # An instance variable in gymnasium's annotations, so it cannot be a `ClassVar` here.
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012

    instructions = (
        "Before you are two arms, each with a name of its own; you pull one of them, once. One arm pays the same "
        "small amount at every pull. The other pays a large amount at some pulls and nothing at the rest. Nobody "
        "tells you which is which: consider what the names suggest, and pull the arm that you expect to pay more on "
        "average.\n"
        "Actions: the name of an arm."
    )

    def __init__(
        self,
        pair: str = "train",
        names: tuple[str, str] | None = None,
        reverse: bool = False,
        low_reward: float = 0.1,
        high_probability: float = 0.25,
        render_mode: str | None = None,
    ):
        _check_pay(low_reward, high_probability)
        if render_mode not in (None, "ansi"):
            raise ValueError(f"`render_mode` must be one of None, 'ansi', got {render_mode!r}.")
        safe, risky = _names(pair, names)
        self.safe, self.risky = (risky, safe) if reverse else (safe, risky)
        self.low_reward = low_reward
        self.high_probability = high_probability
        self.render_mode = render_mode
        # An order that knows nothing of the roles. By the alphabet alone the risky arm would come first in both pairs:
        # a cue that carries over from training to test.
        self.action_space = TextSpace(sorted((safe, risky), key=lambda name: (len(name), name)))
        self.observation_space = TextSpace()
        self._shown: tuple[str, ...] = ()
        self._pulled: str | None = None
        self._pay = {self.safe: low_reward}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """
        Show the arms of the episode that `seed` determines.

        Args:
            seed (`int`, *optional*):
                The task seed. `None` goes on in the stream of the last one.
            options (`dict`, *optional*):
                The bandit has none.

        Returns:
            `tuple[str, dict]`: observation and info.

        Raises:
            ValueError: `options` holds something.
        """
        super().reset(seed=seed)
        if options:
            raise ValueError(f"Unknown reset options of Bandit: {sorted(options)}. It has none.")
        # Shuffled from an order free of the roles: reversed bandits of one seed then look the same.
        arms = sorted((self.safe, self.risky))
        self._shown = tuple(arms[i] for i in self.np_random.permutation(2))
        self._pay[self.risky] = HIGH_REWARD if self.np_random.random() < self.high_probability else 0.0
        self._pulled = None
        return self._text(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """
        Pull an arm.

        Args:
            action (`str`):
                Its name, in any case. Anything else pays 0 and leaves the choice open.

        Returns:
            `tuple[str, float, bool, bool, dict]`: observation, reward, terminated, truncated, info.
        """
        if not self._shown or self._pulled is not None:
            raise gymnasium.error.ResetNeeded("The episode is over or was never started. Call `reset` first.")
        self._pulled = {name.lower(): name for name in self._shown}.get(action.strip().lower())
        understood = self._pulled is not None
        reward = 0.0 if self._pulled is None else self._pay[self._pulled]
        info = self._info(action_valid=understood, action_effective=understood)
        return self._text(), reward, understood, False, info

    def render(self) -> str | None:
        """The arms as text in render mode `"ansi"`, otherwise nothing."""
        return self._text() if self.render_mode == "ansi" else None

    def _info(self, **about_action: bool) -> dict[str, Any]:
        pulled = () if self._pulled is None else (self._pulled,)
        return {
            "anchor": self._shown + pulled,
            "success": self._pulled == self.risky,
            "admissible_actions": [] if pulled else list(self._shown),
            "facts": {"arms": self._shown, "safe": self.safe, "risky": self.risky},
            **about_action,
        }

    def _text(self) -> str:
        if self._pulled is None:
            return f"The arms are {self._shown[0]} and {self._shown[1]}. Pull one."
        return f"You pulled {self._pulled}. It paid {self._pay[self._pulled]:g}."


def _check_pay(low_reward: float, high_probability: float) -> None:
    if not 0 < high_probability <= 1:
        raise ValueError(
            f"`high_probability` must lie above 0 and be at most 1, got {high_probability!r}. RAGEN: 0.25."
        )
    if not 0 <= low_reward < high_probability * HIGH_REWARD:
        raise ValueError(
            f"`low_reward` must be at least 0 and below `high_probability` ({high_probability!r}), got "
            f"{low_reward!r}: success means the risky arm was pulled, so that arm must pay more on average. Lower "
            "`low_reward` or raise `high_probability`."
        )


def _names(pair: str, names: tuple[str, str] | None) -> tuple[str, str]:
    if pair not in PAIRS:
        raise ValueError(
            f"`pair` must be one of {', '.join(map(repr, PAIRS))}, got {pair!r}. For names of your own pass `names`."
        )
    if names is None:
        return PAIRS[pair]
    clean = [name.strip() for name in names] if not isinstance(names, str) else []
    if len(clean) != 2 or not all(clean) or clean[0].lower() == clean[1].lower():
        raise ValueError(
            f"`names` must hold two different names, got {names!r}. Pass the safe arm's name and the risky arm's, for "
            "example ('Phoenix', 'Dragon')."
        )
    return clean[0], clean[1]
