"""`LoggedRun`: a log with the configuration of its run, for calibrations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from planner.layout.layout_answer import LAYOUT_SCHEMA, LayoutFile
from profiles.document import read_mapping, schema_name
from profiles.errors import DocumentError, InputError, MismatchError
from profiles.units import format_percent, format_time
from shardwright.requests.imported_file import is_imported
from shardwright.requests.opened_plan import open_plan
from shardwright.runs.complete import complete_run
from shardwright.runs.run_table import read_runs
from shardwright_frameworks.imported_run import read_imported
from shardwright_frameworks.logs.read_log import FEWEST_STEADY
from shardwright_frameworks.logs.training_log import TrainingLog
from shardwright_frameworks.reading.read_config import read_config
from shardwright_frameworks.requests.table_row import row_of_import
from shardwright_frameworks.traces.opened_log import open_log
from simulator.training_run.run.training_run import TrainingRun

# A log of fewer steady lines may still be warm-up.
FEWEST_LINES = 3
# A log has no steady speed if its slow tenth takes this much longer than its fast one.
_WIDEST = 1.5
# Figures of a log and its configuration that differ by more are not of one run.
_SAME = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """A run and the seconds of its steady step."""

    run: TrainingRun
    step_time_s: float
    log: TrainingLog


def logged_run(log: Path, config: Path, device: str = "") -> LoggedRun:
    """The run of a configuration with the step time of its log.

    config  a configuration or imported.json, a layout of `plan --stack`, or a table of runs with a
            single row, or a row whose id is the log's name without its extension
    device  device, if the configuration does not name it; the log may contain the number of devices

    Raises DocumentError for a log without a steady step, MismatchError if log and configuration are
    of different runs.
    """
    told = open_log(log)
    if not isinstance(told, TrainingLog):
        raise DocumentError(f"--from {log}: is a profile or a benchmark, not a training log")
    _need_steady(log, told)
    run = run_of(config, log.name.partition(".")[0], device=device, devices=told.devices)
    for name, seen, said in (
        ("global batch", told.global_batch, run.global_batch),
        ("sequence length", told.seq_len, run.seq_len),
        ("number of devices", told.devices, run.degrees.num_devices),
    ):
        if seen is not None and abs(seen / said - 1.0) > _SAME:
            raise MismatchError(
                f"{log} prints a {name} of {seen}, {config} has {said}; they belong to different "
                "runs, or one of them is wrong"
            )
    assert told.steady_step_time_s is not None
    return LoggedRun(run=run, step_time_s=told.steady_step_time_s, log=told)


def _need_steady(log: Path, told: TrainingLog) -> None:
    """Raises DocumentError for a log without a steady step time."""
    notes = "; ".join(told.notes)
    if told.steady_step_time_s is None:
        raise DocumentError(f"--from {log}: has no step time ({notes or 'no step in it'})")
    if told.from_ == "whole run":
        raise DocumentError(
            f"--from {log}: has only the mean of the whole run, including warm-up and checkpoints; "
            "name the printed log, which contains every step"
        )
    if told.steady_lines < FEWEST_LINES:
        raise DocumentError(
            f"--from {log}: has {told.steady_lines} lines of steady steps, but {FEWEST_LINES} are "
            "needed to separate them from warm-up; use a longer run"
        )
    if told.steady_share < FEWEST_STEADY:
        raise DocumentError(
            f"--from {log}: {format_percent(told.steady_share)} of its steps take about "
            f"{format_time(told.steady_step_time_s)}, the others much more or less; a calibration "
            "needs a steady step time, so find the cause first"
        )
    low, high = told.spread.p10_s, told.spread.p90_s
    if low is not None and high is not None and high > _WIDEST * low:
        raise DocumentError(
            f"--from {log}: 80 % of its steps take {format_time(low)} to {format_time(high)}, "
            f"which differ by {format_percent(high / low - 1.0)}; a calibration needs a steady "
            "step time, so find the cause first"
        )


def run_of(config: Path, name: str, *, device: str = "", devices: int | None = None) -> TrainingRun:
    """The run in a configuration; `device` and `devices` are used if it does not contain them.

    Raises DocumentError if it contains no run, InputError if no device is named.
    """
    if config.suffix == ".csv":
        rows = read_runs(config)
        found = [row for row in rows if row.id == name] or (list(rows) if len(rows) == 1 else [])
        if not found:
            raise DocumentError(
                f"{config}: has {len(rows)} rows and none with the id {name!r}, the log's name; "
                "name the row after the log"
            )
        return complete_run(found[0])
    if config.suffix == ".json" and _is_layout(config):
        answer = open_plan(config).answer
        if isinstance(answer, LayoutFile) and answer.chosen is not None:
            return answer.chosen.run
        raise DocumentError(f"{config} has no layout: nothing fits ({answer.status})")
    said = read_imported(config) if is_imported(config) else read_config(config)
    if not device and not said.device:
        raise InputError(
            f"{config}: the configuration names no device; add its name in the catalog, for "
            "example --on h100-sxm-80gb"
        )
    count = devices if said.devices is None else None
    return complete_run(row_of_import(said, id=name, device=device, devices=count))


def _is_layout(path: Path) -> bool:
    return schema_name(read_mapping(path).get("schema")) == schema_name(LAYOUT_SCHEMA)
