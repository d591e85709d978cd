"""What the other ranks of a fake process group would answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack

from executor import starting_weights
from executor.rank import _flow
from executor.stages import StageModule
from executor.starting_weights import builder_of
from profiles.model.loaders import ModelSpec
from profiles.model.tracing.trace_fused import FusedAttention, FusedNorms
from simulator.values.plan import Plan


def held_names(plan: Plan, spec: ModelSpec) -> list[list[str]]:
    """Of each pipeline rank the trained parameters that its stages hold, tied ones by one name."""
    canonical = {name: group[0] for group in plan.tied_parameters for name in group}
    dtype = plan.workload.compute_dtype
    build = builder_of(plan, spec, dtype)
    flow = _flow(build, plan.block_entries, plan.micro_batch)
    # On meta: a stage of another rank is never filled.
    found: list[set[str]] = [set() for _ in range(plan.degrees.pp)]
    for number, cut in enumerate(plan.stages):
        built = build(micro_batch=plan.micro_batch)
        stage = StageModule(built, flow, cut.first_block, cut.last_block)
        found[plan.pp_rank_of(number)] |= {
            canonical.get(name, name)
            for name, p in stage.model.named_parameters()
            if p.requires_grad
        }
    return [sorted(each) for each in found]


@contextmanager
def meshes_with_values() -> Iterator[None]:
    """Inside it, under fake tensors, meshes of ranks have their values: torch asks them where a
    rank stands (2.13: `DeviceMesh.mesh`, `_compute_coordinates_from_mesh`, `_concatenate`)."""
    names = ("mesh", "_compute_coordinates_from_mesh", "_concatenate")
    before = {name: DeviceMesh.__dict__[name] for name in names}

    def real(function: Any) -> Any:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with unset_fake_temporarily():
                return function(*args, **kwargs)

        return called

    for name, held in before.items():
        if isinstance(held, property):
            setattr(DeviceMesh, name, property(real(held.fget)))
        else:
            setattr(DeviceMesh, name, staticmethod(real(held.__func__)))
    try:
        yield
    finally:
        for name, held in before.items():
            setattr(DeviceMesh, name, held)


@contextmanager
def votes_for_known_shapes() -> Iterator[None]:
    """Inside it, a pipeline's stages vote that each knows the shapes that it is sent, as the
    executor's do. Where constants have values, the zeros into which a vote is received would count
    as its result, and torch would ask the other ranks for shapes (2.13)."""
    original = PipelineStage._warmup_backward_result

    @wraps(original)
    def voted(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        return torch.ones(1, dtype=result.dtype, device=result.device)

    PipelineStage._warmup_backward_result = voted
    try:
        yield
    finally:
        PipelineStage._warmup_backward_result = original


class _Sending:
    """A message under way, which has its tensor until somebody waits for it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor: torch.Tensor | None = tensor

    def wait(self) -> None:
        self._tensor = None


@contextmanager
def messages_under_way() -> Iterator[None]:
    """Inside it, what a stage sends is in memory until the stage waits for the message, as NCCL's
    and gloo's messages are (torch 2.13: ProcessGroupNCCL stashes the tensors of an asynchronous
    operation). Those of the fake group are over at once."""
    original = schedules._batch_p2p

    @wraps(original)
    def begun(operations: Any, *args: Any, **kwargs: Any) -> Any:
        sent = [_Sending(x.tensor) for x in operations if x.op is dist.isend]
        return [*original(operations, *args, **kwargs), *sent]

    schedules._batch_p2p = begun
    try:
        yield
    finally:
        schedules._batch_p2p = original


@contextmanager
def shapes_in_their_own_mode() -> Iterator[None]:
    """Inside it, DTensor finds the shape of an op's result in a fake mode that it makes for that,
    as it does in a run. In the fake mode of the walk it would make whole tensors on the device
    (torch 2.13: `detect_fake_mode() or FakeTensorMode()`), which no accelerator ever holds."""
    name = "_propagate_tensor_meta_non_cached"
    original = getattr(ShardingPropagator, name)

    @wraps(original)
    def found(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return original(*args, **kwargs)

    setattr(ShardingPropagator, name, found)
    try:
        yield
    finally:
        setattr(ShardingPropagator, name, original)


@contextmanager
def host_memory_pinned() -> Iterator[None]:
    """Inside it, memory of the host counts as pinned: fake tensors cannot be (torch 2.13:
    `_pin_memory` is not implemented for them)."""
    before = {name: getattr(torch.Tensor, name) for name in ("pin_memory", "is_pinned")}
    torch.Tensor.pin_memory = lambda self: self
    torch.Tensor.is_pinned = lambda self: self.device.type == "cpu"
    try:
        yield
    finally:
        for name, held in before.items():
            setattr(torch.Tensor, name, held)


@contextmanager
def fused_again() -> Iterator[None]:
    """Inside it, attention and an RMS norm are one op where a backward computes them again, too:
    torch takes modes of functions away while a backward runs."""
    before = {}
    for name, mode in (("scaled_dot_product_attention", FusedAttention), ("rms_norm", FusedNorms)):
        before[name] = getattr(functional, name)
        setattr(functional, name, _within(mode, before[name]))
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(functional, name, original)


def _within(mode: type[FusedAttention | FusedNorms], original: Any) -> Any:
    """The function, always called within a mode."""

    @wraps(original)
    def fused(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(each, mode) for each in _get_current_function_mode_stack()):
            return original(*args, **kwargs)
        with mode():
            return original(*args, **kwargs)

    return fused


@contextmanager
def real_models() -> Iterator[None]:
    """Inside it, models are built as they are in a run: parameters on meta, buffers and inputs in
    memory. Under fake tensors torch moves no module that is in use."""
    original = starting_weights.build_model

    @wraps(original)
    def built(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return original(*args, **kwargs)

    starting_weights.build_model = built
    try:
        yield
    finally:
        starting_weights.build_model = original


@contextmanager
def answering(names: list[list[str]]) -> Iterator[None]:
    """Inside it, objects are exchanged without values on the device: names of parameters with the
    pipeline's other ranks, all else as if every rank had the same."""
    original = dist.all_gather_object

    def gathered(into: list[Any], mine: Any, group: Any = None) -> None:
        texts = isinstance(mine, list) and mine and all(isinstance(x, str) for x in mine)
        into[:] = names if texts and len(into) == len(names) else [mine] * len(into)

    dist.all_gather_object = gathered
    try:
        yield
    finally:
        dist.all_gather_object = original
