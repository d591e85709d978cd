"""`PlanRequest`: one question of `plan`, as values; `AnswerOutput`: where its answer goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from planner.axes import Axes
from planner.tolerances import DEFAULT_TIME_LIMIT_S
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import PRECISION_TYPES, Device
from profiles.hardware.energy.grid_carbon import WORLD
from profiles.hardware.prices.offer import Offer
from profiles.model.training_precision import training_precision
from shardwright.requests.named_model import import_from_here, sample_of
from shardwright.requests.report_paths import ReportPaths
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs
from simulator.values.workload import Workload

if TYPE_CHECKING:
    from planner.run_option import RequestedOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The best plan of a model on a cluster.

    model, on   as the user named them;  cluster  what `on` names
    seq         tokens per sequence, None for the model's own
    stack       the framework that runs it, a list, or `any`; empty for our own executor
    pareto      `memory` or `usd`: the front of step time and that, empty for the one best plan
    fit_risk    probability of running out of memory, None for the default
    calibration  a file of `profile --from`
    lora_rank   of adapters, which alone are trained; 0 trains all weights
    precision   one name, a list or `any`; empty for `default_precision`
    price       a kind of the price table, or US dollars per device-hour
    offers      of a price file, with ours; None for ours alone
    price_told  what must be told of the price: that there is none, that it is old
    reliability   how often what fails, and what a restart takes;  region  of the grid
    assumed       values that were chosen for options left out, in words
    """

    model: str
    on: str
    cluster: Cluster
    global_batch: int
    seq: int | None = None
    axes: Axes = field(default_factory=Axes)
    options: RequestedOptions
    stack: str = ""
    pareto: str = ""
    fit_risk: float | None = None
    calibration: Path | None = None
    lora_rank: int = 0
    precision: str = ""
    optimizer: str = "adamw"
    solver: str = "auto"
    seed: int = 0
    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    price: str = "on-demand"
    offers: tuple[Offer, ...] | None = None
    price_told: tuple[str, ...] = ()
    reliability: ReliabilityInputs = DEFAULT
    region: str = WORLD
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOutput:
    """Where an answer goes, and how much of it.

    file   the plan file, None for none;  cache  read and keep answers
    reports  for people
    """

    file: Path | None = None
    json: bool = False
    explain: bool = False
    quiet: bool = False
    cache: bool = True
    reports: ReportPaths = field(default_factory=ReportPaths)


def default_precision(
    cluster: Cluster, model: str = "", offered: Sequence[str] = ()
) -> tuple[str, tuple[str, ...]]:
    """The precision of a request that names none, and the assumption to print.

    A shipped model that was trained in fp8 is planned in fp8, where the framework and all devices
    have it. Others: bf16 on accelerators, fp16 where that is the fast one (V100), fp32 on a CPU.

    offered  precisions of the framework; none for our executor's plans block by block
    """
    devices = [group.device for group in cluster.groups]
    trained = training_precision(model)
    if (
        trained is not None
        and trained.name in offered
        and all(_has_rate(device, trained.name) for device in devices)
    ):
        return trained.name, (
            f"precision {trained.name}, in which {model} was trained ({trained.source}; "
            "--precision)",
        )
    if any(device.type == "cpu" for device in devices):
        return "fp32", ("precision fp32, in which a CPU trains (--precision)",)
    if any(_fp16_only(device) for device in devices):
        return "fp16", ("precision fp16: bf16 is slow on these devices (--precision)",)
    return "bf16", ()


def _has_rate(device: Device, precision: str) -> bool:
    return PRECISION_TYPES.get(precision, precision) in device.peak_flop_per_s


def _fp16_only(device: Device) -> bool:
    rates = device.peak_flop_per_s
    if "bfloat16" not in rates or "float16" not in rates:
        return False
    return rates["bfloat16"].value < rates["float16"].value / 2


def workload_of(request: PlanRequest) -> tuple[Workload, tuple[str, ...]]:
    """What a step trains on, and what was assumed of it."""
    import_from_here(request.model)
    sample = sample_of(request.model, request.seq)
    precision, told = request.precision, tuple[str, ...]()
    if not precision:
        precision, told = default_precision(request.cluster)
    work = Workload(
        global_batch=request.global_batch,
        sequence_length=sample.sequence_length,
        counted_in=sample.counted_in,
        precision=precision,
        optimizer=request.optimizer,
    )
    return work, (*request.assumed, *sample.assumptions, *told)
