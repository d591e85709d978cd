"""The process mesh of a plan: pp x dp x tp, tp innermost, the order of simulator.values.plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from profiles.errors import MismatchError
from simulator.values.plan import Plan


@dataclass(frozen=True, slots=True)
class Mesh:
    """This process's place in the mesh; the sub-meshes are one-dimensional."""

    pp_rank: int
    dp_rank: int
    tp_rank: int
    pp: Any
    dp: Any
    tp: Any


def make_mesh(plan: Plan, device_type: str) -> Mesh:
    """The mesh; raises MismatchError where the number of processes is not the plan's."""
    world = dist.get_world_size()
    if world != plan.world_size:
        raise MismatchError(
            f"the plan needs {plan.world_size} processes (pp {plan.pp} x dp {plan.dp} x tp "
            f"{plan.tp}), {world} were started"
        )
    mesh = init_device_mesh(
        device_type, (plan.pp, plan.dp, plan.tp), mesh_dim_names=("pp", "dp", "tp")
    )
    rank = dist.get_rank()
    tp_rank = rank % plan.tp
    dp_rank = rank // plan.tp % plan.dp
    return Mesh(
        pp_rank=rank // (plan.tp * plan.dp),
        dp_rank=dp_rank,
        tp_rank=tp_rank,
        pp=mesh["pp"],
        dp=mesh["dp"],
        tp=mesh["tp"],
    )
