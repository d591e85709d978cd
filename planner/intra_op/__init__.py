"""One strategy per op of a graph, at the least cost under a memory limit at every time."""

from planner.intra_op.solution import Solution, Status
from planner.intra_op.solve import solve
from planner.intra_op.strategy_graph import FORBIDDEN, StrategyGraph

__all__ = ["FORBIDDEN", "Solution", "Status", "StrategyGraph", "solve"]
