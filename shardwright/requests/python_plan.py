"""`trace` and `plan` in Python: take names or values and return values; nothing is printed."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from planner.axes import AXES, Axes, axes_from
from planner.best_first import Progress
from planner.layout.layout_answer import LayoutFile
from planner.space import EXECUTOR
from planner.tolerances import DEFAULT_FIT_RISK
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.energy.grid_carbon import WORLD, grid_of
from profiles.hardware.prices.price_file import offers_with
from profiles.model.loaders import ModelSpec, resolve_model
from profiles.model.tracing.traced import TracedModel, trace_model
from profiles.sourced import Sourced
from shardwright.options.keywords import PlanKeywords
from shardwright.options.option import from_keywords, options_of
from shardwright.options.plan_options import DEFAULT_PRICE, PlanOptions
from shardwright.requests.local_paths import local_profile, trace_cache
from shardwright.requests.named_model import import_from_here, sample_of, sample_of_factory
from shardwright.requests.plan_choices import axes_of_options, requested_options
from shardwright.requests.plan_route import executor_space, figures_of, route_of, runnable_answer
from shardwright.requests.price_request import price_for
from simulator.training_run.framework.framework import load_stack
from simulator.training_run.run.low_bits import USUAL_OPTIMIZER
from simulator.values.plan_file import PlanFile
from simulator.values.workload import Workload

if TYPE_CHECKING:
    from profiles.model.building.build_given import Inputs, Module

TP_DEGREES = (1, 2, 4, 8)


class PlanArguments(PlanKeywords, total=False):
    """Keywords of `plan`: options of the command, and values that only Python has."""

    space: Axes | None
    price: Sourced | str | None
    progress: Progress | None


def target_of(cluster: Cluster) -> str:
    """The kind of device that a model is traced for: `cpu` or `gpu`."""
    return "cpu" if cluster.groups[0].device.type == "cpu" else "gpu"


def tp_degrees_for(cluster: Cluster) -> tuple[int, ...]:
    """The tensor-parallel degrees worth tracing: powers of two within the innermost level."""
    inner = cluster.levels[0].domain_size if cluster.levels else 1
    return tuple(tp for tp in TP_DEGREES if tp <= max(1, inner))


def cluster(text: str) -> Cluster:
    """A cluster string, a cluster file, or `local`."""
    if not isinstance(text, (str, Path)):
        raise InputError(f"a cluster is named by text (4x8xh100-sxm), got {text!r}")
    return get_cluster(str(text), local=local_profile())


def trace(
    model: str | Module,
    inputs: Inputs | None = None,
    *,
    targets: Any = None,
    loss_fn: Any = None,
    sequence_length: int | None = None,
    precision: str = "bf16",
    tp_degrees: tuple[int, ...] = TP_DEGREES,
    target: str = "gpu",
    sequence_parallel: bool = False,
) -> TracedModel:
    """The traced model of a name (shipped, config.json, `package.module:factory`), or of a torch
    module with example inputs whose dimension 0 is the batch.

    targets, loss_fn  of a module: the loss is loss_fn(output, targets)
    sequence_length   None for the model's default
    sequence_parallel tensor-parallel ranks share the tokens between their layers, in all plans of
                      the traced model

    Raises InputError for other values, TraceError if the model cannot be traced.
    """
    if isinstance(model, str):
        if inputs is not None or targets is not None or loss_fn is not None:
            raise InputError(f"{model}: inputs, targets and loss_fn are for modules, not for names")
        import_from_here(model)
        spec = resolve_model(model)
        sample = sample_of(model, sequence_length)
    else:
        spec = _spec_of(model, inputs, targets, loss_fn, sequence_length)
        sample = sample_of_factory(spec, sequence_length)
    length = sample.sequence_length
    if sample.counted_in == "samples":
        length = sequence_length or 1  # no such dimension: keep the given value
    dtype = Workload(global_batch=1, sequence_length=length, precision=precision).compute_dtype
    return trace_model(
        spec,
        sequence_length=length,
        dtype=dtype,
        tp_degrees=tp_degrees,
        target=target,
        cache=trace_cache(),
        sequence_parallel=sequence_parallel,
    )


def _spec_of(
    module: Any, inputs: Any, targets: Any, loss_fn: Any, sequence_length: int | None
) -> ModelSpec:
    from profiles.model.building.build_given import spec_of_module

    return spec_of_module(
        module, inputs, targets=targets, loss_fn=loss_fn, tokens_per_sample=sequence_length
    )


def _by_blocks(model: TracedModel | str, on: Cluster, work: Workload, solver: str) -> bool:
    """Whether our executor's plans of a model are searched block by block on devices of the
    catalog."""
    if not isinstance(model, (str, TracedModel)) or on.groups[0].device.type == "cpu":
        return False
    route = route_of(model, on, seq=work.sequence_length, optimizer=work.optimizer, solver=solver)
    return route.figures is None


def plan(
    model: TracedModel | str,
    on: Cluster | str,
    work: Workload,
    *,
    stack: str | None = None,
    space: Axes | None = None,
    price: Sourced | str | None = DEFAULT_PRICE,
    progress: Progress | None = None,
    **given: Unpack[PlanKeywords],
) -> PlanFile | LayoutFile:
    """The best plan, as for `shardwright.plan`: a LayoutFile with a stack, otherwise a PlanFile.

    For our own executor, models without layouts (`route_of`) have a PlanFile in both cases.
    """
    options = _options_of(given, stack or "")
    axes = axes_of_options(options)
    time_limit_s, solver, seed = options.time_limit_s, options.solver, options.seed
    if not isinstance(work, Workload):
        raise InputError(f"the third argument must be a Workload, got {type(work).__name__}")
    region = grid_of(options.region or WORLD).region
    where = on if isinstance(on, Cluster) else cluster(on)
    if options.sequence_parallel and isinstance(model, TracedModel) and not model.sequence_parallel:
        raise InputError(
            f"sequence_parallel=True: {model.source} was traced without it; use "
            "trace(..., sequence_parallel=True)"
        )
    if stack is not None and not (stack == EXECUTOR and _by_blocks(model, where, work, solver)):
        if space is not None:
            raise InputError(
                "space is for our own executor; with stack= give pins (tp=, pp=, ...) instead"
            )
        return _plan_for_stack(model, where, work, axes, options, price, progress, region)
    for each in options_of(PlanOptions):
        layouts_only = each.needs_framework or each.layouts_only or each.name == "prices"
        layouts_only &= each.name != "sequence_parallel"
        value = getattr(options, each.name)
        if layouts_only and each.is_set(value):
            raise InputError(
                f"{each.keyword}={value!r} is an option of a framework's layouts; name a framework "
                "(stack=) or leave it out"
            )
    ours = replace(options, stack=EXECUTOR)
    if space is not None and axes.pins():
        raise InputError(
            f"space and {' '.join(axes.pins())} both restrict the axes; give one of them"
        )
    if not isinstance(model, (str, TracedModel)):
        raise InputError(
            f"expected a traced model or the name of a model, got {type(model).__name__}; "
            "shardwright.trace(module, inputs) traces a module"
        )
    route = route_of(
        model, where, seq=work.sequence_length, optimizer=work.optimizer, solver=solver
    )
    if route.figures is not None:
        answer = _plan_for_stack(model, where, work, space or axes, ours, price, progress, region)
        return runnable_answer(answer, where, model if isinstance(model, TracedModel) else None)
    laid_axes = space or axes
    if space is None:
        space = axes.for_blocks()
    if isinstance(model, str):
        work = _as_counted(model, work)
        degrees = tp_degrees_for(where) if space.tp is None else tuple(sorted({1, *space.tp}))
        model = trace(
            model,
            sequence_length=work.sequence_length if work.counted_in == "tokens" else None,
            precision=work.precision,
            tp_degrees=degrees,
            target=target_of(where),
            sequence_parallel=options.sequence_parallel,
        )
    if work.counted_in == "tokens" and work.sequence_length != model.sequence_length:
        raise InputError(
            f"the workload has sequences of {work.sequence_length} tokens, {model.source} was "
            f"traced with {model.sequence_length}; make them equal"
        )
    from planner.blocks.answer import SearchOptions
    from planner.blocks.block_search import search
    from planner.layout.plan_of_layout import run_of_plan

    # A plan that is a layout has that layout's price, whichever solver is named.
    figures = route_of(model, where, seq=work.sequence_length, optimizer=work.optimizer).figures
    layouts: PlanFile | None = None
    start = time.monotonic()
    if figures is not None:
        with contextlib.suppress(InputError):  # the axes allow no layout
            answer = _plan_for_stack(model, where, work, laid_axes, ours, price, None, region)
            layouts = runnable_answer(answer, where, model)
    return search(
        model,
        where,
        work,
        space=space,
        stack=load_stack(),
        price=_price(price, where),
        options=SearchOptions(
            solver=solver,
            seed=seed,
            time_limit_s=(
                None if time_limit_s is None else max(0.0, start + time_limit_s - time.monotonic())
            ),
            progress=progress,
            layouts=layouts,
            is_layout=lambda plan: (
                figures is not None and run_of_plan(plan, figures, where) is not None
            ),
        ),
    )


def _as_counted(model: str, work: Workload) -> Workload:
    """The workload, counted in samples if the model's samples are not sequences of tokens."""
    import_from_here(model)
    sample = sample_of(model, work.sequence_length if work.sequence_length > 1 else None)
    if sample.counted_in == "samples":
        return replace(work, counted_in="samples", sequence_length=1)
    return work


def _price(price: Sourced | str | None, on: Cluster) -> Sourced | None:
    return price_for(on, price) if isinstance(price, str) else price


def _options_of(given: PlanKeywords, stack: str) -> PlanOptions:
    """The options of keywords; raises InputError, and UnknownNameError for unknown keywords."""
    values = from_keywords(PlanOptions, given)
    axes = axes_from(**{name: values.pop(name) for name in AXES if name in values})
    return PlanOptions(stack=stack, **values, **{name: getattr(axes, name) for name in AXES})


def _of_work(options: PlanOptions, work: Workload) -> PlanOptions:
    """The options with the workload's precision and optimizer."""
    other = work.optimizer if options.optimizer == USUAL_OPTIMIZER else options.optimizer
    return replace(options, precision=work.precision, optimizer=other)


def _plan_for_stack(
    model: TracedModel | str,
    on: Cluster,
    work: Workload,
    space: Axes,
    options: PlanOptions,
    price: Sourced | str | None,
    progress: Progress | None,
    region: str,
) -> LayoutFile:
    from planner.layout.layout_choice import with_layout_price
    from planner.layout.layout_question import LayoutQuestion
    from shardwright.requests.solve_task import LayoutTask
    from simulator.goodput.reliability_inputs import inputs_at, read_reliability
    from simulator.training_run.fit.recalibration import read_calibration

    if not isinstance(model, (str, TracedModel)):
        raise InputError(
            f"expected the name of a model or a traced model, got {type(model).__name__}"
        )
    name = model if isinstance(model, str) else model.source
    runs_here = options.stack == EXECUTOR
    figures = figures_of(model, work.sequence_length, runs_here=runs_here)
    calibration = options.calibration
    choices = requested_options(_of_work(options, work))
    if runs_here:
        if isinstance(model, TracedModel):
            choices = replace(choices, sequence_parallel=model.sequence_parallel)
        shared = work.sequence_length if choices.sequence_parallel else 0
        space = executor_space(space, figures, model, tokens=shared)
    question = LayoutQuestion(
        name=name,
        model=figures,
        cluster=on,
        stack=options.stack,
        global_batch=work.global_batch,
        seq_len=work.sequence_length,
        precision=work.precision,
        space=space,
        options=choices,
        fit_risk=DEFAULT_FIT_RISK if options.fit_risk is None else options.fit_risk,
        calibration=None if calibration is None else read_calibration(calibration),
        lora_rank=options.lora,
    )
    found = LayoutTask(question=question).solve(
        clock=time.monotonic, time_limit_s=options.time_limit_s, progress=progress
    )
    kind = price if isinstance(price, str) else ""
    if isinstance(price, str) and options.prices is not None:
        price = price_for(on, price, offers_with(options.prices))
    inputs = (
        inputs_at(kind) if options.reliability is None else read_reliability(options.reliability)
    )
    return with_layout_price(found, _price(price, on), inputs, region)
