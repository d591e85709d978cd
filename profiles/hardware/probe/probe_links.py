"""Messages and collectives of a probe, timed on the process group that training uses."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from profiles.errors import InputError
from profiles.hardware.probe.cpu_clock import Sample, between, read_clock
from profiles.hardware.probe.probe_cases import Case
from profiles.hardware.probe.probe_timing import Effort, measure

_MIN_SAMPLES, _MAX_SAMPLES = 5, 60
_MAX_REPEATS = 16
# A rank computes so long before it sends: the receiver has posted its receive by then.
_SETTLE_S = 1e-3


def sample_link(
    case: Case, group: dist.ProcessGroup, effort: Effort, device: torch.device
) -> list[Sample]:
    """Samples of the case's operation on this rank of `group`; every rank calls it at once.

    All ranks take the same number of samples, each after a barrier, so that sample i of every rank
    is the same event and its time is that of the slowest rank. On a CPU a message is one way from a
    rank that computes on to one that waits (`sample_messages`), else half a round trip.
    Collectives that follow each other in one sample may overlap at their ends, as in training.
    On a CPU every sample has new buffers, as a step's bucket of gradients is: one of 4 MiB that the
    sample before left in the caches takes half the time (gloo, 2 ranks, 2026-11-22).
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
    """Messages of `count` fp32 elements as a pipeline sends them, in both directions by turns.

    The receiver has posted its receive and waits; the sender sends and computes on, so that the
    threads that carry the message share its core. A sample is the time from the call of the send to
    the end of the receive, on the clock that the processes of a machine share
    (CLOCK_MONOTONIC), and the same on both ranks.
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
        told = torch.tensor([begin, ended, int(enough)])
        dist.all_reduce(told, group=group)
        wall_s = int(told[1] - told[0]) * 1e-9
        busy_s = 1.5 * wall_s  # the sender still computes when the message has come
        more = int(told[2]) == 0 and len(samples) < _MAX_SAMPLES
        samples.append(Sample(wall_s=wall_s, cpu_s=wall_s, delay_s=passed.delay_s))
    return samples[1:]  # the first makes the connection


def _compute(time_s: float) -> None:
    """Keep this core busy."""
    end = time.perf_counter() + time_s
    a = torch.ones(128, 128)
    while time.perf_counter() < end:
        torch.mm(a, a)


def _link_call(case: Case, group: dist.ProcessGroup, device: torch.device) -> Callable[[], object]:
    count = case.buffer_bytes // 4
    full = torch.ones(count, device=device)  # written, so that its memory is there
    part = torch.ones(count // case.group_size, device=device)
    other = torch.ones(count if case.op == "all_to_all" else 1, device=device)
    # torch's single-tensor collectives, by their names since 2.13 or before.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def ping_pong() -> None:
        ways = (dist.send, dist.recv) if dist.get_rank() == 0 else (dist.recv, dist.send)
        for way in ways:
            way(full, 1 - dist.get_rank(), group=group)

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
