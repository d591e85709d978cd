"""One strategy per op of a traced model on a device mesh, with a proven bound."""

from planner.op_sharding.answer_file import placement_rules
from planner.op_sharding.megatron import megatron_strategies
from planner.op_sharding.mesh import Mesh
from planner.op_sharding.op_seconds import Training
from planner.op_sharding.solve_block import OpSharding, shard_ops
from planner.strategy_graph.solve import Status

__all__ = [
    "Mesh",
    "OpSharding",
    "Status",
    "Training",
    "megatron_strategies",
    "placement_rules",
    "shard_ops",
]
