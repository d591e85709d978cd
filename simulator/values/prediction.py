"""The prediction of a plan: time, memory and cost, with intervals and sources."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from profiles.errors import InputError
from profiles.hardware.catalogue.device import ReferencePoint
from profiles.sourced import Sourced, SourcedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A number with the ends of its 90 % interval; low <= value <= high."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise InputError(f"interval [{self.low}, {self.high}] does not contain {self.value}")

    def scaled(self, factor: float) -> Self:
        """The interval times a factor of 0 or more."""
        return replace(
            self, value=self.value * factor, low=self.low * factor, high=self.high * factor
        )

    def times(self, other: Interval | SourcedRange) -> Self:
        """The product with another number of 0 or more, low with low and high with high."""
        return replace(
            self,
            value=self.value * other.value,
            low=self.low * other.low,
            high=self.high * other.high,
        )

    def plus(self, more: float) -> Self:
        """The interval with an exact number added."""
        return replace(self, value=self.value + more, low=self.low + more, high=self.high + more)


class PartGroup(StrEnum):
    """Groups of the parts of a step that a profiler can distinguish."""

    COMPUTE = "compute"
    COMMUNICATION = "exposed communication"
    IDLE = "idle and host"


_COMPUTE, _MESSAGES, _IDLE = PartGroup


class Part(StrEnum):
    """A part of a step: its name in files, its text in reports, and its group.

    A plan of traced blocks lists recomputation separately and counts gathered parameters as
    `data_parallel_communication`. A layout counts recomputation as compute and lists gathered
    parameters separately. Messages are the exposed part only. `host_memory` is transfers to and
    from the host and an optimizer there; `overhead` is the constant time of a step.
    """

    words: str
    group: PartGroup

    def __new__(cls, name: str, words: str, group: PartGroup) -> Self:
        made = str.__new__(cls, name)
        made._value_ = name
        made.words, made.group = words, group
        return made

    COMPUTE = "compute", "compute", _COMPUTE
    RECOMPUTE = "recompute", "recompute", _COMPUTE
    LAUNCH = "launch", "launch", _IDLE
    RUNTIME = "runtime", "runtime", _IDLE
    WAITING = "waiting_for_slowest_rank", "waiting for slowest rank", _IDLE
    TENSOR = "tensor_parallel_communication", "tensor-parallel messages", _MESSAGES
    EXPERT = "expert_parallel_communication", "all-to-all of experts", _MESSAGES
    CONTEXT = "context_parallel_communication", "context-parallel messages", _MESSAGES
    GATHER = "parameter_gathering", "gathering of parameters", _MESSAGES
    CUT = "pipeline_communication", "sends between stages", _MESSAGES
    STALL = "stalled_messages", "stalled messages", _MESSAGES
    BUBBLE = "bubble", "bubble", _IDLE
    REDUCE = "data_parallel_communication", "exchange of gradients", _MESSAGES
    OPTIMIZER = "optimizer", "optimizer", _COMPUTE
    HOST = "host_memory", "host memory", _IDLE
    OVERHEAD = "overhead", "overhead", _IDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """Time of one part of the critical rank's step; all parts add up exactly to the step time."""

    name: Part
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTag:
    """Share of the step based on a source; `method` is measured, interpolated or assumed."""

    name: str
    method: str
    source: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An interval on a rank and stream; start and end in seconds from the step's start.

    name    an action in torch's notation (`2F0`), `optimizer`, or the operation of a collective
    stream  `compute`, `send`, `collective`
    """

    rank: int
    stream: str
    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Allocated bytes of a rank from this time on."""

    time_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Peak memory of a rank by three counts, and the parts of the first.

    peak_bytes      allocated by tensors, as in torch.cuda.max_memory_allocated; the exact sum of
                    the parts. The timeline starts at static_bytes: parameters, gradients and
                    optimizer
    communication_bytes   messages in flight, or a framework's permanent buffers and workspaces
    reserved_bytes  blocks reserved by the allocator, as in torch.cuda.max_memory_reserved; None if
                    the allocator is not modeled
    required_bytes  device memory needed to run the step; None if the allocator is not modeled
    host_bytes      host memory for offloaded data; of a layout at most
    """

    rank: int
    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    transient_bytes: float
    communication_bytes: float
    capacity_bytes: float
    peak_time_s: float
    timeline: tuple[MemorySample, ...] = ()
    reserved_bytes: float | None = None
    required_bytes: float | None = None
    host_bytes: float = 0.0

    @property
    def static_bytes(self) -> float:
        """Allocated during the whole step."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def peak_bytes(self) -> float:
        """Peak of the allocated bytes: the sum of the parts."""
        return (
            self.static_bytes
            + self.communication_bytes
            + self.activations_bytes
            + self.transient_bytes
        )

    @property
    def held_bytes(self) -> float:
        """Bytes reserved by the allocator on a device of this capacity: at most the capacity,
        unless the rank needs more to run."""
        reserved = self.peak_bytes if self.reserved_bytes is None else self.reserved_bytes
        if reserved <= self.capacity_bytes:
            return reserved
        return max(self.capacity_bytes, min(self.limiting_bytes, reserved))

    @property
    def limiting_bytes(self) -> float:
        """The count compared with the capacity: required if known, otherwise allocated."""
        return self.peak_bytes if self.required_bytes is None else self.required_bytes

    @property
    def use(self) -> float:
        """`limiting_bytes` as a share of the capacity."""
        return self.limiting_bytes / self.capacity_bytes

    @property
    def fits(self) -> bool:
        """Whether `limiting_bytes` fit in the usable memory."""
        return self.limiting_bytes <= self.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTensor:
    """A tensor sent between stages: entries of its producing and consuming blocks, bytes per
    micro-batch."""

    made_by: str
    used_by: tuple[str, ...]
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """Predicted times of one virtual stage per micro-batch, and of its rank per step.

    runtime_s  overhead included in forward and backward: the pipeline runtime between actions, and
               waiting for a core used by message threads
    receives   tensors that cross the cut before the stage; None for a plain chain of blocks
    """

    stage: int
    rank: int
    forward_s: float
    backward_s: float
    optimizer_s: float
    data_parallel_s: float
    runtime_s: float = 0.0
    receives: tuple[CutTensor, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted time, memory and cost of a plan.

    step_time_s   of one optimizer step; components  its parts, adding up to step_time_s.value
    mfu           model FLOPs of the step / (step time x the sum of the devices' dense peaks in the
                  workload's precision); defined in simulator/mfu.py
    peak_memory_bytes   allocated on the rank with the largest peak (RankMemory.peak_bytes)
    ranks         one entry per pipeline rank (dp and tp ranks of a stage are equal)
    fits          whether the framework supports it and all ranks have enough memory
    limit         the bottleneck in one sentence (a rank's compute, memory, a link)
    tokens_per_s, samples_per_s   the unit of the workload; dollars and energy use the same unit
    price_usd_per_hour   price of a device used for the dollars, with its source; None without one
    events        one replica's timeline, dp rank 0 and tp rank 0
    references    speed of the measured machine, if recorded

    Memory is None and () without a memory model for the run. Stages, events, sources and limit are
    empty if no timeline was requested.
    """

    step_time_s: Interval
    components: tuple[Component, ...]
    mfu: Interval
    tokens_per_s: Interval | None = None
    samples_per_s: Interval | None = None
    peak_memory_bytes: Interval | None = None
    usd_per_million_tokens: Interval | None = None
    price_usd_per_hour: Sourced | None = None
    usd_per_million_samples: Interval | None = None
    kwh_per_million_tokens: Interval | None = None
    kwh_per_million_samples: Interval | None = None
    bubble_fraction: float
    stages: tuple[StagePrediction, ...] = ()
    ranks: tuple[RankMemory, ...] = ()
    events: tuple[Event, ...] = ()
    sources: tuple[SourceTag, ...] = ()
    limit: str = ""
    fits: bool | None = None
    references: tuple[ReferencePoint, ...] = ()

    def __post_init__(self) -> None:
        total = sum(part.time_s for part in self.components)
        if abs(total - self.step_time_s.value) > 1e-9 * max(self.step_time_s.value, 1e-12):
            raise InputError(
                f"the breakdown adds up to {total!r} s, the step is {self.step_time_s.value!r} s"
            )

    @property
    def fullest(self) -> RankMemory:
        """The rank with the largest memory use, as a share of its capacity."""
        return max(self.ranks, key=lambda rank: rank.use)

    @property
    def seconds(self) -> dict[Part, float]:
        """Seconds by part; missing parts are 0."""
        return {part.name: part.time_s for part in self.components}

    @property
    def peak(self) -> Interval:
        """`peak_memory_bytes`; raises InputError without a memory model for the run."""
        if self.peak_memory_bytes is None:
            raise InputError("the prediction has no memory: no memory model describes the run")
        return self.peak_memory_bytes

    @property
    def required_memory_bytes(self) -> float | None:
        """Memory required on the fullest device; None if the allocator is not modeled."""
        return self.fullest.required_bytes if self.ranks else None

    @property
    def timeline_gap(self) -> float:
        """Time between the timeline's end and the step's end, as a share of the step."""
        end_s = max((event.end_s for event in self.events), default=self.step_time_s.value)
        return 1.0 - end_s / self.step_time_s.value

    @property
    def counted_in(self) -> str:
        """Unit of rates and costs: `tokens` or `samples`."""
        return "samples" if self.tokens_per_s is None else "tokens"

    @property
    def per_s(self) -> Interval:
        """Tokens or samples per second."""
        rate = self.tokens_per_s or self.samples_per_s
        if rate is None:
            raise InputError("the prediction has neither tokens_per_s nor samples_per_s")
        return rate

    def with_dollars(self, usd: Interval | None, price: Sourced | None) -> Prediction:
        """A copy with other dollars per million tokens or samples, and price per device-hour."""
        tokens = self.counted_in == "tokens"
        return replace(
            self,
            price_usd_per_hour=price,
            usd_per_million_tokens=usd if tokens else None,
            usd_per_million_samples=None if tokens else usd,
        )

    @property
    def usd_per_million(self) -> Interval | None:
        """US dollars per million tokens or samples, None without a price."""
        return self.usd_per_million_tokens or self.usd_per_million_samples

    @property
    def kwh_per_million(self) -> Interval | None:
        """Energy per million tokens or samples, in kWh."""
        return self.kwh_per_million_tokens or self.kwh_per_million_samples
