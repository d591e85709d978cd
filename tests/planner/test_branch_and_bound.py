"""The search over cells: same optimum with and without pruning, honest bounds, interrupts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cell import Cell
from planner.cells.branch_and_bound import Refinement, branch_and_bound, family
from simulator.values.degrees import Degrees
from simulator.values.prediction import Component, Interval, Part, Prediction
from tests.planner.one_block import one_block_plan


def make_cells(count):
    shape = {"zero_stage": 0, "schedule": "1f1b", "global_batch": 64}
    return [
        Cell(degrees=Degrees(pp=1 + k // 2), micro_batch=1 + k % 2, **shape) for k in range(count)
    ]


def make_prediction(time_s, memory_bytes=1.0):
    exact = Interval(value=time_s, low=time_s, high=time_s)
    return Prediction(
        step_time_s=exact,
        components=(Component(name=Part.COMPUTE, time_s=time_s),),
        mfu=Interval(value=0.5, low=0.5, high=0.5),
        tokens_per_s=exact,
        peak_memory_bytes=Interval(value=memory_bytes, low=memory_bytes, high=memory_bytes),
        usd_per_million_tokens=None,
        kwh_per_million_tokens=exact,
        bubble_fraction=0.0,
        stages=(),
        ranks=(),
        events=(),
        sources=(),
        limit="",
        fits=True,
    )


PLAN = one_block_plan(global_batch=1)


def refine_from(times, bounds, calls):
    """A refinement that knows each cell's true best time; None is a cell where nothing fits."""

    def refine(cell, below):
        index = 2 * (cell.degrees.pp - 1) + cell.micro_batch - 1
        calls.append(index)
        if times[index] is None:
            return Refinement(cell=cell, bound_s=np.inf)
        if bounds[index] >= below:
            return Refinement(cell=cell, bound_s=below)
        return Refinement(
            cell=cell, bound_s=bounds[index], plan=PLAN, prediction=make_prediction(times[index])
        )

    return refine


def ticking():
    counter = itertools.count()
    return lambda: float(next(counter))


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
    times = [time if fits else None for time, _, _, fits in rows]
    bounds = np.asarray([time * low for time, low, _, _ in rows])
    solved = np.asarray([time * (low + (1 - low) * high) for time, low, high, _ in rows])
    calls = []
    outcome = branch_and_bound(
        make_cells(len(rows)), bounds, refine_from(times, solved, calls), clock=ticking()
    )
    known = [time for time in times if time is not None]
    assert outcome.complete
    if not known:
        assert outcome.plans == ()
        assert outcome.bound_s == np.inf
        return
    assert outcome.plans[0].step_time_s == min(known)
    assert outcome.bound_s <= min(known)
    assert outcome.refined + outcome.pruned == len(rows)


def test_cells_behind_the_bound_are_never_solved():
    # Cell 0 is done in 1.0; cells 1 to 3 cannot be under 2: only the runner-up pass touches them.
    calls = []
    outcome = branch_and_bound(
        make_cells(4),
        np.asarray([0.9, 2.0, 3.0, 4.0]),
        refine_from([1.0, 2.5, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0], calls),
        clock=ticking(),
        extra_refinements=0,
    )
    assert calls == [0]
    assert (outcome.refined, outcome.pruned) == (1, 3)
    assert outcome.bound_s == 1.0


def test_runners_up_come_from_other_families():
    calls = []
    cells = make_cells(6)
    outcome = branch_and_bound(
        cells,
        np.asarray([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        refine_from([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], calls),
        clock=ticking(),
        runners_up=2,
    )
    assert [plan.step_time_s for plan in outcome.plans] == [1.0, 3.0, 5.0]
    assert len({family(plan.cell) for plan in outcome.plans}) == 3


def test_equal_times_go_to_the_plan_with_less_memory():
    memory = iter([8.0, 4.0])

    def refine(cell, below):
        return Refinement(
            cell=cell, bound_s=0.5, plan=PLAN, prediction=make_prediction(1.0, next(memory))
        )

    outcome = branch_and_bound(make_cells(2), np.asarray([0.5, 0.5]), refine, clock=ticking())
    assert outcome.plans[0].prediction.peak_memory_bytes.value == 4.0


def test_a_time_limit_keeps_the_best_so_far_with_its_bound():
    calls = []
    outcome = branch_and_bound(
        make_cells(4),
        np.asarray([1.0, 1.5, 1.6, 1.7]),
        refine_from([9.0, 8.0, 7.0, 6.0], [1.2, 1.5, 1.6, 1.7], calls),
        clock=ticking(),
        time_limit_s=3.5,
    )
    assert not outcome.complete
    assert calls == [0, 1, 2]
    assert outcome.plans[0].step_time_s == 7.0
    assert outcome.bound_s == 1.2


def test_an_interrupt_keeps_the_best_so_far():
    def refine(cell, below):
        if cell.degrees.pp == 2:
            raise KeyboardInterrupt
        return Refinement(cell=cell, bound_s=1.0, plan=PLAN, prediction=make_prediction(5.0))

    outcome = branch_and_bound(
        make_cells(4), np.asarray([1.0, 1.1, 1.2, 1.3]), refine, clock=ticking()
    )
    assert not outcome.complete
    assert outcome.plans[0].step_time_s == 5.0
    assert outcome.bound_s == 1.0


def test_progress_reports_a_shrinking_gap():
    seen = []
    branch_and_bound(
        make_cells(3),
        np.asarray([1.0, 2.0, 3.0]),
        refine_from([4.0, 3.5, 3.0], [1.0, 2.0, 3.0], []),
        clock=ticking(),
        progress=lambda bound, best, gap, seconds: seen.append((bound, best, gap)),
    )
    assert [best for _, best, _ in seen] == [4.0, 3.5, 3.0]
    assert seen[0][2] == pytest.approx((4.0 - 1.0) / 4.0)
