"""`plan_of_layouts`: converts an answer with layouts for our own executor to a plan file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.costs.priced_model import Traced
from planner.layout.layout_answer import LayoutChoice, LayoutFile
from planner.layout.layout_choice import layout_prediction
from planner.layout.layout_question import base_run
from planner.space import EXECUTOR
from profiles.document import content_hash
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.figures.transformer import Transformer
from profiles.sourced import Sourced
from simulator.training_run.explain.run_prediction import with_timeline
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_share import stage_split
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.plan_file import Alternative, Infeasibility, PlanFile
from simulator.values.prediction import Prediction
from simulator.values.workload import Workload

_NUMBERED = re.compile(r"^(.*)\.(\d+)$")


def executable_plan(run: TrainingRun, traced: Traced, cluster: Cluster, workload: Workload) -> Plan:
    """The plan that our executor runs for a layout.

    Stages have the layers that the layout's memory and time assume. Blocks before the first layer
    belong to the first stage, blocks after the last layer to the last stage. If only some layers
    are recomputed, they are the first ones of each stage.

    Raises InputError if the model's blocks are not the layout's layers.
    """
    graph = traced.at(2)  # its blocks, which neither micro-batch nor tp change
    entries = tuple(ref.entry for ref in graph.chain)
    return Plan(
        model=traced.name,
        model_hash=traced.content_hash,
        block_entries=entries,
        tied_parameters=traced.tied_parameters,
        tensor_parallel=traced.tensor_parallel if run.degrees.tp > 1 else (),
        cluster=cluster.name,
        cluster_hash=content_hash(cluster),
        workload=workload,
        degrees=run.degrees,
        zero_stage=run.zero_stage,
        optimizer_offload=run.optimizer_offload,
        sequence_parallel=run.sequence_parallel,
        micro_batch=run.micro_batch,
        schedule=run.schedule if run.degrees.pp > 1 else "none",
        stages=_stages(run, entries),
    )


def run_of_plan(plan: Plan, model: Transformer, cluster: Cluster) -> TrainingRun | None:
    """The layout of a plan for our own executor; None if it is not one: other stages or
    recomputation than a layout has, blocks that are not the model's layers, or too few devices.

    Raises InputError for a cluster of several device types.
    """
    if plan.degrees.num_devices > cluster.num_devices:
        return None
    kinds = [kind for stage in plan.stages for kind in stage.recompute]
    recomputed = {kind for kind in kinds if kind is not Recompute.NONE}
    if len(recomputed) > 1:
        return None
    kind = next(iter(recomputed), Recompute.NONE)
    most = max(stage.recompute.count(kind) for stage in plan.stages)
    rules = load_framework(EXECUTOR).rules
    run = replace(
        base_run(
            plan.model,
            model,
            cluster,
            rules=rules,
            global_batch=plan.workload.global_batch,
            seq_len=plan.workload.sequence_length,
            precision=plan.workload.precision,
        ),
        degrees=plan.degrees,
        zero_stage=plan.zero_stage,
        optimizer_offload=plan.optimizer_offload,
        micro_batch=plan.micro_batch,
        schedule=plan.schedule if plan.degrees.pp > 1 else "1f1b",
        recompute=kind.value,
        recompute_layers=most if kind is Recompute.FULL else 0,
        sequence_parallel=plan.sequence_parallel,
    )
    try:
        same = _stages(run, plan.block_entries) == plan.stages
    except InputError:
        return None
    return run if same else None


def _stages(run: TrainingRun, entries: Sequence[str]) -> tuple[Stage, ...]:
    """The stages of a layout, from the entries of the blocks; raises InputError if the blocks are
    not its layers."""
    first = first_layer(entries, run.model.num_layers)
    counts = [share.num_layers - share.predicting_layers for share in stage_split(run)]
    ends = [first + sum(counts[: number + 1]) for number in range(len(counts))]
    ends[-1] = len(entries)
    begins = [0, *ends[:-1]]
    layers = range(first, first + run.model.num_layers)
    return tuple(
        Stage(first_block=i, last_block=j, recompute=_kinds(run, range(i, j), layers))
        for i, j in zip(begins, ends, strict=True)
    )


def first_layer(entries: Sequence[str], num_layers: int) -> int:
    """Index of the first block that is a layer of the model: the first of `num_layers` consecutive
    modules of one list.

    >>> first_layer(("", "model.layers.0", "model.layers.1", "model.norm"), 2)
    1
    """
    names = [_NUMBERED.match(entry) for entry in entries]
    for start in range(len(entries) - num_layers + 1):
        window = names[start : start + num_layers]
        lists = {(match[1], int(match[2]) - at) for at, match in enumerate(window) if match}
        if all(window) and len(lists) == 1:
            return start
    raise InputError(
        f"the model's {len(entries)} blocks are not {num_layers} layers of one module list"
    )


def _kinds(run: TrainingRun, blocks: range, layers: range) -> tuple[Recompute, ...]:
    kind = Recompute(run.recompute)
    own = [block for block in blocks if block in layers]
    again = set(own[: run.recompute_layers] if run.recompute_layers else own)
    return tuple(kind if block in again else Recompute.NONE for block in blocks)


def plan_of_layouts(
    answer: LayoutFile, traced: Mapping[bool, Traced], cluster: Cluster, workload: Workload
) -> PlanFile:
    """The plan file of an answer for the framework `torch`, with layouts as stages of blocks.

    traced  the model, traced with sequence parallelism (True) or without; empty only if the answer
            has no layout. Alternatives that need the other one are left out.

    Raises the errors of `executable_plan`.
    """
    best = answer.chosen
    rules = _traced_for(best, traced) if best else None
    plan = executable_plan(best.run, rules, cluster, workload) if best and rules else None
    prediction = with_timeline(best.prediction, best.run, plan) if best and plan else None
    made = PlanFile(
        status=answer.status,
        bound=answer.bound,
        gap=answer.gap,
        search_time_s=answer.search_time_s,
        cells_considered=answer.considered,
        cells_pruned=answer.too_big + answer.pruned,
        cells_refined=answer.refined,
        solver="layouts",
        plan=plan,
        alternatives=tuple(
            _alternative(other, rules, cluster, workload)
            for other in answer.alternatives
            if (rules := _traced_for(other, traced)) is not None
        ),
        infeasibility=_infeasibility(answer.infeasibility) if answer.infeasibility else None,
        assumptions=answer.assumptions,
        machine=cluster.machine,
        calibration=answer.calibration,
    )
    return made if prediction is None else made.with_prediction(prediction)


def plan_prediction(
    plan: Plan, model: Transformer, cluster: Cluster, price: Sourced | None
) -> Prediction | None:
    """The prediction of a plan as a layout of our own executor, equal to that of an answer; None if
    it is not a layout (`run_of_plan`).

    model  its figures
    price  US dollars per device-hour, None for no dollars

    Raises InputError for a cluster of several device types.
    """
    run = run_of_plan(plan, model, cluster)
    if run is None:
        return None
    return with_timeline(layout_prediction(run, cluster, price), run, plan)


def _traced_for(choice: LayoutChoice, traced: Mapping[bool, Traced]) -> Traced | None:
    """The traced model with the rules of a layout; any if it has no tensor parallelism."""
    if choice.run.degrees.tp == 1:
        return next(iter(traced.values()), None)
    return traced.get(choice.run.sequence_parallel)


def _alternative(
    choice: LayoutChoice, traced: Traced, cluster: Cluster, workload: Workload
) -> Alternative:
    plan = executable_plan(choice.run, traced, cluster, workload)
    return Alternative.of(plan, choice.prediction, choice.why_not_first)


def _infeasibility(why: Infeasibility) -> Infeasibility:
    """The same infeasibility for a plan, whose stages are in the order of the ranks."""
    relaxations = tuple(replace(each, layout=None) for each in why.relaxations)
    return replace(why, stage=why.rank, rank=None, host=None, relaxations=relaxations)
