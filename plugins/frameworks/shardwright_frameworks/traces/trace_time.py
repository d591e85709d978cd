"""`TraceTime`: the result of a profile of a run, from any tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright_frameworks.plain_values import plain_values
from shardwright_frameworks.traces.device_time import DeviceTime, Kernels, device_time


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTime:
    """The devices, sorted by name, and `notes`, remarks for the reader."""

    path: str
    tool: str
    devices: tuple[DeviceTime, ...]
    notes: tuple[str, ...] = ()

    @property
    def critical(self) -> DeviceTime | None:
        """The device with the least exposed communication and idle time: the others wait for it."""
        return min(
            self.devices,
            key=lambda each: (each.exposed_communication_s + each.idle_s, each.device),
            default=None,
        )


def trace_time(
    path: str,
    tool: str,
    kernels: Mapping[str, Kernels],
    windows: list[tuple[float, float]],
    without: str,
) -> TraceTime:
    """The result for a trace's kernels; `without` is the advice if there are none."""
    found = [device_time(name, kernels[name], windows) for name in sorted(kernels)]
    notes = []
    if not any(found):
        notes.append(without)
    elif not windows:
        notes.append("no steps are marked in it: seconds are of its whole span")
    left_out = sum(each.left_out for each in kernels.values())
    if left_out:
        notes.append(f"{left_out:,} kernels beyond the first of each device are left out")
    return TraceTime(
        path=path, tool=tool, devices=tuple(each for each in found if each), notes=tuple(notes)
    )


def trace_data(trace: TraceTime) -> dict[str, Any]:
    """The result as plain values for JSON."""
    keys = {"by_kind": "by_kind_s", "collectives": "collectives_s"}
    devices = [plain_values(each, **keys) for each in trace.devices]
    return {**plain_values(trace, path="file"), "devices": devices}
