"""The process mesh of a plan: pp x dp x tp, tp innermost, the order of `Degrees`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from profiles.errors import MismatchError
from simulator.values.degrees import Coordinates, Degrees
from simulator.values.plan import Plan

T = TypeVar("T")


def gather_all(mine: T, group: Any = None) -> list[T]:
    """The values of every process of a group, or of all, by rank; a collective."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, mine, group=group)
    return values


@dataclass(frozen=True, slots=True)
class Mesh:
    """This process's coordinates and, for each axis, its one-dimensional device mesh. `shards` is
    the mesh of dp; under hybrid sharding it has two dimensions: groups, and replicas of a group."""

    degrees: Degrees
    at: Coordinates
    pp: Any
    dp: Any
    tp: Any
    shards: Any
    _groups: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def group_of(self, pp_ranks: Sequence[int]) -> Any:
        """The process group of these pipeline ranks with this process's dp and tp, cached; None if
        this process is not a member. All processes of a pipeline must call it with the same
        arguments.

        Torch names a group by its members and the number of groups that the process knows (2.13,
        `_hash_ranks_to_str`). Members with different numbers would wait for each other forever, so
        a non-member makes a group with itself as only member.
        """
        dp, tp = self.at.dp, self.at.tp
        ranks = tuple(self.degrees.rank(pp=p, dp=dp, tp=tp) for p in pp_ranks)
        if ranks not in self._groups:
            me = dist.get_rank()
            members = ranks if me in ranks else (me,)
            made = dist.new_group(list(members), use_local_synchronization=True)
            self._groups[ranks] = made if me in ranks else None
        return self._groups[ranks]


def make_mesh(plan: Plan, device_type: str) -> Mesh:
    """The mesh; raises MismatchError if the number of processes differs from the plan's."""
    degrees, world = plan.degrees, dist.get_world_size()
    if world != degrees.num_devices:
        raise MismatchError(
            f"the plan needs {degrees.num_devices} processes (pp {degrees.pp} x dp {degrees.dp} x "
            f"tp {degrees.tp}), {world} were started"
        )
    # Row-major: the last axis is innermost, as in Degrees.
    hybrid = degrees.dp_replicate > 1
    replicas = {"replicate": degrees.dp_replicate, "shard": degrees.shard_replicas}
    sizes = {"pp": degrees.pp, **(replicas if hybrid else {"dp": degrees.dp}), "tp": degrees.tp}
    mesh = init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    shards = mesh["replicate", "shard"] if hybrid else mesh["dp"]
    dp = shards._flatten("dp") if hybrid else shards
    at = degrees.coordinates(dist.get_rank())
    return Mesh(degrees=degrees, at=at, pp=mesh["pp"], dp=dp, tp=mesh["tp"], shards=shards)


def sum_over(x: Tensor, group: Any, device: torch.device | str) -> None:
    """Sum a tensor over a group in place. NCCL reads device memory only: offloaded gradients are
    copied there and back. The copy is contiguous, because a reduction ignores strides."""
    flat = x.to(device).contiguous()
    dist.all_reduce(flat, group=group)
    x.copy_(flat)


def local(x: Tensor) -> Tensor:
    """This process's part of a DTensor, or the tensor itself."""
    part: Tensor = x.to_local() if hasattr(x, "to_local") else x
    return part
