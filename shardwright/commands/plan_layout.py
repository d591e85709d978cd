"""`shardwright plan --stack`: the best layout of a transformer for one or several frameworks."""

from __future__ import annotations

import functools
from pathlib import Path

from planner.batch.answer_cache import AnswerCache
from planner.layout.layout_answer import LayoutFile
from planner.space import EXECUTOR
from profiles.document import to_json, write_text
from profiles.errors import InfeasibleError
from profiles.model.loaders import need_to_build, resolve_model
from shardwright.analysis.answer_json import (
    answer_json,
    delivered_json,
    frameworks_json,
    front_json,
)
from shardwright.console.output import SearchProgress, note, print_json, print_price_notes, show
from shardwright.console.report_files import write_plan_reports
from shardwright.reports.brief.brief_terminal import brief_report
from shardwright.reports.brief.plan_answers import planned_front, planned_layouts
from shardwright.reports.brief.plan_brief import plan_brief
from shardwright.reports.brief.plan_table import largest_difference
from shardwright.reports.labelled import labelled
from shardwright.reports.layout_summary import framework_rows, layout_summary
from shardwright.requests.cached_answer import CachedAnswer, how_it_came_about
from shardwright.requests.layout_answers import LayoutRequester, none_fits, stacks_of
from shardwright.requests.local_paths import answer_cache
from shardwright.requests.opened_plan import write_layout
from shardwright.requests.plan_request import AnswerOutput, PlanRequest
from shardwright.requests.plan_route import runnable_answer, unsupported_options
from shardwright.requests.provenance import provenance
from simulator.training_run.fit.recalibration import Calibration
from simulator.values.plan_file import write_plan_file


def plan_for_stack(request: PlanRequest, output: AnswerOutput) -> None:
    """Print and, if requested, write the answer; raises InfeasibleError if no layout fits."""
    requester = LayoutRequester(
        request=request,
        calibration=_calibration(request.options.calibration),
        explain=output.explain or output.reports.asked,
        cache=AnswerCache(folder=answer_cache()) if output.cache else None,
        watched=functools.partial(SearchProgress, quiet=output.quiet or output.json),
    )
    if request.options.pareto:
        _front(requester, output)
        return
    names = stacks_of(request.options.stack)
    if len(names) > 1:
        _several(requester, output)
        return
    if request.options.stack == EXECUTOR and _writes_plan(output):  # before the search
        need_to_build(resolve_model(request.options.model))
    one = requester.one()
    _give(one, request, output)
    if one.answer.chosen is None:
        asked = request.options
        raise InfeasibleError(f"no layout of {asked.model} fits on {asked.on} with {names[0]}")


def _give(one: CachedAnswer[LayoutFile], request: PlanRequest, output: AnswerOutput) -> None:
    """Write and print the answer: for our own executor as a plan that runs; for another framework,
    or with options that our executor does not have, as a layout."""
    answer = one.answer
    why_not = unsupported_options(answer.chosen.run) if answer.chosen else ""
    runs = answer.stack == EXECUTOR and not why_not and _writes_plan(output)
    plan = runnable_answer(answer, request.cluster) if runs else None
    if output.file is not None and plan is not None:
        write_plan_file(output.file, plan, provenance=provenance(request.cluster))
    else:
        _write(output, answer)
    planned = functools.cache(lambda: planned_layouts([answer], {}))
    write_plan_reports(output.reports, planned, request.price_notes)
    if output.json:
        data = answer_json(answer if plan is None else plan)
        if answer.chosen is not None:
            data |= delivered_json(answer.chosen)
        print_json(data | {"price_notes": list(request.price_notes)})
        return
    brief = not output.explain and answer.chosen is not None
    if brief:
        show(layout_summary(answer, one.others, request.price_notes))
    else:
        show(brief_report(plan_brief(planned())))
        for row in framework_rows(answer, one.others):
            show(labelled("Next:   ", row))
        print_price_notes(request.price_notes)
    if told := how_it_came_about(one, request.time_limit_s):
        # The short answer has a remark if the answer is cached.
        (note if brief and one.cached else show)(told)
    if output.file is not None and answer.chosen is not None:
        more = "--html report.html" if plan is not None else "--explain"
        note(f"written: {output.file}. Next: shardwright predict {output.file} {more}")
        if answer.stack == EXECUTOR and why_not:
            note(f"`run` refuses this plan: {why_not}")


def _writes_plan(output: AnswerOutput) -> bool:
    """Whether a plan of our executor is written or printed, with the blocks of the traced model."""
    return output.json or output.file is not None


def _calibration(path: Path | None) -> Calibration | None:
    if path is None:
        return None
    # Imported here, because only this flag needs the reader of tables of runs.
    from shardwright.commands.tables.predict_runs import loaded_calibration

    return loaded_calibration(path)


def _several(requester: LayoutRequester, output: AnswerOutput) -> None:
    """Prints one table of frameworks; the file contains the fastest one's answer."""
    request, (answers, refused) = requester.request, requester.by_framework()
    planned = functools.cache(lambda: planned_layouts(answers, refused))
    if answers:
        write_plan_reports(output.reports, planned, request.price_notes)
    if output.json:
        best = answers[0].chosen if answers else None
        why = {
            each.stack: largest_difference(each.chosen, best)
            for each in answers[1:]
            if each.chosen is not None
        }
        data = frameworks_json(answers, refused, why)
        print_json(data | {"price_notes": list(request.price_notes)})
    elif answers:
        show(brief_report(plan_brief(planned()), short=not output.explain))
        print_price_notes(request.price_notes)
    if not answers:
        raise InfeasibleError(none_fits(request, refused))
    _write(output, answers[0])
    if output.file is not None and not output.json:
        note(f"written: {output.file} ({answers[0].stack})")


def _front(requester: LayoutRequester, output: AnswerOutput) -> None:
    request, choices = requester.request, requester.front()
    asked = request.options
    planned = planned_front(asked.model, asked.on, stacks_of(asked.stack)[0], asked.pareto, choices)
    write_plan_reports(output.reports, lambda: planned, request.price_notes)
    points = [(part.name, choice) for part, choice in choices]
    data = front_json(request.options.pareto, points)
    if output.file is not None:
        write_text(output.file, to_json(data))
    if output.json:
        print_json(data)
        return
    show(brief_report(plan_brief(planned), short=not output.explain))
    print_price_notes(request.price_notes)
    if output.file is not None:
        note(f"written: {output.file}")


def _write(output: AnswerOutput, answer: LayoutFile) -> None:
    if output.file is not None:
        write_layout(output.file, answer, provenance=provenance())
