"""`shardwright predict --modules`: one prediction per row of a table of modules."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from profiles.csv_table import csv_text
from profiles.errors import ShardwrightError
from profiles.model.graph import ModelGraph
from profiles.model.steps.module_step import traced_step
from profiles.model.tracing.traced import TracedModel
from shardwright.commands.tables.predict_runs import OK, PREDICTED_COLUMNS, PredictedRun, row_of
from shardwright.console.output import Bar, note, write_or_print
from shardwright.requests.named_model import sample_of
from shardwright.requests.predicted_plan import predict_plan
from shardwright.requests.python_plan import trace
from shardwright.runs.module_row import (
    ModuleSetting,
    module_setting,
    one_stage_plan,
    predict_step,
    unmeasured_shares,
)
from shardwright.runs.module_table import ModuleRow, read_modules
from simulator.traced.kernel_constants import MUCH, module_constants
from simulator.values.prediction import Prediction
from simulator.values.workload import Workload

_GIB = 2**30
COLUMNS = PREDICTED_COLUMNS[:10]


def predict_module_table(path: Path, output: Path) -> None:
    """Read the table, trace each distinct module, predict each row, write the table; `-` is stdout.

    A row that cannot be predicted has the reason under `status`; other rows are still predicted.
    """
    found = predicted_modules(read_modules(path), folder=path.parent)
    rows = (row_of(prediction)[: len(COLUMNS)] for prediction in found)
    write_or_print(output, csv_text(COLUMNS, rows))
    supported = sum(prediction.status == OK for prediction in found)
    note(f"predicted {supported} of {len(found)} rows; the others say why under `status`")


def predicted_modules(rows: Sequence[ModuleRow], *, folder: Path) -> tuple[PredictedRun, ...]:
    """The predictions of rows, in their order.

    folder  folder of the table: factories are imported from it and from the current folder
    """
    for place in (os.fspath(folder.resolve()), os.fspath(Path.cwd())):
        if place not in sys.path:
            sys.path.append(place)
    found = []
    with Bar("modules", quiet=False) as update:
        for row in rows:
            found.append(_predicted(row))
            update(len(found), len(rows), row.id)
    return tuple(found)


def _predicted(row: ModuleRow) -> PredictedRun:
    try:
        setting = module_setting(row)
        if setting.as_planned and set(row.arguments) == {"batch"}:
            made = _of_executor(row, setting)
            return _as_row(row, made, bool(made.fits), setting.defaults)
        return _of_setting(row, setting)
    except ShardwrightError as error:
        return PredictedRun(id=row.id, status=f"unsupported: {' '.join(str(error).split())}")


def _of_executor(row: ModuleRow, setting: ModuleSetting) -> Prediction:
    """The prediction of the plan of our executor that the row describes."""
    precision = row.precision.lower()
    traced = _traced(row.factory, precision)
    sample = sample_of(row.factory, None)
    batch = int(row.arguments["batch"])
    work = Workload(
        global_batch=batch,
        sequence_length=sample.sequence_length,
        counted_in=sample.counted_in,
        precision=precision,
    )
    cluster = setting.cluster
    plan = one_stage_plan(traced.at(batch), traced.content_hash, cluster, work)
    return predict_plan(plan, cluster, None, traced)


@functools.lru_cache(maxsize=16)
def _traced(factory: str, precision: str) -> TracedModel:
    return trace(factory, precision=precision, tp_degrees=(1,))


def _of_setting(row: ModuleRow, setting: ModuleSetting) -> PredictedRun:
    graph = traced_step(
        row.factory,
        row.arguments,
        setting.precision,
        channels_last=setting.channels_last,
        fused_attention=setting.framework.fused_attention,
    )
    made = predict_step(graph, setting)
    used = module_constants()
    needed = made.peak.value * used.held + used.workspace_mib * 2**20
    notes = (*setting.defaults, *_unmeasured(graph, setting))
    return _as_row(row, made, needed <= setting.device.usable_bytes, notes)


def _as_row(row: ModuleRow, made: Prediction, fits: bool, defaults: Sequence[str]) -> PredictedRun:
    time_s, memory = made.step_time_s, made.peak
    return PredictedRun(
        id=row.id,
        step_time_s=time_s.value,
        step_time_low_s=time_s.low,
        step_time_high_s=time_s.high,
        peak_memory_gib=memory.value / _GIB,
        peak_memory_low_gib=memory.low / _GIB,
        peak_memory_high_gib=memory.high / _GIB,
        fits=fits,
        defaults="; ".join(defaults),
    )


def _unmeasured(graph: ModelGraph, setting: ModuleSetting) -> Iterator[str]:
    which = "are compiled and have" if setting.framework.compiled else "have"
    for kind, share in unmeasured_shares(graph, setting).items():
        if share >= MUCH:
            yield (
                f"too few measured steps {which} {kind} ({share:.0%} of the kernels' time): priced "
                "as what is most like it, in a wider interval"
            )
