"""`shardwright plan`: one question, to the search that answers it."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from planner.many.answer_cache import AnswerCache
from profiles.document import to_json
from profiles.errors import InfeasibleError, InputError, TraceError
from profiles.model.loaders import resolve_model
from shardwright import api
from shardwright.asking.answered import answered, how_it_came_about
from shardwright.asking.executor_layouts import why_block_by_block
from shardwright.asking.named_model import described_of
from shardwright.asking.places import answer_cache
from shardwright.asking.plan_request import AnswerOutput, PlanRequest, workload_of
from shardwright.asking.questions import price_for
from shardwright.asking.solve_task import task_of
from shardwright.commands.output import Heartbeat, SearchProgress, note, show
from shardwright.commands.provenance import provenance
from shardwright.findings.answer_json import answer_json
from shardwright.reports import terminal
from simulator.values.plan_file import PlanFile, write_plan_file


def plan(request: PlanRequest, output: AnswerOutput) -> None:
    """Answers one question by the search that fits it."""
    why = "" if request.stack else _why_block_by_block(request)
    if not why:
        # Here, since only this branch needs the models of figures.
        from shardwright.commands.plan_layout import plan_for_stack

        plan_for_stack(request, output)
        return
    _refuse_of_layouts(request, why)
    if request.cluster.homogeneous:
        plan_traced(request, output)
        return
    # Here, since only this branch needs replicas that differ.
    from shardwright.commands.plan_mixed import plan_on_mixed

    plan_on_mixed(request, output)


def _why_block_by_block(request: PlanRequest) -> str:
    """Why a question that names no framework is searched block by block, or ""."""
    why = why_block_by_block(request.cluster, optimizer=request.optimizer, solver=request.solver)
    if why:
        return why
    try:
        described_of(request.model, request.seq)
    except (InputError, TraceError) as error:
        return str(error)
    return ""


def _refuse_of_layouts(request: PlanRequest, why: str) -> None:
    """Raises InputError for flags that are of layouts only."""
    given = {
        "--fit-risk": request.fit_risk is not None,
        "--calibration": request.calibration is not None,
        "--pareto": bool(request.pareto),
    }
    for flag, typed in given.items():
        if typed:
            raise InputError(
                f"{flag} is of layouts, and this is planned block by block: {why}. Name a "
                "framework (--stack) or leave it out"
            )
    request.axes.space()


def plan_traced(request: PlanRequest, output: AnswerOutput) -> None:
    """The best plan of a traced model on devices of one type, for our own executor."""
    space = request.axes.space()
    work, assumed = workload_of(request)
    spec = resolve_model(request.model)
    task = task_of(spec, request.cluster, work, space, solver=request.solver, seed=request.seed)

    tracing = Heartbeat(f"tracing {request.model}", quiet=output.quiet or output.json)

    def solve(traced: Any) -> PlanFile:
        tracing.stop()
        with SearchProgress(quiet=output.quiet or output.json) as progress:
            return api.plan(
                traced,
                request.cluster,
                work,
                space=space,
                solver=request.solver,
                seed=request.seed,
                time_limit_s=request.time_limit_s,
                progress=progress,
            )

    with tracing:
        found = answered(
            task,
            solve,
            price=price_for(request.cluster, request.price),
            cache=AnswerCache(folder=answer_cache()) if output.cache else None,
            time_limit_s=request.time_limit_s,
        )
    answer = replace(found.answer, assumptions=(*assumed, *found.answer.assumptions))
    if output.file is not None:
        write_plan_file(output.file, answer, provenance=provenance(request.cluster))
    if output.json:
        sys.stdout.write(to_json(answer_json(answer)))
    else:
        show(terminal.plan_report(answer))
        if said := how_it_came_about(found, request.time_limit_s):
            show(said)
        if output.explain and answer.plan is not None:
            show(terminal.prediction_report(answer, explain=True))
        if output.file is not None and answer.plan is not None:
            path = output.file
            note(f"written: {path}. Next: shardwright predict {path} --html report.html")
    if answer.plan is None:
        why = answer.infeasibility
        what = f"{why.term} of stage {why.stage}" if why else "the pins"
        raise InfeasibleError(f"no plan of {request.model} fits on {request.on}: {what}")
