"""The prediction: what a plan would cost, with an interval and a source for every number."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError
from profiles.hardware.catalogue.device import ReferencePoint
from profiles.sourced import Sourced


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A number with the ends of its 90 % interval; low <= value <= high."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise InputError(f"interval [{self.low}, {self.high}] does not hold {self.value}")

    def scaled(self, factor: float) -> Interval:
        """The interval of factor (not negative) times the number."""
        return Interval(value=self.value * factor, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A share of the step of the critical rank; the shares add up to the step time exactly."""

    name: str
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTag:
    """How much of the step rests on what: `method` is measured, interpolated or assumed."""

    name: str
    method: str
    source: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that ran: on which rank and stream, from when to when (seconds from step start).

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
    """Bytes alive on a rank from this time on."""

    time_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Peak memory of a rank by three counts, and the parts of the first.

    peak_bytes      allocated by tensors, as torch.cuda.max_memory_allocated counts; the parts add
                    up to it exactly. The timeline starts from static_bytes: parameters, gradients
                    and optimizer
    communication_bytes   messages under way, or buffers and workspaces that a framework always has
    reserved_bytes  blocks that the allocator holds, as torch.cuda.max_memory_reserved counts; None
                    where the allocator is not modeled
    required_bytes  what the device must have for the step to run; None where the allocator is not
                    modeled
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

    @property
    def static_bytes(self) -> float:
        """Held during the whole step."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def peak_bytes(self) -> float:
        """Allocated at the fullest moment: the sum of the parts."""
        return (
            self.static_bytes
            + self.communication_bytes
            + self.activations_bytes
            + self.transient_bytes
        )

    @property
    def held_bytes(self) -> float:
        """Blocks that the allocator holds on a device of this capacity: no more than that, unless
        the rank needs more to run at all."""
        reserved = self.peak_bytes if self.reserved_bytes is None else self.reserved_bytes
        if reserved <= self.capacity_bytes:
            return reserved
        return max(self.capacity_bytes, min(self.limiting_bytes, reserved))

    @property
    def limiting_bytes(self) -> float:
        """The count that is compared with the capacity: required, else allocated."""
        return self.peak_bytes if self.required_bytes is None else self.required_bytes

    @property
    def use(self) -> float:
        """`limiting_bytes` as a share of the capacity."""
        return self.limiting_bytes / self.capacity_bytes

    @property
    def fits(self) -> bool:
        """Whether `limiting_bytes` are within the usable memory."""
        return self.limiting_bytes <= self.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTensor:
    """A tensor that crosses a cut, by the entries of the blocks that make and use it; bytes per
    micro-batch."""

    made_by: str
    used_by: tuple[str, ...]
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """Predicted times of one virtual stage per micro-batch, and of its rank per step.

    runtime_s  part of forward and backward that is no work of the stage's own: the pipeline
               runtime between actions, waiting for a core that message threads hold
    receives   what crosses the cut before the stage; None where the blocks are a plain chain
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
    """What a plan would do.

    step_time_s   of one optimizer step; components  its parts, adding up to step_time_s.value
    mfu           model FLOPs of the step / (step time x the sum of the devices' dense peaks in the
                  workload's precision); its one definition is in simulator/mfu.py
    peak_memory_bytes   allocated on the rank that allocates most (RankMemory.peak_bytes)
    ranks         one entry per pipeline rank (dp and tp ranks of a stage are alike)
    limit         one sentence: what binds (a rank's compute, memory, a link)
    tokens_per_s, samples_per_s   the one that the workload is counted in; so are dollars and energy
    price_usd_per_hour   of a device, that the dollars rest on, with its source; None without one
    events        one replica's timeline, dp rank 0 and tp rank 0
    references    how fast the machine was whose measurements this rests on, where it said so
    """

    step_time_s: Interval
    components: tuple[Component, ...]
    mfu: Interval
    tokens_per_s: Interval | None = None
    samples_per_s: Interval | None = None
    peak_memory_bytes: Interval
    usd_per_million_tokens: Interval | None = None
    price_usd_per_hour: Sourced | None = None
    usd_per_million_samples: Interval | None = None
    kwh_per_million_tokens: Interval | None = None
    kwh_per_million_samples: Interval | None = None
    bubble_fraction: float
    stages: tuple[StagePrediction, ...]
    ranks: tuple[RankMemory, ...]
    events: tuple[Event, ...]
    sources: tuple[SourceTag, ...]
    limit: str
    fits: bool
    references: tuple[ReferencePoint, ...] = ()

    def __post_init__(self) -> None:
        total = sum(part.time_s for part in self.components)
        if abs(total - self.step_time_s.value) > 1e-9 * max(self.step_time_s.value, 1e-12):
            raise InputError(
                f"the breakdown adds up to {total!r} s, the step is {self.step_time_s.value!r} s"
            )

    @property
    def fullest(self) -> RankMemory:
        """The rank that needs the largest share of its memory."""
        return max(self.ranks, key=lambda rank: rank.use)

    @property
    def required_memory_bytes(self) -> float | None:
        """What the fullest device must have; None where the allocator is not modeled."""
        return self.fullest.required_bytes

    @property
    def counted_in(self) -> str:
        """What rates and costs are per: `tokens` or `samples`."""
        return "samples" if self.tokens_per_s is None else "tokens"

    @property
    def per_s(self) -> Interval:
        """Tokens or samples per second."""
        found = self.tokens_per_s or self.samples_per_s
        if found is None:
            raise InputError("the prediction has neither tokens_per_s nor samples_per_s")
        return found

    @property
    def usd_per_million(self) -> Interval | None:
        """US dollars per million tokens or samples, None without a price."""
        return self.usd_per_million_tokens or self.usd_per_million_samples

    @property
    def kwh_per_million(self) -> Interval | None:
        """Energy per million tokens or samples."""
        return self.kwh_per_million_tokens or self.kwh_per_million_samples
