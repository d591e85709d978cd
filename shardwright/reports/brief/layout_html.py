"""The HTML report of a framework's layout: the report of `plan`, with the terms of the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.layout.layout_answer import LayoutFile
from profiles.errors import InputError
from profiles.units import format_time
from shardwright.reports.brief.brief import Section, Table
from shardwright.reports.brief.brief_html import brief_html
from shardwright.reports.brief.plan_answers import planned_layouts
from shardwright.reports.brief.plan_brief import plan_brief
from simulator.mfu import MFU_DEFINITION
from simulator.training_run.explain.explain_run import RunExplanation


def layout_html(
    answer: LayoutFile,
    explanation: RunExplanation,
    *,
    provenance: Mapping[str, object] | None = None,
) -> str:
    """The whole page; raises InputError if nothing fits.

    provenance  of the plan file: the command and release that wrote it
    """
    if answer.chosen is None:
        raise InputError(f"no layout of {answer.model} fits on {answer.cluster}: nothing to draw")
    wrote = provenance or {}
    brief = plan_brief(
        planned_layouts([answer], {}),
        command=str(wrote.get("command", "")),
        version=str(wrote.get("version", "")),
    )
    return brief_html(replace(brief, sections=(*brief.sections, *_terms(explanation))))


def _terms(explanation: RunExplanation) -> tuple[Section, Section]:
    lines = tuple(
        (line.part.words, line.name, format_time(line.time_s), f"{line.formula}\n= {line.numbers}")
        for line in explanation.lines
    )
    fitted = tuple(
        (c.name, f"{c.value:.3g}", c.meaning, c.origin) for c in explanation.coefficients
    )
    return (
        Section(
            title="The step term by term",
            tables=(Table(heads=("part", "term", ">time", "formula"), rows=lines),),
        ),
        Section(
            title="Fitted coefficients",
            tables=(Table(heads=("coefficient", ">value", "meaning", "origin"), rows=fitted),),
            note=f"{MFU_DEFINITION}.",
        ),
    )
