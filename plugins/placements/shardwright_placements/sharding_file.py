"""The sharding file: the placements of each op on a device mesh, written by `shard` and run by
`run`.

Placements are written as DTensor prints them (torch.distributed.tensor): `R` replicated, `S(1)`
split along dim 1, `P` partial sums; one per axis of the mesh, outermost first. Every tensor also
has the placements of its gradient, which do not follow from its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiles.errors import InputError

OP_SHARDING_SCHEMA = "shardwright/op-sharding@1"

Placements = tuple[str, ...]


def split_dim(placement: str) -> int | None:
    """The dim split by a placement, None if there is none.

    >>> split_dim("S(2)"), split_dim("R")
    (2, None)
    """
    return int(placement[2:-1]) if placement.startswith("S") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTensor:
    """A tensor's placements and those of its gradient."""

    forward: Placements
    backward: Placements


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCall:
    """One op of the traced graph with the layouts of its inputs and outputs.

    op      its number in the trace
    name, module  called function and calling module (as a check)
    shapes  of its whole outputs
    """

    op: int
    name: str
    module: str
    inputs: tuple[PlacedTensor, ...]
    outputs: tuple[PlacedTensor, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change between placements: `steps` are the placements after each single change."""

    source: Placements
    steps: tuple[Placements, ...]

    @property
    def target(self) -> Placements:
        """The placements at the end of the change."""
        return self.steps[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A tensor that the ops of one block read in another layout than its maker's.

    maker, output      the op that made it, and the index of its output
    forward, backward  changes in order, each from an existing layout. In the backward, gradients
                       are converted and summed in this order
    runs               times per micro-batch
    """

    tensor: int
    block: int
    maker: int
    output: int
    made: PlacedTensor
    used: tuple[PlacedTensor, ...]
    forward: tuple[Change, ...]
    backward: tuple[Change, ...]
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Equal collectives required by the placements.

    phase     `forward`, `backward`, or `weights`: sums of gradients, once per step
    axis      of the mesh
    elements, dtype   of the full buffer (link.LinkPoint)
    count     number of them
    what      the op whose output is sent, or the weight
    """

    phase: str
    operation: str
    axis: int
    elements: int
    dtype: str
    count: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingCost:
    """Seconds of one micro-batch, forward and backward, and bytes on a device.

    work_s        kernels
    reshard_s     tensors that change their placements
    inner_s       collectives inside ops
    weight_sync_s sums of weight gradients
    lower_bound_s lower bound over all placements of the space
    """

    work_s: float
    reshard_s: float
    inner_s: float
    weight_sync_s: float
    lower_bound_s: float
    memory_bytes: float

    @property
    def seconds(self) -> float:
        """Kernels and collectives."""
        return self.work_s + self.communication_s

    @property
    def communication_s(self) -> float:
        """Seconds of collectives: between ops, inside ops, of gradients of weights."""
        return self.reshard_s + self.inner_s + self.weight_sync_s

    @property
    def gap(self) -> float:
        """(seconds - lower bound) / seconds."""
        return (self.seconds - self.lower_bound_s) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The placement of an op with weights, in every repeat of its block."""

    pattern: str
    op: str
    kind: str
    placements: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpShardingFile:
    """The answer of `shard`.

    block        the requested block, "" for the whole model; other ops are replicated, and the cost
                 is that of the block
    block_repeats  number of repeats of the block in the model
    calls, conversions, messages   of the whole model, so that it can be run
    hand_plan    the cost of Megatron's layout in the same cost model, or why it is impossible
    fits_with    if nothing fits: changes with which it does, each solved, with their memory
    sources      source of each kind of number

    Raises InputError for a mesh without axes and for placements with another number of axes.
    """

    model: str
    model_hash: str
    block: str
    sequence_length: int
    micro_batch: int
    micro_batches: int
    dtype: str
    cluster: str
    mesh_names: tuple[str, ...]
    mesh_sizes: tuple[int, ...]
    status: str
    reason: str
    search_time_s: float
    cost: ShardingCost | None = None
    memory_limit_bytes: float | None = None
    hand_plan: ShardingCost | None = None
    hand_plan_missing: str = ""
    block_repeats: int = 1
    fits_with: tuple[str, ...] = ()
    calls: tuple[PlacedCall, ...] = ()
    conversions: tuple[Conversion, ...] = ()
    messages: tuple[Message, ...] = ()
    rules: tuple[Rule, ...] = ()
    assumptions: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        axes = len(self.mesh_sizes)
        if not axes or len(self.mesh_names) != axes:
            raise InputError(
                f"a mesh has axes with names and sizes; got {self.mesh_names}, {self.mesh_sizes}"
            )
        for call in self.calls:
            for placed in (*call.inputs, *call.outputs):
                if len(placed.forward) != axes or len(placed.backward) != axes:
                    raise InputError(
                        f"op {call.op} ({call.name} of {call.module}) has placements "
                        f"{placed.forward} and {placed.backward} for a mesh of {axes} axes"
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedMessages:
    """Planned and counted collectives of one kind.

    planned, counted   numbers;  planned_bytes, counted_bytes   bytes of all full buffers
    """

    phase: str
    operation: str
    axis: str
    planned: int
    counted: int
    planned_bytes: int
    counted_bytes: int

    @property
    def agree(self) -> bool:
        """Whether counted number and bytes equal the planned ones."""
        return self.planned == self.counted and self.planned_bytes == self.counted_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedRun:
    """Comparison of a run of the placements on a real mesh with one process.

    worst_*   largest relative errors (norm of the difference over the norm)
    messages  planned and counted, by phase, kind and axis
    beside    collectives outside of the plan: `rebalancing` of experts' uneven rows
    step_s    wall seconds of a forward and backward pass, median of `steps`
    """

    model: str
    world_size: int
    backend: str
    torch_version: str
    loss: float
    reference_loss: float
    output_relative_error: float
    worst_relative_error: float
    worst_parameter: str
    parameters_checked: int
    tolerance: float
    messages: tuple[CountedMessages, ...]
    beside: Mapping[str, int]
    step_s: float
    steps: int

    @property
    def passed(self) -> bool:
        """Whether all values are within the tolerance and all collectives as planned."""
        loss = abs(self.loss - self.reference_loss) / max(abs(self.reference_loss), 1e-30)
        errors = (loss, self.output_relative_error, self.worst_relative_error)
        return all(e <= self.tolerance for e in errors) and all(m.agree for m in self.messages)


SHARDED_RUN_SCHEMA = "shardwright/sharded-run@1"
