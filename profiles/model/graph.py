"""The model graph: what one training step of a model computes, stores and sends, block by block.

A model is a chain of blocks. A block is what runs between two cut points of the forward pass; its
backward belongs to it. Blocks that compute the same are one `Block` used many times: a 126-layer
model holds three or four. All figures are per micro-batch on one rank of a tensor-parallel group
of `ModelGraph.tp` ranks: the graph of tp = 4 holds the shapes that each of the four ranks runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate

from profiles.document import content_hash
from profiles.errors import InputError
from profiles.model.kernels import DeviceKernel

CHANNELS_LAST = " channels-last"
"""End of the kinds of convolutions whose input's channels lie next to each other in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape:
    """A convolution's kernel.

    dims    spatial dimensions;  taps  elements of a kernel's window;  stride  the largest
    input_gradient  False in a backward that makes the weight's gradient alone
    images  samples of the call. On a CPU torch has another kernel for the volume of one, 3 to 5
            times as slow (32 channels on 24^3, torch 2.13, 2026-11-22), and makes a pointwise
            convolution of fewer than 16 a product for each (aten/src/ATen/native/Convolution.cpp,
            use_mkldnn, of one thread): on 4 images of 2 x 2 pixels a tenth of the speed of 4 x 4
    channels_last  the layout of the input, or of the weight: the backward of a depthwise 7 x 7 in
            float32 then takes a quarter to two thirds as long on a CPU, a pointwise one in bfloat16
            half (15 shapes, one core, torch 2.13, 2026-11-23); dense ones differed by a third at
            most, either way, and are taken as one
    """

    groups: int
    dims: int
    taps: int
    stride: int
    transposed: bool
    input_gradient: bool = True
    images: int = 1
    channels_last: bool = False

    def kind(self, patch: int) -> str:
        """Convolutions that one kind of kernel computes; `patch` is the product's k. A
        line is an image one pixel high to oneDNN; that lines and volumes are read beside images was
        found better on a CPU of two cores (simulator/traced/point_maps.conv_axes) and not measured
        on any other device."""
        layout = CHANNELS_LAST if self.channels_last else ""
        if self.groups > 1:
            return f"depthwise{layout}" if patch == self.taps else "grouped"
        if self.transposed:
            return "transposed"
        if self.taps == 1 and self.stride == 1 and self.images < 16:
            return f"pointwise{layout}"
        return "volume alone" if self.dims == 3 and self.images == 1 else "dense"


DTYPE_BYTES = {
    "float64": 8.0,
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "float8_e4m3fn": 1.0,
    "float8_e5m2": 1.0,
    "int64": 8.0,
    "int32": 4.0,
    "int16": 2.0,
    "int8": 1.0,
    "uint8": 1.0,
    "bool": 1.0,
    "complex64": 8.0,
    "complex128": 16.0,
}


class OpKind(StrEnum):
    """What limits an op: the tensor cores, the memory, or nothing but its launch."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    CONV = "conv"
    MEMORY = "memory"  # element-wise, reductions, normalisations, copies, gathers
    VIEW = "view"  # no device work


class Phase(StrEnum):
    """Which pass an op belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Shape and data type of a tensor."""

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise InputError(f"dtype {self.dtype!r} has no known size")
        if any(size < 0 for size in self.shape):
            raise InputError(f"shape {self.shape} has a negative size")

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)

    @property
    def memory_bytes(self) -> int:
        """Of the contents, without an allocator's rounding."""
        return round(self.num_elements * DTYPE_BYTES[self.dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulShape:
    """`batch` products of [m, k] x [k, n]. A convolution is given as the product it equals."""

    batch: int
    m: int
    n: int
    k: int


# Ops of a whole layer of a recurrence on a CPU (tracing/trace_fused.py), with its kind.
RECURRENCES: Mapping[str, str] = {
    f"shardwright.{kind}_layer{way}": kind
    for kind in ("lstm", "gru", "rnn")
    for way in ("", "_backward")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """One fused attention call: [batch, heads, q_len, head_dim] on [batch, kv_heads, kv_len, .].

    mask_reach  keys that a query meets at most as a mask that was given says (kv_len: all before
                it), 0 where its values are not known, None where no mask was given
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    causal: bool
    mask_reach: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One kernel of the forward or backward pass.

    name         the aten name without overload (`aten.mm`)
    module       path of the innermost module that ran it, relative to the block ("" = the block)
    work_flop    floating-point operations, one multiply-add = 2; causal attention counts half
    read_bytes, written_bytes   every distinct input and output storage range once
    dtype        of the arithmetic (that of the first floating-point input)
    mask_reach   of an op that masks scores: keys that a query then meets at most, where known
    kernels      that it starts on an accelerator; None where it was traced for a CPU
    """

    name: str
    kind: OpKind
    phase: Phase
    module: str
    dtype: str
    work_flop: int
    read_bytes: int
    written_bytes: int
    matmul: MatmulShape | None = None
    attention: AttentionShape | None = None
    mask_reach: int | None = None
    conv: ConvShape | None = None
    kernels: tuple[DeviceKernel, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """A storage that lives from a block's forward to its backward, apart from parameters.

    module  path relative to the block of the module that produced it ("" = the block itself)
    """

    module: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A weight as one tensor-parallel rank holds it; `full_shape` is before sharding.

    sharded_dim  dimension split over tp, or None where every tp rank holds all of it
    tied_to, whole_name   names in the whole model: of the first parameter that shares its storage,
                 or ""; its own, where it is that one and stands outside the block's entry
    """

    name: str
    spec: TensorSpec
    full_shape: tuple[int, ...]
    sharded_dim: int | None = None
    trainable: bool = True
    tied_to: str = ""
    whole_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Communication that tensor parallelism puts into a block.

    operation  `all_reduce`, `all_gather` or `reduce_scatter`; size_bytes is the full tensor
    """

    operation: str
    phase: Phase
    module: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One distinct kind of block.

    kind, label       content hash: equal kinds have equal traces; `LlamaDecoderLayer` or the like
    inputs, outputs   tensors that it takes from blocks before it, and hands to blocks behind it
    saved             storages kept for backward without recomputation (its inputs left out)
    attention_module  path of the submodule that recompute = attention checkpoints, or ""
    attention_input_bytes   bytes of that submodule's inputs, kept when it is recomputed
    forward_peak_bytes, backward_peak_bytes   highest bytes alive inside the block beyond what was
                      alive at its start, in forward and in backward (parameters, parameter
                      gradients and the boundary tensors left out; the gradients of the outputs,
                      with which the backward begins, and of the inputs are in)
    forward_changes, backward_changes   bytes allocated (freed: negative) one after the other, in
                      each pass, from which those two peaks follow
    expected_shapes   True where data-dependent routing was traced by its expected shapes
    assumed_values    True where an assumed truth value (of `all()`, `any()`) decides what runs
    weight_input_bytes, weight_output_bytes   what the gradients of the weights are made of: the
                      distinct storages that products with trainable parameters read (the block's
                      inputs among them), and what these products write; None where not traced
    """

    kind: str
    label: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    forward_ops: tuple[Op, ...]
    backward_ops: tuple[Op, ...]
    parameters: tuple[Parameter, ...]
    saved: tuple[SavedTensor, ...]
    attention_module: str
    attention_input_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int
    collectives: tuple[Collective, ...] = ()
    forward_changes: tuple[int, ...] = ()
    backward_changes: tuple[int, ...] = ()
    expected_shapes: bool = False
    assumed_values: bool = False
    weight_input_bytes: int | None = None
    weight_output_bytes: int | None = None

    def __hash__(self) -> int:
        # Blocks are keys of caches, and `kind` is their content already.
        return hash(self.kind)

    @property
    def forward_flop(self) -> int:
        """FLOPs of the forward, as this rank runs it (1 multiply-add = 2)."""
        return sum(op.work_flop for op in self.forward_ops)

    @property
    def backward_flop(self) -> int:
        """FLOPs of the backward, as this rank runs it, nothing recomputed."""
        return sum(op.work_flop for op in self.backward_ops)

    @property
    def saved_bytes(self) -> int:
        """Kept for the backward, beside tensors between blocks."""
        return sum(tensor.memory_bytes for tensor in self.saved)

    @property
    def parameter_count(self) -> int:
        """Elements on one tp rank; a tied parameter counts only where it is first."""
        return sum(p.spec.num_elements for p in self.parameters if not p.tied_to)

    @property
    def full_parameter_count(self) -> int:
        """Elements over the whole tp group; tied parameters once."""
        return sum(math.prod(p.full_shape) for p in self.parameters if not p.tied_to)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRef:
    """A position in the chain: which kind stands there, and the module whose call opens it.

    entry  module path in the whole model at whose call the block begins (`model.layers.3`); ""
           for the first block, which begins with the forward pass itself
    """

    entry: str
    kind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A tensor that some block takes from another than the one before it: a skip, what a tower
    gives, an encoder's output.

    producer   position in the chain of the block that makes it
    consumers  positions of the blocks that use it, rising
    """

    producer: int
    consumers: tuple[int, ...]
    spec: TensorSpec

    def __post_init__(self) -> None:
        if not self.consumers or self.producer >= self.consumers[0]:
            raise InputError(
                f"a tensor of block {self.producer} is said to be used by blocks {self.consumers}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGraph:
    """A traced model for one micro-batch size, sequence length, precision and tp degree.

    kinds     the distinct blocks; chain  the blocks in order of execution, as references
    branches  every tensor between blocks, where some block takes one from another than the block
              before it; empty where the blocks are a plain chain
    state     buffers and weights that the forward changes and computes with, in words
    why_not_cuttable, why_not_tensor_parallel   why the chain has one block, or tp is 1, or ""
    source    what was loaded: file, shipped name or `package.module:factory`, with content hash
    """

    name: str
    source: str
    micro_batch: int
    sequence_length: int
    dtype: str
    tp: int
    kinds: tuple[Block, ...]
    chain: tuple[BlockRef, ...]
    why_not_cuttable: str = ""
    why_not_tensor_parallel: str = ""
    branches: tuple[Branch, ...] = ()
    state: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.chain:
            raise InputError(f"the model graph of {self.name} has no blocks")
        if any(not 0 <= ref.kind < len(self.kinds) for ref in self.chain):
            raise InputError(f"the model graph of {self.name} refers to a block that is not there")
        if any(branch.consumers[-1] >= len(self.chain) for branch in self.branches):
            raise InputError(f"a tensor in {self.name} is used by a block that is not there")

    @property
    def cuttable(self) -> bool:
        """Whether it has more than one block."""
        return not self.why_not_cuttable

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The block at each position of the chain."""
        return tuple(self.kinds[ref.kind] for ref in self.chain)

    @property
    def flows(self) -> tuple[tuple[int, int], ...]:
        """Edges of the data flow: positions of a block and of a block that takes its output."""
        if not self.branches:
            return tuple((k, k + 1) for k in range(len(self.chain) - 1))
        return tuple((branch.producer, k) for branch in self.branches for k in branch.consumers)

    @property
    def forward_flop(self) -> int:
        """FLOPs of the forward, as this rank runs it (1 multiply-add = 2)."""
        return sum(block.forward_flop for block in self.blocks)

    @property
    def backward_flop(self) -> int:
        """FLOPs of the backward, as this rank runs it, nothing recomputed."""
        return sum(block.backward_flop for block in self.blocks)

    @property
    def full_parameter_count(self) -> int:
        """Elements over the whole tp group; tied parameters once."""
        return sum(block.full_parameter_count for block in self.blocks)


def running_peak(changes: tuple[int, ...]) -> int:
    """Highest running sum of the changes, beginning at 0."""
    return max(0, *accumulate(changes)) if changes else 0


def with_kind(block: Block) -> Block:
    """The block with its content hash filled in: equal figures, equal kind, whatever the label.

    The order in which bytes come and go is left out (autograd may free a tensor one op sooner in
    one block than in the next), not the peaks, nor the ops: what weights' gradients need follows,
    and so do an accelerator's kernels.
    """
    bare = replace(
        block,
        kind="",
        label="",
        forward_ops=tuple(replace(op, kernels=None) for op in block.forward_ops),
        backward_ops=tuple(replace(op, kernels=None) for op in block.backward_ops),
        forward_changes=(),
        backward_changes=(),
        weight_input_bytes=None,
        weight_output_bytes=None,
    )
    return replace(block, kind=content_hash(bare))
