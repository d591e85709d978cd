"""`shardwright shard`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from profiles.document import encode, to_json, write_document
from profiles.errors import InfeasibleError, InputError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.units import parse_quantity
from shardwright import api
from shardwright.asking.named_model import import_from_here, sample_of
from shardwright.asking.places import local_profile
from shardwright.commands.output import Heartbeat, note, show
from shardwright.commands.provenance import provenance
from shardwright.reports.sharding import sharding_report
from simulator.values.op_sharding_file import OP_SHARDING_SCHEMA


def shard(
    model: str,
    on: str,
    mesh: str,
    *,
    block: str,
    seq: int | None,
    micro_batch: int,
    micro_batches: int,
    memory: str | None,
    precision: str,
    time_limit: str,
    output: Path | None,
    json_output: bool,
    explain: bool,
    local: Path | None,
) -> None:
    """`shardwright shard`."""
    sizes = mesh_of(mesh)
    if precision not in ("bf16", "fp16", "fp32"):
        raise InputError(f"--precision {precision}: op graphs are traced in bf16, fp16 or fp32")
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
            precision=precision,
            memory_limit_bytes=limit_bytes,
            time_limit_s=parse_quantity(time_limit, "time", where="--time-limit"),
            assumptions=assumed,
        )
    if output is not None:
        write_document(output, answer, schema=OP_SHARDING_SCHEMA, provenance=provenance(cluster))
    if json_output:
        sys.stdout.write(to_json({"schema": OP_SHARDING_SCHEMA, **encode(answer)}))
    else:
        show(sharding_report(answer, explain=explain))
        if output is not None and answer.calls:
            note(f"written: {output}. Next: shardwright run {output}")
    if not answer.calls:
        raise InfeasibleError(
            f"no placements of {block or model} were found within the memory: {answer.reason}"
        )


def mesh_of(text: str) -> tuple[int, ...]:
    """The sizes of `8` or `2x4`; raises InputError."""
    if not re.fullmatch(r"\d+(x\d+)?", text):
        raise InputError(f"--mesh {text!r}: write the devices of one axis, 8, or of two, 2x4")
    return tuple(int(part) for part in text.split("x"))
