"""Shardwright: plan, predict, run and verify distributed training.

import shardwright
work = shardwright.Workload(global_batch=1024, sequence_length=8192)
answer = shardwright.plan("llama-3.1-70b", "16x8xh100-sxm", work, tp=(1, 2, 4))
answer.step_time_s
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Types of the functions of a plug-in, which is not imported here.
    from shardwright_frameworks.api import changes as changes
    from shardwright_frameworks.api import check as check
    from shardwright_frameworks.api import compare_log as compare_log
    from shardwright_frameworks.api import export as export
    from shardwright_frameworks.api import import_config as import_config
    from shardwright_frameworks.api import read_log as read_log
    from shardwright_frameworks.api import watch as watch
    from shardwright_placements.api import load_sharding as load_sharding
    from shardwright_placements.api import run_sharding as run_sharding
    from shardwright_placements.api import shard as shard

    from planner.layout.layout_answer import LayoutFile
    from profiles.errors import InputError, ShardwrightError
    from shardwright.api import (
        cluster,
        compare,
        diff,
        fit,
        frameworks,
        load_plan,
        load_run,
        plan,
        predict,
        profile,
        report,
        run,
        size,
        trace,
    )
    from simulator.values.plan import Plan
    from simulator.values.plan_file import PlanFile
    from simulator.values.prediction import Prediction
    from simulator.values.workload import Workload

__version__ = "0.1.0"

_VALUES = {
    "Workload": "simulator.values.workload",
    "Plan": "simulator.values.plan",
    "PlanFile": "simulator.values.plan_file",
    "Prediction": "simulator.values.prediction",
    "LayoutFile": "planner.layout.layout_answer",
    "InputError": "profiles.errors",
    "ShardwrightError": "profiles.errors",
}

# Functions of plug-ins are attributes too (shardwright/plugins/plugin.py).
__all__ = [
    "InputError",
    "LayoutFile",
    "Plan",
    "PlanFile",
    "Prediction",
    "ShardwrightError",
    "Workload",
    "__version__",
    "cluster",
    "compare",
    "diff",
    "fit",
    "frameworks",
    "load_plan",
    "load_run",
    "plan",
    "predict",
    "profile",
    "report",
    "run",
    "size",
    "trace",
]


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


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name in _VALUES:
            return getattr(importlib.import_module(_VALUES[name]), name)
        if name in __all__:
            return getattr(importlib.import_module("shardwright.api"), name)
        if not name.startswith("_"):
            from shardwright.plugins.plugin import plugin_function

            function = plugin_function(name)
            if function is not None:
                return function
        raise AttributeError(f"module 'shardwright' has no attribute {name!r}")


def __dir__() -> list[str]:
    from shardwright.plugins.plugin import plugins

    return sorted({*__all__, *(name for plugin in plugins() for name in plugin.functions)})
