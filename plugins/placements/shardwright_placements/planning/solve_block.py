"""The best placements of a model's ops, with a proven bound (strategy_graph/solve.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from profiles.errors import InputError
from shardwright_placements.op_graph.op_graph import GraphOp, OpGraph
from shardwright_placements.planning.conversions import (
    Between,
    Reshard,
    reshards_of,
    weight_layouts,
)
from shardwright_placements.planning.mesh import Mesh
from shardwright_placements.planning.op_seconds import OpPrice, tied_sync_s
from shardwright_placements.planning.placement_problem import (
    NANOSECOND_S,
    PlacementProblem,
    build_problem,
)
from shardwright_placements.planning.strategies import Strategy
from shardwright_placements.sharding_file import ShardingCost
from shardwright_placements.strategy_graph.problem import StrategyGraph
from shardwright_placements.strategy_graph.solve import Solution, Status, solve

_TIME_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedOp:
    """An op with its strategy and the price of one run."""

    op: GraphOp
    strategy: Strategy
    price: OpPrice
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSharding:
    """Placements of every op of the graph's distinct blocks; all repeats of a block share them.

    cost    of one micro-batch, summed over ops and messages without overlap, and the peak memory of
            a device. None if nothing was found
    between the layouts into which tensors are converted
    """

    status: Status
    reason: str
    ops: tuple[PlacedOp, ...] = ()
    reshards: tuple[Reshard, ...] = ()
    between: Between = field(default_factory=dict)
    cost: ShardingCost | None = None

    @property
    def seconds(self) -> float:
        """Seconds of a micro-batch, infinite if nothing was found."""
        return math.inf if self.cost is None else self.cost.seconds

    @property
    def memory_bytes(self) -> float:
        """Peak bytes of each device, 0 if nothing was found."""
        return 0.0 if self.cost is None else self.cost.memory_bytes


def shard_ops(
    graph: OpGraph,
    mesh: Mesh,
    *,
    micro_batches: int = 1,
    memory_limit_bytes: float | None = None,
    time_limit_s: float = _TIME_LIMIT_S,
    allowed: Mapping[int, frozenset[str]] | None = None,
) -> OpSharding:
    """The cheapest placements of the graph's ops on the mesh within the memory of a device.

    micro_batches number of micro-batches per sum of weight gradients
    time_limit_s  of the search
    allowed       op number -> labels of strategies to keep

    Raises InputError if the memory limit is not above 0, or if `allowed` leaves no strategy for an
    op.
    """
    if memory_limit_bytes is not None and memory_limit_bytes <= 0:
        raise InputError(f"memory_limit_bytes must be above 0, is {memory_limit_bytes:g}")
    problem = build_problem(graph, mesh, micro_batches=micro_batches, allowed=allowed)
    nodes = problem.strategy_graph(memory_limit_bytes)
    found = solve(nodes, time_limit_s=time_limit_s)
    if found.strategies is None:
        within = "" if memory_limit_bytes is None else f"within {memory_limit_bytes} bytes: "
        return OpSharding(status=found.status, reason=within + found.reason)
    return _answer(problem, nodes, found, found.strategies)


def _answer(
    problem: PlacementProblem, nodes: StrategyGraph, found: Solution, choice: tuple[int, ...]
) -> OpSharding:
    graph = problem.graph
    ops = tuple(
        PlacedOp(
            op=op,
            strategy=problem.strategies[i][choice[i]],
            price=problem.prices[i][choice[i]],
            repeats=graph.blocks[op.block].repeats,
        )
        for i, op in enumerate(graph.ops)
    )
    between = {
        (uses.block, uses.tensor): uses.states[state]
        for uses, state in zip(problem.uses, choice[len(ops) :], strict=True)
    }
    strategies = [placed.strategy for placed in ops]
    reshards = reshards_of(graph, strategies, problem.resharding, between)
    cost = ShardingCost(
        work_s=sum(placed.repeats * placed.price.work_s for placed in ops),
        reshard_s=sum(reshard.total_s for reshard in reshards),
        inner_s=sum(placed.repeats * placed.price.inner_s for placed in ops),
        weight_sync_s=sum(placed.repeats * placed.price.weight_sync_s for placed in ops)
        + _tied_sync_s(problem, ops),
        lower_bound_s=(found.bound or 0) * NANOSECOND_S,
        memory_bytes=float(nodes.usage_over_time(choice).max()),
    )
    # Nanoseconds are rounded per node and edge; a proven optimum is its own bound.
    proven = found.bound == found.cost or cost.lower_bound_s > cost.seconds
    return OpSharding(
        status=found.status,
        reason=found.reason,
        ops=ops,
        reshards=reshards,
        between=between,
        cost=replace(cost, lower_bound_s=cost.seconds) if proven else cost,
    )


def _tied_sync_s(problem: PlacementProblem, ops: tuple[PlacedOp, ...]) -> float:
    """Seconds of gradient sums that are partial only in a later op's use of a weight."""
    graph, total = problem.graph, 0.0
    for t, layouts in weight_layouts(graph, [placed.strategy for placed in ops]).items():
        first = next(placed for placed in ops if t in placed.op.inputs)
        tied = tied_sync_s(graph.tensors[t], layouts, problem.mesh, problem.micro_batches)
        total += first.repeats * tied
    return total
