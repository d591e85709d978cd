"""Fitting on some rows and predicting the others: what is fitted on, and that nothing leaks."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evidence.cross_fit import FitTable, fit, fit_table, left_out, predicted_s
from evidence.crossvalidate import source_folds
from evidence.groups import source_of
from profiles.document import read_document
from shardwright.runs.run import FIGURES, PublishedRun
from shardwright.runs.run_table import Measured, read_measured, read_runs
from simulator.training_run.fit.evidence import EVIDENCE_SCHEMA, EvidenceFile
from simulator.training_run.fit.step_spread import read_covariance
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import COEFFICIENTS_SCHEMA, CoefficientFile
from tools import derive_calibration

# A few rows of two sources: one stack and device each.
SOURCES = ("llmf", "simumax-b200")
PUBLISHED = tuple(
    run
    for run in read_runs(FIGURES)
    if source_of(run.id) in SOURCES and run.num_devices == 8 and run.precision == "bf16"
)[::2]
MEASURED = read_measured(FIGURES)


def slowed(ids: set[str], factor: float) -> tuple[Measured, ...]:
    return tuple(
        replace(row, step_time_s=factor * row.step_time_s)
        if row.id in ids and row.step_time_s
        else row
        for row in MEASURED
    )


@pytest.fixture(scope="module")
def table() -> FitTable:
    return fit_table(PUBLISHED, MEASURED)


def test_the_table_holds_what_was_timed_and_can_be_predicted() -> None:
    one, two, three = PUBLISHED[:3]
    lost = replace(two, device="h1000")
    table = fit_table([one, lost, three], [row for row in MEASURED if row.id != three.id])
    assert [run.id for run in table.published] == [run.id for run in table.runs] == [one.id]
    assert [run.id for run in table.runs] == [one.id]
    assert table.measured_s.shape == table.weights.shape == (1,)


def test_rows_are_in_their_order(table: FitTable) -> None:
    assert len(table.runs) >= 12
    assert [run.id for run in table.runs] == [run.id for run in PUBLISHED]
    times = {row.id: row.step_time_s for row in MEASURED}
    assert table.measured_s.tolist() == [times[run.id] for run in PUBLISHED]
    assert set(table.weights.tolist()) == {1.0}


def test_a_source_counts_for_forty_rows_at_most() -> None:
    """80 rows of one source weigh a half each, 10 of another weigh one."""
    first = next(run for run in PUBLISHED if source_of(run.id) == "llmf")
    other = next(run for run in PUBLISHED if source_of(run.id) == "simumax-b200")
    runs = [replace(first, id=f"llmf-{i}") for i in range(80)]
    runs += [replace(other, id=f"simumax-b200-{i}") for i in range(10)]
    found = fit_table(runs, [Measured(id=run.id, step_time_s=10.0) for run in runs])
    assert set(found.weights[80:].tolist()) == {1.0}
    assert found.weights[:80].sum() == pytest.approx(40.0)


def test_runs_with_network_trouble_have_a_weight_of_their_own() -> None:
    """The README of the published runs: below 20 % MFU on several nodes. 8 x 0.13e9 weights
    x 6 x 4.2e6 tokens are 2.6e16 flop; 32 H100 at 20 % of 989 TFLOP/s take 4.1 s. They are fitted
    on where hosts wait for messages, as nanotron's do, and only predicted elsewhere."""
    run = PublishedRun(
        row=1,
        id="ultra-1",
        model="llama-like",
        num_layers=16,
        hidden_size=2048,
        ffn_size=8192,
        num_heads=32,
        num_kv_heads=8,
        vocab_size=32768,
        seq_len=4096,
        device="h100-sxm-80gb",
        num_devices=32,
        dp=32,
        tp=1,
        pp=1,
        micro_batch=1,
        global_batch=1024,
        framework="nanotron",
    )
    weights = 16 * (4 * 2048**2 + 3 * 2048 * 8192) + 2048 * 32768
    limit_s = 6 * weights * 1024 * 4096 / (32 * 989e12 * 0.20)

    def weight(changed: PublishedRun, step_time_s: float) -> float:
        measured = [Measured(id=changed.id, step_time_s=step_time_s)]
        return float(fit_table([changed], measured).weights[0])

    other = replace(run, framework="Megatron-Core")
    assert weight(other, 0.99 * limit_s) == 1.0
    assert weight(other, 1.01 * limit_s) == 0.0
    # One node has no such network.
    alone = replace(other, num_devices=8, dp=8)
    assert weight(alone, 100 * limit_s) == 1.0
    # 80 of one kind and 160 of the other: each weighs 40 rows.
    runs = [replace(run, id=f"ultra-{i}") for i in range(240)]
    slow = [i >= 80 for i in range(240)]
    measured = [
        Measured(id=run.id, step_time_s=(1.01 if late else 0.99) * limit_s)
        for run, late in zip(runs, slow, strict=True)
    ]
    weights_of = fit_table(runs, measured).weights
    assert weights_of.tolist() == [0.5] * 80 + [0.25] * 160


def test_a_fit_comes_near_its_rows(table: FitTable) -> None:
    """The effects of the sources explain part of the errors."""
    fitted = fit(table)
    error, own = (
        float(np.median(np.abs(predicted_s(table, fitted, own=each) / table.measured_s - 1)))
        for each in (False, True)
    )
    assert fitted.residual < 0.15
    assert own < 0.06 < error


def test_a_rows_own_time_never_reaches_its_prediction(table: FitTable) -> None:
    """Slow down one fold three times: its own predictions stay to the bit, the others move."""
    folds = {run.id: "odd" if i % 2 else "even" for i, run in enumerate(table.published)}
    odd = np.asarray([folds[run.id] == "odd" for run in table.published])
    whole = fit(table)
    before = left_out(table, folds, start=whole, own=True).time_s
    spoilt = fit_table(PUBLISHED, slowed({i for i, fold in folds.items() if fold == "odd"}, 3.0))
    after = left_out(spoilt, folds, start=whole, own=True).time_s
    assert np.isfinite(before).all()
    assert after[odd].tolist() == before[odd].tolist()
    assert np.all(after[~odd] > 1.3 * before[~odd])
    # Left-out rows are predicted worse than fitted ones.
    error = np.abs(before / table.measured_s - 1).mean()
    inside = np.abs(predicted_s(table, whole, own=True) / table.measured_s - 1).mean()
    assert inside < error < 0.25


def test_a_source_left_out_has_no_effect(table: FitTable) -> None:
    """Without its rows a source is new: with or without `own` the prediction is the same."""
    folds = source_folds(table.published)
    plain, own = (left_out(table, folds, own=each) for each in (False, True))
    assert own.time_s == pytest.approx(plain.time_s)
    assert np.all(own.spread <= plain.spread * 1.001)


def test_rows_of_a_new_source_are_less_certain(table: FitTable) -> None:
    whole = left_out(table, source_folds(table.published)).spread
    halves = {run.id: str(i % 2) for i, run in enumerate(table.published)}
    own = left_out(table, halves, own=True).spread
    assert np.all(own < 0.8 * whole)
    assert np.all(own > 0)


def test_rows_in_no_fold_have_no_prediction(table: FitTable) -> None:
    first = table.published[0].id
    found = left_out(table, {first: "only", "not in the table": "only"}).time_s
    assert np.isfinite(found[0])
    assert np.isnan(found[1:]).all()


def test_the_data_files_are_made_from_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All files read back, hold every kind, and are the same when made again."""
    lines = FIGURES.read_text(encoding="utf-8").splitlines(keepends=True)
    few = {run.id for run in PUBLISHED[::2]}
    runs = tmp_path / "runs.csv"
    kept = [line for line in lines if line.split(",")[0] in few]
    runs.write_text("".join([lines[0], *kept]), encoding="utf-8")
    assert len(kept) == len(few) >= 6
    coefficients, covariance = tmp_path / "runs.toml", tmp_path / "run_covariance.npz"
    monkeypatch.setattr(derive_calibration, "COEFFICIENTS_FILE", coefficients)
    monkeypatch.setattr(derive_calibration, "COVARIANCE_FILE", covariance)
    evidence = tmp_path / "run_evidence.toml"
    monkeypatch.setattr(derive_calibration, "EVIDENCE_FILE", evidence)
    monkeypatch.setattr(sys, "argv", ["derive_calibration", str(runs)])
    made = []
    for _ in range(2):
        derive_calibration.main()
        made.append([file.read_bytes() for file in (coefficients, covariance, evidence)])
    assert made[0] == made[1]
    printed = capsys.readouterr().out
    assert "source left out: median of 2 sources" in printed
    assert "5-fold, own effect: median of 2 sources" in printed
    file = read_document(coefficients, CoefficientFile, schema=COEFFICIENTS_SCHEMA)
    assert file.runs == len(few)
    assert file.quantile >= 1.645
    assert set(file.between) == {kind.name for kind in KINDS}
    # Coefficients of devices in the table and of their architectures, and of no others.
    assert {name.partition(".")[2] for name in file.values if name.startswith("power.")} <= {
        "ampere.16.*",
        "hopper.16.*",
        "blackwell.16.*",
        "a100-sxm-80gb.16",
        "h100-sxm-80gb.16",
        "b200-sxm.16",
    }
    # Two sources, each with a framework of its own: one determines either level.
    assert file.sources_of["level.torch-fsdp"] == 1
    assert set(file.sources_of.values()) <= {0, 1, 2}
    names, matrix = read_covariance(covariance)
    assert set(file.values) <= set(names)
    assert matrix.shape == (len(names), len(names))
    known = read_document(evidence, EvidenceFile, schema=EVIDENCE_SCHEMA)
    assert sum(found.runs for found in known.step.values()) == len(few)


def test_locked_sources_are_never_fitted_on(table: FitTable) -> None:
    locked = replace(
        table,
        origin=replace(table.origin, sources=["moezoo"] * 2 + ["kwai"] * (len(table.runs) - 2)),
    )
    weights = derive_calibration.learned(locked).weights
    assert weights[:2].tolist() == [0.0, 0.0]
    assert weights[2:].tolist() == table.weights[2:].tolist()


def test_a_coefficient_at_a_limit_or_far_from_its_start_is_reported(table: FitTable) -> None:
    fitted = fit(table)
    values = fitted.values.copy()
    names = table.assigned.names
    values[names.index("tensor_exposed.*")] = 1.0
    values[names.index("passes.*")] = 5.0
    values[names.index("launch_us.*")] = 25.0
    found = derive_calibration.doubtful(table, replace(fitted, values=values))
    assert any(text.startswith("tensor_exposed.* = 1 is at a limit") for text in found)
    assert any(text.startswith("passes.* = 5 is +6.7 prior widths") for text in found)
    assert not any(text.startswith("launch_us") for text in found)
