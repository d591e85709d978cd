"""The step of a Sailor run, from its layer profiles, network measurements and plan.

    stage      forward and backward of its layers on its device; per message that it receives, the
               gathering of its parts and the host's work (`host.py`: the one fitted number)
    pipeline   1F1B with messages in order with the computation (`ordered_messages.py`): the engine
               is DeepSpeed's, whose sends and receives wait in the computing stream
    reduction  after the last backward and a barrier (deepspeed/pipe_engine.py of Sailor: "for
               measurements"), a ring over the slowest of its links, all lanes at once
    update     as profiled

Sailor trains in fp32 (its validation passes fp16 = False), so a value has 4 bytes. Neighbouring
stages exchange 1/tp of the tensor per device and gather it inside the node (PartitionedTensor).

Chosen with the open runs in view, beside the fitted number: that a sender is held but for the
transport's buffer (held throughout, mit/N3 is 13 % too slow; never, 5 % too fast; 4 % too slow as
it is, all without the fitted number), and that the lower of two profiles stands (`layer_seconds`;
without it the N1 runs are 13 and 16 % off, not 7 and 10, mit/N3 6 %, the others as they are).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.sailor.files import Curve, Group, Measurements, Run
from bench.sailor.ordered_messages import rank_ends
from profiles.errors import UnknownNameError
from simulator.mixed.mixed_replicas import MixedStep, Replica, mixed_step
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import build_schedule

VALUE_BYTES = 4
TRANSPORT_BUFFER_BYTES = 8 * 131072
"""What NCCL takes from a sender before the receiver has it: 8 steps (NCCL_STEPS, src/include/
device.h) of 128 KiB (NCCL_P2P_NET_CHUNKSIZE, its default in src/init.cc); read 2026-11-21."""
STATE_BYTES_PER_PARAMETER = 16
"""fp32 parameter, gradient and two Adam moments (ZeRO, arXiv 1910.02054, section 3.1, in fp32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What layers weigh. Hidden and sequence sizes are of the folder's training_config_*.json.

    head  whether the last profiled layer holds an untied vocabulary matrix; else a layer norm only
    """

    hidden: int
    sequence: int
    positions: int
    head: bool

    def layer_parameters(self, layer: int, last: int, tp: int) -> float:
        """Parameters of a layer on one of `tp` devices.

        Megatron-LM (arXiv 1909.08053, section 3): matrices 12 h^2 and the biases of the parallel
        outputs 7 h are cut by tp; the other biases and the norms, 6 h, are not. The vocabulary is
        GPT-2's 50,257 padded to a multiple of 128 tp.
        """
        h = self.hidden
        vocabulary = -(-50257 // (128 * tp)) * 128
        if layer == 0:
            return (vocabulary + self.positions) * h
        if layer == last:
            return (vocabulary if self.head else 0) * h + 2 * h
        return (12 * h * h + 7 * h) / tp + 6 * h


MODELS: Mapping[str, ModelShape] = {
    "OPT-350": ModelShape(hidden=1024, sequence=2048, positions=2048, head=True),
    "GPT-Neo-2.7": ModelShape(hidden=2560, sequence=2048, positions=2048, head=False),
}
"""Heads: OPTLMHeadPipe and LayerNorm end the two models (third_party/Megatron-DeepSpeed/megatron/
model/{opt,gpt_neo}_model.py of Sailor, read 2026-11-21); neither ties its embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """Predicted seconds of a run; `bare_s` is sum + (M - 1) max of the profiled stages alone.

    state_bytes  parameters, gradients and optimizer of the fullest device: less than its memory
    """

    step_s: float
    bare_s: float
    pipeline_s: float
    reduction_s: float
    state_bytes: float


def predict_run(
    run: Run, measurements: Measurements, *, host_s_per_message: float = 0.0
) -> RunPrediction:
    """The predicted step; raises InputError for what was not profiled or measured.

    host_s_per_message  for which a stage's device waits for its host at each received message
    """
    model = measurements.model_of(run)
    if model not in MODELS:
        raise UnknownNameError("model", model, MODELS, where=f"run {run.name}")
    shape = MODELS[model]
    nodes = _nodes(run)
    replicas = [
        _replica(run, number, model, shape, measurements, nodes, host_s_per_message)
        for number in range(run.num_replicas)
    ]
    reduce_s = [_ring_s(run, stage, shape, measurements, nodes) for stage in range(len(run.layers))]
    last_s = max(max(_ends(*one)) for one in dict.fromkeys(replicas))
    step: MixedStep = mixed_step(
        [replica for replica, _ in replicas],
        reduce_s=reduce_s,
        # All ranks wait for each other before the first reduction.
        backward_ends_s=[(last_s,) * len(run.layers)] * len(replicas),
    )
    last = max(layer for stage in run.layers for layer in stage)
    return RunPrediction(
        step_s=step.step_s,
        bare_s=bare_step_s(run, model, measurements),
        pipeline_s=step.pipeline_s,
        reduction_s=step.reduction_s,
        state_bytes=max(
            STATE_BYTES_PER_PARAMETER
            * sum(shape.layer_parameters(layer, last, group.tp) for layer in layers)
            for layers, stage in zip(run.layers, run.groups, strict=True)
            for group in stage
        ),
    )


def bare_step_s(run: Run, model: str, measurements: Measurements) -> float:
    """sum + (M - 1) max over stages of the profiled forward and backward, the slowest replica's."""
    longest = []
    for layers, stage in zip(run.layers, run.groups, strict=True):
        times = [
            measurements.layer_times(model, group.device, run.microbatch_size, group.tp)
            for group in stage
        ]
        longest.append(max(sum(sum(t[n][:2]) for n in layers) for t in times))
    return sum(longest) + (run.num_microbatches - 1) * max(longest)


def layer_seconds(
    measurements: Measurements, model: str, group: Group, microbatch_size: int
) -> Mapping[int, tuple[float, float]]:
    """Forward and backward seconds of each layer: the least that any harder profile shows.

    Harder are more samples, and fewer devices whose node has no more bandwidth together. Where the
    profile is not monotone, the host's launches were measured, not the device; the lower stands.
    """
    by_size = measurements.profiles[model][group.device]
    measurements.layer_times(model, group.device, microbatch_size, group.tp)  # or an error
    harder = [
        measurements.layer_times(model, group.device, int(size), int(tp))
        for size, by_tp in by_size.items()
        for tp in by_tp
        if int(size) >= microbatch_size and _fewer(measurements, group, int(tp))
    ]
    layers = harder[0]
    return {
        layer: (min(h[layer][0] for h in harder), min(h[layer][1] for h in harder))
        for layer in layers
    }


def _fewer(measurements: Measurements, group: Group, tp: int) -> bool:
    """Whether a layer on tp devices takes no less than on the group's."""
    if tp == group.tp or not 2 <= tp < group.tp:
        return tp == group.tp
    few, many = (measurements.within_node(group.device, count) for count in (tp, group.tp))
    size = 2.0**20
    return few.bytes_per_s(size) * tp <= many.bytes_per_s(size) * group.tp


def _replica(
    run: Run,
    number: int,
    model: str,
    shape: ModelShape,
    measurements: Measurements,
    nodes: Sequence[Sequence[int]],
    host_s_per_message: float,
) -> tuple[Replica, tuple[float, ...]]:
    """One chain through the stages, and per stage the part of a transfer that holds its sender.

    A group that serves several chains takes them in turn.
    """
    members = [number % len(stage) for stage in run.groups]
    groups = [stage[member] for stage, member in zip(run.groups, members, strict=True)]
    message_bytes = float(run.microbatch_size * shape.sequence * shape.hidden * VALUE_BYTES)
    stages = len(groups)
    forward, backward, update = [], [], []
    down, up, held = [0.0] * stages, [0.0] * stages, [1.0] * stages
    for stage, (layers, group) in enumerate(zip(run.layers, groups, strict=True)):
        seconds = layer_seconds(measurements, model, group, run.microbatch_size)
        turns = run.num_replicas / len(run.groups[stage])
        received_s = host_s_per_message + _gather_s(message_bytes, group, measurements)
        forward_s = sum(seconds[n][0] for n in layers) + (received_s if stage else 0.0)
        backward_s = sum(seconds[n][1] for n in layers)
        backward_s += received_s if stage < stages - 1 else 0.0
        forward.append(turns * forward_s)
        backward.append(turns * backward_s)
        profile = measurements.layer_times(model, group.device, run.microbatch_size, group.tp)
        update.append(profile[layers[0]][2])
        if stage:
            before = groups[stage - 1]
            lanes = min(before.tp, group.tp)
            same = nodes[stage - 1][members[stage - 1]] == nodes[stage][members[stage]]
            for row, ends in ((down, (before, group)), (up, (group, before))):
                rate = _together(*ends, same, message_bytes / lanes, measurements)
                row[stage] = message_bytes / rate
            held[stage] = max(0.0, 1.0 - TRANSPORT_BUFFER_BYTES * lanes / message_bytes)
    replica = Replica(
        durations=Durations(
            forward_s=tuple(forward),
            backward_s=tuple(backward),
            send_forward_s=tuple(down),
            send_backward_s=tuple(up),
        ),
        num_microbatches=run.num_microbatches,
        first_parts=tuple(range(stages)),
        update_s=tuple(update),
    )
    return replica, tuple(held)


def _ends(replica: Replica, sender_held: tuple[float, ...]) -> tuple[float, ...]:
    """Seconds to the end of each stage's last instruction."""
    schedule = build_schedule(
        "1f1b",
        num_ranks=replica.durations.num_stages,
        num_microbatches=replica.num_microbatches,
    )
    return rank_ends(schedule, replica.durations, sender_held=sender_held)


def _gather_s(message_bytes: float, group: Group, measurements: Measurements) -> float:
    """A ring all-gather of the tensor's parts inside the node: tp - 1 parts one after another."""
    if group.tp == 1:
        return 0.0
    part_bytes = message_bytes / group.tp
    curve = measurements.within_node(group.device, group.tp)
    return (group.tp - 1) * part_bytes / curve.bytes_per_s(part_bytes)


def _ring_s(
    run: Run,
    stage: int,
    shape: ModelShape,
    measurements: Measurements,
    nodes: Sequence[Sequence[int]],
) -> float:
    """All-reduce of a stage's gradients: 2 (n - 1) / n of them over the ring's slowest link.

    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (JPDC 2009), section 3.
    """
    members = run.groups[stage]
    count = len(members)
    if count == 1:
        return 0.0
    lanes = min(group.tp for group in members)
    last = max(layer for layers in run.layers for layer in layers)
    per_lane = sum(shape.layer_parameters(layer, last, lanes) for layer in run.layers[stage])
    gradient_bytes = per_lane * lanes * VALUE_BYTES
    slowest = min(
        _together(
            members[i],
            members[(i + 1) % count],
            nodes[stage][i] == nodes[stage][(i + 1) % count],
            gradient_bytes / lanes / count,
            measurements,
        )
        for i in range(count)
    )
    return 2 * (count - 1) / count * gradient_bytes / slowest


def _together(
    sender: Group, receiver: Group, same_node: bool, lane_bytes: float, measurements: Measurements
) -> float:
    """Bytes per second of all lanes between two groups."""
    if not same_node:
        return measurements.between_nodes(sender, receiver).bytes_per_s(lane_bytes)
    lanes = min(sender.tp, receiver.tp)
    curve: Curve = measurements.within_node(sender.device, max(2, 2 * lanes))
    return curve.bytes_per_s(lane_bytes) * lanes


def _nodes(run: Run) -> tuple[tuple[int, ...], ...]:
    """[stages][replicas] the node of each group: one each if there are so many, else in order.

    Ranks run over devices of a group, then replicas, then stages (DeepSpeed's
    PipeModelDataParallelTopology), and fill nodes of one kind.
    """
    count = sum(len(stage) for stage in run.groups)
    found: list[tuple[int, ...]] = []
    node, used, before = -1, 0, None
    for stage in run.groups:
        row = []
        for group in stage:
            fits = before == group.device and used + group.tp <= group.devices_per_node
            if count <= run.num_nodes or not fits:
                node, used = node + 1, 0
            used += group.tp
            before = group.device
            row.append(node)
        found.append(tuple(row))
    return tuple(found)
