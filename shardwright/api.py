"""The Python functions of the commands: same names, values in and out, nothing printed.

The plug-in `frameworks` adds functions that read or write files of other frameworks. A result
prints like its command, in a notebook too, and has `table()` and `to_pandas()`
(shardwright/results/result.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Unpack, overload

from planner.layout.layout_answer import LayoutFile
from profiles.document import read_document, write_text
from profiles.errors import DocumentError, InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.tracing.traced import TracedModel
from shardwright.analysis.comparison import compare_run
from shardwright.analysis.plan_diff import diff_plans
from shardwright.options.keywords import SizeKeywords
from shardwright.options.option import from_keywords
from shardwright.options.size_options import SizeOptions
from shardwright.plugins.plugin import Hook, hook, missing_plugin, plugin_function
from shardwright.requests import python_plan
from shardwright.requests.imported_file import ImportedRun, is_imported
from shardwright.requests.local_paths import local_profile
from shardwright.requests.opened_plan import OpenedPlan, PlanLike, open_plan, opened_plan
from shardwright.requests.planned_step import refuse_devices_of_plan, step_of_answer
from shardwright.requests.predicted_plan import predict_plan, predicted_again
from shardwright.requests.price_request import price_for as price_for
from shardwright.requests.python_plan import PlanArguments
from shardwright.requests.python_plan import cluster as cluster
from shardwright.requests.python_plan import target_of as target_of
from shardwright.requests.python_plan import tp_degrees_for as tp_degrees_for
from shardwright.requests.python_plan import trace as trace
from shardwright.requests.sizing.largest_model import is_list, largest_model, models_of
from shardwright.requests.sizing.size_flags import size_flags
from shardwright.requests.sizing.sized import SizeSolver
from shardwright.results.result import Result, as_result
from shardwright.results.results import (
    ComparisonResult,
    DiffResult,
    FitResult,
    LayoutResult,
    PlanResult,
    PredictionResult,
    SizeResult,
    StepResult,
)
from simulator.training_run.framework.framework import offered_frameworks
from simulator.values.measurement import MEASUREMENT_SCHEMA, Measurement
from simulator.values.plan import Plan
from simulator.values.plan_file import PlanFile
from simulator.values.workload import Workload


def frameworks() -> tuple[str, ...]:
    """The frameworks that `plan(..., stack=NAME)` plans for."""
    return offered_frameworks()


def fit(
    model: str, *, sequence_length: int | None = None, micro_batch: int = 1, precision: str = "bf16"
) -> FitResult:
    """The parts of a model, and the devices on which its training fits."""
    from shardwright.reports.capacity import fit_model

    traced = trace(model, sequence_length=sequence_length, precision=precision, tp_degrees=(1,))
    return as_result(FitResult, fit_model(traced, micro_batch=micro_batch, precision=precision))


@overload
def plan(
    model: TracedModel | str,
    on: Cluster | str,
    work: Workload,
    *,
    stack: None = None,
    **options: Unpack[PlanArguments],
) -> PlanResult: ...


@overload
def plan(
    model: TracedModel | str,
    on: Cluster | str,
    work: Workload,
    *,
    stack: str,
    **options: Unpack[PlanArguments],
) -> LayoutResult: ...


def plan(
    model: TracedModel | str,
    on: Cluster | str,
    work: Workload,
    *,
    stack: str | None = None,
    **options: Unpack[PlanArguments],
) -> PlanResult | LayoutResult:
    """The best plan.

    model, on        values, or their names
    stack            a framework (`frameworks()`) whose layouts to search
    price            of a device-hour: a kind of the price table, a Sourced value, or None
    space            the axes as one value, in place of tp, pp, dp, ...
    progress         called during the search
    others           as the flags of the same names (docs/options.md) Raises InputError for other
                     arguments, and if the axes allow no plan. If nothing fits, the answer is
                     infeasible and has the reasons.
    """
    return _shown(python_plan.plan(model, on, work, stack=stack, **options))


def _shown(answer: PlanFile | LayoutFile) -> PlanResult | LayoutResult:
    if isinstance(answer, LayoutFile):
        return as_result(LayoutResult, answer)
    return as_result(PlanResult, answer)


@overload
def predict(
    chosen: Plan, model: TracedModel | None = None, on: Cluster | str = ""
) -> PredictionResult: ...


@overload
def predict(
    chosen: PlanLike | ImportedRun, model: None = None, on: Cluster | str = ""
) -> StepResult: ...


def predict(
    chosen: Plan | PlanLike | ImportedRun,
    model: TracedModel | None = None,
    on: Cluster | str = "",
) -> PredictionResult | StepResult:
    """The predicted step time, memory and cost of a plan.

    chosen   a Plan (answer.plan); or an answer of `plan`, an imported run (`import_config`), or the
             path of the file of either
    model    of a Plan, traced; None for the model that it names
    on       of a Plan, another cluster than the one that it names; of an imported run, where its
             files name no devices: `8x8xh100-sxm-80gb`

    The prediction of a plan equals the one in the answer of `plan`.

    Raises InputError for other arguments, for `on` with an answer or a plan file, which name their
    devices, and for an imported run that cannot be predicted.
    """
    if isinstance(chosen, Plan):
        where = on if isinstance(on, Cluster) else cluster(on or chosen.cluster)
        made = predict_plan(chosen, where, price_for(where), model)
        return as_result(PredictionResult, made)
    if model is not None:
        raise InputError(
            f"with a traced model give a Plan (answer.plan), not {type(chosen).__name__}; an "
            "answer of plan() and a plan file need no model"
        )
    if isinstance(on, Cluster):
        raise InputError(
            "on: name the devices of an imported run as text (8x8xh100-sxm-80gb); leave it out for "
            "an answer of plan() or a plan file, which name their devices"
        )
    if isinstance(chosen, (str, Path)) and not is_imported(Path(chosen)):
        opened = open_plan(chosen)
        refuse_devices_of_plan(on, str(chosen))
        return as_result(
            StepResult, step_of_answer(predicted_again(opened).opened.answer, str(chosen))
        )
    if isinstance(chosen, (PlanFile, LayoutFile)):
        refuse_devices_of_plan(on, "the answer")
        return as_result(StepResult, step_of_answer(chosen, "the answer"))
    return as_result(StepResult, hook(Hook.STEP_OF_IMPORTED)(chosen, on))


def load_plan(path: str | Path) -> PlanResult | LayoutResult:
    """The answer in the plan file at `path`: a plan, or a framework's layout.

    Raises DocumentError, naming the key, if a decision in the file was edited.
    """
    return _shown(open_plan(path).answer)


def profile(
    model: str | None = None,
    *,
    quick: bool = False,
    devices: int | None = None,
    threads: int | None = None,
    sequence_length: int | None = None,
    micro_batches: tuple[int, ...] = (1,),
    precision: str = "fp32",
    output: str | Path | None = None,
) -> Cluster:
    """Measure this machine, and with a model its blocks, into the file read by `cluster("local")`;
    returns the cluster."""
    from shardwright.requests.machine_profile import profile_machine

    return profile_machine(
        Path(output) if output is not None else local_profile(),
        quick=quick,
        devices=devices,
        threads=threads,
        model=model,
        seq=sequence_length,
        micro_batches=micro_batches,
        precision=precision,
    )


def run(
    path: str | Path,
    *,
    model: str = "",
    steps: int = 10,
    check: bool = False,
    output: str | Path = "run.json",
    device: str = "",
    timeout_s: float = 300.0,
    any_machine: bool = False,
) -> Measurement:
    """Run the plan in a file on this machine; returns its measurement. `model` replaces a model
    name in the plan that cannot be resolved.

    device  cpu or cuda; "": cuda for a GPU plan if this machine has GPUs, otherwise cpu
    """
    from executor.launch import run_plan

    opened = open_plan(path)
    return run_plan(
        path,
        model=model,
        steps=steps,
        check=check,
        output=output,
        device=device,
        timeout_s=timeout_s,
        any_machine=any_machine,
        answer=opened.planned,
    )


def load_run(path: str | Path) -> Measurement:
    """The measurement of `run` at `path`."""
    return read_document(path, Measurement, schema=MEASUREMENT_SCHEMA)


@overload
def compare(plan: PlanLike, run: str | Path | Measurement) -> ComparisonResult: ...


@overload
def compare(
    plan: PlanLike | ImportedRun,
    run: None = None,
    *,
    log: str | Path | Sequence[str | Path],
    on: str = "",
) -> Result: ...


def compare(
    plan: PlanLike | ImportedRun,
    run: str | Path | Measurement | None = None,
    *,
    log: str | Path | Sequence[str | Path] = (),
    on: str = "",
) -> ComparisonResult | Result:
    """A prediction next to a run of our executor, or next to a training log.

    plan   an answer of `plan`, or the path of a plan file; with `log` also an imported run
    run    a measurement of `run`, or the path of its file
    log    a training log, and profiles of the same training (needs the plug-in `frameworks`)
    on     devices of an imported run that names none

    Raises InputError unless exactly one of run and log is given, MismatchError for a run of another
    plan and for a log without step times.
    """
    logs = [log] if isinstance(log, (str, Path)) else list(log)
    if (run is None) == (not logs):
        raise InputError("give either a run, or a log with log=")
    if logs:
        compare_log = plugin_function("compare_log")
        if compare_log is None:
            raise missing_plugin("log=", "plugins/frameworks")
        found: Result = compare_log(plan, logs, on=on)
        return found
    if on:
        raise InputError(
            "on: only an imported run, compared with a log (log=), needs devices; leave it out"
        )
    if isinstance(plan, ImportedRun):
        raise InputError("an imported run can be compared with a log only; give log=")
    planned = opened_plan(plan).planned
    measured = run if isinstance(run, Measurement) else load_run(str(run))
    return as_result(ComparisonResult, compare_run(planned, measured))


def diff(before: PlanLike, after: PlanLike) -> DiffResult:
    """The differences of the second plan from the first, and why the step time changes."""
    found = diff_plans(opened_plan(before).answer, opened_plan(after).answer)
    return as_result(DiffResult, found)


def report(
    plan: str | Path | PlanFile | LayoutFile,
    output: str | Path = "report.html",
    *,
    run: str | Path | Measurement | None = None,
) -> Path:
    """Write the HTML report of a plan, compared with its run if given; returns the path.

    A path that ends in .pdf, .png or .svg gets the charts for print.
    """
    from shardwright.reports.brief.brief_figure import FORMATS, write_brief_figure
    from shardwright.reports.brief.brief_html import brief_html
    from shardwright.reports.brief.explanation import layout_brief
    from shardwright.reports.brief.plan_page import plan_page

    opened = plan if isinstance(plan, (PlanFile, LayoutFile)) else open_plan(plan)
    provenance = opened.provenance if isinstance(opened, OpenedPlan) else None
    answer = opened.answer if isinstance(opened, OpenedPlan) else opened
    where = str(plan) if isinstance(plan, (str, Path)) else "the answer"
    measured = load_run(run) if isinstance(run, (str, Path)) else run
    if isinstance(answer, LayoutFile):
        page = layout_brief(where, answer, provenance=provenance)
    elif answer.plan is None:
        raise DocumentError(f"{where} has no plan: nothing fits ({answer.status})")
    else:
        page = plan_page(answer, measured, provenance=provenance)
    if Path(output).suffix.lower() in FORMATS:
        write_brief_figure(Path(output), page)
    else:
        write_text(output, brief_html(page))
    return Path(output)


def size(
    model: str,
    on: str = "",
    *,
    time_limit_s: float = 300.0,
    workers: int = 1,
    seed: int = 0,
    **options: Unpack[SizeKeywords],
) -> SizeResult:
    """The devices to rent for a training run, with its cost, its end, and their probabilities.

    model          a model; of a list (`qwen3-8b,qwen3-32b`) or pattern (`qwen3-*`) the largest that
                   budget and deadline allow
    on             types of devices: `h100-sxm,b200`; by default the ones of most providers
    time_limit_s   of each search;  workers  processes of this machine
    options        as the flags of `shardwright size` (docs/options.md): `tokens="15T"`,
                   `deadline="60d"`, `budget="20M$"`, `sure="80%"`, `nodes="16..2048"`

    Raises InputError that names everything that is wrong. If nothing meets the limits, `best` is
    None and the report names the smallest change that would.
    """
    solver = SizeSolver(
        clock=time.monotonic,
        today=date.today().isoformat(),
        limit_s=time_limit_s,
        workers=workers,
        seed=seed,
    )
    request = SizeOptions(model=model, on=on, **from_keywords(SizeOptions, options))
    if is_list(model):
        tried = largest_model(request, models_of(model), solver)
        return as_result(SizeResult, tried[-1].sized)
    return as_result(SizeResult, solver.solve(size_flags(request)))
