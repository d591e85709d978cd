"""The best placements of a model's ops, with a proven bound (planner/strategy_graph/solve.py)."""

from __future__ import annotations

from dataclasses import dataclass

from planner.op_sharding.block_problem import (
    NANOSECOND_S,
    BlockProblem,
    build_problem,
)
from planner.op_sharding.conversions import best_forms, layouts_needed, weight_layouts
from planner.op_sharding.flow import Layout
from planner.op_sharding.mesh import Mesh
from planner.op_sharding.op_seconds import OpPrice, Training, weight_sync_s
from planner.op_sharding.strategies import Strategy
from planner.op_sharding.uses import Uses
from planner.strategy_graph.problem import Strategies
from planner.strategy_graph.solve import Status, solve
from profiles.errors import InputError
from profiles.model.op_graphs.op_graph import GraphOp, OpGraph

_TIME_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedOp:
    """An op with its strategy and the price of one run."""

    op: GraphOp
    strategy: Strategy
    price: OpPrice
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshard:
    """A tensor that is brought from the layout it is made in into those it is read in.

    count  times per micro-batch; forward_s, backward_s  of one time
    """

    tensor: int
    maker: int
    readers: tuple[int, ...]
    made: Layout
    used: tuple[Layout, ...]
    forward_s: float
    backward_s: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSharding:
    """Placements of every op of the graph's distinct blocks; all repeats of a block share them.

    seconds        forward and backward of one micro-batch, summed over ops and messages: nothing
                   overlaps;  lower_bound_s  no placements of this space take less
    memory_bytes   highest at any moment, on each device
    tied_sync_s    part of `seconds`: sums of gradients that only a weight's second reader needs
    """

    status: Status
    ops: tuple[PlacedOp, ...]
    reshards: tuple[Reshard, ...]
    seconds: float
    lower_bound_s: float
    memory_bytes: float
    reason: str
    tied_sync_s: float = 0.0

    @property
    def gap(self) -> float:
        """(seconds - lower bound) / seconds."""
        return (self.seconds - self.lower_bound_s) / self.seconds if self.seconds else 0.0

    @property
    def work_s(self) -> float:
        """Kernels."""
        return sum(placed.repeats * placed.price.work_s for placed in self.ops)

    @property
    def communication_s(self) -> float:
        """Resharding, collectives inside ops, and gradient sums of shared weights."""
        return self.seconds - self.work_s


def shard_ops(
    graph: OpGraph,
    mesh: Mesh,
    *,
    training: Training | None = None,
    memory_limit_bytes: float | None = None,
    time_limit_s: float = _TIME_LIMIT_S,
    allowed: dict[int, frozenset[str]] | None = None,
) -> OpSharding:
    """The cheapest placements of the graph's ops on the mesh within the memory of a device.

    time_limit_s  of the search, if elimination does not answer
    allowed       for ops by number, the labels of strategies to keep
    Raises InputError for a limit that is not above 0 and where `allowed` leaves an op none.
    """
    if memory_limit_bytes is not None and memory_limit_bytes <= 0:
        raise InputError(f"memory_limit_bytes must be above 0, is {memory_limit_bytes:g}")
    problem = build_problem(
        graph,
        mesh,
        training=training or Training(),
        memory_limit_bytes=memory_limit_bytes,
        allowed=allowed,
    )
    found = solve(problem.abstract, time_limit_s=time_limit_s)
    if found.strategies is None:
        within = "" if memory_limit_bytes is None else f"within {memory_limit_bytes} bytes: "
        bound_s = float("inf") if found.bound is None else found.bound * NANOSECOND_S
        return OpSharding(
            status=found.status,
            ops=(),
            reshards=(),
            seconds=float("inf"),
            lower_bound_s=bound_s,
            memory_bytes=0.0,
            reason=within + found.reason,
        )
    assert found.bound is not None  # there is a choice
    return _answer(problem, found.status, found.strategies, found.bound, found.reason)


def _answer(
    problem: BlockProblem, status: Status, strategies: Strategies, bound: int, reason: str
) -> OpSharding:
    graph = problem.graph
    ops = tuple(
        PlacedOp(
            op=op,
            strategy=problem.strategies[i][strategies[i]],
            price=problem.prices[i][strategies[i]],
            repeats=graph.blocks[op.block].repeats,
        )
        for i, op in enumerate(graph.ops)
    )
    reshards = tuple(
        reshard
        for number, uses in enumerate(problem.uses)
        for reshard in _reshards(problem, ops, uses, strategies[len(graph.ops) + number])
    )
    seconds = sum(placed.repeats * placed.price.total_s for placed in ops)
    seconds += sum(r.count * (r.forward_s + r.backward_s) for r in reshards)
    tied = _tied_sync_s(problem, ops)
    seconds += tied
    # Nanoseconds are rounded per node and edge; a proven optimum is its own bound.
    bound_s = seconds if status is Status.OPTIMAL else min(bound * NANOSECOND_S, seconds)
    return OpSharding(
        status=status,
        ops=ops,
        reshards=reshards,
        seconds=seconds,
        lower_bound_s=bound_s,
        memory_bytes=float(problem.abstract.usage_over_time(strategies).max()),
        reason=reason,
        tied_sync_s=tied,
    )


def _tied_sync_s(problem: BlockProblem, ops: tuple[PlacedOp, ...]) -> float:
    """Sums of gradients that are partial in another op's use of a weight than the first's."""
    graph, total = problem.graph, 0.0
    for t, layouts in weight_layouts(graph, [placed.strategy for placed in ops]).items():
        first = next(placed for placed in ops if t in placed.op.inputs)
        own, others, tensor = layouts[0], layouts[1:], graph.tensors[t]
        both = weight_sync_s(tensor, own, others, problem.mesh, problem.training)
        alone = weight_sync_s(tensor, own, (), problem.mesh, problem.training)
        total += first.repeats * (both - alone)
    return total


def _reshards(
    problem: BlockProblem, ops: tuple[PlacedOp, ...], uses: Uses, state: int
) -> list[Reshard]:
    graph, tensor = problem.graph, problem.graph.tensors[uses.tensor]
    strategies = [placed.strategy for placed in ops]
    needed = layouts_needed(graph, strategies, uses.readers, uses.tensor)
    found = []
    for maker, output, count in uses.made:
        made = ops[maker].strategy.outputs[output]
        used = best_forms(tensor, made, needed, uses.states[state], problem.resharding)
        forward = problem.resharding.one_way_seconds(tensor, made, used, back=False)
        backward = problem.resharding.one_way_seconds(tensor, made, used, back=True)
        if used != (made,):
            found.append(
                Reshard(
                    tensor=uses.tensor,
                    maker=maker,
                    readers=uses.readers,
                    made=made,
                    used=used,
                    forward_s=forward,
                    backward_s=backward,
                    count=count,
                )
            )
    return found
