"""Rows and columns of `size --csv`: the chosen run, other types of devices, the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.reports.brief.columns import Column, with_interval
from simulator.mfu import MFU_DEFINITION

SIZE_COLUMNS = (
    Column(name="row", unit="", meaning="chosen, alternative, trade-off or refused"),
    Column(name="model", unit="", meaning="the model as given by the user"),
    Column(name="device", unit="", meaning="type of device, by its name in the catalog"),
    Column(name="nodes", unit="nodes", meaning="rented"),
    Column(name="devices", unit="devices", meaning="rented, of all nodes"),
    Column(name="stack", unit="", meaning="framework"),
    Column(name="layout", unit="", meaning="degrees, schedule, micro-batch, ZeRO, recomputation"),
    Column(name="tokens", unit="tokens", meaning="of the whole run"),
    Column(name="steps", unit="steps", meaning="of the whole run"),
    Column(name="global_batch", unit="sequences", meaning="per step"),
    *with_interval("step_time_s", "s", "time of one optimizer step"),
    Column(name="mfu", unit="fraction", meaning=MFU_DEFINITION),
    *with_interval("days", "days", "duration of the run, including failures and contingency"),
    *with_interval("device_hours", "device-hours", "paid device-hours"),
    *with_interval("usd", "US dollars", "rent, storage and egress"),
    *with_interval("kwh", "kWh", "of devices, hosts and site"),
    *with_interval("tco2e", "t CO2e", "of the energy, for the grid of the region"),
    *with_interval("productive_time", "fraction", "of the time in which steps are kept"),
    Column(name="probability_of_deadline", unit="fraction", meaning="that the run ends in time"),
    Column(name="probability_of_budget", unit="fraction", meaning="that the budget is kept"),
    Column(name="usd_per_device_hour", unit="US dollars", meaning="rent of one device-hour"),
    Column(name="price", unit="", meaning="provider, kind and dates of the price"),
    Column(name="interruptions", unit="", meaning="unexpected, during the run"),
    Column(name="checkpoint_every_s", unit="s", meaning="the optimal checkpoint interval"),
    Column(name="spare_nodes", unit="nodes", meaning="needed to wait at most 1 % of the time"),
    Column(
        name="why_not_first",
        unit="",
        meaning="disadvantage to the chosen one, or why there is none",
    ),
)


def size_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per run of the answer; trade-off rows are in closed form, without intervals."""
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
