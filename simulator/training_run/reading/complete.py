"""`complete_run`: a published run with every question answered, the assumed answers named.

What a source does not say is answered by general rules, never by the row, the table or the name
(well-known models' public figures aside), and each such answer stands in `TrainingRun.defaults`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.device import Device
from profiles.hardware.catalogue.node_network import NodeNetwork
from profiles.published.known_models import known_model
from profiles.published.recipes import fill_from_recipe
from profiles.published.run import PublishedRun
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.reading.complete_layout import complete_layout, node_devices_of
from simulator.training_run.reading.complete_model import complete_model
from simulator.training_run.reading.complete_options import with_run_options
from simulator.training_run.reading.complete_words import (
    precision_of,
    recompute_of,
    schedule_of,
    vpp_of,
)
from simulator.training_run.reading.device_text import device_of
from simulator.training_run.reading.memory_text import memory_kind_of
from simulator.training_run.reading.network_text import network_of
from simulator.training_run.reading.possible import possible_run
from simulator.training_run.reading.stack_text import stack_of
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.run.unsupported import UnsupportedRunError
from simulator.values.degrees import Degrees

__all__ = ["UnsupportedRunError", "complete_run"]

_USUAL_SEQ_LEN = 2048


def complete_run(run: PublishedRun) -> TrainingRun:
    """The run as a prediction needs it, as it can have run (possible.py).

    Raises UnsupportedRunError with the reason where the source says too little (no device, no
    number of devices, no global batch, no model that can be told), contradicts itself, or describes
    what is not modelled.
    """
    return possible_run(run, complete_as_usual)


def complete_as_usual(run: PublishedRun) -> TrainingRun:
    """The run with the usual answer to each silence, whether it fits or not.

    Raises UnsupportedRunError with the reason where the source says too little (no device, no
    number of devices, no global batch, no model that can be told), contradicts itself, or describes
    what is not modelled.
    """
    if run.faults:
        raise UnsupportedRunError(run.id, "; ".join(run.faults))
    said: list[str] = []
    device = device_of(run, said)
    stack, stack_assumed = stack_of(run, device, said)
    known = known_model(run.model)
    if known is not None:
        run = fill_from_recipe(run, model=known.name, device=device.name, said=said)
    seq_len = _seq_len(run, said)
    global_batch = _global_batch(run, seq_len, said)
    degrees = complete_layout(
        run, device=device, global_batch=global_batch, seq_len=seq_len, said=said
    )
    tp, pp = degrees.tp, degrees.pp
    model = complete_model(run, seq_len=seq_len, tp=tp, pp=pp, stack=stack, said=said)
    lora = run.family == "lora"
    zero_stage = _zero_stage(run, stack, pp, said)
    degrees = replace(degrees, vpp=vpp_of(run, pp, model.num_layers, stack, said))
    node_devices = node_devices_of(run, device, degrees.num_devices, said)
    degrees = replace(degrees, ep=_expert_parallel(run, degrees, model.num_experts, said))
    completed = TrainingRun(
        id=run.id,
        model=model,
        device=device.name,
        degrees=degrees,
        node_devices=node_devices,
        network=_network(run, device, node_devices),
        sequence_parallel=_sequence_parallel(run, tp, stack, said),
        zero_stage=zero_stage,
        recompute=recompute_of(run, stack, said),
        micro_batch=_micro_batch(run, degrees, device, zero_stage, stack, global_batch, said),
        global_batch=global_batch,
        seq_len=seq_len,
        precision=_precision(run, device, stack, said),
        schedule=schedule_of(run, pp, degrees.vpp, said),
        stack=stack,
        stack_assumed=stack_assumed,
        lora=lora,
        memory_kind=memory_kind_of(run.peak_memory_kind, said),
    )
    completed = with_run_options(run, completed, said)
    _check(run, completed, device)
    return _with_defaults(completed, said)


def _network(run: PublishedRun, device: Device, node_devices: int) -> NodeNetwork:
    try:
        return network_of(run.inter_node_link, device.name, node_devices)
    except (InputError, UnknownNameError) as error:
        raise UnsupportedRunError(run.id, f"inter_node_link: {error}") from error


def _seq_len(run: PublishedRun, said: list[str]) -> int:
    if run.seq_len is not None:
        return run.seq_len
    known = known_model(run.model)
    if known is not None and known.seq_len:
        said.append(f"sequence length {known.seq_len} ({known.name}'s pretraining)")
        return known.seq_len
    said.append(f"sequence length {_USUAL_SEQ_LEN}")
    return _USUAL_SEQ_LEN


def _global_batch(run: PublishedRun, seq_len: int, said: list[str]) -> int:
    if run.global_batch is not None:
        return run.global_batch
    known = known_model(run.model)
    if known is None or not known.global_batch:
        raise UnsupportedRunError(run.id, "no global batch is given")
    # Recipes hold the tokens of a step, not its sequences, when the sequence length changes.
    batch = max(1, round(known.global_batch * known.seq_len / seq_len))
    said.append(f"global batch {batch} ({known.name}, {known.source})")
    return batch


def _zero_stage(run: PublishedRun, stack: str, pp: int, said: list[str]) -> int:
    stage = run.zero_stage
    if stage is None:
        stage = load_framework(stack).usual_zero_stage
        said.append(f"ZeRO stage {stage}")
    if pp > 1 and stage > 1 and load_framework(stack).gathered_in_pipelines:
        said.append(f"ZeRO {stage} keeps parameters gathered beside a pipeline: ZeRO 1 by its work")
        return 1
    return stage


def _expert_parallel(run: PublishedRun, degrees: Degrees, experts: int, said: list[str]) -> int:
    if not experts:
        return 1
    if run.ep is None:
        if degrees.dp * degrees.tp > 1:
            said.append("experts not spread over ranks (ep 1)")
        return 1
    ranks = degrees.stage_ranks
    ep = math.gcd(run.ep, ranks, experts)
    if ep != run.ep:
        said.append(
            f"ep {ep}: {run.ep} as printed does not divide the {ranks} ranks of a stage and "
            f"{experts} experts"
        )
    return ep


def _sequence_parallel(run: PublishedRun, tp: int, stack: str, said: list[str]) -> bool:
    """Silent: on where Megatron's successors shard by default, off in stacks from before
    Korthikanti et al. (arXiv 2205.05198, May 2022) and where there is nothing to shard."""
    if tp == 1:
        return False
    if run.sequence_parallel is not None:
        return run.sequence_parallel
    on = load_framework(stack).usual_sequence_parallel
    said.append(f"sequence parallelism {'on' if on else 'off'}")
    return on


def _micro_batch(
    run: PublishedRun,
    degrees: Degrees,
    device: Device,
    zero_stage: int,
    stack: str,
    global_batch: int,
    said: list[str],
) -> int:
    per_rank = max(1, global_batch // degrees.dp)
    if run.micro_batch is not None:
        if run.micro_batch > per_rank:
            said.append(
                f"micro-batch {per_rank}: {run.micro_batch} as printed is more than the "
                f"{per_rank} sequences that each of dp={degrees.dp} ranks has"
            )
        return min(run.micro_batch, per_rank)
    whole = degrees.pp == 1 and (device.type == "tpu" or zero_stage == 3)
    micro_batch = per_rank if whole else 1
    if degrees.pp > 1 and load_framework(stack).microbatch_per_stage:
        micro_batch = max(1, per_rank // degrees.num_stages)
    said.append(f"micro-batch {micro_batch}")
    return micro_batch


def _precision(run: PublishedRun, device: Device, stack: str, said: list[str]) -> str:
    precision = precision_of(run, device.name, stack, said)
    try:
        device.peak(precision)
    except InputError as error:
        raise UnsupportedRunError(run.id, str(error)) from error
    return precision


def _check(run: PublishedRun, done: TrainingRun, device: Device) -> None:
    """Raises UnsupportedRunError for what cannot be run at all."""
    degrees = done.degrees
    heads, kv_heads = done.model.num_heads, done.model.num_kv_heads
    if heads % degrees.tp:
        raise UnsupportedRunError(
            run.id, f"tp={degrees.tp} does not divide {heads} attention heads"
        )
    if heads % kv_heads:
        raise UnsupportedRunError(
            run.id, f"{kv_heads} heads of keys and values do not divide {heads} of queries"
        )
    if run.dp is run.tp is run.pp is None and device.type != "tpu" and done.zero_stage < 3:
        # Without a layout the rules above say plain data parallelism: only for what it can hold.
        bytes_per_parameter = 2 if done.lora else 6
        need = bytes_per_parameter * done.model.parameters
        if need > device.memory_bytes.value:
            raise UnsupportedRunError(
                run.id,
                f"no layout is given, and data parallelism alone cannot be it: weights"
                f"{'' if done.lora else ' and gradients'} of {need / 2**30:.0f} GiB on a device of "
                f"{device.memory_bytes.value / 2**30:.0f} GiB",
            )
    if (
        done.global_batch % (degrees.dp * done.micro_batch)
        and math.ceil(done.global_batch / (degrees.dp * done.micro_batch)) == 1
    ):
        raise UnsupportedRunError(
            run.id,
            f"a global batch of {done.global_batch} does not fill dp={degrees.dp} ranks of "
            f"micro-batch {done.micro_batch}",
        )


def _with_defaults(done: TrainingRun, said: list[str]) -> TrainingRun:
    degrees = done.degrees
    if done.model.num_layers < degrees.pp:
        said.append(f"pp={degrees.pp} stages for {done.model.num_layers} layers: some hold none")
    if done.num_nodes > 1:
        network = done.node_network
        if network.assumed:
            said.append(f"{network.words} ({network.source})")
    rest = done.global_batch % (degrees.dp * done.micro_batch)
    if rest:
        said.append(
            f"{done.num_microbatches} micro-batches, of which the last holds {rest} of "
            f"{degrees.dp * done.micro_batch} sequences"
        )
    return replace(done, defaults=tuple(said))
