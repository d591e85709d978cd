"""Fits profiles/data/collectives from a table of measured collectives, and what links need of it.

    python -m tools.derive_links FOLDER

FOLDER holds collectives.csv.gz (columns as in its header). Per device, operation and group size the
median time of each size (over NCCL versions; half precision only, because int8 sums do not take the
switch's reduction) is fitted by a line in log-log with corners at _CORNERS: least squares in log
time, then made non-decreasing by pooling (fit.py). Held out are every third size, then the others
(split `sizes`); the middle group size (`groups`); the largest group size (`largest-group`);
rows of other publications (`other-source`), which no fit has seen. Parts of the rows: an operation,
and of it `small` below 1 MiB, `medium` below 64 MiB, `large` from there.

Printed for the link files, whose formulas serve where there is no curve:
    efficiency  median of bus bandwidth / link bandwidth, largest group, 128 MiB and more
    latency     median of time / hops up to 8 KiB; n - 1 hops of a ring, for all_reduce the fewer of
                2 (n - 1) and 2 log2(n)
and the straight lines time = latency + bus bytes / rate through rows between nodes (between_nodes).
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from profiles.document import write_text
from profiles.hardware.catalogue.catalog import get_link, node_design
from profiles.hardware.kernels.collective_curve import (
    COLLECTIVES_SCHEMA,
    CollectiveCurve,
    CollectiveCurves,
    bus_share,
    curves_path,
)
from profiles.hardware.kernels.fit import fit_curve
from profiles.hardware.kernels.kernel_surface import HeldOut
from tools.between_nodes import fit_between_nodes
from tools.held_out_errors import errors_of

# Our device <- names of the accelerator in the table.
MEASURED_ON = {
    "a100-sxm-80gb": ("NVIDIA A100-SXM4-80GB",),
    "h100-sxm-80gb": ("NVIDIA H100 80GB HBM3", "h100_sxm"),
    "h200-sxm": ("NVIDIA H200", "h200_sxm"),
    "b200-sxm": ("NVIDIA B200",),
    "b300-sxm": ("NVIDIA B300 SXM6 AC",),
    "gb200-nvl72": ("NVIDIA GB200",),
    "gb300-nvl72": ("NVIDIA GB300",),
    "l40s": ("NVIDIA L40S",),
    "rtx-pro-6000": ("NVIDIA RTX PRO 6000 Blackwell Server Edition",),
}
# Messages of one domain (vidur, send_recv), and rows of other publications.
MESSAGES = {"a100-sxm-80gb": "A100", "h100-sxm-80gb": "H100"}
OTHERS = {"a100-sxm-80gb": "A100", "h200-sxm": "H200", "b200-sxm": "B200"}
# Trays of four were measured; eight in one NVLink domain are taken as on the board of eight.
BORROWED = {"gb200-nvl72": ("b200-sxm", 8), "gb300-nvl72": ("b300-sxm", 8)}
OPERATIONS = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
}
SOURCE = (
    "nccl-tests on one node, NCCL 2.23 to 2.29 (github.com/ai-dynamo/aiconfigurator 095f58a51c4c, "
    "nccl_perf)"
)
MESSAGE_SOURCE = "; send: github.com/microsoft/vidur 7d475133, data/profiling/network, send_recv"
METHOD = "python -m tools.derive_links: log-log line with fixed corners, least squares"
DATE = "2026-11-21"
_KIB, _MIB = 2**10, 2**20
_CORNERS = (8 * _KIB, 64 * _KIB, 256 * _KIB, _MIB, 4 * _MIB, 16 * _MIB, 64 * _MIB, 192 * _MIB)
_SMOOTH = 0.1
_LARGE_BYTES = 128 * _MIB
_SMALL_BYTES = 8 * _KIB
_CPU_COST_BYTES = 512 * _MIB

# (operation, group size, buffer bytes) -> seconds of each row
Times = Mapping[tuple[str, int, int], list[float]]


def read_times(rows: Iterable[dict[str, str]], accelerators: tuple[str, ...]) -> Times:
    """Seconds of every nccl_perf row of these accelerators."""
    times: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for row in rows:
        operation = OPERATIONS.get(row["collective"])
        if row["accelerator"] not in accelerators or row["dtype"] != "half":
            continue
        if operation and "nccl_perf" in row["source"]:
            key = (operation, int(float(row["n_gpus"])), int(float(row["size_bytes"])))
            times[key].append(float(row["time_us"]) * 1e-6)
    return dict(sorted(times.items()))


def read_messages(rows: Iterable[dict[str, str]], accelerator: str, nodes: str) -> Times:
    """Seconds of vidur's send_recv between two devices on so many nodes.

    The table leaves the unit of its sizes open; bytes, because elements would make 72 GB/s over a
    50 GB/s card.
    """
    times: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for row in rows:
        if "vidur" not in row["source"] or row["collective"] != "send_recv":
            continue
        if row["accelerator"] == accelerator and row["n_nodes"] == nodes:
            size = re.search(r"size=(\d+)", row["size_label"])
            if size:
                times[("send", 2, int(size.group(1)))].append(float(row["time_us"]) * 1e-6)
    return dict(sorted(times.items()))


def read_others(rows: Iterable[dict[str, str]], accelerator: str) -> Times:
    """Seconds of one-node rows of stas00's benchmarks with NCCL's own choice of algorithm: those of
    more than 512 MiB, because the smaller ones hold a Python loop's time as well."""
    times: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for row in rows:
        if not row["source"].startswith("stas00") or row["accelerator"] != accelerator:
            continue
        if row["n_nodes"] != "1" or "NVLS_ENABLE=0" in row["algo"] + row["notes"]:
            continue
        operation, group = OPERATIONS.get(row["collective"]), int(float(row["n_gpus"] or 0))
        size = int(float(row["size_bytes"]))
        if operation and size > _CPU_COST_BYTES:
            bus_bytes = bus_share(operation, group) * size
            times[(operation, group, size)].append(bus_bytes / (float(row["busbw_gbps"]) * 1e9))
    return dict(sorted(times.items()))


def fit_corners(operation: str, group: int, times: Times) -> CollectiveCurve:
    """The curve of one operation and group through the medians of its sizes."""
    own = {size: found for (op, n, size), found in times.items() if (op, n) == (operation, group)}
    x = np.log(np.array(sorted(own), dtype=float))
    y = np.log(np.array([np.median(own[size]) for size in sorted(own)]))
    ends = [float(min(own)), float(max(own))]
    inner = [c for c in _CORNERS if ends[0] * 2 < c < ends[1] / 2]
    corners = np.log(np.array([ends[0], *inner, ends[1]]))
    hats = np.array([np.interp(x, corners, row) for row in np.eye(len(corners))]).T
    # A little bending energy: a corner whose sizes are all left out follows its neighbours.
    bend = np.diff(np.eye(len(corners)), n=2, axis=0) * _SMOOTH
    matrix = np.vstack([hats, bend])
    values = np.linalg.lstsq(matrix, np.concatenate([y, np.zeros(len(bend))]), rcond=None)[0]
    steady = fit_curve(list(np.exp(corners)), list(np.exp(values)))
    return CollectiveCurve(
        operation=operation,
        group_size=group,
        size_bytes=tuple(float(round(math.exp(c))) for c in steady.log_x),
        time_us=tuple(float(f"{math.exp(v) * 1e6:.4g}") for v in steady.log_y),
        rows=sum(map(len, own.values())),
    )


def fit_curves(times: Times) -> tuple[CollectiveCurve, ...]:
    """A curve for every operation and group size of the rows."""
    return tuple(fit_corners(op, n, times) for op, n in sorted({key[:2] for key in times}))


def held_out_errors(device: str, times: Times, others: Times) -> tuple[HeldOut, ...]:
    """Errors of the four splits (module docstring)."""
    found: list[HeldOut] = []
    sizes = sorted({key[2] for key in times})
    folds: list[tuple[CollectiveCurves, Times]] = []
    for third in range(3):
        own = {k: v for k, v in times.items() if sizes.index(k[2]) % 3 == third}
        rest = {k: v for k, v in times.items() if k not in own}
        folds.append((_curves(device, rest), own))
    found += _errors("sizes", folds)
    groups = sorted({n for op, n, _ in times if op != "send"})
    for split, left_out in (("groups", groups[1:-1]), ("largest-group", groups[2:][-1:])):
        for group in left_out:
            rest = {k: v for k, v in times.items() if k[1] != group or k[0] == "send"}
            own = {k: v for k, v in times.items() if k[1] == group and k[0] != "send"}
            found += _errors(split, [(_curves(device, rest), own)])
    if others:
        found += _errors("other-source", [(_curves(device, times), others)])
    return tuple(found)


def _curves(device: str, times: Times) -> CollectiveCurves:
    return CollectiveCurves(
        device=device,
        link=node_design(device).inner_link,
        source=SOURCE,
        date=DATE,
        method=METHOD,
        curves=fit_curves(times),
    )


def _errors(split: str, folds: list[tuple[CollectiveCurves, Times]]) -> list[HeldOut]:
    rows = [
        (op, float(size), curves.time_s(op, n, bus_share(op, n) * size), float(np.median(measured)))
        for curves, times in folds
        for (op, n, size), measured in times.items()
    ]
    operation = np.array([row[0] for row in rows])
    size = np.array([row[1] for row in rows])
    parts = {}
    for op in sorted(set(operation)):
        mine = operation == op
        parts[str(op)] = mine
        parts[f"{op}:small"] = mine & (size < _MIB)
        parts[f"{op}:medium"] = mine & (size >= _MIB) & (size < 64 * _MIB)
        parts[f"{op}:large"] = mine & (size >= 64 * _MIB)
    parts = {name: mask for name, mask in parts.items() if mask.any()}
    predicted = np.array([row[2] for row in rows])
    return list(errors_of(split, predicted, np.array([row[3] for row in rows]), parts))


def link_numbers(device: str, times: Times) -> str:
    """Efficiency and latency that the link's formulas need, and their own error, as a line."""
    bandwidth = get_link(node_design(device).inner_link).bandwidth_bytes_per_s.value
    medians = {k: float(np.median(v)) for k, v in times.items() if k[0] != "send"}
    largest = max(n for _, n, _ in medians)
    shares = [
        bus_share(op, n) * size / t / bandwidth
        for (op, n, size), t in medians.items()
        if n == largest and size >= _LARGE_BYTES
    ]
    hops = [t / _hops(op, n) for (op, n, size), t in medians.items() if size <= _SMALL_BYTES]
    efficiency, latency_s = float(np.median(shares)), float(np.median(hops))
    errors = [
        abs((_hops(op, n) * latency_s + bus_share(op, n) * size / bandwidth / efficiency) / t - 1)
        for (op, n, size), t in medians.items()
    ]
    return (
        f"{device}: efficiency {efficiency:.3g}, latency_us {latency_s * 1e6:.3g}, formulas off by "
        f"{np.median(errors):.0%} at the median, {np.quantile(errors, 0.9):.0%} at the 90th "
        f"percentile of {len(errors)} points\n"
    )


def _hops(operation: str, group: int) -> float:
    ring = group - 1.0
    return min(2 * ring, 2 * math.log2(group)) if operation == "all_reduce" else ring


def curves_text(curves: CollectiveCurves) -> str:
    """The TOML of a device's curves: one curve per line."""
    lines = [f"# {METHOD}."]
    lines.append(f'schema = "{COLLECTIVES_SCHEMA}"')
    for name in ("device", "link", "source", "date", "method"):
        lines.append(f"{name} = {json.dumps(getattr(curves, name))}")
    lines.append(f"shared_medium = {str(curves.shared_medium).lower()}")
    lines.append("curves = [")
    for c in curves.curves:
        sizes = ", ".join(f"{size:.0f}" for size in c.size_bytes)
        times = ", ".join(f"{time:g}" for time in c.time_us)
        lines.append(
            f'  {{ operation = "{c.operation}", group_size = {c.group_size}, rows = {c.rows}, '
            f'method = "{c.method}", size_bytes = [{sizes}], time_us = [{times}] }},'
        )
    lines += ["]", "held_out = ["]
    lines += [
        f'  {{ split = "{e.split}", where = "{e.where}", rows = {e.rows}, median = {e.median}, '
        f"p90 = {e.p90}, bias = {e.bias} }},"
        for e in curves.held_out
    ]
    return "\n".join([*lines, "]"]) + "\n"


def main(folder: Path) -> None:
    """Write the curves of every measured device; print what links need and lines between nodes."""
    with gzip.open(folder / "collectives.csv.gz", "rt", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    made: dict[str, CollectiveCurves] = {}
    for device, accelerators in MEASURED_ON.items():
        messages = read_messages(rows, MESSAGES[device], "1") if device in MESSAGES else {}
        times = {**read_times(rows, accelerators), **messages}
        others = read_others(rows, OTHERS[device]) if device in OTHERS else {}
        curves = _curves(device, times)
        made[device] = replace(
            curves,
            source=SOURCE + (MESSAGE_SOURCE if messages else ""),
            shared_medium=node_design(device).inner_link.startswith("pcie"),
            held_out=held_out_errors(device, times, others),
        )
        sys.stdout.write(link_numbers(device, times))
    for device, (lender, group) in BORROWED.items():
        lent = tuple(
            replace(c, method="assumed", rows=0)
            for c in made[lender].curves
            if c.group_size == group
        )
        made[device] = replace(made[device], curves=made[device].curves + lent)
    for device, curves in made.items():
        write_text(curves_path(device), curves_text(curves))
    sys.stdout.writelines(f"{line}\n" for line in fit_between_nodes(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
