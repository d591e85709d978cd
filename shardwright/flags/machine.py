"""This machine, and what is known of others: `profile`, `run`, `catalog`, `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.flags.outputs import need_room_for
from shardwright.flags.shared import Json, Local, Precision, Quiet, Seq

PROFILE_EXAMPLES = (
    "Examples:\n\n  shardwright profile --quick\n\n  shardwright profile --model "
    "tiny-llama-demo --seq 128 --micro-batch 4"
)
RUN_EXAMPLES = (
    "Examples:\n\n  shardwright run plan.json --steps 20\n\n  shardwright run plan.json "
    "--model mypkg.model:build --check"
)
CATALOG_EXAMPLES = "Examples:\n\n  shardwright catalog\n\n  shardwright catalog show h200-sxm"
DEMO_EXAMPLES = "Examples:\n\n  shardwright demo\n\n  shardwright demo --output /tmp/tour"


def profile(
    quick: Annotated[bool, typer.Option("--quick", help="under 30 s [5 minutes]")] = False,
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
        bool, typer.Option("--force", help="with --from: write even if it does not help")
    ] = False,
    local: Local = None,
    quiet: Quiet = False,
) -> None:
    """Measure this machine; the result is what `--on local` names. Or calibrate the predictions of
    described runs to a cluster by a handful of its own (--from)."""
    need_room_for(output)
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


def run(
    plan_file: Annotated[
        Path, typer.Argument(metavar="PLAN", help="a plan file, or a sharding file of `shard`")
    ],
    model: Annotated[str, typer.Option("--model", help="if different from the plan's model")] = "",
    steps: Annotated[int, typer.Option(min=1, help="measured steps")] = 10,
    check: Annotated[bool, typer.Option("--check", help="compare loss and every gradient")] = False,
    output: Annotated[Path, typer.Option("-o", help="measurement file; folders are made")] = Path(
        "run.json"
    ),
    processes: Annotated[int | None, typer.Option("--processes", min=1)] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    timeout: Annotated[str, typer.Option(help="timeout per rank")] = "300s",
    any_machine: Annotated[
        bool, typer.Option("--any-machine", help="run on a different machine than planned for")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run a plan through torchrun on this machine and measure it; of a sharding file compare
    values, gradients and collectives with what was planned."""
    need_room_for(output)
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


def catalog(
    action: Annotated[str, typer.Argument(help="list or show")] = "list",
    name: Annotated[str, typer.Argument(help="a device")] = "",
    json_output: Json = False,
) -> None:
    """The devices that are known, with every number's source."""
    from shardwright.commands.catalog import catalog as command

    command(action, name, json_output=json_output)


def demo(
    output: Annotated[Path, typer.Option("--output", help="folder for what it writes")] = Path(
        "demo-output"
    ),
) -> None:
    """The whole way once on this machine: profile, plan, run on two processes, compare."""
    from shardwright.commands.demo import tour

    tour(output)
