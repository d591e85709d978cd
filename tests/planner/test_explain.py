"""Why a runner-up lost."""

from __future__ import annotations

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


def test_stages_that_share_weights_reduce_nothing_across_replicas():
    other = prediction(compute=1.0, data_parallel_communication=0.32)
    said = why_not_first(one_block_plan(dp=1), other, BEST)
    assert said == "20 % slower: sums of shared weights' gradients +220 ms"
