"""The compiled move that chooses all nodes of a block anew, and at once, given all others.

Min-sum bucket elimination (Dechter 1999) in a plan's order. Random numbers on the strategies make
it a sample at a temperature (Papandreou and Yuille, "Perturb-and-MAP random fields", 2011). It
steps over barriers that moves of single nodes do not cross.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bench.compiled import compiled
from bench.strategy_graph.contraction import Floats
from bench.strategy_graph.random_numbers import uniform
from planner.op_sharding.strategy_graph import Ints


def choose_block(
    temperature: float,
    state: NDArray[np.uint64],
    node_start: Ints,
    arc_start: Ints,
    arc_head: Ints,
    arc_table: Ints,
    tables: Floats,
    priced: Floats,
    choice: Ints,
    order: Ints,
    is_free: Ints,
    scope_start: Ints,
    scope: Ints,
    factor_start: Ints,
    factor_base: Ints,
    factor_is_message: Ints,
    stride_start: Ints,
    stride: Ints,
    message_start: Ints,
) -> Ints:
    """`choice` with the block's nodes chosen anew: the least cost and memory at prices.

    `priced` is both, by strategy. At a `temperature` above 0 the minimum is of randomised costs.
    """
    chosen = choice.copy()
    _choose_block(
        temperature, state, node_start, arc_start, arc_head, arc_table, tables, priced, choice,
        order, is_free, scope_start, scope, factor_start, factor_base, factor_is_message,
        stride_start, stride, message_start, chosen, np.empty(len(priced)),
        np.empty(int(message_start[len(order)])), np.empty(_most(node_start)),
        np.empty(_most(factor_start), dtype=np.int64), np.empty(_most(scope_start), dtype=np.int64),
    )  # fmt: skip
    return chosen


def _most(start: Ints) -> int:
    return int(np.diff(start).max(initial=1))


@compiled
def _choose_block(
    temperature: float,
    state: NDArray[np.uint64],
    node_start: Ints,
    arc_start: Ints,
    arc_head: Ints,
    arc_table: Ints,
    tables: Floats,
    priced: Floats,
    choice: Ints,
    order: Ints,
    is_free: Ints,
    scope_start: Ints,
    scope: Ints,
    factor_start: Ints,
    factor_base: Ints,
    factor_is_message: Ints,
    stride_start: Ints,
    stride: Ints,
    message_start: Ints,
    chosen: Ints,
    given: Floats,
    message: Floats,
    value: Floats,
    place: Ints,
    digit: Ints,
) -> None:
    """`choose_block` into `chosen`, a copy of `choice`; the other arrays are room to work in."""
    steps = len(order)
    for b in range(steps):
        i = order[b]
        a = node_start[i]
        size = node_start[i + 1] - a
        for s in range(size):
            given[a + s] = priced[a + s]
            if temperature > 0.0:
                given[a + s] += temperature * math.log(
                    -math.log(1.0 - uniform(state) + 1e-300) + 1e-300
                )
        for arc in range(arc_start[i], arc_start[i + 1]):
            j = arc_head[arc]
            if is_free[j] == 0:
                columns = node_start[j + 1] - node_start[j]
                at = arc_table[arc] + choice[j]
                for s in range(size):
                    given[a + s] += tables[at + s * columns]
    for b in range(steps):
        i = order[b]
        a = node_start[i]
        size = node_start[i + 1] - a
        first = factor_start[b]
        factors = factor_start[b + 1] - first
        members = scope_start[b]
        count = scope_start[b + 1] - members
        for f in range(factors):
            place[f] = factor_base[first + f]
        for k in range(count):
            digit[k] = 0
        for entry in range(message_start[b], message_start[b + 1]):
            for s in range(size):
                value[s] = given[a + s]
            for f in range(factors):
                at = place[f]
                if factor_is_message[first + f] == 1:
                    for s in range(size):
                        value[s] += message[at + s]
                else:
                    for s in range(size):
                        value[s] += tables[at + s]
            least = value[0]
            for s in range(1, size):
                least = value[s] if value[s] < least else least
            message[entry] = least
            for k in range(count - 1, -1, -1):
                # The next combination of the scope's strategies, the last node fastest.
                j = scope[members + k]
                full = node_start[j + 1] - node_start[j]
                digit[k] += 1
                carries = digit[k] == full
                for f in range(factors):
                    step = stride[stride_start[first + f] + k]
                    place[f] += step - full * step if carries else step
                if not carries:
                    break
                digit[k] = 0
    for b in range(steps - 1, -1, -1):
        i = order[b]
        a = node_start[i]
        size = node_start[i + 1] - a
        members = scope_start[b]
        for s in range(size):
            value[s] = given[a + s]
        for f in range(factor_start[b], factor_start[b + 1]):
            at = factor_base[f]
            for k in range(scope_start[b + 1] - members):
                at += chosen[scope[members + k]] * stride[stride_start[f] + k]
            for s in range(size):
                value[s] += message[at + s] if factor_is_message[f] == 1 else tables[at + s]
        best = 0
        for s in range(1, size):
            if value[s] < value[best]:
                best = s
        chosen[i] = best
