"""Bounds of cells: never above what the partition or the timeline of any plan gives."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cell import Cell
from planner.chain.partition import partition
from planner.chain.problem import BlockCosts, Load, PartitionProblem, StageSlot
from planner.chain.relaxed_bound import RankNeeds, relaxed_bound
from planner.costs.bound import (
    ChainTotals,
    least_busiest_s,
    lower_bound,
)
from simulator.values.degrees import Degrees
from tests.oracles.chain_totals import totals_of


def random_problem(n, p, m, schedule, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.random((3, n))
    tail = np.cumsum(np.concatenate([[0.0], rng.random(n)]))
    beside = rng.integers(0, 2) * rng.random((p, 2))
    return PartitionProblem(
        kinds=tuple(range(n)),
        strategies=("keep", "again"),
        schedule=schedule,
        num_microbatches=m,
        costs=(
            BlockCosts(
                forward_s=sizes[0],
                backward_s=2 * sizes[0][:, None] + sizes[1][:, None] * [0.0, 1.0],
                saved_bytes=sizes[2][:, None] * [1.0, 0.1],
                transient_bytes=np.zeros((n, 2)),
            ),
        ),
        slots=tuple(
            StageSlot(
                in_flight=k,
                capacity_bytes=2.0,
                loads=(Load(in_flight=k),),
                forward_s=float(beside[s, 0]),
                backward_s=float(beside[s, 1]),
            )
            for s, k in enumerate((min(m, p - s) if schedule == "1f1b" else m) for s in range(p))
        ),
        static_bytes=(np.zeros((n, n + 1)),),
        tails_s=(tail[None, :] - tail[:-1, None],),
        edge_bytes=np.zeros((n, n + 1)),
        send_forward_s=0.1 * rng.random((p, n)),
        send_backward_s=0.1 * rng.random((p, n)),
    )


@pytest.mark.parametrize(
    ("schedule", "batch", "bound"),
    [
        # Through four stages and back, then the last one's other micro-batch; or the mean rank.
        ("interleaved", 2, 8 + 3 * 0.5 + 1 * 1.0 + 0.25),
        ("interleaved", 16, 16 * 5 + 0.25),
        ("zb-h1", 2, 2 * 5 + 0.25),
    ],
)
def test_bounds_of_schedules_without_a_closed_form_by_hand(schedule, batch, bound):
    degrees = Degrees(pp=2, vpp=2 if schedule == "interleaved" else 1)
    cell = Cell(degrees=degrees, zero_stage=0, micro_batch=1, schedule=schedule, global_batch=batch)
    totals = ChainTotals(
        total_s=8.0, busiest_s=5.0, last_s=1.0, send_s=0.5, tail_s=1.0, any_tail_s=0.25
    )
    assert lower_bound(cell, totals) == bound


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.integers(1, 8),
    st.integers(1, 5),
    st.integers(1, 12),
    st.sampled_from(["1f1b", "gpipe"]),
    st.integers(0, 2**32 - 1),
)
def test_no_partition_beats_the_bound_of_its_cell(n, p, m, schedule, seed):
    p = min(n, p)
    problem = random_problem(n, p, m, schedule, seed)
    found = partition(problem)
    cell = Cell(
        degrees=Degrees(pp=p), zero_stage=0, micro_batch=1, schedule=schedule, global_batch=m
    )
    bound = lower_bound(cell, totals_of(problem, cell))
    if found is not None:
        assert bound <= found.step_time_s * (1 + 1e-12)


def test_the_bound_is_reached_by_equal_blocks():
    # Four blocks of F 1, B 2 on 4 stages, M = 8, nothing else: 12 + 7 x 3 = 33 = (8 + 3) x 3.
    problem = PartitionProblem(
        kinds=(0, 0, 0, 0),
        strategies=("keep",),
        schedule="1f1b",
        num_microbatches=8,
        costs=(
            BlockCosts(
                forward_s=np.ones(4),
                backward_s=np.full((4, 1), 2.0),
                saved_bytes=np.zeros((4, 1)),
                transient_bytes=np.zeros((4, 1)),
            ),
        ),
        slots=tuple(
            StageSlot(in_flight=4 - s, capacity_bytes=1.0, loads=(Load(in_flight=4 - s),))
            for s in range(4)
        ),
        static_bytes=(np.zeros((4, 5)),),
        tails_s=(np.zeros((4, 5)),),
        edge_bytes=np.zeros((4, 5)),
        send_forward_s=np.zeros((4, 4)),
        send_backward_s=np.zeros((4, 4)),
    )
    cell = Cell(degrees=Degrees(pp=4), zero_stage=0, micro_batch=1, schedule="1f1b", global_batch=8)
    assert lower_bound(cell, totals_of(problem, cell)) == 33.0
    assert partition(problem).step_time_s == 33.0


def test_every_cell_has_a_bound():
    problem = random_problem(6, 2, 4, "1f1b", 0)
    cells = [
        Cell(
            degrees=Degrees(pp=p, vpp=v), zero_stage=z, micro_batch=b, schedule=name, global_batch=8
        )
        for p, z, b, (name, v) in itertools.product(
            (2, 3), (0, 1), (1, 2), (("1f1b", 1), ("gpipe", 1), ("interleaved", 2))
        )
    ]
    bounds = np.asarray([lower_bound(cell, totals_of(problem, cell)) for cell in cells])
    assert bounds.shape == (len(cells),)
    assert np.all(bounds > 0)


def test_the_busiest_rank_takes_whole_blocks():
    # 80 layers of 1, an embedding of 0.2 and a head of 1.3 on 8 ranks. The rank of the head could
    # take 9 layers (10.3), but then 71 layers on 7 ranks make one of them take 11.
    times = np.asarray([0.2, *[1.0] * 80, 1.3])
    kinds = (0, *[1] * 80, 2)
    assert least_busiest_s(times, kinds, 8) == 11.0
    assert times.sum() / 8 < 11.0


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_no_assignment_of_blocks_to_ranks_is_less_busy(count, others, ranks, seed):
    rng = np.random.default_rng(seed)
    times = np.asarray([*[rng.random()] * count, *rng.random(others)])
    kinds = (*[0] * count, *range(1, others + 1))
    least = min(
        max(sum(t for t, r in zip(times, at, strict=True) if r == rank) for rank in range(ranks))
        for at in itertools.product(range(ranks), repeat=len(times))
    )
    assert least_busiest_s(times, kinds, ranks) <= least * (1 + 1e-12)


@pytest.mark.parametrize(("near_even", "each_s"), [(False, 4.0), (True, 6.0)])
def test_ranks_of_unlike_speeds_share_by_speed(near_even, each_s):
    # Six blocks that take 1 on one rank and 2 on the other: four and two of them, 4 each; or three
    # on each, 6 on the slow one.
    problem = random_problem(6, 2, 1000, "1f1b", 0)
    fast = BlockCosts(
        forward_s=np.full(6, 0.25),
        backward_s=np.full((6, 1), 0.75),
        saved_bytes=np.zeros((6, 1)),
        transient_bytes=np.zeros((6, 1)),
    )
    slow = replace(fast, forward_s=2 * fast.forward_s, backward_s=2 * fast.backward_s)
    slots = tuple(
        replace(slot, costs=at, capacity_bytes=1.0, forward_s=0.0, backward_s=0.0)
        for at, slot in enumerate(problem.slots)
    )
    problem = replace(
        problem,
        kinds=(0,) * 6,
        strategies=("none",),
        costs=(fast, slow),
        slots=slots,
        edge_bytes=np.zeros((6, 7)),
    )
    needs = RankNeeds(
        owner=(0, 1),
        states=(np.zeros(6), np.zeros(6)),
        rise_bytes=np.zeros(6),
        tails_s=np.zeros((2, 6)),
        closed=False,
        near_even=near_even,
        any_order=True,
    )
    # The second rank waits for a micro-batch of the first, once.
    assert relaxed_bound(problem, needs) == pytest.approx(1000 * each_s, rel=1e-2)
    # Blocks of equal costs differ in memory if some of them share parameters: here five need none.
    shared = replace(needs, states=(np.asarray([0.9, 0.0, 0.0, 0.0, 0.0, 0.0]), np.zeros(6)))
    assert relaxed_bound(problem, shared) == relaxed_bound(problem, needs)
    # A rank has room for two blocks of 0.4, and there are six.
    heavy = replace(needs, states=(np.full(6, 0.4), np.zeros(6)))
    assert relaxed_bound(problem, heavy) == np.inf
    # Four of a quarter fill a rank, three if it needs a quarter for something else.
    quarter = replace(needs, states=(np.full(6, 0.25), np.zeros(6)))
    assert relaxed_bound(problem, quarter) == pytest.approx(1000 * each_s, rel=1e-2)
    for more in (
        {"given_bytes": 0.25},
        {"rise_bytes": np.full(6, 0.25)},
        {"states": (np.full(6, 0.25), np.full(6, 1 / 12))},
    ):
        three = relaxed_bound(problem, replace(quarter, **more))
        assert three == pytest.approx(6000, rel=1e-2), more
