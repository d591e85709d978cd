"""The step time of described runs from their features and coefficients, as arrays over the runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.features import Features
from simulator.training_run.message_stalls import (
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
    overhead_s: Array

    @property
    def total_s(self) -> Array:
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
            + self.overhead_s
        )


def larger(a: Array, b: Array) -> Array:
    """The larger of two times, joined by a 6-norm where they are alike."""
    top = np.maximum(np.maximum(a, b), 1e-30)
    return np.asarray(top * ((a / top) ** _SHARP + (b / top) ** _SHARP) ** (1 / _SHARP))


def step_parts(
    x: Features, c: Mapping[str, Array], trouble: NDArray[np.bool_] | None = None
) -> StepParts:
    """The parts of each run's step.

    c        per kind of coefficient the value of every run (coefficients.Assigned.of)
    trouble  [runs] whether messages stall; None for the geometric mean of both cases, weighted by
             how often they happen: the parts are then those without, and stall_s is the difference

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
    forward = forward + c["passes"] * x.pass_forward + scores
    backward = backward_matmul + attention * x.attention_backward
    backward = backward + grouped * x.grouped_backward
    backward = backward + c["passes"] * x.pass_backward + 1.5 * scores
    backward = backward + c["optimizer"] * x.accumulation_s
    again = x.recomputed_matmul * (forward_matmul + grouped * x.grouped_forward)
    again = again + x.recomputed_attention * (attention * x.attention_forward + scores)
    again = again + c["passes"] * x.recomputed_pass * x.pass_forward
    tensor = (x.tensor_inner * c["inner"] + x.tensor_outer * c["outer"]) + 1e-6 * (
        x.tensor_inner_steps * c["inner_step_us"] + x.tensor_outer_steps * c["outer_step_us"]
    )
    # Two in each direction, and the forward's once more where the layer is run again.
    tensor = tensor * (2.0 + x.recomputed_matmul) * c["tensor_exposed"]
    expert = (x.expert_inner * c["inner"] + x.expert_outer * c["outer"]) * (
        2.0 + x.recomputed_matmul
    )
    context = (x.context_inner * c["inner"] + x.context_outer * c["outer"]) * 3.0
    device = forward + backward + again + tensor + expert + context
    kernels = x.kernels_forward + x.kernels_backward + x.recomputed_matmul * x.kernels_forward
    rings = x.tensor_rings * (2.0 + x.recomputed_matmul) * c["ring_us"] * 1e-6
    sockets = x.socket_calls * (2.0 + x.recomputed_matmul) * c["socket_us"] * 1e-6
    waits = waiting_ranks(x, trouble) * (2.0 + x.recomputed_matmul) * c["wait_us"] * 1e-6
    layer = larger(device, kernels * launch + sockets + waits) + rings
    gather = x.gather_inner * c["inner"] + x.gather_outer * c["outer"]
    gather = gather + 1e-6 * x.gather_steps * c["outer_step_us"]
    hidden = np.where(gather > 0, larger(layer, gather) - layer, 0.0)
    gather_layer = hidden + c["gather_exposed"] * np.minimum(gather, layer)
    head = larger(c["matmul"] * x.head_matmul, c["power"] * x.head_peak)
    head = head + c["passes"] * x.head_pass + c["optimizer"] * x.head_accumulation
    whole = layer + gather_layer
    micro = c["microbatch_ms"] * 1e-3 * x.vpp
    full = x.layers * whole + np.where(x.pp > 1, 0.0, head) + micro
    last = x.last_layers * whole + head + micro
    busiest = np.maximum(full, last)
    others = (x.pp - 1) * full + last - busiest
    # A zero-bubble schedule may start from 1f1b, so it idles no longer, whatever the head weighs.
    idle = np.where(x.idle_share > 0, np.minimum(x.idle_share * busiest, others), others / x.vpp)
    bubble = np.where(x.pp > 1, idle, 0.0)
    cut = (x.cut_inner * c["inner"] + x.cut_outer * c["outer"]) + (
        1e-6 * (x.cut_steps * c["cut_step_us"] + x.cut_peers * c["cut_peer_us"])
    )
    cuts = 2 * cut * (x.microbatches * x.vpp * c["cut_exposed"] + (x.pp - 1))
    reduce = x.reduce_inner * c["inner"] + x.reduce_outer * c["outer"]
    reduce = (reduce + 1e-6 * x.reduce_steps * c["outer_step_us"]) * c["reduce_exposed"]
    reduce = reduce + 1e-6 * x.reduce_ranks * c["reduce_rank_us"]
    reduce = reduce + 1e-3 * waiting_buckets(x, trouble) * c["wait_bucket_ms"]
    reduce = reduce + 1e-3 * stalled_buckets(x, trouble) * c["stall_bucket_ms"]
    optimizer = c["optimizer"] * x.optimizer_s
    m = x.microbatches
    share = m * np.where(full >= last, x.layers, x.last_layers)
    parts = StepParts(
        compute_s=m * busiest - share * (tensor + expert + context + gather_layer),
        tensor_s=share * tensor,
        expert_s=share * expert,
        context_s=share * context,
        gather_s=share * gather_layer,
        cut_s=np.where(x.pp > 1, cuts, 0.0),
        stall_s=stalled_messages(x, trouble) * c["stall_ms"] * 1e-3,
        bubble_s=bubble,
        reduce_s=reduce,
        optimizer_s=optimizer,
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
    without = calm.total_s[rows]
    risk = np.zeros(len(chance))
    risk[rows] = without * ((troubled / without) ** chance[rows] - 1.0)
    return replace(calm, stall_s=risk)
