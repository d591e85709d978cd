"""The answer as a file that the executor can run (simulator/values/op_sharding_file.py)."""

from __future__ import annotations

from planner.op_sharding.conversions import Between, conversions_of, placed
from planner.op_sharding.mesh import Mesh
from planner.op_sharding.messages import messages_of
from planner.op_sharding.resharding import Resharding
from planner.op_sharding.rules import placement_rules
from planner.op_sharding.solve_block import OpSharding
from planner.op_sharding.strategies import Strategy, strategies_of
from profiles.model.op_graphs.op_graph import OpGraph
from simulator.values.op_sharding_file import (
    Conversion,
    Message,
    PlacedCall,
    Rule,
    ShardingCost,
)


def whole_strategies(
    graph: OpGraph, mesh: Mesh, answer: OpSharding, block: int | None
) -> tuple[Strategy, ...]:
    """A strategy for every op of the whole graph: outside the block that was asked for, whole."""
    inside = iter(answer.ops)
    return tuple(
        next(inside).strategy
        if block is None or op.block == block
        else strategies_of(op, graph, mesh.sizes)[0]
        for op in graph.ops
    )


def run_parts(
    graph: OpGraph, mesh: Mesh, strategies: tuple[Strategy, ...], between: Between
) -> tuple[tuple[PlacedCall, ...], tuple[Conversion, ...], tuple[Message, ...]]:
    """Calls, conversions and messages of the whole graph under these strategies."""
    resharding = Resharding(mesh)
    conversions = conversions_of(graph, strategies, resharding, between)
    calls = tuple(
        PlacedCall(
            op=number,
            name=op.name,
            module=op.module,
            inputs=tuple(placed(x) for x in strategy.inputs),
            outputs=tuple(placed(x) for x in strategy.outputs),
            shapes=tuple(graph.tensors[t].shape for t in op.outputs),
        )
        for number, (op, strategy) in enumerate(zip(graph.ops, strategies, strict=True))
    )
    return calls, conversions, messages_of(graph, strategies, conversions, mesh.sizes)


def forms_between(graph: OpGraph, answer: OpSharding, block: int | None) -> Between:
    """The forms that the answer brings each tensor into, forms on the way included."""
    own = [op for op in graph.ops if block is None or op.block == block]
    return {
        (own[reshard.readers[0]].block, reshard.tensor): reshard.used for reshard in answer.reshards
    }


def cost_of(answer: OpSharding) -> ShardingCost:
    """The answer's seconds by kind, of one micro-batch."""
    inner = sum(p.repeats * p.price.inner_s for p in answer.ops)
    reshards = sum(r.count * (r.forward_s + r.backward_s) for r in answer.reshards)
    return ShardingCost(
        work_s=answer.work_s,
        reshard_s=reshards,
        inner_s=inner,
        weight_sync_s=sum(p.repeats * p.price.weight_sync_s for p in answer.ops)
        + answer.tied_sync_s,
        lower_bound_s=answer.lower_bound_s,
        memory_bytes=answer.memory_bytes,
    )


def rules_of(answer: OpSharding, graph: OpGraph) -> tuple[Rule, ...]:
    """The placements of every op with weights."""
    modules = [p.op for p in answer.ops if any(graph.tensors[t].parameter for t in p.op.inputs)]
    return tuple(
        Rule(pattern=rule.pattern, op=op.name, kind=rule.kind, placements=rule.text)
        for rule, op in zip(placement_rules(answer, graph), modules, strict=True)
    )
