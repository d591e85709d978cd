"""The job of one worker of a probe: every case in turn, together with all other workers."""

from __future__ import annotations

import subprocess
from typing import Any

import torch
import torch.distributed as dist

from profiles.document import decode, encode
from profiles.errors import RunError
from profiles.hardware.probe.cpu_clock import Sample
from profiles.hardware.probe.probe_cases import Case
from profiles.hardware.probe.probe_host import measure_host
from profiles.hardware.probe.probe_links import sample_link
from profiles.hardware.probe.probe_ops import op_call, pieces_of, work_flop
from profiles.hardware.probe.probe_reference import time_references, time_rounds
from profiles.hardware.probe.probe_timing import Effort, measure, resident_bytes, sample_call
from profiles.hardware.probe.probe_workers import Progress
from profiles.model.graph import MatmulShape

# A data type whose 256-cube takes this many times as long as in fp32 is emulated, not computed;
# its products above `_EMULATED_FLOP` are left out, which would take minutes and tell nothing more.
_EMULATED_RATIO = 20.0
_EMULATED_FLOP = 2 * 256**3

# A core may be slow for a second: one window of a quick profile told a step 23 % longer, of a demo
# whose ranks were 5 % apart (two cores, 2026-11-23). The middle of three outlives one such second.
_WINDOWS = 3


def run_cases(job: dict[str, Any], reporter: Progress) -> dict[str, Any]:
    """Samples of every case, `[wall_s, cpu_s, delay_s or None]`, in the order of the cases.

    A case that this rank takes no part in, or that was left out, has no samples. Also answers
    what this device has: `memory_bytes` and `reserved_bytes` (held before any tensor is made), and
    how fast its reference kernels are, `before` the cases and behind them, and what one of them
    takes in `rounds` that all devices begin together, at `_WINDOWS` moments among the cases.
    """
    cases: tuple[Case, ...] = decode(tuple[Case, ...], job["cases"], where="cases")
    effort: Effort = decode(Effort, job["effort"], where="effort")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device()) if _cuda() else torch.device("cpu")
    torch.manual_seed(rank)
    machine = _device_facts(device)
    groups = {size: dist.new_group(range(size)) for size in range(2, world_size + 1)}
    emulated = _is_emulated("bfloat16", device)
    before = () if _cuda() else time_references(0.2, barrier=dist.barrier)
    answers: list[list[list[float | None]]] = []
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
        answers.append([[s.wall_s, s.cpu_s, s.delay_s] for s in samples])
    reporter(len(cases), len(cases), "reference kernels")
    references = () if _cuda() else time_references(barrier=dist.barrier)
    reporter(len(cases), len(cases), "host")
    dist.barrier()
    host = () if _cuda() else measure_host()
    reporter(len(cases), len(cases), "done")
    return {
        "samples": answers,
        "machine": machine,
        "before": encode(before),
        "references": encode(references),
        "rounds": [list(window) for window in rounds],
        "host": encode(host),
    }


def _sample_op(case: Case, effort: Effort, device: torch.device) -> list[Sample]:
    try:
        call = op_call(case, device)
        samples = sample_call(call, effort)
    except RuntimeError as error:
        raise RunError(f"{case.label} cannot be measured: {error}") from error
    return [sample.per(pieces_of(call, case)) for sample in samples]


def _cuda() -> bool:
    return torch.cuda.is_available()


def _is_emulated(dtype: str, device: torch.device) -> bool:
    """True, on all ranks alike, where `dtype` is far slower than fp32 on some rank."""
    times = []
    for name in ("float32", dtype):
        shape = MatmulShape(batch=1, m=256, n=256, k=256)
        case = Case(family="matmul", dtype=name, shape=shape)
        call = op_call(case, device)
        call()
        times.append(min(measure(call, 1).cpu_s for _ in range(3)) / pieces_of(call, case))
    ratio = torch.tensor([times[1] / max(times[0], 1e-9)], device=device)
    dist.all_reduce(ratio, op=dist.ReduceOp.MAX)
    return float(ratio) > _EMULATED_RATIO


def _device_facts(device: torch.device) -> dict[str, Any]:
    """Memory and name of the device of this rank; power_w is its limit where the vendor says it."""
    if device.type != "cuda":
        return {"reserved_bytes": resident_bytes()}
    torch.zeros(1, device=device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "name": torch.cuda.get_device_name(device),
        "memory_bytes": total,
        "reserved_bytes": total - free,
        "power_w": _power_limit_w(device),
    }


def _power_limit_w(device: torch.device) -> float | None:
    query = ["nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [*query, "-i", str(device.index)], capture_output=True, text=True, timeout=10
        )
        return float(done.stdout.split()[0])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return None
