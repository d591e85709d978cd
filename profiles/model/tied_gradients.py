"""Blocks of a pipeline without the sums of gradients of shared weights."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace

from profiles.model.graph import Block, BlockRef, ModelGraph, Op, parameter_name, running_peak


@functools.lru_cache(maxsize=64)
def pipeline_kinds(graph: ModelGraph) -> tuple[Block, ...]:
    """`graph.kinds` as stages of a pipeline run them.

    In one process, the backward of the first of several blocks that share a weight adds up the
    weight's gradients of all of them. Stages sum the gradients of a shared weight once per step
    instead (simulator/traced/step_tail.py, `price_tie`), so these additions and their results are
    left out. Also left out, although it runs: the addition in a stage that holds several of the
    blocks.
    """
    places: Counter[str] = Counter()
    for ref in graph.chain:
        for parameter in graph.kinds[ref.kind].parameters:
            places[parameter_name(ref, parameter)] += 1
    shared = {name for name, count in places.items() if count > 1}
    first = {ref.kind: ref for ref in reversed(graph.chain)}
    return tuple(
        _without_sums(kind, first[number], shared) if number in first else kind
        for number, kind in enumerate(graph.kinds)
    )


def _without_sums(block: Block, ref: BlockRef, shared: set[str]) -> Block:
    ops, changes = list(block.backward_ops), list(block.backward_changes)
    for parameter in block.parameters:
        if not parameter.trainable or parameter_name(ref, parameter) not in shared:
            continue
        module, size = parameter.name.rpartition(".")[0], parameter.spec.memory_bytes
        for op in ops:
            if _is_sum(op, module, size):
                ops.remove(op)
                _leave_out(changes, size)
                break
    if len(ops) == len(block.backward_ops):
        return block
    return replace(
        block,
        backward_ops=tuple(ops),
        backward_changes=tuple(changes),
        backward_peak_bytes=running_peak(tuple(changes)),
    )


def _leave_out(changes: list[int], size: int) -> None:
    """Remove the last allocation of `size` bytes, and its release; consecutive ones are merged."""
    for sign in (1, -1):
        for at in reversed(range(len(changes))):
            if sign * changes[at] >= size:
                changes[at] -= sign * size
                break


def _is_sum(op: Op, module: str, size: int) -> bool:
    return (
        op.name == "add"
        and op.module == module
        and op.written_bytes == size
        and op.read_bytes == 2 * size
    )
