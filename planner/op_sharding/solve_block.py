"""The best placements of a model's ops, with a proven bound.

Without a binding memory limit the answer is exact by elimination (elimination.py). With one,
elimination with a price on memory at the fullest moment gives a bound and a first answer
(Lagrange), and an integer programme closes what is between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from planner.op_sharding.block_problem import (
    NANOSECOND_S,
    BlockProblem,
    build_problem,
)
from planner.op_sharding.conversions import best_forms, layouts_needed, weight_layouts
from planner.op_sharding.elimination import eliminate
from planner.op_sharding.flow import Layout
from planner.op_sharding.integer_programme import cost_of, fits, solve_programme, usage_over_time
from planner.op_sharding.mesh import Mesh
from planner.op_sharding.op_seconds import OpPrice, Training, weight_sync_s
from planner.op_sharding.strategies import Strategy
from planner.op_sharding.strategy_graph import FORBIDDEN, StrategyGraph
from planner.op_sharding.uses import Uses
from profiles.errors import InputError
from profiles.model.op_graphs.op_graph import GraphOp, OpGraph

_PROGRAMME_S = 20.0
_LAGRANGE_STEPS = 24


class Status(StrEnum):
    """What is known of an answer."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


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
    time_limit_s: float = _PROGRAMME_S,
    allowed: dict[int, frozenset[str]] | None = None,
) -> OpSharding:
    """The cheapest placements of the graph's ops on the mesh within the memory of a device.

    time_limit_s  of the integer programme, where memory binds
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
    free = eliminate(problem.abstract)
    if free is not None and free.cost >= FORBIDDEN:
        return _none(Status.INFEASIBLE, "no combination of the ops' strategies is allowed")
    if free is not None and fits(problem.abstract, free.strategies):
        return _answer(problem, Status.OPTIMAL, free.strategies, free.cost, "proven by elimination")
    limit = problem.abstract.usage_limit
    assert limit is not None  # without one every choice fits
    if int(usage_over_time(problem.abstract, _least_used(problem.abstract)).max()) > limit:
        return _none(
            Status.INFEASIBLE,
            f"within {memory_limit_bytes} bytes: even the least usage of every op is above it",
        )
    bound, first = lagrangian_bound(problem.abstract)
    known = cost_of(problem.abstract, first) if first is not None else None
    if first is not None and known is not None and known <= bound:
        return _answer(problem, Status.OPTIMAL, first, bound, "proven by a price on memory")
    found = solve_programme(
        problem.abstract, scale_cost=float(known or bound), time_limit_s=time_limit_s
    )
    if found.bound == np.inf:
        return _none(Status.INFEASIBLE, f"within {memory_limit_bytes} bytes: proven by HiGHS")
    choices = [choice for choice in (found.strategies, first) if choice is not None]
    bound = max(bound, int(np.ceil(found.bound)) if np.isfinite(found.bound) else 0)
    if not choices:
        return _none(
            Status.UNKNOWN,
            "nothing within memory was found in the time given; that nothing exists is not proven",
            bound * NANOSECOND_S,
        )
    best = min(choices, key=lambda choice: cost_of(problem.abstract, choice))
    cost = cost_of(problem.abstract, best)
    if cost <= bound:
        return _answer(problem, Status.OPTIMAL, best, cost, "bound and cost meet")
    reason = "the time limit was reached"
    if found.is_least:
        reason = "bound and cost meet within the tolerance of the integer programme, 1e-6"
    return _answer(problem, Status.FEASIBLE, best, bound, reason)


def _least_used(problem: StrategyGraph) -> tuple[int, ...]:
    return tuple(int(values.argmin()) for values in problem.node_usages)


def lagrangian_bound(problem: StrategyGraph) -> tuple[int, tuple[int, ...] | None]:
    """A cost that no allowed choice stays under, and the cheapest choice met that fits.

    Memory is priced at one moment, then eliminated. The moment is the fullest of the choice without
    a limit; the price is found by bisection on whether the priced choice fits. Every price of 0 or
    more gives a bound (weak duality).
    """
    free = eliminate(problem)
    if free is None or problem.usage_limit is None:
        return 0, None
    limit = problem.usage_limit
    moment = int(usage_over_time(problem, free.strategies).argmax())
    alive = (problem.intervals[:, 0] <= moment) & (moment < problem.intervals[:, 1])
    best, low, high = free.cost, 0.0, None
    fitting: dict[tuple[int, ...], int] = {}
    price = max(1.0, free.cost) / max(limit, 1)
    for _ in range(_LAGRANGE_STEPS):
        priced = tuple(
            costs + np.floor(price * usages).astype(np.int64) if live else costs
            for costs, usages, live in zip(
                problem.node_costs, problem.node_usages, alive.tolist(), strict=True
            )
        )
        found = eliminate(problem, node_costs=priced)
        assert found is not None  # the tables have the sizes of those before
        best = max(best, found.cost - int(np.ceil(price * limit)))
        if fits(problem, found.strategies):
            fitting[found.strategies] = cost_of(problem, found.strategies)
        used = sum(int(problem.node_usages[i][found.strategies[i]]) for i in np.flatnonzero(alive))
        if used > limit:
            low = price
        else:
            high = price
        price = 4 * price if high is None else (low + high) / 2
    return best, min(fitting, key=lambda choice: fitting[choice], default=None)


def _none(status: Status, reason: str, bound_s: float = 0.0) -> OpSharding:
    return OpSharding(
        status=status,
        ops=(),
        reshards=(),
        seconds=float("inf"),
        lower_bound_s=bound_s if status is Status.UNKNOWN else float("inf"),
        memory_bytes=0.0,
        reason=reason,
    )


def _answer(
    problem: BlockProblem, status: Status, strategies: tuple[int, ...], bound: int, reason: str
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
        memory_bytes=float(usage_over_time(problem.abstract, strategies).max()),
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
