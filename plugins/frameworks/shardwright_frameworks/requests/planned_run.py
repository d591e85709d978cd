"""`planned_run`: an opened plan file as a `PlannedRun`, the input of the exporters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.layout.layout_answer import LayoutFile
from planner.layout.plan_of_layout import first_layer
from planner.space import EXECUTOR
from profiles.document import encode, to_json
from profiles.errors import DocumentError, InputError, ShardwrightError
from profiles.hardware.catalogue.catalog import device_names, get_cluster, get_device
from profiles.model.figures.described_model import describe_model
from profiles.model.figures.transformer import Transformer
from profiles.model.loaders import resolve_model
from shardwright.requests.local_paths import local_profile, trace_cache
from shardwright.requests.named_model import import_from_here
from shardwright.requests.opened_plan import OpenedPlan
from shardwright_frameworks.exports.values.planned_run import (
    PlannedRun,
    PlannedStage,
    stages_of_run,
)
from simulator.schedules.schedule import schedule_kind
from simulator.training_run.run.low_bits import USUAL_OPTIMIZER
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.plan import PLAN_SCHEMA, Plan
from simulator.values.plan_file import PlanFile, plan_decision


def planned_run(opened: OpenedPlan, *, runnable: bool = False) -> PlannedRun:
    """The plan in a file, for any framework.

    runnable   include the plan for our executor, for which a layout's model is traced

    Raises DocumentError if the file has no plan.
    """
    if isinstance(opened.answer, LayoutFile):
        return _of_layout(opened, opened.answer, runnable=runnable)
    return _of_plan(opened, opened.answer)


def _of_layout(opened: OpenedPlan, answer: LayoutFile, *, runnable: bool) -> PlannedRun:
    chosen = answer.chosen
    if chosen is None:
        raise DocumentError(f"{opened.path} has no plan: nothing fits ({answer.status})")
    run = chosen.run
    if run.degrees.pp == 1:
        run = replace(run, degrees=replace(run.degrees, vpp=1))
    own = runnable and opened.runs_here
    return PlannedRun(
        plan=opened.path.name,
        plan_text=_text(opened.planned, opened.provenance) if own else "",
        model=answer.model,
        config=_config(answer.model),
        run=run,
        stages=stages_of_run(run),
        prediction=chosen.prediction,
        device_type=get_device(run.device).type,
    )


def _of_plan(opened: OpenedPlan, answer: PlanFile) -> PlannedRun:
    plan, prediction = answer.plan, answer.prediction
    if plan is None or prediction is None:
        raise DocumentError(f"{opened.path} has no plan: nothing fits ({answer.status})")
    import_from_here(plan.model)
    only_here = ""
    if plan.workload.optimizer != USUAL_OPTIMIZER:
        only_here = (
            f"the plan trains by {plan.workload.optimizer}, and files for other frameworks set "
            f"{USUAL_OPTIMIZER} (plan again with --optimizer {USUAL_OPTIMIZER} for one of them)"
        )
    try:
        figures = describe_model(
            plan.model, sequence_length=plan.workload.sequence_length, cache=trace_cache()
        ).figures
        first = first_layer(plan.block_entries, figures.num_layers)
    except InputError as error:
        why = str(error).partition(". Such a model")[0]
        only_here = f"{why}, and other frameworks take stages of layers"
        figures, first = _blocks_alone(plan), 0
    stages = _plan_stages(plan, first, figures.num_layers)
    device, node_devices, device_type = _place(plan, answer.machine)
    run = TrainingRun(
        id=plan.model,
        model=figures,
        device=device,
        node_devices=node_devices,
        degrees=plan.degrees,
        sequence_parallel=plan.sequence_parallel,
        zero_stage=plan.zero_stage,
        optimizer_offload=plan.optimizer_offload,
        recompute=_kind(stages),
        recompute_layers=_again(stages),
        micro_batch=plan.micro_batch,
        global_batch=plan.workload.global_batch,
        seq_len=plan.workload.sequence_length,
        precision=plan.workload.precision,
        schedule=plan.schedule if plan.degrees.pp > 1 else "1f1b",
        stack=EXECUTOR,
    )
    return PlannedRun(
        plan=opened.path.name,
        plan_text=_text(answer, opened.provenance),
        model=plan.model,
        config=_config(plan.model),
        run=run,
        stages=stages,
        prediction=prediction,
        device_type=device_type,
        only_here=only_here,
        counted_in=plan.workload.counted_in,
        priced=device in device_names() and device_type != "cpu",
    )


def _text(answer: PlanFile, made: Mapping[str, Any]) -> str:
    """The text of the plan file."""
    decided = {} if answer.plan is None else {"decided": plan_decision(answer.plan)}
    data = {**encode(answer), "schema": PLAN_SCHEMA, "provenance": {**made, **decided}}
    return to_json(data)


def _config(model: str) -> Mapping[str, Any]:
    """The model's configuration; empty for code, and for a missing file."""
    try:
        return resolve_model(model).config
    except ShardwrightError:
        return {}


def _place(plan: Plan, machine: Mapping[str, str]) -> tuple[str, int, str]:
    """The device's name, the devices per node, and the device type; from the machine in the plan if
    its cluster cannot be resolved."""
    try:
        cluster = get_cluster(plan.cluster, local=local_profile())
    except ShardwrightError:
        kind = machine.get("type", "gpu")
        return plan.cluster, plan.degrees.num_devices, kind
    group = cluster.groups[0]
    return group.device.name, group.devices_per_node, group.device.type


def _blocks_alone(plan: Plan) -> Transformer:
    """Figures of a model that is no transformer, with its blocks as layers of size 0. Only our
    executor accepts them."""
    return Transformer(
        num_layers=len(plan.block_entries),
        hidden_size=1,
        ffn_size=1,
        num_heads=1,
        num_kv_heads=1,
        head_size=1,
        vocab_size=1,
        gated=False,
        tied_embeddings=True,
    )


def _plan_stages(plan: Plan, first: int, num_layers: int) -> tuple[PlannedStage, ...]:
    """The stages by their layers; blocks before the first layer are the embedding, blocks after the
    last one the head."""
    last = first + num_layers
    kind = schedule_kind(plan.schedule)
    found = []
    for number, stage in enumerate(plan.stages):
        blocks = range(stage.first_block, stage.last_block)
        kinds = zip(blocks, stage.recompute, strict=True)
        found.append(
            PlannedStage(
                rank=kind.rank_of(plan.degrees.pp, number),
                recompute=tuple(again.value for block, again in kinds if first <= block < last),
                has_embedding=number == 0,
                has_head=number == len(plan.stages) - 1,
            )
        )
    return tuple(found)


def _kind(stages: tuple[PlannedStage, ...]) -> str:
    """The recompute kind of all layers together: the most frequent one other than none."""
    counts = Counter(kind for stage in stages for kind in stage.recompute if kind != "none")
    return counts.most_common(1)[0][0] if counts else "none"


def _again(stages: tuple[PlannedStage, ...]) -> int:
    """The largest number of fully recomputed layers of a stage, 0 for all."""
    if _kind(stages) != "full":
        return 0
    counts = [sum(kind == "full" for kind in stage.recompute) for stage in stages]
    if all(c == stage.num_layers for c, stage in zip(counts, stages, strict=True)):
        return 0
    return max(counts)
