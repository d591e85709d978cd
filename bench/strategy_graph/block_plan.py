"""Which nodes a block move chooses anew, and in which order it eliminates them.

Nodes are eliminated one by one (Bertele and Brioschi 1972), always the one whose table would be the
smallest; where even that has too many entries, a node with many neighbours is held fixed instead.
What is left out makes the rest narrow enough for an exact dynamic programme (a cutset, Pearl 1988).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.strategy_graph.core import Core
from planner.op_sharding.strategy_graph import Ints

SAMPLED = 8
"""Of so many nodes, drawn at random, the one with the most neighbours is held fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """An elimination order with the tables of each step, flattened for the compiled loop.

    Step b eliminates `order[b]`: over all strategies of its scope
    (``scope[scope_start[b]:scope_start[b+1]]``) it writes the least sum of its factors
    (``factor_start[b]:factor_start[b+1]``) to ``message_start[b]:message_start[b+1]``.
    """

    order: Ints
    is_free: Ints
    """`[nodes]`: 1 where the node is in `order`, 0 where it keeps its strategy."""
    scope_start: Ints
    scope: Ints
    factor_start: Ints
    factor_base: Ints
    """By factor: where it starts, in the messages or in the core's tables."""
    factor_is_message: Ints
    stride_start: Ints
    """By factor: where in `stride` its strides by node of the scope start."""
    stride: Ints
    message_start: Ints

    @property
    def entries(self) -> int:
        """How many entries all messages have."""
        return int(self.message_start[-1])


def plan_block(
    core: Core, nodes: Sequence[int], most_entries: float, rng: np.random.Generator
) -> BlockPlan:
    """A plan for these nodes; no step sums over more than `most_entries` combinations.

    `rng` decides which nodes are held fixed, so that other calls give other blocks.
    """
    order, scopes = _eliminate(core, nodes, math.log2(most_entries), rng)
    position = {node: step for step, node in enumerate(order)}
    # The node that is eliminated next varies fastest, so that its step reads in sequence.
    inside = [sorted((a for a in s if a in position), key=lambda a: -position[a]) for s in scopes]
    sizes = np.diff(core.node_start).tolist()
    strides: list[dict[int, int]] = []
    message_start = [0]
    incoming: list[list[int]] = [[] for _ in order]
    for step, members in enumerate(inside):
        entries, own = 1, {}
        for node in reversed(members):
            own[node] = entries
            entries *= sizes[node]
        strides.append(own)
        message_start.append(message_start[-1] + entries)
        if members:
            incoming[position[members[-1]]].append(step)
    is_free = np.zeros(core.nodes, dtype=np.int64)
    is_free[order] = 1
    flat: dict[str, list[int]] = {name: [] for name in ("base", "is_message", "at", "stride")}
    factor_start = [0]
    for step, node in enumerate(order):
        for arc in range(int(core.arc_start[node]), int(core.arc_start[node + 1])):
            other = int(core.arc_head[arc])
            if position.get(other, -1) > step:
                _add_factor(
                    flat,
                    int(core.arc_table[core.arc_reverse[arc]]),
                    False,
                    [sizes[node] if a == other else 0 for a in inside[step]],
                )
        for earlier in incoming[step]:
            steps = [strides[earlier].get(a, 0) for a in inside[step]]
            _add_factor(flat, message_start[earlier], True, steps)
        factor_start.append(len(flat["base"]))
    return BlockPlan(
        order=_ints(order),
        is_free=is_free,
        scope_start=_ints([0, *np.cumsum([len(members) for members in inside]).tolist()]),
        scope=_ints([node for members in inside for node in members]),
        factor_start=_ints(factor_start),
        factor_base=_ints(flat["base"]),
        factor_is_message=_ints(flat["is_message"]),
        stride_start=_ints(flat["at"]),
        stride=_ints(flat["stride"]),
        message_start=_ints(message_start),
    )


def region_around(core: Core, root: int, most: int, rng: np.random.Generator) -> list[int]:
    """Up to `most` nodes near `root`, breadth first; few of each node's neighbours, at random.

    A node that half of the graph hangs on would else fill every region.
    """
    seen = {root}
    reached = [root]
    for node in reached:
        heads = core.arc_head[core.arc_start[node] : core.arc_start[node + 1]]
        for other in rng.permutation(heads)[:12].tolist():
            if other not in seen:
                seen.add(other)
                reached.append(other)
        if len(reached) >= most:
            break
    return reached[:most]


def _eliminate(
    core: Core, nodes: Sequence[int], log_most: float, rng: np.random.Generator
) -> tuple[list[int], list[set[int]]]:
    """The order, and each node's neighbours at its turn (some may be held fixed later)."""
    inside = set(nodes)
    near = {
        i: {int(j) for j in core.arc_head[core.arc_start[i] : core.arc_start[i + 1]]} & inside
        for i in nodes
    }
    log_size = dict(
        zip(nodes, np.log2(np.diff(core.node_start)[list(nodes)]).tolist(), strict=True)
    )

    def weigh(node: int) -> float:
        return math.fsum([log_size[node], *(log_size[a] for a in near[node])])

    weight = {node: weigh(node) for node in nodes}
    queue = [(w, node) for node, w in weight.items()]
    heapq.heapify(queue)
    order: list[int] = []
    scopes: list[set[int]] = []
    left = sorted(inside)
    while near:
        lightest, node = heapq.heappop(queue)
        if node not in near or weight[node] != lightest:
            continue
        if lightest <= log_most:
            around = near.pop(node)
            order.append(node)
            scopes.append(around)
            for other in around:
                near[other] |= around
                near[other] -= {node, other}
        else:
            left = [a for a in left if a in near]
            drawn = rng.choice(len(left), min(len(left), SAMPLED), replace=False).tolist()
            luck = (0.5 + rng.random(len(drawn))).tolist()
            held = max(
                zip(drawn, luck, strict=True),
                key=lambda pair: len(near[left[pair[0]]]) * log_size[left[pair[0]]] * pair[1],
            )[0]
            around = near.pop(left[held])
            for other in around:
                near[other].discard(left[held])
            if node in near:
                heapq.heappush(queue, (lightest, node))
        for other in around:
            weight[other] = weigh(other)
            heapq.heappush(queue, (weight[other], other))
    return order, scopes


def _add_factor(flat: dict[str, list[int]], base: int, is_message: bool, steps: list[int]) -> None:
    flat["base"].append(base)
    flat["is_message"].append(int(is_message))
    flat["at"].append(len(flat["stride"]))
    flat["stride"].extend(steps)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
