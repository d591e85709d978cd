"""`check_config`: compares a framework's configuration, or an exported folder, with its plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from planner.layout.layout_answer import LAYOUT_SCHEMA
from profiles.document import read_mapping, schema_name
from profiles.errors import DocumentError, InputError
from profiles.text_file import read_text
from shardwright.requests.imported_file import is_imported
from shardwright.requests.opened_plan import open_plan
from shardwright_frameworks.exports.agreement import (
    Agreement,
    Disagreement,
    agreement,
    agreement_of_plans,
)
from shardwright_frameworks.exports.launchers.job import RUN_SCRIPT
from shardwright_frameworks.exports.stage_words import STAGE_WORDS, stage_words
from shardwright_frameworks.exports.targets.targets import TARGETS
from shardwright_frameworks.exports.values.exported import Unexpressed
from shardwright_frameworks.exports.values.planned_run import PlannedRun
from shardwright_frameworks.imported_run import ImportedRun, read_imported
from shardwright_frameworks.reading.read_config import read_config
from shardwright_frameworks.requests.planned_run import planned_run
from simulator.values.plan import PLAN_SCHEMA

_CHECK = "plan-check.json"
_JOB = "training.json"
# Names of frameworks in imports that differ from the targets' names.
_TARGET_OF = {
    "megatron-lm": "megatron",
    "megatron-core": "megatron",
    "nemo": "megatron-bridge",
    "primus": "megatron",
    "transformers": "hf-trainer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedConfig:
    """The compared path, its framework, and the decisions of the plan that it cannot express."""

    against: str
    framework: str
    agreement: Agreement
    not_expressed: tuple[str, ...] = ()


def check_config(planned: PlannedRun, against: Path) -> CheckedConfig:
    """The configuration compared with the plan.

    The target of an exported folder is in plan-check.json; for decisions that it cannot express,
    the folder must contain the replacement values. Raises DocumentError if the path cannot be read.
    """
    target = _exported_for(against)
    own = against / "plan.json" if against.is_dir() else against
    if own.suffix == ".json" and own.is_file():
        schema = schema_name(read_mapping(own).get("schema"))
        if schema in map(schema_name, (PLAN_SCHEMA, LAYOUT_SCHEMA)):
            other = planned_run(open_plan(own))
            return CheckedConfig(
                against=str(against),
                framework="shardwright",
                agreement=agreement_of_plans(planned, other),
            )
    if planned.only_here:
        raise InputError(
            f"{against} is no folder of this plan: {planned.only_here}; only a folder exported "
            "with --to torchrun can be compared with it"
        )
    path = _decisive(against, target)
    imported = read_imported(path) if is_imported(path) else read_config(path)
    if target and (against / _JOB).is_file():
        imported = _with_job(imported, against / _JOB)
    if target and against.is_dir():
        imported = _with_launch(imported, against)
    framework = imported.framework or ""
    target = target or _TARGET_OF.get(framework, framework)
    gaps = _gaps(planned, target)
    found = agreement(planned, imported, gaps)
    stages = _stage_differences(planned, target, against)
    return CheckedConfig(
        against=str(against),
        framework=framework or target,
        agreement=replace(found, different=(*found.different, *stages)),
        not_expressed=tuple(f"{gap.option} {gap.planned} -> {gap.written}" for gap in gaps),
    )


def _decisive(against: Path, target: str) -> Path:
    """The decisive file of an exported folder; any other path unchanged."""
    if not target or not against.is_dir():
        return against
    config = against / TARGETS[target].config
    if target == "deepspeed" and not (against / _JOB).is_file():
        config = against / RUN_SCRIPT  # layers or stages are split by Megatron-DeepSpeed's flags
    if not config.is_file():
        raise DocumentError(f"{against} was exported to {target}, but {config.name} is missing")
    return config


def _with_job(imported: ImportedRun, job: Path) -> ImportedRun:
    """The import with the values that the exported program reads from training.json: the batch, and
    recomputation if the framework's own file does not have it."""
    data = read_mapping(job)
    return replace(
        imported,
        micro_batch=imported.micro_batch or data.get("micro_batch"),
        global_batch=imported.global_batch or data.get("global_batch"),
        seq_len=imported.seq_len or data.get("seq_len"),
        recompute="full" if data.get("gradient_checkpointing") else imported.recompute,
    )


def _with_launch(imported: ImportedRun, against: Path) -> ImportedRun:
    """The import with the number of devices from the folder's script, if the configuration does not
    have it."""
    if imported.devices is not None or not (against / RUN_SCRIPT).is_file():
        return imported
    launched = read_config(against)
    return replace(
        imported,
        devices=launched.devices,
        dp=launched.dp if imported.dp is None else imported.dp,
    )


def _stage_differences(planned: PlannedRun, target: str, against: Path) -> tuple[Disagreement, ...]:
    """Differences from the exported options for unequal stages and for the schedule."""
    if target not in STAGE_WORDS or planned.run.degrees.pp == 1:
        return ()
    try:
        files = {file.path: file.text for file in TARGETS[target].export(planned).files}
        files[RUN_SCRIPT] = "\n".join(TARGETS[target].export(planned).arguments)
    except InputError:
        return ()
    name = TARGETS[target].config
    path = against / name if against.is_dir() else against
    wanted, found = stage_words(target, files[name]), stage_words(target, read_text(path))
    return tuple(
        Disagreement(key=key, planned=value, found=found.get(key, "nothing"), where=path.name)
        for key, value in wanted.items()
        if found.get(key) != value
    )


def _exported_for(against: Path) -> str:
    """The target of an exported folder, or "" for any other path."""
    check = against / _CHECK
    if not check.is_file():
        return ""
    found = str(read_mapping(check).get("target", ""))
    return found if found in TARGETS else ""


def _gaps(planned: PlannedRun, target: str) -> tuple[Unexpressed, ...]:
    """Decisions that the target cannot express; none for another framework, or if it cannot run the
    plan at all."""
    if target not in TARGETS:
        return ()
    try:
        return TARGETS[target].export(planned).unexpressed
    except InputError:
        return ()
