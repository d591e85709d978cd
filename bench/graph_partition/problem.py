"""The problem: blocks of a graph on a row of devices, in contiguous pieces, largest load smallest.

Blocks are what must stay together (a layer with its backward pass). A split gives every device the
difference of two ideals: down-closed sets I0 = {} ⊂ I1 ⊂ ... ⊂ all, so no device waits for a later
one. This is the throughput problem of Tarnawski et al., "Efficient Algorithms for Device Placement
of DNN Graph Operators", NeurIPS 2020, with any tensors between blocks, also backward
ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import networkx as nx

from profiles.errors import InputError


class DeviceKind(StrEnum):
    """What a share of a split runs on; a host pays no transfers and has no memory limit."""

    ACCELERATOR = "accelerator"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """What one block makes and others read.

    transfer_s   paid once by the device of `producer` if any consumer is elsewhere, and once by
                 each other device with a consumer
    """

    producer: int
    consumers: tuple[int, ...]
    transfer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphProblem:
    """Blocks, their order, their tensors, the devices. Blocks are numbered as in `names`, from 0.

    accelerator_s, host_s   seconds of each block on an accelerator and on a host
    memory_bytes            of each block on an accelerator
    on_accelerator          False: the block runs on hosts only
    order                   pairs (first, later): `later` is never on an earlier device than `first`
    capacity_bytes          of one accelerator; may be infinite
    Raises InputError: lengths that differ, NaN, negative figures, no device, an order with a cycle.
    """

    names: tuple[str, ...]
    accelerator_s: tuple[float, ...]
    host_s: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    on_accelerator: tuple[bool, ...]
    order: tuple[tuple[int, int], ...]
    tensors: tuple[Tensor, ...]
    accelerators: int
    hosts: int
    capacity_bytes: float

    def __post_init__(self) -> None:
        if self.accelerators < 0 or self.hosts < 0 or self.accelerators + self.hosts < 1:
            raise InputError(
                f"{self.accelerators} accelerators and {self.hosts} hosts;"
                " at least one device is needed"
            )
        if not self.capacity_bytes >= 0:
            raise InputError(f"capacity_bytes is {self.capacity_bytes}; it must be 0 or more")
        self._check_figures()
        self._check_references()
        cycle = find_cycle(self.order)
        if cycle:
            path = " -> ".join(self.names[b] for b in (*cycle, cycle[0]))
            raise InputError(
                f"the order of the blocks has a cycle: {path}; merge its blocks into one"
            )

    def _check_figures(self) -> None:
        count = len(self.names)
        for label in ("accelerator_s", "host_s", "memory_bytes", "on_accelerator"):
            values: Sequence[float] = getattr(self, label)
            if len(values) != count:
                raise InputError(f"{label} has {len(values)} entries for {count} blocks")
            for name, value in zip(self.names, values, strict=True):
                if not (value >= 0 and math.isfinite(value)):
                    raise InputError(
                        f"{label} of block {name} is {value}; it must be finite and 0 or more"
                    )

    def _check_references(self) -> None:
        count = len(self.names)
        used = {b for pair in self.order for b in pair}
        for tensor in self.tensors:
            used.update((tensor.producer, *tensor.consumers))
            if not (tensor.transfer_s >= 0 and math.isfinite(tensor.transfer_s)):
                raise InputError(
                    f"transfer_s of a tensor of block {tensor.producer} is {tensor.transfer_s};"
                    " it must be finite and 0 or more"
                )
        wrong = [b for b in used if not 0 <= b < count]
        if wrong:
            raise InputError(f"block {min(wrong)} is referred to, but blocks are 0 to {count - 1}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The blocks of one device, ascending."""

    kind: DeviceKind
    blocks: tuple[int, ...]


def find_cycle(order: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Blocks of one cycle of `order` in turn, or () where there is none."""
    try:
        return tuple(first for first, _ in nx.find_cycle(nx.DiGraph(order)))
    except nx.NetworkXNoCycle:
        return ()


def topological(count: int, order: Sequence[tuple[int, int]]) -> list[int]:
    """Blocks in an order that respects every pair of `order`; fewer than `count` if it has a cycle.

    Branches come one after the other: the successors of a block follow it as soon as they can.
    """
    after: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for first, later in set(order):
        after[first].append(later)
        waiting[later] += 1
    ready = sorted((b for b in range(count) if not waiting[b]), reverse=True)
    placed: list[int] = []
    while ready:
        block = ready.pop()
        placed.append(block)
        for later in sorted(after[block], reverse=True):
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(later)
    return placed
