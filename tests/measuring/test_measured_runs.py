"""Predictions against runs on this machine: three models, three schedules, two processes.

Asserted is CPU time, of pairs of a profile and a run between which the machine held still: its
reference kernel `layers` was as fast between the run's steps as in the profile, within 3 %, and at
least half of the steps waited for no core. A pair that is disturbed or outside the bound is
measured anew, profile and run, three times at most. Where the machine never holds still the test
says so and is skipped with the raw errors, it does not pass; where an undisturbed pair was outside
and none within, it fails. Wall time is shown beside.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from executor.launch import run_plan
from executor.probe_pipeline import BlockProbe, even_stages
from profiles.document import write_document
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.probe.probe import measure_machine
from profiles.model.loaders import resolve_model
from profiles.model.tracing.traced import trace_model
from shardwright.analysis.comparison import Drift, drifts_of
from simulator.traced.predict import predict
from simulator.values.degrees import Degrees
from simulator.values.measurement import Measurement
from simulator.values.plan import PLAN_SCHEMA, Plan
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import Prediction
from simulator.values.workload import Workload

pytestmark = pytest.mark.measuring

SCHEDULES = (("1f1b", 1), ("gpipe", 1), ("interleaved", 2))
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 320,
    "n_layer": 8,
    "n_head": 5,
    "vocab_size": 4096,
    "n_positions": 256,
}
MODELS = {
    "llama": ("tiny-llama-demo", 128, 2),
    "gpt2": ("gpt2.json", 128, 2),
    "resnet50": ("examples.resnet50:build", 1, 2),
}
SHORT = ("tiny-llama-demo", 64, 2)  # half the study's length, and of its profiled steps
BUSY = 0.06  # the aim, asserted by the study of all schedules (make validate)
NOT_WORSE = 0.25  # of every test run: a process may stay in a slow state that no kernel shows
ATTEMPTS = 3
MEMORY = 0.05
STEPS = 6


@pytest.fixture(scope="module")
def machine() -> Cluster:
    return measure_machine(2, 1, date="2026-11-21", quick=True)


def busy_seconds(prediction: Prediction, micro_batches: int) -> float:
    """Predicted CPU seconds of all stages in a step: without what the runtime adds around them."""
    return sum(
        micro_batches * (s.forward_s + s.backward_s - s.runtime_s) for s in prediction.stages
    )


def busy_cpu_seconds(measured: Measurement, micro_batches: int) -> float:
    return sum(micro_batches * (s.forward_cpu_s + s.backward_cpu_s) for s in measured.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Errors of one prediction against its run, and how the machine moved between them."""

    wall: float
    busy: float
    peaks: tuple[float, ...]
    drifts: tuple[Drift, ...]
    quiet_steps: int

    @property
    def held_still(self) -> bool:
        moved = any(drift.disturbed for drift in self.drifts)
        return bool(self.drifts) and not moved and 2 * self.quiet_steps >= STEPS

    def __str__(self) -> str:
        peaks = ", ".join(f"{p:+.1%}" for p in self.peaks)
        speeds = ", ".join(f"{d.kernel} {d.speed:.2f}" for d in self.drifts)
        still = "still" if self.held_still else "DISTURBED"
        return (
            f"step {self.wall:+.1%} (wall), work {self.busy:+.1%} (CPU), memory {peaks}; "
            f"{self.quiet_steps}/{STEPS} steps undisturbed; speed against the profile: {speeds}, "
            f"{still}"
        )


def test_predictions_agree_with_1f1b_runs(
    machine: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(
        "llama",
        SHORT,
        SCHEDULES[:1],
        machine,
        tmp_path,
        capsys,
        bound=NOT_WORSE,
        profiled_steps=STEPS,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS))
def test_predictions_agree_with_runs_of_every_schedule(
    name: str, machine: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(name, MODELS[name], SCHEDULES, machine, tmp_path, capsys, bound=BUSY)


def check(
    name: str,
    case: tuple[str, int, int],
    schedules: tuple[tuple[str, int], ...],
    machine: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    bound: float,
    profiled_steps: int = 12,
) -> None:
    text, length, micro_batch = case
    if text.endswith(".json"):
        path = tmp_path / text
        path.write_text(json.dumps(GPT2))
        text = str(path)
    spec = resolve_model(text)
    model = trace_model(spec, sequence_length=length, dtype="float32", target="cpu")
    graph = model.at(micro_batch)

    def profiled() -> Cluster:
        return BlockProbe(spec, model, machine).profiled(micro_batch, profiled_steps)

    def pair(cluster: Cluster, schedule: str, vpp: int) -> Pair:
        measurements = cluster.groups[0].device.measurements
        assert measurements is not None
        times = {p.kind: p.forward_s + p.backward_s for p in measurements.blocks}
        plan = Plan(
            model=text,
            model_hash=spec.content_hash,
            block_entries=tuple(ref.entry for ref in graph.chain),
            tied_parameters=model.tied_parameters,
            cluster="local",
            cluster_hash="",
            workload=Workload(
                global_batch=4 * micro_batch, sequence_length=length, precision="fp32"
            ),
            degrees=Degrees(pp=2, vpp=vpp),
            micro_batch=micro_batch,
            schedule=schedule,
            stages=even_stages([times[block.kind] for block in graph.blocks], 2 * vpp),
        )
        prediction = predict(plan, model, cluster)
        plan_path = tmp_path / "plan.json"
        answer = PlanFile(
            status="feasible",
            search_time_s=0.0,
            cells_considered=1,
            plan=plan,
            prediction=prediction,
        )
        write_document(plan_path, answer, schema=PLAN_SCHEMA)
        measured = run_plan(plan_path, steps=STEPS, output=tmp_path / "run.json")
        return Pair(
            wall=prediction.step_time_s.value / measured.step_wall_s - 1,
            busy=busy_seconds(prediction, 4) / busy_cpu_seconds(measured, 4) - 1,
            peaks=tuple(
                predicted.peak_bytes / found.peak_memory_bytes - 1
                for predicted, found in zip(prediction.ranks, measured.ranks, strict=True)
            ),
            drifts=drifts_of(prediction, measured),
            quiet_steps=sum(not step.disturbed for step in measured.steps),
        )

    unproved = []
    for schedule, vpp in schedules:
        tried: list[Pair] = []
        for _ in range(ATTEMPTS):
            tried.append(pair(profiled(), schedule, vpp))
            with capsys.disabled():
                print(f"\n{name} {schedule}: {tried[-1]}")
            assert max(map(abs, tried[-1].peaks)) < MEMORY, (name, schedule, tried[-1].peaks)
            if tried[-1].held_still and abs(tried[-1].busy) < bound:
                break
        else:
            errors = ", ".join(f"{one.busy:+.1%}" for one in tried)
            still = [one for one in tried if one.held_still]
            assert not still, f"{name} {schedule}: errors of the work {errors}, bound {bound:.0%}"
            unproved.append(f"{schedule} (errors of the work: {errors})")
    if unproved:
        pytest.skip(
            f"{name}: the machine did not hold still between profile and run in {ATTEMPTS} "
            f"attempts: {'; '.join(unproved)}"
        )
