"""What a plan or a described run comes to, beside what was measured: `predict`, `compare`,
`validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.flags.outputs import need_room_for
from shardwright.flags.shared import Json, Local

PREDICT_EXAMPLES = (
    "Examples:\n\n  shardwright predict plan.json --explain\n\n  shardwright predict plan.json "
    "--html report.html --trace trace.json"
)
COMPARE_EXAMPLES = (
    "Examples:\n\n  shardwright compare plan.json run.json --html report.html\n\n  shardwright "
    "compare old.json new.json --markdown diff.md"
)
VALIDATE_EXAMPLES = (
    "Examples:\n\n  shardwright validate\n\n  shardwright validate runs.csv --cross-validate "
    "--markdown accuracy.md"
)


def predict(
    plan_file: Annotated[Path | None, typer.Argument(metavar="PLAN", help="a plan file")] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", help="a table of described runs instead of a plan")
    ] = None,
    modules: Annotated[
        Path | None,
        typer.Option("--modules", help="a table of modules: factory, arguments, device"),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", help="with --runs, --modules: the table; - for stdout")
    ] = Path("-"),
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="with --runs: a file of profile --from")
    ] = None,
    traced: Annotated[
        bool,
        typer.Option("--traced", help="with --runs: build and trace each run's architecture"),
    ] = False,
    explain_run: Annotated[
        str | None, typer.Option("--explain-run", metavar="ID", help="with --runs: one row in full")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="formulas and sources")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="write a report here")] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="write a Chrome trace here")] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="a page for print: .pdf, .png or .svg")
    ] = None,
    local: Local = None,
    json_output: Json = False,
) -> None:
    """One plan in depth: where the time and the memory go, and what the numbers rest on. Or one
    prediction per row of a table of runs (--runs) or of modules (--modules)."""
    need_room_for(output, html, trace, figure)
    if modules is not None:
        if plan_file is not None or runs is not None:
            raise typer.BadParameter("--modules goes without a plan and without --runs")
        from shardwright.commands.predict_modules import predict_module_table

        predict_module_table(modules, output)
        return
    if runs is None and (calibration or explain_run):
        raise typer.BadParameter("--calibration and --explain-run go with a table: --runs RUNS.csv")
    if traced and (runs is None or calibration or explain_run):
        raise typer.BadParameter(
            "--traced goes with a table, --runs RUNS.csv, without --calibration and --explain-run"
        )
    if runs is not None and explain_run is not None:
        from shardwright.commands.explain_run import explain_row

        explain_row(runs, explain_run, calibration)
        return
    if runs is not None and calibration is not None:
        from shardwright.commands.calibrate import predict_calibrated

        predict_calibrated(runs, output, calibration)
        return
    if runs is not None:
        from shardwright.commands.predict_runs import predict_table

        predict_table(runs, output, traced=traced)
        return
    if plan_file is None:
        raise typer.BadParameter(
            "give a plan file, a table of runs with --runs or of modules with --modules"
        )
    from shardwright.commands.predict import predict as command

    command(
        plan_file,
        explain=explain,
        html=html,
        trace=trace,
        figure=figure,
        local=local,
        json_output=json_output,
    )


def compare(
    first: Annotated[Path, typer.Argument(help="a plan file")],
    second: Annotated[Path, typer.Argument(help="a run of it, or another plan file")],
    markdown: Annotated[Path | None, typer.Option("--markdown", help="- for stdout")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="write a report here")] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="write a Chrome trace here")] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="a page for print: .pdf, .png or .svg")
    ] = None,
    local: Local = None,
    json_output: Json = False,
    fail_over: Annotated[
        str | None, typer.Option("--fail-over", help="15%: exit 4 where the step is further off")
    ] = None,
) -> None:
    """Predicted against measured, part by part; or the difference of two plans."""
    need_room_for(markdown, html, trace, figure)
    from shardwright.commands.compare import compare as command

    command(
        first,
        second,
        markdown=markdown,
        html=html,
        trace=trace,
        figure=figure,
        local=local,
        json_output=json_output,
        fail_over=fail_over,
    )


def validate(
    table: Annotated[
        Path | None,
        typer.Argument(metavar="RUNS", help="a table of runs (default: the project's own)"),
    ] = None,
    failed: Annotated[
        Path | None, typer.Option("--failed", help="a table of layouts that ran out of memory")
    ] = None,
    cross_validate: Annotated[
        bool, typer.Option("--cross-validate", help="refit without the rows that are predicted")
    ] = False,
    traced: Annotated[
        bool, typer.Option("--traced", help="also from modules that are built and traced")
    ] = False,
    modules: Annotated[
        Path | None,
        typer.Option("--modules", help="a table of measured steps of modules instead of runs"),
    ] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="write the page here")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="write a page here")] = None,
) -> None:
    """Predictions beside what others measured: errors, intervals, choices, by source."""
    need_room_for(markdown, html)
    if modules is not None:
        if table is not None or failed or cross_validate or traced or html:
            raise typer.BadParameter("--modules goes with --markdown alone")
        from shardwright.commands.validate_modules import validate_modules

        validate_modules(modules, markdown)
        return
    from shardwright.commands.validate import validate as command

    command(
        table,
        failed=failed,
        cross_validate=cross_validate,
        traced=traced,
        markdown=markdown,
        html=html,
    )
