"""Files that `size` and `plan` write of an answer for people: page, Markdown, table and figure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from profiles.document import write_text
from shardwright.console.output import need_room_for, note, write_or_print

if TYPE_CHECKING:
    from planner.layout.layout_answer import LayoutChoice, LayoutFile
    from profiles.hardware.catalogue.cluster import Cluster
    from shardwright.reports.brief.brief import Brief
    from shardwright.reports.brief.columns import Column
    from shardwright.reports.brief.plan_brief import Planned
    from shardwright.requests.plan_request import PlanRequest
    from shardwright.requests.report_paths import ReportPaths
    from simulator.values.plan_file import PlanFile


def need_room_for_reports(files: ReportPaths) -> None:
    """Raises DocumentError where a file cannot be written, InputError for a figure of no known
    format, before anything is searched."""
    need_room_for(files.html, files.markdown, files.csv, files.figure)
    if files.figure is not None:
        from shardwright.reports.print_figure import need_format

        need_format(files.figure)


def write_size_reports(files: ReportPaths, data: Mapping[str, Any]) -> None:
    """Of the JSON of `size` with its details."""
    if not files.asked:
        return
    # Here and below, since most answers are only printed.
    from shardwright.reports.brief.size_brief import size_brief
    from shardwright.reports.brief.size_table import SIZE_COLUMNS, size_rows

    def brief(command: str, version: str) -> Brief:
        return size_brief(data, command=command, version=version)

    _write(files, brief, SIZE_COLUMNS, size_rows(data))


def write_layout_reports(
    files: ReportPaths,
    answers: Sequence[LayoutFile],
    refused: Mapping[str, str],
    told: Sequence[str] = (),
) -> None:
    """Of one framework's layouts, or of several frameworks', fastest first; told  of the price."""
    if not files.asked or not answers:
        return
    from shardwright.reports.brief.plan_answers import planned_layouts

    _write_planned(files, planned_layouts(answers, refused), told)


def write_front_reports(
    files: ReportPaths,
    request: PlanRequest,
    stack: str,
    choices: Sequence[tuple[Cluster, LayoutChoice]],
) -> None:
    """Of a Pareto front."""
    if not files.asked:
        return
    from shardwright.reports.brief.plan_answers import planned_front

    found = planned_front(request.options.model, request.options.on, stack, choices)
    _write_planned(files, found, request.price_notes)


def write_plan_reports(files: ReportPaths, answer: PlanFile, request: PlanRequest) -> None:
    """Of a plan of our own executor, or on devices of several types."""
    if not files.asked:
        return
    from shardwright.reports.brief.plan_answers import planned_mixed, planned_plan

    found = (
        planned_plan(answer, request.options.model, request.options.on)
        if answer.comparison is None
        else planned_mixed(answer, answer.comparison)
    )
    _write_planned(files, found, request.price_notes)


def _write_planned(files: ReportPaths, planned: Planned, told: Sequence[str]) -> None:
    from shardwright.reports.brief.plan_brief import plan_brief
    from shardwright.reports.brief.plan_table import PLAN_COLUMNS

    planned = replace(planned, assumptions=(*told, *planned.assumptions))

    def brief(command: str, version: str) -> Brief:
        return plan_brief(planned, command=command, version=version)

    _write(files, brief, PLAN_COLUMNS, planned.rows)


def _write(
    files: ReportPaths,
    brief: Callable[[str, str], Brief],
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """brief  of the command and the release that made the answer"""
    from shardwright.reports.brief.brief_html import brief_html
    from shardwright.reports.brief.brief_markdown import brief_markdown
    from shardwright.reports.brief.columns import dictionary_csv, table_csv
    from shardwright.requests.provenance import provenance

    said = brief(shlex.join(["shardwright", *sys.argv[1:]]), str(provenance()["version"]))
    if files.html is not None:
        write_or_print(files.html, brief_html(said))
    if files.markdown is not None:
        write_or_print(files.markdown, brief_markdown(said))
    if files.csv is not None:
        write_or_print(files.csv, table_csv(columns, rows))
        if str(files.csv) != "-":
            beside = files.csv.with_name(f"{files.csv.stem}.columns.csv")
            write_text(beside, dictionary_csv(columns))
            note(f"written: {beside}, what its columns mean")
    if files.figure is not None:
        from shardwright.reports.brief.brief_figure import has_charts, write_brief_figure

        if not has_charts(said):
            note(f"not written: {files.figure}, there is nothing to draw")
            return
        write_brief_figure(files.figure, said)
        note(f"written: {files.figure}")
