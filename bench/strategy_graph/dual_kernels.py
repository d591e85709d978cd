"""The compiled loops of the dual ascent: one sweep of messages, one change of prices, one bound.

A reparametrisation is `node` (by strategy) and `message` (by arc and strategy): what node i's share
of an edge is. For every choice the node terms, plus the edge tables with both messages added, sum
to the cost with memory priced; so the sum of their minima is a lower bound.
"""

from __future__ import annotations

import numpy as np

from bench.compiled import compiled
from bench.strategy_graph.contraction import Floats
from planner.op_sharding.strategy_graph import Ints


def sweep(
    forward: bool,
    node_start: Ints,
    arc_start: Ints,
    arc_head: Ints,
    arc_table: Ints,
    arc_reverse: Ints,
    arc_message: Ints,
    tables: Floats,
    node: Floats,
    message: Floats,
    choice: Ints,
) -> float:
    """One pass of sequential tree-reweighted message passing, in place; the sum of node minima.

    Kolmogorov, "A new look at reweighted message passing" (2015), which for pairs is TRW-S (2006):
    node i draws in all that its earlier edges hold, then shares its terms among its later edges.
    After a pass every edge's minimum is 0, so the returned sum is the bound. `choice` becomes the
    rounding of section 4.2 of the 2006 paper: each node's best given those before it.
    """
    widest = _widest(node_start)
    return _sweep(
        forward, node_start, arc_start, arc_head, arc_table, arc_reverse, arc_message, tables,
        node, message, choice, np.empty(widest), np.empty(widest),
    )  # fmt: skip


def _widest(node_start: Ints) -> int:
    return int(np.diff(node_start).max(initial=1))


@compiled
def _sweep(
    forward: bool,
    node_start: Ints,
    arc_start: Ints,
    arc_head: Ints,
    arc_table: Ints,
    arc_reverse: Ints,
    arc_message: Ints,
    tables: Floats,
    node: Floats,
    message: Floats,
    choice: Ints,
    drawn: Floats,
    value: Floats,
) -> float:
    """`sweep` with room in `drawn` and `value` for the strategies of any node."""
    count = len(node_start) - 1
    bound = 0.0
    for step in range(count):
        i = step if forward else count - 1 - step
        a = node_start[i]
        size = node_start[i + 1] - a
        for s in range(size):
            value[s] = 0.0
        before = 0
        after = 0
        for arc in range(arc_start[i], arc_start[i + 1]):
            j = arc_head[arc]
            if (j < i) != forward:
                after += 1
                continue
            before += 1
            back = arc_reverse[arc]
            rows = node_start[j + 1] - node_start[j]
            base = arc_table[back]
            theirs = arc_message[back]
            mine = arc_message[arc]
            for s in range(size):
                drawn[s] = np.inf
            for r in range(rows):
                shift = message[theirs + r]
                at = base + r * size
                for s in range(size):
                    term = tables[at + s] + shift
                    drawn[s] = term if term < drawn[s] else drawn[s]
            at = base + choice[j] * size
            shift = message[theirs + choice[j]]
            for s in range(size):
                node[a + s] += drawn[s] + message[mine + s]
                message[mine + s] = -drawn[s]
                value[s] += tables[at + s] + shift - drawn[s]
        best = 0
        for s in range(size):
            value[s] += node[a + s]
            if value[s] < value[best]:
                best = s
        choice[i] = best
        if after > 0:
            share = 1.0 / (before if before > after else after)
            keep = 1.0 - share * after
            for arc in range(arc_start[i], arc_start[i + 1]):
                if (arc_head[arc] < i) != forward:
                    mine = arc_message[arc]
                    for s in range(size):
                        message[mine + s] += share * node[a + s]
            for s in range(size):
                node[a + s] *= keep
        least = np.inf
        for s in range(size):
            least = node[a + s] if node[a + s] < least else least
        bound += least
    return bound


def overload(
    choice: Ints, capacity: Floats, low: Ints, high: Ints, start: Ints, usage: Floats
) -> Floats:
    """`[window]`: the memory of a choice above capacity (negative where there is room)."""
    over = -capacity
    _add_usage(choice, low, high, start, usage, over)
    return over


@compiled
def _add_usage(
    choice: Ints, low: Ints, high: Ints, start: Ints, usage: Floats, over: Floats
) -> None:
    for i in range(len(choice)):
        width = high[i] - low[i]
        at = start[i] + choice[i] * width
        for w in range(width):
            over[low[i] + w] += usage[at + w]


@compiled
def reprice(
    change: Floats,
    node_start: Ints,
    low: Ints,
    high: Ints,
    start: Ints,
    usage: Floats,
    node: Floats,
) -> None:
    """Adds the usage at changed prices to the node terms."""
    for i in range(len(node_start) - 1):
        width = high[i] - low[i]
        for s in range(node_start[i + 1] - node_start[i]):
            at = start[i] + s * width
            total = 0.0
            for w in range(width):
                total += usage[at + w] * change[low[i] + w]
            node[node_start[i] + s] += total


@compiled
def give_away(
    node_start: Ints, arc_start: Ints, arc_message: Ints, message: Floats, node: Floats
) -> None:
    """Takes what the messages hold off the node terms, in place."""
    for i in range(len(node_start) - 1):
        for arc in range(arc_start[i], arc_start[i + 1]):
            for s in range(node_start[i + 1] - node_start[i]):
                node[node_start[i] + s] -= message[arc_message[arc] + s]


def bound_of(
    node_start: Ints,
    arc_start: Ints,
    arc_head: Ints,
    arc_table: Ints,
    arc_reverse: Ints,
    arc_message: Ints,
    tables: Floats,
    priced: Floats,
    message: Floats,
    through: Floats,
) -> tuple[float, float]:
    """The bound of these messages from scratch, and the sum of the sizes of all that it adds up.

    `priced` is cost plus usage at prices, by strategy. `through` becomes, by strategy, a bound on
    what choosing it costs above the returned bound: its node term above the least, plus for each
    edge its least entry above the edge's least.
    """
    return _bound_of(
        node_start, arc_start, arc_head, arc_table, arc_reverse, arc_message, tables, priced,
        message, through, np.empty(_widest(node_start)),
    )  # fmt: skip


@compiled
def _bound_of(
    node_start: Ints,
    arc_start: Ints,
    arc_head: Ints,
    arc_table: Ints,
    arc_reverse: Ints,
    arc_message: Ints,
    tables: Floats,
    priced: Floats,
    message: Floats,
    through: Floats,
    rows: Floats,
) -> tuple[float, float]:
    """`bound_of` with room in `rows` for the strategies of any node."""
    bound = 0.0
    size_sum = 0.0
    for i in range(len(node_start) - 1):
        a, b = node_start[i], node_start[i + 1]
        least = np.inf
        for s in range(a, b):
            term = priced[s]
            size_sum += abs(term)
            for arc in range(arc_start[i], arc_start[i + 1]):
                term -= message[arc_message[arc] + s - a]
                size_sum += abs(message[arc_message[arc] + s - a])
            through[s] = term
            least = term if term < least else least
        bound += least
        for s in range(a, b):
            through[s] -= least
        for arc in range(arc_start[i], arc_start[i + 1]):
            j = arc_head[arc]
            columns = node_start[j + 1] - node_start[j]
            theirs = arc_message[arc_reverse[arc]]
            edge_least = np.inf
            for s in range(b - a):
                row_least = np.inf
                at = arc_table[arc] + s * columns
                for c in range(columns):
                    term = tables[at + c] + message[theirs + c]
                    row_least = term if term < row_least else row_least
                rows[s] = row_least + message[arc_message[arc] + s]
                edge_least = rows[s] if rows[s] < edge_least else edge_least
            for s in range(b - a):
                through[a + s] += rows[s] - edge_least
            if i < j:
                bound += edge_least
                size_sum += abs(edge_least)
    return bound, size_sum
