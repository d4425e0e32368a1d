# Copyright 2026 The trl-agentpo Team. Licensed under the Apache License, Version 2.0.
"""Seeds of tasks, and tasks read from rows of a dataset."""

from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from trl_agentpo.tasks import PANELS, draw_task_seeds, task_of


seeds = st.integers(0, 2**32)
every_panel = st.sampled_from(PANELS)


# Drawing


@given(st.integers(0, 40), seeds, every_panel)
def test_as_many_different_seeds_as_asked_for(number: int, seed: int, panel: str) -> None:
    drawn = draw_task_seeds(number, seed, panel)
    assert len(drawn) == len(set(drawn)) == number
    assert all(type(value) is int for value in drawn)


@given(seeds, seeds)
def test_no_run_evaluates_on_what_any_run_trains_on(seed: int, other: int) -> None:
    assert all(0 <= value < 2**30 for value in draw_task_seeds(30, seed, "train"))
    assert all(2**30 <= value < 2**31 for value in draw_task_seeds(30, other, "eval"))


@given(st.integers(0, 30), st.integers(0, 30), seeds, every_panel)
def test_a_longer_panel_begins_with_the_shorter(short: int, more: int, seed: int, panel: str) -> None:
    assert draw_task_seeds(short + more, seed, panel)[:short] == draw_task_seeds(short, seed, panel)


@given(seeds, seeds.map(lambda seed: seed + 2**33), every_panel)
def test_another_run_draws_other_tasks(seed: int, other: int, panel: str) -> None:
    assert draw_task_seeds(10, seed, panel) != draw_task_seeds(10, other, panel)


def test_the_panels_are_no_copies_of_each_other() -> None:
    train, evaluation = (draw_task_seeds(50, 3, panel) for panel in PANELS)
    assert not {value + 2**30 for value in train} & set(evaluation)


def test_seeds_are_spread_over_their_half() -> None:
    drawn = np.array(draw_task_seeds(4000, 0, "train")) / 2**30
    # Of 4000 uniform values each eighth holds 500, give or take 21 (one standard deviation).
    assert np.all(abs(np.histogram(drawn, bins=8, range=(0, 1))[0] - 500) < 105)


def test_a_seed_drawn_twice_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Repeating:
        """Draws 5, 5, 6, 5, 7, ..."""

        values = iter([5, 5, 6, 5, 7])

        def integers(self, high: int) -> int:
            return next(self.values)

    monkeypatch.setattr("trl_agentpo.tasks.np.random.default_rng", lambda seed: Repeating())
    assert draw_task_seeds(3, 0, "eval") == [2**30 + 5, 2**30 + 6, 2**30 + 7]


def test_a_panel_of_another_name_is_refused() -> None:
    with pytest.raises(ValueError):
        draw_task_seeds(1, 0, "test")


# Reading


@pytest.mark.parametrize(
    ("row", "task"),
    [
        ({"seed": 3}, (3, {})),
        ({"seed": np.int64(3), "options": None}, (3, {})),
        ({"seed": 0, "options": {"size": 4}}, (0, {"size": 4})),
        ({"seed": 3, "size": 4, "kind": "easy"}, (3, {"size": 4, "kind": "easy"})),
        ({"seed": 3, "size": 4, "options": {"kind": "easy"}}, (3, {"size": 4, "kind": "easy"})),
        # What is called an option is one, whatever the column of that name says.
        ({"seed": 3, "size": 4, "options": {"size": 5}}, (3, {"size": 5})),
        ({"seed": 3, "size": 0, "kind": "", "easy": False}, (3, {"size": 0, "kind": "", "easy": False})),
    ],
)
def test_a_task_is_a_seed_and_everything_else(row: dict[str, Any], task: tuple[int, dict[str, Any]]) -> None:
    found = task_of(row)
    assert found == task
    assert type(found[0]) is int


def test_an_option_that_only_other_rows_have_is_not_given() -> None:
    rows = Dataset.from_list([{"seed": 1, "options": {"size": 4}}, {"seed": 2, "options": {"kind": "easy"}}])
    # What a dataset makes of them:
    assert rows[1]["options"] == {"size": None, "kind": "easy"}
    assert [task_of(row) for row in rows] == [(1, {"size": 4}), (2, {"kind": "easy"})]
    columns = Dataset.from_list([{"seed": 1, "size": 4}, {"seed": 2}])
    assert [task_of(row) for row in columns] == [(1, {"size": 4}), (2, {})]


def test_reading_a_task_leaves_its_row_as_it_was() -> None:
    row = {"seed": 1, "size": 4, "options": {"kind": "easy"}}
    seed, options = task_of(row)
    options["more"] = 1
    assert row == {"seed": 1, "size": 4, "options": {"kind": "easy"}}


@pytest.mark.parametrize("row", [{"size": 4, "kind": "easy"}, {"seed": None, "size": 4, "kind": "easy"}])
def test_a_row_without_a_seed_is_an_error_with_its_columns(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="size, kind.*integer column `seed`"):
        task_of(row)


def test_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompts are written by the environment"):
        task_of({"seed": 3, "prompt": "hello"})
