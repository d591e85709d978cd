"""Time that layers kept in bf16 add to a run at a lower precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.training_run.framework.run_conditions import LOW_PRECISIONS
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_layers import stage_layers
from simulator.training_run.work.work_seconds import WorkSeconds

_NAMES = ("forward", "backward", "grouped_forward", "grouped_backward")


def precisions(run: TrainingRun) -> tuple[TrainingRun, ...]:
    """The run, and where some of its layers stay in bf16 the same in bf16."""
    if not run.wide_layers or run.precision not in LOW_PRECISIONS:
        return (run,)
    return run, replace(run, precision="bf16")


def wide_layers_row(
    run: TrainingRun, low: Sequence[WorkSeconds], wide: Sequence[WorkSeconds]
) -> dict[str, float]:
    """Seconds of layers in bf16 less seconds of layers at the run's precision.

    low, wide  of a dense layer and one with experts
    """
    row = {f"wide_{name}": 0.0 for name in _NAMES}
    if not run.wide_layers or run.precision not in LOW_PRECISIONS:
        return row
    share = run.model.num_expert_layers / run.model.num_layers
    for name in _NAMES:
        field = f"{name}_s" if name.startswith("grouped") else f"matmul_{name}_s"
        dense, expert = (
            getattr(b, field) - getattr(a, field) for a, b in zip(low, wide, strict=True)
        )
        row[f"wide_{name}"] = float(dense * (1 - share) + expert * share)
    return row


def wide_stages_row(run: TrainingRun) -> dict[str, float]:
    """Layers in bf16 of the first and of the last stage."""
    first = last = 0.0
    if run.wide_layers and run.precision in LOW_PRECISIONS:
        full, tail = stage_layers(run)
        ends = float(run.wide_layers if run.degrees.pp > 1 else 2 * run.wide_layers)
        first, last = min(ends, full), min(ends, tail)
    return {"wide_first": first, "wide_last": last}
