"""The process mesh of a plan: pp x dp x tp, tp innermost, the order of `Degrees`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

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
    """This process's coordinates, and the one-dimensional mesh of each axis that it is on; `shards`
    is that of dp, with two dimensions under hybrid sharding: groups, and replicas of each."""

    degrees: Degrees
    at: Coordinates
    pp: Any
    dp: Any
    tp: Any
    shards: Any
    _groups: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def group_of(self, pp_ranks: Sequence[int]) -> Any:
        """The group of the processes with this one's dp and tp on these pipeline ranks, made once;
        None where this one is not among them. All processes of a pipeline call it alike.

        Torch names such a group by its members and by how many groups a process knows (2.13,
        `_hash_ranks_to_str`), and members that know different numbers wait for each other for ever.
        So a process that is no member makes a group of itself.
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
    """The mesh; raises MismatchError where the number of processes is not the plan's."""
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


def local(x: Tensor) -> Tensor:
    """This process's part of a DTensor, or the tensor itself."""
    part: Tensor = x.to_local() if hasattr(x, "to_local") else x
    return part
