"""Shardwright: plan, predict, run and verify distributed training.

import shardwright
model = shardwright.trace("llama-3.1-70b", sequence_length=8192)
cluster = shardwright.cluster("16x8xh100-sxm")
work = shardwright.Workload(global_batch=1024, sequence_length=8192)
answer = shardwright.plan(model, cluster, work)
answer.step_time_s
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

__all__ = [
    "Plan",
    "PlanFile",
    "Prediction",
    "Workload",
    "__version__",
    "cluster",
    "compare",
    "load_plan",
    "load_sharding",
    "plan",
    "predict",
    "run",
    "run_sharding",
    "shard",
    "trace",
]

_VALUES = {
    "Workload": "simulator.workload",
    "Plan": "simulator.plan",
    "PlanFile": "simulator.plan_file",
    "Prediction": "simulator.prediction",
}


def _check_siblings() -> None:
    """Packages of plain names must be ours: another `executor` on the path would be silently used.

    Raises ImportError with the file that is in the way.
    """
    home = Path(__file__).resolve().parents[1]
    for name in ("profiles", "simulator", "planner", "executor"):
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if found is None or found.parents[1] != home:
            raise ImportError(
                f"Shardwright's package {name!r} is hidden by {found}; run from another folder or "
                "rename that file"
            )


_check_siblings()


def __getattr__(name: str) -> Any:
    if name in _VALUES:
        return getattr(importlib.import_module(_VALUES[name]), name)
    if name in __all__:
        return getattr(importlib.import_module("shardwright.api"), name)
    raise AttributeError(f"module 'shardwright' has no attribute {name!r}")
