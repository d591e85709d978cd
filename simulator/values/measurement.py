"""The measurement: times and memory of a run of a plan, the content of `run.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiles.hardware.catalogue.device import ReferencePoint
from simulator.values.prediction import Event

MEASUREMENT_SCHEMA = "shardwright/run@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """Times of one optimizer step.

    wall_s          slowest rank, from a barrier to the end of its update
    delay_fraction  share of the step spent waiting for a CPU core (run-queue delay), worst rank; 0
                    on accelerators
    disturbed       whether delay_fraction exceeds the measurement's limit; such steps are excluded
                    from every median
    """

    wall_s: float
    cpu_s: float
    delay_fraction: float
    disturbed: bool
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSample:
    """Median seconds per micro-batch of a virtual stage, wall and thread CPU time.

    backward_*  whole backward, or I and W together for a split backward
    weight_*    the W of a split backward; otherwise 0
    """

    stage: int
    rank: int
    forward_wall_s: float
    forward_cpu_s: float
    backward_wall_s: float
    backward_cpu_s: float
    count: int
    weight_wall_s: float = 0.0
    weight_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSample:
    """Peak memory of a rank, and median seconds per step by kind of work."""

    rank: int
    peak_memory_bytes: float
    peak_memory_kind: str
    optimizer_s: float
    data_parallel_s: float
    communication_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCheck:
    """Comparison with the unsplit model on the same batch.

    worst_relative_error  max over parameters of ||g - g_ref|| / ||g_ref||
    """

    passed: bool
    tolerance: float
    loss: float
    reference_loss: float
    worst_relative_error: float
    worst_parameter: str
    parameters_checked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Measured run of a plan.

    step_wall_s   median over undisturbed steps
    plan_hash     content hash of the plan
    events        timeline of the median step (dp rank 0, tp rank 0)
    steps_without_finite_loss  number of steps with a nan or infinite loss: their times are valid,
                               their training is not
    not_finite    first nan or infinite loss or gradient: step (from 1, including warm-up), rank and
                  module
    versions      torch, python, backend
    compiled_units  number of units that torch.compile compiled
    eager_units   paths of units that ran eagerly with --compile, and the reasons
    references_before, references_during, references_after   machine speed right before, between and
                                                             after the steps, on all devices at
                                                             once; none on accelerators
    """

    plan_hash: str
    backend: str
    world_size: int
    step_wall_s: float
    step_cpu_s: float
    steps: tuple[StepSample, ...]
    stages: tuple[StageSample, ...]
    ranks: tuple[RankSample, ...]
    events: tuple[Event, ...]
    delay_limit: float
    gradient_check: GradientCheck | None = None
    steps_without_finite_loss: int = 0
    not_finite: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""
    date: str = ""
    references_before: tuple[ReferencePoint, ...] = ()
    references_during: tuple[ReferencePoint, ...] = ()
    references_after: tuple[ReferencePoint, ...] = ()
    compiled_units: int = 0
    eager_units: Mapping[str, str] = field(default_factory=dict)
