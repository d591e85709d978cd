"""The planner's plans and bounds against trying every plan with the event timeline, on 300 and more
random small problems: every schedule, equal and unlike blocks, one type of device and two,
strategies under memory that is tight enough to make some plans not fit."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from planner.cell import Cell
from planner.chain.partition import partition
from planner.chain.problem import Load
from planner.chain.relaxed_bound import RankNeeds, relaxed_bound
from planner.costs.bound import lower_bound
from planner.costs.cell_memory import in_flight
from planner.mesh.timeline_search import TimelineSearch
from simulator.values.degrees import Degrees
from tests.oracles.chain_totals import totals_of
from tests.oracles.random_chains import (
    TWICE,
    all_starts,
    draw_chain,
    enumerated,
    rank_ranges,
    seconds_of,
    split_fits,
    walked_peak,
)
from tests.oracles.stage_memory import fits, stage_memory_bytes

EACH = 10  # problems of each kind
SCHEDULES = (
    "gpipe",
    "1f1b",
    "zb-h1",
    "zb-h2",
    "zbv",
    "v-half",
    "v-min",
    "dualpipev",
    "interleaved",
)
KINDS = tuple(itertools.product((False, True), repeat=2))  # unlike blocks, mixed devices
IDS = tuple(
    f"{'unlike' if unlike else 'equal'}-{'mixed' if mixed else 'one'}" for unlike, mixed in KINDS
)


def small(schedule, unlike, mixed, number):
    """A small problem, its capacities what one plan, drawn from all, needs and a little more."""
    seed = [SCHEDULES.index(schedule), unlike, mixed, number]
    rng = np.random.default_rng(seed)
    ranks = 2 if schedule in TWICE else int(rng.integers(2, 4))
    least = 2 * ranks if schedule in TWICE else ranks
    blocks = int(rng.integers(max(3, least), least + 3))
    micro = int(rng.integers(2 * ranks if schedule == "dualpipev" else 1, 6))
    if schedule == "interleaved":
        micro = ranks * (1 + micro % 3)
    problem = draw_chain(
        seed,
        schedule,
        ranks=ranks,
        blocks=blocks,
        micro=micro,
        unlike=unlike,
        mixed=mixed,
        strategies=1 + number % 2,
    )
    starts = all_starts(problem)
    starts = starts[rng.integers(len(starts))]
    chosen = rng.integers(0, len(problem.chain.strategies), problem.chain.num_blocks).tolist()
    slots = list(problem.chain.slots)
    for rank in range(ranks):
        ranges = rank_ranges(problem, rank, starts)
        mine = [chosen[b] for i, j in ranges for b in range(i, j)]
        room = walked_peak(problem, rank, ranges, mine) * (1.0 + 0.1 * rng.random()) + 1e-9
        for stage in problem.schedule.stages_of(rank):
            slots[stage] = replace(slots[stage], capacity_bytes=room)
    chain = replace(problem.chain, slots=tuple(slots))
    return replace(problem, chain=chain)


def test_there_are_300_problems():
    assert EACH * len(KINDS) * len(SCHEDULES) >= 300


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_plans_by_the_timeline_are_near_the_best_of_trying_every_plan(schedule):
    """No plan beats the best, which no bound exceeds; most are the best."""
    above, missed, relaxed_higher = [], 0, 0
    for (unlike, mixed), number in itertools.product(KINDS, range(EACH)):
        problem = small(schedule, unlike, mixed, number)
        best = enumerated(problem)
        assert np.isfinite(best)
        of_cell, relaxed, whole = bound_of(problem), *relaxed_of(problem)
        assert max(of_cell, whole) <= best * (1 + 1e-9)
        assert relaxed <= whole * (1 + 1e-5)
        relaxed_higher += relaxed > of_cell * (1 + 1e-9)
        found = TimelineSearch(problem).best()
        if found is None:
            missed += 1
            continue
        assert split_fits(problem, found)
        reached = seconds_of(problem, found.starts, found.strategies)
        assert found.step_time_s == pytest.approx(reached, rel=1e-9)
        assert reached >= best * (1 - 1e-9)
        above.append(reached / best - 1)
        # What is not under a time that is asked for is not returned.
        assert TimelineSearch(problem).best(below=best * (1 - 1e-6)) is None
    assert missed <= 1
    assert relaxed_higher >= EACH  # of the 4 EACH problems
    assert np.mean(np.asarray(above) < 1e-9) >= 0.85
    assert np.mean(above) < 0.003
    assert max(above) < 0.06


def cell_of(problem):
    """The cell of the problem."""
    return Cell(
        degrees=Degrees(pp=problem.num_ranks, vpp=problem.per_rank),
        zero_stage=0,
        micro_batch=1,
        schedule=problem.schedule.name,
        global_batch=problem.chain.num_microbatches,
    )


def bound_of(problem):
    """What no plan of the chain undercuts, by the bound of its cell."""
    cell = cell_of(problem)
    return lower_bound(cell, totals_of(problem.chain, cell))


def relaxed_of(problem):
    """The same within memory: by fractions of blocks, and with whole blocks on every rank."""
    chain, cell = problem.chain, cell_of(problem)
    totals = totals_of(chain, cell)
    states = np.asarray([problem.states(((b, b + 1),)) for b in range(chain.num_blocks)])
    slots = [
        replace(slot, in_flight=kept)
        for slot, kept in zip(chain.slots, in_flight(cell), strict=True)
    ]
    needs = RankNeeds(
        owner=problem.schedule.stage_to_rank,
        states=tuple(states.T),
        given_bytes=0.0,
        passed_bytes=float(problem.over_bytes.max()),
        rise_bytes=np.min(
            [table.min(axis=1) for table in problem.backward_transient_bytes], axis=0
        ),
        crossing_s=totals.send_s,
        tail_s=0.0,
        tails_s=np.zeros((chain.num_stages, chain.num_blocks)),
        closed=not cell.needs_timeline,
        splits_backward=cell.splits_backward,
        near_even=problem.schedule.name == "interleaved",
        any_order=False,
    )
    chain = replace(chain, slots=tuple(slots))
    return relaxed_bound(chain, needs), relaxed_bound(chain, needs, whole=True)


@pytest.mark.parametrize(("unlike", "mixed"), KINDS, ids=IDS)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_closed_form_is_a_bound_and_exact_where_it_says_so(schedule, unlike, mixed):
    """The dynamic programme minimises the closed form, which never exceeds the timeline and is
    below it only where stages differ by more than a third (planner/chain/problem.py)."""
    exact = 0
    for number in range(EACH):
        problem = small(schedule, unlike, mixed, number)
        chain = problem.chain
        # Memory by the partition's own loads here: what is in flight, and nothing static.
        ranks, micro = problem.num_ranks, chain.num_microbatches
        kept = [micro if schedule == "gpipe" else min(micro, ranks - s) for s in range(ranks)]
        slots = []
        for slot, k in zip(chain.slots, kept, strict=True):
            room = slot.capacity_bytes
            slots.append(
                replace(slot, in_flight=k, loads=(Load(in_flight=k),), capacity_bytes=room)
            )
        tails = tuple(
            np.asarray(
                [
                    [problem.tail_s(s, ((i, j),)) for j in range(chain.num_blocks + 1)]
                    for i in range(chain.num_blocks)
                ]
            )
            for s in range(ranks)
        )
        slots = [replace(slot, tail=s) for s, slot in enumerate(slots)]
        chain = replace(chain, slots=tuple(slots), tails_s=tails)
        best = np.inf
        options = range(len(chain.strategies))
        for starts in all_starts(problem):
            ends = (*starts[1:], chain.num_blocks)
            for chosen in itertools.product(options, repeat=chain.num_blocks):
                if all(
                    stage_memory_bytes(chain, s, i, chosen[i:j]) <= slots[s].capacity_bytes
                    for s, (i, j) in enumerate(zip(starts, ends, strict=True))
                ):
                    best = min(best, seconds_of(problem, starts, chosen))
        found = partition(chain)
        if found is None:
            assert np.isinf(best)
            continue
        assert fits(chain, found)
        reached = seconds_of(problem, found.starts, found.strategies)
        assert found.step_time_s <= best * (1 + 1e-9)
        assert best <= reached * (1 + 1e-9)
        if reached <= found.step_time_s * (1 + 1e-9):  # status optimal
            exact += 1
            assert reached == pytest.approx(best, rel=1e-9)
    assert exact >= 2  # stages of a few unlike blocks mostly differ by more
