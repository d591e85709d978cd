"""Three named figures of memory: allocated, reserved, and what must fit."""

from __future__ import annotations

from dataclasses import replace

from shardwright.analysis.comparison import compare_run
from shardwright.reports.terminal import memory_words
from simulator.values.plan_file import PlanFile
from tests.shardwright.hand_made import answer, prediction, run_of

GIB = 2.0**30


def with_required(found: PlanFile, required_bytes: float) -> PlanFile:
    assert found.prediction is not None
    ranks = tuple(replace(rank, required_bytes=required_bytes) for rank in found.prediction.ranks)
    return replace(found, prediction=replace(found.prediction, ranks=ranks))


def test_what_must_fit_decides_whether_a_rank_fits():
    rank = prediction().ranks[0]
    assert (rank.peak_bytes, rank.capacity_bytes) == (500.0, 1000.0)
    assert rank.fits
    assert rank.use == 0.5
    tight = replace(rank, required_bytes=1100.0)
    assert not tight.fits
    assert tight.use == 1.1
    assert tight.peak_bytes == 500.0


def test_a_run_is_compared_with_what_is_allocated():
    """torch.cuda.max_memory_allocated was put next to what must fit, 8.5 % more."""
    planned = with_required(answer(), 600.0)
    rows = compare_run(planned, run_of(planned)).rows
    assert [row.predicted for row in rows if row.name.endswith("peak memory")] == [500.0, 500.0]


def test_both_figures_are_printed_where_both_are_known():
    assert (
        memory_words(58.1 * GIB, 62.5 * GIB, 77.4 * GIB)
        == "peak 58.1 GiB, needs 62.5 GiB of 77.4 GiB"
    )
    assert memory_words(58.1 * GIB, None, 77.4 * GIB) == "peak 58.1 GiB of 77.4 GiB"
