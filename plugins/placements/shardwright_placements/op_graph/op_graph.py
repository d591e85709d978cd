"""The op graph: the forward ops of a model's distinct blocks with the tensors between them.

Where `graph.py` keeps what a block costs, this keeps who reads what: op-level sharding chooses a
placement for every op, so it needs the edges. Ops are the calls that the model's code makes
(`linear`, `scaled_dot_product_attention`, `view`), not their kernels; each holds the kernels that
it launches, forward and backward. Repeated blocks are held once.
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

    producer        the op that made it, None for parameters, inputs and what stands for a tensor
    needs_gradient  whether the backward pass makes its gradient
    parameter       its name in the whole model where it is one, else ""
    stands_for      for the output of a repeated block that is held once: the tensor of the block
                    that is held; a parameter that shares a storage: the first one
    storage         the first tensor in the same storage (itself where there is none)
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
        """Of the contents, without an allocator's rounding."""
        return self.num_elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOp:
    """A call of the forward pass.

    name      the function (`linear`); module  path in the whole model of the module that called it
    block     index into the graph's blocks
    inputs    tensors read, in the order of the arguments; outputs  tensors made
    options   what else decides its shape: (`dim`, `keepdim`, `equation`, `groups`, ...) by name
    strides   for a view: strides of each output over a contiguous input, else ()
    forward, backward   the kernels
    saved     of its inputs and outputs those that it keeps for its backward
    saved_inner_bytes   what it keeps besides
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
    """A distinct block: its class, and the module paths whose calls open each of its repeats.

    carried   (tensor that enters the first repeat, tensor of the block that enters the next one in
              its place) pairs: what flows from repeat to repeat
    """

    label: str
    entries: tuple[str, ...]
    carried: tuple[tuple[int, int], ...] = ()

    @property
    def repeats(self) -> int:
        """How many blocks of the model it stands for."""
        return len(self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    """Ops in order of execution; raises InputError where an op names a tensor that is not there."""

    name: str
    tensors: tuple[GraphTensor, ...]
    ops: tuple[GraphOp, ...]
    blocks: tuple[GraphBlock, ...]

    def __post_init__(self) -> None:
        count = len(self.tensors)
        for number, op in enumerate(self.ops):
            if any(not 0 <= t < count for t in (*op.inputs, *op.outputs)):
                raise InputError(
                    f"op {number} ({op.name}) of {self.name} names a tensor that is not among "
                    f"its {count}"
                )
            if not 0 <= op.block < len(self.blocks):
                raise InputError(
                    f"op {number} ({op.name}) of {self.name} is in block {op.block}, "
                    f"but there are {len(self.blocks)}"
                )

    def path_pattern(self, path: str, block: int) -> str:
        """A path of a module or weight of a block, `*` where the number of its repeat stands."""
        entry = self.blocks[block].entries[0]
        if self.blocks[block].repeats == 1 or not entry or not path.startswith(entry):
            return path
        return f"{entry.rpartition('.')[0]}.*{path.removeprefix(entry)}"
