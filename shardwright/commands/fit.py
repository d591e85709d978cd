"""`shardwright fit`: shows the memory of a model and the devices on which its training fits."""

from __future__ import annotations

from typing import Annotated

import typer

from profiles.document import encode
from shardwright.console.flags import Json, Model, Precision, Seq
from shardwright.console.output import Heartbeat, note, print_json, show
from shardwright.requests.named_model import import_from_here, sample_of

EXAMPLES = (
    "Examples:\n\n  shardwright fit llama-3.1-8b\n\n  shardwright fit ./config.json --seq 4096"
)


def fit(
    model: Model,
    seq: Seq = None,
    micro_batch: Annotated[int, typer.Option("--micro-batch", min=1)] = 1,
    precision: Precision = Precision.BF16,
    json_output: Json = False,
) -> None:
    """`shardwright fit`: shows the memory of a model and the devices on which its training fits."""
    # Here, since --help needs none of them.
    from shardwright import api
    from shardwright.reports.capacity import fit_model, fit_report

    import_from_here(model)
    sample = sample_of(model, seq)
    length = sample.sequence_length
    with Heartbeat(f"tracing {model}", quiet=json_output):
        traced = api.trace(
            model, sequence_length=length, precision=precision.value, tp_degrees=(1,)
        )
    found = fit_model(traced, micro_batch=micro_batch, precision=precision.value)
    if json_output:
        print_json(encode(found))
        return
    show(fit_report(found))
    for said in (
        *sample.assumptions,
        f"{precision.value} (--precision)",
        "AdamW",
        f"micro-batch {micro_batch} (--micro-batch)",
    ):
        note(f"assumed: {said}")
