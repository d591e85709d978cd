"""Options of `plan` as inputs of the search over layouts: fixed axes, and other choices."""

from __future__ import annotations

from planner.axes import AXES, Axes
from planner.run_option import ANY, RequestedOptions
from profiles.errors import InputError
from shardwright.options.option import options_of
from shardwright.options.plan_options import LAYOUT_OPTIMIZERS, PlanOptions
from shardwright.options.read_text import names
from simulator.training_run.run.low_bits import USUAL_OPTIMIZER

ANY_STACK = "any"
"""All frameworks that we offer (--stack)."""
_NARROW = ("fp8", "mxfp8", "nvfp4")
"""Precisions from which a few layers can be left out."""


def named_stacks(text: str) -> tuple[str, ...]:
    """The frameworks of `--stack`, each once; raises InputError for a list of none."""
    found = tuple(dict.fromkeys(names(text, "--stack")))
    if text and not found:
        raise InputError(f"--stack {text!r} names no framework; write megatron-core, or any")
    return found


def axes_of_options(options: PlanOptions) -> Axes:
    """The pinned and restricted axes; raises InputError, UnknownNameError."""
    return Axes(**{axis: getattr(options, axis) for axis in AXES})


def requested_options(options: PlanOptions) -> RequestedOptions:
    """Requested options of a framework's layouts; the default ones without a framework.

    Raises InputError for contradictions, and for options that need a framework if none is given;
    UnknownNameError for unknown names.
    """
    precisions = names(options.precision, "--precision")
    if not options.stack:
        need_framework(options)
        return RequestedOptions()
    if options.solver != "auto" and not {*names(options.stack, "--stack")} & {"torch", ANY_STACK}:
        raise InputError(
            f"--solver {options.solver} with --stack {options.stack}: the solvers plan block by "
            "block, for torch alone. Leave one of the two out"
        )
    if options.local_workers and max(options.local_steps, default=1) == 1:
        raise InputError(
            f"--local-workers {options.local_workers} needs --local-steps above 1; give for "
            "example --local-steps 1,50, or leave it out"
        )
    if options.wide_layers and not {*precisions} & {*_NARROW, ANY}:
        raise InputError(
            f"--wide-layers {options.wide_layers}: all layers are in "
            f"{options.precision or 'bf16'} already; give a --precision of "
            f"{', '.join(_NARROW)}, or leave it out"
        )
    if (given := step_optimizer(options)) != USUAL_OPTIMIZER:
        raise InputError(
            f"--optimizer {given} with --stack {options.stack}: layouts of frameworks are priced "
            f"with {USUAL_OPTIMIZER}, {', '.join(LAYOUT_OPTIMIZERS)}. Give one of them, or leave "
            f"out --stack: our own executor has {given}"
        )
    return RequestedOptions(
        precisions=precisions if len(precisions) > 1 or precisions == (ANY,) else (),
        orders=options.order,
        reductions=options.reduce,
        compressions=options.compress,
        local_steps=options.local_steps,
        local_workers=options.local_workers,
        wide_layers=options.wide_layers,
        pipeline_layout=options.pipeline_layout,
        optimizer_offload=options.optimizer_offload,
        sequence_parallel=options.sequence_parallel or None,
        activation_offloads=options.activation_offload,
        frozen_type=options.base_precision,
        optimizer=options.optimizer,
        expert_imbalance=options.expert_imbalance,
        documents=options.lengths,
    )


def step_optimizer(options: PlanOptions) -> str:
    """The optimizer of a plan's workload. An optimizer that only layouts have is an option of the
    layout."""
    return USUAL_OPTIMIZER if options.optimizer in LAYOUT_OPTIMIZERS else options.optimizer


def first_precision(precision: str) -> str:
    """The precision of a request: the given one, or bf16 if there are several."""
    given = names(precision, "--precision")
    if precision and not given:
        raise InputError("--precision names none; write bf16, or bf16,fp8 to choose from")
    return given[0] if len(given) == 1 and given[0] != ANY else "bf16"


def framework_flag(options: PlanOptions) -> str:
    """The first flag that our own executor does not have; "" if it has all of them."""
    for each in options_of(PlanOptions):
        value = getattr(options, each.name)
        layouts_only = each.name == "optimizer" and value in LAYOUT_OPTIMIZERS
        if layouts_only or (each.needs_framework and each.is_set(value)):
            return each.flag
    if "," in options.precision or options.precision == ANY:
        return f"--precision {options.precision}"
    return ""


def need_framework(options: PlanOptions, why: str = "") -> None:
    """Raises InputError for a flag that our own executor does not have.

    why  our executor is the only one that can answer
    """
    if flag := framework_flag(options):
        needs = "--stack: our own executor does not have this option"
        if options.stack:
            needs = "the search over layouts"
        raise InputError(f"{flag} needs {needs}" + (f", and {why}" if why else ""))
