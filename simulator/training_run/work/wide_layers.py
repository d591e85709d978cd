"""What layers that stay in bf16 add to a run at a lower precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.training_run.framework.run_conditions import LOW_PRECISIONS
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_layers import stage_layers
from simulator.training_run.work.work_seconds import WorkSeconds

_NO_WIDE_LAYERS = {
    "wide_forward": 0.0,
    "wide_backward": 0.0,
    "wide_grouped_forward": 0.0,
    "wide_grouped_backward": 0.0,
}


def precisions(run: TrainingRun) -> tuple[TrainingRun, ...]:
    """The run, and where some of its layers stay in bf16 the same in bf16."""
    if not run.wide_layers or run.precision not in LOW_PRECISIONS:
        return (run,)
    return run, replace(run, precision="bf16")


def wide_layers_row(
    run: TrainingRun, low: Sequence[WorkSeconds], wide: Sequence[WorkSeconds]
) -> dict[str, float]:
    """What layers in bf16 take beyond those at the run's precision (dense, with experts)."""
    if not run.wide_layers or run.precision not in LOW_PRECISIONS:
        return _NO_WIDE_LAYERS
    share = run.model.num_expert_layers / run.model.num_layers

    def beyond(name: str) -> float:
        dense, expert = (
            getattr(b, name) - getattr(a, name) for a, b in zip(low, wide, strict=True)
        )
        return float(dense * (1 - share) + expert * share)

    backward = "frozen_backward_s" if run.lora else "matmul_backward_s"
    return {
        "wide_forward": beyond("matmul_forward_s"),
        "wide_backward": beyond(backward),
        "wide_grouped_forward": beyond("grouped_forward_s"),
        "wide_grouped_backward": beyond("grouped_backward_s"),
    }


def wide_stages_row(run: TrainingRun) -> dict[str, float]:
    """Layers in bf16 of the first and of the last stage."""
    first = last = 0.0
    if run.wide_layers and run.precision in LOW_PRECISIONS:
        full, tail = stage_layers(run)
        ends = float(run.wide_layers if run.degrees.pp > 1 else 2 * run.wide_layers)
        first, last = min(ends, full), min(ends, tail)
    return {"wide_first": first, "wide_last": last}
