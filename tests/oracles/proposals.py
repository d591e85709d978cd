"""What the planner would have proposed for groups of published runs, beside what was measured.

A group is one model on one number of devices in one framework, batch and precision, of which a
source measured several layouts. The planner searches all layouts of that framework; its choice must
not be predicted slower than any measured layout, and where it is one of them, how far its measured
time is from the group's best is the regret.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.axes import Axes
from planner.layout.layout_answer import layout_title
from planner.layout.layout_question import layout_context
from planner.layout.layout_search import search_layouts
from planner.layout.memory_floor import MemoryLimit
from planner.layout.prices import LayoutPrices
from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import get_device
from shardwright.runs.complete import complete_run
from shardwright.runs.run import PublishedRun
from simulator.memory.footprint import footprint
from simulator.training_run.framework.framework import framework_names, load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import CoefficientFile, shipped_coefficients
from simulator.training_run.step.step_time import price_runs

FEWEST_LAYOUTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One group.

    predicted_s   of the proposed layout; best_predicted_s  of the measured layouts that fit, by
                  the same model
    best_measured_s   of the group;  regret  where the proposed layout was measured: its time over
                  the best, less 1
    """

    source: str
    num_devices: int
    layouts: int
    proposed: str
    predicted_s: float
    best_predicted_s: float
    best_measured_s: float
    regret: float | None


def proposals(
    runs: Iterable[PublishedRun], measured_s: Mapping[str, float]
) -> tuple[Proposal, ...]:
    """One per group with enough layouts of a framework whose layouts can be searched."""
    groups: dict[tuple[object, ...], list[TrainingRun]] = defaultdict(list)
    for run in runs:
        if run.id not in measured_s or None in (run.dp, run.tp, run.pp):
            continue
        try:
            done = complete_run(run)
        except ShardwrightError:
            continue
        if done.stack in framework_names() and not done.lora:
            groups[(run.source, *_group(done))].append(done)
    coefficients = shipped_coefficients()
    return tuple(
        _proposal(str(key[0]), found, measured_s, coefficients)
        for key, found in groups.items()
        if len({_layout(run) for run in found}) >= FEWEST_LAYOUTS
    )


def _group(run: TrainingRun) -> tuple[object, ...]:
    return (
        run.model,
        run.device,
        run.degrees.num_devices,
        run.node_devices,
        run.node_network,
        run.global_batch,
        run.seq_len,
        run.precision,
        run.stack,
    )


def _layout(run: TrainingRun) -> tuple[object, ...]:
    """What makes two measured layouts one; without a pipeline there is no schedule."""
    return (
        run.degrees.tp,
        run.degrees.cp,
        run.degrees.ep,
        run.degrees.pp,
        run.degrees.dp,
        run.degrees.vpp,
        run.zero_stage,
        run.micro_batch,
        run.recompute,
        run.schedule if run.degrees.pp > 1 else "",
    )


def _proposal(
    source: str,
    runs: Sequence[TrainingRun],
    measured_s: Mapping[str, float],
    coefficients: CoefficientFile,
) -> Proposal:
    first = runs[0]
    rules = load_framework(first.stack).rules
    # Sources that tell say alike of all their layouts whether the sequence is split.
    base = replace(
        first, recompute="none", sequence_parallel=any(run.sequence_parallel for run in runs)
    )
    context = layout_context(first, rules)
    found = search_layouts(
        LayoutPrices(base, coefficients),
        Axes(),
        context,
        # All that `fits` lets through, whatever its risk.
        limit=MemoryLimit(capacity_bytes=get_device(first.device).usable_bytes, risk=0.999),
        clock=time.monotonic,
    )
    times = price_runs(runs).parts.total_s.tolist()
    fitting = [seconds for run, seconds in zip(runs, times, strict=True) if footprint(run).fits]
    best = min(measured_s[run.id] for run in runs)
    chosen = found.layouts[0] if found.layouts else None
    same = [run for run in runs if chosen is not None and _layout(run) == _layout(chosen.run)]
    return Proposal(
        source=source,
        num_devices=first.degrees.num_devices,
        layouts=len(runs),
        proposed="" if chosen is None else layout_title(chosen.run),
        predicted_s=float("inf") if chosen is None else chosen.step_time_s,
        best_predicted_s=min(fitting, default=float("inf")),
        best_measured_s=best,
        regret=min(measured_s[run.id] for run in same) / best - 1 if same else None,
    )
