"""Calls between blocks that an earlier block needs.

A plan may run blocks in another order than the model does (block_order.py): one whose outputs are
used late, or never, goes behind blocks that the model runs after it. Its part of the code may hold
views of what other blocks made (`x.view(...)`), which the trace follows by their storage, so that
they keep nobody waiting: they are made where they are used first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executor.replay.data_flow import Call


def where_used_first(calls: Sequence[Call]) -> tuple[tuple[Call, ...], dict[int, set[int]]]:
    """The calls, those of functions whose results an earlier block takes in that block, and by the
    number of a value the blocks that take it. What writes in place stays where it is."""
    taken: dict[int, set[int]] = {}
    found = []
    for call in reversed(calls):
        makes = [leaf.value for leaf in call.leaves if leaf.value >= 0]
        first = min((block for number in makes for block in taken.get(number, ())), default=None)
        moves = not isinstance(call.function, str) and not call.writes
        if first is not None and first < call.block and moves:
            call = replace(call, block=first)
        for number in call.takes:
            taken.setdefault(number, set()).add(call.block)
        found.append(call)
    return tuple(reversed(found)), taken
