"""`shardwright plan` for one request: by the search over layouts, or block by block."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.batch.answer_cache import AnswerCache
from profiles.errors import InfeasibleError, InputError
from profiles.model.loaders import resolve_model
from shardwright.analysis.answer_json import answer_json
from shardwright.console.output import (
    Heartbeat,
    SearchProgress,
    note,
    print_json,
    print_price_notes,
    show,
)
from shardwright.console.report_files import write_plan_reports
from shardwright.options.option import options_of
from shardwright.options.plan_options import PlanOptions
from shardwright.reports.brief.brief_terminal import brief_report
from shardwright.reports.brief.plan_answers import planned_mixed, planned_plan
from shardwright.reports.brief.plan_brief import plan_brief
from shardwright.reports.plan_summary import plan_summary
from shardwright.requests.cached_answer import answered, how_it_came_about
from shardwright.requests.layout_answers import why_no_layouts
from shardwright.requests.local_paths import answer_cache
from shardwright.requests.plan_choices import need_framework
from shardwright.requests.plan_request import AnswerOutput, PlanRequest, workload_of
from shardwright.requests.price_request import price_for
from shardwright.requests.provenance import provenance
from shardwright.requests.solve_task import Task, task_of, trace_task
from simulator.training_run.framework.framework import load_stack
from simulator.values.plan_file import PlanFile, write_plan_file
from simulator.values.workload import Workload

if TYPE_CHECKING:
    from profiles.model.tracing.traced import TracedModel


def plan_one(request: PlanRequest, output: AnswerOutput) -> None:
    """Answer one request by the search that `route_of` picks (plan_route.py)."""
    why = why_no_layouts(request)
    if not why:
        # Here, since only this branch needs the models of figures.
        from shardwright.commands.plan_layout import plan_for_stack

        plan_for_stack(request, output)
        return
    _refuse_of_layouts(request, why)
    if request.cluster.homogeneous:
        _plan_traced(request, output)
    else:
        _plan_on_mixed(request, output)


def _refuse_of_layouts(request: PlanRequest, why: str) -> None:
    """Raises InputError for options of layouts only."""
    need_framework(
        replace(request.options, sequence_parallel=False), f"this is planned block by block: {why}"
    )
    for each in options_of(PlanOptions):
        if each.layouts_only and each.is_set(getattr(request.options, each.name)):
            raise InputError(
                f"{each.flag} needs the search over layouts, but this request is planned block by "
                f"block: {why}. Name a framework (--stack) or leave it out"
            )
    request.axes.for_blocks()


def _task(request: PlanRequest, work: Workload) -> Task:
    """The task of a request: the model to trace and the axes to search."""
    options = request.options
    return task_of(
        resolve_model(options.model),
        request.cluster,
        work,
        request.axes.for_blocks(),
        solver=options.solver,
        seed=options.seed,
        sequence_parallel=options.sequence_parallel,
    )


def _plan_traced(request: PlanRequest, output: AnswerOutput) -> None:
    """The best plan of a traced model on devices of one type, for our own executor."""
    # Here, since the functions of every other command come with it.
    from shardwright import api

    space = request.axes.for_blocks()
    work, assumed = workload_of(request)
    options, task = request.options, _task(request, work)
    tracing = Heartbeat(f"tracing {options.model}", quiet=output.quiet or output.json)

    def solve(traced: TracedModel) -> PlanFile:
        tracing.stop()
        with SearchProgress(quiet=output.quiet or output.json) as progress:
            return api.plan(
                traced,
                request.cluster,
                work,
                space=space,
                solver=options.solver,
                seed=options.seed,
                time_limit_s=request.time_limit_s,
                progress=progress,
            )

    with tracing:
        found = answered(
            task,
            solve,
            price=price_for(request.cluster, options.price, request.offers),
            cache=AnswerCache(folder=answer_cache()) if output.cache else None,
            time_limit_s=request.time_limit_s,
        )
    answer = replace(found.answer, assumptions=(*assumed, *found.answer.assumptions))
    _give(answer, request, output, how_it_came_about(found, request.time_limit_s))


def _plan_on_mixed(request: PlanRequest, output: AnswerOutput) -> None:
    """The best plan on devices of several types, for our own executor."""
    # Here, since only this branch needs replicas that differ.
    from planner.blocks.answer import SearchOptions
    from planner.heterogeneous.plan_mixed import only, plan_mixed

    space, cluster, options = request.axes.for_blocks(), request.cluster, request.options
    work, assumed = workload_of(request)
    prices = {
        name: price_for(only(cluster, name), options.price, request.offers)
        for name in sorted({group.device.name for group in cluster.groups})
    }
    words = f"tracing {options.model} and searching on mixed devices"
    with Heartbeat(words, quiet=output.quiet or output.json):
        answer = plan_mixed(
            trace_task(_task(request, work)),
            cluster,
            work,
            space=space,
            stack=load_stack(),
            usd_per_hour={name: each for name, each in prices.items() if each is not None},
            options=SearchOptions(
                solver=options.solver, seed=options.seed, time_limit_s=request.time_limit_s
            ),
        )
    _give(replace(answer, assumptions=(*assumed, *answer.assumptions)), request, output)


def _give(answer: PlanFile, request: PlanRequest, output: AnswerOutput, remark: str = "") -> None:
    """Writes and prints the answer, with a remark on the search; raises InfeasibleError if nothing
    fits."""
    options, plan = request.options, answer.plan
    if output.file is not None:
        write_plan_file(output.file, answer, provenance=provenance(request.cluster))
    planned = (
        planned_plan(answer, options.model, options.on)
        if answer.comparison is None
        else planned_mixed(answer, answer.comparison)
    )
    write_plan_reports(output.reports, lambda: planned, request.price_notes)
    if output.json:
        print_json(answer_json(answer) | {"price_notes": list(request.price_notes)})
    else:
        if output.explain or plan is None or answer.comparison is not None:
            show(brief_report(plan_brief(planned), short=not output.explain))
            print_price_notes(request.price_notes)
        else:
            show(plan_summary(answer, request.price_notes))
        if remark:
            show(remark)
        if output.file is not None and plan is not None:
            after = f"Next: shardwright predict {output.file} --html report.html"
            if plan.pipelines is not None:
                after = "Replicas differ, which our executor does not run: it is for other runtimes"
            note(f"written: {output.file}. {after}")
    if plan is None:
        why = answer.infeasibility
        what = f"{why.term} of stage {why.stage}" if why else "the pins"
        raise InfeasibleError(f"no plan of {options.model} fits on {options.on}: {what}")
