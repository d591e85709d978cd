"""The program that every rank runs: `python -m executor.train`, started by torchrun.

Reads a plan file, trains some steps on synthetic data, measures, checks gradients if asked, and
rank 0 writes the measurement. An error is written to the error folder with its time, so that the
launcher can tell which rank failed first.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import sys
from dataclasses import replace
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from executor.before_launch import LESS_MEMORY, predicted_bytes
from executor.check import check_gradients
from executor.clocks import clock_of
from executor.memory import PeakWatch, allocated_and_total, is_out_of_memory
from executor.mesh import Mesh, make_mesh
from executor.not_finite import all_finite, first_not_finite
from executor.planned_model import planned_model
from executor.rank import Rank
from executor.rank_errors import run_rank
from executor.recorder import Recorder, action_medians, quiet_steps, step_table
from profiles.document import content_hash, write_document
from profiles.errors import InputError, MismatchError, RunError
from profiles.hardware.catalogue.device import ReferencePoint
from profiles.hardware.probe.cpu_clock import DELAY_LIMIT
from profiles.hardware.probe.fingerprint import cpu_model
from profiles.hardware.probe.probe_reference import combined_references, time_references
from profiles.model.loaders import ModelSpec
from profiles.units import format_bytes
from simulator.values.measurement import (
    MEASUREMENT_SCHEMA,
    Measurement,
    RankSample,
    StageSample,
    StepSample,
)
from simulator.values.plan import Plan
from simulator.values.plan_file import read_plan_file
from simulator.values.prediction import Event
from simulator.values.runnable import why_not_runnable_plan

WARM_UP_STEPS = 2


def main() -> None:
    """Run the rank; the exit status tells torchrun whether it failed."""
    options = _options(sys.argv[1:])
    run_rank(lambda: _run(options), options.errors)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m executor.train")
    parser.add_argument("plan", help="plan file")
    parser.add_argument("--model", default="", help="model, where it is not the plan's own name")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--check", action="store_true", help="compare gradients with one process")
    parser.add_argument("--output", default="run.json")
    parser.add_argument("--errors", default="", help="folder for one error file per rank")
    parser.add_argument("--threads", type=int, default=1, help="threads per rank on a CPU")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a rank may wait")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace) -> None:
    answer = read_plan_file(options.plan)
    plan = answer.plan
    if plan is None or (reason := why_not_runnable_plan(plan)):
        why = f"holds no plan: its status is {answer.status!r}" if plan is None else reason
        raise MismatchError(f"{options.plan}: {why}")
    spec = planned_model(options.plan, plan, options.model)
    device = _start(options)
    mesh = make_mesh(plan, device.type)
    _check_ranks_agree(options, plan)
    predicted = predicted_bytes(answer.prediction, mesh.at.pp)
    _check_device_memory(options.plan, predicted, device)
    recorder = Recorder(clock_of(device))
    try:
        _measure(options, plan, spec, mesh, device, recorder)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise RunError(_lack_of_memory(plan, mesh, recorder, device, predicted)) from error
        raise
    dist.barrier()
    dist.destroy_process_group()


def _check_ranks_agree(options: argparse.Namespace, plan: Plan) -> None:
    """Raises MismatchError where ranks read another plan or run another torch than rank 0."""
    mine = {
        "plan": content_hash(plan),
        "--steps": str(options.steps),
        "--check": str(options.check),
        "torch": torch.__version__,
    }
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    for rank, theirs in enumerate(everyone):
        other = [key for key in mine if theirs[key] != everyone[0][key]]
        if other:
            key = other[0]
            raise MismatchError(
                f"rank {rank} has another {key} than rank 0: {theirs[key]}, not {everyone[0][key]} "
                f"({options.plan}); give every node the same files, flags and torch"
            )


def _check_device_memory(path: str, predicted: float, device: torch.device) -> None:
    """Raises InputError where an accelerator has less memory free than the plan is predicted to
    take; main memory was looked at by the launcher."""
    if device.type == "cpu":
        return
    free = torch.accelerator.get_memory_info(device)[0]
    if predicted > free:
        raise InputError(
            f"{path} is predicted to take {format_bytes(predicted)} on {device}, of which "
            f"{format_bytes(free)} are free; {LESS_MEMORY}, or end other programs"
        )


def _lack_of_memory(
    plan: Plan, mesh: Mesh, recorder: Recorder, device: torch.device, predicted: float
) -> str:
    held, total = allocated_and_total(device)
    stages = plan.stages_of(mesh.at.pp)
    blocks = ", ".join(
        f"stage {i} (blocks {plan.stages[i].first_block} to {plan.stages[i].last_block - 1})"
        for i in stages
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
    check = check_gradients(plan, spec, mesh, device) if options.check else None
    count = WARM_UP_STEPS + options.steps
    # The first step makes the optimizer states; of the second the peak is read.
    with PeakWatch(device) as watch:
        rank = Rank(plan, spec, mesh, device, recorder)
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
    rank.close()
    place = None if finite else first_not_finite(plan, spec, mesh, device, steps=count)
    recorder.steps = recorder.steps[WARM_UP_STEPS:]
    during = _of_all_ranks(combined_references(readings, median))
    after = references_of_all(device)
    measurement = _gather(plan, mesh, recorder, watch.peak_bytes, check, device)
    if measurement is not None:
        measurement = replace(
            measurement,
            not_finite=place.words if place is not None else "",
            references_before=before,
            references_during=during,
            references_after=after,
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
    """One of `count` steps; rank 0 tells the launcher."""
    train_step(rank, recorder)
    if dist.get_rank() == 0:
        print(f"step {len(recorder.steps)}/{count}", flush=True)


def train_step(rank: Rank, recorder: Recorder) -> None:
    """One recorded optimizer step; every rank calls it at once, and begins it when all have."""
    dist.barrier()
    with recorder.step() as record:
        loss = rank.forward_backward()
        rank.update()
    record.loss = None if loss is None else float(loss)


def references_of_all(device: torch.device) -> tuple[ReferencePoint, ...]:
    """The reference kernels of a CPU on all ranks at once, the same answer on each."""
    if device.type != "cpu":
        return ()
    return _of_all_ranks(time_references(barrier=dist.barrier))


def _of_all_ranks(mine: tuple[ReferencePoint, ...]) -> tuple[ReferencePoint, ...]:
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    return combined_references(ranks)


def _finite_everywhere(rank: Rank, recorder: Recorder) -> bool:
    """Whether every loss and gradient was finite, alike on every rank.

    Asked of the weights: a gradient that was not finite has left its parameter so.
    """
    losses = [step.loss for step in recorder.steps if step.loss is not None]
    fine = all(math.isfinite(loss) for loss in losses)
    fine = fine and all_finite(list(rank.parameters().values()))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, fine)
    return all(everyone)


def _gather(
    plan: Plan, mesh: Mesh, recorder: Recorder, peak: float, check: Any, device: torch.device
) -> Measurement | None:
    """The measurement on rank 0; None elsewhere."""
    tables: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(tables, step_table(recorder.steps))
    losses: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(losses, [step.loss for step in recorder.steps])
    steps, not_finite = [], 0
    for i in range(len(recorder.steps)):
        rows = [table[i] for table in tables]
        delay = max(row[2] for row in rows)
        told = [values[i] for values in losses if values[i] is not None]
        found = [loss for loss in told if math.isfinite(loss)]
        not_finite += len(found) < len(told)
        steps.append(
            StepSample(
                wall_s=max(row[0] for row in rows),
                cpu_s=max(row[1] for row in rows),
                delay_fraction=delay,
                disturbed=delay > DELAY_LIMIT,
                loss=sum(found) / len(found) if found and len(found) == len(told) else None,
            )
        )
    chosen = quiet_steps([step.delay_fraction for step in steps])
    middle = sorted(chosen, key=lambda i: steps[i].wall_s)[len(chosen) // 2]
    mine = {
        "rank": dist.get_rank(),
        "actions": action_medians(recorder.steps, chosen),
        "optimizer": _median_of(recorder, chosen, "optimizer"),
        "data_parallel": _median_of(recorder, chosen, "data_parallel", "tied"),
        "waiting": _waiting(recorder, [(i, steps[i].wall_s) for i in chosen]),
        "peak": peak,
        "events": recorder.steps[middle].actions,
        "first_replica": mesh.at.dp == 0 and mesh.at.tp == 0,
    }
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    if dist.get_rank() != 0:
        return None
    replica = [part for part in parts if part["first_replica"]]
    return Measurement(
        plan_hash=content_hash(plan),
        backend=dist.get_backend(),
        world_size=plan.degrees.num_devices,
        step_wall_s=median(steps[i].wall_s for i in chosen),
        step_cpu_s=median(steps[i].cpu_s for i in chosen),
        steps=tuple(steps),
        stages=_stage_samples(replica),
        ranks=tuple(
            RankSample(
                rank=part["rank"],
                peak_memory_bytes=max(0.0, part["peak"]),
                peak_memory_kind="none" if peak < 0 else "allocated",
                optimizer_s=part["optimizer"],
                data_parallel_s=part["data_parallel"],
                communication_s=part["waiting"],
            )
            for part in parts
        ),
        events=tuple(
            Event(rank=part["rank"], stream="compute", name=name, start_s=start, end_s=end)
            for part in replica
            for name, start, end, _ in part["events"]
        ),
        delay_limit=DELAY_LIMIT,
        gradient_check=check,
        steps_without_finite_loss=not_finite,
        versions={
            "torch": torch.__version__,
            "python": ".".join(map(str, sys.version_info[:3])),
        },
        machine=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model(),
        date=datetime.date.today().isoformat(),
    )


def _median_of(recorder: Recorder, chosen: list[int], *names: str) -> float:
    return median(recorder.steps[i].seconds_of(*names) for i in chosen)


def _waiting(recorder: Recorder, chosen: list[tuple[int, float]]) -> float:
    """Seconds of a step in which the rank did none of its actions: waiting and communication.

    chosen  steps, with the seconds of the slowest rank
    """
    values = []
    for i, wall_s in chosen:
        busy = sum(end - start for _, start, end, _ in recorder.steps[i].actions)
        values.append(max(0.0, wall_s - busy))
    return median(values)


def _stage_samples(replica: list[dict[str, Any]]) -> tuple[StageSample, ...]:
    samples = []
    for part in replica:
        for stage in sorted({stage for stage, _ in part["actions"]}):
            forward = part["actions"].get((stage, "F"), (0.0, 0.0, 0))
            weight = part["actions"].get((stage, "W"), (0.0, 0.0, 0))
            whole = part["actions"].get((stage, "B"), (0.0, 0.0, 0))
            inputs = part["actions"].get((stage, "I"), whole)
            samples.append(
                StageSample(
                    stage=stage,
                    rank=part["rank"],
                    forward_wall_s=forward[0],
                    forward_cpu_s=forward[1],
                    backward_wall_s=inputs[0] + weight[0],
                    backward_cpu_s=inputs[1] + weight[1],
                    count=forward[2],
                    weight_wall_s=weight[0],
                    weight_cpu_s=weight[1],
                )
            )
    return tuple(sorted(samples, key=lambda s: s.stage))


if __name__ == "__main__":
    main()
