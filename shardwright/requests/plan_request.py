"""`PlanRequest`: a request of `plan`; `AnswerOutput`: where its answer goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from planner.axes import Axes
from planner.run_option import RequestedOptions
from planner.tolerances import DEFAULT_TIME_LIMIT_S
from profiles.errors import InputError, TraceError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import PRECISION_TYPES, Device
from profiles.hardware.energy.grid_carbon import WORLD, grid_of
from profiles.hardware.prices.offer import Offer
from profiles.hardware.prices.price_file import offers_with
from profiles.model.loaders import resolve_model, training_precision
from shardwright.options.plan_options import PlanOptions
from shardwright.requests.named_model import described_of, import_from_here, sample_of
from shardwright.requests.plan_choices import (
    ANY_STACK,
    axes_of_options,
    requested_options,
    step_optimizer,
)
from shardwright.requests.price_request import price_notes
from shardwright.requests.usual_batch import UsualBatch, notes_on_batch, usual_batch
from simulator.goodput.reliability_inputs import ReliabilityInputs, inputs_at, read_reliability
from simulator.training_run.run.low_bits import USUAL_OPTIMIZER
from simulator.values.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPaths:
    """Files of the reports to write; None: not written, `-`: printed (but not the figure)."""

    html: Path | None = None
    markdown: Path | None = None
    csv: Path | None = None
    figure: Path | None = None

    @property
    def asked(self) -> bool:
        """Whether a report is requested."""
        return any((self.html, self.markdown, self.csv, self.figure))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A request of `plan`: its options, resolved.

    cluster        of `options.on`
    global_batch   or the default
    axes, choices  fixed axes of the layout, and choices for the search
    offers         of a price file together with ours; None for ours only
    price_notes    warnings: the price is missing or outdated
    reliability    failure rates and restart times
    region         of the power grid
    assumed        defaults, as text
    """

    options: PlanOptions
    cluster: Cluster
    global_batch: int
    axes: Axes
    choices: RequestedOptions
    offers: tuple[Offer, ...] | None = None
    price_notes: tuple[str, ...] = ()
    reliability: ReliabilityInputs
    region: str
    assumed: tuple[str, ...] = ()

    @property
    def time_limit_s(self) -> float:
        """Time limit of the search."""
        limit_s = self.options.time_limit_s
        return DEFAULT_TIME_LIMIT_S if limit_s is None else limit_s


def plan_request(options: PlanOptions, *, profile: Path, today: str) -> PlanRequest:
    """The request for options.

    profile  of `--on local`
    today    ISO day, for the age of prices

    Without a batch, the model's usual one (usual_batch.py). Raises InputError, UnknownNameError,
    UnitError, DocumentError.
    """
    # Without a framework several are compared, and those without an option refuse it.
    named = options
    if not options.stack:
        named = replace(options, stack=ANY_STACK)
        if step_optimizer(options) != USUAL_OPTIMIZER:  # only our own executor has it
            named = replace(named, optimizer=USUAL_OPTIMIZER)
    axes, choices = axes_of_options(options), requested_options(named)
    batch, assumed = options.global_batch, tuple[str, ...]()
    if batch is None:
        usual = plan_batch(options.model, options.seq, adapters=bool(options.lora))
        batch, assumed = usual.sequences, (usual.words,)
    offers = None if options.prices is None else offers_with(options.prices)
    cluster = get_cluster(options.on, local=profile)
    return PlanRequest(
        options=options,
        cluster=cluster,
        global_batch=batch,
        axes=axes,
        choices=choices,
        offers=offers,
        price_notes=price_notes(cluster, options.price, today=today, offers=offers),
        reliability=(
            inputs_at(options.price)
            if options.reliability is None
            else read_reliability(options.reliability)
        ),
        region=grid_of(options.region or WORLD).region,
        assumed=assumed,
    )


def plan_batch(model: str, seq: int | None, *, adapters: bool = False) -> UsualBatch:
    """The usual batch of a model whose samples are sequences of tokens.

    Raises InputError for others; ModelError and TraceError if the model cannot be built.
    """
    if resolve_model(model).factory or (sample := sample_of(model, seq)).counted_in != "tokens":
        raise InputError(
            f"give --global-batch, the samples of a step: {model} has no published batch of tokens "
            "to take as default"
        )
    length = sample.sequence_length
    try:
        parameters: float = described_of(model, seq).figures.parameters
    except (InputError, TraceError):  # not a transformer: planned block by block
        from profiles.model.building.build import parameter_count

        parameters = parameter_count(resolve_model(model), length)
    return usual_batch(model, parameters, length, adapters=adapters)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOutput:
    """Destination of an answer, and its level of detail.

    file     the plan file, None for none
    cache    read and store answers
    reports  report files
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
    """The precision of a request without one, and the assumption to print.

    A shipped model that was trained in fp8 is planned in fp8, if the framework and all devices have
    it. Others: bf16 on accelerators, fp16 on those without fast bf16 (V100), fp32 on a CPU.

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
    """The workload of a step, and the assumptions made for it."""
    model, precision = request.options.model, request.options.precision
    import_from_here(model)
    sample = sample_of(model, request.options.seq)
    notes: tuple[str, ...] = ()
    if not precision:
        precision, notes = default_precision(request.cluster)
    work = Workload(
        global_batch=request.global_batch,
        sequence_length=sample.sequence_length,
        counted_in=sample.counted_in,
        precision=precision,
        optimizer=step_optimizer(request.options),
    )
    many = notes_on_batch(request.global_batch, sample.sequence_length)
    return work, (*many, *request.assumed, *sample.assumptions, *notes)
