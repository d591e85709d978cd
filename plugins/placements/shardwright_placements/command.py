"""`shardwright shard`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from profiles.document import encode, write_document
from profiles.errors import InfeasibleError, InputError, ToleranceError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.units import parse_quantity
from shardwright.console.flags import Json, Local, Model, Precision, Seq
from shardwright.console.output import Heartbeat, need_room_for, note, print_json, show
from shardwright.requests.local_paths import local_profile
from shardwright.requests.named_model import import_from_here, sample_of
from shardwright.requests.provenance import provenance
from shardwright_placements.sharding_file import OP_SHARDING_SCHEMA

EXAMPLES = (
    "Examples:\n\n  shardwright shard llama-3.1-70b --block LlamaDecoderLayer --on 8xh100-sxm "
    "--mesh 8 --seq 8192\n\n  shardwright shard ./config.json --on 8xh100-sxm --mesh 2x4 "
    "--micro-batch 2 --memory 40GiB -o sharding.json"
)


def shard(
    model: Model,
    on: Annotated[str, typer.Option("--on", help="cluster: 8xh100-sxm, a cluster file, or local")],
    mesh: Annotated[str, typer.Option("--mesh", help="devices along one or two axes: 8 or 2x4")],
    block: Annotated[
        str, typer.Option("--block", help="class or path of one block (default: the whole model)")
    ] = "",
    seq: Seq = None,
    micro_batch: Annotated[int, typer.Option("--micro-batch", min=1)] = 1,
    micro_batches: Annotated[
        int,
        typer.Option(
            "--micro-batches", min=1, help="number of micro-batches per gradient reduction"
        ),
    ] = 1,
    memory: Annotated[
        str | None,
        typer.Option("--memory", help="memory per device: 40GiB (default: the device's)"),
    ] = None,
    precision: Precision = Precision.BF16,
    time_limit: Annotated[str, typer.Option("--time-limit", help="limit of the search")] = "20s",
    output: Annotated[Path | None, typer.Option("-o", help="sharding file to write")] = None,
    json_output: Json = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="print every op, message and source")
    ] = False,
    local: Local = None,
) -> None:
    """`shardwright shard`."""
    # Here, since --help needs none of them.
    from shardwright_placements import api
    from shardwright_placements.report import sharding_report

    need_room_for(output)
    sizes = mesh_of(mesh)
    if precision.value not in ("bf16", "fp16", "fp32"):
        raise InputError(
            f"--precision {precision.value}: op graphs are traced in bf16, fp16 or fp32"
        )
    import_from_here(model)
    cluster = get_cluster(on, local=local or local_profile())
    sample = sample_of(model, seq)
    length, assumed = sample.sequence_length, sample.assumptions
    if memory is None:
        assumed = (*assumed, "a device's memory less what its framework keeps (--memory)")
    limit_bytes = parse_quantity(memory, "bytes", where="--memory") if memory else None
    with Heartbeat(f"tracing {model} and searching its placements", quiet=json_output):
        answer = api.shard(
            model,
            cluster,
            sizes,
            block=block,
            sequence_length=length,
            micro_batch=micro_batch,
            micro_batches=micro_batches,
            precision=precision.value,
            memory_limit_bytes=limit_bytes,
            time_limit_s=parse_quantity(time_limit, "time", where="--time-limit"),
            assumptions=assumed,
        )
    if output is not None:
        write_document(output, answer, schema=OP_SHARDING_SCHEMA, provenance=provenance(cluster))
    if json_output:
        print_json({"schema": OP_SHARDING_SCHEMA, **encode(answer)})
    else:
        show(sharding_report(answer, explain=explain))
        if output is not None and answer.calls:
            note(f"written: {output}. Next: shardwright run {output}")
    if not answer.calls:
        raise InfeasibleError(f"no placements of {block or model} fit in memory: {answer.reason}")


def mesh_of(text: str) -> tuple[int, ...]:
    """The sizes of `8` or `2x4`; raises InputError."""
    if not re.fullmatch(r"\d+(x\d+)?", text):
        raise InputError(f"--mesh {text!r}: write the devices of one axis, 8, or of two, 2x4")
    return tuple(int(part) for part in text.split("x"))


def run_file(
    path: Path,
    *,
    model: str,
    steps: int,
    output: Path,
    processes: int | None,
    device: str,
    timeout_s: float,
) -> None:
    """`shardwright run` of a sharding file: runs it and compares it with one process.

    Raises ToleranceError if the run differs from the plan.
    """
    from shardwright_placements.report import sharded_run_report
    from shardwright_placements.running.launch_sharding import run_sharding

    if device != "cpu":
        raise InputError(
            f"--device {device}: placements are compared with one process on the CPU, in fp32"
        )
    found = run_sharding(
        path,
        model=model,
        steps=steps,
        output=output,
        processes=processes,
        timeout_s=timeout_s,
        announce=lambda command: note(f"running: {command}"),
    )
    show(sharded_run_report(found))
    if not found.passed:
        raise ToleranceError(f"{path}: the run differs from the plan; see the table above")
    note(f"written: {output}")
