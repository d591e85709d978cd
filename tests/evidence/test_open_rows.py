"""The open rows that stand beside the repository: how many are predicted, how near their step times
and their peaks come. In one file, since the peaks of the largest sweep are run once for all."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evidence.compared_run import ComparedRun, compare_runs
from evidence.cross_fit import fit, fit_table, predicted_s
from evidence.groups import source_of
from evidence.statistics import step_time_summary
from evidence.targets import TARGETS, outcome
from shardwright.commands.tables.predict_runs import predicted_runs
from shardwright.runs.complete import UnsupportedRunError, complete_run
from shardwright.runs.run_table import read_measured, read_runs
from simulator.memory.footprint import footprint
from simulator.training_run.run.training_run import TrainingRun

TRUTH = Path(__file__).parents[3] / "shared" / "truth"
GIB = 2**30
pytestmark = pytest.mark.skipif(
    not (TRUTH / "runs.csv").is_file(), reason=f"no published runs at {TRUTH}"
)


@functools.cache
def _measured() -> tuple[tuple[TrainingRun, float], ...]:
    peaks = {m.id: m.peak_memory_gib for m in read_measured(TRUTH / "runs.csv")}
    found = []
    for run in read_runs(TRUTH / "runs.csv", lenient=True):
        peak = peaks[run.id]
        if peak is not None:
            try:
                found.append((complete_run(run), peak))
            except UnsupportedRunError:
                continue
    return tuple(found)


def _errors(prefix: str, *, unit: float = GIB) -> np.ndarray:
    rows = [(run, peak) for run, peak in _measured() if run.id.startswith(prefix)]
    assert rows
    return np.array([footprint(run).shown_bytes / unit / peak - 1 for run, peak in rows])


@pytest.mark.parametrize(
    ("prefix", "worst_mean"),
    # As measured, with a little room: 0.10 %, 3.6 %, 8.0 %, 7.9 %, 7.5 %.
    [
        ("simumax-b200", 0.002),
        ("bloom", 0.04),
        ("ultra", 0.083),
        ("mlperf", 0.09),
        ("dlperf", 0.08),
    ],
)
def test_mean_error(prefix: str, worst_mean: float) -> None:
    assert np.abs(_errors(prefix)).mean() <= worst_mean


def test_zero_bubble_prints_decimal_gigabytes() -> None:
    # Its runtime logs max_memory_allocated() // 1000000; read as GiB the same rows are 5.7 % off.
    assert np.abs(_errors("zb_", unit=1e9)).mean() <= 0.025
    assert np.abs(_errors("zb_")).mean() <= 0.06


def test_without_tensor_parallelism_counted_tensors_are_within_a_few_per_cent() -> None:
    errors = [
        footprint(run).shown_bytes / GIB / peak - 1
        for run, peak in _measured()
        if run.id.startswith("ultra") and run.degrees.tp == 1
    ]
    assert len(errors) == 85
    # 3.0 % and 4.1 %: nothing is fitted, and how the allocator fills its blocks is not known.
    assert np.median(np.abs(errors)) <= 0.032
    assert np.mean(np.abs(errors)) <= 0.043


def test_no_model_of_the_sweep_is_far_from_the_others() -> None:
    by_depth: dict[int, list[float]] = {}
    for run, peak in _measured():
        if run.id.startswith("ultra"):
            error = abs(footprint(run).shown_bytes / GIB / peak - 1)
            by_depth.setdefault(run.model.num_layers, []).append(error)
    assert len(by_depth) == 4
    assert all(np.mean(errors) < 0.09 for errors in by_depth.values())


def test_fits_or_fails() -> None:
    ran = np.mean([footprint(run).fits for run, _ in _measured() if run.id.startswith("ultra")])
    failed = [complete_run(run) for run in read_runs(TRUTH / "failed.csv")]
    assert len(failed) == 753
    stopped = np.mean([not footprint(run).fits for run in failed])
    # 97.6 % and 94.7 %; of the rest a good part failed for other reasons than memory.
    assert (ran + stopped) / 2 >= 0.96


@pytest.fixture(scope="module")
def compared() -> tuple[ComparedRun, ...]:
    path = TRUTH / "runs.csv"
    runs = read_runs(path, lenient=True)
    return compare_runs(runs, read_measured(path), predicted_runs(runs))


def test_nearly_every_open_row_is_predicted(compared: tuple[ComparedRun, ...]) -> None:
    """97 % of all rows and of those that name their layout; the others say why."""
    assert len(compared) == 2068
    named = [row for row in compared if row.run.tp is not None and row.run.pp is not None]
    for rows in (compared, named):
        assert sum(row.supported for row in rows) >= 0.97 * len(rows)
    for row in compared:
        if not row.supported:
            assert len(row.predicted.status) > len("unsupported: run '' cannot be predicted: ")
            assert row.predicted.step_time_s is None
    # No source is left out as a whole but one of three rows without a batch or a device.
    lost = Counter(source_of(row.run.id) for row in compared if not row.supported)
    assert lost["mbridge"] <= 20  # state-space models
    assert set(lost) <= {"mbridge", "mlperf", "colossal"}


@pytest.fixture(scope="module")
def with_effects(compared: tuple[ComparedRun, ...]) -> tuple[ComparedRun, ...]:
    """The rows with step times of a fit that includes the effects of their own sources."""
    path = TRUTH / "runs.csv"
    table = fit_table(read_runs(path, lenient=True), read_measured(path))
    times = predicted_s(table, fit(table), own=True).tolist()
    own = {run.id: time_s for run, time_s in zip(table.runs, times, strict=True)}
    return tuple(
        replace(row, predicted=replace(row.predicted, step_time_s=own[row.run.id]))
        if row.run.id in own
        else row
        for row in compared
    )


# Targets of each source with its own effect, and a fifth more: small changes of the model may not
# break a test, a lost term must. Cross-validated figures: docs/accuracy.md.
MARGIN = 1.2
REACHED = (
    "llmf, bf16, sequence up to 8k",
    "simumax-b200",
    "korthikanti-tab5",
    "vtrain-single",
    "zb",
    "mbridge and mlperf, dense bf16 or fp8, layout known",
    "TPU",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", REACHED)
def test_open_rows_come_within_their_target(
    with_effects: tuple[ComparedRun, ...], name: str
) -> None:
    (target,) = (target for target in TARGETS if target.name == name)
    found = outcome(target, with_effects)
    assert found.compared == found.rows or name == "TPU"
    assert target.step_time is not None
    assert found.step_time <= MARGIN * target.step_time
    if target.bias is not None:
        assert abs(found.bias) <= MARGIN * target.bias


def test_no_source_is_below_its_interval(compared: tuple[ComparedRun, ...]) -> None:
    """90 % intervals of new sources contain 85 % of all rows and 75 % of each source's, but 5 of
    SimuMax's 14, which are predicted 24 % too fast without their own effect."""
    inside: dict[str, list[bool]] = {}
    for row in compared:
        if row.step_time_error is not None:
            inside.setdefault(source_of(row.run.id), []).append(row.step_time_inside)
    every = [held for rows in inside.values() for held in rows]
    assert sum(every) >= 0.85 * len(every)
    for source, held in inside.items():
        least = 5 / 14 if source == "simumax-b200" else 0.75
        assert sum(held) >= least * len(held), source


@pytest.mark.slow
def test_no_source_is_far_off(with_effects: tuple[ComparedRun, ...]) -> None:
    """With its own effect no source but the sweep whose slow rows have network trouble is off by
    more than a sixth (before source effects were fitted apart, shipped predictions were)."""
    known = (row for row in with_effects if row.step_time_error is not None)
    for source in {source_of(row.run.id) for row in known} - {"ultra"}:
        mine = [row for row in with_effects if source_of(row.run.id) == source]
        assert step_time_summary(mine).mean_absolute < 1 / 6, source
