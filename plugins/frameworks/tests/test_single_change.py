"""The judge of first-ranked changes: which runs are neighbours, and the published sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.changes.single_change import single_changes

from bench.single_change import changed_setting, judge, measured_runs
from plugins.frameworks.tests.changes.test_changes import run_of
from tests.simulator.described_runs import changed

TRUTH = Path(__file__).parents[4] / "shared" / "truth"


def test_a_neighbour_differs_in_one_setting() -> None:
    run = run_of()
    for change in single_changes(run):
        assert changed_setting(run, change.run) == change.setting
    assert changed_setting(run, run) is None
    assert changed_setting(run, changed(run, tp=2, dp=4, micro_batch=2)) is None


@pytest.mark.skipif(not TRUTH.is_dir(), reason="../shared/truth is absent")
def test_first_ranked_changes_were_improvements() -> None:
    tables = [TRUTH / "runs.csv", TRUTH / "runs_more.csv"]
    found = judge(measured_runs(tables, ("bloom", "flagperf")), 0.05)
    for source, judged in found.items():
        advised, right = judged.first
        assert advised >= 4, source
        # bloom: 3 of 4 (7 of 7 while coefficients contained the effects of their sources).
        assert right >= 0.75 * advised, source
