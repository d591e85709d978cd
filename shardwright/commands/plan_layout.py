"""`shardwright plan --stack`: the best layout of a described model, for one framework or more."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from planner.layout.layout_answer import LayoutFile
from planner.layout.layout_choice import choice_of
from planner.layout.layout_question import LayoutQuestion, coefficients_of
from planner.layout.layout_space import LayoutSpace
from planner.layout.pareto import device_front, memory_front
from planner.many.answer_cache import AnswerCache
from planner.tolerances import DEFAULT_FIT_RISK
from profiles.document import to_json, write_text
from profiles.errors import InfeasibleError, InputError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.figures.transformer import Transformer
from profiles.sourced import Sourced
from profiles.units import format_time
from shardwright.asking.answered import Answered, how_it_came_about, layout_answered
from shardwright.asking.asked_price import price_for
from shardwright.asking.executor_layouts import EXECUTOR, executor_space, runnable_answer
from shardwright.asking.layout_task import layout_task, solve_layout_task
from shardwright.asking.named_model import described_of
from shardwright.asking.opened_plan import write_layout
from shardwright.asking.places import answer_cache
from shardwright.asking.plan_options import first_precision
from shardwright.asking.plan_request import AnswerOutput, PlanRequest, default_precision
from shardwright.asking.provenance import provenance
from shardwright.console.output import SearchProgress, note, print_json, show, tell_price
from shardwright.console.report_files import write_front_reports, write_layout_reports
from shardwright.findings.answer_json import (
    answer_json,
    delivered_json,
    frameworks_json,
    front_json,
)
from shardwright.reports.layout_report import (
    frameworks_report,
    front_report,
    largest_difference,
    layout_report,
)
from simulator.training_run.fit.recalibrate import Calibration
from simulator.training_run.framework.framework import load_framework, offered_frameworks
from simulator.values.plan_file import write_plan_file

ANY_STACK = "any"
# What the best framework would bring is asked of so many, for so many seconds at most.
_BESIDE, _BESIDE_S = 3, 6.0


def plan_for_stack(request: PlanRequest, output: AnswerOutput) -> None:
    """Print (and write) the answer; raises InfeasibleError where no layout fits."""
    question, assumed = layout_question(request)
    if request.pareto:
        _front(question, request, output)
        return
    names = stacks_of(request.stack)
    if len(names) > 1:
        _several(question, names, request, output)
        return
    found = _answered(question, request, output, request.time_limit_s)
    answer = replace(found.answer, assumptions=(*assumed, *found.answer.assumptions))
    others: list[LayoutFile] = []
    if not request.stack:
        others = _others(question, request, output)
    if answer.chosen is None and others:
        answer = _instead_of(answer, others[0])
    _give(answer, found, others, request, output)
    if answer.chosen is None:
        raise InfeasibleError(f"no layout of {request.model} fits on {request.on} with {names[0]}")


def _give(
    answer: LayoutFile,
    found: Answered[LayoutFile],
    others: list[LayoutFile],
    request: PlanRequest,
    output: AnswerOutput,
) -> None:
    """Writes and prints the answer: of our own executor as a plan that runs, of another framework
    as its layout."""
    runs = answer.stack == EXECUTOR and (output.json or output.file is not None)
    plan = runnable_answer(answer, request.cluster) if runs else None
    if output.file is not None and plan is not None:
        write_plan_file(output.file, plan, provenance=provenance(request.cluster))
    else:
        _write(output, answer)
    write_layout_reports(output.reports, [answer], {}, request.price_told)
    if output.json:
        data = answer_json(answer if plan is None else plan)
        if answer.chosen is not None:
            data |= delivered_json(answer.chosen)
        print_json(data | {"price_notes": list(request.price_told)})
        return
    show(layout_report(answer))
    tell_price(request.price_told)
    if told := how_it_came_about(found, request.time_limit_s):
        show(told)
    if told := _best_of_others(answer, others):
        show(told)
    if output.file is not None and answer.chosen is not None:
        more = "--html report.html" if plan is not None else "--explain"
        note(f"written: {output.file}. Next: shardwright predict {output.file} {more}")


def layout_question(request: PlanRequest) -> tuple[LayoutQuestion, tuple[str, ...]]:
    """The question of a framework's layouts, and what was assumed for want of a flag."""
    described = described_of(request.model, request.seq)
    sample = described.sample
    precision, told = first_precision(request.precision), tuple[str, ...]()
    if not request.precision:
        precision, told = default_precision(request.cluster)
    question = LayoutQuestion(
        name=request.model,
        model=described.figures,
        cluster=request.cluster,
        stack=stacks_of(request.stack)[0],
        global_batch=request.global_batch,
        seq_len=sample.sequence_length,
        precision=precision,
        space=_space(request, described.figures, stacks_of(request.stack)[0]),
        options=request.options,
        fit_risk=DEFAULT_FIT_RISK if request.fit_risk is None else request.fit_risk,
        calibration=None if request.calibration is None else _calibration(request.calibration),
        lora_rank=request.lora_rank,
    )
    return question, (*sample.assumptions, *told)


def _space(request: PlanRequest, figures: Transformer, stack: str) -> LayoutSpace:
    space = request.axes.layout_space()
    return executor_space(space, figures) if stack == EXECUTOR else space


def stacks_of(text: str) -> tuple[str, ...]:
    """The frameworks of a flag; every one for `any`. Raises InputError where it names none."""
    if not text:
        return (EXECUTOR,)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise InputError(f"--stack {text!r} names no framework; write megatron-core, or any")
    return offered_frameworks() if ANY_STACK in names else names


def _calibration(path: Path) -> Calibration:
    # Here, since only this flag needs what reads tables of runs.
    from shardwright.commands.tables.calibrate import loaded_calibration

    return loaded_calibration(path)


def _answered(
    question: LayoutQuestion, request: PlanRequest, output: AnswerOutput, limit_s: float
) -> Answered[LayoutFile]:
    task = layout_task(question, explain=output.explain or output.reports.asked)

    def solve() -> LayoutFile:
        with SearchProgress(quiet=output.quiet or output.json) as progress:
            return solve_layout_task(
                task, clock=time.monotonic, time_limit_s=limit_s, progress=progress
            )

    return layout_answered(
        task,
        solve,
        price=price_for(question.cluster, request.price, request.offers),
        cache=AnswerCache(folder=answer_cache()) if output.cache else None,
        inputs=request.reliability,
        region=request.region,
    )


def _by_framework(
    question: LayoutQuestion,
    names: tuple[str, ...],
    request: PlanRequest,
    output: AnswerOutput,
    limit_s: float,
) -> tuple[list[LayoutFile], dict[str, str]]:
    """The answers with a layout, fastest first, and why the other frameworks have none."""
    answers: list[LayoutFile] = []
    refused: dict[str, str] = {}
    end = time.monotonic() + limit_s
    for number, name in enumerate(names):
        # What is left is shared by the frameworks that are left.
        share = max(0.0, end - time.monotonic()) / (len(names) - number)
        try:
            space = _space(request, question.model, name)
            asked = replace(question, stack=name, space=space)
            answer = _answered(asked, request, output, share).answer
        except InputError as error:
            refused[name] = str(error)
            continue
        if answer.chosen is None:
            why = answer.infeasibility
            refused[name] = "nothing fits" + (f"; nearest: {why.nearest}" if why else "")
        else:
            answers.append(answer)
    answers.sort(key=_step_s)
    return answers, refused


def _step_s(answer: LayoutFile) -> float:
    return answer.chosen.prediction.step_time_s.value if answer.chosen else float("inf")


def _several(
    question: LayoutQuestion, names: tuple[str, ...], request: PlanRequest, output: AnswerOutput
) -> None:
    """One table of frameworks; the file is the fastest one's."""
    answers, refused = _by_framework(question, names, request, output, request.time_limit_s)
    write_layout_reports(output.reports, answers, refused, request.price_told)
    if output.json:
        best = answers[0].chosen if answers else None
        why = {
            each.stack: largest_difference(each.chosen, best)
            for each in answers[1:]
            if each.chosen is not None and best is not None
        }
        data = frameworks_json(answers, refused, why)
        print_json(data | {"price_notes": list(request.price_told)})
    elif answers:
        show(frameworks_report(answers, refused))
        tell_price(request.price_told)
    if not answers:
        said = "; ".join(f"{name}: {why}" for name, why in refused.items())
        raise InfeasibleError(
            f"no layout of {question.name} fits on {question.cluster.name}: {said}"
        )
    _write(output, answers[0])
    if output.file is not None and not output.json:
        note(f"written: {output.file} ({answers[0].stack})")


def _others(
    question: LayoutQuestion, request: PlanRequest, output: AnswerOutput
) -> list[LayoutFile]:
    """The answers of other frameworks to a question that names none, fastest first: those with the
    most axes, as many as a few seconds allow."""
    rules = {name: load_framework(name).rules for name in offered_frameworks() if name != EXECUTOR}
    able = [name for name, each in rules.items() if each is not None]
    names = sorted(
        able, key=lambda name: (-len(rules[name].axes), -int(rules[name].date[:4]), name)
    )
    beside = replace(output, explain=False, quiet=True)
    limit_s = min(_BESIDE_S, request.time_limit_s)
    answers, _ = _by_framework(question, tuple(names[:_BESIDE]), request, beside, limit_s)
    return answers


def _instead_of(answer: LayoutFile, other: LayoutFile) -> LayoutFile:
    """Another framework's answer where our own executor has none."""
    why = answer.infeasibility
    lacks = f"the nearest, {why.nearest}, lacks {why.term}" if why else "no layout is legal"
    told = (
        f"{other.stack} is planned for, since nothing fits with {answer.stack}: {lacks} (--stack)"
    )
    return replace(other, assumptions=(told, *other.assumptions))


def _best_of_others(answer: LayoutFile, others: list[LayoutFile]) -> str:
    """One line of what the best framework would bring; empty where it is this one."""
    best = others[0] if others else answer
    if best.chosen is None or answer.chosen is None or _step_s(best) >= _step_s(answer):
        return ""
    return (
        f"Best:   {best.stack} would take {format_time(_step_s(best))}: {answer.stack} is "
        f"{largest_difference(answer.chosen, best.chosen)}; --stack any compares all"
    )


def _front(question: LayoutQuestion, request: PlanRequest, output: AnswerOutput) -> None:
    against = request.pareto
    coefficients = coefficients_of(question)
    if against == "memory":
        layouts = memory_front(question, coefficients)
        found = [(question.cluster, layout) for layout in layouts]
    else:
        found = list(
            device_front(question, coefficients, rebuild=get_cluster, clock=time.monotonic)
        )
    if not found:
        raise InfeasibleError(
            f"no layout of {question.name} fits on {question.cluster.name} with {question.stack}; "
            "without --pareto the answer says what would fit"
        )

    def priced(part: Cluster) -> Sourced | None:
        return price_for(part, request.price, request.offers)

    choices = [
        (
            part,
            choice_of(
                layout,
                None,
                part,
                priced,
                coefficients,
                question.calibration,
                request.reliability,
            ),
        )
        for part, layout in found
    ]
    write_front_reports(output.reports, request, question.stack, choices)
    points = [(part.name, choice) for part, choice in choices]
    data = front_json(against, points)
    if output.file is not None:
        write_text(output.file, to_json(data))
    if output.json:
        print_json(data)
        return
    show(front_report(against, choices))
    tell_price(request.price_told)
    if output.file is not None:
        note(f"written: {output.file}")


def _write(output: AnswerOutput, answer: LayoutFile) -> None:
    if output.file is not None:
        write_layout(output.file, answer, provenance=provenance())
