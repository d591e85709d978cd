"""What a rank does to the device: where the host waits for it, what lies elsewhere, what is sent,
and how much is held."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._tools.fake_collectives import CollectiveOp
from torch.distributed._tools.mem_tracker import (
    _TOTAL_KEY,
    MemTracker,
    _MemRefType,
    _ModState,
)
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from executor.recorder import Recorder
from tests.executor.fake_accelerator.device import NAME

_BACKWARD = re.compile(r"\d+[BIW]\d+")

_DEVICE = torch.ops.prim.device.default
aten, c10d, functional = torch.ops.aten, torch.ops.c10d, torch.ops._c10d_functional

ROOT = Path(__file__).parents[3]
_EXECUTOR = str(ROOT / "executor")
# What lies between a call of the executor's or the model's and an op.
_BETWEEN = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent),
    str(ROOT / "profiles"),
    str(Path(re.__file__).parents[1]),  # the standard library
    "<",
)

# How many elements come out depends on values, which the host then asks for.
_SIZED_BY_VALUE = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.repeat_interleave.Tensor,
}


@dataclass(frozen=True, slots=True)
class Found:
    """What the host did: `kind` is scalar, from device, to device, by value, on host or sent by
    host, which NCCL cannot; `where` file:function in the executor, or "model" where the model's own
    code did it; `op` of torch."""

    kind: str
    where: str
    op: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a step.

    operation  in c10d's words
    size_bytes, dtype  of the whole tensor: all that is gathered, or summed, or what is sent
    ranks      that take part, of a send or receive the other one
    during     the action of the executor's recorder that ran
    backward   number of the backward that ran, or was the last to end; -1 before the first
    """

    operation: str
    size_bytes: int
    dtype: str
    ranks: tuple[int, ...]
    during: str
    backward: int


class Actions(Recorder):
    """A recorder that says what runs, and what is on the device at the end of each backward."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.running = ""
        self.backwards = -1
        self.held: list[int] = []
        self._memory = memory

    @contextmanager
    def action(self, name: str) -> Iterator[None]:
        """As Recorder.action."""
        self.running = name
        if _BACKWARD.fullmatch(name):
            self.backwards += 1
        with super().action(name):
            yield
        if _BACKWARD.fullmatch(name):
            self.held.append(self._memory.now)
        self.running = ""


class Memory(MemTracker):  # type: ignore[misc] # torch's is untyped
    """torch's tracker of what is allocated, without its hooks on modules, which allow no second
    micro-batch; `peak` is the most since `restart`."""

    def __enter__(self) -> Memory:
        self._fake_mode_on_entry = active_fake_mode()
        self._track_resize()
        TorchDispatchMode.__enter__(self)
        return self

    def __exit__(self, *args: Any) -> None:
        self._restore_resize()
        TorchDispatchMode.__exit__(self, *args)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(t is DTensor for t in types):
            return NotImplemented
        waits = func is functional.wait_tensor.default  # on shapes it would make another tensor
        made = args[0] if waits else func(*args, **(kwargs or {}))
        if active_fake_mode() is self._fake_mode_on_entry:
            tree_map_only(Tensor, partial(self._track, _MemRefType.ACT), made)
            self._update_peak_stats(_ModState.PEAK_FW)
        return made

    @property
    def now(self) -> int:
        """Bytes on the device."""
        return self._on_device(self._curr_mem_snap)

    @property
    def peak(self) -> int:
        """The most bytes on the device since `restart`."""
        return self._on_device(self._peak_mem_snap)

    def restart(self) -> None:
        """From here on a new peak."""
        self._peak_mem.clear()
        self._peak_mem_snap.clear()
        self._update_peak_stats(_ModState.PEAK_FW)

    def _on_device(self, snapshot: dict[torch.device, dict[Any, int]]) -> int:
        return sum(held[_TOTAL_KEY] for at, held in snapshot.items() if at.type == NAME)


class Watch(TorchDispatchMode):
    """Looks at every op between `step` and its end; `counting` is off while a rank is built."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.found: list[Found] = []
        self.messages: list[Message] = []
        self.actions = Actions(memory)
        self._counts = False
        self._mode: Any = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a step."""
        self._counts, self._mode = True, active_fake_mode()
        self.actions.backwards = -1
        self.actions.held.clear()
        try:
            yield
        finally:
            self._counts = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            # As FakeTensorMode answers it: autograd reads it at least twice per op.
            return torch.device("meta") if _in_kernel(args[0]) else args[0].fake_device
        if any(t is DTensor for t in types):
            return NotImplemented
        asks = func in (aten._local_scalar_dense.default, aten.item.default)
        # Meshes of ranks are real tensors, with values.
        if asks and isinstance(args[0], FakeTensor) and args[0].constant is None:
            if self._counts and args[0].device.type == NAME:
                self._note("scalar", func)
            return _answer(args[0])
        if func is aten._to_copy.default and "device" in kwargs:
            # Values that the mode knows it would have made on the device, which cannot.
            if isinstance(args[0], FakeTensor):
                args[0].constant = None
            elif (mode := active_fake_mode()) is not None:
                args = (mode.from_tensor(args[0]), *args[1:])
        if not self._counts or active_fake_mode() is not self._mode:
            return func(*args, **kwargs)
        if func in _SIZED_BY_VALUE and args[0].device.type == NAME:
            self._note("by value", func)
        made = func(*args, **kwargs)
        if func.namespace in ("c10d", "_c10d_functional"):
            self._note_message(func, args, made)
        self._note_places(func, args, made)
        return made

    def _note_places(self, func: Any, args: Any, made: Any) -> None:
        given = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
        outputs = [x for x in tree_leaves(made) if isinstance(x, Tensor)]
        at = {x.device.type for x in given if x.dim() or x.device.type == NAME}
        to = {x.device.type for x in outputs}
        if func is aten.copy_.default:
            at, to = {args[1].device.type}, {args[0].device.type}
        if NAME in at and "cpu" in to:
            self._note("from device", func)
        elif "cpu" in at and NAME in to:
            self._note("to device", func)
        elif (
            func.namespace == "aten"
            and not func.is_view
            and "cpu" in (to or at)  # the optimizer's has no output
            and any(x.numel() > 1 for x in outputs or given)
        ):
            self._note("on host", func)

    def _note(self, kind: str, func: Any) -> None:
        self.found.append(Found(kind, _place(), func.name()))

    def _note_message(self, func: Any, args: Any, made: Any) -> None:
        name = func._schema.name.partition("::")[2].rstrip("_")
        if name in ("wait_tensor", "barrier"):
            return
        if func is c10d.send.default or func is c10d.recv_.default:
            group, tensors, others = ProcessGroup.unbox(args[1]), args[0], (args[2],)
        else:
            group = CollectiveOp.get_process_group(func, args)
            gathered = made if "gather_into" in name else args[0]
            scattered = args[1] if name == "_reduce_scatter_base" else gathered
            tensors, others = tree_leaves(scattered), tuple(dist.get_process_group_ranks(group))
        self.messages.append(
            Message(
                name,
                sum(x.numel() * x.element_size() for x in tensors),
                str(tensors[0].dtype).removeprefix("torch."),
                others,
                self.actions.running,
                self.actions.backwards,
            )
        )
        if any(x.device.type == "cpu" for x in tensors):
            self._note("sent by host", func)


def _in_kernel(x: FakeTensor) -> bool:
    return bool(x.fake_mode.in_kernel_invocation)


def _answer(x: Tensor) -> bool | int | float:
    """What the host gets for a number: 1, with which the stages of a pipeline vote."""
    if x.dtype is torch.bool:
        return True
    return 1.0 if x.is_floating_point() else 1


def _place() -> str:
    """Where in the executor the op that runs was called; "model" if the model's code did, "torch"
    where neither is on the stack (a thread of autograd)."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_EXECUTOR):
            return f"{Path(file).relative_to(ROOT)}:{frame.f_code.co_name}"
        if not file.startswith(_BETWEEN):
            return "model"
        frame = frame.f_back
    return "torch"
