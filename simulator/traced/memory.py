"""Memory of a rank: what is there all step long, and what comes and goes with the actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.schedules.schedule import ActionKind
from simulator.schedules.timeline import Timeline
from simulator.traced.block_cost import BlockCost
from simulator.traced.stack import Stack
from simulator.values.plan import Plan
from simulator.values.prediction import MemorySample, RankMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBytes:
    """Bytes that a rank holds during the whole step."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Elements of the parameters that a rank holds, after tensor-parallel sharding.

    total, trained  of all of them, and of those that are not frozen
    largest, largest_trained  of its largest block
    """

    total: float
    trained: float
    largest: float
    largest_trained: float


def static_bytes(
    held: Elements,
    *,
    stack: Stack,
    precision: str,
    optimizer: str,
    zero_stage: int,
    dp: int,
    pp: int,
) -> StaticBytes:
    """Parameters, gradients and optimizer states of one rank.

    ZeRO (Rajbhandari et al., arXiv 1910.02054, section 5) shards optimizer states (1), gradients
    (2) and parameters (3) over dp; the stack's habits (data/stacks) say what stays whole. ZeRO-3
    gathers a block at a time, and the next one ahead: two of the largest. Frozen parameters have
    neither gradients nor states, and where nothing is sharded they are kept in the type that is
    computed with alone (executor/working_copies.py).
    """
    sizes = stack.bytes_of(precision)
    n, trained = held.total, held.trained
    if zero_stage >= 2 and dp > 1:
        gathered = min(n, 2 * held.largest) if zero_stage == 3 else n
        parameters = sizes.parameter_bytes * n / dp + sizes.compute_bytes * gathered
    else:
        parameters = sizes.compute_bytes * (n - trained)
        parameters += (sizes.parameter_bytes + sizes.working_copy_bytes) * trained
    gradients = sizes.gradient_bytes * trained
    whole = stack.behaviour.gradients_whole_until_last and pp > 1
    if zero_stage >= 2 and not whole:
        gradients = sizes.gradient_bytes * (trained / dp + min(trained, 2 * held.largest_trained))
    states = stack.optimizer_bytes.of(optimizer) * trained / (dp if zero_stage >= 1 else 1)
    return StaticBytes(parameters=parameters, gradients=gradients, optimizer=states)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """What a micro-batch adds to the rank of a virtual stage.

    kept_bytes       from the forward to the backward of a micro-batch
    forward_peak_bytes, backward_peak_bytes   highest bytes while the micro-batch runs, beyond what
                     is kept of the other micro-batches
    received_bytes, sent_bytes   of the activations that cross its cuts, per micro-batch; the
                     gradients that cross the other way are as large
    first_transient_bytes   while the backward of its first block runs, the last of all
    weight_bytes     from the I to the W of a micro-batch, where the backward is split
    """

    kept_bytes: float
    forward_peak_bytes: float
    backward_peak_bytes: float
    received_bytes: float
    sent_bytes: float
    first_transient_bytes: float = 0.0
    weight_bytes: float = 0.0


def stage_bytes(
    blocks: Sequence[BlockCost],
    *,
    is_first: bool,
    is_last: bool,
    buffers_apart: bool,
    splits_backward: bool = False,
) -> StageBytes:
    """The bytes of a stage from its blocks' costs, in chain order.

    buffers_apart  the stack keeps a receive buffer for every micro-batch of the step
                   (Behaviour.receive_buffers_per_microbatch), so that what a micro-batch receives
                   is not among what it adds
    splits_backward  an I sets aside, block by block from the last to the first, what W needs: that
                   of the blocks behind the one that runs is there in its backward. (Of the block
                   itself it is counted from its end on. A whole B of such a schedule is taken for
                   an I.)
    """
    received = 0.0 if is_first else blocks[0].input_bytes
    sent = 0.0 if is_last else blocks[-1].output_bytes
    held = 0.0
    forward_peak = backward_peak = 0.0
    weights = [block.weight_bytes * splits_backward for block in blocks]
    aside = sum(weights)
    for position, block in enumerate(blocks):
        own_inputs = block.input_bytes if position else 0.0 if buffers_apart else received
        before = held + own_inputs
        forward_peak = max(forward_peak, before + block.saved_bytes + block.forward_transient_bytes)
        held = before + block.saved_bytes
        aside -= weights[position]
        backward_peak = max(backward_peak, held + block.backward_transient_bytes + aside)
    return StageBytes(
        kept_bytes=held + sent,
        forward_peak_bytes=max(forward_peak, held + sent),
        backward_peak_bytes=backward_peak + sent,
        received_bytes=received,
        sent_bytes=sent,
        first_transient_bytes=(0.0 if buffers_apart else received)
        + blocks[0].saved_bytes
        + blocks[0].backward_transient_bytes
        + sum(weights[1:]),
        weight_bytes=sum(weights),
    )


def branched_stage_bytes(
    blocks: Sequence[BlockCost],
    *,
    received: float,
    sent: float,
    buffers_apart: bool,
    splits_backward: bool = False,
) -> StageBytes:
    """The bytes of a stage of a graph with branches, its blocks in the order in which they run.

    received, sent  bytes over the cuts before and behind the stage (tracing/block_order.py)

    A tensor between blocks is there from its forward, or its receipt, to the end of the
    micro-batch's backward, once however many blocks use it and however many stages hand it on: a
    stage that relays a tensor sends the very tensor that it received. splits_backward as in
    `stage_bytes`.
    """
    held = 0.0 if buffers_apart else received
    first = held
    forward_peak = backward_peak = 0.0
    weights = [block.weight_bytes * splits_backward for block in blocks]
    aside = sum(weights)
    for block, weight in zip(blocks, weights, strict=True):
        before = held + block.saved_bytes
        forward_peak = max(forward_peak, before + block.forward_transient_bytes)
        held = before + block.output_bytes
        aside -= weight
        backward_peak = max(backward_peak, held + block.backward_transient_bytes + aside)
    opening = blocks[0]
    return StageBytes(
        kept_bytes=held,
        forward_peak_bytes=max(forward_peak, held),
        backward_peak_bytes=backward_peak,
        received_bytes=received,
        sent_bytes=sent,
        first_transient_bytes=first
        + opening.saved_bytes
        + opening.output_bytes
        + opening.backward_transient_bytes
        + sum(weights[1:]),
        weight_bytes=sum(weights),
    )


def message_counts(stack: Stack, num_microbatches: int) -> tuple[int, int]:
    """Messages that a pipeline stage has room for whatever is in flight, of the size of what it
    receives forward and of what it sends forward.

    A stack that keeps buffers for the whole step has one per micro-batch and direction. Otherwise
    there are three: an activation received ahead of its forward, a gradient still being sent (both
    of the size that it receives) and a gradient received (executor/torch_pipeline.py, Messages).
    """
    if stack.behaviour.receive_buffers_per_microbatch:
        return num_microbatches, num_microbatches
    return 2, 1


def rank_memory(
    plan: Plan,
    rank: int,
    *,
    stages: dict[int, StageBytes],
    static: StaticBytes,
    timeline: Timeline,
    capacity_bytes: float,
    stack: Stack,
    exchange_bytes: float = 0.0,
) -> RankMemory:
    """Peak and course of a pipeline rank's memory over the step.

    exchange_bytes  what the exchange of gradients makes and frees

    Gradients are dropped after the optimizer step, so a stage's are there from its first backward.
    Receive buffers of the whole step are counted as communication where the stack keeps them, else
    those of the micro-batches in flight with the activations, and what is under way as
    communication. Where sent tensors are held to the end of the step, those of each micro-batch
    count there from its backward on (until then its output is among the activations). Where the
    backward is split, a micro-batch keeps `weight_bytes` from its I to its W, which needs no more.
    """
    degrees = plan.degrees
    communication = 0.0
    if degrees.pp > 1:
        arriving, leaving = message_counts(stack, plan.num_microbatches)
        communication = sum(
            arriving * s.received_bytes + leaving * s.sent_bytes for s in stages.values()
        )
    base = static.parameters + static.optimizer + communication
    share = static.gradients / max(1, len(stages))
    level = base
    samples = [MemorySample(time_s=0.0, memory_bytes=level)]
    peak, peak_time, peak_kept, peak_gradients, kept = level, 0.0, 0.0, 0.0, 0.0
    begun: set[int] = set()
    held = sent = peak_sent = 0.0
    holds = degrees.pp > 1 and stack.behaviour.sent_tensors_held_until_end
    for i, action in enumerate(timeline.actions):
        if timeline.ranks[i] != rank:
            continue
        stage = stages[action.stage]
        gradients = share * len(begun)
        if action.kind is ActionKind.FORWARD:
            high = kept + stage.forward_peak_bytes
            after = kept + stage.kept_bytes
        elif action.kind is ActionKind.BACKWARD_WEIGHT:
            high, after = kept, kept - stage.weight_bytes
            if holds:
                held = sent + stage.received_bytes + stage.sent_bytes
        else:
            released = action.kind is ActionKind.BACKWARD
            others = kept - stage.kept_bytes
            high = max(kept, others + stage.backward_peak_bytes)
            after = others if released else others + stage.weight_bytes
            if action.stage not in begun:
                # Gradients come into being block by block while activations go.
                begun.add(action.stage)
                first = others + share + stage.first_transient_bytes
                if first > high:
                    high, gradients = first - share, share * len(begun)
            if holds and released:
                held = sent + stage.received_bytes + stage.sent_bytes
        now = level + sent + gradients + high
        samples.append(MemorySample(time_s=timeline.start_s[i], memory_bytes=now))
        if now > peak:
            peak, peak_time, peak_sent = now, timeline.start_s[i], sent
            peak_kept, peak_gradients = min(kept, high), gradients
        kept, sent = after, held
        left = level + sent + share * len(begun) + after
        samples.append(MemorySample(time_s=timeline.end_s[i], memory_bytes=left))
    end = max(timeline.end_s)
    held_to_the_end = level + sent + static.gradients
    if exchange_bytes:
        samples += [
            MemorySample(time_s=end, memory_bytes=held_to_the_end + more)
            for more in (exchange_bytes, 0.0)
        ]
    if held_to_the_end + exchange_bytes > peak:
        peak, peak_time, peak_sent = held_to_the_end + exchange_bytes, end, sent
        peak_kept, peak_gradients = 0.0, static.gradients
    return RankMemory(
        rank=degrees.rank(pp=rank),
        parameters_bytes=static.parameters,
        gradients_bytes=peak_gradients,
        optimizer_bytes=static.optimizer,
        activations_bytes=peak_kept,
        transient_bytes=max(0.0, peak - level - peak_sent - peak_gradients - peak_kept),
        communication_bytes=communication + peak_sent,
        capacity_bytes=capacity_bytes,
        peak_time_s=peak_time,
        timeline=tuple(samples),
    )
