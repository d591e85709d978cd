"""The job of one worker of a probe: all cases in turn, together with the other workers.

Messages and collectives are timed on a process group as in training.
"""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from profiles.document import decode, encode
from profiles.errors import InputError, RunError
from profiles.hardware.probe.cpu_clock import Sample, between, read_clock
from profiles.hardware.probe.probe_answers import DeviceFacts, RankAnswer, RankJob
from profiles.hardware.probe.probe_cases import Case
from profiles.hardware.probe.probe_host import measure_host
from profiles.hardware.probe.probe_ops import op_call, work_flop
from profiles.hardware.probe.probe_reference import time_references, time_rounds
from profiles.hardware.probe.probe_timing import Effort, measure, resident_bytes, sample_call
from profiles.hardware.probe.probe_workers import Progress
from profiles.model.graph import MatmulShape

# A data type is emulated if a 256-cube takes this many times as long as in fp32. Its products above
# `_EMULATED_FLOP` are skipped: they would take minutes and add no information.
_EMULATED_RATIO = 20.0
_EMULATED_FLOP = 2 * 256**3

# A core may be slow for a second: with one window, a quick profile predicted a step 23 % longer for
# a demo with ranks 5 % apart (two cores, 2026-11-23). The median of three windows is not affected.
_WINDOWS = 3


def run_cases(content: Mapping[str, Any], reporter: Progress) -> dict[str, Any]:
    """Run a `RankJob`; returns the `RankAnswer` as JSON values. Skipped cases have no samples.

    Rounds of the reference kernel are timed at `_WINDOWS` moments among the cases.
    """
    job: RankJob = decode(RankJob, content, where="job")
    cases, effort = job.cases, job.effort
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device()) if _cuda() else torch.device("cpu")
    torch.manual_seed(rank)
    machine = _device_facts(device)
    groups = {size: dist.new_group(range(size)) for size in range(2, world_size + 1)}
    half = any(case.dtype == "bfloat16" for case in cases)
    emulated = half and _is_emulated(device)
    before = () if _cuda() else time_references(effort.reference_s / 2, barrier=dist.barrier)
    answers: list[tuple[Sample, ...]] = []
    rounds: list[tuple[float, ...]] = []
    for index, case in enumerate(cases):
        reporter(index, len(cases), case.label)
        if not _cuda() and index * _WINDOWS // len(cases) == len(rounds):
            rounds.append(time_rounds(dist.barrier))
        samples: list[Sample] = []
        dist.barrier()
        if case.family == "link":
            if rank < case.group_size:
                samples = sample_link(case, groups[case.group_size], effort, device)
        elif not (emulated and case.dtype == "bfloat16" and work_flop(case) > _EMULATED_FLOP):
            samples = _sample_op(case, effort, device)
        answers.append(tuple(samples))
    reporter(len(cases), len(cases), "reference kernels")
    references = () if _cuda() else time_references(effort.reference_s, barrier=dist.barrier)
    reporter(len(cases), len(cases), "host")
    dist.barrier()
    host = () if _cuda() else measure_host(effort.host_samples)
    reporter(len(cases), len(cases), "done")
    answer = RankAnswer(
        samples=tuple(answers),
        machine=machine,
        before=before,
        references=references,
        rounds=tuple(rounds),
        host=host,
    )
    encoded: dict[str, Any] = encode(answer)
    return encoded


def _sample_op(case: Case, effort: Effort, device: torch.device) -> list[Sample]:
    try:
        call = op_call(case, device)
        samples = sample_call(call, effort)
    except RuntimeError as error:
        raise RunError(f"{case.label} cannot be measured: {error}") from error
    return [sample.per(call.count) for sample in samples]


def _cuda() -> bool:
    return torch.cuda.is_available()


def _is_emulated(device: torch.device) -> bool:
    """True on all ranks if bf16 is far slower than fp32 on some rank."""
    times = []
    for name in ("float32", "bfloat16"):
        shape = MatmulShape(batch=1, m=256, n=256, k=256)
        case = Case(family="matmul", dtype=name, shape=shape)
        call = op_call(case, device)
        call()
        times.append(min(measure(call, 1).cpu_s for _ in range(3)) / call.count)
    ratio = torch.tensor([times[1] / max(times[0], 1e-9)], device=device)
    dist.all_reduce(ratio, op=dist.ReduceOp.MAX)
    return float(ratio) > _EMULATED_RATIO


def _device_facts(device: torch.device) -> DeviceFacts:
    if device.type != "cuda":
        return DeviceFacts(reserved_bytes=resident_bytes())
    torch.zeros(1, device=device)
    free, total = torch.cuda.mem_get_info(device)
    return DeviceFacts(
        name=torch.cuda.get_device_name(device),
        memory_bytes=total,
        reserved_bytes=total - free,
        power_w=_power_limit_w(device),
    )


def _power_limit_w(device: torch.device) -> float | None:
    query = ["nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [*query, "-i", str(device.index)], capture_output=True, text=True, timeout=10
        )
        return float(done.stdout.split()[0])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return None


_MIN_SAMPLES, _MAX_SAMPLES = 5, 60
_MAX_REPEATS = 16
# Seconds that a rank computes before it sends, so that the receiver has posted its receive.
_SETTLE_S = 1e-3


def sample_link(
    case: Case, group: dist.ProcessGroup, effort: Effort, device: torch.device
) -> list[Sample]:
    """Samples of the case's operation on this rank of `group`; all ranks call it together.

    All ranks take the same number of samples, each after a barrier: sample i is the same event on
    every rank, and its time is that of the slowest rank. On a CPU a message is one way, from a
    computing rank to a waiting one (`sample_messages`); otherwise half a round trip. Consecutive
    collectives of one sample may overlap, as in training. On a CPU every sample has new buffers, as
    a step has new gradients: a buffer of 4 MiB in the caches takes half the time (gloo, 2 ranks,
    2026-11-22).
    """
    if case.op == "send" and device.type == "cpu":
        return sample_messages(case.buffer_bytes // 4, group, effort)
    call = _link_call(case, group, device)
    for _ in range(2):  # connections are made by the first call
        call()
    once_s = torch.tensor([measure(call, 1).wall_s], device=device)
    dist.all_reduce(once_s, op=dist.ReduceOp.MAX, group=group)
    repeats = max(1, min(_MAX_REPEATS, math.ceil(effort.min_sample_s / float(once_s))))
    wanted = int(effort.link_budget_s / (float(once_s) * repeats))
    samples = []
    for _ in range(max(_MIN_SAMPLES, min(_MAX_SAMPLES, wanted))):
        if device.type == "cpu":
            call = _link_call(case, group, device)
        dist.barrier(group=group)
        samples.append(measure(call, repeats))
    return [s.per(2) for s in samples] if case.op == "send" else samples


def sample_messages(count: int, group: dist.ProcessGroup, effort: Effort) -> list[Sample]:
    """Messages of `count` fp32 elements as in a pipeline, in alternating directions.

    The receiver waits in its receive; the sender sends and keeps computing, so that the transport
    threads share its core. A sample is the time from the call of the send to the end of the
    receive, on the machine's common clock (CLOCK_MONOTONIC); it is the same on both ranks.
    """
    message = torch.zeros(count)
    busy_s = _SETTLE_S
    samples: list[Sample] = []
    end = time.perf_counter() + effort.link_budget_s
    more = True
    while more:
        sends, peer = len(samples) % 2 == dist.get_rank(group), 1 - dist.get_rank(group)
        dist.barrier(group=group)
        clock = read_clock()
        if sends:
            _compute(_SETTLE_S)
            begin = time.perf_counter_ns()
            work = dist.isend(message, group_dst=peer, group=group)
            _compute(busy_s)
        else:
            begin = 0
            work = dist.irecv(message, group_src=peer, group=group)
        assert work is not None  # this rank is in the group
        work.wait()
        ended = 0 if sends else time.perf_counter_ns()
        passed = between(clock, read_clock())
        enough = len(samples) >= _MIN_SAMPLES and time.perf_counter() > end
        shared = torch.tensor([begin, ended, int(enough)])
        dist.all_reduce(shared, group=group)
        wall_s = int(shared[1] - shared[0]) * 1e-9
        busy_s = 1.5 * wall_s  # the sender still computes when the message arrives
        more = int(shared[2]) == 0 and len(samples) < _MAX_SAMPLES
        samples.append(Sample(wall_s=wall_s, cpu_s=wall_s, delay_s=passed.delay_s))
    return samples[1:]  # the first includes the connection


def _compute(time_s: float) -> None:
    """Keep this core busy."""
    end = time.perf_counter() + time_s
    a = torch.ones(128, 128)
    while time.perf_counter() < end:
        torch.mm(a, a)


def _link_call(case: Case, group: dist.ProcessGroup, device: torch.device) -> Callable[[], object]:
    count = case.buffer_bytes // 4
    full = torch.ones(count, device=device)  # written, so that its pages exist
    part = torch.ones(count // case.group_size, device=device)
    other = torch.ones(count if case.op == "all_to_all" else 1, device=device)
    # torch's single-tensor collectives, by their names since 2.13 or before.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def ping_pong() -> None:
        calls = (dist.send, dist.recv) if dist.get_rank() == 0 else (dist.recv, dist.send)
        for call in calls:
            call(full, 1 - dist.get_rank(), group=group)

    calls: dict[str, Callable[[], object]] = {
        "send": ping_pong,
        "all_reduce": lambda: dist.all_reduce(full, group=group),
        "all_gather": lambda: gather(full, part, group=group),
        "reduce_scatter": lambda: scatter(part, full, group=group),
        "broadcast": lambda: dist.broadcast(full, src=0, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, full, group=group),
    }
    if case.op not in calls:
        raise InputError(f"operation {case.op!r} is not one of {', '.join(calls)}")
    return calls[case.op]
