"""Messages and collectives of a probe, timed on the process group that training uses."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from profiles.errors import InputError
from profiles.hardware.cpu_clock import Sample
from profiles.hardware.probe_cases import Case
from profiles.hardware.probe_timing import Effort, measure

_MIN_SAMPLES, _MAX_SAMPLES = 5, 60
_MAX_REPEATS = 16


def buffer_bytes(case: Case) -> int:
    """Bytes of the full buffer: the case's size in whole fp32 elements per rank of the group."""
    return 4 * case.group_size * max(1, case.size_bytes // (4 * case.group_size))


def sample_link(
    case: Case, group: dist.ProcessGroup, effort: Effort, device: torch.device
) -> list[Sample]:
    """Samples of the case's operation on this rank of `group`; every rank calls it at once.

    All ranks take the same number of samples, each after a barrier, so that sample i of every rank
    is the same event and its time is that of the slowest rank. A message is half a round trip.
    Collectives that follow each other in one sample may overlap at their ends, as in training.
    """
    call = _link_call(case, group, device)
    for _ in range(2):  # connections are made by the first call
        call()
    once_s = torch.tensor([measure(call, 1).wall_s], device=device)
    dist.all_reduce(once_s, op=dist.ReduceOp.MAX, group=group)
    repeats = max(1, min(_MAX_REPEATS, math.ceil(effort.min_sample_s / float(once_s))))
    wanted = int(effort.link_budget_s / (float(once_s) * repeats))
    samples = []
    for _ in range(max(_MIN_SAMPLES, min(_MAX_SAMPLES, wanted))):
        dist.barrier(group=group)
        samples.append(measure(call, repeats))
    return [s.per(2) for s in samples] if case.op == "send" else samples


def _link_call(case: Case, group: dist.ProcessGroup, device: torch.device) -> Callable[[], object]:
    count = buffer_bytes(case) // 4
    full = torch.zeros(count, device=device)
    part = torch.zeros(count // case.group_size, device=device)
    other = torch.zeros(count if case.op == "all_to_all" else 1, device=device)
    gather, scatter = _gather_and_scatter()
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: _ping_pong(full, group),
        "all_reduce": lambda: dist.all_reduce(full, group=group),
        "all_gather": lambda: gather(full, part, group=group),
        "reduce_scatter": lambda: scatter(part, full, group=group),
        "broadcast": lambda: dist.broadcast(full, src=0, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, full, group=group),
    }
    if case.op not in calls:
        raise InputError(f"operation {case.op!r} is not one of {', '.join(calls)}")
    return calls[case.op]


def _ping_pong(message: Tensor, group: dist.ProcessGroup) -> None:
    if dist.get_rank() == 0:
        dist.send(message, 1, group=group)
        dist.recv(message, 1, group=group)
    else:
        dist.recv(message, 0, group=group)
        dist.send(message, 0, group=group)


def _gather_and_scatter() -> tuple[Callable[..., object], Callable[..., object]]:
    """torch's single-tensor all-gather and reduce-scatter, by their names before or since 2.13."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return gather, scatter
