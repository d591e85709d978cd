"""A problem as arrays, its blocks renumbered in a topological order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.graph_partition.problem import GraphProblem

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Arrays over blocks in topological order; `blocks[i]` is the problem's number of block i.

    pairs               the order, [pairs, 2], without repeats
    transfer_s          of each tensor that costs something and has a consumer besides its producer
    consumers           how many of them each tensor has
    first, tensor, makes   block i touches tensor[j] for j from first[i] to first[i + 1], as the
                        producer where makes[j]
    """

    blocks: Ints
    accelerator_s: Floats
    host_s: Floats
    memory_bytes: Floats
    on_accelerator: NDArray[np.bool_]
    pairs: Ints
    transfer_s: Floats
    consumers: Ints
    first: Ints
    tensor: Ints
    makes: NDArray[np.bool_]
    accelerators: int
    hosts: int
    capacity_bytes: float

    @property
    def count(self) -> int:
        return len(self.blocks)


def figures_of(problem: GraphProblem, blocks: list[int]) -> Figures:
    """The arrays of `problem` with `blocks`, a topological order of all its blocks."""
    number = {block: at for at, block in enumerate(blocks)}
    touches: list[list[tuple[int, bool]]] = [[] for _ in blocks]
    transfer_s: list[float] = []
    consumers: list[int] = []
    for tensor in problem.tensors:
        readers = sorted(set(tensor.consumers) - {tensor.producer})
        if not readers or tensor.transfer_s == 0:
            continue
        touches[number[tensor.producer]].append((len(transfer_s), True))
        for reader in readers:
            touches[number[reader]].append((len(transfer_s), False))
        transfer_s.append(tensor.transfer_s)
        consumers.append(len(readers))
    pairs = sorted({(number[a], number[b]) for a, b in problem.order})
    flat = [touch for row in touches for touch in row]
    index = np.asarray(blocks, dtype=np.int32)
    return Figures(
        blocks=index,
        accelerator_s=np.asarray(problem.accelerator_s, dtype=float)[index],
        host_s=np.asarray(problem.host_s, dtype=float)[index],
        memory_bytes=np.asarray(problem.memory_bytes, dtype=float)[index],
        on_accelerator=np.asarray(problem.on_accelerator, dtype=bool)[index],
        pairs=np.asarray(pairs, dtype=np.int32).reshape(-1, 2),
        transfer_s=np.asarray(transfer_s, dtype=float),
        consumers=np.asarray(consumers, dtype=np.int32),
        first=np.cumsum([0, *map(len, touches)], dtype=np.int32),
        tensor=np.asarray([t for t, _ in flat], dtype=np.int32),
        makes=np.asarray([m for _, m in flat], dtype=bool),
        accelerators=problem.accelerators,
        hosts=problem.hosts,
        capacity_bytes=problem.capacity_bytes,
    )
