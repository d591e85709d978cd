"""What an optimizer updates of a split parameter is the parameter's own memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from executor.parallelize import own_gradient, own_part


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_step_on_the_parts_is_a_step_on_the_parameters(mesh: DeviceMesh) -> None:
    torch.manual_seed(0)
    weight, gradient = torch.randn(6, 4), torch.randn(6, 4)
    whole = nn.Parameter(weight.clone())
    whole.grad = gradient.clone()
    torch.optim.AdamW([whole], lr=0.1).step()

    split = nn.Parameter(distribute_tensor(weight, mesh, [Shard(0)]))
    # What one rank computed of a sum: the optimizer must see the sum.
    split.grad = DTensor.from_local(gradient, mesh, [Partial()])
    part = own_part(split)
    assert not isinstance(part, DTensor)
    part.grad = own_gradient(split)
    torch.optim.AdamW([part], lr=0.1).step()
    assert isinstance(split, DTensor)
    torch.testing.assert_close(split.to_local(), whole.data)


def test_a_gradient_that_lies_as_its_parameter_is_taken_as_it_lies(mesh: DeviceMesh) -> None:
    split = nn.Parameter(distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)]))
    split.grad = distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)])
    with torch.autograd.profiler.profile() as seen:
        taken = own_gradient(split)
    assert taken is not None
    assert taken.data_ptr() == split.grad.to_local().data_ptr()
    # Under mixed precision every weight's gradient passes here at every step.
    assert [e.name for e in seen.function_events if e.name == "Redistribute"] == []


def test_a_whole_parameter_is_its_own_part() -> None:
    p = nn.Parameter(torch.ones(2))
    assert own_part(p) is p
    assert own_gradient(p) is None
