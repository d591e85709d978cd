"""One strategy per op of a graph, at the least cost under a memory limit at every time."""

from bench.strategy_graph.solution import Solution, Status
from bench.strategy_graph.solve import solve
from planner.op_sharding.strategy_graph import FORBIDDEN, StrategyGraph

__all__ = ["FORBIDDEN", "Solution", "Status", "StrategyGraph", "solve"]
