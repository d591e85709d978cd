"""Why a runner-up lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.blocks.explain import why_not_first
from simulator.values.prediction import Component, Interval, Part, Prediction
from tests.planner.one_block import one_block_plan

PLAN = one_block_plan(dp=8)


def exactly(value):
    return Interval(value=value, low=value, high=value)


def prediction(memory_bytes=2.0**30, bubble_fraction=0.0, **parts):
    total = sum(parts.values())
    return Prediction(
        step_time_s=exactly(total),
        components=tuple(Component(name=Part(name), time_s=time) for name, time in parts.items()),
        mfu=exactly(0.4),
        tokens_per_s=exactly(1.0),
        peak_memory_bytes=exactly(memory_bytes),
        usd_per_million_tokens=None,
        kwh_per_million_tokens=exactly(1.0),
        bubble_fraction=bubble_fraction,
        stages=(),
        ranks=(),
        events=(),
        sources=(),
        limit="",
        fits=True,
    )


BEST = prediction(compute=1.0, bubble=0.0, data_parallel_communication=0.1)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (
            {"compute": 1.0, "data_parallel_communication": 0.32},
            "20 % slower: gradient reduction across 8 devices +220 ms",
        ),
        (
            {"compute": 1.0, "data_parallel_communication": 0.1, "recompute": 0.22},
            "20 % slower: recomputation +220 ms",
        ),
        (
            {"compute": 1.22, "data_parallel_communication": 0.0},
            "11 % slower: less efficient kernels (micro-batch 1, tp 1) +220 ms",
        ),
        (
            {"compute": 1.1},
            "as fast; tie",
        ),
    ],
)
def test_the_component_that_grew_most_is_named(parts, expected):
    assert why_not_first(PLAN, prediction(**parts), BEST) == expected


def test_a_bubble_is_given_as_its_fraction():
    other = prediction(
        compute=1.0, data_parallel_communication=0.1, bubble=0.1, bubble_fraction=0.09
    )
    assert why_not_first(PLAN, other, BEST) == "9.1 % slower: bubble 9.0 %"


def test_equal_times_compare_memory():
    other = prediction(memory_bytes=3 * 2.0**30, compute=1.1)
    assert why_not_first(PLAN, other, BEST) == "as fast, 2.00 GiB more memory"


@pytest.mark.parametrize(
    ("zero_stage", "part", "words"),
    [
        (2, Part.REDUCE, "gradient reduction across 8 devices"),
        (3, Part.REDUCE, "parameter gathering across 8 devices"),
        (0, Part.TENSOR, "tensor-parallel all-reduces across 2 devices"),
        (0, Part.CUT, "sends between 3 stages"),
        (0, Part.LAUNCH, "kernel launches (32 micro-batches)"),
        (0, Part.OPTIMIZER, "optimizer"),
    ],
)
def test_a_part_is_named_with_what_makes_it_longer(zero_stage, part, words):
    one = one_block_plan(dp=8, tp=2, global_batch=256)
    stages = tuple(replace(one.stages[0], first_block=i, last_block=i + 1) for i in range(3))
    plan = replace(
        one,
        block_entries=("a", "b", "c"),
        degrees=replace(one.degrees, pp=3),
        stages=stages,
        zero_stage=zero_stage,
    )
    before, other = prediction(compute=1.0), prediction(**{"compute": 1.0, part.value: 0.2})
    assert why_not_first(plan, other, before) == f"20 % slower: {words} +200 ms"


def test_stages_that_share_weights_reduce_nothing_across_replicas():
    other = prediction(compute=1.0, data_parallel_communication=0.32)
    said = why_not_first(one_block_plan(dp=1), other, BEST)
    assert said == "20 % slower: sums of shared weights' gradients +220 ms"
