"""`shardwright plan`: one question to the search that answers it, or the many of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.console.flags import (
    LAYOUT_OPTIMIZERS,
    Json,
    Local,
    Optimizer,
    Pareto,
    Prices,
    Quiet,
    Seq,
    Solver,
    samples,
)
from shardwright.console.layout_flags import (
    ActivationOffload,
    BasePrecision,
    CalibrationFile,
    Compress,
    FitRisk,
    LocalSteps,
    LocalWorkers,
    Lora,
    OptimizerOffload,
    Order,
    Reduce,
    Region,
    ReliabilityFile,
    WideLayers,
)
from shardwright.console.report_files import Csv, Figure, Html, Markdown

EXAMPLES = (
    "Examples:\n\n  shardwright plan llama-3.1-70b --on 16x8xh100-sxm "
    "--seq 8192\n\n  shardwright plan llama-3.1-405b --on 2048x8xh100-sxm --global-batch 2048 "
    "--seq 8192 --stack megatron-core --tp 4,8 -o layout.json"
)


def plan(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(help="name, config.json or package.module:factory; or a list")
    ] = "",
    on: Annotated[
        str,
        typer.Option("--on", help="cluster: 4x8xh100-sxm, a cluster file, or local; or a list"),
    ] = "",
    global_batch: Annotated[
        int | None,
        typer.Option(
            "--global-batch",
            parser=samples,
            metavar="COUNT",
            help="samples per step: 1024 or 4M (default: as published runs)",
        ),
    ] = None,
    seq: Seq = None,
    micro_batch: Annotated[
        str | None, typer.Option("--micro-batch", help="samples per micro-batch: 4 or 1,2,4")
    ] = None,
    tp: Annotated[
        str | None, typer.Option(help="tensor-parallel degree: 4, or a list 1,2,4")
    ] = None,
    pp: Annotated[str | None, typer.Option(help="pipeline-parallel degree: 4, or a list")] = None,
    dp: Annotated[str | None, typer.Option(help="data-parallel degree: 4, or a list")] = None,
    cp: Annotated[str | None, typer.Option(help="context-parallel degree (with --stack)")] = None,
    ep: Annotated[str | None, typer.Option(help="expert-parallel degree (with --stack)")] = None,
    zero: Annotated[str | None, typer.Option(help="ZeRO stage: 0, 1, 2, 3, or a list")] = None,
    vpp: Annotated[str | None, typer.Option(help="stages per pipeline rank (interleaved)")] = None,
    recompute: Annotated[
        str | None, typer.Option(help="recomputation: none, selective, full, or a list")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="gpipe, 1f1b, interleaved; only if named: zb-h1, zbv, v-half, dualpipev"),
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(
            help="framework: megatron-core, nanotron, ..., a list, or any (default: compare)"
        ),
    ] = None,
    fit_risk: FitRisk = None,
    calibration: CalibrationFile = None,
    pareto: Annotated[
        Pareto | None, typer.Option(help="print the trade-off of step time against this")
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="bf16, fp16, fp32; with --stack also fp8, mxfp8, nvfp4, a list, or any "
            "(default: bf16; fp32 on a CPU)"
        ),
    ] = "",
    order: Order = None,
    reduce: Reduce = None,
    compress: Compress = None,
    local_steps: LocalSteps = None,
    local_workers: LocalWorkers = None,
    wide_layers: WideLayers = None,
    optimizer_offload: OptimizerOffload = False,
    activation_offload: ActivationOffload = None,
    lora: Lora = 0,
    base_precision: BasePrecision = None,
    optimizer: Annotated[Optimizer, typer.Option(help="optimizer and its state")] = Optimizer.ADAMW,
    solver: Annotated[
        Solver, typer.Option(help="solver of the search block by block")
    ] = Solver.AUTO,
    imported: Annotated[
        Path | None,
        typer.Option("--from", help="rank the single changes of this imported run"),
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
    time_limit: Annotated[
        str | None,
        typer.Option("--time-limit", help="limit of the search: 30s, 10min (default: 60s)"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the search")] = 0,
    price: Annotated[
        str,
        typer.Option(help="on-demand, spot, reserved-1y, reserved-3y, or dollars per device-hour"),
    ] = "on-demand",
    prices: Prices = None,
    reliability: ReliabilityFile = None,
    region: Region = "",
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

    from shardwright.console.output import need_room_for
    from shardwright.console.report_files import need_room_for_reports
    from shardwright.requests.places import local_profile
    from shardwright.requests.plan_flags import choices_of, plan_request
    from shardwright.requests.plan_request import AnswerOutput
    from shardwright.requests.report_paths import ReportPaths

    if imported is not None:
        from shardwright.plugins.plugin import Hook, hook

        plan_from_import = hook(Hook.PLAN_FROM)
        asked = tuple(precision.split(",")) if precision else ()
        plan_from_import(imported, on=on, precisions=asked, json_output=json_output)
        return
    # By their names, None where they were not typed; paths as typer gives them to this function.
    given = dict(
        ctx.params,
        optimizer_offload="yes" if optimizer_offload else None,
        prices=prices,
        calibration=calibration,
        reliability=reliability,
    )
    choices_of(given)  # what is wrong with them is told of sweeps too
    profile_file, today = local or local_profile(), date.today().isoformat()
    answer_output = AnswerOutput(
        file=output,
        json=json_output,
        explain=explain,
        quiet=quiet,
        cache=not no_cache,
        reports=ReportPaths(html=html, markdown=markdown, csv=csv, figure=figure),
    )
    if questions or workers or ray or "," in model + on + price:
        # Here, since only sweeps need workers and tables.
        from planner.axes import AXES
        from profiles.hardware.prices.price_file import offers_with
        from shardwright.commands.plan_many import Sweep, grid_of, plan_many
        from shardwright.requests.plan_flags import typed_options
        from simulator.training_run.run.low_bits import USUAL_OPTIMIZER

        grid = grid_of(
            questions,
            model,
            on,
            global_batch,
            prices=price,
            sequence_lengths=() if seq is None else (seq,),
            precision=precision,
            optimizer=USUAL_OPTIMIZER if optimizer in LAYOUT_OPTIMIZERS else optimizer.value,
            solver=solver.value,
            seed=seed,
            pins={name: given[name] for name in AXES if given[name] is not None},
            stack=stack or "",
            options={name: x for name, x in typed_options(given).items() if x is not None},
        )
        refused = {
            "--pareto": pareto,
            "--time-limit": time_limit,
            "--explain": explain,
            "--fit-risk": fit_risk,
            "--calibration": calibration,
            "--lora": lora,
            "--reliability": reliability,
            "--region": region,
            "--html": html,
            "--markdown": markdown,
            "--csv": csv,
            "--figure": figure,
        }
        sweep = Sweep(
            output=answer_output,
            workers=workers,
            ray=ray,
            sort=sort,
            local=profile_file,
            offers=None if prices is None else offers_with(prices),
            today=today,
        )
        plan_many(questions, grid, sweep, refused=refused)
        return
    if sort != "step":
        raise typer.BadParameter(f"--sort {sort} orders the table of a sweep, this is one question")
    if not model or not on:
        raise typer.BadParameter("give MODEL and --on, or --questions FILE")
    need_room_for(output)
    need_room_for_reports(answer_output.reports)
    from shardwright.commands.plan_one import plan_one

    plan_one(plan_request(given, profile=profile_file, today=today), answer_output)
