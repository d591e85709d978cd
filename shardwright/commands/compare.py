"""`shardwright compare`: compares a plan with a measurement, a training log or another plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiles.document import read_document, read_mapping, schema_name
from profiles.errors import DocumentError, InputError, ToleranceError
from shardwright.console.flags import Figure, Html, Json, Local, Markdown, Trace
from shardwright.console.output import need_room_for, print_json, show, write_or_print
from shardwright.plugins.plugin import Hook, hook
from simulator.values.measurement import MEASUREMENT_SCHEMA, Measurement
from simulator.values.plan import PLAN_SCHEMA

EXAMPLES = (
    "Examples:\n\n  shardwright compare plan.json run.json --html report.html\n\n  shardwright "
    "compare old.json new.json --markdown diff.md"
)


def compare(
    first: Annotated[Path, typer.Argument(help="plan file; with --log also an imported run")],
    second: Annotated[
        Path | None, typer.Argument(help="measurement of `run`, or another plan file")
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option("--log", help="training log, or a profile of it; repeatable"),
    ] = None,
    markdown: Markdown = None,
    html: Html = None,
    trace: Trace = None,
    figure: Figure = None,
    on: Annotated[str, typer.Option("--on", help="with --log: cluster of an imported run")] = "",
    local: Local = None,
    json_output: Json = False,
    fail_over: Annotated[
        str | None,
        typer.Option(
            "--fail-over", help="exit with code 4 if the step differs by more than this: 15%"
        ),
    ] = None,
) -> None:
    """`shardwright compare`: compares a plan with a measurement, a training log or another plan."""
    # Here, since --help needs none of them.
    from planner.layout.layout_answer import LAYOUT_SCHEMA
    from shardwright.analysis.comparison import compare_run, comparison_data
    from shardwright.analysis.plan_diff import diff_plans, plan_diff_data
    from shardwright.commands.predict import write_reports
    from shardwright.reports.brief.brief_markdown import section_markdown
    from shardwright.reports.brief.brief_terminal import section_report
    from shardwright.reports.brief.comparison_section import comparison_section, diff_section
    from shardwright.requests.opened_plan import open_plan

    need_room_for(markdown, html, trace, figure)
    if log or second is None:
        if not log or second is not None:
            raise InputError(
                "give a second file (a run or a plan) or a training log (--log), not both"
            )
        allowed = None if fail_over is None else tolerance(fail_over)
        compare_with_logs = hook(Hook.COMPARE_LOG)
        compare_with_logs(first, log, json_output=json_output, fail_over=allowed, on=on)
        return
    if on:
        raise InputError(
            "--on: only an imported run, compared with a log (--log), needs devices; leave it out"
        )
    opened = open_plan(first)
    data = read_mapping(second)
    tag = str(data.get("schema", ""))
    if schema_name(tag) in map(schema_name, (PLAN_SCHEMA, LAYOUT_SCHEMA)):
        if any(given is not None for given in (html, trace, figure, fail_over)):
            raise InputError(
                f"--html, --trace, --figure and --fail-over need a run, but {second} is a plan; "
                "pass the run.json of a run, or leave them out"
            )
        diff = diff_plans(opened.answer, open_plan(second).answer)
        if markdown is not None:
            write_or_print(markdown, section_markdown(diff_section(diff)))
        elif json_output:
            print_json(plan_diff_data(diff))
        else:
            show(section_report(diff_section(diff)))
        return
    if tag != MEASUREMENT_SCHEMA:
        raise DocumentError(
            f"{second} is neither a plan nor a run: its schema is {tag or 'missing'!r}; pass what "
            "`shardwright plan -o` or `shardwright run -o` wrote"
        )
    measured = read_document(second, Measurement, schema=MEASUREMENT_SCHEMA)
    comparison = compare_run(opened.planned, measured)
    write_reports(opened, measured, html=html, trace=trace, figure=figure, local=local)
    if markdown is not None:
        write_or_print(markdown, section_markdown(comparison_section(comparison)))
    elif json_output:
        print_json(comparison_data(comparison))
    else:
        show(section_report(comparison_section(comparison)))
    if fail_over is not None:
        allowed = tolerance(fail_over)
        if abs(comparison.step.error) > allowed:
            raise ToleranceError(
                f"the predicted step is {comparison.step.error:+.1%} off the measured one, "
                f"--fail-over allows {allowed:.0%}"
            )


def tolerance(text: str) -> float:
    """`15%` as 0.15; raises InputError."""
    try:
        value = float(text.rstrip("% ")) / 100
    except ValueError:
        raise InputError(f"--fail-over {text!r} is not a percentage; write 15%") from None
    if not 0 <= value < float("inf"):
        raise InputError(f"--fail-over must be 0 or more and finite, got {text!r}; write 15%")
    return value
