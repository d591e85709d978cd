"""Layers of interleaved problems: every near-even plan, and what no plan's rank undercuts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from planner.interleaved_problem import ranges_of
from planner.loop_layers import LoopBuilder
from planner.loop_options import LoopOptions
from planner.problem import stage_times
from planner.split_problem import split_durations, split_fits, split_tails
from planner.timeline_path import PathFinder
from tests.oracles.random_chains import all_starts, draw_chain, rank_ranges, seconds_of, walked_peak


def drawn(number, *, unlike, strategies=2, ranks=2, blocks=6, micro=4):
    return draw_chain(
        [3, unlike, number],
        "interleaved",
        ranks=ranks,
        blocks=blocks,
        micro=micro,
        unlike=unlike,
        mixed=bool(number % 2),
        strategies=strategies,
    )


def plans_in(builder, layers):
    """Every path through the layers as (starts, strategies)."""
    trails = [((), 0)]
    for layer in layers.layers:
        trails = [
            ((*ways, way), int(layer.target[way]))
            for ways, state in trails
            for way in range(layer.starts[state], layer.starts[state + 1])
        ]
    return [builder.partition(layers, ways) for ways, _ in trails]


@pytest.mark.parametrize("unlike", [False, True])
def test_the_layers_hold_every_near_even_split_once(unlike):
    problem = drawn(0, unlike=unlike, strategies=1)
    builder = LoopBuilder(problem)
    found = [plan.starts for plan in plans_in(builder, builder.build(builder.total_s()))]
    assert sorted(found) == sorted(all_starts(problem))


@pytest.mark.parametrize("unlike", [False, True])
def test_a_rank_takes_no_less_than_its_limit_says(unlike):
    """A plan within the limit of every rank, and no other, is in the layers; no plan's step is
    under what its ranks take with the way to them and back."""
    for number in range(6):
        problem = drawn(number, unlike=unlike, strategies=1, micro=2 + 2 * (number % 3))
        builder = LoopBuilder(problem)
        micro = problem.schedule.num_microbatches
        steps = {s: seconds_of(problem, s, (0,) * 6) for s in all_starts(problem)}
        limit_s = float(np.median(list(steps.values()))) / micro
        inside = {plan.starts for plan in plans_in(builder, builder.build(limit_s))}
        for starts, step_s in steps.items():
            assert starts in inside or step_s >= limit_s * micro * (1 - 1e-9)


def test_features_times_a_path_are_its_length():
    problem = drawn(1, unlike=True)
    builder, finder = LoopBuilder(problem), PathFinder(problem.schedule)
    layers = builder.build(builder.total_s())
    rng = np.random.default_rng(0)
    for _ in range(20):
        state, ways = 0, []
        for layer in layers.layers:
            ways.append(int(rng.integers(layer.starts[state], layer.starts[state + 1])))
            state = int(layer.target[ways[-1]])
        plan = builder.partition(layers, ways)
        durations = split_durations(problem, plan.starts, plan.strategies)
        longest = finder.longest(durations, split_tails(problem, plan.starts))
        length = sum(
            float(layer.features[way] @ builder.weights(rank, (longest.path,))[:, 0])
            for rank, (layer, way) in enumerate(zip(layers.layers, ways, strict=True))
        )
        assert length == pytest.approx(longest.step_time_s, rel=1e-12)
        assert length == pytest.approx(seconds_of(problem, plan.starts, plan.strategies), rel=1e-9)


def test_choices_are_the_fastest_that_fit():
    """Against trying every choice: memory walked action by action, no stage slower in vain."""
    for number in range(6):
        problem = drawn(number, unlike=True)
        starts = all_starts(problem)[number]
        for rank in range(2):
            ranges = rank_ranges(problem, rank, starts)
            blocks = [b for i, j in ranges for b in range(i, j)]
            every = list(itertools.product(range(2), repeat=len(blocks)))
            peaks = [walked_peak(problem, rank, ranges, chosen) for chosen in every]
            room = float(np.median(peaks))
            slots = tuple(replace(slot, capacity_bytes=room) for slot in problem.chain.slots)
            tight = _with_slots(problem, slots)
            options = LoopOptions(tight).of(rank, ranges, 1e9)
            times = {
                tuple(np.round(_inner_s(problem, rank, ranges, chosen), 9))
                for chosen, peak in zip(every, peaks, strict=True)
                if peak <= room
            }
            best = {
                t
                for t in times
                if not any(all(a <= b for a, b in zip(o, t, strict=True)) and o != t for o in times)
            }
            assert {tuple(np.round(row, 9)) for row in options.seconds} == best


def _inner_s(problem, rank, ranges, chosen):
    """Seconds of I of each of the rank's stages."""
    left, found = list(chosen), []
    for stage, (i, j) in zip(problem.schedule.stages_of(rank), ranges, strict=True):
        index = problem.chain.slots[stage].costs
        whole = sum(
            float(problem.chain.costs[index].backward_s[b, left.pop(0)]) for b in range(i, j)
        )
        found.append(whole - float(problem.weight_s[index][i:j].sum()))
    return np.asarray(found)


def _with_slots(problem, slots):
    chain = replace(problem.chain, slots=slots)
    return replace(problem, held=replace(problem.held, chain=chain))


def test_alone_knows_near_even_stages_only():
    problem = drawn(2, unlike=False, strategies=1)
    builder = LoopBuilder(problem)
    builder.build(builder.total_s())
    ranges = ranges_of((0, 2, 4, 5), 6)
    way = builder.alone(0, (ranges[0], ranges[2]))
    forward, backward = stage_times(problem.chain, (0, 2, 4, 5), (0,) * 6)
    assert way.features[0] == pytest.approx(forward[0])
    assert way.features[5] == pytest.approx(forward[2])
    assert way.features[1] + way.features[2] == pytest.approx(backward[0])
    assert builder.alone(0, ((0, 3), (4, 5))) is None
    assert split_fits(problem, builder.partition(builder.build(builder.total_s()), [0, 0]))
