"""The command line. Typer and rich only at import; everything else when a command runs."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Plan, predict, run and verify distributed training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


class Precision(StrEnum):
    """Precision of the arithmetic."""

    BF16 = "bf16"
    FP32 = "fp32"
    FP16 = "fp16"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"


class Optimizer(StrEnum):
    """Optimizers that the cost model knows."""

    ADAMW = "adamw"
    SGD = "sgd"


class Pareto(StrEnum):
    """What a front sets against the step time."""

    MEMORY = "memory"
    USD = "usd"


class Solver(StrEnum):
    """How a cell is solved exactly."""

    AUTO = "auto"
    DP = "dp"
    ILP = "ilp"


Model = Annotated[
    str, typer.Argument(help="shipped name, path of a config.json, or package.module:factory")
]
On = Annotated[str, typer.Option("--on", help="4x8xh100-sxm, a cluster file, or local")]
Local = Annotated[
    Path | None, typer.Option("--local", help="file of this machine's profile (--on local)")
]
Seq = Annotated[int | None, typer.Option("--seq", help="tokens per sequence")]
Json = Annotated[bool, typer.Option("--json", help="machine output on stdout")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="no progress")]


@app.command(
    epilog=(
        "Examples:\n\n  shardwright fit llama-3.1-8b\n\n  shardwright fit ./config.json --seq 4096"
    )
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


@app.command(
    epilog=(
        "Examples:\n\n  shardwright plan llama-3.1-70b --on 16x8xh100-sxm --global-batch 1024 "
        "--seq 8192\n\n  shardwright plan llama-3.1-405b --on 2048x8xh100-sxm --global-batch 2048 "
        "--seq 8192 --stack megatron-core --tp 4,8 -o layout.json"
    )
)
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
        typer.Option(help="plan for megatron-core, nanotron, ... from the model's figures"),
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
    time_limit: Annotated[str | None, typer.Option("--time-limit", help="30s, 2min")] = None,
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
            refused={"--pareto": pareto, "--time-limit": time_limit, "--explain": explain},
        )
        return
    if not model or not on or global_batch is None:
        raise typer.BadParameter("give MODEL, --on and --global-batch, or --questions FILE")
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


@app.command(
    epilog=(
        "Examples:\n\n  shardwright predict plan.json --explain\n\n  shardwright predict plan.json "
        "--html report.html --trace trace.json"
    )
)
def predict(
    plan_file: Annotated[Path | None, typer.Argument(metavar="PLAN", help="a plan file")] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", help="a table of described runs instead of a plan")
    ] = None,
    output: Annotated[Path, typer.Option("-o", help="with --runs: the table; - for stdout")] = Path(
        "-"
    ),
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="with --runs: a file of profile --from")
    ] = None,
    explain_run: Annotated[
        str | None, typer.Option("--explain-run", metavar="ID", help="with --runs: one row in full")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="formulas and sources")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="write a report here")] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="write a Chrome trace here")] = None,
    local: Local = None,
    json_output: Json = False,
) -> None:
    """One plan in depth: where the time and the memory go, and what the numbers rest on. Or one
    prediction per row of a table of runs (--runs)."""
    if runs is None and (calibration or explain_run):
        raise typer.BadParameter("--calibration and --explain-run go with a table: --runs RUNS.csv")
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

        predict_table(runs, output)
        return
    if plan_file is None:
        raise typer.BadParameter("give a plan file, or a table of runs with --runs")
    from shardwright.commands.predict import predict as command

    command(
        plan_file, explain=explain, html=html, trace=trace, local=local, json_output=json_output
    )


@app.command(
    epilog=(
        "Examples:\n\n  shardwright profile --quick\n\n  shardwright profile --model "
        "tiny-llama-demo --seq 128 --micro-batch 4"
    )
)
def profile(
    quick: Annotated[bool, typer.Option("--quick", help="under 30 s")] = False,
    devices: Annotated[
        int | None, typer.Option("--devices", min=1, help="devices to split the machine into")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="CPU threads per device [1]")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="measure this model's blocks into the profile")
    ] = None,
    seq: Seq = None,
    micro_batch: Annotated[str, typer.Option("--micro-batch", help="4, or 1,2,4")] = "1",
    precision: Precision = Precision.FP32,
    output: Annotated[Path | None, typer.Option("-o", help="profile file")] = None,
    from_runs: Annotated[
        Path | None,
        typer.Option("--from", help="calibrate to a cluster's own runs instead: a table of runs"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="with --from: write although it does not help")
    ] = False,
    local: Local = None,
    quiet: Quiet = False,
) -> None:
    """Measure this machine; the result is what `--on local` names. Or calibrate the predictions of
    described runs to a cluster by a handful of its own (--from)."""
    if from_runs is not None:
        from shardwright.commands.calibrate import calibrate

        calibrate(from_runs, output, force=force)
        return
    from shardwright.commands.profile import profile as command

    command(
        quick=quick,
        devices=devices,
        threads=threads,
        model=model,
        seq=seq,
        micro_batch=micro_batch,
        precision=precision.value,
        output=output or local,
        quiet=quiet,
    )


@app.command(
    epilog=(
        "Examples:\n\n  shardwright run plan.json --steps 20\n\n  shardwright run plan.json "
        "--model mypkg.model:build --check"
    )
)
def run(
    plan_file: Annotated[
        Path, typer.Argument(metavar="PLAN", help="a plan file, or a sharding file of `shard`")
    ],
    model: Annotated[str, typer.Option("--model", help="where it is not the plan's own name")] = "",
    steps: Annotated[int, typer.Option(min=1, help="measured steps")] = 10,
    check: Annotated[bool, typer.Option("--check", help="compare loss and every gradient")] = False,
    output: Annotated[Path, typer.Option("-o", help="write the measurement here")] = Path(
        "run.json"
    ),
    processes: Annotated[int | None, typer.Option("--processes", min=1)] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    timeout: Annotated[str, typer.Option(help="longest wait of a rank")] = "300s",
    any_machine: Annotated[
        bool, typer.Option("--any-machine", help="although it was planned for another machine")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run a plan through torchrun on this machine and measure it; of a sharding file compare
    values, gradients and collectives with what was planned."""
    from shardwright.commands.run import run as command

    command(
        plan_file,
        model=model,
        steps=steps,
        check=check,
        output=output,
        processes=processes,
        device=device,
        timeout=timeout,
        any_machine=any_machine,
        quiet=quiet,
    )


@app.command(
    epilog=(
        "Examples:\n\n  shardwright shard llama-3.1-70b --block LlamaDecoderLayer --on 8xh100-sxm "
        "--mesh 8 --seq 8192\n\n  shardwright shard ./config.json --on 8xh100-sxm --mesh 2x4 "
        "--micro-batch 2 --memory 40GiB -o sharding.json"
    )
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


@app.command(
    epilog=(
        "Examples:\n\n  shardwright compare plan.json run.json --html report.html\n\n  shardwright "
        "compare old.json new.json --markdown diff.md"
    )
)
def compare(
    first: Annotated[Path, typer.Argument(help="a plan file")],
    second: Annotated[Path, typer.Argument(help="a run of it, or another plan file")],
    markdown: Annotated[Path | None, typer.Option("--markdown", help="- for stdout")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="write a report here")] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="write a Chrome trace here")] = None,
    local: Local = None,
    json_output: Json = False,
    fail_over: Annotated[
        str | None, typer.Option("--fail-over", help="15%: exit 4 where the step is further off")
    ] = None,
) -> None:
    """Predicted against measured, part by part; or the difference of two plans."""
    from shardwright.commands.compare import compare as command

    command(
        first,
        second,
        markdown=markdown,
        html=html,
        trace=trace,
        local=local,
        json_output=json_output,
        fail_over=fail_over,
    )


@app.command(
    epilog=(
        "Examples:\n\n  shardwright validate\n\n  shardwright validate runs.csv --cross-validate "
        "--markdown accuracy.md"
    )
)
def validate(
    table: Annotated[
        Path | None, typer.Argument(metavar="RUNS", help="a table of runs [the project's own]")
    ] = None,
    failed: Annotated[
        Path | None, typer.Option("--failed", help="a table of layouts that ran out of memory")
    ] = None,
    cross_validate: Annotated[
        bool, typer.Option("--cross-validate", help="refit without the rows that are predicted")
    ] = False,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="write the page here")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="write a page here")] = None,
) -> None:
    """Predictions beside what others measured: errors, intervals, choices, by source."""
    from shardwright.commands.validate import validate as command

    command(table, failed=failed, cross_validate=cross_validate, markdown=markdown, html=html)


@app.command(epilog="Examples:\n\n  shardwright catalog\n\n  shardwright catalog show h200-sxm")
def catalog(
    action: Annotated[str, typer.Argument(help="list or show")] = "list",
    name: Annotated[str, typer.Argument(help="a device")] = "",
    json_output: Json = False,
) -> None:
    """The devices that are known, with every number's source."""
    from shardwright.commands.catalog import catalog as command

    command(action, name, json_output=json_output)


@app.command(epilog="Examples:\n\n  shardwright demo\n\n  shardwright demo --output /tmp/tour")
def demo(
    output: Annotated[Path, typer.Option("--output", help="folder for what it writes")] = Path(
        "demo-output"
    ),
) -> None:
    """The whole way once on this machine: profile, plan, run on two processes, compare."""
    from shardwright.demo import tour

    tour(output)


def main() -> None:
    """Entry point: the command, then the end of the process with its status."""
    from planner.leave import leave

    try:
        _run()
    except SystemExit as stop:
        leave(stop.code if isinstance(stop.code, int) else 0)
    leave(0)


def _run() -> None:
    """The command; turns errors into one paragraph on stderr and an exit status."""
    from profiles.errors import ShardwrightError

    try:
        # typer gives Ctrl-C (130) and typer.Exit back as the status that they stand for.
        status = app(standalone_mode=False)
        if status == 130:
            raise KeyboardInterrupt
        if isinstance(status, int):
            sys.exit(status)
    except ShardwrightError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted; nothing half-written is left")
        sys.exit(130)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except Exception as error:
        usage = getattr(error, "format_message", None)
        if usage is not None:
            _complain(usage())
            sys.exit(2)
        if os.environ.get("SHARDWRIGHT_TRACEBACK"):
            raise
        _complain(
            f"this is a fault of Shardwright's, not yours: {type(error).__name__}: {error}. Please "
            "report it with the command and your files"
        )
        sys.exit(1)


def _complain(message: str) -> None:
    from rich.text import Text

    from shardwright.report.terminal import console

    console(stderr=True).print(Text.assemble(("error: ", "bold red"), message))


if __name__ == "__main__":
    main()
