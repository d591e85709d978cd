"""The model graph: computation, memory and communication of a training step, block by block.

A model is a chain of blocks. A block is the code between two cut points of the forward pass, with
its backward. Equal blocks are one `Block` used many times: a 126-layer model has three or four. All
numbers are per micro-batch on one rank of a tensor-parallel group of `ModelGraph.tp` ranks: with tp
= 4, the shapes are those of each of the four ranks.
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
"""Suffix of the kinds of convolutions with channels-last input."""

DEFERRED_PRODUCTS = ("mm", "addmm", "linear")
"""Products with a weight whose gradient a split backward makes in its second part. The gradients of
experts in one call, of batched products and of recurrences are made in the first
(executor/weight_products.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape:
    """A convolution's kernel.

    dims, taps, stride    number of spatial dimensions, elements of a window, largest stride
    input_gradient  False in a backward with the weight gradient only
    images  samples of the call. On a CPU, torch has a slower kernel (3 to 5 times) for a single
            volume (32 channels on 24^3, torch 2.13, 2026-11-22). It computes a pointwise
            convolution of fewer than 16 samples as one matmul per sample (use_mkldnn of one thread
            in aten/src/ATen/native/Convolution.cpp): 4 images of 2 x 2 pixels at a tenth of the
            speed of 4 x 4
    channels_last  layout of the input or the weight. On a CPU, the backward of a depthwise 7 x 7 in
                   float32 then takes a quarter to two thirds of the time, a pointwise one in
                   bfloat16 half (15 shapes, one core, torch 2.13, 2026-11-23); dense ones differed
                   by at most a third in either direction and are not distinguished
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
        """The kind of kernel; `patch` is the product's k. Convolutions in one and three dimensions
        are of the same kinds as images (to oneDNN a line is an image of height one); this was more
        accurate on a CPU of two cores (simulator/traced/utilisation.conv_axes) and not measured on
        other devices."""
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
    """The kind of an op, by its limit: arithmetic, memory, or only the launch."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    CONV = "conv"
    MEMORY = "memory"  # element-wise, reductions, normalizations, copies, gathers
    VIEW = "view"  # no device work


class Phase(StrEnum):
    """The pass of an op."""

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
        """Bytes of the elements, without an allocator's rounding."""
        return round(self.num_elements * DTYPE_BYTES[self.dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulShape:
    """`batch` products of [m, k] x [k, n]; a convolution is its equivalent product."""

    batch: int
    m: int
    n: int
    k: int


# Op of a whole recurrent layer on a CPU (tracing/trace_fused.py) -> kind of the layer.
RECURRENCES: Mapping[str, str] = {
    f"shardwright.{kind}_layer{way}": kind
    for kind in ("lstm", "gru", "rnn")
    for way in ("", "_backward")
}


SCAN = "shardwright.scan"
"""Op of a recurrence over tokens that an accelerator runs as one kernel (tracing/trace_scans.py);
the backward is `shardwright.scan_backward`."""
RMS_NORM = "shardwright.rms_norm"
"""Op of an RMS norm that an accelerator runs as one kernel (tracing/trace_fused.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """One fused attention call: [batch, heads, q_len, head_dim] on [batch, kv_heads, kv_len, .].

    mask_reach  most keys per query according to the mask (kv_len: all before it), 0 if its values
                are unknown, None without a mask
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
    dtype        of the first floating-point input
    mask_reach   of an op that masks scores: most keys per query, if known
    kernels      that it starts on an accelerator; None if it was traced for a CPU
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
    """A storage that is kept from a block's forward to its backward, other than parameters.

    module  path relative to the block of the module that produced it ("" = the block itself)
    """

    module: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A weight on one tensor-parallel rank; `full_shape` is before sharding.

    tied_to      name in the whole model of an earlier parameter with the same storage, or ""
    whole_name   name in the whole model, if its module is outside of the module with which the
                 block begins
    summed       True if every tp rank has it whole, and its gradients are summed over tp
    calls        None unless FSDP2 gathers it with a module that is called several times per pass;
                 then the number of these calls in this block, and how many of them free the weight
                 after their backward
    """

    name: str
    spec: TensorSpec
    full_shape: tuple[int, ...]
    trainable: bool = True
    tied_to: str = ""
    whole_name: str | None = None
    summed: bool | None = None
    calls: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective of tensor parallelism in a block.

    operation  `all_reduce`, `all_gather` or `reduce_scatter`; size_bytes is the full tensor
    """

    operation: str
    phase: Phase
    module: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One distinct kind of block.

    kind, label       content hash of the trace; class name, for example `LlamaDecoderLayer`
    inputs, outputs   tensors from earlier blocks and for later blocks
    saved             storages kept for backward without recomputation, except inputs
    attention_module  path of the submodule that recompute = attention checkpoints, or ""
    attention_input_bytes   bytes of that submodule's inputs, kept when it is recomputed
    forward_peak_bytes, backward_peak_bytes   highest bytes allocated inside the block during each
                      pass, without parameters, parameter gradients and tensors between blocks, but
                      with the gradients of its outputs and inputs
    forward_changes, backward_changes   consecutive allocations (freed: negative) in bytes, from
                      which the peaks follow
    expected_shapes   True if data-dependent routing was traced with expected shapes
    assumed_values    True if an assumed truth value (of `all()`, `any()`) decides which code runs
    freed_input_bytes  of `inputs`, freed by the end of the forward: no backward needs them (a norm
                      in 16 bits saves a copy in fp32). 0 in graphs with branches
    table_bytes       kept tensors of earlier blocks that it reads and that depend on no weight
                      (tables of positions, masks). Each stage computes its own
    lent_bytes        of `saved`: tables that later blocks read
    weight_input_bytes, weight_output_bytes   operands of the weight gradients: bytes of the
                      distinct storages read by products with trainable parameters (including the
                      block's inputs), and bytes written by these products; None if not traced
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
    freed_input_bytes: int = 0
    table_bytes: int = 0
    lent_bytes: int = 0
    weight_input_bytes: int | None = None
    weight_output_bytes: int | None = None

    def __hash__(self) -> int:
        # Blocks are keys of caches, and `kind` is a hash of the content.
        return hash(self.kind)

    @property
    def forward_flop(self) -> int:
        """FLOPs of the forward, as this rank runs it (1 multiply-add = 2)."""
        return sum(op.work_flop for op in self.forward_ops)

    @property
    def backward_flop(self) -> int:
        """FLOPs of the backward on this rank, without recomputation."""
        return sum(op.work_flop for op in self.backward_ops)

    @property
    def saved_bytes(self) -> int:
        """Bytes kept for the backward, without tensors between blocks."""
        return sum(tensor.memory_bytes for tensor in self.saved)

    @property
    def parameter_count(self) -> int:
        """Elements on one tp rank; tied parameters count only in their first block."""
        return sum(p.spec.num_elements for p in self.parameters if not p.tied_to)

    @property
    def full_parameter_count(self) -> int:
        """Elements over the whole tp group; tied parameters once."""
        return sum(math.prod(p.full_shape) for p in self.parameters if not p.tied_to)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRef:
    """A position in the chain: index of the block's kind, and the module whose call opens it.

    entry  path in the whole model of the module whose call begins the block (`model.layers.3`); ""
           for the first block, which begins with the forward pass
    """

    entry: str
    kind: int


def parameter_name(ref: BlockRef, parameter: Parameter) -> str:
    """The name in the whole model; parameters that share their storage have the same name."""
    own = f"{ref.entry}.{parameter.name}" if ref.entry else parameter.name
    return parameter.tied_to or parameter.whole_name or own


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A tensor between blocks of a graph that is no chain: a skip connection, an encoder's output.

    producer   position in the chain of the block that makes it
    consumers  positions of the blocks that use it, ascending
    """

    producer: int
    consumers: tuple[int, ...]
    spec: TensorSpec

    def __post_init__(self) -> None:
        if not self.consumers or self.producer >= self.consumers[0]:
            raise InputError(
                f"a tensor of block {self.producer} is for later blocks, not {self.consumers}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGraph:
    """A traced model for one micro-batch size, sequence length, precision and tp degree.

    kinds     the distinct blocks; chain  the blocks in order of execution, as references
    branches  all tensors between blocks; empty if the blocks are a plain chain
    sample_bytes  of a sample's inputs and targets, which every rank has of its whole batch
    state     descriptions of buffers and weights that the forward changes and computes with
    clamped   weights that their own layers clamp in the forward
    why_not_cuttable, why_not_tensor_parallel   why the chain has one block, or tp must be 1, or ""
    source    file, shipped name or `package.module:factory`
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
    sample_bytes: int = 0
    state: tuple[str, ...] = ()
    clamped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.chain:
            raise InputError(f"the model graph of {self.name} has no blocks")
        if any(not 0 <= ref.kind < len(self.kinds) for ref in self.chain):
            raise InputError(f"the model graph of {self.name} refers to an unknown block")
        if any(branch.consumers[-1] >= len(self.chain) for branch in self.branches):
            raise InputError(f"a tensor in {self.name} is used by an unknown block")

    @property
    def cuttable(self) -> bool:
        """Whether it has more than one block."""
        return not self.why_not_cuttable

    @property
    def why_not_zero_3(self) -> str:
        """Why no plan has ZeRO 3, or ""."""
        if not self.clamped:
            return ""
        return (
            f"the forward clamps the weight {self.clamped[0]}, which ZeRO 3 would undo before the "
            "backward"
        )

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
        """FLOPs of the backward on this rank, without recomputation."""
        return sum(block.backward_flop for block in self.blocks)

    @property
    def full_parameter_count(self) -> int:
        """Elements over the whole tp group; tied parameters once."""
        return sum(block.full_parameter_count for block in self.blocks)

    @property
    def matrices(self) -> dict[str, int]:
        """Name of every matrix, convolutions included -> its elements, over all tp ranks."""
        found = {}
        for ref in self.chain:
            for p in self.kinds[ref.kind].parameters:
                if len(p.full_shape) > 1:
                    found[parameter_name(ref, p)] = math.prod(p.full_shape)
        return found


def running_peak(changes: tuple[int, ...]) -> int:
    """Highest running sum of the changes, beginning at 0."""
    return max(0, *accumulate(changes)) if changes else 0


def with_kind(block: Block) -> Block:
    """The block with its content hash, which does not depend on the label.

    The order of allocations is excluded (autograd may free a tensor one op earlier in one block
    than in the next), as are the operands of weight gradients, inputs that are freed, tables and
    the kernels of an accelerator, which follow from the ops.
    """
    bare = replace(
        block,
        kind="",
        label="",
        forward_ops=tuple(replace(op, kernels=None) for op in block.forward_ops),
        backward_ops=tuple(replace(op, kernels=None) for op in block.backward_ops),
        forward_changes=(),
        backward_changes=(),
        freed_input_bytes=0,
        table_bytes=0,
        lent_bytes=0,
        weight_input_bytes=None,
        weight_output_bytes=None,
    )
    return replace(block, kind=content_hash(bare))
