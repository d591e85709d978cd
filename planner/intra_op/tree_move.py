"""The compiled move that chooses anew, and at once, all nodes of a random induced tree.

Given all other nodes the best choice on a tree is a dynamic programme (Pearl 1982); random numbers
on the strategies make it a sample at a temperature (Papandreou and Yuille, "Perturb-and-MAP random
fields", 2011). It steps over barriers that single moves do not cross.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from planner.intra_op.compiled import compiled
from planner.intra_op.contraction import Floats
from planner.intra_op.strategy_graph import Ints


@compiled
def uniform(state: NDArray[np.uint64]) -> float:
    """Uniform in [0, 1): xorshift64* (Marsaglia 2003, Vigna 2016)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled
def grow_tree(
    root: int,
    most: int,
    state: NDArray[np.uint64],
    arc_start: Ints,
    arc_head: Ints,
    touched: Ints,
    tree: Ints,
    parent_arc: Ints,
) -> int:
    """A random tree without cycles in the graph, from `root` on; returns how many nodes it has.

    `tree` becomes its nodes, parents first, `parent_arc` the arc from each one's parent to it.
    `touched` is scratch, zero before and after: how many neighbours of a node are in the tree.
    """
    count = 1
    tree[0] = root
    parent_arc[0] = -1
    touched[root] += 1 << 30
    at = 0
    for arc in range(arc_start[root], arc_start[root + 1]):
        touched[arc_head[arc]] += 1
    while at < count and count < most:
        node = tree[at]
        first = arc_start[node]
        arcs = arc_start[node + 1] - first
        turn = int(uniform(state) * arcs) if arcs > 0 else 0
        for k in range(arcs):
            arc = first + (k + turn) % arcs
            j = arc_head[arc]
            if touched[j] != 1:
                continue
            tree[count] = j
            parent_arc[count] = arc
            count += 1
            touched[j] += 1 << 30
            for onward in range(arc_start[j], arc_start[j + 1]):
                touched[arc_head[onward]] += 1
            if count >= most:
                break
        at += 1
    for k in range(count):
        touched[tree[k]] = 0
        for arc in range(arc_start[tree[k]], arc_start[tree[k] + 1]):
            touched[arc_head[arc]] = 0
    return count


@compiled
def choose_on_tree(
    count: int,
    temperature: float,
    price_factor: float,
    state: NDArray[np.uint64],
    node_start: Ints,
    arc_head: Ints,
    arc_table: Ints,
    arc_reverse: Ints,
    tables: Floats,
    priced: Floats,
    given: Floats,
    choice: Ints,
    tree: Ints,
    parent_arc: Ints,
    value: Floats,
    chosen: Ints,
) -> None:
    """`chosen` (by node) becomes a near-best choice on the tree, all other nodes as they are.

    `priced` is, by strategy, its memory at prices; `value` is scratch by strategy.
    """
    for k in range(count):
        i = tree[k]
        a = node_start[i]
        for s in range(a, node_start[i + 1]):
            value[s] = given[s] + price_factor * priced[s]
            if temperature > 0.0:
                value[s] += temperature * math.log(
                    -math.log(1.0 - uniform(state) + 1e-300) + 1e-300
                )
    for k in range(1, count):
        # What the conditional costs hold of the tree's own edges is taken out.
        arc = parent_arc[k]
        i = tree[k]
        back = arc_reverse[arc]
        p = arc_head[back]
        a, b = node_start[i], node_start[p]
        size = node_start[i + 1] - a
        rows = node_start[p + 1] - b
        at = arc_table[arc] + choice[p] * size
        for s in range(size):
            value[a + s] -= tables[at + s]
        at = arc_table[back] + choice[i] * rows
        for r in range(rows):
            value[b + r] -= tables[at + r]
    for k in range(count - 1, 0, -1):
        arc = parent_arc[k]
        i = tree[k]
        back = arc_reverse[arc]
        p = arc_head[back]
        a, b = node_start[i], node_start[p]
        size = node_start[i + 1] - a
        for r in range(node_start[p + 1] - b):
            at = arc_table[arc] + r * size
            least = np.inf
            for s in range(size):
                term = value[a + s] + tables[at + s]
                least = term if term < least else least
            value[b + r] += least
    for k in range(count):
        i = tree[k]
        a = node_start[i]
        size = node_start[i + 1] - a
        best = 0
        least = np.inf
        if k == 0:
            for s in range(size):
                if value[a + s] < least:
                    least = value[a + s]
                    best = s
        else:
            arc = parent_arc[k]
            p = arc_head[arc_reverse[arc]]
            at = arc_table[arc] + chosen[p] * size
            for s in range(size):
                if value[a + s] + tables[at + s] < least:
                    least = value[a + s] + tables[at + s]
                    best = s
        chosen[i] = best
