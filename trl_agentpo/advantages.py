# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""
Credit: what every turn of every episode was worth, relative to its peers.

Invariant: everything here is a pure function on flat arrays that hold one entry per turn, the turns of an episode in
time order (episodes may be interleaved), and returns one float64 (or bucket number) per turn in that same order. No
function bootstraps, samples, looks at tokens, or lets one group influence another. Exact grouping and all advantages
are linear in the number of turns, in time and in memory.

Words used throughout: a *group* is the episodes of one task; the *return* of an episode is the undiscounted sum of its
rewards; the *step return* of a turn is the discounted sum of rewards from that turn on; an *anchor* is the environment
state a turn started in; a *bucket* is the turns of one group with equal anchor.

Equation numbers are those of GiGPO, https://huggingface.co/papers/2505.10978. "The reference" is its published
program, verl-agent.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


SCALE_REWARDS = ("group", "none")
EPISODE_BASELINES = ("episode", "turn")
SINGLE_SCORES = ("zero", "keep")
INVALID_PENALTY_MODES = ("reward", "row")

# Keeps the quotient bounded when a group barely differs; the value of the paper's program, so that results compare.
DEVIATION_OFFSET = 1e-6

# Equal returns that were summed in different orders differ in their last bits. Divided by a deviation made of those
# same bits they would look like credit (of order one for large returns), so a spread this small counts as none.
ZERO_VARIANCE_TOLERANCE = 1e-8

Identifiers = Sequence[Hashable] | NDArray[Any]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def gigpo_advantages(
    rewards: ArrayLike,
    episode_ids: Identifiers,
    group_ids: Identifiers,
    anchors: Identifiers,
    *,
    gamma: float = 0.95,
    step_advantage_weight: float = 1.0,
    scale_rewards: str = "group",
    episode_baseline: str = "episode",
    single_score: str = "zero",
    invalid: ArrayLike | None = None,
    invalid_action_penalty: float = 0.1,
    invalid_penalty_mode: str = "reward",
    anchor_similarity: float = 1.0,
) -> Floats:
    r"""
    Joint advantage of GiGPO, Eq. 8: \\( A_{it} = A^E_i + \omega A^S_{it} \\).

    With `step_advantage_weight=0` the result is the episode part alone. A caller that also needs the buckets, to log
    them, may compute them once with [`anchor_buckets`] and pass the bucket numbers as `anchors` with the default
    `anchor_similarity`: the result is the same.

    Args:
        rewards (`ArrayLike` of shape `(num_turns,)`):
            Reward of every turn, in the environment's units, before any penalty.
        episode_ids (`Sequence[Hashable]` of length `num_turns`):
            Which episode a turn belongs to; unique across groups.
        group_ids (`Sequence[Hashable]` of length `num_turns`):
            Which task a turn belongs to.
        anchors (`Sequence[Hashable]` of length `num_turns`):
            The environment state a turn started in.
        gamma (`float`, *optional*, defaults to `0.95`):
            Discount per turn, in `[0, 1]`, of the step returns. Episode returns are never discounted.
        step_advantage_weight (`float`, *optional*, defaults to `1.0`):
            The weight \\( \omega \ge 0 \\) of the step part.
        scale_rewards (`str`, *optional*, defaults to `"group"`):
            `"group"` divides both parts by the standard deviation of the group or bucket, `"none"` by 1.
        episode_baseline (`str`, *optional*, defaults to `"episode"`):
            What the episode part is relative to, see [`episode_advantages`].
        single_score (`str`, *optional*, defaults to `"zero"`):
            What a group with a single score gets, see [`episode_advantages`].
        invalid (`ArrayLike` of shape `(num_turns,)`, *optional*):
            Which turns held an invalid action. Without it no turn is penalised.
        invalid_action_penalty (`float`, *optional*, defaults to `0.1`):
            How much an invalid turn loses, in units of reward, at least 0.
        invalid_penalty_mode (`str`, *optional*, defaults to `"reward"`):
            `"reward"` takes the penalty off the turn's reward before anything else, so that the episode return and the
            step returns of this and all earlier turns of the episode contain it. `"row"` (the reference) takes it off
            after discounting, from the step return and from the episode score of that one turn only; the other turns
            of the episode keep theirs.
        anchor_similarity (`float`, *optional*, defaults to `1.0`):
            How alike two anchors must be to share a bucket, see [`anchor_buckets`].

    Returns:
        `np.ndarray` of `float64`, shape `(num_turns,)`: the advantage that every token of the turn's response gets.

    Raises:
        `ValueError`: arrays of unequal lengths, rewards that are not finite, an episode in two groups, or an argument
            outside its range.
        `TypeError`: an id or an anchor that cannot be hashed, or an anchor that is not text where text is compared.
        `ImportError`: `anchor_similarity` is below 1 and rapidfuzz is not installed.
    """
    rewards = _numbers(rewards, "rewards")
    _check_not_negative(step_advantage_weight, "step_advantage_weight")
    _check_choice(invalid_penalty_mode, "invalid_penalty_mode", INVALID_PENALTY_MODES)
    penalties = _penalties(invalid, invalid_action_penalty, len(rewards))
    row_penalties = np.zeros_like(penalties)
    if invalid_penalty_mode == "row":
        row_penalties = penalties
    else:
        rewards = rewards - penalties

    returns = step_returns(rewards, episode_ids, gamma=gamma) - row_penalties
    episode_part = episode_advantages(
        rewards,
        episode_ids,
        group_ids,
        scale_rewards=scale_rewards,
        episode_baseline=episode_baseline,
        single_score=single_score,
        row_penalties=row_penalties,
    )
    step_part = step_advantages(
        returns, group_ids, anchors, scale_rewards=scale_rewards, anchor_similarity=anchor_similarity
    )
    return episode_part + step_advantage_weight * step_part


def step_returns(rewards: ArrayLike, episode_ids: Identifiers, *, gamma: float = 0.95) -> Floats:
    r"""
    Discounted return from every turn on, Eq. 5: \\( G_{it} = \sum_{k \ge t} \gamma^{k-t} r_{ik} \\).

    Nothing is added for what lies beyond the last turn, whether the episode ended there or was cut.

    Args:
        rewards (`ArrayLike` of shape `(num_turns,)`):
            Reward of every turn.
        episode_ids (`Sequence[Hashable]` of length `num_turns`):
            Which episode a turn belongs to. Turns of one episode are in time order; episodes may be interleaved.
        gamma (`float`, *optional*, defaults to `0.95`):
            Discount per turn, in `[0, 1]`.

    Returns:
        `np.ndarray` of `float64`, shape `(num_turns,)`: the step return, in units of reward.

    Raises:
        `ValueError`: arrays of unequal lengths, rewards that are not finite, or `gamma` outside `[0, 1]`.
        `TypeError`: an episode id that cannot be hashed.
    """
    rewards = _numbers(rewards, "rewards")
    _check_discount(gamma)
    episodes = _numbered(_entries(episode_ids, "episode_ids", len(rewards)), "episode_ids").tolist()
    # Plain lists: one scalar at a time, they are several times faster than an array, and one backward pass needs
    # neither a sort nor a loop over the longest episode.
    returns = rewards.tolist()
    future = [0.0] * (max(episodes, default=-1) + 1)
    for turn in range(len(returns) - 1, -1, -1):
        returns[turn] += gamma * future[episodes[turn]]
        future[episodes[turn]] = returns[turn]
    return np.array(returns, dtype=np.float64)


def episode_advantages(
    rewards: ArrayLike,
    episode_ids: Identifiers,
    group_ids: Identifiers,
    *,
    scale_rewards: str = "group",
    episode_baseline: str = "episode",
    single_score: str = "zero",
    row_penalties: ArrayLike | None = None,
) -> Floats:
    r"""
    Episode-relative advantage, Eq. 3: \\( A^E_i = (R_i - \mathrm{mean}) / F \\), the same on every turn of an episode.

    \\( R_i \\) is the undiscounted return. \\( F \\) is the unbiased standard deviation plus 1e-6 (`"group"`) or 1
    (`"none"`). If the standard deviation is below `1e-8 * max(1, |mean|)`, all turns of the group get exactly 0, under
    either choice of \\( F \\).

    Args:
        rewards (`ArrayLike` of shape `(num_turns,)`):
            Reward of every turn.
        episode_ids (`Sequence[Hashable]` of length `num_turns`):
            Which episode a turn belongs to; unique across groups.
        group_ids (`Sequence[Hashable]` of length `num_turns`):
            Which task a turn belongs to.
        scale_rewards (`str`, *optional*, defaults to `"group"`):
            `"group"` divides by the standard deviation, `"none"` by 1.
        episode_baseline (`str`, *optional*, defaults to `"episode"`):
            Which scores mean and standard deviation are taken over. `"episode"` (the paper): one score per episode of
            the group. `"turn"` (the reference's default): one score per turn of the group, so that an episode weighs
            as much as it has turns.
        single_score (`str`, *optional*, defaults to `"zero"`):
            What happens in a group in which mean and standard deviation would be taken over a single score: one
            episode under `episode_baseline="episode"`, one episode of one turn under `"turn"`. `"zero"`: advantage 0,
            there is nothing to be relative to. `"keep"` (the reference): the mean counts as 0 and the standard
            deviation as 1, so that the score itself is the advantage (divided by `1 + 1e-6` under
            `scale_rewards="group"`).
        row_penalties (`ArrayLike` of shape `(num_turns,)`, *optional*):
            Taken off the episode score of single turns, leaving the other turns of the episode as they are. Under
            `episode_baseline="turn"` the mean and the standard deviation are over the scores after this penalty. Under
            `"episode"` they are over the returns without it, since an episode then has no single penalised score; a
            group of equal returns gets 0 there, penalised or not, because a penalty has no scale without a deviation.

    Returns:
        `np.ndarray` of `float64`, shape `(num_turns,)`: \\( A^E \\) of the turn's episode.

    Raises:
        `ValueError`: arrays of unequal lengths, rewards or penalties that are not finite, an episode in two groups, or
            an unknown choice.
        `TypeError`: an id that cannot be hashed.
    """
    rewards = _numbers(rewards, "rewards")
    _check_choice(episode_baseline, "episode_baseline", EPISODE_BASELINES)
    _check_choice(single_score, "single_score", SINGLE_SCORES)
    episode_entries = _entries(episode_ids, "episode_ids", len(rewards))
    episodes = _numbered(episode_entries, "episode_ids")
    groups = _numbered(_entries(group_ids, "group_ids", len(rewards)), "group_ids")
    group_of_episode = _group_of_episode(episodes, groups, episode_entries)

    # Not the integers that `np.bincount` gives when it has nothing to add up.
    returns = np.bincount(episodes, weights=rewards).astype(np.float64)
    scores = returns[episodes]
    if row_penalties is not None:
        scores = scores - _numbers(row_penalties, "row_penalties", len(rewards))
    if episode_baseline == "episode":
        means, deviations = _statistics(returns, group_of_episode, single_score)
    else:
        means, deviations = _statistics(scores, groups, single_score)
    return _relative(scores, groups, means, deviations, scale_rewards)


def step_advantages(
    returns: ArrayLike,
    group_ids: Identifiers,
    anchors: Identifiers,
    *,
    scale_rewards: str = "group",
    anchor_similarity: float = 1.0,
) -> Floats:
    r"""
    Step-relative advantage, Eq. 7: \\( A^S_{it} = (G_{it} - \mathrm{mean}) / F \\) within the turn's bucket.

    \\( F \\) is the unbiased standard deviation of the bucket plus 1e-6 (`"group"`) or 1 (`"none"`). A bucket of one
    turn, and one whose standard deviation is below `1e-8 * max(1, |mean|)`, gives exactly 0.

    Args:
        returns (`ArrayLike` of shape `(num_turns,)`):
            Step return of every turn, see [`step_returns`].
        group_ids (`Sequence[Hashable]` of length `num_turns`):
            Which task a turn belongs to.
        anchors (`Sequence[Hashable]` of length `num_turns`):
            The environment state a turn started in.
        scale_rewards (`str`, *optional*, defaults to `"group"`):
            `"group"` divides by the standard deviation, `"none"` by 1.
        anchor_similarity (`float`, *optional*, defaults to `1.0`):
            How alike two anchors must be to share a bucket, see [`anchor_buckets`].

    Returns:
        `np.ndarray` of `float64`, shape `(num_turns,)`: \\( A^S \\) of every turn.

    Raises:
        `ValueError`: arrays of unequal lengths, returns that are not finite, or an argument outside its range.
        `TypeError`: a group id or an anchor that cannot be hashed, or an anchor that is not text where text is
            compared.
        `ImportError`: `anchor_similarity` is below 1 and rapidfuzz is not installed.
    """
    returns = _numbers(returns, "returns")
    group_ids = _entries(group_ids, "group_ids", len(returns), counterpart="returns")
    buckets = anchor_buckets(group_ids, anchors, anchor_similarity=anchor_similarity)
    means, deviations = _statistics(returns, buckets, single_score="zero")
    return _relative(returns, buckets, means, deviations, scale_rewards)


def anchor_buckets(group_ids: Identifiers, anchors: Identifiers, *, anchor_similarity: float = 1.0) -> Integers:
    """
    Anchor state grouping, Eq. 6: which turns of a group started in the same environment state.

    A bucket takes turns of any episode of the group at any time; one episode may be in it more than once.

    Args:
        group_ids (`Sequence[Hashable]` of length `num_turns`):
            Which task a turn belongs to.
        anchors (`Sequence[Hashable]` of length `num_turns`):
            The environment state a turn started in.
        anchor_similarity (`float`, *optional*, defaults to `1.0`):
            At exactly 1, anchors share a bucket if they are equal, in linear time. Within `(0, 1)` anchors must be
            text: each turn, in the order given, joins the first bucket of its group whose *first* member is at least
            this similar, or else starts a new one. The outcome then depends on the order of the turns, and the time
            grows with the number of different texts of a group times its number of buckets.

            The similarity of two texts is twice the length of their longest common subsequence over the sum of their
            lengths (`rapidfuzz.fuzz.ratio` over 100, but for rounding). The reference uses
            `difflib.SequenceMatcher.ratio`, the same quotient over the matching blocks difflib finds greedily, which
            is never larger: at the same threshold, two texts that are alike there are alike here, not the reverse.

    Returns:
        `np.ndarray` of `int64`, shape `(num_turns,)`: bucket numbers, counted from 0 in order of first appearance over
        all groups.

    Raises:
        `ValueError`: arrays of unequal lengths, or `anchor_similarity` outside `(0, 1]`.
        `TypeError`: a group id or an anchor that cannot be hashed, or an anchor that is not text where text is
            compared.
        `ImportError`: `anchor_similarity` is below 1 and rapidfuzz is not installed.
    """
    _check_similarity(anchor_similarity)
    group_ids = _entries(group_ids, "group_ids")
    anchors = _entries(anchors, "anchors", len(group_ids), counterpart="group_ids")
    groups = _numbered(group_ids, "group_ids")
    if anchor_similarity < 1:
        return _similar_buckets(groups.tolist(), anchors, anchor_similarity)
    # One integer for the pair: making and hashing a million tuples would take longer than everything else.
    states = _numbered(anchors, "anchors")
    pairs = groups * (states.max(initial=0) + 1) + states
    return _numbered(pairs.tolist(), "anchors")


def bucket_sizes(buckets: ArrayLike) -> Integers:
    """
    How many turns share the bucket of each turn.

    Args:
        buckets (`ArrayLike` of shape `(num_turns,)`):
            Bucket numbers, see [`anchor_buckets`].

    Returns:
        `np.ndarray` of `int64`, shape `(num_turns,)`: the size of the turn's bucket, at least 1. A turn alone in its
        bucket gets no step-level credit; `(bucket_sizes(buckets) > 1).mean()` is the share of turns that may.
    """
    numbers = np.asarray(buckets, dtype=np.int64)
    return np.bincount(numbers)[numbers].astype(np.int64)


def _statistics(scores: Floats, groups: Integers, single_score: str) -> tuple[Floats, Floats]:
    """Mean and unbiased standard deviation of the scores of each group; a single score has deviation 0."""
    counts = np.bincount(groups)
    means = np.bincount(groups, weights=scores) / counts
    squares = np.bincount(groups, weights=(scores - means[groups]) ** 2)
    deviations = np.sqrt(squares / np.maximum(counts - 1, 1))
    if single_score == "keep":
        means[counts == 1], deviations[counts == 1] = 0.0, 1.0
    return means, deviations


def _relative(scores: Floats, groups: Integers, means: Floats, deviations: Floats, scale_rewards: str) -> Floats:
    """Distance of each score from the mean of its group, in units of `scale_rewards`."""
    _check_choice(scale_rewards, "scale_rewards", SCALE_REWARDS)
    divisors = deviations + DEVIATION_OFFSET if scale_rewards == "group" else np.ones_like(deviations)
    advantages = (scores - means[groups]) / divisors[groups]
    is_flat = deviations < ZERO_VARIANCE_TOLERANCE * np.maximum(1.0, np.abs(means))
    # Also without scaling: such a difference is rounding, and an exact 0 lets callers count turns without credit.
    advantages[is_flat[groups]] = 0.0
    return advantages


def _penalties(invalid: ArrayLike | None, invalid_action_penalty: float, num_turns: int) -> Floats:
    """What each turn loses."""
    _check_not_negative(invalid_action_penalty, "invalid_action_penalty")
    if invalid is None:
        return np.zeros(num_turns)
    flags = _numbers(invalid, "invalid", num_turns)
    strays = np.flatnonzero((flags != 0) & (flags != 1))
    if strays.size:
        raise ValueError(
            f"`invalid` must hold booleans, got {flags[strays[0]]} at turn {strays[0]}. Give True for the turns to "
            "penalise; how much they lose is `invalid_action_penalty`."
        )
    return invalid_action_penalty * flags


def _group_of_episode(episodes: Integers, groups: Integers, episode_ids: list[Hashable]) -> Integers:
    """The group number of each episode number."""
    group_of_episode = np.zeros(episodes.max(initial=-1) + 1, dtype=np.int64)
    group_of_episode[episodes] = groups
    strays = np.flatnonzero(group_of_episode[episodes] != groups)
    if strays.size:
        raise ValueError(
            f"`episode_ids` has the episode {episode_ids[strays[0]]!r} of turn {strays[0]} in more than one group of "
            "`group_ids`. Give every episode an id that is unique across groups, for example (group, number)."
        )
    return group_of_episode


def _similar_buckets(groups: list[int], anchors: list[Hashable], threshold: float) -> Integers:
    """Bucket numbers by greedy first match against the first member of each bucket of the group."""
    alike = _text_comparison(threshold)
    texts = _texts(anchors, threshold)
    first_members: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
    # Buckets are only ever added behind those a text was compared with, so a text seen before would match as it did.
    bucket_of_text: dict[tuple[int, str], int] = {}
    num_buckets = 0
    for group, text in zip(groups, texts, strict=True):
        if (group, text) in bucket_of_text:
            continue
        bucket = next((bucket for first, bucket in first_members[group] if alike(first, text)), num_buckets)
        if bucket == num_buckets:
            first_members[group].append((text, bucket))
            num_buckets += 1
        bucket_of_text[group, text] = bucket
    return np.array([bucket_of_text[key] for key in zip(groups, texts, strict=True)], dtype=np.int64)


def _text_comparison(threshold: float) -> Callable[[str, str], bool]:
    """Whether two different texts are at least this similar."""
    try:
        from rapidfuzz.distance import LCSseq
    except ImportError as error:
        raise ImportError(
            f"`anchor_similarity={threshold}` compares anchors as text with rapidfuzz, which is not installed. "
            "`pip install rapidfuzz`, or set `anchor_similarity=1.0` to group equal anchors."
        ) from error

    def alike(first: str, second: str) -> bool:
        # Not rapidfuzz's own ratio: it rounds 6/10 to just below 0.6, and a threshold of 0.6 would miss it.
        total = len(first) + len(second)
        return 2 * LCSseq.similarity(first, second, score_cutoff=int(threshold * total / 2)) / total >= threshold

    return alike


def _numbers(values: ArrayLike, name: str, num_turns: int | None = None) -> Floats:
    """The values as a flat float64 array of finite numbers."""
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`{name}` must be a flat array with one number per turn: {error}.") from error
    if numbers.ndim != 1:
        raise ValueError(f"`{name}` must be a flat array with one number per turn, got shape {numbers.shape}.")
    if num_turns is not None:
        _check_length(len(numbers), name, num_turns, "rewards")
    strays = np.flatnonzero(~np.isfinite(numbers))
    if strays.size:
        raise ValueError(
            f"`{name}` must be finite, got {numbers[strays[0]]} at turn {strays[0]}. Correct the environment or the "
            "reward function it comes from, or leave the episode out."
        )
    return numbers


def _entries(values: Identifiers, name: str, num_turns: int | None = None, counterpart: str = "rewards") -> list[Any]:
    """The values as a list of Python objects."""
    if getattr(values, "ndim", 1) != 1:
        raise ValueError(
            f"`{name}` must be flat, one entry per turn, got shape {getattr(values, 'shape', None)}. Give a list of "
            "hashable values, such as tuples."
        )
    # `list(values)` alone would not do: the entries of a tensor are hashed by identity, so none would equal another.
    entries = values.tolist() if hasattr(values, "tolist") else list(values)
    if num_turns is not None:
        _check_length(len(entries), name, num_turns, counterpart)
    return entries


def _numbered(entries: list[Any], name: str) -> Integers:
    """Equal entries as equal numbers, counted from 0 in order of first appearance."""
    # A dictionary, not `np.unique`: linear, any hashable value, and no array made of tuples that would become 2-D.
    numbers: defaultdict[Hashable, int] = defaultdict(itertools.count().__next__)
    try:
        return np.fromiter(map(numbers.__getitem__, entries), dtype=np.int64, count=len(entries))
    except TypeError as error:
        _check_hashable(entries, name, error)
        raise


def _check_hashable(entries: list[Hashable], name: str, cause: TypeError) -> None:
    for turn, entry in enumerate(entries):
        try:
            hash(entry)
        except TypeError:
            raise TypeError(
                f"`{name}` must hold hashable values, got {entry!r} of type {type(entry).__name__} at turn {turn}. "
                "Convert it, for example a list or an array to a tuple."
            ) from cause


def _texts(anchors: list[Hashable], threshold: float) -> list[str]:
    texts = [anchor for anchor in anchors if isinstance(anchor, str)]
    if len(texts) < len(anchors):
        turn, anchor = next((turn, anchor) for turn, anchor in enumerate(anchors) if not isinstance(anchor, str))
        raise TypeError(
            f"`anchor_similarity={threshold}` compares anchors as text, but `anchors` has {anchor!r} of type "
            f"{type(anchor).__name__} at turn {turn}. Give text, or set `anchor_similarity=1.0` to group equal ones."
        )
    return texts


def _check_length(length: int, name: str, expected: int, counterpart: str) -> None:
    if length != expected:
        raise ValueError(
            f"`{name}` has {length} entries, but `{counterpart}` has {expected}. Give every turn one entry in each."
        )


def _check_choice(value: str, name: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"`{name}` is {value!r}. Choose one of {', '.join(map(repr, choices))}.")


def _check_discount(gamma: float) -> None:
    if not 0 <= gamma <= 1:
        raise ValueError(f"`gamma` is {gamma}, but a discount lies in [0, 1]. The paper uses 0.95.")


def _check_similarity(anchor_similarity: float) -> None:
    if not 0 < anchor_similarity <= 1:
        raise ValueError(
            f"`anchor_similarity` is {anchor_similarity}, but it lies in (0, 1]. Set 1.0 to group equal anchors, or "
            "less, such as 0.95, to group similar texts."
        )


def _check_not_negative(value: float, name: str) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"`{name}` is {value}, but it must be finite and at least 0. Set 0 to switch it off.")
