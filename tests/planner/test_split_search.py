"""The split search by hand, and its parts: paths, moments, ranks of a V, limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.path_weighting import best_weighting
from planner.problem import Partition
from planner.split_moments import split_moments
from planner.split_neighbours import neighbours
from planner.split_problem import split_durations, split_fits, split_tails
from planner.split_search import Splitter
from planner.timeline_path import PathFinder
from profiles.errors import InputError
from simulator.durations import Durations
from simulator.schedule import build_schedule
from simulator.timeline import simulate
from tests.oracles.held_activations import most_held
from tests.oracles.random_chains import V_SCHEDULES, draw_chain

SCHEDULES = ("zb-h1", "zb-h2", "gpipe", "1f1b", *V_SCHEDULES)


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
        send_forward_s=sends,
        send_backward_s=sends,
    )
    held = replace(problem.held, chain=chain, tail_s=lambda rank, ranges: 0.0)
    return replace(problem, held=held, weight_s=(one,))


def test_zb_h1_over_equal_stages_by_hand():
    # Two ranks of two blocks, F = I = W = 2 s, four micro-batches. The last rank ends last: a
    # forward before it (2), its own 4 x 6 s of work; no idle time between.
    split = Splitter(of_units("zb-h1", ranks=2, blocks=4, micro=4)).best()
    assert split.partition.starts == (0, 2)
    assert split.step_time_s == pytest.approx(2 + 24)
    assert split.bound_s == pytest.approx(26)


def test_zbv_gives_every_rank_equal_work():
    # Stages of one block: rank 1 begins one F later and has 2 x 4 x 3 s of work.
    split = Splitter(of_units("zbv", ranks=2, blocks=4, micro=4)).best()
    assert split.partition.starts == (0, 1, 2, 3)
    assert split.step_time_s == pytest.approx(25)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(SCHEDULES),
    st.integers(2, 4),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
def test_the_longest_path_is_the_step_and_no_path_is_longer(schedule, ranks, more, seed):
    rng = np.random.default_rng(seed)
    per_rank = 2 if schedule in V_SCHEDULES else 1
    made = build_schedule(
        schedule,
        num_ranks=ranks,
        num_microbatches=2 * ranks + more,
        stages_per_rank=per_rank,
    )
    finder = PathFinder(made)
    paths = [finder.work_of(rank) for rank in range(ranks)]
    for _ in range(3):
        figures = rng.random((5, made.num_stages))
        forward, inputs, weight, down, up = (tuple(row.tolist()) for row in figures)
        tails = rng.random(ranks).tolist()
        durations = Durations(
            forward_s=forward,
            backward_s=tuple(i + w for i, w in zip(inputs, weight, strict=True)),
            send_forward_s=down,
            send_backward_s=up,
            backward_input_s=inputs,
            backward_weight_s=weight,
        )
        timeline = simulate(made, durations)
        longest = finder.longest(durations, tails)
        step = max(timeline.rank_end_s(rank) + tail for rank, tail in enumerate(tails))
        paths.append(longest.path)
        lengths = [float((path.counts.T * figures).sum()) + tails[path.rank] for path in paths]
        assert longest.step_time_s == step
        assert lengths[-1] == pytest.approx(step, rel=1e-12)
        assert max(lengths) <= step * (1 + 1e-12)


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
        assert known.done.max() <= micro
        assert (known.whole + known.half).sum(axis=1).max() == most


@pytest.mark.parametrize("unlike", [False, True])
@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "v-half", "dualpipev"])
def test_more_memory_is_never_slower_and_none_is_infeasible(schedule, unlike):
    ranks = 3
    problem = draw_chain(
        7, schedule, ranks=ranks, blocks=14, micro=8, unlike=unlike, mixed=False, strategies=2
    )
    slots = tuple(replace(slot, capacity_bytes=0.0) for slot in problem.chain.slots)
    held = replace(problem.held, chain=replace(problem.chain, slots=slots))
    problem = replace(problem, held=held)
    assert Splitter(problem).best().partition is None
    assert np.isinf(Splitter(problem).bound_s)
    before = np.inf
    for room in (14.0, 20.0, 40.0, 1e9):
        larger = problem.with_capacity(room)
        split = Splitter(larger).best()
        assert split.step_time_s <= before * (1 + 1e-9)
        before = split.step_time_s
        if split.partition is not None:
            assert split_fits(larger, split.partition)
            assert split.bound_s == pytest.approx(split.step_time_s, rel=1e-9)
    assert np.isfinite(before)


def test_a_bound_holds_for_every_time_that_is_asked_for():
    problem = draw_chain(
        3, "zbv", ranks=4, blocks=26, micro=16, unlike=False, mixed=True, strategies=1
    )
    splitter = Splitter(problem)
    bound, best = splitter.bound_s, Splitter(problem).best()
    assert bound <= best.step_time_s
    assert splitter.best(below=best.step_time_s * 0.99).partition is None
    again = splitter.best(below=best.step_time_s * 1.5)
    assert again.step_time_s == pytest.approx(best.step_time_s, rel=1e-9)
    durations = split_durations(problem, best.partition.starts, best.partition.strategies)
    timeline = simulate(problem.schedule, durations)
    tails = split_tails(problem, best.partition.starts)
    assert best.step_time_s == pytest.approx(
        max(timeline.rank_end_s(rank) + tail for rank, tail in enumerate(tails)), rel=1e-12
    )


def test_the_best_weighting_of_two_paths():
    # Plans of lengths (6, 2) and (3, 4): w 6 + (1-w) 2 = w 3 + (1-w) 4 at w = 2/5, length 3.6.
    value, weights = best_weighting(np.asarray([[6.0, 2.0], [3.0, 4.0]]))
    assert value == pytest.approx(3.6)
    assert weights.tolist() == pytest.approx([0.4, 0.6])


def test_neighbours_move_one_block():
    plan = Partition(starts=(0, 2, 3), strategies=(0,) * 5, step_time_s=1.0)
    assert set(neighbours(plan)) == {(0, 1, 2), (0, 1, 3), (0, 3, 4), (0, 2, 4)}


def test_two_copies_of_the_model_are_no_stages_in_turn():
    problem = draw_chain(
        0, "zbv", ranks=2, blocks=6, micro=4, unlike=False, mixed=False, strategies=1
    )
    made = build_schedule("dualpipe", num_ranks=2, num_microbatches=4)
    with pytest.raises(InputError, match="neither stages in turn nor a V of two"):
        replace(problem, schedule=made)
