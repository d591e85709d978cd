"""`shardwright fit`."""

from __future__ import annotations

import sys

from profiles.document import encode, to_json
from shardwright import api
from shardwright.asking.named_model import import_from_here, sample_of
from shardwright.commands.output import Heartbeat, note, show


def fit(
    model: str, seq: int | None, micro_batch: int, precision: str, *, json_output: bool
) -> None:
    """`shardwright fit`."""
    from shardwright.reports.capacity import fit_model, fit_report

    import_from_here(model)
    sample = sample_of(model, seq)
    length, assumed = sample.sequence_length, sample.assumptions
    with Heartbeat(f"tracing {model}", quiet=json_output):
        traced = api.trace(model, sequence_length=length, precision=precision, tp_degrees=(1,))
    found = fit_model(traced, micro_batch=micro_batch, precision=precision)
    if json_output:
        sys.stdout.write(to_json(encode(found)))
        return
    show(fit_report(found))
    for said in (
        *assumed,
        f"{precision} (--precision)",
        "AdamW",
        f"micro-batch {micro_batch} (--micro-batch)",
    ):
        note(f"assumed: {said}")
