"""The search: same optimum with and without pruning, honest bounds, limits, interrupts."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.best_first import BestFirst


def ticking():
    counter = itertools.count()
    return lambda: float(next(counter))


def searched(rows, calls, family=lambda at: at, further=None, **options):
    """A search of candidates (lower bound, bound that opening proves, value or None where there is
    nothing), each of which is found where it may be better than the best."""
    search = BestFirst(clock=ticking(), **options)

    def opened(at):
        calls.append(at)
        _, solved, value = rows[at]
        if value is not None and solved < search.best:
            search.offer(family(at), (value,), at)
        search.count_refined(math.inf if value is None else solved)

    with search.until_the_end():
        rest = search.explore(sorted((row[0], at, at) for at, row in enumerate(rows)), opened)
        if further is not None:
            search.open_runners_up(rest, opened, **further)
    return search


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.floats(1, 10), st.floats(0, 1), st.floats(0, 1), st.sampled_from([True, True, False])
        ),
        min_size=1,
        max_size=12,
    )
)
def test_pruning_keeps_the_optimum_and_the_bound_is_true(rows):
    made = [
        (time * low, time * (low + (1 - low) * high), time if fits else None)
        for time, low, high, fits in rows
    ]
    search = searched(made, [])
    known = [time for _, _, time in made if time is not None]
    assert search.complete
    if not known:
        assert not search.found
        assert search.bound == math.inf
        return
    assert search.best == min(known)
    assert search.bound <= min(known)


def test_candidates_behind_the_bound_are_never_opened():
    calls = []
    search = searched([(0.9, 1.0, 1.0), (2.0, 2.0, 2.5), (3.0, 3.0, 3.0)], calls)
    assert calls == [0]
    assert (search.refined, search.bound) == (1, 1.0)


def test_progress_has_the_bound_of_what_is_left():
    made = []
    searched([(0.9, 1.0, 1.0), (2.0, 2.0, 2.5)], [], progress=lambda *each: made.append(each[:3]))
    assert made == [(1.0, 1.0, 0.0)]


def test_runners_up_come_from_other_families():
    calls, values = [], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    search = BestFirst(clock=ticking())

    def opened(at):
        calls.append(at)
        search.offer(at // 2, (values[at],), at)

    rest = search.explore([(value, at, at) for at, value in enumerate(values)], opened)
    search.open_runners_up(
        rest, opened, runners_up=2, most=9, worth=lambda at: at // 2 not in search.found
    )
    assert [rank[0] for rank, _ in search.ranked()] == [1.0, 3.0, 5.0]
    assert calls == [0, 2, 4]


def test_candidates_as_good_as_the_best_are_opened_after_it():
    calls = []
    searched(
        [(1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.1, 1.1, 1.1)],
        calls,
        further={"runners_up": 0, "most": 9},
    )
    assert calls == [0, 1]


def test_equal_values_go_to_the_one_that_ranks_first():
    search = BestFirst(clock=ticking())
    for name, memory in (("full", 8.0), ("light", 4.0), ("late", 4.0)):
        search.offer(None, (1.0, memory), name)
    assert search.ranked() == [((1.0, 4.0), "light")]


def test_what_a_candidate_leads_to_is_opened_in_its_place():
    calls = []
    search = BestFirst(clock=ticking())

    def opened(at):
        calls.append(at)
        if at == "wave":
            return [(1.5, 2, "far"), (1.1, 1, "near")]
        return None

    search.explore([(1.0, 0, "wave"), (1.2, 3, "other")], opened)
    assert calls == ["wave", "near", "other", "far"]


def test_an_inner_exploration_ends_with_the_bound_of_its_candidate():
    search = BestFirst(clock=ticking(), time_limit_s=3.5)

    def outer(at):
        search.explore([(5.0, 0, 0), (6.0, 1, 1)], lambda inner: search.count_refined())

    with search.until_the_end():
        search.explore([(1.0, 0, 0), (2.0, 1, 1)], outer)
    assert not search.complete
    assert search.bound == 2.0


def test_a_time_limit_keeps_the_best_so_far_with_its_bound():
    calls = []
    rows = [(1.0, 1.2, 9.0), (1.5, 1.5, 8.0), (1.6, 1.6, 7.0), (1.7, 1.7, 6.0)]
    search = searched(rows, calls, time_limit_s=3.5)
    assert not search.complete
    assert calls == [0, 1, 2]
    assert (search.best, search.bound) == (7.0, 1.2)


def test_an_interrupt_keeps_the_best_so_far():
    search = BestFirst(clock=ticking())

    def opened(at):
        if at == 1:
            raise KeyboardInterrupt
        search.offer(at, (5.0,), at)
        search.count_refined(1.0)

    with search.until_the_end():
        search.explore([(1.0, 0, 0), (1.1, 1, 1)], opened)
    assert not search.complete
    assert (search.best, search.bound) == (5.0, 1.0)


def test_the_first_is_enough_where_only_that_is_asked_for():
    calls = []
    searched([(1.0, 1.0, 9.0), (1.5, 1.5, 2.0)], calls, first_only=True)
    assert calls == [0]


def test_progress_reports_a_shrinking_gap():
    seen = []
    searched(
        [(1.0, 1.0, 4.0), (2.0, 2.0, 3.5), (3.0, 3.0, 3.0)],
        [],
        progress=lambda bound, best, gap, seconds: seen.append((bound, best, gap)),
    )
    assert [best for _, best, _ in seen] == [4.0, 3.5, 3.0]
    assert seen[0][2] == pytest.approx((4.0 - 1.0) / 4.0)
