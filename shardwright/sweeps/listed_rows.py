"""`listed_json`: all plans of a sweep in the order of --sort, for `plan --json`, summary.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.sweeps.best_rows import best_rows
from shardwright.sweeps.study_requests import PLANS
from shardwright.sweeps.study_run import StudyRun, plan_file_of

SWEEP_SCHEMA = "shardwright/sweep@1"
# Keys with the names that the tables of a sweep have too.
_SAME = (
    *("model", "cluster", "global_batch", "sequence_length", "precision", "optimizer", "pins"),
    *("status", "step_time_s", "step_time_low_s", "step_time_high_s", "gap", "mfu"),
    *("peak_memory_bytes", "pp", "dp", "tp", "vpp", "schedule", "micro_batch", "zero_stage"),
)


def listed_json(run: StudyRun, sort: str) -> dict[str, Any]:
    """The rows as plain values, those without a plan last; every key is there, null if it has no
    value.

    sort  a name of plan_columns.PLAN_SORTS
    """
    rows: Sequence[dict[str, Any]] = run.rows.get(PLANS, [])
    best = best_rows(run.rows, sort, len(rows))
    found = {row["question"] for row in best}
    others = [row for row in rows if row["question"] not in found]
    lines = [_line(row) for row in (*best, *others)]
    return {"schema": SWEEP_SCHEMA, "sorted_by": sort, "rows": lines}


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    """One request with its answer; `file` is the plan file in the folder, "" if nothing fits."""
    tokens = row.get("counted_in") == "tokens"
    rate, usd = row.get("rate"), row.get("usd_per_million")
    return {
        **{name: row.get(name) for name in _SAME},
        "price": row["price_asked"],
        "tokens_per_s": rate if tokens else None,
        "samples_per_s": None if tokens else rate,
        "usd_per_million_tokens": usd if tokens else None,
        "usd_per_million_samples": None if tokens else usd,
        "price_usd_per_hour": row.get("usd_per_device_hour"),
        "price_source": row["price"] or "",
        "price_date": row["price_date"] or "",
        "file": "" if row.get("step_time_s") is None else plan_file_of(row),
        "reason": row["reason"],
    }
