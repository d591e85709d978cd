"""One rank of a plan on the fake accelerator, from building it to the last update."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from executor.mesh import make_mesh
from executor.rank import Rank
from executor.unit_gradients import groups_of
from profiles.model.fake_tensors.trace_expected_shapes import expected_shapes
from profiles.model.fake_tensors.trace_fakes import masks_as_in_real_runs
from profiles.model.loaders import ModelSpec
from profiles.model.tracing.trace_fused import FusedAttention, FusedNorms, FusedRecurrence
from simulator.values.plan import Plan
from tests.executor.fake_accelerator.device import NAME, Backend, register
from tests.executor.fake_accelerator.peers import (
    answering,
    fused_again,
    host_memory_pinned,
    meshes_with_values,
    messages_under_way,
    real_models,
    shapes_in_their_own_mode,
    votes_for_known_shapes,
)
from tests.executor.fake_accelerator.watch import Found, Memory, Message, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What one rank did. Bytes are those on the device.

    number           of the rank
    found, messages  of the last step;  waits  how often the host waited for the device in it
    backwards        of it, W among them
    build_peak, built  the most while the rank was built, and what it then held
    unit             the weights of its largest unit, whole and in fp32; units that share a weight
                     are one (parallelize.without_shared_weights)
    step_peak        the most in the last step;  held  at the end of each of its backwards
    left             when the rank was gone;  alive  how many of its objects then still were
    groups           process groups that were made while it was built
    """

    number: int
    found: tuple[Found, ...]
    messages: tuple[Message, ...]
    waits: int
    backwards: int
    build_peak: int
    built: int
    unit: int
    step_peak: int
    held: tuple[int, ...]
    left: int
    alive: int
    groups: int


def walk(
    plan: Plan,
    spec: ModelSpec,
    number: int,
    names: list[list[str]],
    *,
    steps: int = 2,
    claimed: Callable[[str], bool] = lambda _: True,
) -> Walk | str:
    """The rank of this number; names  of the parameters that each pipeline rank holds.

    Given `_layout` of the built rank, `claimed` says whether its steps are walked. If not, the
    layout is the answer: a step of the rank with the same one is the same step.

    A model that asks for values is answered as when it was traced.
    """
    device = register()
    dist.init_process_group(
        f"cpu:fake,{NAME}:fake",
        store=FakeStore(),
        rank=number,
        world_size=plan.degrees.num_devices,
    )
    mesh = make_mesh(plan, NAME)
    before = len(dist.distributed_c10d._world.pg_map)
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        torch._C._set_only_lift_cpu_tensors(True)
        memory = stack.enter_context(Memory())
        watch = stack.enter_context(Watch(memory))
        if _asks_for_values(plan):
            stack.enter_context(expected_shapes(unknown=True))
        stack.enter_context(FusedRecurrence())
        stack.enter_context(FusedAttention())
        stack.enter_context(FusedNorms())
        stack.enter_context(fused_again())
        stack.enter_context(masks_as_in_real_runs())
        stack.enter_context(host_memory_pinned())
        stack.enter_context(answering(names))
        stack.enter_context(meshes_with_values())
        stack.enter_context(messages_under_way())
        stack.enter_context(shapes_in_their_own_mode())
        stack.enter_context(votes_for_known_shapes())
        stack.enter_context(real_models())
        # In this thread: an engine that has counted devices before this one was made knows none.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        rank = Rank(plan, spec, mesh, device, watch.actions)
        build_peak, built = memory.peak, memory.now
        groups = len(dist.distributed_c10d._world.pg_map) - before
        unit = _largest_unit(rank)
        layout = _layout(rank, build_peak, built)
        if not claimed(layout):
            return layout
        waits = 0
        for step in range(steps):
            memory.restart()
            waits = Backend.synchronized
            with watch.step() if step == steps - 1 else nullcontext():
                rank.forward_backward()
                rank.update()
        waits = Backend.synchronized - waits
        step_peak = memory.peak
        objects = [weakref.ref(rank), *map(weakref.ref, rank.stages.values())]
        rank.close()
        del rank
        gc.collect()  # what graphs of autograd held is found in a second pass

        left = memory.now
    return Walk(
        number=number,
        found=tuple(watch.found),
        messages=tuple(watch.messages),
        waits=waits,
        backwards=watch.actions.backwards + 1,
        build_peak=build_peak,
        built=built,
        unit=unit,
        step_peak=step_peak,
        held=tuple(watch.actions.held),
        left=left,
        alive=sum(ref() is not None for ref in objects),
        groups=groups,
    )


def _layout(rank: Rank, *sizes: int) -> str:
    """All that a step of fake tensors can read of a rank: its stages, with the shapes, strides and
    types of what they hold, and its inputs. Beyond that, replicas differ in the rows that they take
    and in the numbers from which random draws are seeded (Rank._slice, StageModule.micro_batch):
    values, which fake tensors have none of. Members of a group differ, its size does not."""

    def form(x: torch.Tensor) -> list[str]:
        own = x.to_local() if isinstance(x, DTensor) else x
        return [str(part) for part in (x.shape, own.shape, own.stride(), own.dtype, own.device)]

    held = {
        f"{number}.{name}": form(x)
        for number, stage in rank.stages.items()
        for name, x in (*stage.named_parameters(), *stage.named_buffers())
    }
    return json.dumps([sizes, held, [form(x) for x in rank.given.values()]], sort_keys=True)


def _asks_for_values(plan: Plan) -> bool:
    return "mixtral" in plan.model


def _largest_unit(rank: Rank) -> int:
    sizes = [0]
    for stage in rank.stages.values():
        modules = dict(stage.model.named_modules())
        for path in stage.flow.units:
            held = {id(p): p.numel() for p in modules[path].parameters()}
            sizes.append(4 * sum(held.values()))
        for group in groups_of(stage):
            sizes.append(4 * sum(held._orig_size.numel() for held in group.fsdp_params))
    return max(sizes)
