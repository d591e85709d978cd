"""Blocks that take no time and may join a neighbour at no loss: a weight and its one reader.

Each of them alone doubles the number of ideals, so they go first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.graph_partition.problem import GraphProblem, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Satellites:
    """Groups to contract, one entry a block, and the blocks that joined a block they weigh on.

    heavy   satellites with memory: joining them is no loss only where memory does not bind
    """

    groups: tuple[int, ...]
    heavy: frozenset[int]


def find_satellites(problem: GraphProblem, *, weightless: bool = False) -> Satellites:
    """One round of joins; contract and ask again until `groups` are all different.

    A block joins its only neighbour in the order if it takes no time, runs wherever that block
    runs, and none of its tensors becomes dearer: each is made or also read by that block, or
    read by no other. Moving it to that block's device then keeps every ideal an ideal
    and raises no load.

    weightless   only blocks without memory join
    """
    count = len(problem.names)
    before: list[set[int]] = [set() for _ in range(count)]
    after: list[set[int]] = [set() for _ in range(count)]
    for a, b in problem.order:
        after[a].add(b)
        before[b].add(a)
    touching: list[list[Tensor]] = [[] for _ in range(count)]
    for tensor in problem.tensors:
        if tensor.transfer_s > 0:
            for block in {tensor.producer, *tensor.consumers}:
                touching[block].append(tensor)
    groups = list(range(count))
    heavy = set()
    taken: set[int] = set()  # blocks that joined or were joined in this round stay as they are
    for block in range(count):
        neighbours = before[block] | after[block]
        if problem.accelerator_s[block] or problem.host_s[block] or len(neighbours) != 1:
            continue
        (centre,) = neighbours
        if weightless and problem.memory_bytes[block] > 0:
            continue
        if block in taken or groups[centre] != centre:
            continue
        if problem.on_accelerator[centre] and not problem.on_accelerator[block]:
            continue
        if _no_dearer(touching[block], block, centre):
            groups[block] = centre
            taken.add(centre)
            if problem.memory_bytes[block] > 0:
                heavy.add(block)
    return Satellites(groups=tuple(groups), heavy=frozenset(heavy))


def _no_dearer(tensors: Sequence[Tensor], block: int, centre: int) -> bool:
    for tensor in tensors:
        if tensor.producer == centre or (tensor.producer != block and centre in tensor.consumers):
            continue
        if tensor.producer == block and set(tensor.consumers) <= {block, centre}:
            continue
        return False
    return True
