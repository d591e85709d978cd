"""The explanation of a described run adds up to what is predicted of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from profiles.errors import ShardwrightError
from shardwright.runs.complete import complete_run
from shardwright.runs.predict_runs import predict_runs
from shardwright.runs.run import FIGURES, PublishedRun
from shardwright.runs.run_table import read_runs
from simulator.memory.footprint import footprint
from simulator.training_run.explain.explain_memory import explain_memory
from simulator.training_run.explain.explain_run import RunExplanation, explain_run
from simulator.training_run.fit.interval import run_intervals
from simulator.training_run.fit.recalibration import Calibration, calibrated
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.step_time import price_runs
from tests.simulator.described_runs import GPT_RUN, changed

TRUTH = Path(__file__).parents[3] / "shared" / "truth" / "runs.csv"


def completed(path: Path, *, every: int) -> list[TrainingRun]:
    found = []
    for run in read_runs(path, lenient=True)[::every]:
        try:
            found.append(complete_run(run))
        except ShardwrightError:
            continue
    return found


def parts_of(found: RunExplanation) -> dict[str, float]:
    sums: dict[str, float] = {}
    for line in found.lines:
        sums[line.part] = sums.get(line.part, 0.0) + line.time_s
    return sums


def test_lines_add_up_to_the_batch_predictions_part_by_part() -> None:
    """Lines are formulas run on symbols; the batch runs them on arrays of all rows."""
    rows = read_runs(FIGURES, lenient=True)
    checked = 0
    for asked in predict_runs(rows):
        if asked.run is None or asked.prediction is None:
            continue
        found = explain_run(asked.run)
        sums = parts_of(found)
        total = sum(sums.values())
        step = asked.prediction.step_time_s
        assert total == pytest.approx(step.value, rel=1e-9), asked.id
        parts = asked.prediction.seconds
        for name in {*sums, *parts}:
            time_s = parts.get(name, 0.0)
            assert sums.get(name, 0.0) == pytest.approx(time_s, abs=1e-9 * total), (asked.id, name)
        assert all(line.formula and line.numbers for line in found.lines)
        assert found.step.interval.low == pytest.approx(step.low)
        assert found.step.interval.high == pytest.approx(step.high)
        checked += 1
    assert checked > 50


def test_every_kind_of_open_row_is_explained() -> None:
    if not TRUTH.is_file():
        pytest.skip(f"no open rows at {TRUTH.parent.parent.name}/{TRUTH.parent.name}")
    for run in completed(TRUTH, every=11):
        found = explain_run(run)
        assert sum(line.time_s for line in found.lines) == pytest.approx(
            found.step.interval.value, rel=1e-9
        )


def test_memory_lines_add_up_to_the_footprint() -> None:
    checked = 0
    for run in completed(FIGURES, every=1):
        try:
            peaks = footprint(run)
        except ShardwrightError:
            continue
        found = explain_memory(run)
        total = sum(line.memory_bytes for line in found.lines)
        assert total == pytest.approx(peaks.shown_bytes, rel=1e-9), run.id
        assert found.shown_bytes == peaks.shown_bytes
        checked += 1
    assert checked > 10


def test_kept_layers_compute_to_the_activations() -> None:
    """Printed sizes have three digits: `(2 layers x 1.20 GiB + 10 ...) x 8 in flight`."""
    units = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
    some = changed(GPT_RUN, pp=4, recompute="full", recompute_layers=3)
    checked = 0
    for run in (some, replace(GPT_RUN, recompute="selective"), *completed(FIGURES, every=5)):
        try:
            lines = explain_memory(run).lines
        except ShardwrightError:
            continue
        for line in lines:
            if line.name != "activations" or "host memory" in line.numbers:
                continue
            layers, _, rest = line.numbers.partition(") x ")
            kept = sum(
                int(count) * float(size) * units[unit]
                for count, size, unit in re.findall(r"(\d+) [a-z ]+ x ([\d.]+) (\w+)", layers)
            )
            kept *= float(rest.partition(" in flight")[0])
            assert kept == pytest.approx(line.memory_bytes, rel=0.01), (run.id, line)
            checked += 1
    assert checked > 5
    (activations,) = (x for x in explain_memory(some).lines if x.name == "activations")
    # 96 layers on 4 stages: 3 of each 24 keep their inputs only, for 4 micro-batches.
    assert "3 layers x " in activations.numbers
    assert "21 layers not recomputed x " in activations.numbers
    assert ") x 4 in flight" in activations.numbers


def test_weights_are_shares_of_what_is_proportional() -> None:
    """The step is homogeneous of degree 1 in all but `congestion`, the exponents of the kinds that
    multiply each other (shares and speeds) apart: a run on one device without messages is the sum
    of terms of one coefficient each, so its weights add up to 1."""
    alone = [run for run in completed(FIGURES, every=1) if run.degrees.num_devices == 1]
    if not alone:
        run = completed(FIGURES, every=1)[0]
        alone = [
            changed(
                run,
                dp=1,
                tp=1,
                pp=1,
                vpp=1,
                cp=1,
                ep=1,
                sequence_parallel=False,
                zero_stage=0,
            )
        ]
    dense = next(run for run in alone if not run.model.num_experts)
    found = explain_run(dense)
    # `level` multiplies all others.
    weights = [x.weight for x in found.coefficients if not x.name.startswith("level.")]
    assert sum(weights) == pytest.approx(1.0, abs=2e-3)


def test_a_calibration_shows_in_values_origins_and_interval() -> None:
    run = completed(FIGURES, every=1)[0]
    plain = explain_run(run)
    own = {x.name: x for x in plain.coefficients}
    name = next(name for name in own if name.startswith(("power.", "matmul.")))
    made = Calibration(
        source="runs.csv",
        method="",
        date="2026-11-21",
        runs=3,
        based_on="",
        error_before=0.2,
        residual=0.05,
        left_out_error=0.1,
        values={name: 1.5 * own[name].value},
        covariance=((1e-4,),),
    )
    found = explain_run(run, made)
    changed = {x.name: x for x in found.coefficients}
    assert changed[name].origin == "calibration"
    assert changed[name].value == pytest.approx(1.5 * own[name].value)
    assert own[name].origin == "fitted"
    assert changed[name].spread == pytest.approx(0.01)
    value = found.step.interval.value
    assert [found.step.interval] == run_intervals(price_runs([run], calibrated(made)), made)
    assert sum(line.time_s for line in found.lines) == pytest.approx(value, rel=1e-9)


def test_everything_names_its_source() -> None:
    networks, kernels = set(), set()
    for run in completed(FIGURES, every=7):
        found = explain_run(run)
        leaves_node = run.degrees.num_devices > run.node_devices
        named = any(used.name.startswith("network, ") for used in found.sources)
        networks.add((leaves_node, named))
        for used in found.sources:
            assert used.source.strip(), (run.id, used.name)
            assert used.method.strip(), (run.id, used.name)
            if used.name.startswith("attention, "):
                older = load_framework(run.stack).attention == "flash-2"
                assert ("FlashAttention-2" in used.source) == older
                kernels.add(older)
        assert found.step.rows > 0
        assert all(np.isfinite(x.weight) and x.meaning for x in found.coefficients)
        assert found.run.defaults == run.defaults
    assert networks == {(False, False), (True, True)}
    assert kernels == {False, True}


def test_hybrids_and_options_are_explained_as_they_are_predicted() -> None:
    """Lines of states and casts, and the interval that options widen."""
    run = PublishedRun(
        row=1,
        id="hybrid",
        model="Nemotron 3 Nano",
        device="b200-sxm",
        num_devices=64,
        dp=64,
        tp=1,
        pp=1,
        ep=8,
        micro_batch=1,
        global_batch=512,
        precision="mxfp8",
        recompute="full",
        expert_imbalance=1.3,
        framework="Megatron-Core r0.15",
    )
    (predicted,) = predict_runs([run])
    assert predicted.run is not None
    assert predicted.step_time_s is not None
    found = explain_run(predicted.run)
    names = {line.name for line in found.lines}
    assert {"recurrence of states, forward", "recurrence of states, recomputed"} <= names
    assert "casts to fewer bits, backward" in names
    assert sum(parts_of(found).values()) == pytest.approx(predicted.step_time_s.value, rel=1e-9)
    assert found.step.interval == predicted.step_time_s
