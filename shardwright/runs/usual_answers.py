"""`complete_as_usual`: a published run with default values for everything that it does not state.

Missing values follow from general rules, never from the individual row, table or name (except
public figures of well-known models), and each is listed in `TrainingRun.defaults`. Columns of
options are named like those of `plan --stack` (docs/runs.md).
"""

from __future__ import annotations

import math
from dataclasses import replace

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.node_network import NodeNetwork
from profiles.model.figures.transformer import Transformer
from shardwright.runs.complete_layout import complete_layout, node_devices_of
from shardwright.runs.complete_model import complete_model
from shardwright.runs.complete_words import (
    DescribedRow,
    memory_kind_of,
    precision_of,
    recompute_of,
    schedule_of,
    vpp_of,
)
from shardwright.runs.device_text import device_of
from shardwright.runs.framework_candidates import stack_of
from shardwright.runs.known_models import KnownModel, fill_from_recipe, known_model
from shardwright.runs.network_text import network_of
from shardwright.runs.run import PublishedRun
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.framework.run_conditions import LOW_PRECISIONS
from simulator.training_run.run.training_run import (
    USUAL_LORA_RANK,
    TrainingRun,
    UnsupportedRunError,
)
from simulator.values.degrees import AXIS_ORDERS, Degrees
from simulator.values.pipeline_layout import layout_ranks, pipeline_layout_text, stages_of_layout

_USUAL_SEQ_LEN = 2048


def complete_as_usual(run: PublishedRun) -> TrainingRun:
    """The run with the default for each missing value, whether it fits or not.

    Raises UnsupportedRunError with the reason if the source states too little (no device, number of
    devices, global batch or known model), contradicts itself, describes a run that is not modeled,
    or has an option without effect.
    """
    if run.faults:
        raise UnsupportedRunError(run.id, "; ".join(run.faults))
    try:
        return _completed(run)
    except UnsupportedRunError:
        raise
    except InputError as error:
        raise UnsupportedRunError(run.id, str(error).removeprefix(f"{run.id}: ")) from error


def _completed(run: PublishedRun) -> TrainingRun:
    assumptions: list[str] = []
    device = device_of(run, assumptions)
    stack, stack_assumed = stack_of(run, device, assumptions)
    known = known_model(run.model)
    if known is not None:
        run = fill_from_recipe(run, model=known.name, device=device.name, assumptions=assumptions)
    row = DescribedRow(run, device, load_framework(stack), assumptions)
    seq_len = _seq_len(row, known)
    global_batch = _global_batch(row, seq_len, known)
    degrees = complete_layout(row, global_batch, seq_len)
    model = complete_model(row, seq_len, degrees)
    zero_stage = _zero_stage(row, degrees.pp)
    degrees = replace(degrees, vpp=vpp_of(row, degrees.pp, model.num_layers))
    node_devices = node_devices_of(row, degrees.num_devices)
    degrees = replace(degrees, ep=_expert_parallel(row, degrees, model.num_experts))
    network = _network(row, node_devices)
    sequence_parallel = _sequence_parallel(row, degrees.tp)
    recompute = recompute_of(row)
    micro_batch = _micro_batch(row, degrees, zero_stage, global_batch)
    precision = precision_of(row)
    schedule = schedule_of(row, degrees.pp, degrees.vpp)
    memory_kind = memory_kind_of(run.peak_memory_kind, assumptions)
    refuse_idle_options(run, model, recompute, precision)
    if run.order and run.order not in AXIS_ORDERS:
        raise UnknownNameError("order", run.order, AXIS_ORDERS)
    completed = TrainingRun(
        id=run.id,
        model=model,
        device=device.name,
        degrees=replace(
            degrees,
            axis_order=run.order or degrees.axis_order,
            dp_replicate=run.dp_replicate or 1,
        ),
        node_devices=node_devices,
        network=network,
        sequence_parallel=sequence_parallel,
        zero_stage=zero_stage,
        recompute=recompute,
        recompute_layers=run.recompute_layers or 0,
        micro_batch=micro_batch,
        global_batch=global_batch,
        seq_len=seq_len,
        precision=precision,
        schedule=schedule,
        stack=stack,
        stack_assumed=stack_assumed,
        lora=run.family == "lora",
        memory_kind=memory_kind,
        lora_rank=run.lora_rank or USUAL_LORA_RANK,
        frozen_type=run.base_precision,
        expert_imbalance=1.0 if run.expert_imbalance is None else run.expert_imbalance,
        document_length=run.document_length or 0.0,
        pipeline_layout=_pipeline_layout(run, model, degrees),
        optimizer_offload=bool(run.optimizer_offload),
        activation_offload=run.activation_offload or 0.0,
        gradient_reduction=run.reduce,
        compression="" if run.compress == "none" else run.compress,
        local_steps=run.local_steps or 1,
        local_workers=_local_workers(row, degrees.dp),
        wide_layers=run.wide_layers or 0,
    )
    _check(row, completed)
    return _with_defaults(completed, assumptions)


def _network(row: DescribedRow, node_devices: int) -> NodeNetwork:
    try:
        return network_of(row.run.inter_node_link, row.device.name, node_devices)
    except InputError as error:
        raise InputError(f"inter_node_link: {error}") from error


def _seq_len(row: DescribedRow, known: KnownModel | None) -> int:
    if row.run.seq_len is not None:
        return row.run.seq_len
    if known is not None and known.seq_len:
        row.assumptions.append(f"sequence length {known.seq_len} ({known.name}'s pretraining)")
        return known.seq_len
    return row.assumed(_USUAL_SEQ_LEN, f"sequence length {_USUAL_SEQ_LEN}")


def _global_batch(row: DescribedRow, seq_len: int, known: KnownModel | None) -> int:
    if row.run.global_batch is not None:
        return row.run.global_batch
    if known is None or not known.global_batch:
        raise InputError("no global batch is given")
    # Recipes hold the tokens of a step, not its sequences, when the sequence length changes.
    batch = max(1, round(known.global_batch * known.seq_len / seq_len))
    return row.assumed(batch, f"global batch {batch} ({known.name}, {known.source})")


def _zero_stage(row: DescribedRow, pp: int) -> int:
    stage = row.run.zero_stage
    if stage is None:
        stage = row.stack.usual_zero_stage
        row.assumptions.append(f"ZeRO stage {stage}")
    if pp > 1 and stage > 1 and row.stack.gathered_in_pipelines:
        words = f"ZeRO {stage} keeps parameters gathered beside a pipeline: ZeRO 1 by its work"
        return row.assumed(1, words)
    return stage


def _expert_parallel(row: DescribedRow, degrees: Degrees, experts: int) -> int:
    if not experts:
        return 1
    if row.run.ep is None:
        if degrees.dp * degrees.tp > 1:
            row.assumptions.append("experts not spread over ranks (ep 1)")
        return 1
    ranks = degrees.stage_ranks
    ep = math.gcd(row.run.ep, ranks, experts)
    if ep != row.run.ep:
        if not row.run.source:
            raise InputError(
                f"ep {row.run.ep} does not divide the {ranks} ranks of a stage and {experts} "
                f"experts; the largest that does is {ep}"
            )
        # A row with a source is from a publication: a misprint, near the real value.
        row.assumptions.append(
            f"ep {ep}: {row.run.ep} as printed does not divide the {ranks} ranks of a stage and "
            f"{experts} experts"
        )
    return ep


def _sequence_parallel(row: DescribedRow, tp: int) -> bool:
    """Whether the run shares tokens. Default: on for successors of Megatron, which do so by
    default; off for stacks from before Korthikanti et al. (arXiv 2205.05198, May 2022), and for tp
    1."""
    if tp == 1:
        return False
    if row.run.sequence_parallel is not None:
        return row.run.sequence_parallel
    on = row.stack.usual_sequence_parallel
    return row.assumed(on, f"sequence parallelism {'on' if on else 'off'}")


def _micro_batch(row: DescribedRow, degrees: Degrees, zero_stage: int, global_batch: int) -> int:
    per_rank = max(1, global_batch // degrees.dp)
    printed = row.run.micro_batch
    if printed is not None:
        if printed > per_rank:
            row.assumptions.append(
                f"micro-batch {per_rank}: {printed} as printed is more than the {per_rank} "
                f"sequences that each of dp={degrees.dp} ranks has"
            )
        return min(printed, per_rank)
    whole = degrees.pp == 1 and (row.device.type == "tpu" or zero_stage == 3)
    micro_batch = per_rank if whole else 1
    if degrees.pp > 1 and row.stack.microbatch_per_stage:
        micro_batch = max(1, per_rank // degrees.num_stages)
    return row.assumed(micro_batch, f"micro-batch {micro_batch}")


def _local_workers(row: DescribedRow, dp: int) -> int:
    if (row.run.local_steps or 1) == 1:
        return 1
    if row.run.local_workers is not None:
        return row.run.local_workers or 1
    return row.assumed(dp, f"{dp} local workers (every replica)")


def _pipeline_layout(run: PublishedRun, model: Transformer, degrees: Degrees) -> str:
    """The row's layout of stages, in canonical form; raises InputError if it is for another model
    or number of stages."""
    if not run.pipeline_layout:
        return ""
    where = "pipeline_layout"
    stages = stages_of_layout(run.pipeline_layout, model.num_layers, model.predicted_ahead, where)
    text = pipeline_layout_text(stages)
    if len(stages) != degrees.num_stages or degrees.pp not in layout_ranks(text):
        ranks = " or ".join(map(str, layout_ranks(text)))
        raise InputError(
            f"{where} {run.pipeline_layout!r} has {len(stages)} stages and needs pp {ranks}; the "
            f"run has pp {degrees.pp} x vpp {degrees.vpp}"
        )
    return text


def _check(row: DescribedRow, done: TrainingRun) -> None:
    """Raises InputError for a run that is impossible in any layout."""
    run, degrees = row.run, done.degrees
    heads, kv_heads = done.model.num_heads, done.model.num_kv_heads
    if heads % degrees.tp:
        raise InputError(f"tp={degrees.tp} does not divide {heads} attention heads")
    if heads % kv_heads:
        raise InputError(f"{kv_heads} key-value heads do not divide {heads} query heads")
    if run.dp is run.tp is run.pp is None and row.device.type != "tpu" and done.zero_stage < 3:
        # Without a layout the rules above give plain data parallelism, which must hold the model.
        need = (2 if done.lora else 6) * done.model.parameters
        has = row.device.memory_bytes.value
        if need > has:
            raise InputError(
                f"no layout is given, and plain data parallelism does not fit: weights"
                f"{'' if done.lora else ' and gradients'} of {need / 2**30:.0f} GiB on a device of "
                f"{has / 2**30:.0f} GiB"
            )
    per_pass = degrees.dp * done.micro_batch
    if done.global_batch < per_pass:
        raise InputError(
            f"dp={degrees.dp} x micro-batch {done.micro_batch} = {per_pass} sequences are more "
            f"than the global batch of {done.global_batch}"
        )


def _with_defaults(done: TrainingRun, assumptions: list[str]) -> TrainingRun:
    degrees = done.degrees
    if done.model.num_layers < degrees.pp:
        assumptions.append(
            f"pp={degrees.pp} stages for {done.model.num_layers} layers: some hold none"
        )
    if done.num_nodes > 1:
        network = done.node_network
        if network.assumed:
            assumptions.append(f"{network.words} ({network.source})")
    rest = done.global_batch % (degrees.dp * done.micro_batch)
    if rest:
        assumptions.append(
            f"{done.num_microbatches} micro-batches, of which the last holds {rest} of "
            f"{degrees.dp * done.micro_batch} sequences"
        )
    return replace(done, defaults=tuple(assumptions))


def refuse_idle_options(
    run: PublishedRun, model: Transformer, recompute: str, precision: str
) -> None:
    """Raises InputError for an option without effect, which probably belongs to another run.

    model, recompute, precision  of the run, completed
    """
    idle = (
        (
            run.expert_imbalance is not None
            and run.expert_imbalance != 1.0
            and not model.num_experts,
            "expert_imbalance is given, but the model has no experts",
        ),
        (
            run.lora_rank is not None and run.family != "lora",
            "lora_rank is given, but family is not lora: all weights are trained",
        ),
        (
            bool(run.base_precision) and run.family != "lora",
            f"base_precision={run.base_precision} is of frozen weights, but family is not lora: "
            "all weights are trained",
        ),
        (
            bool(run.recompute_layers) and recompute != "full",
            f"recompute_layers={run.recompute_layers} is of full recomputation, and recompute is "
            f"{recompute!r}",
        ),
        (
            bool(run.wide_layers) and precision not in LOW_PRECISIONS,
            f"wide_layers={run.wide_layers} stay in bf16 where the rest is lower, and the "
            f"precision is {precision}",
        ),
        (
            (run.local_workers or 1) > 1 and (run.local_steps or 1) == 1,
            f"local_workers={run.local_workers} need local_steps of 2 or more",
        ),
    )
    for is_idle, why in idle:
        if is_idle:
            raise InputError(why)
