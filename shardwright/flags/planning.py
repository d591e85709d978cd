"""What to build and how: `fit`, `plan`, `shard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    model: Annotated[str, typer.Argument(help="as for fit; several, with commas: a sweep")] = "",
    on: Annotated[
        str, typer.Option("--on", help="4x8xh100-sxm, a cluster file, or local; several: a sweep")
    ] = "",
    global_batch: Annotated[
        int | None, typer.Option("--global-batch", help="sequences per step")
    ] = None,
    seq: Seq = None,
    micro_batch: Annotated[str | None, typer.Option("--micro-batch", help="4, or 1,2,4")] = None,
    tp: Annotated[str | None, typer.Option(help="4 pins, 1,2 restricts")] = None,
    pp: Annotated[str | None, typer.Option(help="4 pins, 1,2 restricts")] = None,
    dp: Annotated[str | None, typer.Option(help="4 pins, 1,2 restricts")] = None,
    cp: Annotated[str | None, typer.Option(help="with --stack: context parallel")] = None,
    ep: Annotated[str | None, typer.Option(help="with --stack: ranks of experts")] = None,
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
        Pareto | None, typer.Option(help="with --stack: the front of step time and this")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="bf16, fp16, fp32; with --stack: fp8, mxfp8, nvfp4, a list, or any")
    ] = "bf16",
    order: Annotated[
        str | None, typer.Option(help="with --stack: tp-cp-dp-pp, tp-cp-pp-dp (innermost first)")
    ] = None,
    reduce: Annotated[
        str | None, typer.Option(help="with --stack: gradients summed in fp32, bf16")
    ] = None,
    compress: Annotated[
        str | None, typer.Option(help="with --stack: gradients as powersgd-4, topk-0.01, none")
    ] = None,
    local_steps: Annotated[
        str | None, typer.Option(help="with --stack: steps between exchanges (DiLoCo), 1,50")
    ] = None,
    local_workers: Annotated[
        str | None, typer.Option(help="with --stack: parts that step alone [sites, or replicas]")
    ] = None,
    wide_layers: Annotated[
        str | None, typer.Option(help="with --stack: so many first and last layers in bf16")
    ] = None,
    optimizer_offload: Annotated[
        bool, typer.Option("--optimizer-offload", help="with --stack: states may be on the host")
    ] = False,
    activation_offload: Annotated[
        str | None, typer.Option(help="with --stack: shares of activations on the host, or any")
    ] = None,
    optimizer: Optimizer = Optimizer.ADAMW,
    solver: Solver = Solver.AUTO,
    output: Annotated[Path | None, typer.Option("-o", help="write the plan file here")] = None,
    json_output: Json = False,
    explain: Annotated[bool, typer.Option("--explain", help="formulas and sources")] = False,
    time_limit: Annotated[str | None, typer.Option("--time-limit", help="30s, 2min [60s]")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    price: Annotated[
        str, typer.Option(help="on-demand, spot, reserved-1y, reserved-3y, or $ per device-hour")
    ] = "on-demand",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="solve again what is known")] = False,
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
        str, typer.Option(help="of a sweep's table: step, cost, mfu, tokens, memory")
    ] = "step",
    local: Local = None,
    quiet: Quiet = False,
) -> None:
    """The best plan for a model on a cluster, with its bound and its runners-up. Or the plans of
    many models, clusters and prices: a sweep, into the folder -o."""
    axes = {
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
    options = {
        "order": order,
        "reduce": reduce,
        "compress": compress,
        "local_steps": local_steps,
        "local_workers": local_workers,
        "wide_layers": wide_layers,
        "optimizer_offload": "yes" if optimizer_offload else None,
        "activation_offload": activation_offload,
    }
    if questions or workers or ray or "," in model + on + price:
        from shardwright.commands.sweep import plan_many

        plan_many(
            questions,
            model,
            on,
            global_batch,
            seq,
            axes=axes,
            options=options,
            stack=stack or "",
            prices=price,
            precision=precision,
            optimizer=optimizer.value,
            solver=solver.value,
            seed=seed,
            folder=output,
            workers=workers,
            ray=ray,
            sort=sort,
            cache=not no_cache,
            local=local,
            json_output=json_output,
            quiet=quiet,
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
    from shardwright.commands.plan import plan as command

    command(
        model,
        on,
        global_batch,
        seq,
        axes=axes,
        options=options,
        stack=stack,
        pareto=pareto.value if pareto else None,
        fit_risk=fit_risk,
        calibration=calibration,
        precision=precision,
        optimizer=optimizer.value,
        solver=solver.value,
        output=output,
        json_output=json_output,
        explain=explain,
        time_limit=time_limit,
        seed=seed,
        local=local,
        quiet=quiet,
        price=price,
        cache=not no_cache,
    )


def shard(
    model: Model,
    on: Annotated[str, typer.Option("--on", help="8xh100-sxm, a cluster file, or local")],
    mesh: Annotated[str, typer.Option("--mesh", help="8, or 2x4: devices of one or two axes")],
    block: Annotated[
        str, typer.Option("--block", help="class or path of one block [the whole model]")
    ] = "",
    seq: Seq = None,
    micro_batch: Annotated[int, typer.Option("--micro-batch", min=1)] = 1,
    micro_batches: Annotated[
        int, typer.Option("--micro-batches", min=1, help="that share one sum of weight gradients")
    ] = 1,
    memory: Annotated[
        str | None, typer.Option("--memory", help="of a device, 40GiB [what it has]")
    ] = None,
    precision: Precision = Precision.BF16,
    time_limit: Annotated[str, typer.Option("--time-limit", help="where memory binds")] = "20s",
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
