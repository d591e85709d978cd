"""The compiled loop that polishes a choice: simulated annealing of single and pair moves.

Kirkpatrick, Gelatt and Vecchi, "Optimization by Simulated Annealing" (1983), on cost plus `weight`
for every byte above capacity at every moment of the window (an exact penalty once the weight is
above the price of memory).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bench.compiled import compiled
from bench.strategy_graph.contraction import Floats
from bench.strategy_graph.dual_kernels import overload
from bench.strategy_graph.random_numbers import uniform
from planner.op_sharding.strategy_graph import Ints


def conditional_costs(
    node_start: Ints,
    arc_start: Ints,
    arc_head: Ints,
    arc_table: Ints,
    tables: Floats,
    cost: Floats,
    choice: Ints,
) -> Floats:
    """By strategy: its cost with all other nodes as chosen."""
    given = cost.copy()
    _add_pairs(node_start, arc_start, arc_head, arc_table, tables, choice, given)
    return given


@compiled
def _add_pairs(
    node_start: Ints,
    arc_start: Ints,
    arc_head: Ints,
    arc_table: Ints,
    tables: Floats,
    choice: Ints,
    given: Floats,
) -> None:
    for i in range(len(node_start) - 1):
        for arc in range(arc_start[i], arc_start[i + 1]):
            j = arc_head[arc]
            columns = node_start[j + 1] - node_start[j]
            for s in range(node_start[i + 1] - node_start[i]):
                given[node_start[i] + s] += tables[arc_table[arc] + s * columns + choice[j]]


@compiled
def total_cost(
    node_start: Ints,
    arc_start: Ints,
    arc_head: Ints,
    arc_table: Ints,
    tables: Floats,
    cost: Floats,
    choice: Ints,
) -> float:
    """The cost of one strategy per node."""
    total = 0.0
    for i in range(len(node_start) - 1):
        total += cost[node_start[i] + choice[i]]
        for arc in range(arc_start[i], arc_start[i + 1]):
            j = arc_head[arc]
            if j > i:
                columns = node_start[j + 1] - node_start[j]
                total += tables[arc_table[arc] + choice[i] * columns + choice[j]]
    return total


@compiled
def _penalty_change(
    i: int,
    s: int,
    choice: Ints,
    over: Floats,
    low: Ints,
    high: Ints,
    start: Ints,
    usage: Floats,
) -> float:
    """How many bytes times moments more are above capacity once node i takes strategy s."""
    width = high[i] - low[i]
    old = start[i] + choice[i] * width
    new = start[i] + s * width
    change = 0.0
    for w in range(width):
        before = over[low[i] + w]
        after = before + usage[new + w] - usage[old + w]
        change += (after if after > 0.0 else 0.0) - (before if before > 0.0 else 0.0)
    return change


@compiled
def _take(
    i: int,
    s: int,
    choice: Ints,
    given: Floats,
    over: Floats,
    node_start: Ints,
    arc_start: Ints,
    arc_head: Ints,
    arc_table: Ints,
    tables: Floats,
    low: Ints,
    high: Ints,
    start: Ints,
    usage: Floats,
) -> None:
    """Node i takes strategy s; conditional costs and memory follow."""
    r = choice[i]
    width = high[i] - low[i]
    old = start[i] + r * width
    new = start[i] + s * width
    for w in range(width):
        over[low[i] + w] += usage[new + w] - usage[old + w]
    for arc in range(arc_start[i], arc_start[i + 1]):
        j = arc_head[arc]
        at = node_start[j]
        columns = node_start[j + 1] - at
        old = arc_table[arc] + r * columns
        new = arc_table[arc] + s * columns
        for c in range(columns):
            given[at + c] += tables[new + c] - tables[old + c]
    choice[i] = s


def anneal(
    steps: int,
    hot: float,
    cold: float,
    pair_share: float,
    weight: float,
    state: NDArray[np.uint64],
    node_start: Ints,
    arc_start: Ints,
    arc_head: Ints,
    arc_table: Ints,
    tables: Floats,
    cost: Floats,
    low: Ints,
    high: Ints,
    start: Ints,
    usage: Floats,
    capacity: Floats,
    choice: Ints,
    best: Ints,
    best_cost: float,
) -> float:
    """`steps` moves from `choice` (in place) while the temperature falls from `hot` to `cold`.

    Returns the cost of `best`, which becomes the cheapest choice met that keeps within the window's
    capacity, where it is below `best_cost`.
    """
    over = overload(choice, capacity, low, high, start, usage)
    return _anneal(
        steps, hot, (cold / hot) ** (1.0 / max(steps, 1)), pair_share, weight, state, node_start,
        arc_start, arc_head, arc_table, tables, low, high, start, usage, choice, best, best_cost,
        conditional_costs(node_start, arc_start, arc_head, arc_table, tables, cost, choice),
        total_cost(node_start, arc_start, arc_head, arc_table, tables, cost, choice),
        over, float(np.maximum(over, 0.0).sum()),
    )  # fmt: skip


@compiled
def _keep(choice: Ints, best: Ints) -> None:
    for i in range(len(choice)):
        best[i] = choice[i]


@compiled
def _anneal(
    steps: int,
    temperature: float,
    cooling: float,
    pair_share: float,
    weight: float,
    state: NDArray[np.uint64],
    node_start: Ints,
    arc_start: Ints,
    arc_head: Ints,
    arc_table: Ints,
    tables: Floats,
    low: Ints,
    high: Ints,
    start: Ints,
    usage: Floats,
    choice: Ints,
    best: Ints,
    best_cost: float,
    given: Floats,
    now: float,
    over: Floats,
    excess: float,
) -> float:
    """`anneal` from a choice's conditional costs, cost, and memory above capacity."""
    count = len(node_start) - 1
    # The start counts too; `best` is written when it is left.
    pending = excess < 0.5 and now < best_cost - 0.25
    if pending:
        best_cost = now
    for _ in range(steps):
        temperature *= cooling
        i = int(uniform(state) * count)
        a = node_start[i]
        size = node_start[i + 1] - a
        s = int(uniform(state) * (size - 1))
        r = choice[i]
        if s >= r:
            s += 1
        change = given[a + s] - given[a + r]
        allowed = -temperature * math.log(1.0 - uniform(state))
        arcs = arc_start[i + 1] - arc_start[i]
        if change > allowed and arcs > 0 and uniform(state) < pair_share:
            # The neighbour answers with its best strategy.
            arc = arc_start[i] + int(uniform(state) * arcs)
            j = arc_head[arc]
            b = node_start[j]
            columns = node_start[j + 1] - b
            old = arc_table[arc] + r * columns
            new = arc_table[arc] + s * columns
            q = choice[j]
            t = q
            lowest = np.inf
            for c in range(columns):
                value = given[b + c] + tables[new + c] - tables[old + c]
                if value < lowest:
                    lowest = value
                    t = c
            if t == q:
                continue
            # cost(s, t) - cost(r, q) = [given_i(s) - given_i(r)] + given_j(t | s) - given_j(q | s)
            change = (
                given[a + s]
                - given[a + r]
                + lowest
                - (given[b + q] + tables[new + q] - tables[old + q])
            )
            if change > allowed and (excess <= 0.0):
                continue
            first = _penalty_change(i, s, choice, over, low, high, start, usage)
            if change + weight * first > allowed and low[j] >= high[j]:
                continue
            if pending:
                _keep(choice, best)
                pending = False
            _take(
                i, s, choice, given, over, node_start, arc_start, arc_head, arc_table, tables,
                low, high, start, usage,
            )  # fmt: skip
            second = _penalty_change(j, t, choice, over, low, high, start, usage)
            if change + weight * (first + second) > allowed:
                _take(
                    i, r, choice, given, over, node_start, arc_start, arc_head, arc_table, tables,
                    low, high, start, usage,
                )  # fmt: skip
                continue
            _take(
                j, t, choice, given, over, node_start, arc_start, arc_head, arc_table, tables,
                low, high, start, usage,
            )  # fmt: skip
            excess += first + second
        else:
            if change > allowed and excess <= 0.0:
                continue
            grown = _penalty_change(i, s, choice, over, low, high, start, usage)
            if change + weight * grown > allowed:
                continue
            if pending and (change > 0 or grown > 0):
                _keep(choice, best)
                pending = False
            _take(
                i, s, choice, given, over, node_start, arc_start, arc_head, arc_table, tables,
                low, high, start, usage,
            )  # fmt: skip
            excess += grown
        now += change
        if excess < 0.5 and now < best_cost - 0.25:
            best_cost = now
            pending = True
    if pending:
        _keep(choice, best)
    return best_cost


COMPILED_LAST = _anneal
"""Of the loops of a search the one that is compiled last."""
