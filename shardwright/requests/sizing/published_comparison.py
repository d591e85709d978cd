"""`PublishedComparison`: the published run of the requested model, with a prediction for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from profiles.hardware.catalogue.catalog import node_design
from shardwright.requests.sizing.size_flags import NamedDevice, Range, SizeFlags
from shardwright.runs.whole_run import WholeRun
from simulator.values.prediction import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedComparison:
    """A published run, and its device-hours as the defaults of the answer predict them."""

    run: WholeRun
    predicted_device_hours: Interval

    @property
    def error(self) -> float:
        """Predicted over published device-hours, minus 1."""
        return self.predicted_device_hours.value / self.run.device_hours - 1.0


def published_flags(flags: SizeFlags, run: WholeRun, answer_devices: int) -> SizeFlags:
    """The request with the tokens and devices of the published run, otherwise unchanged.

    answer_devices  taken if the number of devices is not published
    """
    per_node = node_design(run.device).devices
    nodes = max(1, round((run.devices or answer_devices) / per_node))
    return replace(
        flags,
        options=replace(flags.options, phases=None),
        on=(NamedDevice(name=run.device),),
        tokens=run.tokens,
        optimal_tokens=False,
        deadline_s=None,
        budget_usd=None,
        nodes=Range(first=nodes, last=nodes),
        devices=None,
        minimise="time",
    )
