"""Apply the planned changes of placements with DTensor, forward and backward.

DTensor may choose other steps between two placements than planned, so every step changes one axis
in a separate call. Two changes are implemented here: to partial sums, by padding with zeros
(DTensor refuses it), and from one split to another, by an all-to-all (on CPU meshes, DTensor
gathers and slices; torch/distributed/tensor/_collective_utils.py, shard_dim_alltoall).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from profiles.errors import MismatchError
from shardwright_placements.running.shard_position import PARTIAL, Position, dtensor_placements
from shardwright_placements.sharding_file import (
    Change,
    Conversion,
    PlacedTensor,
    Placements,
    split_dim,
)


def changed(local: Tensor, change: Change, shape: tuple[int, ...], position: Position) -> Tensor:
    """The rank's part after a change; `shape` is that of the whole tensor."""
    before = change.source
    for after in change.steps:
        local = _step(local, before, after, shape, position)
        before = after
    return local


def _step(
    local: Tensor,
    before: Placements,
    after: Placements,
    shape: tuple[int, ...],
    position: Position,
) -> Tensor:
    (axis,) = (i for i, (x, y) in enumerate(zip(before, after, strict=True)) if x != y)
    old, new = split_dim(before[axis]), split_dim(after[axis])
    if after[axis] == PARTIAL:
        return _padded(local, before, after, old, shape, position, axis)
    if old is not None and new is not None:
        return _exchanged(local, old, new, position, axis)
    strides = torch.empty(shape, device="meta").stride()
    held = DTensor.from_local(
        local.contiguous(),
        position.mesh,
        dtensor_placements(before),
        run_check=False,
        shape=torch.Size(shape),
        stride=strides,
    )
    return held.redistribute(placements=dtensor_placements(after)).to_local()


def _padded(
    local: Tensor,
    before: Placements,
    after: Placements,
    dim: int | None,
    shape: tuple[int, ...],
    position: Position,
    axis: int,
) -> Tensor:
    """Partial sums: zeros outside of the rank's part."""
    if dim is None:
        return local if position.coordinates[axis] == 0 else torch.zeros_like(local)
    wide = local.new_zeros(position.local_shape(after, shape))
    count = local.shape[dim]
    wide.narrow(dim, position.coordinates[axis] * count, count).copy_(local)
    return wide


def _exchanged(local: Tensor, old: int, new: int, position: Position, axis: int) -> Tensor:
    size = position.sizes[axis]
    sent = torch.stack(local.chunk(size, dim=new))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=position.mesh.get_group(axis))
    return torch.cat(received.unbind(0), dim=old)


class _Fan(torch.autograd.Function):
    """Converts a tensor into all read layouts; its backward sums the gradients."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, plan: Conversion, shape: Any, position: Any) -> Any:
        ctx.plan, ctx.shape, ctx.position = plan, shape, position
        ctx.set_materialize_grads(False)
        forms = {plan.made.forward: local.detach()}
        for change in plan.forward:
            forms[change.target] = changed(forms[change.source], change, shape, position)
        # Layouts that differ only in their gradients share the data.
        return tuple(forms[layout.forward].view_as(forms[layout.forward]) for layout in plan.used)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        plan: Conversion = ctx.plan
        arrived: dict[Placements, Tensor] = {}
        for layout, gradient in zip(plan.used, gradients, strict=True):
            _add(arrived, layout.backward, gradient)
        for change in plan.backward:
            gradient = arrived.pop(change.source, None)
            if gradient is not None:
                _add(arrived, change.target, changed(gradient, change, ctx.shape, ctx.position))
        left = set(arrived) - {plan.made.backward}
        if left:
            raise MismatchError(
                f"tensor {plan.tensor}: gradients arrive as {sorted(left)}, and the file has no "
                f"conversion to {plan.made.backward}; make it again with `shardwright shard`"
            )
        return arrived.get(plan.made.backward), None, None, None


def _add(sums: dict[Placements, Tensor], form: Placements, gradient: Tensor | None) -> None:
    if gradient is not None:
        sums[form] = sums[form] + gradient if form in sums else gradient


def fan_out(
    local: Tensor, plan: Conversion, shape: tuple[int, ...], position: Position
) -> dict[PlacedTensor, Tensor]:
    """The tensor in every layout read by the ops of a block, connected for autograd."""
    if local.requires_grad:
        made = _Fan.apply(local, plan, shape, position)  # type: ignore[no-untyped-call] # torch's
        return dict(zip(plan.used, made, strict=True))
    forms = {plan.made.forward: local}
    for change in plan.forward:
        forms[change.target] = changed(forms[change.source], change, shape, position)
    return {layout: forms[layout.forward] for layout in plan.used}
