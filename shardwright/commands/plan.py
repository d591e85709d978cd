"""`shardwright plan`: passes one request to its search, or many requests to a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.console.flags import Csv, Figure, Html, Json, Local, Markdown, Quiet
from shardwright.console.option_flags import with_options
from shardwright.options.plan_options import PlanOptions

EXAMPLES = (
    "Examples:\n\n  shardwright plan llama-3.1-70b --on 16x8xh100-sxm "
    "--seq 8192\n\n  shardwright plan llama-3.1-405b --on 2048x8xh100-sxm --global-batch 2048 "
    "--seq 8192 --stack megatron-core --tp 4,8 -o layout.json"
)


@with_options(PlanOptions)
def plan(
    options: PlanOptions,
    imported: Annotated[
        Path | None,
        typer.Option("--from", help="rank single changes of an imported run by their gain"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", help="plan file to write; a folder for sweeps")
    ] = None,
    html: Html = None,
    markdown: Markdown = None,
    csv: Csv = None,
    figure: Figure = None,
    json_output: Json = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="print formulas, sources and sensitivities")
    ] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="do not use the cache of answers")
    ] = False,
    questions: Annotated[
        Path | None, typer.Option("--questions", help="sweep: file of requests (docs/sweeps.md)")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="sweep: number of processes")
    ] = None,
    ray: Annotated[
        str | None, typer.Option("--ray", metavar="ADDRESS", help="sweep: use this Ray cluster")
    ] = None,
    sort: Annotated[
        str,
        typer.Option(help="sweep: order of the table: step, cost, mfu, tokens, memory"),
    ] = "step",
    local: Local = None,
    quiet: Quiet = False,
) -> None:
    """`shardwright plan`."""
    # Here, since --help needs none of them.
    from datetime import date

    from shardwright.console.output import Heartbeat, need_room_for
    from shardwright.console.report_files import need_room_for_reports
    from shardwright.requests.local_paths import local_profile
    from shardwright.requests.plan_choices import axes_of_options, requested_options
    from shardwright.requests.plan_request import AnswerOutput, ReportPaths, plan_request

    if imported is not None:
        from shardwright.plugins.plugin import Hook, hook

        plan_from_import = hook(Hook.PLAN_FROM)
        precisions = tuple(options.precision.split(",")) if options.precision else ()
        plan_from_import(imported, on=options.on, precisions=precisions, json_output=json_output)
        return
    axes_of_options(options)  # errors of options come first, in sweeps too
    profile_file, today = local or local_profile(), date.today().isoformat()
    answer_output = AnswerOutput(
        file=output,
        json=json_output,
        explain=explain,
        quiet=quiet,
        cache=not no_cache,
        reports=ReportPaths(html=html, markdown=markdown, csv=csv, figure=figure),
    )
    if questions or workers or ray or "," in options.model + options.on + options.price:
        # Here, since only sweeps need workers and tables.
        from profiles.hardware.prices.price_file import offers_with
        from shardwright.commands.plan_many import Sweep, plan_many

        requested_options(options)
        sweep = Sweep(
            output=answer_output,
            workers=workers,
            ray=ray,
            sort=sort,
            local=profile_file,
            offers=None if options.prices is None else offers_with(options.prices),
            today=today,
        )
        files = {"--html": html, "--markdown": markdown, "--csv": csv, "--figure": figure}
        plan_many(questions, options, sweep, refused={"--explain": explain, **files})
        return
    if sort != "step":
        raise typer.BadParameter(f"--sort {sort} orders the table of a sweep; this is one request")
    if not options.model or not options.on:
        raise typer.BadParameter("give MODEL and --on, or --questions FILE")
    need_room_for(output)
    need_room_for_reports(answer_output.reports)
    from shardwright.commands.plan_one import plan_one

    with Heartbeat(options.model, quiet=quiet or json_output):
        request = plan_request(options, profile=profile_file, today=today)
    plan_one(request, answer_output)
