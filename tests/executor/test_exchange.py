"""Buckets of gradients hold every tensor, whatever its type and size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from executor import replica_gradients
from executor.mesh import local
from executor.replica_gradients import ReplicaGradients
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
    ReplicaGradients(mine, dist.group.WORLD, 2).finish()
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


def _backward(source: Path, results: Path) -> None:
    replica_gradients.GRADIENT_BUCKET_BYTES = 64  # a layer is larger
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    inputs = torch.randn(2, 8, 4)
    means = [torch.zeros_like(p) for p in layers.parameters()]
    for x in inputs:
        found = torch.autograd.grad(layers(x).square().sum() / 2, list(layers.parameters()))
        for mean, gradient in zip(means, found, strict=True):
            mean += gradient
    sums = ReplicaGradients(list(layers.parameters()), dist.group.WORLD, 2)
    sent: list[int] = []
    with _counted_sums(sent):
        layers[0].weight.register_hook(lambda _: sent.append(-1))
        loss = layers(inputs[dist.get_rank()]).square().sum()
        with sums.sent_as_made():
            loss.backward()
        sums.finish()
    faults = [] if sent[0] > 0 else ["the first layer's gradient comes before any message"]
    for p, mean in zip(layers.parameters(), means, strict=True):
        if p.grad is None or not torch.allclose(p.grad, mean):
            faults.append(f"the gradient of shape {tuple(p.shape)} is not the mean")
    told: list[list[str]] = [[], []]
    dist.all_gather_object(told, faults)
    if dist.get_rank() == 0:
        results.write_text(json.dumps(told[0] + told[1]))


@contextmanager
def _counted_sums(sizes: list[int]) -> Iterator[None]:
    original = dist.all_reduce

    def counted(x: Tensor, **rest: Any) -> Any:
        sizes.append(x.numel())
        return original(x, **rest)

    dist.all_reduce = counted
    try:
        yield
    finally:
        dist.all_reduce = original


def test_buckets_are_sent_while_the_backward_runs(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    run_ranks(_backward, tmp_path, results, processes=2)
    assert json.loads(results.read_text()) == []
