"""The program of every rank: `python -m executor.train`, started by torchrun.

Reads a plan file, trains some steps on synthetic data, measures, checks gradients with `--check`,
and rank 0 writes the measurement. An error is written to the error folder with its time, from which
the launcher finds the rank that failed first.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from statistics import median

import torch
import torch.distributed as dist

from executor.before_launch import LESS_MEMORY, check_free, predicted_bytes
from executor.check import check_gradients
from executor.memory import PeakWatch, allocated_and_total, is_out_of_memory
from executor.mesh import Mesh, gather_all, make_mesh
from executor.not_finite import all_finite, first_not_finite
from executor.pipeline_times import StepLog
from executor.planned_model import planned_model, runnable
from executor.rank import Rank
from executor.rank_errors import run_rank
from executor.recorder import ACTION, Clock, Recorder
from profiles.document import content_hash, write_document
from profiles.errors import MismatchError, RunError
from profiles.hardware.catalogue.device import ReferencePoint
from profiles.hardware.probe.cpu_clock import DELAY_LIMIT
from profiles.hardware.probe.fingerprint import cpu_model
from profiles.hardware.probe.probe_reference import combined_references, time_references
from profiles.model.loaders import ModelSpec
from profiles.units import format_bytes
from simulator.values.measurement import (
    MEASUREMENT_SCHEMA,
    GradientCheck,
    Measurement,
    RankSample,
    StageSample,
    StepSample,
)
from simulator.values.plan import Plan
from simulator.values.plan_file import read_plan_file
from simulator.values.prediction import Event

WARM_UP_STEPS = 2


def main() -> None:
    """Run the rank; the exit status reports failure to torchrun."""
    options = _options(sys.argv[1:])
    run_rank(lambda: _run(options), options.errors)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m executor.train")
    parser.add_argument("plan", help="plan file")
    parser.add_argument("--model", default="", help="model, where it is not the plan's own name")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--check", action="store_true", help="compare gradients with one process")
    parser.add_argument("--compile", default="", help="backend of torch.compile for the units")
    parser.add_argument("--output", default="run.json")
    parser.add_argument("--errors", default="", help="folder for one error file per rank")
    parser.add_argument("--threads", type=int, default=1, help="threads per rank on a CPU")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a rank may wait")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace) -> None:
    answer = read_plan_file(options.plan)
    plan = runnable(options.plan, answer)
    spec = planned_model(options.plan, plan, options.model)
    device = _start(options)
    mesh = make_mesh(plan, device.type)
    _check_ranks_agree(options, plan)
    predicted = predicted_bytes(answer.prediction, mesh.at.pp)
    if device.type != "cpu":  # the launcher has checked main memory
        free = torch.accelerator.get_memory_info(device)[0]
        check_free(options.plan, predicted, str(device), free)
    recorder = Recorder(Clock(device))
    try:
        _measure(options, plan, spec, mesh, device, recorder)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise RunError(_lack_of_memory(plan, mesh, recorder, device, predicted)) from error
        raise
    dist.barrier()
    dist.destroy_process_group()


def _check_ranks_agree(options: argparse.Namespace, plan: Plan) -> None:
    """Raises MismatchError if a rank has another plan or torch than rank 0."""
    mine = {
        "plan": content_hash(plan),
        "--steps": str(options.steps),
        "--check": str(options.check),
        "--compile": options.compile,
        "torch": torch.__version__,
    }
    everyone = gather_all(mine)
    for key, (rank, theirs) in product(mine, enumerate(everyone)):
        if theirs[key] != everyone[0][key]:
            raise MismatchError(
                f"rank {rank} has another {key} than rank 0: {theirs[key]}, not {everyone[0][key]} "
                f"({options.plan}); give every node the same files, flags and torch"
            )


def _lack_of_memory(
    plan: Plan, mesh: Mesh, recorder: Recorder, device: torch.device, predicted: float
) -> str:
    held, total = allocated_and_total(device)
    blocks = ", ".join(
        f"stage {i} (blocks {plan.stages[i].first_block} to {plan.stages[i].last_block - 1})"
        for i in plan.stages_of(mesh.at.pp)
    )
    step = f"step {len(recorder.steps) + 1}, {recorder.running}"
    when = step if recorder.running else "the building"
    told = f"{format_bytes(predicted)} were predicted" if predicted else "nothing was predicted"
    return (
        f"out of memory on {device} in {when} of {blocks}: {format_bytes(held)} of "
        f"{format_bytes(total)} were allocated at most, {told}; {LESS_MEMORY}"
    )


def _measure(
    options: argparse.Namespace,
    plan: Plan,
    spec: ModelSpec,
    mesh: Mesh,
    device: torch.device,
    recorder: Recorder,
) -> None:
    """Check, train and measure; rank 0 writes the measurement."""
    backend = options.compile
    check = check_gradients(plan, spec, mesh, device, backend=backend) if options.check else None
    count = WARM_UP_STEPS + options.steps
    # The first step creates the optimizer states; the peak is measured in the second.
    with PeakWatch(device) as watch:
        rank = Rank(plan, spec, mesh, device, recorder, backend=backend)
        _noted_step(rank, recorder, count)
        with watch.measured():
            _noted_step(rank, recorder, count)
    before = references_of_all(device)
    readings = []
    for _ in range(options.steps):
        _noted_step(rank, recorder, count)
        if device.type == "cpu":
            readings.append(time_references(0.0, barrier=dist.barrier, kernels=("layers",)))
    finite = _finite_everywhere(rank, recorder)
    compiled = gather_all({path: unit.why_eager for path, unit in rank.compiled.items()})
    rank.close()
    place = None if finite else first_not_finite(plan, spec, mesh, device, steps=count)
    during = combined_references(gather_all(combined_references(readings, median)))
    after = references_of_all(device)
    steps = recorder.steps[WARM_UP_STEPS:]
    measurement = _gather(plan, steps, watch.peak_bytes, check, device)
    if measurement is not None:
        measurement = replace(
            measurement,
            not_finite=place.words if place is not None else "",
            references_before=before,
            references_during=during,
            references_after=after,
            compiled_units=len({path for units in compiled for path in units if not units[path]}),
            eager_units={path: why for units in compiled for path, why in units.items() if why},
        )
        write_document(options.output, measurement, schema=MEASUREMENT_SCHEMA)


def _start(options: argparse.Namespace) -> torch.device:
    if options.device == "cuda":
        index = int(os.environ.get("LOCAL_RANK", "0"))
        torch.accelerator.set_device_index(index)
        device = bound = torch.device("cuda", index)
    else:
        torch.set_num_threads(options.threads)
        device, bound = torch.device("cpu"), None
    dist.init_process_group(
        dist.get_default_backend_for_device(device),
        timeout=datetime.timedelta(seconds=max(1.0, options.timeout)),
        device_id=bound,  # NCCL then connects now, not in the first step
    )
    return device


def _noted_step(rank: Rank, recorder: Recorder, count: int) -> None:
    """One of `count` steps; rank 0 reports it to the launcher."""
    train_step(rank, recorder)
    if dist.get_rank() == 0:
        print(f"step {len(recorder.steps)}/{count}", flush=True)


def train_step(rank: Rank, recorder: Recorder) -> None:
    """One recorded optimizer step; a collective that starts at the same time on all ranks."""
    dist.barrier()
    with recorder.step() as log:
        loss = rank.forward_backward()
        rank.update()
    log.loss = None if loss is None else float(loss)


def references_of_all(device: torch.device) -> tuple[ReferencePoint, ...]:
    """The reference kernels of a CPU on all ranks at once; equal on all ranks."""
    if device.type != "cpu":
        return ()
    return combined_references(gather_all(time_references(barrier=dist.barrier)))


def _finite_everywhere(rank: Rank, recorder: Recorder) -> bool:
    """Whether every loss and gradient was finite, with the same result on every rank.

    Reads the weights: a non-finite gradient makes its parameter non-finite.
    """
    finite = all(step.loss is None or math.isfinite(step.loss) for step in recorder.steps)
    return all(gather_all(finite and all_finite([p for _, p in rank.held()])))


def _gather(
    plan: Plan,
    steps: list[StepLog],
    peak_bytes: float,
    check: GradientCheck | None,
    device: torch.device,
) -> Measurement | None:
    """The measurement on rank 0, with the timeline of the first replica; None elsewhere."""
    peaks, logs = zip(*gather_all((peak_bytes, steps)), strict=True)
    if dist.get_rank() != 0:
        return None
    samples = tuple(map(_step_sample, zip(*logs, strict=True)))
    chosen = quiet_steps([step.delay_fraction for step in samples])
    middle = sorted(chosen, key=lambda i: samples[i].wall_s)[len(chosen) // 2]
    replica = [plan.degrees.rank(pp=rank) for rank in range(plan.degrees.pp)]
    return Measurement(
        plan_hash=content_hash(plan),
        backend=dist.get_backend(),
        world_size=plan.degrees.num_devices,
        step_wall_s=median(samples[i].wall_s for i in chosen),
        step_cpu_s=median(samples[i].cpu_s for i in chosen),
        steps=samples,
        stages=tuple(
            sorted(
                (sample for rank in replica for sample in _stage_samples(rank, logs[rank], chosen)),
                key=lambda sample: sample.stage,
            )
        ),
        ranks=tuple(
            RankSample(
                rank=rank,
                peak_memory_bytes=peaks[rank],
                peak_memory_kind="allocated",
                optimizer_s=_seconds(log, chosen, "optimizer"),
                data_parallel_s=_seconds(log, chosen, "data_parallel", "tied"),
                # Times in which the rank ran none of its actions.
                communication_s=median(
                    max(0.0, samples[i].wall_s - log[i].seconds_of("")) for i in chosen
                ),
            )
            for rank, log in enumerate(logs)
        ),
        events=tuple(
            Event(rank=rank, stream="compute", name=name, start_s=start, end_s=end)
            for rank in replica
            for name, start, end, _ in logs[rank][middle].actions
        ),
        delay_limit=DELAY_LIMIT,
        gradient_check=check,
        steps_without_finite_loss=sum(step.loss is None for step in samples),
        versions={"torch": torch.__version__, "python": ".".join(map(str, sys.version_info[:3]))},
        machine=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model(),
        date=datetime.date.today().isoformat(),
    )


def _step_sample(logs: tuple[StepLog, ...]) -> StepSample:
    """One step from the logs of all ranks; without a loss if one is not finite."""
    delay = max(log.delay_fraction for log in logs)
    losses = [log.loss for log in logs if log.loss is not None]
    return StepSample(
        wall_s=max(log.wall_s for log in logs),
        cpu_s=max(log.cpu_s for log in logs),
        delay_fraction=delay,
        disturbed=delay > DELAY_LIMIT,
        loss=sum(losses) / len(losses) if all(map(math.isfinite, losses)) else None,
    )


def quiet_steps(worst_delay: list[float]) -> list[int]:
    """Indices of the undisturbed steps; if there are none, the least disturbed half."""
    quiet = [i for i, delay in enumerate(worst_delay) if delay <= DELAY_LIMIT]
    order = sorted(range(len(worst_delay)), key=lambda i: worst_delay[i])
    return quiet or sorted(order[: (len(order) + 1) // 2])


def _seconds(steps: list[StepLog], chosen: list[int], *names: str) -> float:
    return median(steps[i].seconds_of(*names) for i in chosen)


def _stage_samples(rank: int, steps: list[StepLog], chosen: list[int]) -> Iterator[StageSample]:
    """The stages of a rank: medians over the passes of the chosen steps."""
    passes: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for i in chosen:
        for name, start, end, cpu_s in steps[i].actions:
            if found := ACTION.fullmatch(name):
                key = int(found[1]), found[2]
                passes.setdefault(key, []).append((end - start, cpu_s))
    middle = {
        key: [median(column) for column in zip(*rows, strict=True)] for key, rows in passes.items()
    }
    for stage in {stage for stage, _ in passes}:
        forward, weight = middle[stage, "F"], middle.get((stage, "W"), [0.0, 0.0])
        inputs = middle[stage, "I" if (stage, "I") in middle else "B"]
        yield StageSample(
            stage=stage,
            rank=rank,
            forward_wall_s=forward[0],
            forward_cpu_s=forward[1],
            backward_wall_s=inputs[0] + weight[0],
            backward_cpu_s=inputs[1] + weight[1],
            count=len(passes[stage, "F"]),
            weight_wall_s=weight[0],
            weight_cpu_s=weight[1],
        )


if __name__ == "__main__":
    main()
