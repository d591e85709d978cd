"""`shardwright size`: devices to rent for a training run, with cost, duration and probabilities."""

from __future__ import annotations

import datetime
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from profiles.document import encode, to_json, write_text
from profiles.errors import InfeasibleError
from profiles.hardware.prices.owning import read_owning
from profiles.units import parse_quantity
from shardwright.console.flags import Csv, Figure, Html, Json, Markdown, Quiet
from shardwright.console.option_flags import with_options
from shardwright.console.output import Heartbeat, need_room_for, note, print_json, show
from shardwright.console.report_files import need_room_for_reports, write_size_reports
from shardwright.options.size_options import SizeOptions
from shardwright.plugins.plugin import Hook, hook
from shardwright.reports.labelled import labelled
from shardwright.requests.plan_request import ReportPaths

EXAMPLES = (
    "Examples:\n\n  shardwright size llama-3.1-70b --tokens 15T --deadline 60d --on h100-sxm,b200 "
    "--stack megatron-core\n\n  shardwright size llama-3.1-8b --budget '5M$' --on h100-sxm "
    "--nodes 32 --stack megatron-core"
)
_TIME_LIMIT = "5min"


@with_options(SizeOptions)
def size(
    options: SizeOptions,
    owned: Annotated[
        str, typer.Option("--owned", help="devices that you already have: 128xa100-sxm-80gb")
    ] = "",
    owning: Annotated[
        Path | None,
        typer.Option("--owning", help="compare with buying the devices (docs/prices.md)"),
    ] = None,
    versus: Annotated[
        list[str] | None,
        typer.Option(
            "--versus",
            help="compare with a changed request: on=b200; price-kind=spot; network=ib-xdr; ...",
        ),
    ] = None,
    diff: Annotated[
        Path | None, typer.Option("--diff", help="compare with an earlier answer (-o, --json)")
    ] = None,
    fail_over: Annotated[
        str,
        typer.Option("--fail-over", help="exit with code 4 if the run exceeds this: '20M$' or 60d"),
    ] = "",
    explain: Annotated[
        bool,
        typer.Option("--explain", help="print runners-up, trade-offs, lost time, all assumptions"),
    ] = False,
    json_output: Json = False,
    cases: Annotated[
        Path | None, typer.Option("--cases", help="predict whole runs of this CSV instead")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", help="answer to write: .json, or .csv with --cases")
    ] = None,
    html: Html = None,
    markdown: Markdown = None,
    csv: Csv = None,
    figure: Figure = None,
    time_limit: Annotated[
        str, typer.Option("--time-limit", help="limit of the search")
    ] = _TIME_LIMIT,
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="number of processes; 0 for one per core")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="seed of the simulated runs")] = 0,
    quiet: Quiet = False,
) -> None:
    """`shardwright size`."""
    # Here, since --help needs none of them.
    from shardwright.analysis.size_change import (
        Ceiling,
        changes_since,
        read_before,
        replaced,
        versus_json,
    )
    from shardwright.analysis.size_details import size_details
    from shardwright.analysis.size_json import size_json
    from shardwright.reports.brief.brief_terminal import brief_report, section_report
    from shardwright.reports.brief.size_brief import compared_sections, size_brief
    from shardwright.reports.sizing.size_summary import size_summary
    from shardwright.requests.sizing.largest_model import (
        is_list,
        largest_model,
        largest_words,
        models_of,
    )
    from shardwright.requests.sizing.owned import compare_owned, owned_cluster
    from shardwright.requests.sizing.purchase import purchase_of
    from shardwright.requests.sizing.size_flags import size_flags
    from shardwright.requests.sizing.sized import Detail, SizeSolver

    need_room_for(output)
    reports = ReportPaths(html=html, markdown=markdown, csv=csv, figure=figure)
    need_room_for_reports(reports)
    if cases is not None:
        if output is None:
            raise typer.BadParameter("--cases needs -o OUT.csv")
        hook(Hook.SIZE_CASES)(cases, output)
        return
    if not options.model:
        raise typer.BadParameter("give MODEL, or --cases FILE")
    if diff is not None and versus:
        raise typer.BadParameter("--diff and --versus cannot be combined; give one of them")
    ceiling = Ceiling(fail_over)
    before = None if diff is None else read_before(diff)
    # Errors in these are reported before the search.
    owning_read = None if owning is None else read_owning(owning)
    if owned:
        owned_cluster(owned)
    every = explain or json_output or reports.asked or output is not None or diff is not None
    solver = SizeSolver(
        clock=time.monotonic,
        today=datetime.date.today().isoformat(),
        limit_s=parse_quantity(time_limit, "time", where="--time-limit"),
        workers=workers or os.cpu_count() or 1,
        seed=seed,
        detail=Detail.ALL if every else Detail.SUMMARY,
    )
    largest = ""
    with Heartbeat("sizing", quiet=quiet or json_output):
        if is_list(options.model):
            models = models_of(options.model)
            tried = largest_model(options, models, solver)
            largest, sized = largest_words(tried, len(models)), tried[-1].sized
            options = replace(options, model=tried[-1].model)
        else:
            sized = solver.solve(size_flags(options))
        others = [
            solver.of_best().solve(size_flags(replaced(options, text))) for text in versus or ()
        ]
        beside = compare_owned(owned, sized, clock=time.monotonic) if owned else None
        bought = None if owning_read is None else purchase_of(owning_read, sized)
    data = size_json(sized.question, sized.answer, sized.published)
    if largest:
        data["models"] = [
            {"model": each.model, "parameters": each.parameters, "status": each.sized.answer.status}
            for each in tried
        ]
    if others:
        data["versus"] = [
            versus_json(text, sized, other)
            for text, other in zip(versus or (), others, strict=True)
        ]
    if before is not None:
        data["diff"] = encode(changes_since(before, data))
    if beside is not None:
        data["owned"] = encode(beside)
    if bought is not None:
        data["owning"] = encode(bought)
    data |= size_details(sized.question, sized.answer, seed=seed, runs=solver.runs)
    write_size_reports(reports, data)
    if output is not None:
        write_text(output, to_json(data))
    if json_output:
        print_json(data)
    else:
        if explain or sized.answer.best is None:
            if largest:
                show(labelled("Model   ", largest))
            show(brief_report(size_brief(data)))
        else:
            compared = list(zip(versus or (), others, strict=True))
            show(size_summary(sized, compared, largest=largest))
            for section in compared_sections(data | {"versus": None}):
                show(Group(Text(""), section_report(section)))
        if output is not None:
            note(f"written: {output}")
    if sized.answer.best is None:
        on = options.on or "the usual devices"
        raise InfeasibleError(f"no listed option trains {options.model} on {on} within the limits")
    ceiling.check(sized.answer.best)
