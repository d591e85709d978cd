"""The step of a Sailor run by the product's timeline and its exchange of unequal replicas.

    stage      profiled forward and backward of its layers on its device, and for each received
               message the all-gather of its parts inside the node; its messages, because
               DeepSpeed's engine sends and receives in the stream that computes
    pipeline   1F1B (`simulator/schedules/timeline.py`)
    reduction  after the last backward of all stages and a barrier (deepspeed/pipe_engine.py of
               Sailor: "for measurements"), an all-reduce over the slowest link of the ring
    update     as profiled

Sailor trains in fp32 (its validation passes fp16 = False), so a value has 4 bytes. Neighboring
stages exchange 1/tp of the tensor per device and gather it inside the node (PartitionedTensor).
Nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.sailor.files import Group, Measurements, Run
from profiles.errors import UnknownNameError
from simulator.collectives import Hop, collective
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import build_schedule
from simulator.schedules.timeline import simulate
from simulator.traced.priced_replica import exchange

VALUE_BYTES = 4
STATE_BYTES_PER_PARAMETER = 16
"""fp32 parameter, gradient and two Adam moments (ZeRO, arXiv 1910.02054, section 3.1, in fp32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a model. Hidden and sequence sizes are from the folder's training_config_*.json.

    head  whether the last profiled layer has an untied vocabulary matrix, or only a layer norm
    """

    hidden: int
    sequence: int
    positions: int
    head: bool

    def layer_parameters(self, layer: int, last: int, tp: int) -> float:
        """Parameters of a layer on one of `tp` devices.

        Megatron-LM (arXiv 1909.08053, section 3): matrices 12 h^2 and the biases of the parallel
        outputs 7 h are split by tp; the other biases and the norms, 6 h, are not. The vocabulary is
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
    """Predicted seconds of a run.

    bare_s       sum + (M - 1) max of the profiled stages, without any communication
    state_bytes  parameters, gradients and optimizer of the fullest device: less than its memory
    """

    step_s: float
    bare_s: float
    reduction_s: float
    state_bytes: float


def predict_run(run: Run, measurements: Measurements) -> RunPrediction:
    """The predicted step; raises InputError for devices, layers or links without measurements."""
    model = measurements.model_of(run)
    if model not in MODELS:
        raise UnknownNameError("model", model, MODELS, where=f"run {run.name}")
    shape, last = MODELS[model], max(layer for stage in run.layers for layer in stage)
    nodes = _nodes(run)
    replicas = [
        _replica(run, number, model, shape, measurements, nodes)
        for number in range(run.num_replicas)
    ]
    stages = len(run.layers)
    schedule = build_schedule("1f1b", num_ranks=stages, num_microbatches=run.num_microbatches)
    timelines = [simulate(schedule, durations) for durations, _ in replicas]
    pipeline_s = max(t.rank_end_s(stage) for t in timelines for stage in range(stages))
    # All ranks wait for each other before the first reduction.
    done_s = exchange(
        [[pipeline_s] * stages] * len(replicas),
        [list(range(stages))] * len(replicas),
        [_reduce_s(run, stage, shape, measurements, nodes) for stage in range(stages)],
    )
    return RunPrediction(
        step_s=max(
            done + update
            for row, (_, updates) in zip(done_s, replicas, strict=True)
            for done, update in zip(row, updates, strict=True)
        ),
        bare_s=_bare_step_s(run, model, measurements),
        reduction_s=max(map(max, done_s)) - pipeline_s,
        state_bytes=max(
            STATE_BYTES_PER_PARAMETER
            * sum(shape.layer_parameters(layer, last, group.tp) for layer in layers)
            for layers, stage in zip(run.layers, run.groups, strict=True)
            for group in stage
        ),
    )


def _bare_step_s(run: Run, model: str, measurements: Measurements) -> float:
    """sum + (M - 1) max over stages of the profiled forward and backward, the slowest replica's."""
    longest = []
    for layers, stage in zip(run.layers, run.groups, strict=True):
        times = [
            measurements.layer_times(model, group.device, run.microbatch_size, group.tp)
            for group in stage
        ]
        longest.append(max(sum(sum(t[n][:2]) for n in layers) for t in times))
    return sum(longest) + (run.num_microbatches - 1) * max(longest)


def _replica(
    run: Run,
    number: int,
    model: str,
    shape: ModelShape,
    measurements: Measurements,
    nodes: Sequence[Sequence[int]],
) -> tuple[Durations, list[float]]:
    """One chain through the stages, and seconds of each stage's optimizer. A group that serves
    several chains takes them in turn."""
    members = [number % len(stage) for stage in run.groups]
    groups = [stage[member] for stage, member in zip(run.groups, members, strict=True)]
    message_bytes = float(run.microbatch_size * shape.sequence * shape.hidden * VALUE_BYTES)
    stages = len(groups)
    forward, backward, update = [], [], []
    down, up = [0.0] * (stages + 1), [0.0] * (stages + 1)  # over the cut before each stage
    for stage, (layers, group) in enumerate(zip(run.layers, groups, strict=True)):
        times = measurements.layer_times(model, group.device, run.microbatch_size, group.tp)
        turns = run.num_replicas / len(run.groups[stage])
        gather_s = _gather_s(message_bytes, group, measurements)
        forward_s = sum(times[n][0] for n in layers) + (gather_s if stage else 0.0)
        backward_s = sum(times[n][1] for n in layers)
        backward_s += gather_s if stage < stages - 1 else 0.0
        forward.append(turns * forward_s)
        backward.append(turns * backward_s)
        update.append(times[layers[0]][2])
        if stage:
            before = groups[stage - 1]
            lane_bytes = message_bytes / min(before.tp, group.tp)
            same = nodes[stage - 1][members[stage - 1]] == nodes[stage][members[stage]]
            for row, ends in ((down, (before, group)), (up, (group, before))):
                link = _link(_bytes_per_s(*ends, same, lane_bytes, measurements), 2)
                row[stage] = collective("send", message_bytes, [link]).total_s
    # A blocking message takes time of both ends, at the same time: the receiver's action, which
    # begins with it, starts so much before the sender's, which ends with it, is done.
    durations = Durations(
        forward_s=tuple(down[s] + forward[s] + down[s + 1] for s in range(stages)),
        backward_s=tuple(up[s + 1] + backward[s] + up[s] for s in range(stages)),
        send_forward_s=tuple(-down[s] for s in range(stages)),
        send_backward_s=tuple(-up[s] for s in range(stages)),
    )
    return durations, update


def _gather_s(message_bytes: float, group: Group, measurements: Measurements) -> float:
    """The all-gather of the tensor's parts inside the node."""
    if group.tp == 1:
        return 0.0
    curve = measurements.within_node(group.device, group.tp)
    link = _link(curve.bytes_per_s(message_bytes / group.tp), group.tp)
    return collective("all_gather", message_bytes, [link]).total_s


def _reduce_s(
    run: Run,
    stage: int,
    shape: ModelShape,
    measurements: Measurements,
    nodes: Sequence[Sequence[int]],
) -> float:
    """All-reduce of a stage's gradients over its replicas, at the rate of the slowest link."""
    members = run.groups[stage]
    count = len(members)
    if count == 1:
        return 0.0
    lanes = min(group.tp for group in members)
    last = max(layer for layers in run.layers for layer in layers)
    per_lane = sum(shape.layer_parameters(layer, last, lanes) for layer in run.layers[stage])
    gradient_bytes = per_lane * lanes * VALUE_BYTES
    slowest = min(
        _bytes_per_s(
            members[i],
            members[(i + 1) % count],
            nodes[stage][i] == nodes[stage][(i + 1) % count],
            gradient_bytes / lanes / count,
            measurements,
        )
        for i in range(count)
    )
    return collective("all_reduce", gradient_bytes, [_link(slowest, count)]).total_s


def _link(bytes_per_s: float, members: int) -> Hop:
    """One level of `members` devices; Sailor's rates include latency."""
    return Hop(
        members=members,
        inside=1,
        rate_bytes_per_s=bytes_per_s,
        message_bytes_per_s=bytes_per_s,
        latency_s=0.0,
    )


def _bytes_per_s(
    sender: Group, receiver: Group, same_node: bool, lane_bytes: float, measurements: Measurements
) -> float:
    """Bytes per second of all lanes between two groups."""
    if not same_node:
        return measurements.between_nodes(sender, receiver).bytes_per_s(lane_bytes)
    lanes = min(sender.tp, receiver.tp)
    curve = measurements.within_node(sender.device, max(2, 2 * lanes))
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
