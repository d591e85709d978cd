"""Buckets of gradients hold every tensor, whatever its type and size."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from executor.parallelize import average_gradients, local
from simulator.memory.held import GRADIENT_BUCKET_BYTES
from tests.executor.processes import run_ranks


def _parameters(rank: int) -> list[nn.Parameter]:
    """Two types in turn, one tensor larger than a bucket, one transposed, one number, one that
    tensor parallelism holds as a DTensor; the last two have a gradient on one rank and on none."""
    seed = torch.Generator().manual_seed(rank)
    large = GRADIENT_BUCKET_BYTES // 4 + 1

    def made(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randint(-64, 64, size, generator=seed).to(dtype)

    tp = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))["tp"]
    values = [
        distribute_tensor(made(6, 2), tp, [Shard(0)]),
        made(3, 4),
        made(5, dtype=torch.bfloat16),
        made(large),
        made(4, 3).t(),
        made(7, 2, dtype=torch.bfloat16),
        made(),
        made(2, 3),
        made(3),
    ]
    return [nn.Parameter(x) for x in values]


def _exchange(source: Path, results: Path) -> None:
    rank, both = dist.get_rank(), [_parameters(0), _parameters(1)]
    mine = both[rank]
    *everywhere, once, never = mine
    for p in everywhere if rank else [*everywhere, once]:
        p.grad = p.detach().clone()
    average_gradients(mine, dist.group.WORLD, 2)
    faults = []
    wanted = [(first + second) / 2 for first, second in zip(*both, strict=True)]
    wanted[-2] = both[0][-2] / 2
    for i, (p, mean) in enumerate(zip(mine[:-1], wanted, strict=False)):
        if p.grad is None or not torch.equal(local(p.grad), local(mean)):
            faults.append(f"rank {rank}: gradient {i} is not the mean")
    if never.grad is not None:
        faults.append(f"rank {rank}: a gradient that no rank had")
    told: list[list[str]] = [[], []]
    dist.all_gather_object(told, faults)
    if rank == 0:
        results.write_text(json.dumps(told[0] + told[1]))


def test_every_tensor_is_averaged(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    run_ranks(_exchange, tmp_path, results, processes=2)
    assert json.loads(results.read_text()) == []
