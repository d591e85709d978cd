"""The rows and columns of `size --csv`: what was chosen, the other types of devices, the front."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.reports.brief.columns import Column, with_interval
from simulator.mfu import MFU_DEFINITION

SIZE_COLUMNS = (
    Column(name="row", unit="", meaning="chosen, alternative, trade-off or refused"),
    Column(name="model", unit="", meaning="the model as it was named"),
    Column(name="device", unit="", meaning="type of device, by the catalogue's name"),
    Column(name="nodes", unit="nodes", meaning="rented"),
    Column(name="devices", unit="devices", meaning="rented, of all nodes"),
    Column(name="stack", unit="", meaning="framework"),
    Column(name="layout", unit="", meaning="degrees, schedule, micro-batch, ZeRO, recomputation"),
    Column(name="tokens", unit="tokens", meaning="of the whole run"),
    Column(name="steps", unit="steps", meaning="of the whole run"),
    Column(name="global_batch", unit="sequences", meaning="per step"),
    *with_interval("step_time_s", "s", "time of one optimizer step"),
    Column(name="mfu", unit="fraction", meaning=MFU_DEFINITION),
    *with_interval("days", "days", "from start to end of the run, failures and contingency in it"),
    *with_interval("device_hours", "device-hours", "paid for"),
    *with_interval("usd", "US dollars", "rent, storage and egress"),
    *with_interval("kwh", "kWh", "of devices, hosts and site"),
    *with_interval("tco2e", "t CO2e", "of the energy on the grid of the region"),
    *with_interval("productive_time", "fraction", "of the time in which steps are kept"),
    Column(name="probability_of_deadline", unit="fraction", meaning="that the run ends in time"),
    Column(name="probability_of_budget", unit="fraction", meaning="that the dollars are within it"),
    Column(name="usd_per_device_hour", unit="US dollars", meaning="rent of one device-hour"),
    Column(name="price", unit="", meaning="whose price, of which kind, of which dates"),
    Column(name="interruptions", unit="", meaning="unexpected, during the run"),
    Column(name="checkpoint_every_s", unit="s", meaning="the interval that loses least"),
    Column(name="spare_nodes", unit="nodes", meaning="so that waiting for one takes below 1 %"),
    Column(
        name="why_not_first", unit="", meaning="what it has against the chosen one, or why none"
    ),
)


def size_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per run of the answer; those of the trade-off are in closed form and have no
    intervals."""
    model = data["model"]
    rows: list[dict[str, Any]] = []
    if data.get("device") is not None:
        rows.append({"row": "chosen", **data, "model": model})
    for other in data["alternatives"]:
        rows.append({"row": "alternative", "model": model, **other})
    for point in data["front"]:
        rows.append({"row": "trade-off", "model": model, **point})
    for device, why in data["refused"].items():
        rows.append({"row": "refused", "model": model, "device": device, "why_not_first": why})
    return rows
