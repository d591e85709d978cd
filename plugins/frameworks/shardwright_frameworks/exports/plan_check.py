"""`plan_check`: predicted figures to compare with the first steps of the exported run."""

from __future__ import annotations

from typing import Any

from profiles.document import encode
from shardwright_frameworks.exports.agreement import AXES
from shardwright_frameworks.exports.cost_of_gaps import CostOfGaps
from shardwright_frameworks.exports.values.planned_run import PlannedRun

PLAN_CHECK_SCHEMA = "shardwright/plan-check@1"
STEPS, WARM_UP = 20, 5


def plan_check(planned: PlannedRun, target: str, costs: CostOfGaps) -> dict[str, Any]:
    """The document `plan-check.json`.

    Step time and rates are those of the planned run. If the target cannot express a part of it,
    they are those of the exported run, computed from the price of the gaps.
    """
    run, figures = planned.run, planned.prediction
    factor = 1.0 + (costs.slower or 0.0)
    more = costs.more_bytes or 0.0
    return {
        "schema": PLAN_CHECK_SCHEMA,
        "plan": planned.plan,
        "target": target,
        "steps": STEPS,
        "warm_up_steps": WARM_UP,
        "world_size": planned.run.degrees.num_devices,
        "degrees": {axis: getattr(run.degrees, axis) for axis in AXES},
        "step_time_s": encode(figures.step_time_s.scaled(factor)),
        "tokens_per_s": encode(figures.per_s.scaled(1.0 / factor)),
        "tokens_per_s_per_device": encode(
            figures.per_s.scaled(1.0 / factor / planned.run.degrees.num_devices)
        ),
        "mfu": encode(figures.mfu.scaled(1.0 / factor)),
        "peak_memory_bytes": {
            "fullest_rank": figures.peak.value + more,
            "low": figures.peak.low + more,
            "high": figures.peak.high + more,
            "by_pipeline_rank": [rank.peak_bytes for rank in figures.ranks] if not more else [],
        },
        "interval": "90 %: one run in ten lies outside",
        "changed_by_what_is_not_expressed": factor != 1.0 or bool(more),
    }
