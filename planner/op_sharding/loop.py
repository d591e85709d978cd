"""One loop of an op, and the op as the rules see it."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.model.graph import DTYPE_BYTES
from profiles.model.op_graphs.op_graph import GraphOp, GraphTensor

Dims = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A collective inside an op.

    elements, dtype   of the full buffer
    phase             `forward` or `backward`
    without           dims of the first input: where another axis cuts one, the buffer is as much
                      smaller
    """

    operation: str
    elements: int
    dtype: str
    phase: str
    without: tuple[int, ...] = ()

    @property
    def memory_bytes(self) -> float:
        """Of the full buffer."""
        return float(self.elements * DTYPE_BYTES[self.dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """An index of an op's work.

    role       what it is in the kernel: `b`, `m`, `n` or `k` of a matmul or convolution, `batch`,
               `heads` or `rows` of attention, `` elsewhere
    inputs, outputs   the dim of each tensor that it indexes
    exchanged  collectives that cutting it needs inside the op
    whole      inputs that lack it and whose gradient every rank has whole nevertheless: what is
               added once to a sum over ranks (a bias)
    """

    role: str
    inputs: Dims
    outputs: Dims
    exchanged: tuple[Exchange, ...] = ()
    is_sum: bool = True
    whole: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """An op with its tensors."""

    op: GraphOp
    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]

    def input_shape(self, index: int) -> tuple[int, ...]:
        """Of one of the tensors that it reads."""
        return self.inputs[index].shape

    @property
    def out(self) -> tuple[int, ...]:
        """Shape of the first tensor that it makes."""
        return self.outputs[0].shape

    @property
    def dims(self) -> tuple[int, ...]:
        """The `dim` option, () where there is none."""
        found = self.op.option("dim")
        return found if isinstance(found, tuple) else ()
