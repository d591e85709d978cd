"""The op graph: the forward ops of a model's distinct blocks with the tensors between them.

`graph.py` has the costs of a block; this graph also has the data flow, since op-level sharding
chooses a placement for every op. Ops are the calls of the model's code (`linear`,
`scaled_dot_product_attention`, `view`), each with its forward and backward kernels. Repeated blocks
are stored once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from profiles.errors import InputError
from profiles.model.graph import DTYPE_BYTES, Op

Option = tuple[int, ...] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTensor:
    """A tensor of the forward pass.

    producer        op that creates it, None for parameters, inputs and outputs of repeats
    needs_gradient  whether the backward pass computes its gradient
    parameter       name in the whole model if it is a parameter, otherwise ""
    stands_for      for an output of a repeat: the tensor of the stored block; for a tied parameter:
                    the first one
    storage         the first tensor with the same storage (possibly itself)
    """

    shape: tuple[int, ...]
    dtype: str
    producer: int | None = None
    needs_gradient: bool = False
    parameter: str = ""
    stands_for: int | None = None
    storage: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def memory_bytes(self) -> float:
        """Bytes of the elements, without an allocator's rounding."""
        return self.num_elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOp:
    """A call of the forward pass.

    name      the function (`linear`)
    module    path in the whole model of the calling module
    block     index into the graph's blocks
    inputs    in the order of the arguments
    options   other arguments that determine the shape (`dim`, `equation`, `groups`, ...) by name
    strides   for a view: strides of each output over a contiguous input, otherwise ()
    forward, backward   the kernels
    saved     inputs and outputs that are kept for the backward
    saved_inner_bytes   bytes of other tensors that are kept
    """

    name: str
    module: str
    block: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: tuple[tuple[str, Option], ...] = ()
    strides: tuple[tuple[int, ...], ...] = ()
    forward: tuple[Op, ...] = ()
    backward: tuple[Op, ...] = ()
    saved: tuple[int, ...] = ()
    saved_inner_bytes: float = 0.0

    def option(self, name: str) -> Option | None:
        """The option of this name, or None."""
        return dict(self.options).get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBlock:
    """A distinct block: its class, and the paths of the modules that open its repeats.

    carried   data flow between repeats: pairs (input of the first repeat, tensor of the block that
              is the same input of the next one)
    """

    label: str
    entries: tuple[str, ...]
    carried: tuple[tuple[int, int], ...] = ()

    @property
    def repeats(self) -> int:
        """Number of equal blocks in the model."""
        return len(self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    """Ops in order of execution; raises InputError for an op with an unknown tensor or block."""

    name: str
    tensors: tuple[GraphTensor, ...]
    ops: tuple[GraphOp, ...]
    blocks: tuple[GraphBlock, ...]

    def __post_init__(self) -> None:
        count = len(self.tensors)
        for number, op in enumerate(self.ops):
            if any(not 0 <= t < count for t in (*op.inputs, *op.outputs)):
                raise InputError(
                    f"op {number} ({op.name}) of {self.name}: its inputs {op.inputs} and outputs "
                    f"{op.outputs} must be tensor numbers from 0 to {count - 1}"
                )
            if not 0 <= op.block < len(self.blocks):
                raise InputError(
                    f"op {number} ({op.name}) of {self.name} is in block {op.block}, "
                    f"but there are {len(self.blocks)}"
                )

    def path_pattern(self, path: str, block: int) -> str:
        """A path of a module or weight of a block, with `*` for the number of the repeat."""
        entry = self.blocks[block].entries[0]
        if self.blocks[block].repeats == 1 or not entry or not path.startswith(entry):
            return path
        return f"{entry.rpartition('.')[0]}.*{path.removeprefix(entry)}"
