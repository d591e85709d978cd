"""The problem: a graph of ops, each with strategies to choose from, priced singly and in pairs.

Choosing strategy s_i for every node i costs ``sum_i node_costs[i][s_i] + sum_(i,j)
edge_costs[s_i, s_j]``. Node i uses ``node_usages[i][s_i]`` of memory from ``intervals[i, 0]`` up
to, and without, ``intervals[i, 1]``; at no time may the sum exceed ``usage_limit``. This is a
pairwise Markov random field with interval knapsacks, the problem of Moffitt and Fegade, "The
ASPLOS 2025 / EuroSys 2025 Contest on Intra-Operator Parallelism for Distributed Deep
Learning" (2025).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InputError

FORBIDDEN = 10**17
"""A cost of this or more forbids the choice (the contest's convention, see `strategy_graph`)."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyGraph:
    """Nodes with strategies, edges with tables of pair costs, and a limit on memory.

    Costs are integers in one unit of the caller's choice (say nanoseconds), usages integers in
    another (say bytes); usages are not negative. Raises InputError where shapes do not fit.
    """

    node_costs: tuple[Ints, ...]
    """For each node the cost of each of its strategies, `[strategies]`."""
    node_usages: tuple[Ints, ...]
    """For each node the memory of each of its strategies while the node lives, `[strategies]`."""
    intervals: Ints
    """`[nodes, 2]`: a node lives from the first time up to, and without, the second."""
    edges: Ints
    """`[edges, 2]`: the two nodes of each edge; several edges may join the same two."""
    edge_costs: tuple[Ints, ...]
    """For each edge its table `[strategies of the first node, strategies of the second]`."""
    usage_limit: int | None
    """The most memory at any time; None where there is no limit."""

    def __post_init__(self) -> None:
        nodes = len(self.node_costs)
        if len(self.node_usages) != nodes or self.intervals.shape != (nodes, 2):
            raise InputError(
                f"{nodes} nodes have costs, but {len(self.node_usages)} have usages and the "
                f"intervals have shape {self.intervals.shape}: give one of each for every node"
            )
        if self.edges.shape != (len(self.edge_costs), 2):
            raise InputError(
                f"edges have shape {self.edges.shape}, but there are {len(self.edge_costs)} tables"
            )
        for node, (costs, usages) in enumerate(zip(self.node_costs, self.node_usages, strict=True)):
            if len(costs) == 0:
                raise InputError(f"node {node} has no strategy: give it at least one")
            if len(usages) != len(costs):
                raise InputError(
                    f"node {node} has {len(costs)} costs but {len(usages)} usages: "
                    "give one of each for every strategy"
                )
            if len(usages) and usages.min() < 0:
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
        """How many nodes there are."""
        return len(self.node_costs)
