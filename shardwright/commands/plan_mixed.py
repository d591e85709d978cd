"""`shardwright plan` on a cluster of mixed devices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.mixed_answer import MIXED_SCHEMA, MixedPlanFile
from planner.mixed_parts import only
from planner.mixed_plan_search import plan_mixed
from planner.space import Space
from planner.traced import Traced
from profiles.document import to_json, write_document
from profiles.errors import InfeasibleError
from profiles.hardware.cluster import Cluster
from profiles.sourced import Sourced
from shardwright.answer_json import answer_json
from shardwright.commands.output import note, show
from shardwright.questions import price_for
from shardwright.report.mixed_report import mixed_report
from shardwright.report.terminal import prediction_report
from simulator.plan import PLAN_SCHEMA
from simulator.stack import load_stack
from simulator.workload import Workload


def plan_on_mixed(
    trace: Callable[[], Traced],
    cluster: Cluster,
    work: Workload,
    space: Space,
    *,
    price: str,
    solver: str,
    seed: int,
    time_limit_s: float | None,
    assumed: tuple[str, ...],
    output: Path | None,
    json_output: bool,
    explain: bool,
    provenance: dict[str, Any],
) -> None:
    """Print (and write) the answer; raises InfeasibleError where nothing fits.

    Where the best plan has ranks all alike, the file written is an ordinary plan file.
    """
    answer = plan_mixed(
        trace(),
        cluster,
        work,
        space=space,
        stack=load_stack(),
        usd_per_hour=prices_of(cluster, price),
        solver=solver,
        seed=seed,
        time_limit_s=time_limit_s,
    )
    answer = replace(answer, assumptions=(*assumed, *answer.assumptions))
    if output is not None:
        _write(output, answer, provenance)
    if json_output:
        sys.stdout.write(to_json(answer_json(answer)))
    else:
        show(mixed_report(answer))
        if explain and answer.ordinary is not None and answer.ordinary.plan is not None:
            show(prediction_report(answer.ordinary, explain=True))
        elif explain:
            note("--explain adds nothing where replicas differ: -o writes every figure")
        if output is not None and answer.step_time_s is not None:
            note(f"written: {output}" + _what_next(answer, output))
    if answer.step_time_s is None:
        raise InfeasibleError(f"no plan of {answer.model} fits on {cluster.name}")


def prices_of(cluster: Cluster, price: str) -> dict[str, Sourced]:
    """US dollars per device-hour of each type that has a price of this kind."""
    names = {group.device.name for group in cluster.groups}
    found = {name: price_for(only(cluster, name), price) for name in sorted(names)}
    return {name: each for name, each in found.items() if each is not None}


def _write(output: Path, answer: MixedPlanFile, provenance: dict[str, Any]) -> None:
    if answer.ordinary is not None and answer.ordinary.plan is not None:
        write_document(output, answer.ordinary, schema=PLAN_SCHEMA, provenance=provenance)
    else:
        write_document(output, answer, schema=MIXED_SCHEMA, provenance=provenance)


def _what_next(answer: MixedPlanFile, output: Path) -> str:
    if answer.plan is not None:
        return ". Our executor runs replicas that are alike only: this plan is for other runtimes"
    return f". Next: shardwright predict {output} --html report.html"
