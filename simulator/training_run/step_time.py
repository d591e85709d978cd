"""The step time of described runs from their features and coefficients, as arrays over the runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.features import Features
from simulator.training_run.message_stalls import (
    risk_s,
    stall_chance,
    stalled_buckets,
    stalled_messages,
    waiting_buckets,
    waiting_ranks,
)

Array = NDArray[np.float64]

# How gently one bound takes over from another: exponent of the norm that joins two times of which
# the larger counts (queues between host and device, and between streams, are not perfect).
_SHARP = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """[runs] seconds of a step; `total_s` is their sum.

    compute_s     matmuls, attention, passes and what waits for the host, of the busiest stage
    tensor_s, expert_s, context_s, gather_s   messages inside layers that do not hide
    cut_s         sends between stages; bubble_s  idle stages; reduce_s  gradients and weights
    stall_s       messages between stages that stall, or the risk of it (message_stalls.py)
    host_s        what host memory costs: its transfers that do not hide, and an optimizer there
    """

    compute_s: Array
    tensor_s: Array
    expert_s: Array
    context_s: Array
    gather_s: Array
    cut_s: Array
    stall_s: Array
    bubble_s: Array
    reduce_s: Array
    optimizer_s: Array
    host_s: Array
    overhead_s: Array

    @property
    def total_s(self) -> Array:
        """Seconds of a step, per run."""
        return np.asarray(
            self.compute_s
            + self.tensor_s
            + self.expert_s
            + self.context_s
            + self.gather_s
            + self.cut_s
            + self.stall_s
            + self.bubble_s
            + self.reduce_s
            + self.optimizer_s
            + self.host_s
            + self.overhead_s
        )


def larger(a: Array, b: Array) -> Array:
    """The larger of two times, joined by a 6-norm where they are alike."""
    top = np.maximum(np.maximum(a, b), 1e-30)
    return np.asarray(top * ((a / top) ** _SHARP + (b / top) ** _SHARP) ** (1 / _SHARP))


def moved(inner: Array, outer: Array, far: Array, c: Mapping[str, Array]) -> Array:
    """Seconds of a message: inside nodes, over the network and over what lies beyond it are at work
    at once, the slowest binds (simulator/collectives.py)."""
    return np.asarray(np.maximum(np.maximum(inner * c["inner"], outer * c["outer"]), far))


def wide_layer(x: Features, c: Mapping[str, Array]) -> Array:
    """Seconds that a layer in bf16 takes beyond one at the run's precision, per micro-batch: its
    matmuls take longer, and nothing is cast to fewer bits."""
    again = 1.0 + x.recomputed_matmul
    dense = x.wide_forward * again + x.wide_backward
    grouped = x.wide_grouped_forward * again + x.wide_grouped_backward
    casts = c["casts"] * (x.cast_forward * again + x.cast_backward)
    return np.asarray(c["matmul"] * (dense + c["grouped"] * grouped) - casts)


def not_hidden(x: Features, c: Mapping[str, Array], layers_s: Array) -> Array:
    """Seconds of the gradients' exchange that a slow level adds because they find nothing more to
    hide under: gradients are whole in the last micro-batch only, so that what a level takes beyond
    the nodes' network hides under one micro-batch's layers, `layers_s`, at most."""
    near = np.maximum(x.reduce_inner * c["inner"], x.reduce_outer * c["outer"])
    slower = np.maximum(x.reduce_far - near, 0.0)
    return np.maximum((1.0 - c["reduce_exposed"]) * slower - layers_s, 0.0)


def host_shown(x: Features, layer_s: Array) -> Array:
    """Seconds per layer and micro-batch of activations on their way to the host and back that no
    computing hides."""
    beside = np.maximum(x.host_layer_s - layer_s, 0.0)
    return np.where(x.overlaps_host > 0, beside, x.host_layer_s)


def far_cuts(x: Features, c: Mapping[str, Array], busiest: Array) -> Array:
    """Seconds per step that sends between parts of a far level add to a pipeline.

    1F1B: the stages on both sides of a crossing wait for each other in a cycle of two micro-batches
    and two sends, so that each micro-batch takes one send longer; where every cut is a crossing,
    2 n / (n + 1) sends for n of them. Filling and draining pass each crossing once, and the
    micro-batches that the last part has in flight then wait for none. Interleaved chunks, which
    pass from the last stage to the first over the same line too, hide half a chunk's time; beyond
    that 1/2 + 1/p sends per chunk of p stages show. Both are read off the timeline, and
    tests/simulator/test_far_seconds.py holds them beside it, within 10 % (interleaved: 20 %).
    Besides, a line that is slower than the stages falls behind them, and no send hides better than
    one between nodes.
    """
    several = x.vpp > 1
    one = x.cut_far * np.where(several, 2.0, 1.0)
    way = one + x.cut_far_latency
    crossings = x.cut_crossings
    every = 2.0 * crossings / (crossings + 1.0)
    cycle = np.where(crossings >= x.pp - 1.0, np.maximum(every, 1.0), 1.0)
    after = x.pp / (crossings + 1.0)
    plain = cycle * np.maximum(x.microbatches - after, 0.0) * way + 2.0 * way * crossings
    chunks = x.microbatches * x.vpp
    hidden = busiest / (2.0 * x.vpp)
    mixed = np.maximum(
        chunks * (0.5 + 1.0 / np.maximum(x.pp, 1.0)) * np.maximum(way - hidden, 0.0),
        2.0 * way * crossings * (2.0 * x.vpp - 1.0),
    )
    shown = np.maximum(2.0 * way * c["cut_exposed"] * chunks, np.where(several, mixed, plain))
    behind = x.microbatches * (x.vpp * one - busiest)
    return np.where(crossings > 0, np.maximum(shown, behind), 0.0)


def step_parts(
    x: Features, c: Mapping[str, Array], trouble: NDArray[np.bool_] | None = None
) -> StepParts:
    """The parts of each run's step.

    c        per kind of coefficient the value of every run (coefficients.Assigned.of)
    trouble  [runs] whether messages stall; None where that is not known: the parts are then those
             without, and stall_s is the risk (`message_stalls.risk_s`)

    A stage's time per micro-batch is the larger of device and host time. The pipeline is 1f1b's
    (m - 1) T_max + sum T (Narayanan et al., SC'21, section 2.2.1), its idle part divided by the
    chunks per rank where interleaved; zero-bubble schedules idle as their own timeline says.
    """
    launch = c["launch_us"] * 1e-6
    attention = c["attention"]
    if trouble is None:
        return _with_risk(x, c)
    forward_matmul = larger(c["matmul"] * x.matmul_forward, c["power"] * x.peak_forward)
    backward_matmul = larger(c["matmul"] * x.matmul_backward, c["power"] * x.peak_backward)
    forward = forward_matmul + attention * x.attention_forward
    grouped = c["grouped"] * c["matmul"]
    forward = forward + grouped * x.grouped_forward
    scores = c["scores"] * x.score_forward
    casts = c["casts"] * x.cast_forward
    forward = forward + c["passes"] * x.pass_forward + casts + scores
    forward = forward + c["state"] * x.state_forward
    backward = backward_matmul + attention * x.attention_backward + c["state"] * x.state_backward
    backward = backward + grouped * x.grouped_backward
    backward = backward + c["passes"] * x.pass_backward + 1.5 * scores
    backward = backward + c["casts"] * x.cast_backward
    backward = backward + c["optimizer"] * x.accumulation_s
    again = x.recomputed_matmul * (forward_matmul + grouped * x.grouped_forward + casts)
    again = again + x.recomputed_attention * (attention * x.attention_forward + scores)
    again = again + x.recomputed_matmul * c["state"] * x.state_forward
    again = again + c["passes"] * x.recomputed_pass * x.pass_forward
    tensor = moved(x.tensor_inner, x.tensor_outer, x.tensor_far, c) + 1e-6 * (
        x.tensor_inner_steps * c["inner_step_us"] + x.tensor_outer_steps * c["outer_step_us"]
    )
    # Two in each direction, and the forward's once more where the layer is run again.
    tensor = tensor * (2.0 + x.recomputed_matmul) * c["tensor_exposed"]
    expert = moved(x.expert_inner, x.expert_outer, x.expert_far, c)
    expert = expert * (2.0 + x.recomputed_matmul) * c["expert_exposed"]
    context = moved(x.context_inner, x.context_outer, x.context_far, c) * 3.0
    context = context * c["context_exposed"]
    computing = forward + backward + again + tensor + context
    # Under what two micro-batches compute at a time, where the schedule pairs their passes.
    beside = larger(computing, expert) - computing
    expert = np.where(x.overlaps_experts > 0, beside, expert)
    device = computing + expert
    kernels = x.kernels_forward + x.kernels_backward + x.recomputed_matmul * x.kernels_forward
    rings = x.tensor_rings * (2.0 + x.recomputed_matmul) * c["ring_us"] * 1e-6
    sockets = x.socket_calls * (2.0 + x.recomputed_matmul) * c["socket_us"] * 1e-6
    waits = waiting_ranks(x, trouble) * (2.0 + x.recomputed_matmul) * c["wait_us"] * 1e-6
    layer = larger(device, kernels * launch + sockets + waits) + rings
    gather = moved(x.gather_inner, x.gather_outer, x.gather_far, c)
    gather = gather + 1e-6 * x.gather_steps * c["outer_step_us"]
    hidden = np.where(gather > 0, larger(layer, gather) - layer, 0.0)
    gather_layer = hidden + c["gather_exposed"] * np.minimum(gather, layer)
    head = larger(c["matmul"] * x.head_matmul, c["power"] * x.head_peak)
    head = head + c["passes"] * x.head_pass + c["optimizer"] * x.head_accumulation
    host_layer = host_shown(x, layer)
    whole = layer + gather_layer + host_layer
    micro = c["microbatch_ms"] * 1e-3 * x.vpp
    wide = wide_layer(x, c)
    full = x.layers * whole + np.where(x.pp > 1, 0.0, head) + micro + x.wide_first * wide
    last = x.last_layers * whole + head + micro + x.wide_last * wide
    busiest = np.maximum(full, last)
    # Stages in the middle have none of the first and last layers.
    middle = np.maximum(x.pp - 2, 0.0) * x.wide_first * wide
    others = (x.pp - 1) * full + last - busiest - middle
    # A zero-bubble schedule may start from 1f1b, so it idles no longer, whatever the head weighs.
    idle = np.where(x.idle_share > 0, np.minimum(x.idle_share * busiest, others), others / x.vpp)
    bubble = np.where(x.pp > 1, idle, 0.0)
    cut = (x.cut_inner * c["inner"] + x.cut_outer * c["outer"]) + (
        1e-6 * (x.cut_steps * c["cut_step_us"] + x.cut_peers * c["cut_peer_us"])
    )
    cuts = 2 * cut * (x.microbatches * x.vpp * c["cut_exposed"] + (x.pp - 1))
    cuts = cuts + far_cuts(x, c, busiest)
    reduce = moved(x.reduce_inner, x.reduce_outer, x.reduce_far, c)
    reduce = (reduce + 1e-6 * x.reduce_steps * c["outer_step_us"]) * c["reduce_exposed"]
    reduce = reduce + not_hidden(x, c, x.layers * layer)
    reduce = reduce + 1e-6 * x.reduce_ranks * c["reduce_rank_us"]
    reduce = reduce + 1e-3 * waiting_buckets(x, trouble) * c["wait_bucket_ms"]
    reduce = reduce + 1e-3 * stalled_buckets(x, trouble) * c["stall_bucket_ms"]
    reduce = reduce + moved(x.sync_inner, x.sync_outer, x.sync_far, c)
    optimizer = c["optimizer"] * (x.optimizer_s + x.extra_pass_s)
    m = x.microbatches
    share = m * np.where(full >= last, x.layers, x.last_layers)
    parts = StepParts(
        compute_s=m * busiest - share * (tensor + expert + context + gather_layer + host_layer),
        tensor_s=share * tensor,
        expert_s=share * expert,
        context_s=share * context,
        gather_s=share * gather_layer,
        cut_s=np.where(x.pp > 1, cuts, 0.0),
        stall_s=stalled_messages(x, trouble) * c["stall_ms"] * 1e-3,
        bubble_s=bubble,
        reduce_s=reduce,
        optimizer_s=optimizer,
        host_s=share * host_layer + x.host_step_s,
        overhead_s=c["step_ms"] * 1e-3,
    )
    slowest = c["spread"] * np.log2(np.maximum(x.nodes, 1.0)) * parts.total_s
    return StepParts(
        **{
            name: getattr(parts, name) + (slowest if name == "overhead_s" else 0.0)
            for name in StepParts.__dataclass_fields__
        }
    )


def _with_risk(x: Features, c: Mapping[str, Array]) -> StepParts:
    chance = stall_chance(x, c)
    calm = step_parts(x, c, np.zeros(len(chance), dtype=np.bool_))
    rows = np.flatnonzero(chance > 0)
    if not rows.size:
        return calm
    some = {kind: value[rows] for kind, value in c.items()}
    troubled = step_parts(x.rows(rows), some, np.ones(rows.size, dtype=np.bool_)).total_s
    risk = np.zeros(len(chance))
    risk[rows] = risk_s(calm.total_s[rows], troubled, chance[rows])
    return replace(calm, stall_s=risk)
