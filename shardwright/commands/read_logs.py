"""What `shardwright import --logs` prints, and what `compare --log` holds against a plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from interop.configs.imported_file import is_imported, read_imported
from interop.logs.training_log import TrainingLog, log_data
from interop.traces.memory_snapshot import MemorySnapshot
from interop.traces.nccl_tests import NcclCurve, nccl_data
from interop.traces.opened_log import OpenedLog, open_log
from interop.traces.trace_time import TraceTime, trace_data
from planner.layout.layout_answer import layout_title
from profiles.errors import InputError, ToleranceError
from shardwright.asking.planned_step import PlannedStep, planned_step
from shardwright.commands.imported import imported_row, predicted_import
from shardwright.commands.output import print_json, show
from shardwright.findings.log_comparison import compare_log, log_comparison_data
from shardwright.reports.log_report import log_comparison_report, opened_log_report


def read_logs(paths: Sequence[Path], as_json: bool) -> tuple[OpenedLog, ...]:
    """Reads and prints logs, profiles, nccl-tests and memory snapshots; gives them back.

    As JSON one file is an object of its own, several are `{"logs": [...]}`. Raises DocumentError
    for a file that is none of them.
    """
    found = tuple(open_log(path) for path in paths)
    if as_json:
        data = [opened_log_data(each, path) for each, path in zip(found, paths, strict=True)]
        print_json(data[0] if len(data) == 1 else {"logs": data})
        return found
    for each in found:
        show(opened_log_report(each))
    return found


def opened_log_data(found: OpenedLog, path: Path) -> dict[str, Any]:
    """What was read as plain values for JSON."""
    if isinstance(found, TrainingLog):
        return log_data(found)
    if isinstance(found, TraceTime):
        return trace_data(found)
    if isinstance(found, NcclCurve):
        return {"file": str(path), **nccl_data(found)}
    return {"file": str(path), "devices": [_snapshot_data(each) for each in found]}


def _snapshot_data(found: MemorySnapshot) -> dict[str, Any]:
    return {
        "device": found.device,
        "allocated_bytes": found.allocated_bytes,
        "reserved_bytes": found.reserved_bytes,
        "peak_bytes": found.peak_bytes,
    }


def planned_or_imported(path: Path, on: str) -> PlannedStep:
    """The prediction of a plan file, or of an imported run on the devices that `on` names."""
    if not is_imported(path):
        return planned_step(path)
    made = predicted_import(imported_row(read_imported(path), path, on))
    assert made.run is not None
    assert made.step_time_s is not None
    memory = made.peak_memory_bytes
    return PlannedStep(
        title=f"{path}: {layout_title(made.run)} on {made.run.num_devices} {made.run.device}",
        step_time_s=made.step_time_s,
        parts=dict(made.parts),
        global_batch=made.run.global_batch,
        seq_len=made.run.seq_len,
        num_devices=made.run.num_devices,
        peak_memory_gib=None if memory is None else memory.scaled(2.0**-30),
    )


def compare_with_logs(
    plan: Path,
    logs: Sequence[Path],
    *,
    json_output: bool,
    fail_over: float | None,
    on: str = "",
) -> None:
    """The prediction of a plan, or of an imported run on the devices that `on` names, beside a
    training log of it, by part where a profile is named too.

    Raises InputError without exactly one training log, ToleranceError where the step is further off
    than `fail_over`.
    """
    found = [open_log(path) for path in logs]
    training = [each for each in found if isinstance(each, TrainingLog)]
    if len(training) != 1:
        raise InputError(
            f"--log names {len(training)} training logs; name one, and profiles of the same run "
            "beside it"
        )
    traces = [each for each in found if isinstance(each, TraceTime)]
    compared = compare_log(planned_or_imported(plan, on), training[0], traces)
    if json_output:
        print_json(log_comparison_data(compared))
    else:
        show(log_comparison_report(compared))
    if fail_over is not None and abs(compared.error) > fail_over:
        raise ToleranceError(
            f"the predicted step is {compared.error:+.1%} off the log's steady one, --fail-over "
            f"allows {fail_over:.0%}"
        )
