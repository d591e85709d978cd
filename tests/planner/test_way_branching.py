"""Branching over ways, alone: without the sweeps that prove small problems before it is asked."""

from __future__ import annotations

import numpy as np
import pytest

from planner import split_search, way_branching
from planner.split_search import Splitter
from tests.oracles.random_chains import TWICE, draw_chain, enumerated

SCHEDULES = ("1f1b", "zb-h1", "zbv", "v-half", "interleaved")


def drawn(schedule, number):
    ranks = 2 if schedule in TWICE else 3
    return draw_chain(
        [8, number],
        schedule,
        ranks=ranks,
        blocks=6,
        micro=4,
        unlike=bool(number % 2),
        mixed=number > 3,
        strategies=1,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_finds_and_proves_the_best_of_all(schedule, monkeypatch):
    monkeypatch.setattr(split_search, "_KEPT", (1,))
    for number in range(6):
        problem = drawn(schedule, number)
        best = enumerated(problem)
        found = Splitter(problem).best()
        assert found.step_time_s == pytest.approx(best, rel=1e-9)
        assert found.bound_s == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_cut_short_is_still_a_bound(schedule, monkeypatch):
    monkeypatch.setattr(split_search, "_KEPT", (1,))
    monkeypatch.setattr(way_branching, "_WORK", 1)
    for number in range(6):
        problem = drawn(schedule, number)
        best = enumerated(problem)
        found = Splitter(problem).best()
        assert found.bound_s <= best * (1 + 1e-9)
        assert found.step_time_s >= best * (1 - 1e-9)


def test_equal_ways_are_not_split():
    assert way_branching._widest([np.ones((3, 6)), np.ones((2, 6))]) is None
