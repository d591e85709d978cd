"""The ways to a prediction of one and the same plan, each as named numbers.

A route returns the numbers that its result has: seconds by part, memory, MFU, energy and dollars
with both ends of their intervals. Two routes are compared on the names that both have.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from planner.layout.layout_answer import LayoutFile
from profiles.document import encode, write_document
from profiles.hardware.catalogue.catalog import CLUSTER_SCHEMA
from profiles.hardware.catalogue.cluster import Cluster
from shardwright import api
from shardwright.cli import app
from shardwright.commands.tables.predict_modules import predicted_modules
from shardwright.commands.tables.predict_runs import (
    OK,
    PREDICTED_COLUMNS,
    PredictedRun,
    predicted_runs,
    row_of,
)
from shardwright.requests.local_paths import local_profile
from shardwright.requests.opened_plan import write_layout
from shardwright.requests.planned_step import PlannedStep
from shardwright.requests.provenance import provenance
from shardwright.runs.complete import complete_run
from shardwright.runs.module_table import ModuleRow
from shardwright.runs.run import PublishedRun
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.plan_file import PlanFile, write_plan_file
from simulator.values.prediction import Interval, Part, Prediction
from tests.equality.profiled_cpu import profiled_cpu
from tests.equality.questions import CachedAnswer, Kind

Numbers = dict[str, float]
_GIB = 2.0**30
_INTERVALS = (
    "step_time_s",
    "tokens_per_s",
    "samples_per_s",
    "usd_per_million_tokens",
    "usd_per_million_samples",
    "kwh_per_million_tokens",
    "kwh_per_million_samples",
)


class NotApplicable(Exception):
    """The route has no prediction of such a plan, by its purpose."""


def in_the_answer(answered: CachedAnswer) -> Numbers:
    """The prediction inside the answer of `plan`, memory also in the unit of tables."""
    found = _in_the_answer(answered)
    memory = {name: value for name, value in found.items() if name.startswith("peak_memory_bytes")}
    return found | {name.replace("_bytes", "_gib"): value / _GIB for name, value in memory.items()}


def _in_the_answer(answered: CachedAnswer) -> Numbers:
    answer = answered.answer
    if isinstance(answer, LayoutFile):
        assert answer.chosen is not None
        return _of_prediction(answer.chosen.prediction)
    assert answer.prediction is not None
    found = _of_prediction(answer.prediction)
    for name in ("step_time_s", "mfu", "peak_memory_bytes"):
        # The answer repeats them beside its plan.
        assert getattr(answer, name) == found[name], name
    return found


def of_the_answer(answered: CachedAnswer) -> Numbers:
    """`predict` of the answer."""
    return _of_step(api.predict(answered.answer))


def of_its_plan(answered: CachedAnswer) -> Numbers:
    """`predict` of the plan in the answer and of the cluster, which names its model."""
    return _of_prediction(api.predict(_own(answered).plan, on=answered.question.cluster))


def of_plan_and_model(answered: CachedAnswer) -> Numbers:
    """`predict` of the plan in the answer with the traced model."""
    plan = _own(answered).plan
    assert plan is not None
    return _of_prediction(api.predict(plan, answered.traced, answered.question.cluster))


def of_the_file(answered: CachedAnswer) -> Numbers:
    """The command `predict` of a plan file whose stored step takes twice as long: it is computed
    from the plan again, not read back."""
    with tempfile.TemporaryDirectory() as folder, local_machine_is(profiled_cpu()):
        path = _written(_slowed(answered.answer), Path(folder))
        return _printed(path)


def of_the_row(answered: CachedAnswer) -> Numbers:
    """`predict --runs` of the row that describes the run."""
    run = _run_of(answered)
    row = row_of_run(run)
    completed = complete_run(row)
    # What no row says, or says in other words: names, and the schedule of one pipeline rank.
    silent: Mapping[str, Any] = {
        "id": run.id,
        "defaults": run.defaults,
        "memory_kind": run.memory_kind,
        "schedule": run.schedule if run.degrees.pp == 1 else completed.schedule,
    }
    if replace(completed, **silent) != run:
        raise NotApplicable("no row describes the run")
    return _of_row(predicted_runs([row])[0])


def of_the_module_row(answered: CachedAnswer) -> Numbers:
    """`predict --modules` of the row that describes a plan of one device, which takes the batch at
    once and computes nothing again."""
    question = answered.question
    row = ModuleRow(
        row=1,
        id="one",
        factory=question.model,
        arguments={"batch": question.work.global_batch},
        device=question.cluster.device_at(0).name,
        precision=question.work.precision,
        framework="torch 2.9 sdpa",
        optimizer="adamw",
    )
    with contextlib.redirect_stderr(io.StringIO()):
        return _of_row(predicted_modules([row], folder=Path(__file__).parents[2])[0])


@contextlib.contextmanager
def local_machine_is(cluster: Cluster) -> Iterator[None]:
    """`local` names the cluster meanwhile."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", folder)
        write_document(local_profile(), cluster, schema=CLUSTER_SCHEMA)
        yield


@dataclass(frozen=True, slots=True)
class Difference:
    """A number that two routes give differently."""

    question: str
    name: str
    planned: float
    found: float

    def __str__(self) -> str:
        return f"{self.question}: {self.name} {self.planned!r} in the answer, {self.found!r}"


def differences(
    question: str, planned: Numbers, found: Numbers, *, digits: int | None = None
) -> list[Difference]:
    """The numbers of both that are not equal, float for float or to the digits that are printed.

    A part of the step that one side has and the other has not counts as zero there.
    """
    names = [name for name in planned if name in found]
    if any(name.startswith("part ") for name in found):
        parts = {n for n in (*planned, *found) if n.startswith("part ")}
        names = [name for name in names if name not in parts] + sorted(parts)
    assert "step_time_s" in names
    pairs = [(name, planned.get(name, 0.0), found.get(name, 0.0)) for name in names]
    return [
        Difference(question, name, ours, theirs)
        for name, ours, theirs in pairs
        if not _equal(ours, theirs, digits)
    ]


def _equal(first: float, second: float, digits: int | None) -> bool:
    if digits is None:
        return first == second
    return f"{first:.{digits}g}" == f"{second:.{digits}g}"


def _own(answered: CachedAnswer) -> PlanFile:
    if isinstance(answered.answer, LayoutFile):
        raise NotApplicable("a framework's layout is no plan of our executor")
    return answered.answer


def row_of_run(run: TrainingRun) -> PublishedRun:
    """The row of a table of runs that describes a run."""
    model = run.model
    moe = model.num_experts > 0
    return PublishedRun(
        row=1,
        id="row",
        model=run.id,
        family="moe" if moe else "dense",
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_size=model.ffn_size or None,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_size,
        vocab_size=model.vocab_size,
        seq_len=run.seq_len,
        gated_mlp=model.gated,
        tied_embeddings=model.tied_embeddings,
        num_experts=model.num_experts or None,
        top_k=model.top_k or None,
        moe_ffn_size=model.expert_size or None,
        device=run.device,
        num_devices=run.degrees.num_devices,
        devices_per_node=run.node_devices,
        dp=run.degrees.dp,
        tp=run.degrees.tp,
        pp=run.degrees.pp,
        vpp=run.degrees.vpp,
        cp=run.degrees.cp,
        ep=run.degrees.ep if moe else None,
        sequence_parallel=run.sequence_parallel,
        zero_stage=run.zero_stage,
        recompute=run.recompute,
        recompute_layers=run.recompute_layers or None,
        micro_batch=run.micro_batch,
        global_batch=run.global_batch,
        precision=run.precision,
        schedule=run.schedule if run.degrees.pp > 1 else "",
        framework="torch executor" if run.stack == "torch" else run.stack,
        order=run.degrees.axis_order,
        # The figure that an answer calls the peak.
        peak_memory_kind="allocated",
    )


def _run_of(answered: CachedAnswer) -> TrainingRun:
    if isinstance(answered.answer, LayoutFile):
        assert answered.answer.chosen is not None
        return answered.answer.chosen.run
    if answered.question.kind is not Kind.EXECUTOR:
        raise NotApplicable("no row describes a plan of blocks")
    question = answered.question
    layout = api.plan(
        question.model, question.cluster, question.work, stack="torch", **question.pins
    )
    assert layout.chosen is not None
    return layout.chosen.run


def _written(answer: PlanFile | LayoutFile, folder: Path) -> Path:
    path = folder / "plan.json"
    if isinstance(answer, LayoutFile):
        write_layout(path, answer, provenance=provenance())
    else:
        write_plan_file(path, answer, provenance=provenance())
    return path


def _slowed(answer: PlanFile | LayoutFile) -> PlanFile | LayoutFile:
    if isinstance(answer, LayoutFile):
        chosen = answer.chosen
        assert chosen is not None
        return replace(answer, chosen=replace(chosen, prediction=_doubled(chosen.prediction)))
    assert answer.prediction is not None
    return replace(answer, prediction=_doubled(answer.prediction))


def _doubled(made: Prediction) -> Prediction:
    parts = tuple(replace(part, time_s=2.0 * part.time_s) for part in made.components)
    return replace(made, step_time_s=made.step_time_s.scaled(2.0), components=parts)


def _printed(path: Path) -> Numbers:
    done = CliRunner().invoke(app, ["predict", str(path), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    found: Numbers = {}
    for name in _INTERVALS:
        _add_ends(found, name, data.get(name))
    for part in data.get("components", ()):
        found[f"part {part['name']}"] = part["time_s"]
    for name, time_s in data.get("parts", ()):
        found[f"part {Part[name.removesuffix('_s').upper()]}"] = time_s
    for name, ends in (("mfu", "mfu_range"), ("peak_memory_bytes", "peak_memory_range")):
        _add_ends(found, name, data.get(ends, data[name]))
    for rank in data.get("ranks", ()):
        _add_rank(found, rank)
    return found


def _add_ends(found: Numbers, name: str, ends: Mapping[str, float] | None) -> None:
    if ends is not None:
        found |= {name: ends["value"], f"{name} low": ends["low"], f"{name} high": ends["high"]}


def _add_rank(found: Numbers, rank: Mapping[str, Any]) -> None:
    for name, value in rank.items():
        if name.endswith("_bytes"):
            found[f"rank {rank['rank']} {name}"] = value


def _add(found: Numbers, name: str, value: Interval | None) -> None:
    if value is not None:
        _add_ends(found, name, encode(value))


def _of_prediction(made: Prediction) -> Numbers:
    found: Numbers = {}
    for name in (*_INTERVALS, "mfu", "peak_memory_bytes"):
        _add(found, name, getattr(made, name))
    for part in made.components:
        found[f"part {part.name}"] = part.time_s
    for rank in made.ranks:
        _add_rank(found, encode(rank))
    return found


def _of_step(made: PlannedStep) -> Numbers:
    found: Numbers = {f"part {name}": time_s for name, time_s in made.parts.items()}
    _add(found, "step_time_s", made.step_time_s)
    memory = made.peak_memory_gib
    _add(found, "peak_memory_bytes", None if memory is None else memory.scaled(_GIB))
    return found


def _of_row(made: PredictedRun) -> Numbers:
    assert made.status == OK, made.status
    cells = dict(zip(PREDICTED_COLUMNS, row_of(made), strict=True))
    found: Numbers = {}
    for name, column, unit in (
        ("step_time_s", "step_time", "s"),
        ("peak_memory_gib", "peak_memory", "gib"),
    ):
        for key, cell in ((name, ""), (f"{name} low", "_low"), (f"{name} high", "_high")):
            text = cells[f"{column}{cell}_{unit}"]
            if text:
                found[key] = float(text)
    return found
