"""Fits latency and rate of a network card to the few measured collectives between nodes.

    time = latency + bus bytes per card / rate

fitted by least absolute log error. These rows are all that is public and states its sizes; what a
fabric reaches in whole runs is the link's `efficiency`, which runs may refit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiles.hardware.kernels.collective_curve import bus_share


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFit:
    """A line through measured times; errors are |predicted / measured - 1|."""

    latency_s: float
    rate_bytes_per_s: float
    rows: int
    median_error: float
    p90_error: float


def fit_line(carried_bytes: NDArray[np.float64], time_s: NDArray[np.float64]) -> LineFit:
    """The line of least mean absolute log error over a grid of latencies and rates."""
    best = (np.inf, 0.0, 1.0)
    slopes = carried_bytes / time_s
    for latency in np.geomspace(time_s.min() / 30, time_s.min() * 1.2, 120):
        for rate in np.geomspace(slopes.max() / 2, slopes.max() * 2, 120):
            error = np.abs(np.log((latency + carried_bytes / rate) / time_s)).mean()
            best = min(best, (float(error), float(latency), float(rate)))
    off = np.abs((best[1] + carried_bytes / best[2]) / time_s - 1)
    return LineFit(
        latency_s=best[1],
        rate_bytes_per_s=best[2],
        rows=len(time_s),
        median_error=float(np.median(off)),
        p90_error=float(np.quantile(off, 0.9)),
    )


def fit_between_nodes(rows: Iterable[dict[str, str]]) -> list[str]:
    """One printed line per set of rows between nodes."""
    table = list(rows)
    lines = []
    efa = [r for r in table if "P6-B200" in r["source"] and r["n_nodes"] == "4"]
    sizes = np.array([float(r["size_bytes"]) for r in efa])
    bus = bus_share("all_reduce", 32) * sizes
    time_s = bus / np.array([float(r["busbw_gbps"]) * 1e9 for r in efa])
    # Below 256 KiB the first calls of the loop are slower than larger ones: warming up.
    warm = sizes >= 2**18
    lines.append(_text("all_reduce, 4 x 8 B200, EFA v4", fit_line(bus[warm] / 8, time_s[warm]), 50))
    for device, groups in (("H100", (2,)), ("A100", (2, 4, 8, 16))):
        for operation in ("send_recv", "all_reduce"):
            for group in groups:
                line = _vidur(table, device, operation, group)
                lines += [line] if line else []
    lines += [_in_job(table, operation) for operation in ("all_gather", "reduce_scatter")]
    return lines


def _vidur(table: list[dict[str, str]], device: str, operation: str, group: int) -> str:
    chosen = [
        r
        for r in table
        if r["interconnect"] == f"{device.lower()}_dgx"
        and r["collective"] == operation
        and r["n_nodes"] == "2"
        and int(float(r["n_gpus"])) == group
    ]
    if not chosen:
        return ""
    labels = [re.search(r"size=(\d+)", r["size_label"]) for r in chosen]
    sizes = np.array([float(label.group(1)) if label else 0.0 for label in labels])
    time_s = np.array([float(r["time_us"]) * 1e-6 for r in chosen])
    ours = "send" if operation == "send_recv" else operation
    cards = 1 if ours == "send" else group // 2
    fit = fit_line(bus_share(ours, group) * sizes / cards, time_s)
    return _text(
        f"{ours}, {group} {device} on 2 nodes (vidur)", fit, 50 if device == "H100" else 25
    )


def _in_job(table: list[dict[str, str]], operation: str) -> str:
    """Bus bandwidth before jobs on p5 nodes, best tenth of the jobs: 1 / B = 1 / B0 + n a / S with
    n devices; the size S is not stated, so that the latency a is not known."""
    chosen = [
        r
        for r in table
        if r["source"].startswith("HF Ultra-Scale")
        and r["collective"] == operation
        and int(float(r["n_nodes"])) > 1
    ]
    n = np.array([float(r["n_gpus"]) for r in chosen])
    best = np.array([float(re.findall(r"p90 ([\d.]+)", r["notes"])[0]) for r in chosen])
    usual = np.array([float(r["busbw_gbps"]) for r in chosen])
    slope, level = np.polyfit(n, 1 / best, 1, w=best)
    return (
        f"{operation} before jobs, 16 to 512 H100, 8 EFA cards of 50 GB/s: best tenth B0 = "
        f"{1 / level:.0f} GB/s per node ({1 / level / 400:.2f} of its cards), a / S = "
        f"{slope * 1e-9:.2g} s/byte; the median job reaches {usual[0]:.0f} GB/s on 16 and "
        f"{usual[-1]:.0f} on 512 devices"
    )


def _text(name: str, fit: LineFit, card_gb_per_s: float) -> str:
    rate = fit.rate_bytes_per_s / 1e9
    return (
        f"{name}: latency {fit.latency_s * 1e6:.0f} us, {rate:.1f} GB/s per card "
        f"({rate / card_gb_per_s:.2f} of {card_gb_per_s:.0f}), off by {fit.median_error:.0%} at "
        f"the median, {fit.p90_error:.0%} at the 90th percentile of {fit.rows} rows"
    )
