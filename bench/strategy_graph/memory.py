"""Memory over time: which moments matter, and what each strategy of the core uses at them.

Of the moments between two events only those can bind that begin with a birth and end with a death:
every other moment's live nodes also live at one of these. The engine looks at a window of a few
hundred of them and adds those that a choice is found to overfill.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.compiled import compiled
from bench.strategy_graph.contraction import Contracted, Floats
from planner.op_sharding.strategy_graph import Ints, StrategyGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the original nodes use at the moments that matter."""

    limit: float
    decided: Floats
    """`[moments]`: what the decided nodes use."""
    group: Ints
    """By undecided original node that uses memory: its node of the core."""
    first: Ints
    """The first moment at which it lives."""
    last: Ints
    """One past the last."""
    start: Ints
    """Where in `usage` its usages start, one for each strategy of its group."""
    usage: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some moments, with the core's usage above each node's least."""

    moments: Ints
    capacity: Floats
    """What is left at each moment when every node uses its least."""
    low: Ints
    """By node: the first position in the window where its strategies differ in usage."""
    high: Ints
    """One past the last such position."""
    start: Ints
    """By node: where in `usage` its block `[strategies, high - low]` starts."""
    usage: Floats


def moments_of(graph: StrategyGraph, contracted: Contracted) -> Memory:
    """The memory of a contracted graph; without moments where the graph has no limit."""
    limit = np.inf if graph.usage_limit is None else float(graph.usage_limit)
    starts, ends = graph.intervals[:, 0], graph.intervals[:, 1]
    lives = ends > starts
    if not lives.any() or graph.usage_limit is None:
        chosen = np.zeros(0, dtype=np.int64)
    else:
        events = np.unique(graph.intervals[lives])
        births = np.isin(events[:-1], starts[lives])
        deaths = np.isin(events[1:], ends[lives])
        chosen = events[:-1][births & deaths]
    first = np.searchsorted(chosen, starts)
    last = np.searchsorted(chosen, ends)
    change = np.zeros(len(chosen) + 1)
    members: list[int] = []
    usages: list[Floats] = []
    for node in np.flatnonzero(lives & (last > first)).tolist():
        usage = graph.node_usages[node][contracted.choice[node]].astype(np.float64)
        if contracted.group[node] < 0:
            change[first[node]] += usage[0]
            change[last[node]] -= usage[0]
        elif usage.any():
            members.append(node)
            usages.append(usage)
    index = np.array(members, dtype=np.int64)
    return Memory(
        limit=limit,
        decided=np.cumsum(change)[:-1],
        group=contracted.group[index],
        first=first[index],
        last=last[index],
        start=np.concatenate([[0], np.cumsum([len(u) for u in usages])]).astype(np.int64)[:-1],
        usage=np.concatenate(usages) if usages else np.zeros(0),
    )


@compiled
def _add_lives(
    choice: Ints, group: Ints, first: Ints, last: Ints, start: Ints, usage: Floats, change: Floats
) -> None:
    """Adds to `change`, by moment, what begins to live less what ends."""
    for k in range(len(group)):
        used = usage[start[k] + choice[group[k]]]
        change[first[k]] += used
        change[last[k]] -= used


def load(memory: Memory, choice: Ints) -> Floats:
    """`[moments]`: the memory of one strategy per node of the core."""
    change = np.zeros(len(memory.decided) + 1)
    _add_lives(choice, memory.group, memory.first, memory.last, memory.start, memory.usage, change)
    return memory.decided + np.cumsum(change[:-1])


@compiled
def _spread(
    low: Ints,
    high: Ints,
    size: Ints,
    block: Ints,
    group: Ints,
    a: Ints,
    b: Ints,
    start: Ints,
    usage: Floats,
    filled: Floats,
) -> None:
    """Adds to `filled` every node's block of usage over the positions of a window."""
    for k in range(len(group)):
        g = group[k]
        width = high[g] - low[g]
        for s in range(size[g]):
            used = usage[start[k] + s]
            for w in range(a[k], b[k]):
                filled[block[g] + s * width + w - low[g]] += used


def window(memory: Memory, moments: Ints, size: Ints) -> Window:
    """The usage at these (sorted) moments of nodes with so many strategies each."""
    count = len(size)
    a = np.searchsorted(moments, memory.first)
    b = np.searchsorted(moments, memory.last)
    seen = b > a
    low = np.full(count, len(moments), dtype=np.int64)
    high = np.zeros(count, dtype=np.int64)
    np.minimum.at(low, memory.group[seen], a[seen])
    np.maximum.at(high, memory.group[seen], b[seen])
    low = np.minimum(low, high)
    width = high - low
    block = np.concatenate([[0], np.cumsum(width * size)]).astype(np.int64)
    usage = np.zeros(block[-1])
    _spread(
        low,
        high,
        size,
        block,
        memory.group[seen],
        a[seen],
        b[seen],
        memory.start[seen],
        memory.usage,
        usage,
    )
    capacity = memory.limit - memory.decided[moments]
    for node in np.flatnonzero(width).tolist():
        part = usage[block[node] : block[node + 1]].reshape(size[node], width[node])
        least = part.min(axis=0)
        part -= least
        capacity[low[node] : high[node]] -= least
    return Window(
        moments=moments, capacity=capacity, low=low, high=high, start=block[:-1], usage=usage
    )
