"""The HTML report of a plan for our executor: that of `plan`, with the timeline, the memory over
the step, the roofline and, if there is a run, its comparison with the prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from profiles.units import format_percent, format_time
from shardwright.analysis.breakdown import RankParts, measured_parts, predicted_parts
from shardwright.analysis.comparison import compare_run
from shardwright.reports.brief.brief import Brief, Fact, Section, Table
from shardwright.reports.brief.brief_html import brief_html
from shardwright.reports.brief.comparison_section import comparison_section, signed_percent
from shardwright.reports.brief.plan_answers import answer_brief
from shardwright.reports.brief.roofline_picture import op_rows, roofline_picture
from shardwright.reports.memory_picture import memory_picture
from shardwright.reports.reproduce import recipe
from shardwright.reports.roofline import Roofline
from shardwright.reports.timeline_picture import timeline_note, timeline_picture
from simulator.values.measurement import Measurement
from simulator.values.plan import Plan
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import Prediction

_MOST_RANKS = 16
_MOST_STAGES = 64
_RANK_PARTS = ("forward", "backward", "gradient_exchange", "optimizer", "waiting")


def report_html(
    answer: PlanFile,
    measured: Measurement | None = None,
    *,
    roofline: Roofline | None = None,
    provenance: Mapping[str, object] | None = None,
) -> str:
    """`plan_page` as HTML."""
    return brief_html(plan_page(answer, measured, roofline=roofline, provenance=provenance))


def plan_page(
    answer: PlanFile,
    measured: Measurement | None = None,
    *,
    roofline: Roofline | None = None,
    provenance: Mapping[str, object] | None = None,
) -> Brief:
    """The report of an answer with a plan.

    measured    a run of the plan
    roofline    of reports/roofline.py (or why there is none); None leaves the section out
    provenance  of the plan file: the command and release that wrote it
    """
    from shardwright import __version__

    assert answer.plan is not None
    assert answer.prediction is not None
    plan, prediction = answer.plan, answer.prediction
    brief = answer_brief(answer)
    steps = recipe(plan, measured, version=__version__, provenance=provenance)
    sections = [
        *([comparison_section(compare_run(answer, measured))] if measured is not None else []),
        _timeline(prediction, measured),
        *brief.sections,
        _ranks(plan, prediction, measured),
        *(_roofline(roofline) if roofline is not None else ()),
        Section(title="Memory over the step", pictures=(memory_picture(prediction, measured),)),
        _stages(prediction),
        Section(
            title="Inputs and versions",
            tables=(Table(heads=("", ""), rows=steps.facts),),
            note=steps.note,
        ),
    ]
    return replace(
        brief,
        title=f"{plan.model} on {plan.cluster}",
        facts=(*brief.facts, *_run_facts(prediction, measured)),
        sections=tuple(sections),
        command="\n".join(steps.commands),
    )


def _run_facts(prediction: Prediction, measured: Measurement | None) -> list[Fact]:
    facts = [
        Fact(
            name="Bubble",
            value=format_percent(prediction.bubble_fraction),
            note="of the slowest rank's step",
        )
    ]
    if measured is None:
        return facts
    off = (prediction.step_time_s.value - measured.step_wall_s) / measured.step_wall_s
    facts.append(
        Fact(
            name="Measured step",
            value=format_time(measured.step_wall_s),
            note=f"prediction is {signed_percent(off)} off",
        )
    )
    check = measured.gradient_check
    if check is not None:
        worst = (
            f"worst error {check.worst_relative_error:.0e}, {check.parameters_checked} parameters"
        )
        facts.append(
            Fact(name="Gradients", value="equal" if check.passed else "DIFFER", note=worst)
        )
    return facts


def _timeline(prediction: Prediction, measured: Measurement | None) -> Section:
    drawn = timeline_picture(prediction.events, measured.events if measured else ())
    above = ": predicted above measured" if measured else ""
    return Section(
        title=f"Timeline of one step{above}", pictures=(drawn,), note=timeline_note(prediction)
    )


def _ranks(plan: Plan, prediction: Prediction, measured: Measurement | None) -> Section:
    """The step of every rank by part; of a run the medians over undisturbed steps."""
    timed = {one.rank: one for one in measured_parts(plan, measured)} if measured else {}
    rows = []
    for parts in predicted_parts(plan, prediction)[:_MOST_RANKS]:
        rows.append(_rank_row(parts, "predicted"))
        if parts.rank in timed:
            rows.append(_rank_row(timed[parts.rank], "measured"))
    names = (f">{name.replace('_', ' ')}" for name in _RANK_PARTS)
    return Section(
        title="Rank by rank",
        tables=(Table(heads=(">rank", "", *names, ">step"), rows=tuple(rows)),),
        note="Forward and backward contain recomputation, launches and tensor-parallel messages. "
        "Waiting is the rest of the step: bubble, sends, and in a run the host's own time. "
        "Measured parts are medians over undisturbed steps.",
    )


def _rank_row(parts: RankParts, group: str) -> tuple[str, ...]:
    seconds = (getattr(parts, f"{name}_s") for name in _RANK_PARTS)
    return (str(parts.rank), group, *map(format_time, (*seconds, parts.step_s)))


def _roofline(roofline: Roofline) -> tuple[Section]:
    """The picture and the ops with the most time, or why there is none."""
    picture = roofline_picture(roofline)
    if picture is None:
        return (Section(title="Roofline", note=f"Not drawn: {roofline.missing}"),)
    heads = ("op", ">calls", ">time", ">flop/byte", ">achieved", ">of the roof", "time is")
    table = Table(heads=heads, rows=op_rows(roofline))
    return (Section(title="Roofline", pictures=(picture,), tables=(table,)),)


def _stages(prediction: Prediction) -> Section:
    rows = tuple(
        (str(one.stage), str(one.rank), format_time(one.forward_s), format_time(one.backward_s))
        for one in prediction.stages[:_MOST_STAGES]
    )
    heads = (">stage", ">rank", ">forward of a micro-batch", ">backward")
    return Section(title="Stages", tables=(Table(heads=heads, rows=rows),))
