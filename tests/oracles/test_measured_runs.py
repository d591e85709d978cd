"""Predictions against runs on this machine: three models, three schedules, two processes.

CPU time is what is asserted: it does not count waiting for a core that another program has. The
report shows wall time too. Each model's blocks are measured right before its runs, since the speed
of a shared machine drifts.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from executor.launch import run_plan
from profiles.document import write_document
from profiles.hardware.cluster import Cluster
from profiles.hardware.probe import measure_machine
from profiles.hardware.probe_blocks import measure_blocks
from profiles.hardware.profile_file import with_blocks
from profiles.model.loaders import resolve_model
from profiles.model.traced import trace_model
from simulator.measurement import Measurement
from simulator.plan import PLAN_SCHEMA, Plan, Recompute, Stage
from simulator.plan_file import PlanFile
from simulator.predict import predict
from simulator.prediction import Prediction
from simulator.workload import Workload

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
# A shared machine's speed moves by 10 to 29 % in CPU time between a profile and a run minutes
# later, so a pair that is further off is measured anew, three times at most. That is a weaker check
# than one pair within the bound: it shows a prediction that is always wrong, not one that often is.
BUSY = 0.25
ATTEMPTS = 3
MEMORY = 0.05
STEPS = 6


@pytest.fixture(scope="module")
def machine() -> Cluster:
    return measure_machine(2, 1, date="2026-11-21", quick=True)


def busy_seconds(prediction: Prediction, micro_batches: int) -> float:
    """Predicted work of all ranks in a step, without what they wait."""
    return sum(micro_batches * (s.forward_s + s.backward_s) for s in prediction.stages)


def busy_cpu_seconds(measured: Measurement, micro_batches: int) -> float:
    return sum(micro_batches * (s.forward_cpu_s + s.backward_cpu_s) for s in measured.stages)


@pytest.mark.parametrize("name", list(MODELS))
def test_predictions_agree_with_1f1b_runs(
    name: str, machine: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(name, SCHEDULES[:1], machine, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS))
def test_predictions_agree_with_runs_of_every_schedule(
    name: str, machine: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(name, SCHEDULES, machine, tmp_path, capsys)


def check(
    name: str,
    schedules: tuple[tuple[str, int], ...],
    machine: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text, length, micro_batch = MODELS[name]
    if text.endswith(".json"):
        path = tmp_path / text
        path.write_text(json.dumps(GPT2))
        text = str(path)
    spec = resolve_model(text)
    model = trace_model(spec, sequence_length=length, dtype="float32", target="cpu")
    graph = model.at(micro_batch)

    def profiled() -> tuple[Cluster, dict[str, float]]:
        points = measure_blocks(
            spec, (micro_batch,), sequence_length=length, dtype="float32", num_processes=2
        )
        times = {point.kind: point.forward_s + point.backward_s for point in points}
        return with_blocks(machine, points), times

    cluster, times = profiled()

    def pair(schedule: str, vpp: int) -> tuple[float, list[float]]:
        """Errors of the work and of the peaks of one run."""
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
            pp=2,
            dp=1,
            tp=1,
            vpp=vpp,
            micro_batch=micro_batch,
            schedule=schedule,
            stages=balanced([times[block.kind] for block in graph.blocks], 2 * vpp),
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
        step = prediction.step_time_s.value
        wall = step / measured.step_wall_s - 1
        busy = busy_seconds(prediction, 4) / busy_cpu_seconds(measured, 4) - 1
        peaks = [
            predicted.peak_bytes / found.peak_memory_bytes - 1
            for predicted, found in zip(prediction.ranks, measured.ranks, strict=True)
        ]
        with capsys.disabled():
            quiet = sum(not s.disturbed for s in measured.steps)
            print(
                f"\n{name} {schedule}: step {wall:+.1%} (wall), work {busy:+.1%} (CPU), memory "
                f"{', '.join(f'{p:+.1%}' for p in peaks)}, {quiet}/{STEPS} steps undisturbed"
            )
        return busy, peaks

    for schedule, vpp in schedules:
        for attempt in range(ATTEMPTS):
            if attempt:  # the machine's speed has moved since the profile: measure it anew
                cluster, times = profiled()
            busy, peaks = pair(schedule, vpp)
            if abs(busy) < BUSY:
                break
        assert abs(busy) < BUSY, (name, schedule)
        assert max(map(abs, peaks)) < MEMORY, (name, schedule, peaks)


def balanced(times: list[float], count: int) -> tuple[Stage, ...]:
    """Blocks cut into stages of about equal time."""
    cuts, done = [0], 0.0
    for index, time_s in enumerate(times):
        due = done + time_s / 2 >= sum(times) * len(cuts) / count
        if len(cuts) < count and index > cuts[-1] and due:
            cuts.append(index)
        done += time_s
    cuts.append(len(times))
    return tuple(
        Stage(first_block=a, last_block=b, recompute=(Recompute.NONE,) * (b - a))
        for a, b in pairwise(cuts)
    )
