"""`check_config`: a configuration of another framework, or an exported folder, beside its plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from interop.configs.read_config import read_config
from interop.exports.agreement import Agreement, agreement, agreement_of_plans
from interop.exports.targets.targets import TARGETS
from interop.exports.values.exported import Unexpressed
from interop.exports.values.planned_run import PlannedRun
from planner.layout.layout_answer import LAYOUT_SCHEMA
from profiles.document import read_mapping
from profiles.errors import DocumentError, InputError
from shardwright.asking.opened_plan import open_plan
from shardwright.asking.planned_run import planned_run
from simulator.values.plan import PLAN_SCHEMA

_CHECK = "plan-check.json"
# What an import calls a framework, where it is no target's own name.
_TARGET_OF = {
    "megatron-lm": "megatron",
    "megatron-core": "megatron",
    "nemo": "megatron-bridge",
    "transformers": "hf-trainer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedConfig:
    """What was compared, with which framework, and what of the plan its words cannot say."""

    framework: str
    agreement: Agreement
    not_expressed: tuple[str, ...] = ()


def check_config(planned: PlannedRun, against: Path) -> CheckedConfig:
    """The configuration beside the plan.

    An exported folder says in plan-check.json which target it is for; of what that target has no
    words for, what was written instead must stand there. Raises DocumentError where nothing can be
    read.
    """
    target = _exported_for(against)
    own = against / "plan.json" if against.is_dir() else against
    if own.suffix == ".json" and own.is_file():
        schema = read_mapping(own).get("schema")
        if schema in (PLAN_SCHEMA, LAYOUT_SCHEMA):
            found = planned_run(open_plan(own))
            return CheckedConfig(
                framework="shardwright", agreement=agreement_of_plans(planned, found)
            )
    config = against
    if target and against.is_dir():
        config = against / TARGETS[target].config
        if not config.is_file():
            raise DocumentError(f"{against} was exported to {target}, but {config.name} is missing")
    imported = read_config(config)
    framework = imported.framework or ""
    gaps = _gaps(planned, target or _TARGET_OF.get(framework, framework))
    return CheckedConfig(
        framework=framework or target,
        agreement=agreement(planned, imported, gaps),
        not_expressed=tuple(f"{gap.option} {gap.planned} -> {gap.written}" for gap in gaps),
    )


def _exported_for(against: Path) -> str:
    """The target of an exported folder, or "" for any other path."""
    check = against / _CHECK
    if not check.is_file():
        return ""
    found = str(read_mapping(check).get("target", ""))
    return found if found in TARGETS else ""


def _gaps(planned: PlannedRun, target: str) -> tuple[Unexpressed, ...]:
    """What the target has no words for; nothing for another framework, or where it cannot run the
    plan at all."""
    if target not in TARGETS:
        return ()
    try:
        return TARGETS[target].export(planned).unexpressed
    except InputError:
        return ()
