"""`shardwright predict`, and the reports that it shares with `compare`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from planner.layout.layout_answer import LayoutFile
from profiles.document import encode, to_json, write_text
from profiles.errors import DocumentError, InputError
from shardwright.asking.executor_layouts import EXECUTOR
from shardwright.asking.named_model import import_from_here
from shardwright.asking.opened_plan import OpenedPlan, open_plan
from shardwright.commands.output import note, show
from shardwright.reports import terminal
from simulator.values.measurement import Measurement


def predict(
    path: Path,
    *,
    explain: bool,
    html: Path | None,
    trace: Path | None,
    figure: Path | None,
    local: Path | None,
    json_output: bool,
) -> None:
    """`shardwright predict`."""
    opened = open_plan(path)
    answer = opened.answer
    if isinstance(answer, LayoutFile) and answer.stack != EXECUTOR:
        if trace is not None or figure is not None:
            flag = "--trace" if trace is not None else "--figure"
            raise InputError(
                f"{flag}: {path} is a layout of {answer.stack}, whose prediction has no events; "
                "plan without --stack for a timeline"
            )
        # Here, since only layouts are predicted from figures.
        from shardwright.commands.predict_layout import predict_layout

        predict_layout(opened, answer, explain=explain, html=html, json_output=json_output)
        return
    planned = opened.planned
    if planned.plan is None or planned.prediction is None:
        raise DocumentError(f"{path} holds no plan: its status is {planned.status!r}")
    write_reports(opened, None, html=html, trace=trace, figure=figure, local=local)
    if json_output:
        sys.stdout.write(to_json(encode(planned.prediction)))
        return
    show(terminal.prediction_report(planned, explain=explain))


def write_reports(
    opened: OpenedPlan,
    measured: Measurement | None,
    *,
    html: Path | None,
    trace: Path | None,
    figure: Path | None,
    local: Path | None,
) -> None:
    """The HTML report, the Chrome trace and the page for print of a plan of our own executor, each
    where a file is named.

    local  the profile or cluster file that the plan was made on, where its name does not lead to it
    """
    answer = opened.planned
    if html is not None and answer.plan is not None and answer.prediction is not None:
        from shardwright.reports.html import report_html
        from shardwright.reports.roofline_inputs import find_roofline

        import_from_here(answer.plan.model)
        found = find_roofline(answer.plan, answer.prediction, measured, cluster_file=local)
        page = report_html(answer, measured, roofline=found, provenance=opened.provenance)
        write_text(html, page)
        note(f"written: {html}")
    if trace is not None:
        from shardwright.reports.chrome_trace import chrome_trace

        write_text(trace, json.dumps(chrome_trace(answer.prediction, measured)))
        note(f"written: {trace}; open it at ui.perfetto.dev or chrome://tracing")
    if figure is not None:
        from shardwright.reports.print_figure import write_print_figure

        write_print_figure(figure, answer, measured)
        note(f"written: {figure}")
