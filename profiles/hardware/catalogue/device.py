"""A device: the data of an accelerator or a share of a CPU, and its measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiles.errors import InputError, UnknownNameError
from profiles.sourced import Sourced

# Precision in published runs -> torch type with its rate: MXFP8 runs at the fp8 rate (one figure in
# NVIDIA and AMD data sheets), NVFP4 at the dense FP4 rate.
PRECISION_TYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
    "mxfp8": "float8_e4m3fn",
    "nvfp4": "float4_e2m1fn_x2",
}


# Types with the same rate on all devices that list both.
_TWINS = {"float16": "bfloat16", "bfloat16": "float16"}


def twin_type(dtype: str) -> str:
    """bfloat16 for float16 and vice versa; other types unchanged."""
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

    op  `elementwise`, `reduction`, `copy`, `optimizer` (one fused Adam step), or the name of an
        aten op, which overrides its family; with the suffix ACROSS for a softmax along another
        dimension than the last
    """

    op: str
    moved_bytes: int
    time_s: float
    dtype: str = "float32"


WEIGHT_PASS = "backward to the weight"

ACROSS = " across"
"""Suffix of a softmax along another dimension than the last, as in the cross entropy of
`[batch, classes, ...]`: on a CPU 2 to 10 times as slow (4 KiB to 8 MiB, forward and backward, two
cores, torch 2.13, float32, 2026-11-23)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvPoint:
    """A measured convolution (median) as its equivalent matmul, or a recurrent layer as the matmul
    of one position.

    kind   as ConvShape.kind, or one of RECURRENCES (graph.py)
    phase  backward: the gradients of input and weight; WEIGHT_PASS: that of the weight only
    rows, channels, patch   m, n, k of the matmul
    images  number of samples; 1 in files before 2026-11-22
    stride  the largest; 1 in files before 2026-11-24
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
    """Host seconds of a training step in addition to measured kernels (probe_host.py).

    kind  `op`: per op, in addition to the op alone; `view`, `module`: of a view and of a module's
          call, which have no kernel; `checkpoint`: of torch's checkpointing, in addition to the
          call and its repetition (missing in files before 2026-11-24)
    """

    kind: str
    phase: str
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOverhead:
    """Time of a forward and a backward of a stage in addition to its blocks.

    *_cpu_s     inside the action: the replay of the model's code around the blocks
    *_outside_s  the pipeline runtime between actions, and waiting for a core inside them
    """

    forward_cpu_s: float
    forward_outside_s: float
    backward_cpu_s: float
    backward_outside_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOverhead:
    """Time of a step without a pipeline in addition to its blocks, on all devices at once.

    forward_s, backward_s  per micro-batch: the executor's code before and around the blocks
    step_s     per step: before the gradient exchange, before the optimizer, and at the end
    slowest    wall seconds of the slowest device's forwards and backwards, including waiting for a
               core, over the mean of all devices' CPU seconds
    outside    the part of `slowest` - 1 that is common to all devices: mean wall over CPU seconds,
               minus 1; None in files without it
    work_s     mean CPU seconds of a device's forwards and backwards in those steps
    meeting_s  synchronization per step: step time minus the slowest device's forwards and
               backwards, the code between them, the shortest gradient exchange of a device and the
               optimizer
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
    forward_s, backward_s    median seconds without recomputation
    spread         relative half-width of the central 90 % of the samples
    forward_runtime_s, backward_runtime_s   parts of both outside the block: its share of the
                   pipeline runtime between actions and of waiting for a core used by message
                   threads; 0 if measured without a pipeline
    action         overhead of whole actions, shared by the blocks of the stage; None without a
                   pipeline
    weight_share   share of the backward's CPU time for weight gradients, if these are computed
                   separately (W in I + W); None if not measured
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
    """The measurements of a device, with source and date.

    references  speed of the machine when the blocks (or without blocks, the ops) were measured
    slowest     time of the slowest device over the mean, when all begin the same work together
                (probe_reference.py); 1 if not measured
    action      pipeline overhead of a small model's actions, used for blocks without measurements;
                None if not measured
    step        overhead of that model's steps without a pipeline; None if not measured
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
                      `float32` is torch's default, `tf32` uses its tensor cores)
    memory_bytes      as reported by the device
    reserved_bytes    part of the memory that a framework cannot use
    memory_bandwidth_bytes_per_s   data sheet's peak of the main memory
    power_w           board power under training load or the vendor's limit
    launch_s          host time per kernel launch: lower bound on the time of every op
    efficiency_of     name of the device whose measured utilization is used, or ""
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
        # Mappings have no hash, and hashing every measured point would be slow.
        return hash((self.name, self.type, self.launch_s.value))

    @property
    def usable_bytes(self) -> float:
        """Memory that a training process can allocate."""
        return self.memory_bytes.value - self.reserved_bytes.value

    @property
    def tensor_bytes(self) -> float:
        """Memory for tensors that are counted exactly. On a GPU, free blocks between kept tensors
        are partly lost. Layouts add a tenth to the tensors of a step for this, which are about half
        of a peak (needed_over_allocated in profiles/data/frameworks/torch-fsdp.toml)."""
        return self.usable_bytes / (1.05 if self.type == "gpu" else 1.0)

    def peak(self, dtype: str) -> Sourced:
        """The dense peak for a torch type or a precision (`nvfp4`); raises InputError with the
        known types."""
        precision, dtype = dtype, PRECISION_TYPES.get(dtype, dtype)
        if dtype not in self.peak_flop_per_s:
            note = "" if precision == dtype else f" (precision {precision})"
            raise InputError(
                f"device {self.name} has no rate for {dtype}{note}; it has rates for "
                f"{', '.join(sorted(self.peak_flop_per_s))}"
            )
        return self.peak_flop_per_s[dtype]

    def peak_or_twins(self, dtype: str) -> Sourced:
        """`peak` for a torch type; a peak listed for one of bfloat16 and float16 is used for
        both."""
        twin = twin_type(dtype)
        listed = dtype in self.peak_flop_per_s or twin not in self.peak_flop_per_s
        return self.peak(dtype if listed else twin)
