"""What to build and how: `fit`, `plan`, `shard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiles.units import parse_quantity
from shardwright.flags.outputs import need_room_for
from shardwright.flags.shared import (
    Json,
    Local,
    Model,
    Optimizer,
    Pareto,
    Precision,
    Quiet,
    Seq,
    Solver,
    samples,
)

FIT_EXAMPLES = (
    "Examples:\n\n  shardwright fit llama-3.1-8b\n\n  shardwright fit ./config.json --seq 4096"
)
PLAN_EXAMPLES = (
    "Examples:\n\n  shardwright plan llama-3.1-70b --on 16x8xh100-sxm --global-batch 1024 "
    "--seq 8192\n\n  shardwright plan llama-3.1-405b --on 2048x8xh100-sxm --global-batch 2048 "
    "--seq 8192 --stack megatron-core --tp 4,8 -o layout.json"
)
SHARD_EXAMPLES = (
    "Examples:\n\n  shardwright shard llama-3.1-70b --block LlamaDecoderLayer --on 8xh100-sxm "
    "--mesh 8 --seq 8192\n\n  shardwright shard ./config.json --on 8xh100-sxm --mesh 2x4 "
    "--micro-batch 2 --memory 40GiB -o sharding.json"
)


def fit(
    model: Model,
    seq: Seq = None,
    micro_batch: Annotated[int, typer.Option("--micro-batch", min=1)] = 1,
    precision: Precision = Precision.BF16,
    json_output: Json = False,
) -> None:
    """What a model is made of, and on which devices its training fits."""
    from shardwright.commands.fit import fit as command

    command(model, seq, micro_batch, precision.value, json_output=json_output)


def plan(
    model: Annotated[
        str, typer.Argument(help="model (see `fit`); a list with commas: a sweep")
    ] = "",
    on: Annotated[
        str,
        typer.Option("--on", help="4x8xh100-sxm, a cluster file, local; a list: a sweep"),
    ] = "",
    global_batch: Annotated[
        int | None,
        typer.Option(
            "--global-batch", parser=samples, metavar="COUNT", help="samples per step: 1024, or 4M"
        ),
    ] = None,
    seq: Seq = None,
    micro_batch: Annotated[str | None, typer.Option("--micro-batch", help="4, or 1,2,4")] = None,
    tp: Annotated[
        str | None, typer.Option(help="tensor-parallel degree: 4 fixes it, 1,2 allows only these")
    ] = None,
    pp: Annotated[
        str | None, typer.Option(help="pipeline stages: 4 fixes it, 1,2 allows only these")
    ] = None,
    dp: Annotated[
        str | None, typer.Option(help="data-parallel replicas: 4 fixes it, 1,2 allows only these")
    ] = None,
    cp: Annotated[str | None, typer.Option(help="with --stack: context-parallel degree")] = None,
    ep: Annotated[str | None, typer.Option(help="with --stack: expert-parallel degree")] = None,
    zero: Annotated[str | None, typer.Option(help="ZeRO stages: 0,1,2,3")] = None,
    vpp: Annotated[str | None, typer.Option(help="stages per rank, interleaved")] = None,
    recompute: Annotated[str | None, typer.Option(help="none,attention,full")] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="free: gpipe,1f1b,interleaved; by name also zb-h1,zbv,v-half,dualpipev"),
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(help="plan for megatron-core, nanotron, ..., a list, or any framework"),
    ] = None,
    fit_risk: Annotated[
        str | None,
        typer.Option("--fit-risk", help="with --stack: probability of running out of memory [10%]"),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="with --stack: a file of profile --from")
    ] = None,
    pareto: Annotated[
        Pareto | None, typer.Option(help="with --stack: the trade-off of step time against this")
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="bf16, fp16, fp32; with --stack also fp8, mxfp8, nvfp4, a list, or any "
            "(default: bf16, on a CPU fp32)"
        ),
    ] = "",
    order: Annotated[
        str | None, typer.Option(help="with --stack: tp-cp-dp-pp, tp-cp-pp-dp (innermost first)")
    ] = None,
    reduce: Annotated[
        str | None,
        typer.Option(help="with --stack: gradients reduced in fp32 or bf16"),
    ] = None,
    compress: Annotated[
        str | None,
        typer.Option(help="with --stack: compressed gradients: powersgd-4, topk-0.01"),
    ] = None,
    local_steps: Annotated[
        str | None, typer.Option(help="with --stack: steps between exchanges (DiLoCo), 1,50")
    ] = None,
    local_workers: Annotated[
        str | None,
        typer.Option(help="with --stack: groups that synchronise rarely (DiLoCo) (default: sites)"),
    ] = None,
    wide_layers: Annotated[
        str | None, typer.Option(help="with --stack: first and last layers that stay in bf16")
    ] = None,
    optimizer_offload: Annotated[
        bool,
        typer.Option("--optimizer-offload", help="with --stack: states may be in host memory"),
    ] = False,
    activation_offload: Annotated[
        str | None,
        typer.Option(help="with --stack: share of activations in host memory, or any"),
    ] = None,
    optimizer: Optimizer = Optimizer.ADAMW,
    solver: Solver = Solver.AUTO,
    output: Annotated[Path | None, typer.Option("-o", help="write the plan file here")] = None,
    json_output: Json = False,
    explain: Annotated[bool, typer.Option("--explain", help="formulas and sources")] = False,
    time_limit: Annotated[
        str | None, typer.Option("--time-limit", help="of the search: 30s, 10min [60s]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    price: Annotated[
        str, typer.Option(help="on-demand, spot, reserved-1y, reserved-3y, or $ per device-hour")
    ] = "on-demand",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="ignore cached answers")] = False,
    questions: Annotated[
        Path | None, typer.Option("--questions", help="a sweep from a file (docs/sweeps.md)")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="a sweep on processes of this machine")
    ] = None,
    ray: Annotated[
        str | None, typer.Option("--ray", metavar="ADDRESS", help="a sweep on a Ray cluster")
    ] = None,
    sort: Annotated[
        str,
        typer.Option(help="order of a sweep's table: step, cost, mfu, tokens, memory"),
    ] = "step",
    local: Local = None,
    quiet: Quiet = False,
) -> None:
    """The best plan for a model on a cluster, with its bound and its runners-up. Or the plans of
    many models, clusters and prices: a sweep, into the folder -o. Missing folders are made."""
    from planner.layout.run_option import AskedOptions
    from shardwright.asking.axes import axes_of
    from shardwright.asking.plan_options import asked_options, need_stack, risk_of

    axes = axes_of(
        {
            "micro_batch": micro_batch,
            "tp": tp,
            "pp": pp,
            "dp": dp,
            "cp": cp,
            "ep": ep,
            "zero": zero,
            "vpp": vpp,
            "recompute": recompute,
            "schedule": schedule,
        }
    )
    choices = {
        "order": order,
        "reduce": reduce,
        "compress": compress,
        "local_steps": local_steps,
        "local_workers": local_workers,
        "wide_layers": wide_layers,
        "optimizer_offload": "yes" if optimizer_offload else None,
        "activation_offload": activation_offload,
    }
    options = asked_options(choices, precision) if stack else AskedOptions()
    if not stack:
        need_stack(choices, precision)
    from shardwright.asking.places import local_profile

    profile_file = local or local_profile()
    if questions or workers or ray or "," in model + on + price:
        from shardwright.commands.sweep import SweepFlags, grid_of, plan_many

        plan_many(
            questions,
            grid_of(
                questions,
                model,
                on,
                global_batch,
                seq,
                pins=axes,
                options={name: text for name, text in choices.items() if text is not None},
                stack=stack or "",
                prices=price,
                precision=precision,
                optimizer=optimizer.value,
                solver=solver.value,
                seed=seed,
            ),
            SweepFlags(
                folder=output,
                workers=workers,
                ray=ray,
                sort=sort,
                cache=not no_cache,
                local=profile_file,
                json_output=json_output,
                quiet=quiet,
            ),
            refused={
                "--pareto": pareto,
                "--time-limit": time_limit,
                "--explain": explain,
                "--fit-risk": fit_risk,
                "--calibration": calibration,
            },
        )
        return
    if sort != "step":
        raise typer.BadParameter(f"--sort {sort} orders the table of a sweep, this is one question")
    if not model or not on or global_batch is None:
        raise typer.BadParameter("give MODEL, --on and --global-batch, or --questions FILE")
    need_room_for(output)
    from planner.tolerances import DEFAULT_TIME_LIMIT_S
    from profiles.hardware.catalogue.catalog import get_cluster
    from shardwright.asking.plan_request import AnswerOutput, PlanRequest
    from shardwright.commands.plan import plan as command

    limit_s = DEFAULT_TIME_LIMIT_S
    if time_limit:
        limit_s = parse_quantity(time_limit, "time", where="--time-limit")
    command(
        PlanRequest(
            model=model,
            on=on,
            cluster=get_cluster(on, local=profile_file),
            global_batch=global_batch,
            seq=seq,
            axes=axes,
            options=options,
            stack=stack or "",
            pareto=pareto.value if pareto else "",
            fit_risk=None if fit_risk is None else risk_of(fit_risk),
            calibration=calibration,
            precision=precision,
            optimizer=optimizer.value,
            solver=solver.value,
            seed=seed,
            time_limit_s=limit_s,
            price=price,
        ),
        AnswerOutput(
            file=output, json=json_output, explain=explain, quiet=quiet, cache=not no_cache
        ),
    )


def shard(
    model: Model,
    on: Annotated[str, typer.Option("--on", help="8xh100-sxm, a cluster file, or local")],
    mesh: Annotated[str, typer.Option("--mesh", help="8, or 2x4: devices of one or two axes")],
    block: Annotated[
        str, typer.Option("--block", help="class or path of one block (default: the whole model)")
    ] = "",
    seq: Seq = None,
    micro_batch: Annotated[int, typer.Option("--micro-batch", min=1)] = 1,
    micro_batches: Annotated[
        int, typer.Option("--micro-batches", min=1, help="micro-batches per gradient reduction")
    ] = 1,
    memory: Annotated[
        str | None,
        typer.Option("--memory", help="memory per device: 40GiB (default: the device's)"),
    ] = None,
    precision: Precision = Precision.BF16,
    time_limit: Annotated[str, typer.Option("--time-limit", help="of the search")] = "20s",
    output: Annotated[Path | None, typer.Option("-o", help="write the sharding file here")] = None,
    json_output: Json = False,
    explain: Annotated[bool, typer.Option("--explain", help="every op, message, source")] = False,
    local: Local = None,
) -> None:
    """How every op of a model, or of one block, is best split over a mesh of devices: DTensor
    placements with a bound, beside Megatron's layout. `run` applies the file."""
    need_room_for(output)
    from shardwright.commands.shard import shard as command

    command(
        model,
        on,
        mesh,
        block=block,
        seq=seq,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        memory=memory,
        precision=precision.value,
        time_limit=time_limit,
        output=output,
        json_output=json_output,
        explain=explain,
        local=local,
    )
