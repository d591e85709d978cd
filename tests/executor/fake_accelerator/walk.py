"""One rank of a plan on the fake accelerator, from building it to the second update."""

from __future__ import annotations

import gc
import weakref
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from executor.mesh import make_mesh
from executor.rank import Rank
from profiles.model.loaders import ModelSpec
from profiles.model.tracing.trace_fused import FusedAttention, FusedRecurrence
from simulator.values.plan import Plan
from tests.executor.fake_accelerator.device import NAME, register
from tests.executor.fake_accelerator.peers import answering, held_names
from tests.executor.fake_accelerator.watch import Found, Memory, Message, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    found: tuple[Found, ...]
    messages: tuple[Message, ...]
    build_peak: int
    built: int
    step_peak: int
    left: int


def walk(plan: Plan, spec: ModelSpec, number: int) -> Walk:
    device = register()
    names = held_names(plan, spec) if plan.degrees.pp > 1 else []
    dist.init_process_group(
        f"cpu:fake,{NAME}:fake", store=FakeStore(), rank=number, world_size=plan.degrees.num_devices
    )
    try:
        mesh = make_mesh(plan, NAME)
        with ExitStack() as stack:
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            torch._C._set_only_lift_cpu_tensors(True)
            memory = stack.enter_context(Memory())
            watch = stack.enter_context(Watch())
            stack.enter_context(FusedAttention())
            stack.enter_context(answering(names))
            rank = Rank(plan, spec, mesh, device, watch.actions)
            build_peak, built = memory.peak, memory.now
            for step in range(2):
                memory.restart()
                with watch.step() if step else nullcontext():
                    rank.forward_backward()
                    rank.update()
            step_peak = memory.peak
            del rank
            gc.collect()
            left = memory.now
    finally:
        dist.destroy_process_group()
    return Walk(
        found=tuple(watch.found),
        messages=tuple(watch.messages),
        build_peak=build_peak,
        built=built,
        step_peak=step_peak,
        left=left,
    )
