"""`shardwright plan --stack`: the best layout of a described model for a named framework."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from rich.console import RenderableType

from planner.answer_cache import AnswerCache
from planner.layout.layout_answer import LAYOUT_SCHEMA, LayoutFile
from planner.layout.layout_choice import choice_of
from planner.layout.layout_question import LayoutQuestion
from planner.layout.pareto import device_front, memory_front
from profiles.document import encode, to_json
from profiles.errors import InfeasibleError
from profiles.hardware.catalog import get_cluster
from profiles.hardware.cluster import Cluster
from profiles.sourced import Sourced
from shardwright.answered import LayoutAnswered, how_it_came_about, layout_answered
from shardwright.commands.output import SearchProgress, note, show
from shardwright.commands.plan import plan_json, provenance
from shardwright.executor_layouts import EXECUTOR, executor_space, runnable_answer
from shardwright.layout_task import layout_task, solve_layout_task
from shardwright.named_model import described, sample_of
from shardwright.opened_plan import write_layout
from shardwright.places import answer_cache
from shardwright.plan_options import first_precision
from shardwright.plan_request import AnswerOutput, PlanRequest, default_precision
from shardwright.questions import price_for
from shardwright.reports.layout_report import front_report, layout_report
from simulator.plan_file import write_plan_file
from simulator.training_run.coefficients import shipped_coefficients


def plan_for_stack(request: PlanRequest, output: AnswerOutput) -> None:
    """Print (and write) the answer; raises InfeasibleError where no layout fits."""
    question, assumed = layout_question(request)
    if request.pareto:
        show(_front(question, request.pareto, request.price))
        return
    task = layout_task(question, explain=output.explain)

    def solve() -> LayoutFile:
        with SearchProgress(quiet=output.quiet or output.json) as progress:
            return solve_layout_task(
                task, clock=time.monotonic, time_limit_s=request.time_limit_s, progress=progress
            )

    found = layout_answered(
        task,
        solve,
        price=price_for(question.cluster, request.price),
        cache=AnswerCache(folder=answer_cache()) if output.cache else None,
    )
    answer = replace(found.answer, assumptions=(*assumed, *found.answer.assumptions))
    _give(answer, found, request, output)
    if answer.chosen is None:
        raise InfeasibleError(
            f"no layout of {request.model} fits on {request.on} with {request.stack}"
        )


def _give(
    answer: LayoutFile, found: LayoutAnswered, request: PlanRequest, output: AnswerOutput
) -> None:
    """Writes and prints the answer: of our own executor as a plan that runs, of another framework
    as its layout."""
    runs = request.stack == EXECUTOR and (output.json or output.file is not None)
    plan = runnable_answer(answer, request.cluster) if runs else None
    if output.file is not None:
        made_by = provenance(request.cluster)
        if plan is not None:
            write_plan_file(output.file, plan, provenance=made_by)
        else:
            write_layout(output.file, answer, provenance=made_by)
    if output.json:
        tagged = {"schema": LAYOUT_SCHEMA, **encode(answer)}
        sys.stdout.write(to_json(plan_json(plan) if plan is not None else tagged))
        return
    show(layout_report(answer))
    if said := how_it_came_about(found, request.time_limit_s):
        show(said)
    if output.file is not None and answer.chosen is not None:
        more = "--html report.html" if plan is not None else "--explain"
        note(f"written: {output.file}. Next: shardwright predict {output.file} {more}")


def layout_question(request: PlanRequest) -> tuple[LayoutQuestion, tuple[str, ...]]:
    """The question of a framework's layouts, and what was assumed for want of a flag."""
    sample = sample_of(request.model, request.seq)
    found = described(request.model, sample.sequence_length)
    precision, told = first_precision(request.precision), tuple[str, ...]()
    if not request.precision:
        precision, told = default_precision(request.cluster)
    space = request.axes.layout_space()
    if request.stack == EXECUTOR:
        space = executor_space(space, found.figures)
    question = LayoutQuestion(
        name=request.model,
        model=found.figures,
        cluster=request.cluster,
        stack=request.stack,
        global_batch=request.global_batch,
        seq_len=sample.sequence_length,
        precision=precision,
        space=space,
        options=request.options,
    )
    return question, (*sample.assumptions, *found.notes, *told)


def _front(question: LayoutQuestion, against: str, price: str) -> RenderableType:
    coefficients = shipped_coefficients()
    if against == "memory":
        layouts = memory_front(question, coefficients)
        choices = [(question.cluster, layout) for layout in layouts]
    else:
        choices = list(
            device_front(question, coefficients, rebuild=get_cluster, clock=time.monotonic)
        )
    if not choices:
        raise InfeasibleError(
            f"no layout of {question.name} fits on {question.cluster.name} with {question.stack}; "
            "without --pareto the answer says what would fit"
        )

    def priced(part: Cluster) -> Sourced | None:
        return price_for(part, price)

    return front_report(
        against, [(part, choice_of(layout, None, part, priced)) for part, layout in choices]
    )
