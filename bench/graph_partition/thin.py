"""For graphs with too many ideals: a problem whose splits are splits, and one that bounds them."""

from __future__ import annotations

from collections.abc import Sequence

from bench.graph_partition.problem import GraphProblem, Tensor, topological


def with_window(problem: GraphProblem, blocks: Sequence[int], width: int) -> GraphProblem:
    """The problem with more order: what is `width` or more apart in `blocks` stays in turn.

    Its splits are splits of `problem`; it has at most count x 2^(width - 1) ideals.
    """
    far = [(blocks[at], blocks[at + width]) for at in range(len(blocks) - width)]
    # Gaps from `width` to twice it less one; every larger gap is a sum of these.
    for gap in range(width + 1, 2 * width):
        far += [(blocks[at], blocks[at + gap]) for at in range(len(blocks) - gap)]
    return GraphProblem(
        names=problem.names,
        accelerator_s=problem.accelerator_s,
        host_s=problem.host_s,
        memory_bytes=problem.memory_bytes,
        on_accelerator=problem.on_accelerator,
        order=tuple(sorted({*problem.order, *far})),
        tensors=problem.tensors,
        accelerators=problem.accelerators,
        hosts=problem.hosts,
        capacity_bytes=problem.capacity_bytes,
    )


def without_blocks(problem: GraphProblem, dropped: frozenset[int]) -> GraphProblem:
    """The problem without some blocks: their work, memory and the tensors they make; a lower bound.

    The order that went through them stays. A split of `problem` is one of this with no load larger.
    """
    before: list[set[int]] = [set() for _ in problem.names]
    for first, later in problem.order:
        before[later].add(first)
    for block in topological(len(problem.names), problem.order):
        through = before[block] & dropped
        for gone in through:
            before[block] |= before[gone]
        before[block] -= dropped
    kept = [b for b in range(len(problem.names)) if b not in dropped]
    number = {block: at for at, block in enumerate(kept)}
    return GraphProblem(
        names=tuple(problem.names[b] for b in kept),
        accelerator_s=tuple(problem.accelerator_s[b] for b in kept),
        host_s=tuple(problem.host_s[b] for b in kept),
        memory_bytes=tuple(problem.memory_bytes[b] for b in kept),
        on_accelerator=tuple(problem.on_accelerator[b] for b in kept),
        order=tuple(sorted((number[a], number[b]) for b in kept for a in before[b])),
        tensors=tuple(
            Tensor(
                producer=number[tensor.producer],
                consumers=tuple(number[b] for b in tensor.consumers if b in number),
                transfer_s=tensor.transfer_s,
            )
            for tensor in problem.tensors
            if tensor.producer in number
        ),
        accelerators=problem.accelerators,
        hosts=problem.hosts,
        capacity_bytes=problem.capacity_bytes,
    )
