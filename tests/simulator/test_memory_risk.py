"""The probability of running out of memory, by hand and on the runs of a published sweep."""

from dataclasses import replace
from pathlib import Path

import pytest

from profiles.hardware.catalogue.catalog import get_device
from shardwright.runs.complete import complete_run
from shardwright.runs.run_table import read_failed_layouts, read_runs
from simulator.memory.footprint import footprint
from simulator.training_run.fit.memory_interval import (
    margin_names,
    memory_interval,
    memory_margin,
    out_of_memory_probability,
    shipped_memory_intervals,
)

TRUTH = Path(__file__).parents[2].parent / "shared" / "truth"
FIGURES = Path(__file__).parents[2] / "profiles" / "data" / "published" / "figures.csv"


def a_run(stack="megatron-core"):
    run = complete_run(next(iter(read_runs(FIGURES, lenient=True))))
    return replace(run, stack=stack, zero_stage=1)


def test_a_band_is_two_quantiles():
    run = a_run()
    band = shipped_memory_intervals().margins["megatron-core"]
    assert margin_names(run) == ("megatron-core", "megatron-*", "*")
    assert memory_margin(run, 0.05) == pytest.approx(band.high)
    assert memory_margin(run, 0.95) == pytest.approx(band.low)
    # Half of the runs need more than the middle of the band, in the logarithm.
    assert memory_margin(run, 0.5) == pytest.approx((band.low * band.high) ** 0.5)


def test_the_probability_undoes_the_margin():
    run = a_run()
    for risk in (0.01, 0.1, 0.5, 0.9):
        peak = 80.0 / memory_margin(run, risk)
        assert out_of_memory_probability(run, peak, 80.0) == pytest.approx(risk)


def test_a_framework_whose_memory_is_predicted_too_low_gets_more_room():
    assert memory_margin(a_run("torchtitan-compiled"), 0.1) > 1.5
    assert memory_margin(a_run("megatron-core"), 0.1) < 1.25


def test_the_interval_of_a_new_source_is_wider_than_the_margin():
    """A layout is refused by what its own framework's rows need, not by what sources differ in."""
    run = a_run()
    assert memory_interval(run, 1.0).high > memory_margin(run, 0.05)


@pytest.mark.skipif(not TRUTH.is_dir(), reason="no ../shared/truth beside the repository")
def test_as_many_run_out_as_said():
    """Of the layouts of a sweep, some of which failed, by the probability that was predicted."""
    found = []
    for runs, failed in (
        (read_runs(TRUTH / "runs.csv", lenient=True), False),
        (read_failed_layouts(TRUTH / "failed.csv", lenient=True), True),
    ):
        for asked in runs:
            if not (failed or asked.id.startswith("ultra")):
                continue
            run = complete_run(asked)
            memory = footprint(run)
            if not memory.refused:
                usable = get_device(run.device).usable_bytes
                risk = out_of_memory_probability(run, memory.needed_bytes, usable)
                found.append((risk, failed))
    for low, high in ((0.0, 0.1), (0.1, 0.9), (0.9, 1.0001)):
        mine = [failed for risk, failed in found if low <= risk < high]
        share = sum(mine) / len(mine)
        print(f"risk {low:.0%} to {high:.0%}: {len(mine)} layouts, {share:.0%} ran out")
        assert low - 0.1 <= share <= high + 0.1
