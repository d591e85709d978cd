"""`OpenedPlan`: a plan file of any kind, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.layout.layout_answer import (
    LAYOUT_SCHEMA,
    LayoutFile,
    layout_decision,
    written_decision,
)
from planner.space import EXECUTOR
from profiles.document import read_document, read_mapping, schema_name, write_document
from profiles.errors import DocumentError, InputError
from profiles.hardware.catalogue.catalog import get_cluster
from shardwright.requests.imported_file import IMPORTED_SCHEMA
from shardwright.requests.local_paths import local_profile
from shardwright.requests.plan_route import runnable_answer, unsupported_options
from simulator.values.measurement import MEASUREMENT_SCHEMA
from simulator.values.plan import PLAN_SCHEMA, Plan
from simulator.values.plan_file import PlanFile, check_decision, read_plan_file

PlanLike = str | Path | PlanFile | LayoutFile
"""The path of a plan file, or an answer of `plan`."""
_OTHERS = {
    MEASUREMENT_SCHEMA: (
        f"is not a {PLAN_SCHEMA} file but the measurement of a run; `compare` takes the plan "
        "first: shardwright compare PLAN RUN"
    ),
    IMPORTED_SCHEMA: (
        "is an imported run, no plan; `predict`, `plan --from` and `compare --log` take it. For "
        "what takes a plan, plan first: shardwright plan MODEL --on CLUSTER -o plan.json"
    ),
    "shardwright/op-sharding@1": "is a sharding file of `shard`; only `run` takes it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedPlan:
    """A plan file: its path, its answer, and its version and command."""

    path: Path
    answer: PlanFile | LayoutFile
    provenance: Mapping[str, Any]

    @property
    def runs_here(self) -> bool:
        """Whether our own executor can run the plan: no other framework's layout, and no option
        that the executor does not have."""
        if not isinstance(self.answer, LayoutFile):
            return True
        chosen = self.answer.chosen
        return self.answer.stack == EXECUTOR and not (chosen and unsupported_options(chosen.run))

    @property
    def planned(self) -> PlanFile:
        """The answer for our own executor. A layout is converted to stages of the model's blocks;
        the model is traced for this.

        Raises DocumentError for another framework's layout, InputError, TraceError and ModelError
        for a layout that cannot be run (`runnable_answer`).
        """
        if isinstance(self.answer, LayoutFile) and self.answer.stack == EXECUTOR:
            cluster = get_cluster(self.answer.cluster, local=local_profile())
            return runnable_answer(self.answer, cluster, where=str(self.path))
        if isinstance(self.answer, LayoutFile):
            raise DocumentError(
                f"{self.path} is a layout of {self.answer.model} for {self.answer.stack}, which "
                "has its own launcher; export it, or plan with --stack torch for `run`"
            )
        return self.answer

    @property
    def plan(self) -> Plan:
        """The plan for our own executor; raises DocumentError if the file has none."""
        if self.planned.plan is None:
            raise DocumentError(f"{self.path} has no plan: nothing fits ({self.answer.status})")
        return self.planned.plan


def open_plan(path: str | Path) -> OpenedPlan:
    """The plan file at `path`: a plan, or a framework's layout.

    Raises DocumentError for another file, for unequal replicas, and for a file whose decisions were
    edited, naming the key.
    """
    data = read_mapping(path)
    tag = data.get("schema")
    found = data.get("provenance")
    provenance: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    if isinstance(tag, str) and tag in _OTHERS:
        raise DocumentError(f"{path} {_OTHERS[tag]}")
    answer: PlanFile | LayoutFile
    if schema_name(tag) == schema_name(LAYOUT_SCHEMA):
        chosen = data.get("chosen")
        run = chosen.get("run") if isinstance(chosen, Mapping) else None
        if isinstance(run, Mapping):
            # Before decoding: an edited degree also contradicts the number of devices.
            check_decision(str(path), provenance.get("decided"), written_decision(run))
        answer = read_document(path, LayoutFile, schema=LAYOUT_SCHEMA)
    else:
        answer = read_plan_file(path)
        if answer.plan is not None and answer.plan.pipelines is not None:
            raise DocumentError(
                f"{path} has unequal replicas on mixed devices; `run`, `predict` and `compare` "
                "need equal replicas. Plan on one device type, or use a runtime with uneven "
                "stages and shares"
            )
    return OpenedPlan(path=Path(path), answer=answer, provenance=provenance)


def opened_plan(plan: PlanLike) -> OpenedPlan:
    """An answer of `plan`, or the plan file at a path; raises as open_plan, and InputError for
    other values."""
    if isinstance(plan, (PlanFile, LayoutFile)):
        return OpenedPlan(path=Path("plan.json"), answer=plan, provenance={})
    if isinstance(plan, (str, Path)):
        return open_plan(plan)
    raise InputError(
        f"expected an answer of plan() or the path of a plan file, got {type(plan).__name__}"
    )


def write_layout(path: Path, answer: LayoutFile, *, provenance: Mapping[str, Any]) -> None:
    """Write a layout as a plan file, with its decisions, so that edits by hand are noticed."""
    decided = {} if answer.chosen is None else {"decided": layout_decision(answer.chosen.run)}
    write_document(path, answer, schema=LAYOUT_SCHEMA, provenance={**provenance, **decided})
