"""Fast heuristic: simulated annealing by moves on trees of nodes, with prices on memory.

A move selects an induced tree of the graph and chooses all strategies in it again by dynamic
programming, while all other nodes stay as they are (Hamze and de Freitas, "From Fields to Trees",
UAI 2004). Costs are perturbed by Gumbel noise times a falling temperature (Kirkpatrick et al. 1983;
Papandreou and Yuille, "Perturb-and-MAP Random Fields", ICCV 2011).

Memory has a price at every moment: a tensor costs its bytes times the sum of the prices while it
exists. Prices rise while a choice is above the limit and fall while it is below, so the search
stays close to the limit. The cheapest choice that fits is kept.

It is for graphs that are too large for the integer program. Costs after 20 s (2026-11-24), with and
without noise: T5-large on a mesh of 2 x 4 32.2 and 32.9 ms; Mamba2-2.7B 263 and 267 ms; instance M
of the 2025 contest 8.87e10 and 9.34e10.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from shardwright_placements.strategy_graph.problem import FORBIDDEN, Ints, Strategies, StrategyGraph

Floats = NDArray[np.float64]

TREE_NODES = 300
"""The most nodes of a tree: its move takes about 10 ms."""
HOTTEST, COLDEST = 0.3, 3e-4
"""First and last temperature, in costs above the least possible ones per node."""
GREEDY = 0.1
"""The part of the time without noise, at its end."""
RISE, FALL, FULL_RISE_AT = 0.3, 0.1, 0.2
"""By which part a price rises after a move, at the peak of each period above the limit by the third
part or more, and by which all fall after a move that fits."""
FIRST_PRICE = 0.006
"""The least rise of a price: this part of the cost above the least possible, per limit."""


def tree_search(
    problem: StrategyGraph, start: Strategies, *, end: float, rng: np.random.Generator
) -> Strategies | None:
    """The cheapest allowed choice found, `start` included; None if none is allowed.

    end  on the clock of `time.monotonic`; one move is made even after it
    """
    search = _Search(problem, start)
    begun = time.monotonic()
    while True:
        part = (time.monotonic() - begun) / max(end - begun, 1e-9)
        is_greedy = part > 1.0 - GREEDY
        cold = HOTTEST * (COLDEST / HOTTEST) ** (part / (1.0 - GREEDY))
        search.move(0.0 if is_greedy else cold, rng)
        if time.monotonic() >= end:
            return search.best


class _Search:
    """The current choice, the prices, and the best allowed choice."""

    def __init__(self, problem: StrategyGraph, start: Strategies) -> None:
        self.problem = problem
        self.near: list[list[tuple[int, Ints]]] = [[] for _ in problem.node_costs]
        for (u, v), table in zip(problem.edges.tolist(), problem.edge_costs, strict=True):
            self.near[u].append((v, table))
            self.near[v].append((u, table.T))
        self.start = _starts([len(values) for values in problem.node_costs])
        self.costs = np.concatenate(problem.node_costs).astype(np.float64)
        sizes = [len(used) for used in problem.usages]
        self.tensor_start = _starts(sizes)
        self.tensor = np.repeat(np.arange(len(sizes)), sizes)
        self.usages = _flat(problem.usages)
        within = np.arange(len(self.usages)) - self.tensor_start[self.tensor]
        self.place = self.start[problem.holders[self.tensor]] + within
        self.table_start = _starts([table.size for table in problem.edge_costs])[:-1]
        self.tables = _flat([table.ravel() for table in problem.edge_costs])
        self.widths = np.diff(self.start)[problem.edges[:, 1]]
        self.least = sum(float(values.min()) for values in problem.node_costs)
        self.price = np.zeros(int(problem.intervals.max(initial=0)) + 1)
        self.choice = np.array(start, dtype=np.int64)
        self.best: Strategies | None = None
        self.best_cost = FORBIDDEN
        limit = problem.usage_limit
        # Without a memory limit: one that is never reached.
        self.limit = float(max(limit, 1) if limit is not None else self.usages.sum() + 1)
        self._keep(self._over())

    def move(self, temperature: float, rng: np.random.Generator) -> None:
        """Choose the strategies of one tree again, and update the prices.

        temperature  in units of the cost per node above the lower bound
        """
        cost = self._cost()
        above = max(cost - self.least, 1.0) if cost < FORBIDDEN else 1.0
        self._choose_tree(self._priced_costs(), temperature * above / self.problem.nodes, rng)
        over = self._over()
        self._keep(over)
        excess = float(over.max())
        if excess <= 0.0:
            self.price *= 1.0 - FALL
            return
        turns = np.flatnonzero(np.diff(np.concatenate([[0], (over > 0).astype(np.int8), [0]])))
        for first, last in zip(turns[::2].tolist(), turns[1::2].tolist(), strict=True):
            peak = first + int(over[first:last].argmax())
            part = min(float(over[peak]) / FULL_RISE_AT, 1.0)
            least_rise = FIRST_PRICE * above / self.limit
            self.price[peak] += part * max(least_rise, RISE * self.price[peak])

    def _cost(self) -> float:
        edges, choice = self.problem.edges, self.choice
        pairs = self.table_start + choice[edges[:, 0]] * self.widths + choice[edges[:, 1]]
        return float(self.costs[self.start[:-1] + choice].sum() + self.tables[pairs].sum())

    def _over(self) -> Floats:
        """`[moments]`: memory above the limit, as a part of it."""
        used = self.usages[self.tensor_start[:-1] + self.choice[self.problem.holders]]
        begin, end = self.problem.intervals[:, 0], self.problem.intervals[:, 1]
        count = len(self.price)
        changes = np.bincount(begin, used, count) - np.bincount(end, used, count)
        return np.asarray(np.cumsum(changes) / self.limit - 1.0)

    def _keep(self, over: Floats) -> None:
        """Keeps the choice if it is the cheapest allowed one."""
        if over.max() > 1e-9 or self._cost() >= self.best_cost:
            return
        choice = tuple(self.choice.tolist())
        if self.problem.fits(choice):
            self.best, self.best_cost = choice, self.problem.cost_of(choice)

    def _priced_costs(self) -> Floats:
        """Costs by strategy, prices of memory included."""
        passed = np.concatenate([[0.0], np.cumsum(self.price)])
        lived = passed[self.problem.intervals[:, 1]] - passed[self.problem.intervals[:, 0]]
        memory = np.bincount(self.place, self.usages * lived[self.tensor], len(self.costs))
        return np.asarray(self.costs + memory)

    def _choose_tree(self, priced: Floats, temperature: float, rng: np.random.Generator) -> None:
        order, parent = self._draw_tree(rng)
        inside = set(order)
        reply: dict[int, Ints] = {}
        # Costs of each node's strategies with the best choices of its children.
        costs: dict[int, Floats] = {}
        for node in order:
            costs[node] = priced[self.start[node] : self.start[node + 1]].copy()
            if temperature > 0.0:
                costs[node] -= temperature * rng.gumbel(size=len(costs[node]))
            for other, table in self.near[node]:
                if other not in inside:
                    costs[node] += table[:, self.choice[other]]
        for node in reversed(order[1:]):
            above, table = parent[node]
            joined = table + costs[node]
            reply[node] = joined.argmin(axis=1)
            costs[above] += joined[np.arange(len(joined)), reply[node]]
        self.choice[order[0]] = costs[order[0]].argmin()
        for node in order[1:]:
            self.choice[node] = reply[node][self.choice[parent[node][0]]]

    def _draw_tree(self, rng: np.random.Generator) -> tuple[list[int], dict[int, tuple[int, Ints]]]:
        """Nodes of an induced tree, breadth first from a random one. For each except the first: its
        parent, and the table from the parent's strategies to its own."""
        root = int(rng.integers(self.problem.nodes))
        order: list[int] = []
        parent: dict[int, tuple[int, Ints]] = {}
        touching: dict[int, int] = {}  # neighbors in the tree
        queue: list[tuple[int, int, Ints | None]] = [(root, -1, None)]
        inside: set[int] = set()
        for node, above, table in queue:
            if node in inside or touching.get(node, 0) > 1:
                continue
            if table is not None:
                parent[node] = (above, table)
            inside.add(node)
            order.append(node)
            if len(order) == TREE_NODES:
                break
            near = self.near[node]
            for other, _ in near:
                touching[other] = touching.get(other, 0) + 1
            for at in rng.permutation(len(near)).tolist():
                other, back = near[at]
                if other not in inside and touching[other] == 1:
                    queue.append((other, node, back))
        return order, parent


def _flat(parts: list[Ints] | tuple[Ints, ...]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _starts(sizes: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
