"""`shardwright predict`, and the reports that it shares with `compare`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiles.document import encode, write_text
from profiles.errors import DocumentError, InputError
from profiles.extras import need_package
from shardwright.console.flags import Figure, Html, Json, Local, Trace
from shardwright.console.output import need_room_for, note, print_json, show
from shardwright.plugins.plugin import Hook, hook
from shardwright.requests.named_model import import_from_here
from simulator.values.measurement import Measurement

if TYPE_CHECKING:
    from planner.layout.layout_answer import LayoutFile
    from shardwright.requests.opened_plan import OpenedPlan

EXAMPLES = (
    "Examples:\n\n  shardwright predict plan.json --explain\n\n  shardwright predict plan.json "
    "--html report.html --trace trace.json"
)


def predict(
    plan_file: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="plan file or imported run")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", help="predict a table of runs (docs/runs.md)")
    ] = None,
    modules: Annotated[
        Path | None,
        typer.Option("--modules", help="predict a table of modules (docs/modules.md)"),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", help="with --runs, --modules: table to write; - for stdout")
    ] = Path("-"),
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", help="with --runs: coefficients of profile --from"),
    ] = None,
    traced: Annotated[
        bool,
        typer.Option("--traced", help="with --runs: build and trace each architecture"),
    ] = False,
    explain_run: Annotated[
        str | None,
        typer.Option("--explain-run", metavar="ID", help="with --runs: explain this row"),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="print formulas and sources")] = False,
    html: Html = None,
    on: Annotated[str, typer.Option("--on", help="cluster or device of an imported run")] = "",
    trace: Trace = None,
    figure: Figure = None,
    local: Local = None,
    json_output: Json = False,
) -> None:
    """`shardwright predict`."""
    # Here, since --help needs none of them.
    from planner.layout.layout_answer import LayoutFile
    from shardwright.reports.brief.brief_terminal import brief_report
    from shardwright.reports.brief.plan_answers import planned_plan
    from shardwright.reports.brief.plan_brief import plan_brief
    from shardwright.requests.imported_file import is_imported
    from shardwright.requests.opened_plan import open_plan
    from shardwright.requests.planned_step import refuse_devices_of_plan
    from shardwright.requests.predicted_plan import predicted_again

    need_room_for(output, html, trace, figure)
    if modules is not None:
        if plan_file is not None or runs is not None:
            raise typer.BadParameter("--modules cannot be combined with a plan or --runs")
        # Imported here, because only tables of modules need the tracer of a step on meta tensors.
        from shardwright.commands.tables.predict_modules import predict_module_table

        predict_module_table(modules, output)
        return
    if runs is None and (calibration or explain_run):
        raise typer.BadParameter("--calibration and --explain-run need --runs RUNS.csv")
    if on and runs is not None:
        raise typer.BadParameter("--on is for an imported run; a row of --runs names its device")
    if traced and (runs is None or calibration or explain_run):
        raise typer.BadParameter(
            "--traced needs --runs RUNS.csv, without --calibration and --explain-run"
        )
    if traced:
        for package in ("torch", "transformers"):
            need_package(package, "--traced", extra="hf")
    # Here, since only tables of runs are read and completed.
    if runs is not None and explain_run is not None:
        from shardwright.commands.tables.calibrate import explain_row

        explain_row(runs, explain_run, calibration)
        return
    if runs is not None:
        from shardwright.commands.tables.predict_runs import predict_table

        predict_table(runs, output, traced=traced, calibration=calibration)
        return
    if plan_file is None:
        raise typer.BadParameter(
            "give a plan file, a table of runs with --runs or of modules with --modules"
        )
    if is_imported(plan_file):
        hook(Hook.PREDICT_IMPORTED)(plan_file, on=on, json_output=json_output)
        return
    stored = open_plan(plan_file)
    refuse_devices_of_plan(on, str(plan_file))
    again = predicted_again(stored)
    if again.why_not:
        note(f"the prediction is that of the file, it cannot be computed here: {again.why_not}")
    elif again.changed:
        note(f"{again.changed}; plan again where they should agree")
    opened = again.opened
    answer = opened.answer
    if isinstance(answer, LayoutFile) and not opened.runs_here:
        if trace is not None or figure is not None:
            flag = "--trace" if trace is not None else "--figure"
            raise InputError(
                f"{flag}: {plan_file} is a layout of {answer.stack}, whose prediction has no "
                "events; plan with --stack torch for a timeline"
            )
        _predict_layout(opened, answer, explain=explain, html=html, json_output=json_output)
        return
    planned = opened.planned
    if planned.plan is None or planned.prediction is None:
        raise DocumentError(f"{plan_file} has no plan: nothing fits ({planned.status})")
    write_reports(opened, None, html=html, trace=trace, figure=figure, local=local)
    if json_output:
        print_json(encode(planned.prediction))
        return
    shown = planned_plan(planned)
    show(brief_report(plan_brief(shown if explain else replace(shown, sources=()))))


def _predict_layout(
    opened: OpenedPlan, answer: LayoutFile, *, explain: bool, html: Path | None, json_output: bool
) -> None:
    """Print the prediction of another framework's layout; with `explain`, all its terms."""
    # Here, since only layouts are predicted from figures.
    from shardwright.analysis.answer_json import layout_prediction_json
    from shardwright.reports.brief.brief_html import brief_html
    from shardwright.reports.brief.brief_terminal import brief_report
    from shardwright.reports.brief.explanation import layout_brief

    where = str(opened.path)
    page = layout_brief(where, answer, provenance=opened.provenance)
    assert answer.chosen is not None
    if html is not None:
        write_text(html, brief_html(page))
        note(f"written: {html}")
    if json_output:
        print_json(layout_prediction_json(answer.chosen))
        return
    show(brief_report(page if explain else layout_brief(where, answer, explain=False)))


def write_reports(
    opened: OpenedPlan,
    measured: Measurement | None,
    *,
    html: Path | None,
    trace: Path | None,
    figure: Path | None,
    local: Path | None,
) -> None:
    """Write the HTML report, the Chrome trace and the figure of a plan for our own executor, as far
    as files are named.

    local  the plan's profile or cluster file, if the cluster's name in the plan cannot be resolved
    """
    answer = opened.planned
    if html is not None and answer.plan is not None and answer.prediction is not None:
        from shardwright.reports.brief.plan_page import report_html
        from shardwright.reports.roofline import find_roofline

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
        from shardwright.reports.brief.brief_figure import write_brief_figure
        from shardwright.reports.brief.plan_page import plan_page

        write_brief_figure(figure, plan_page(answer, measured))
        note(f"written: {figure}")
