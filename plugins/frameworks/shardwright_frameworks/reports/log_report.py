"""Terminal reports of logs, profiles, benchmarks and snapshots, and of a log's comparison."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from profiles.units import format_bytes, format_percent, format_rate, format_time
from shardwright.reports.terminal import format_interval, table
from shardwright_frameworks.analysis.log_comparison import LogComparison
from shardwright_frameworks.logs.training_log import TrainingLog
from shardwright_frameworks.traces.device_time import DeviceTime
from shardwright_frameworks.traces.memory_snapshot import MemorySnapshot
from shardwright_frameworks.traces.nccl_tests import NcclCurve, NcclOutput
from shardwright_frameworks.traces.opened_log import OpenedLog
from shardwright_frameworks.traces.trace_time import TraceTime

_SOURCES = {
    "printed": "printed times",
    "clock": "times of day",
    "rate": "the rate of a progress bar",
    "whole run": "the mean of the whole run",
}


def opened_log_report(log: OpenedLog) -> RenderableType:
    """Report of a log, a profile, a benchmark or a snapshot."""
    if isinstance(log, TrainingLog):
        return log_report(log)
    if isinstance(log, TraceTime):
        return trace_report(log)
    if isinstance(log, NcclOutput):
        return Group(*(nccl_report(curve) for curve in log.curves))
    return snapshot_report(log)


def log_report(log: TrainingLog) -> RenderableType:
    """A log in about twelve lines, without missing values."""
    step = log.steady_step_time_s
    head = "no step time" if step is None else f"steady step {format_time(step)}"
    lines: list[RenderableType] = [
        Text(f"{log.path}: {log.framework or 'unknown'}, {head}", "bold")
    ]
    rows = _plain_table()
    spread = log.spread
    if spread.p10_s is not None and spread.p90_s is not None:
        band = f"{format_time(spread.p10_s)} to {format_time(spread.p90_s)}"
        rows.add_row("eight of ten steps", band)
    if spread.drift is not None:
        rows.add_row("last third over the first", f"{spread.drift:+.1%}")
    if log.from_:
        rows.add_row("source of times", _SOURCES[log.from_])
    if log.steps is not None:
        rows.add_row("steps", _steps(log))
    if log.tokens_per_s is not None:
        per = " per device" if log.tokens_per_s_of == "device" else ""
        rows.add_row("tokens per second", f"{log.tokens_per_s:,.0f}{per}")
    if log.tflop_per_s is not None:
        rows.add_row("printed TFLOP/s per device", f"{log.tflop_per_s:.4g}")
    if log.memory is not None:
        rows.add_row("peak memory", f"{log.memory.peak_gib:.4g} GiB ({log.memory.kind})")
    if log.loss is not None and log.first_loss is not None:
        rows.add_row("loss", f"{log.first_loss:.4g} to {log.loss:.4g}")
    lost = {name: seconds for name, seconds in log.not_steady_s.items() if seconds > 0}
    if lost:
        words = ", ".join(f"{name.replace('_', ' ')} {format_time(s)}" for name, s in lost.items())
        rows.add_row("beyond steady steps", words)
    if log.slow_ranks:
        first = log.slow_ranks[0]
        more = f" and {len(log.slow_ranks) - 1} more" if len(log.slow_ranks) > 1 else ""
        rows.add_row("slow ranks", f"{first.rank} by {format_percent(first.over_median)}{more}")
    rows.add_row("ended", log.ended + (", the last line is cut" if log.truncated else ""))
    lines.append(rows)
    lines += [Text(f"Note: {note}.") for note in log.notes]
    return Group(*lines)


def _steps(log: TrainingLog) -> str:
    words = [str(log.steps)]
    words += [f"{log.warm_up_steps} of warm-up"] if log.warm_up_steps else []
    for count, name in ((log.restarts, "restart"), (log.stalls, "stall"), (log.pauses, "pause")):
        words += [f"{count} {name}{'s' if count > 1 else ''}"] if count else []
    words += ["resumed from a checkpoint"] if log.resumed else []
    return ", ".join(words)


def _plain_table() -> Table:
    rows = Table(box=None, show_header=False, pad_edge=False)
    rows.add_column(style="dim")
    rows.add_column(overflow="fold")
    return rows


def trace_report(trace: TraceTime) -> RenderableType:
    """Time of each device by kind of work."""
    rows = table(
        "device", ">step", ">compute", ">exposed comm.", ">hidden comm.", ">copies", ">idle"
    )
    for device in trace.devices[:16]:
        rows.add_row(device.device, *(format_time(value) for value in _parts(device)))
    lines: list[RenderableType] = [Text(f"{trace.path}: {trace.tool}", "bold")]
    if trace.devices:
        first = trace.devices[0]
        kinds = ", ".join(f"{name} {format_time(s)}" for name, s in first.by_kind.items() if s)
        lines += [rows, Text(f"{first.device} computes: {kinds}." if kinds else "")]
        busy = ", ".join(f"{name} {format_time(s)}" for name, s in first.collectives.items())
        lines += [Text(f"Its messages: {busy}.")] if busy else []
    return Group(*lines, *(Text(f"Note: {note}.") for note in trace.notes))


def _parts(device: DeviceTime) -> tuple[float, ...]:
    return (
        device.step_time_s,
        device.compute_s,
        device.exposed_communication_s,
        device.hidden_communication_s,
        device.copy_s,
        device.idle_s,
    )


def nccl_report(curve: NcclCurve) -> RenderableType:
    """Time and bandwidth of a collective by size."""
    rows = table(">size", ">time", ">bus bandwidth")
    for point in curve.points:
        rows.add_row(
            format_bytes(point.size_bytes),
            format_time(point.time_s),
            format_rate(point.bus_bytes_per_s),
        )
    name = (curve.operation or "a collective").replace("_", " ")
    on = f" on {curve.devices} devices" if curve.devices else ""
    title = f"{name}{on}: at most {format_rate(curve.peak_bus_bytes_per_s)}"
    return Group(Text(title, "bold"), rows)


def snapshot_report(snapshots: tuple[MemorySnapshot, ...]) -> RenderableType:
    """Memory by device."""
    rows = table("device", ">allocated", ">reserved", ">peak")
    for each in snapshots:
        peak = "-" if each.peak_bytes is None else format_bytes(each.peak_bytes)
        rows.add_row(
            str(each.device),
            format_bytes(each.allocated_bytes),
            format_bytes(each.reserved_bytes),
            peak,
        )
    return rows


def log_comparison_report(compared: LogComparison) -> RenderableType:
    """Predicted and logged step, distribution of the logged steps, and reasons in the log."""
    place = "inside" if compared.inside else "outside"
    spread = compared.log.spread
    lines: list[RenderableType] = [
        Text(compared.title, "bold"),
        Text(f"predicted {format_interval(compared.step_time_s)}"),
        Text(
            f"steady    {format_time(compared.measured_s)}, {place} the interval; predicted over "
            f"measured {compared.error:+.1%}"
        ),
    ]
    if spread.p10_s is not None and spread.p90_s is not None:
        lines.append(
            Text(f"eight of ten steps {format_time(spread.p10_s)} to {format_time(spread.p90_s)}")
        )
    if compared.parts:
        rows = table("part of a step", ">predicted", ">in the profile", ">difference")
        for row in compared.parts:
            rows.add_row(
                row.name,
                format_time(row.predicted_s),
                format_time(row.measured_s),
                f"{row.measured_s - row.predicted_s:+.3g} s",
            )
        lines.append(rows)
    if compared.memory_gib is not None:
        predicted, seen = compared.memory_gib
        lines.append(Text(f"peak memory {seen:.3g} GiB, predicted {predicted.value:.3g} GiB"))
    lines += [Text(f"Likely: {reason}.") for reason in compared.reasons]
    return Group(*lines, *(Text(f"Note: {note}.") for note in compared.log.notes))
