"""Report files of `size` and `plan`: HTML page, Markdown, table and figure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from profiles.document import write_text
from shardwright.console.output import need_room_for, note, write_or_print

if TYPE_CHECKING:
    from shardwright.reports.brief.brief import Brief
    from shardwright.reports.brief.columns import Column
    from shardwright.reports.brief.plan_brief import Planned
    from shardwright.requests.plan_request import ReportPaths


def need_room_for_reports(files: ReportPaths) -> None:
    """Checks before the search: raises DocumentError for a file that cannot be written, InputError
    for an unknown format of the figure."""
    need_room_for(files.html, files.markdown, files.csv, files.figure)
    if files.figure is not None:
        from shardwright.reports.brief.brief_figure import need_format

        need_format(files.figure)


def write_size_reports(files: ReportPaths, data: Mapping[str, Any]) -> None:
    """Write the report files of an answer of `size`, from its JSON with details."""
    if not files.asked:
        return
    # Here and below, since most answers are only printed.
    from shardwright.reports.brief.size_brief import size_brief
    from shardwright.reports.brief.size_table import SIZE_COLUMNS, size_rows

    _write(files, partial(size_brief, data), SIZE_COLUMNS, size_rows(data))


def write_plan_reports(
    files: ReportPaths, planned: Callable[[], Planned], price_notes: Sequence[str] = ()
) -> None:
    """Write the report files of a `plan`; `planned` makes the content if any is requested."""
    if not files.asked:
        return
    from shardwright.reports.brief.plan_brief import plan_brief
    from shardwright.reports.brief.plan_table import PLAN_COLUMNS

    content = planned()
    content = replace(content, assumptions=(*price_notes, *content.assumptions))
    _write(files, partial(plan_brief, content), PLAN_COLUMNS, content.rows)


def _write(
    files: ReportPaths,
    brief: Callable[..., Brief],
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """brief  of the command and the release that made the answer"""
    from shardwright.reports.brief.brief_html import brief_html
    from shardwright.reports.brief.brief_markdown import brief_markdown
    from shardwright.reports.brief.columns import dictionary_csv, table_csv
    from shardwright.requests.provenance import provenance

    command, version = shlex.join(["shardwright", *sys.argv[1:]]), str(provenance()["version"])
    said = brief(command=command, version=version)
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
