"""The problem: a graph of nodes with strategies, node and edge costs, and memory over time.

Choosing strategy s_i for every node i costs ``sum_i node_costs[i][s_i] + sum_(i,j)
edge_costs[s_i, s_j]``. Nodes hold tensors: tensor k uses ``usages[k][s]`` of memory, s being the
strategy of its node ``holders[k]``, from ``intervals[k, 0]`` up to, and without, ``intervals[k,
1]``; at no time may the sum exceed ``usage_limit``. This is a pairwise Markov random field with
interval knapsacks: with one tensor per node, the problem of Moffitt and Fegade, "The ASPLOS 2025 /
EuroSys 2025 Contest on Intra-Operator Parallelism for Distributed Deep Learning" (2025).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InputError

FORBIDDEN = 10**17
"""A cost of this or more forbids the choice (the contest's convention)."""

Ints = NDArray[np.int64]
Strategies = tuple[int, ...]
"""One strategy per node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyGraph:
    """Nodes with strategies, edges with tables of pair costs, tensors, and a limit on memory.

    Costs are integers in a unit of the caller's choice (such as nanoseconds), usages are
    non-negative integers in another unit (such as bytes). Raises InputError if shapes do not match.
    """

    node_costs: tuple[Ints, ...]
    """For each node the cost of each of its strategies, `[strategies]`."""
    holders: Ints
    """`[tensors]`: the node that holds each tensor."""
    usages: tuple[Ints, ...]
    """For each tensor its memory under each strategy of its holder, `[strategies]`."""
    intervals: Ints
    """`[tensors, 2]`: a tensor lives from the first time up to, and without, the second."""
    edges: Ints
    """`[edges, 2]`: the two nodes of each edge; several edges may join the same two."""
    edge_costs: tuple[Ints, ...]
    """For each edge its table `[strategies of the first node, strategies of the second]`."""
    usage_limit: int | None
    """The most memory at any time; None for no limit."""

    def __post_init__(self) -> None:
        nodes, tensors = len(self.node_costs), len(self.usages)
        if self.holders.shape != (tensors,) or self.intervals.shape != (tensors, 2):
            raise InputError(
                f"{tensors} tensors have usages, but the holders have shape {self.holders.shape} "
                f"and the intervals {self.intervals.shape}: give one of each for every tensor"
            )
        if self.edges.shape != (len(self.edge_costs), 2):
            raise InputError(
                f"edges have shape {self.edges.shape}, but there are {len(self.edge_costs)} tables"
            )
        for node, costs in enumerate(self.node_costs):
            if len(costs) == 0:
                raise InputError(f"node {node} has no strategy: give it at least one")
        for tensor, (node, usages) in enumerate(
            zip(self.holders.tolist(), self.usages, strict=True)
        ):
            if not 0 <= node < nodes:
                raise InputError(
                    f"tensor {tensor} is held by node {node}: nodes are 0..{nodes - 1}"
                )
            if len(usages) != len(self.node_costs[node]):
                raise InputError(
                    f"node {node} has {len(self.node_costs[node])} costs but {len(usages)} usages: "
                    "give one of each for every strategy"
                )
            if usages.min() < 0:
                raise InputError(f"node {node} has a negative usage: usages are 0 or more")
        for edge, ((first, second), table) in enumerate(
            zip(self.edges.tolist(), self.edge_costs, strict=True)
        ):
            if not (0 <= first < nodes and 0 <= second < nodes) or first == second:
                raise InputError(
                    f"edge {edge} joins nodes {first} and {second}: "
                    f"it has to join two different nodes of 0..{nodes - 1}"
                )
            shape = (len(self.node_costs[first]), len(self.node_costs[second]))
            if table.shape != shape:
                raise InputError(
                    f"edge {edge} has a table of shape {table.shape}, "
                    f"its nodes {first} and {second} have {shape} strategies"
                )

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.node_costs)

    def cost_of(self, strategies: Strategies) -> int:
        """The cost of a choice, regardless of memory; at least FORBIDDEN if it is not allowed."""
        nodes = sum(int(c[s]) for c, s in zip(self.node_costs, strategies, strict=True))
        return nodes + sum(
            int(table[strategies[u], strategies[v]])
            for (u, v), table in zip(self.edges.tolist(), self.edge_costs, strict=True)
        )

    def usage_over_time(self, strategies: Strategies) -> Ints:
        """`[moments]`: memory in use at every moment."""
        holders = self.holders.tolist()
        used = [u[strategies[h]] for u, h in zip(self.usages, holders, strict=True)]
        return sum_over_time(self.intervals, np.array(used, dtype=np.int64))

    def fits(self, strategies: Strategies) -> bool:
        """Whether a choice is within the limit at every moment."""
        limit = self.usage_limit
        return limit is None or int(self.usage_over_time(strategies).max()) <= limit

    def usages_at(self, moment: int) -> dict[int, Ints]:
        """For each node with tensors that live at a moment, their memory under each strategy."""
        found: dict[int, Ints] = {}
        lives = (self.intervals[:, 0] <= moment) & (moment < self.intervals[:, 1])
        for tensor in np.flatnonzero(lives).tolist():
            node = int(self.holders[tensor])
            known = found.get(node)
            found[node] = self.usages[tensor] if known is None else known + self.usages[tensor]
        return found

    def least_used(self) -> Strategies:
        """For each node the strategy with the least memory, summed over its tensors; ties are
        broken by lower cost."""
        total = [np.zeros(len(costs)) for costs in self.node_costs]
        for node, usages in zip(self.holders.tolist(), self.usages, strict=True):
            total[node] += usages
        return tuple(
            int(np.lexsort((costs, used))[0])
            for costs, used in zip(self.node_costs, total, strict=True)
        )


def sum_over_time(intervals: Ints, used: Ints) -> Ints:
    """`[moments]` the sum of usages over the intervals that contain a moment."""
    begin, end = intervals[:, 0], intervals[:, 1]
    lives = end > begin
    changes = np.zeros(int(intervals.max(initial=0)) + 1, dtype=np.int64)
    np.add.at(changes, begin[lives], used[lives])
    np.subtract.at(changes, end[lives], used[lives])
    return np.cumsum(changes)


def added(left: Ints, right: Ints) -> Ints:
    """The sum of costs, FORBIDDEN if either is, so that sums cannot overflow."""
    total = np.minimum(left, FORBIDDEN) + np.minimum(right, FORBIDDEN)
    return np.asarray(np.minimum(total, FORBIDDEN))
