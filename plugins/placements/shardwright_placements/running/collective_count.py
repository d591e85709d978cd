"""Count the collectives of a run: kinds, axes and bytes, by phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

_KINDS = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_to_all_single": "all_to_all",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "allreduce_": "all_reduce",
    "alltoall_base_": "all_to_all",
}

Key = tuple[str, str, str]
"""(phase, collective, axis)."""


class CollectiveCount(CommDebugMode):
    """Torch's counter of collectives, extended by bytes and axes.

    counts, sizes_bytes   by phase, kind and axis. Bytes are those of full buffers: one rank's
                          input, times the ranks for gathers and exchanges. Collectives inside
                          `unplanned(name)` are not part of the plan
    """

    def __init__(self, mesh: DeviceMesh, names: tuple[str, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self.phase = "forward"
        self.counts: Counter[Key] = Counter()
        self.sizes_bytes: Counter[Key] = Counter()
        self.unplanned_counts: Counter[str] = Counter()
        # name of the group -> (axis, ranks); axes come last, as one axis may be the whole world
        world = dist.group.WORLD
        self._groups: dict[str, tuple[str, int]] = {}
        if world is not None:
            self._groups[str(world.group_name)] = ("world", world.size())
        for axis, axis_name in enumerate(names):
            group = mesh.get_group(axis)
            self._groups[str(group.group_name)] = (axis_name, group.size())
        self._unplanned = ""

    @contextmanager
    def unplanned(self, name: str) -> Iterator[None]:
        """Context in which collectives are counted under this name only."""
        before, self._unplanned = self._unplanned, name
        try:
            yield
        finally:
            self._unplanned = before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        packet = getattr(func, "_overloadpacket", None)
        name = getattr(packet, "__name__", "")
        space = getattr(func, "namespace", "")
        is_collective = space in ("c10d", "_c10d_functional") and name in _KINDS
        if is_collective and not any(issubclass(t, DTensor) for t in types):
            self._note(_KINDS[name], name, args)
        return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call] # torch's

    def _note(self, kind: str, name: str, args: tuple[Any, ...]) -> None:
        if self._unplanned:
            self.unplanned_counts[self._unplanned] += 1
            return
        sent = _sent(name, args)
        axis, ranks = self._groups.get(_group_name(args, self._groups), ("unknown", 1))
        size_bytes = sent.numel() * sent.element_size()
        if kind in ("all_gather", "all_to_all"):
            size_bytes *= ranks
        key = (self.phase, kind, axis)
        self.counts[key] += 1
        self.sizes_bytes[key] += size_bytes

    def torch_total(self) -> int:
        """Number of collectives counted by CommDebugMode itself."""
        return int(self.get_total_counts())


def _sent(name: str, args: tuple[Any, ...]) -> Tensor:
    """The rank's input buffer: the second argument of c10d's base calls."""
    is_base = name in ("_allgather_base_", "_reduce_scatter_base_", "alltoall_base_")
    sent: Any = args[1] if is_base else args[0]
    first: Tensor = sent[0] if isinstance(sent, (list, tuple)) else sent
    return first


def _group_name(args: tuple[Any, ...], known: Mapping[str, object]) -> str:
    """Name of the group among the arguments: given by name, or boxed by the dispatcher."""
    for x in args:
        name = x if isinstance(x, str) else getattr(_unboxed(x), "group_name", "")
        if name in known:
            return str(name)
    return ""


def _unboxed(x: Any) -> Any:
    if isinstance(x, torch.ScriptObject):
        try:
            return dist.ProcessGroup.unbox(x)
        except RuntimeError:
            return None
    return x
