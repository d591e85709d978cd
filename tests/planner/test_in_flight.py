"""Micro-batches in flight against the simulator's schedules."""

from __future__ import annotations

import pytest

from planner.cell import Cell
from planner.costs.cell_memory import in_flight
from simulator.schedules.schedule import build_schedule
from simulator.values.degrees import Degrees
from tests.oracles.held_activations import stage_peaks


def cell(schedule, pp, micro, vpp=1):
    return Cell(
        degrees=Degrees(pp=pp, vpp=vpp),
        zero_stage=0,
        micro_batch=1,
        schedule=schedule,
        global_batch=micro,
    )


@pytest.mark.parametrize(
    ("schedule", "pp", "micro"),
    [("none", 1, 5), ("gpipe", 3, 4), ("1f1b", 4, 8), ("1f1b", 4, 2), ("1f1b", 1, 3)],
)
def test_it_is_what_the_schedule_keeps(schedule, pp, micro):
    built = build_schedule(schedule, num_ranks=pp, num_microbatches=micro)
    assert in_flight(cell(schedule, pp, micro)) == stage_peaks(built)


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (3, 2), (4, 2), (4, 3), (8, 2), (2, 8)])
def test_an_interleaved_schedule_settles(pp, vpp):
    # More micro-batches than four rounds change nothing; no stage keeps more than its own peak.
    four, many = (in_flight(cell("interleaved", pp, rounds * pp, vpp)) for rounds in (4, 9))
    assert four == many
    built = build_schedule(
        "interleaved", num_ranks=pp, num_microbatches=4 * pp, stages_per_rank=vpp
    )
    assert all(a <= b for a, b in zip(four, stage_peaks(built), strict=True))
    # The first rank keeps most: (v - 1) p + 2 (p - 1) + 1 forwards before its first backward.
    assert sum(four[::pp]) == min((vpp - 1) * pp + 2 * (pp - 1) + 1, 4 * pp * vpp)
