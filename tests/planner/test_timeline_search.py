"""The search by timelines: by hand, its moments, its memory, its limits."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from planner.chain.problem import Partition
from planner.costs.split_problem import split_moments
from planner.mesh.timeline_search import TimelineSearch, timeline_step_s
from profiles.errors import InputError
from simulator.schedules.schedule import build_schedule
from tests.oracles.held_activations import most_held
from tests.oracles.random_chains import V_SCHEDULES, draw_chain, split_fits


def of_units(schedule, *, ranks, blocks, micro):
    """Equal blocks of one second for each of F, I and W, and nothing else."""
    problem = draw_chain(
        0,
        schedule,
        ranks=ranks,
        blocks=blocks,
        micro=micro,
        unlike=False,
        mixed=False,
        strategies=1,
    )
    one = np.ones(blocks)
    (costs,) = problem.chain.costs
    costs = replace(costs, forward_s=one, backward_s=2 * one[:, None])
    sends = np.zeros_like(problem.chain.send_forward_s)
    chain = replace(
        problem.chain,
        kinds=(0,) * blocks,
        costs=(costs,),
        slots=tuple(replace(slot, forward_s=0.0, backward_s=0.0) for slot in problem.chain.slots),
        send_forward_s=sends,
        send_backward_s=sends,
    )
    return replace(problem, chain=chain, tail_s=lambda rank, ranges: 0.0, weight_s=(one,))


def test_zb_h1_over_equal_stages_by_hand():
    # Two ranks of two blocks, F = I = W = 2 s, four micro-batches. The last rank ends last: a
    # forward before it (2), its own 4 x 6 s of work; no idle time between.
    found = TimelineSearch(of_units("zb-h1", ranks=2, blocks=4, micro=4)).best()
    assert found.starts == (0, 2)
    assert found.step_time_s == pytest.approx(2 + 24)


def test_zbv_gives_every_rank_equal_work():
    # Stages of one block: rank 1 begins one F later and has 2 x 4 x 3 s of work.
    found = TimelineSearch(of_units("zbv", ranks=2, blocks=4, micro=4)).best()
    assert found.starts == (0, 1, 2, 3)
    assert found.step_time_s == pytest.approx(25)


def test_equal_interleaved_stages_take_as_long_as_narayanan_says():
    # 8 equal blocks of F 1, B 2 on 2 ranks x 2 stages, M = 4, no sends, no tail: a stage has 2
    # blocks, T = 6, R = 12; M R + (p - 1) R / v = 48 + 6 = 54 (SC'21, section 2.2.2).
    problem = of_units("interleaved", ranks=2, blocks=8, micro=4)
    assert TimelineSearch(problem).best().step_time_s == pytest.approx(54)


@pytest.mark.parametrize("schedule", ["zb-h1", *V_SCHEDULES])
@pytest.mark.parametrize("ranks", [2, 4])
def test_moments_hold_what_the_simulator_counts(schedule, ranks):
    per_rank = 2 if schedule in V_SCHEDULES else 1
    micro = 3 * ranks
    made = build_schedule(
        schedule, num_ranks=ranks, num_microbatches=micro, stages_per_rank=per_rank
    )
    for rank, most in enumerate(most_held(made)):
        known = split_moments(schedule, ranks, micro, per_rank, rank)
        assert (known.whole + known.half).sum(axis=1).max() == most


@pytest.mark.parametrize("unlike", [False, True])
@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "v-half", "dualpipev"])
def test_plans_fit_and_no_memory_has_none(schedule, unlike):
    ranks = 3
    problem = draw_chain(
        7, schedule, ranks=ranks, blocks=14, micro=8, unlike=unlike, mixed=False, strategies=2
    )
    slots = tuple(replace(slot, capacity_bytes=0.0) for slot in problem.chain.slots)
    problem = replace(problem, chain=replace(problem.chain, slots=slots))
    assert TimelineSearch(problem).best() is None
    fitted = []
    for room in (14.0, 20.0, 40.0, 1e9):
        larger = problem.with_capacity(room)
        found = TimelineSearch(larger).best()
        if found is not None:
            assert split_fits(larger, found)
            fitted.append(found.step_time_s)
    assert fitted
    assert fitted[-1] <= min(fitted) * 1.01


def test_a_plan_is_under_the_time_that_is_asked_for_or_none():
    problem = draw_chain(
        3, "zbv", ranks=4, blocks=26, micro=16, unlike=False, mixed=True, strategies=1
    )
    found = TimelineSearch(problem).best()
    assert found.step_time_s == pytest.approx(timeline_step_s(problem, found), rel=1e-12)
    assert TimelineSearch(problem).best(below=found.step_time_s * 0.99) is None
    again = TimelineSearch(problem).best(below=found.step_time_s * 1.5)
    assert again == found
    assert TimelineSearch(problem).best(known=found.starts).step_time_s <= found.step_time_s


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "interleaved"])
@pytest.mark.parametrize("seed", range(4))
def test_a_plan_whose_busiest_rank_alone_takes_too_long_is_not_timed(schedule, seed):
    """Of the only split, one block per stage, with the strategies that fit its memory."""
    problem = draw_chain(
        seed,
        schedule,
        ranks=2,
        blocks=2 if schedule == "zb-h1" else 4,
        micro=4,
        unlike=True,
        mixed=True,
        strategies=2,
    )
    slots = tuple(replace(slot, capacity_bytes=2.0) for slot in problem.chain.slots)
    problem = replace(problem, chain=replace(problem.chain, slots=slots))
    tighter = problem
    while (found := TimelineSearch(problem).best()) is None:
        tighter, problem = problem, problem.with_capacity(0.1)
    # No other strategies fit in less.
    for strategies in product(range(2), repeat=len(found.strategies)):
        assert not split_fits(tighter, replace(found, strategies=strategies))
    # Stage s is block s.
    of_stage = [(s, problem.chain.costs[slot.costs]) for s, slot in enumerate(problem.chain.slots)]
    fastest = [float(costs.backward_s[stage].min()) for stage, costs in of_stage]
    chosen = [
        float(costs.backward_s[stage, k])
        for (stage, costs), k in zip(of_stage, found.strategies, strict=True)
    ]
    for backward_s, timed in ((chosen, TimelineSearch.best), (fastest, TimelineSearch.proved)):
        work_s = [0.0, 0.0]
        for (stage, costs), seconds in zip(of_stage, backward_s, strict=True):
            slot, rank = problem.chain.slots[stage], problem.schedule.stage_to_rank[stage]
            outside_s = slot.forward_s + slot.backward_s
            work_s[rank] += 4 * (float(costs.forward_s[stage]) + seconds + outside_s)
        for factor, is_timed in ((1 - 1e-9, False), (1 + 1e-9, True)):
            search = TimelineSearch(problem)
            before = search.actions_left
            timed(search, max(work_s) * factor)
            assert (search.actions_left < before) == is_timed


def is_near_even(cuts):
    sizes = [j - i for i, j in pairwise(cuts)]
    return max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "v-min", "interleaved"])
def test_what_is_proved_is_the_best_of_every_split(schedule):
    """Against every split with every block's strategy, timed one by one."""
    for seed in range(4):
        problem = draw_chain(
            seed, schedule, ranks=2, blocks=6, micro=4, unlike=True, mixed=False, strategies=2
        )
        stages, n = problem.chain.num_stages, problem.chain.num_blocks
        times = [
            timeline_step_s(
                problem, Partition(starts=(0, *cuts), strategies=chosen, step_time_s=0.0)
            )
            for cuts in combinations(range(1, n), stages - 1)
            if schedule != "interleaved" or is_near_even((0, *cuts, n))
            for chosen in product(range(2), repeat=n)
        ]
        least, found = TimelineSearch(problem).proved(np.inf)
        assert least == pytest.approx(min(times), rel=1e-12)
        assert found.step_time_s == least  # memory has no limit here
        assert TimelineSearch(problem).proved(least * 0.9) == (least * 0.9, None)
    large = draw_chain(
        0, schedule, ranks=8, blocks=60, micro=16, unlike=True, mixed=False, strategies=1
    )
    assert TimelineSearch(large).proved(np.inf) == (0.0, None)


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "interleaved"])
def test_a_proof_has_no_plan_that_does_not_fit(schedule):
    """Memory, however little, changes nothing of what is proved."""
    for seed in range(4):
        problem = draw_chain(
            seed, schedule, ranks=2, blocks=6, micro=4, unlike=True, mixed=False, strategies=2
        )
        slots = tuple(replace(slot, capacity_bytes=0.0) for slot in problem.chain.slots)
        problem = replace(problem, chain=replace(problem.chain, slots=slots))
        least, plan = TimelineSearch(problem.with_capacity(1e9)).proved(np.inf)
        assert plan is not None
        for room in (0.0, 3.0, 6.0, 12.0):
            tight = problem.with_capacity(room)
            proved, found = TimelineSearch(tight).proved(np.inf)
            assert proved == least
            assert found is None or split_fits(tight, found)
        assert TimelineSearch(problem).proved(np.inf)[1] is None


def test_two_copies_of_the_model_are_no_stages_in_turn():
    problem = draw_chain(
        0, "zbv", ranks=2, blocks=6, micro=4, unlike=False, mixed=False, strategies=1
    )
    made = build_schedule("dualpipe", num_ranks=2, num_microbatches=4)
    with pytest.raises(InputError, match="round-robin, or in a V with two stages"):
        replace(problem, schedule=made)
