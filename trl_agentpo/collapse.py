# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
The echo trap in numbers: what of a batch is watched, and when a policy counts as collapsing.

Invariant: numbers in, numbers out. Nothing here knows of a model or a trainer, and the same logs give the same
symptoms, so that every process comes to the same decision and a resumed run to that of the run it goes on with.
"""

import bisect
import itertools
import math
import statistics
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from .episode import Episode, Turn
from .filtering import group_deviations


def group_outcomes(scores: ArrayLike, group_ids: ArrayLike, successes: ArrayLike) -> dict[str, float]:
    """
    How far the episodes of a group differ in one generation batch, and what those groups are that teach nothing.

    Args:
        scores (`ArrayLike` of shape `(num_episodes,)`):
            The raw return of each episode; crashed episodes are left out.
        group_ids (`ArrayLike` of shape `(num_episodes,)`):
            The group of each episode.
        successes (`ArrayLike` of shape `(num_episodes,)`):
            Whether each episode solved its task.

    Returns:
        `dict[str, float]`: `"groups/reward_std"`, the mean over groups of the unbiased deviation within the group;
        `"groups/all_solved"` and `"groups/all_failed"`, the share of groups without deviation in which all episodes,
        or not all, were successful. Empty without episodes.

    Raises:
        ValueError: the arguments differ in length, or a score is not finite.
    """
    solved, group_ids = np.asarray(successes, dtype=bool), np.asarray(group_ids, dtype=np.int64)
    if solved.shape != group_ids.shape:
        raise ValueError(
            f"`successes` has the shape {solved.shape} and `group_ids` {group_ids.shape}; give one of each per "
            "episode."
        )
    groups, deviations = group_deviations(scores, group_ids)
    if not len(groups):
        return {}
    unsolved = np.isin(groups, group_ids[~solved])
    return {
        "groups/reward_std": float(deviations.mean()),
        "groups/all_solved": float(((deviations == 0) & ~unsolved).mean()),
        "groups/all_failed": float(((deviations == 0) & unsolved).mean()),
    }


def response_variety(responses: Sequence[str], thinkings: Sequence[str | None]) -> dict[str, float]:
    """
    How many of the replies of a batch are different, and how much of the thinking is word for word the same.

    Args:
        responses (`Sequence[str]` of length `num_turns`):
            The text of each reply.
        thinkings (`Sequence[str | None]` of length `num_turns`):
            The reasoning in each.

    Returns:
        `dict[str, float]`: `"turn/distinct_responses"`, the number of different replies over the number of replies,
        and `"turn/repeated_thinking"`, the share of turns whose thinking, stripped, an earlier turn of the batch had
        as well. That share is of the turns with thinking, so that replies without a form, which `turn/valid` reports,
        do not hide it; it is left out where no turn has any. Empty without turns.
    """
    if not responses:
        return {}
    variety = {"turn/distinct_responses": len(set(responses)) / len(responses)}
    thoughts = [stripped for thinking in thinkings if (stripped := (thinking or "").strip())]
    if thoughts:
        variety["turn/repeated_thinking"] = 1 - len(set(thoughts)) / len(thoughts)
    return variety


# Mutual information between prompt and thinking


@dataclass(frozen=True)
class MutualInformation:
    """
    How much the thinking says about the prompt it answers (RAGEN-2), in nats per token.

    Args:
        mutual_information (`float`):
            About 0 where the thinking would do for any other prompt as well, at most `log N`.
        conditional_entropy (`float`):
            How uncertain the thinking is given its prompt.
        retrieval_accuracy (`float`):
            The share of thinkings whose own prompt makes them more likely than every other; `1 / N` by chance.
    """

    mutual_information: float
    conditional_entropy: float
    retrieval_accuracy: float


def mutual_information(log_likelihoods: ArrayLike) -> MutualInformation:
    """
    Estimate the mutual information of prompts X and thinkings Z from all pairs of them.

    Args:
        log_likelihoods (`ArrayLike` of shape `(N, N)`):
            At `[i, j]` the mean log-probability of a token of thinking `i` after prompt `j`.

    Returns:
        [`MutualInformation`]: mean over i of `ℓ_ii − (logsumexp_j ℓ_ij − log N)`, `−ℓ_ii` and `argmax_j ℓ_ij = i`.

    Raises:
        ValueError: the array is not square, or empty.
    """
    scores = np.asarray(log_likelihoods, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or not scores.size:
        raise ValueError(
            f"`log_likelihoods` must be square, got the shape {scores.shape}. Score each thinking after every prompt."
        )
    own = scores.diagonal()
    marginal = np.logaddexp.reduce(scores, axis=1) - math.log(len(scores))
    return MutualInformation(
        mutual_information=float((own - marginal).mean()),
        conditional_entropy=float(-own.mean()),
        retrieval_accuracy=float((scores.argmax(axis=1) == np.arange(len(scores))).mean()),
    )


def thinking_pairs(
    episodes: Sequence[Episode], decode: Callable[[list[int]], str], limit: int
) -> list[tuple[list[int], list[int]]]:
    """
    Choose the prompts and thinkings of a rollout whose mutual information is measured.

    Args:
        episodes (`Sequence[Episode]`):
            The episodes of a rollout.
        decode (callable):
            From token ids to text.
        limit (`int`):
            How many pairs at most.

    Returns:
        `list[tuple[list[int], list[int]]]`: pairs of a prompt's ids and the ids sampled after it up to `</think>` (all
        of them where it is missing). No prompt is there twice, and no task twice before each was there once.
    """
    tasks: dict[str, dict[tuple[int, ...], Turn]] = {}
    for episode in episodes:
        by_prompt = tasks.setdefault(repr((episode.seed, sorted(episode.options.items()))), {})
        for turn in () if episode.failed else episode.turns:
            if (turn.thinking or "").strip():
                by_prompt.setdefault(tuple(turn.prompt_ids), turn)
    chosen: dict[tuple[int, ...], Turn] = {}
    for found in itertools.zip_longest(*(by_prompt.values() for by_prompt in tasks.values())):
        for turn in filter(None, found):
            # Tasks may share a prompt.
            chosen.setdefault(tuple(turn.prompt_ids), turn)
    return [(turn.prompt_ids, _thinking_ids(turn, decode)) for turn in list(chosen.values())[:limit]]


def _thinking_ids(turn: Turn, decode: Callable[[list[int]], str]) -> list[int]:
    """The shortest beginning of a completion in whose text the thinking ends."""
    ids = turn.completion_ids
    return ids[: bisect.bisect_left(range(len(ids)), True, key=lambda n: "</think>" in decode(ids[:n]))]


# Rules


@dataclass(frozen=True)
class CollapseRules:
    """
    From where on logs count as signs of a collapse. "In a row" counts the logs that have the metric.

    Args:
        window (`int`, *optional*, defaults to `10`):
            How many first logs say what a metric was at the start, and how many gradient norms a median needs.
        patience (`int`, *optional*, defaults to `10`):
            How many logs in a row the reward spread and the thinking have to show the sign.
        reward_fraction (`float`, *optional*, defaults to `0.1`):
            A sign is a reward spread below this fraction of its start.
        entropy_fraction (`float`, *optional*, defaults to `0.1`):
            A symptom is an entropy below this fraction of its start.
        spike_factor (`float`, *optional*, defaults to `10.0`):
            A symptom is a gradient norm above this multiple of the median of the last 50.
        repeated_share (`float`, *optional*, defaults to `0.95`):
            A sign is that at least this share of the thinking is repeated, if at the start more than twice as much of
            it was new as this allows (with 0.95: less than 0.9 repeated).
        solved_share (`float`, *optional*, defaults to `0.8`):
            Where at least this share of groups is solved by all episodes, low spread, low entropy and fixed words are
            what mastery looks like, and no signs.

    Raises:
        ValueError: a value is out of its range.
    """

    window: int = 10
    patience: int = 10
    reward_fraction: float = 0.1
    entropy_fraction: float = 0.1
    spike_factor: float = 10.0
    repeated_share: float = 0.95
    solved_share: float = 0.8

    def __post_init__(self) -> None:
        for name in ("window", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}. The default is 10.")
        for name in ("reward_fraction", "entropy_fraction", "solved_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"`{name}` must be in (0, 1], got {getattr(self, name)}. Give it as a share of 1.")
        if not 0.5 < self.repeated_share <= 1:
            raise ValueError(f"`repeated_share` must be in (0.5, 1], got {self.repeated_share}. The default is 0.95.")
        if self.spike_factor <= 1:
            raise ValueError(f"`spike_factor` must be above 1, got {self.spike_factor}. The default is 10.")


@dataclass(frozen=True)
class Symptom:
    """
    A sign of collapse that has lasted long enough.

    Args:
        name (`str`):
            What it is.
        evidence (`str`):
            The numbers, as a sentence.
        remedy (`str`):
            The options to change, as a sentence.
        clean_step (`int`):
            The optimizer step of the last log before the sign began; 0 if there was none.
    """

    name: str
    evidence: str
    remedy: str
    clean_step: int


_SPREAD_REMEDY = (
    'Train with `StarPOSConfig(group_filter="top_p")`: groups without spread are left out, and `beta=0` and '
    "`epsilon_high=0.28` let the policy explore."
)
_ENTROPY_REMEDY = "Train with `StarPOSConfig` (`beta=0`, `epsilon_high=0.28`), or raise `entropy_coef`."
_SPIKE_REMEDY = "Lower `learning_rate` or `max_grad_norm`, and go on from a checkpoint before the spike."
_TEMPLATE_REMEDY = (
    'Train with `StarPOSConfig(group_filter="top_p")`, since groups of little spread feed templates, or raise '
    "`entropy_coef`."
)


@dataclass
class _Watch(ABC):
    """One metric, and for how many logs in a row it has shown the sign."""

    metric: str
    name: str
    remedy: str
    patience: int
    excusable: bool = field(default=True, kw_only=True)
    streak: int = field(default=0, init=False)
    clean_step: int = field(default=0, init=False)

    @abstractmethod
    def shows_sign(self, value: float) -> bool:
        """Take in a value and say whether it is a sign."""

    @abstractmethod
    def evidence(self, value: float) -> str:
        """Say what the last values were compared with."""

    def observe(self, value: float, excused: bool, clean_step: int) -> Symptom | None:
        if not self.shows_sign(value) or (excused and self.excusable):
            self.streak = 0
            return None
        if not self.streak:
            self.clean_step = clean_step
        self.streak += 1
        if self.streak < self.patience:
            return None
        return Symptom(self.name, self.evidence(value), self.remedy, self.clean_step)


@dataclass
class _FromStart(_Watch):
    """A metric that is compared with its first values."""

    window: int
    share: float
    first: list[float] = field(default_factory=list, init=False)

    @property
    def start(self) -> float:
        return statistics.fmean(self.first)

    def shows_sign(self, value: float) -> bool:
        if len(self.first) < self.window:
            self.first.append(value)
            return False
        return self.compare(value)

    @abstractmethod
    def compare(self, value: float) -> bool:
        """Say whether a value after the first ones is a sign."""


@dataclass
class _Fall(_FromStart):
    def compare(self, value: float) -> bool:
        return value < self.share * self.start

    def evidence(self, value: float) -> str:
        return (
            f"`{self.metric}` was below {self.share * self.start:.3g}, {self.share:.0%} of its mean over the first "
            f"{self.window} logs, in the last {self.streak} and is {value:.3g} now."
        )


@dataclass
class _Repetition(_FromStart):
    def compare(self, value: float) -> bool:
        # A policy that repeats itself from the first update on has a small repertoire, but has not lost one.
        return value >= self.share and self.start < 1 - 2 * (1 - self.share)

    def evidence(self, value: float) -> str:
        return (
            f"`{self.metric}` was at least {self.share:.3g} in the last {self.streak} logs and is {value:.3g} now; its "
            f"mean over the first {self.window} was {self.start:.3g}."
        )


@dataclass
class _Spike(_Watch):
    window: int
    factor: float
    last: deque[float] = field(default_factory=lambda: deque(maxlen=50), init=False)
    # What the last value was compared with.
    before: list[float] = field(default_factory=list, init=False)

    def shows_sign(self, value: float) -> bool:
        # A skipped update has no gradient; it says nothing of how large gradients are.
        if value == 0:
            return False
        self.before = list(self.last)
        self.last.append(value)
        return len(self.before) >= self.window and value > self.factor * statistics.median(self.before)

    def evidence(self, value: float) -> str:
        return (
            f"`{self.metric}` is {value:.3g}, above {self.factor:g} times {statistics.median(self.before):.3g}, its "
            f"median over the {len(self.before)} logs before."
        )


class CollapseDetector:
    """
    The rules applied to the logs of a run, one after the other. Its memory does not grow with the run.

    Args:
        rules ([`CollapseRules`]):
            From where on logs count as signs.
    """

    def __init__(self, rules: CollapseRules):
        self.rules = rules
        self._step = 0
        window, patience = rules.window, rules.patience
        self._watches: list[_Watch] = [
            _Fall(
                "groups/reward_std", "vanishing reward spread", _SPREAD_REMEDY, patience, window, rules.reward_fraction
            ),
            _Fall("entropy", "entropy collapse", _ENTROPY_REMEDY, 1, window, rules.entropy_fraction),
            _Spike("grad_norm", "gradient spike", _SPIKE_REMEDY, 1, window, rules.spike_factor, excusable=False),
            _Repetition(
                "turn/repeated_thinking", "template thinking", _TEMPLATE_REMEDY, patience, window, rules.repeated_share
            ),
        ]

    @property
    def suspects(self) -> bool:
        """Whether a sign lasts that may become a symptom not yet reported."""
        return any(watch.streak for watch in self._watches)

    def observe(self, step: int, metrics: Mapping[str, float | None]) -> list[Symptom]:
        """
        Take in one training log.

        Args:
            step (`int`):
                The optimizer step of the log.
            metrics (`Mapping[str, float | None]`):
                The log. A metric that is missing, `None` or NaN is passed over: it neither continues nor ends a row.

        Returns:
            `list[Symptom]`: what this log makes a symptom; each is reported once in a run.
        """
        excused = (metrics.get("groups/all_solved") or 0.0) >= self.rules.solved_share
        symptoms = []
        for watch in list(self._watches):
            value = metrics.get(watch.metric)
            if value is None or math.isnan(value):
                continue
            if symptom := watch.observe(value, excused, self._step):
                symptoms.append(symptom)
                self._watches.remove(watch)
        self._step = step
        return symptoms
