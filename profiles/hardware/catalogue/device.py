"""A device: the fixed numbers of an accelerator or a CPU share, and what was measured on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiles.errors import InputError, UnknownNameError
from profiles.sourced import Sourced

# Names of published runs for the types whose units they use: MXFP8 runs at the fp8 rate (NVIDIA and
# AMD data sheets print one figure for both), NVFP4 at the dense FP4 rate.
PRECISION_TYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
    "mxfp8": "float8_e4m3fn",
    "nvfp4": "float4_e2m1fn_x2",
}


# One rate on every device that lists both.
_TWINS = {"float16": "bfloat16", "bfloat16": "float16"}


def twin_type(dtype: str) -> str:
    """bfloat16 for float16 and the other way round; every other type itself."""
    return _TWINS.get(dtype, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulPoint:
    """A measured matmul: `batch` products [m, k] x [k, n] took `time_s` (median)."""

    dtype: str
    batch: int
    m: int
    n: int
    k: int
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPoint:
    """A measured fused attention call (median)."""

    dtype: str
    phase: str
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    causal: bool
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoint:
    """A measured memory-bound op: `moved_bytes` read and written took `time_s`.

    op  `elementwise`, `reduction`, `copy`, `optimizer` (one fused Adam step), or an aten op by
        its name, which then is not priced as its family is; a softmax's with ACROSS where it is
        not along the last dimension
    """

    op: str
    moved_bytes: int
    time_s: float
    dtype: str = "float32"


WEIGHT_PASS = "backward to the weight"

ACROSS = " across"
"""Behind the name of a softmax along another dimension than the last, as cross entropy takes it of
`[batch, classes, ...]`: on a CPU 2 to 10 times as slow (4 KiB to 8 MiB, forward and backward, two
cores, torch 2.13, float32, 2026-11-23)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvPoint:
    """A measured convolution: the product that it equals and its bytes took `time_s` (median).
    Or a layer of a recurrence, whose product is that of one position.

    kind   as ConvShape.kind, or as RECURRENCES (graph.py)
    phase  backward: the gradients of input and weight; WEIGHT_PASS: that of the weight alone
    rows, channels, patch   m, n, k of the product, whose rows are of so many images: 1 in files
           from before 2026-11-22, whose pointwise convolutions are read so
    stride  the largest; 1 in files from before 2026-11-24
    """

    dtype: str
    phase: str
    kind: str
    rows: int
    channels: int
    patch: int
    work_flop: int
    moved_bytes: int
    time_s: float
    images: int = 1
    stride: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPoint:
    """Seconds of the host in a training step that no kernel is measured with.

    kind  `op`: what each op takes beyond itself alone; `view`, `module`: all of the time of a view
          and of a module's call, which have no kernel; `checkpoint`: what torch's checkpointing
          takes beyond the call and its repetition (absent from files of before 2026-11-24)
    """

    kind: str
    phase: str
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOverhead:
    """What a forward and a backward of a stage took beside the work of its blocks.

    *_cpu_s     inside the action: the replay of the model's code around the blocks
    *_outside_s  the pipeline runtime between actions, and waiting for a core inside them
    """

    forward_cpu_s: float
    forward_outside_s: float
    backward_cpu_s: float
    backward_outside_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOverhead:
    """What a step without a pipeline took beside the work of its blocks, on all devices at once.

    forward_s, backward_s  of every micro-batch: the executor's code before and around the blocks
    step_s     once per step: before the exchange of gradients, before the optimizer, and at the end
    slowest    wall seconds of the slowest device's forwards and backwards over the mean of all
               devices' CPU seconds in them; waiting for a core is in it
    outside    of `slowest` - 1, what all devices have in the mean: their wall seconds over their
               CPU seconds, less 1; None in files without it
    work_s     mean CPU seconds of a device's forwards and backwards in those steps
    meeting_s  once per step: by what it took longer than its slowest device's forwards and
               backwards, the code between, the exchange of the device that waits least in it and
               the optimizer
    """

    forward_s: float
    backward_s: float
    step_s: float
    slowest: float
    outside: float | None = None
    work_s: float = 0.0
    meeting_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPoint:
    """A whole block of a model, measured in place on this device.

    kind           content hash of the block (profiles.model.graph.Block.kind) at this micro-batch
    forward_s, backward_s    median seconds without recomputation, forward and backward
    spread         relative half-width of the central 90 % of the samples
    forward_runtime_s, backward_runtime_s   parts of both that are not the block's own: its share
                   of what the pipeline runtime takes between actions and of waiting for a core
                   that message threads hold; 0 where the block was measured without a pipeline
    action         the overhead of whole actions, of which this block and the others of its stage
                   carry their shares; None without a pipeline
    weight_share   part of the backward's CPU time that the gradients of weights take where they are
                   made apart (W in I + W); None where that was not measured
    """

    kind: str
    label: str
    forward_s: float
    backward_s: float
    sample_count: int
    spread: float
    forward_runtime_s: float = 0.0
    backward_runtime_s: float = 0.0
    action: ActionOverhead | None = None
    weight_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePoint:
    """A reference kernel (profiles/hardware/probe/probe_reference.py) on all devices at once.

    kernel  `matmul`, `memory` or `layers`
    time_s  CPU seconds of one call, mean over devices of medians
    spread  relative half-width of the central 90 % of the samples
    """

    kernel: str
    time_s: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What was measured on a device, where and when.

    references  how fast the machine was when the blocks were measured, or else the device
    slowest     seconds of the slowest of all devices, when all begin the same work together, over
                their mean (probe_reference.py); 1 where that was not measured
    action      what the pipeline runtime took around the actions of a small model: that of blocks
                which were not measured themselves; None where that was not measured
    step        what steps of that model took beside its blocks without a pipeline; None as before
    """

    source: str
    date: str
    matmul: tuple[MatmulPoint, ...] = ()
    attention: tuple[AttentionPoint, ...] = ()
    memory: tuple[MemoryPoint, ...] = ()
    blocks: tuple[BlockPoint, ...] = ()
    references: tuple[ReferencePoint, ...] = ()
    slowest: float = 1.0
    conv: tuple[ConvPoint, ...] = ()
    host: tuple[HostPoint, ...] = ()
    action: ActionOverhead | None = None
    step: StepOverhead | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or a fixed share of a CPU.

    peak_flop_per_s   dense peak per data type (keys are torch names: `bfloat16`, `float8_e4m3fn`;
                      `float32` is what torch does by default, `tf32` its tensor cores)
    memory_bytes      as the device reports it; reserved_bytes is what a framework cannot use
    memory_bandwidth_bytes_per_s   datasheet peak of the main memory
    power_w           board power under training load or the vendor's limit
    launch_s          host time per kernel launch: the floor under every op
    efficiency_of     name of the device whose measured utilisation is borrowed, or ""
    """

    name: str
    vendor: str
    type: str
    aliases: tuple[str, ...] = ()
    peak_flop_per_s: Mapping[str, Sourced]
    memory_bytes: Sourced
    reserved_bytes: Sourced
    memory_bandwidth_bytes_per_s: Sourced
    power_w: Sourced
    launch_s: Sourced
    efficiency_of: str = ""
    measurements: Measurements | None = None
    notes: str = ""
    fingerprint: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.type not in ("gpu", "tpu", "accelerator", "cpu"):
            raise UnknownNameError("device type", self.type, ("gpu", "tpu", "accelerator", "cpu"))
        if not self.peak_flop_per_s:
            raise InputError(f"device {self.name} has no peak rate")
        numbers = {f"peak_flop_per_s.{k}": v for k, v in self.peak_flop_per_s.items()}
        for name in ("memory_bytes", "memory_bandwidth_bytes_per_s", "power_w"):
            numbers[name] = getattr(self, name)
        for name, number in numbers.items():
            if not number.value > 0:
                raise InputError(f"device {self.name}: {name} must be above 0, is {number.value}")
        if not 0 <= self.reserved_bytes.value < self.memory_bytes.value:
            raise InputError(
                f"device {self.name}: reserved_bytes {self.reserved_bytes.value:.0f} must lie "
                f"between 0 and memory_bytes {self.memory_bytes.value:.0f}"
            )
        if self.launch_s.value < 0:
            raise InputError(f"device {self.name}: launch_s must not be negative")

    def __hash__(self) -> int:
        # Mappings have no hash, and hashing every measured point would cost more than a look-up.
        return hash((self.name, self.type, self.launch_s.value))

    @property
    def usable_bytes(self) -> float:
        """Memory that a training process can allocate."""
        return self.memory_bytes.value - self.reserved_bytes.value

    def peak(self, dtype: str) -> Sourced:
        """The dense peak for a torch type or a precision (`nvfp4`); raises InputError, naming the
        rates that there are."""
        asked, dtype = dtype, PRECISION_TYPES.get(dtype, dtype)
        if dtype not in self.peak_flop_per_s:
            said = "" if asked == dtype else f" (precision {asked})"
            raise InputError(
                f"device {self.name} has no rate for {dtype}{said}; it has rates for "
                f"{', '.join(sorted(self.peak_flop_per_s))}"
            )
        return self.peak_flop_per_s[dtype]

    def peak_or_twins(self, dtype: str) -> Sourced:
        """`peak` for a torch type, or that of its twin where the device lists only that one."""
        twin = twin_type(dtype)
        listed = dtype in self.peak_flop_per_s or twin not in self.peak_flop_per_s
        return self.peak(dtype if listed else twin)
