"""The planner's own choice beside every published group of measured layouts."""

import csv
from pathlib import Path

import pytest

from shardwright.runs.run_table import read_runs
from tests.oracles.proposals import proposals

RUNS = Path(__file__).parents[2].parent / "shared" / "truth" / "runs.csv"


@pytest.mark.skipif(not RUNS.is_file(), reason="no ../shared/truth/runs.csv beside the repository")
def test_no_measured_layout_is_predicted_faster_than_the_proposed_one():
    with RUNS.open(newline="") as file:
        measured = {
            row["id"]: float(row["step_time_s"])
            for row in csv.DictReader(file)
            if row["step_time_s"]
        }
    found = proposals(read_runs(RUNS, lenient=True), measured)
    assert len(found) >= 40
    for proposal in found:
        assert proposal.predicted_s <= proposal.best_predicted_s * (1 + 1e-9), proposal
    regrets = sorted(p.regret for p in found if p.regret is not None)
    print("regret where the proposed layout was measured:", [f"{r:.1%}" for r in regrets])
    assert regrets
