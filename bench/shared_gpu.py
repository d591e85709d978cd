"""A rank of a plan on a GPU that all its ranks share: `torchrun -m bench.shared_gpu PLAN [flags]`.

NCCL refuses two ranks on one GPU. Here their messages go through main memory, by gloo: times say
nothing, but stages, sharded weights, gradients and peaks are those of a run on as many GPUs. Takes
the flags of `executor.train`.
"""

# torch calls these methods with lists and options alone; its stubs tell of more forms.
# mypy: disable-error-code="override"

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from executor import train


class Received(dist.Work):
    """A message on its way: waiting for it copies it to its tensor."""

    def __init__(self, inner: Any, host: Tensor, target: Tensor) -> None:
        super().__init__()
        self._inner, self._host, self._target = inner, host, target

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Wait for the message; the second call does nothing."""
        if self._inner is not None:
            self._inner.wait()
            with torch.no_grad():
                self._target.copy_(self._host)
            self._inner = None
        return True


class Sent(dist.Work):
    """A message's copy in main memory, kept until it has left."""

    def __init__(self, inner: Any, host: Tensor) -> None:
        super().__init__()
        self._inner, self._host = inner, host

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Wait until it has left."""
        self._inner.wait()
        return True


class ThroughMainMemory(dist.ProcessGroup):
    """Collectives of tensors on any device by gloo, each finished when its call returns. Sums are
    made in fp32."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        # torch's stub lacks this form of the base class, which has no store.
        super().__init__(rank, size)  # type: ignore[call-arg] # not in the stubs of torch
        self._rank, self._size = rank, size
        # The stub tells of the constructor alone.
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)

    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def getBackendName(self) -> str:
        """The name under which it is registered."""
        return "shared"

    @property
    def group_name(self) -> str:
        """The name that torch knows it by."""
        return str(dist.distributed_c10d._world.pg_names[self])

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Sums, means, largest or smallest values."""
        for tensor in tensors:
            tensor.copy_(self._reduced(tensor, opts or dist.AllreduceOptions()))
        return _finished(tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """The same."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Any:
        """From the rank that `opts` names."""
        for tensor in tensors:
            host = _on_host(tensor)
            options = dist.BroadcastOptions()
            options.rootRank = opts.rootRank
            self._gloo.broadcast([host], options).wait()
            tensor.copy_(host)
        return _finished(tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        """Each rank's tensor."""
        for targets, mine in zip(outputs, inputs, strict=True):
            hosts = [torch.empty_like(target, device="cpu") for target in targets]
            self._gloo.allgather([hosts], [_on_host(mine)]).wait()
            for target, host in zip(targets, hosts, strict=True):
                target.copy_(host)
        return _finished(outputs)

    def _allgather_base(self, output: Tensor, mine: Tensor, opts: Any = None) -> Any:
        parts = output.view(-1).chunk(self._size)
        return self.allgather([list(parts)], [mine.reshape(-1)])

    def allgather_into_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        """Each rank's tensors, behind one another."""
        for output, mine in zip(outputs, inputs, strict=True):
            self._allgather_base(output, mine)
        return _finished(outputs)

    def _reduce_scatter_base(self, output: Tensor, whole: Tensor, opts: Any) -> Any:
        mine = self._reduced(whole, opts).view(-1).chunk(self._size)[self._rank]
        output.copy_(mine.view_as(output))
        return _finished(output)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> Any:
        """This rank's part of a sum."""
        for output, parts in zip(outputs, inputs, strict=True):
            whole = torch.cat([part.reshape(-1) for part in parts])
            self._reduce_scatter_base(output, whole, opts or dist.ReduceScatterOptions())
        return _finished(outputs)

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        """This rank's part of each sum."""
        for output, whole in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, whole, opts or dist.ReduceScatterOptions())
        return _finished(outputs)

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all ranks."""
        self._gloo.allreduce([torch.zeros(1)]).wait()
        return _finished(None)

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> Any:
        """To a rank of this group."""
        host = _on_host(tensors[0])
        return Sent(self._gloo.send([host], to, tag), host)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Any:
        """From a rank of this group."""
        host = torch.empty_like(tensors[0], device="cpu", requires_grad=False)
        return Received(self._gloo.recv([host], source, tag), host, tensors[0])

    def _reduced(self, tensor: Tensor, opts: Any) -> Tensor:
        wide = torch.float32 if tensor.is_floating_point() else tensor.dtype
        host = _on_host(tensor).to(wide)
        mean = opts.reduceOp == dist.ReduceOp.AVG
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.SUM) if mean else opts.reduceOp
        self._gloo.allreduce([host], options).wait()
        return (host / self._size if mean else host).to(tensor.dtype)


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _finished(result: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(result)
    # The stubs lack it; torch offers no public way to make a `Work` that is done.
    return torch._C._distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined] # not in the stubs of torch


def main() -> None:
    """Run as executor.train, on the first device alone."""
    for device in ("cuda", "cpu"):
        dist.Backend.default_device_backend_map[device] = "shared"
    dist.Backend.register_backend("shared", ThroughMainMemory, devices=["cuda", "cpu"])
    os.environ["LOCAL_RANK"] = "0"
    connect = dist.init_process_group

    def unbound(*args: Any, device_id: Any = None, **kwargs: Any) -> None:
        connect(*args, **kwargs)

    dist.init_process_group = unbound
    train.main()


if __name__ == "__main__":
    main()
